"""What a round brought: replies checked, the bad ones dropped and named, the good ones merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from corsage.core.arrays import Array, Arrays, Floats
from corsage.core.wire import decode, payload


@dataclass
class Replies:
    """The merged replies of one exchange.

    Parameters
    ----------
    users : users whose reply is used; `rows` and `metrics` are in this order.
    mean : weighted mean over these users of each array they sent.
    rows : one row a user, for algorithms that need to know who sent what.
    metrics : numbers a user, by name (`loss`, `correct`, `num-examples`, ...).
    weight : sum of the users' weights in `mean`.
    dropped : why each user that was asked is not among `users`.
    lost : users whose node no longer has their personal state.
    kept : True if the users keep a personal state of this round.
    wire_bytes, wire_messages : what came over the wire.
    """

    users: list[str] = field(default_factory=list)
    mean: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)
    metrics: dict[str, Floats] = field(default_factory=dict)
    weight: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    kept: bool = False
    wire_bytes: int = 0
    wire_messages: int = 0


class BadReply(ValueError):
    """A reply that cannot be used, and why."""


@dataclass(frozen=True)
class NodeReply:
    """One node's usable reply; the fields are those of `Replies`, for the users of this node."""

    users: list[str]
    weight: float
    mean: Arrays
    rows: Arrays
    metrics: dict[str, Floats]
    dropped: dict[str, str]
    lost: set[str]
    kept: bool
    wire_bytes: int


def merge_replies(
    replies: list[Message],
    asked: Mapping[int, list[str]],
    template: Mapping[str, Array],
    needed: Collection[str] = (),
) -> Replies:
    """Check every reply against what was asked and merge the good ones.

    `template` holds arrays of the shape and dtype that one user sends, `needed` names the metrics
    without which a reply is of no use. The result does not depend on the order in which the
    replies came.
    """
    good: list[NodeReply] = []
    dropped: dict[str, str] = {}
    silent = dict(asked)
    for reply in sorted(replies, key=lambda r: asked.get(r.metadata.src_node_id, [""])[0]):
        users = silent.pop(reply.metadata.src_node_id, [])
        try:
            good.append(_read(reply, users, template, needed))
            dropped.update(good[-1].dropped)
        except BadReply as why:
            dropped.update({user: str(why).removeprefix(f"user {user}: ") for user in users})
    for users in silent.values():
        dropped.update(dict.fromkeys(users, "no reply in time"))
    good, odd = _alike(good)
    dropped.update(odd)
    users = [user for part in good for user in part.users]
    order = sorted(range(len(users)), key=lambda i: reading_order(users[i]))
    return Replies(
        users=[users[i] for i in order],
        mean=_weighted_mean([(part.weight, part.mean) for part in good], template),
        rows=_stack([part.rows for part in good], order),
        metrics=_stack([part.metrics for part in good], order),
        weight=sum(part.weight for part in good),
        dropped=dropped,
        lost={user for part in good for user in part.lost},
        kept=any(part.kept for part in good),
        wire_bytes=sum(part.wire_bytes for part in good),
        wire_messages=len(replies),
    )


def reading_order(user: str) -> tuple[int, str]:
    """Sorts user ids the same way everywhere, and numbers by size."""
    return len(user), user


def _alike(parts: list[NodeReply]) -> tuple[list[NodeReply], dict[str, str]]:
    """The replies that send as rows what most users' nodes send as rows, and whom that drops."""
    counts: dict[frozenset[str], int] = {}
    for part in parts:
        kind = frozenset(part.rows)
        counts[kind] = counts.get(kind, 0) + len(part.users)
    usual = max(counts, key=lambda kind: counts[kind], default=frozenset())
    why = "malformed reply: rows where others send a mean, or a mean where they send rows"
    odd = [user for part in parts if frozenset(part.rows) != usual for user in part.users]
    kept = [part for part in parts if frozenset(part.rows) == usual or not part.users]
    return kept, dict.fromkeys(odd, why)


def _read(
    reply: Message, asked: list[str], template: Mapping[str, Array], needed: Collection[str]
) -> NodeReply:
    """One node's reply, or BadReply."""
    if reply.has_error():
        raise BadReply(str(reply.error.reason).strip())
    content = reply.content
    try:
        config, numbers = content["config"], content["metrics"]
        users = [str(user) for user in config.get("users", [])]  # type: ignore[union-attr]
        weight = float(numbers["weight"])  # type: ignore[arg-type]
        failed = zip(config.get("failed", []), config.get("causes", []), strict=False)  # type: ignore[arg-type]
        causes = {str(user): str(why) for user, why in failed if user in asked}
        lost = set(asked) & set(config.get("lost", []))  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"malformed reply: {type(error).__name__} {error}") from error
    if len(set(users)) != len(users) or not set(users) <= set(asked):
        raise BadReply("malformed reply: it speaks of users that were not asked")
    if not np.isfinite(weight) or weight < 0 or (users and weight == 0):
        raise BadReply(f"malformed reply: weight {weight}")
    metrics = _metrics(numbers, users, needed)
    records = {n: r for n, r in content.items() if isinstance(r, ArrayRecord)}
    mean, rows = _arrays(records, users, template)
    dropped = dict.fromkeys(sorted(set(asked) - set(users)), "left out of its node's reply")
    dropped.update(causes)
    return NodeReply(
        users=users,
        weight=weight,
        mean=mean,
        rows=rows,
        metrics=metrics,
        dropped=dropped,
        lost=lost,
        kept=bool(config.get("kept", False)),
        wire_bytes=sum(payload(record) for record in records.values()),
    )


def _metrics(
    numbers: Mapping[str, Any], users: list[str], needed: Collection[str]
) -> dict[str, Floats]:
    """The lists among a reply's metrics: one finite number for each of its users."""
    metrics = {
        name: np.asarray(value, dtype=np.float64)
        for name, value in numbers.items()
        if isinstance(value, list)
    }
    if users and (missing := set(needed) - set(metrics)):
        raise BadReply(f"malformed reply: no {', '.join(sorted(missing))}")
    for name, values in metrics.items():
        if len(values) != len(users):
            raise BadReply(f"malformed reply: {len(values)} values of {name}, {len(users)} users")
        if not np.isfinite(values).all():
            raise BadReply(f"not finite: {name}")
        if name == "num-examples" and (values <= 0).any():
            raise BadReply("malformed reply: users without samples")
    return metrics


def _arrays(
    records: Mapping[str, ArrayRecord], users: list[str], template: Mapping[str, Array]
) -> tuple[Arrays, Arrays]:
    """The arrays of a reply, each of the right name, shape and dtype, and finite."""
    try:
        mean = decode(records["arrays"]) if "arrays" in records else {}
        rows = decode(records["rows"]) if "rows" in records else {}
    except (ValueError, TypeError, EOFError) as error:
        raise BadReply(f"malformed reply: {error}") from error
    if not users:
        return {}, {}
    if {*mean, *rows} != set(template) or set(mean) & set(rows):
        raise BadReply(f"wrong arrays: got {sorted({*mean, *rows})}, expected {sorted(template)}")
    for name, array in (*mean.items(), *rows.items()):
        shape = template[name].shape if name in mean else (len(users), *template[name].shape)
        if array.shape != shape:
            raise BadReply(f"wrong shape: {name} is {array.shape}, expected {shape}")
        if array.dtype.kind != template[name].dtype.kind:
            raise BadReply(f"wrong type: {name} is {array.dtype}, not {template[name].dtype}")
        if not np.isfinite(array).all():
            raise BadReply(f"not finite: {name}")
    return mean, rows


def _weighted_mean(parts: list[tuple[float, Arrays]], template: Mapping[str, Array]) -> Arrays:
    """The mean over users out of the nodes' means; summed in double precision."""
    named = [(weight, mean) for weight, mean in parts if mean]
    if not named:
        return {}
    total = sum(weight for weight, _ in named)
    merged = {}
    for name in named[0][1]:
        sums = np.zeros(template[name].shape, dtype=np.float64)
        for weight, mean in named:
            sums += weight * mean[name].astype(np.float64)
        merged[name] = (sums / total).astype(template[name].dtype)
    return merged


def _stack(parts: Sequence[Mapping[str, Array]], order: list[int]) -> dict[str, Array]:
    """Per-user values of several nodes, in the order of the user ids."""
    filled = [part for part in parts if part]
    if not filled:
        return {}
    names = set.intersection(*(set(part) for part in filled))
    return {name: np.concatenate([part[name] for part in filled])[order] for name in names}


def by_cause(dropped: Mapping[str, str]) -> list[str]:
    """Who was dropped and why, one line a cause, however many users share it."""
    groups: dict[str, list[str]] = {}
    for user, why in sorted(dropped.items(), key=lambda item: reading_order(item[0])):
        groups.setdefault(why, []).append(user)
    return [f"{name_users(users)} dropped: {why}" for why, users in groups.items()]


def name_users(users: list[str]) -> str:
    """`user a is`, `users a, b are`, or the first five and how many more."""
    if len(users) == 1:
        return f"user {users[0]} is"
    more = f" and {len(users) - 5} more" if len(users) > 5 else ""
    return f"users {', '.join(users[:5])}{more} are"
