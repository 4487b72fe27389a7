"""What a round brought: replies checked, the bad ones dropped and named, the good ones merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from corsage.core.arrays import Array, Arrays, Floats, Ints
from corsage.core.blocks import mean_of
from corsage.core.encoding import BadMessage, payload
from corsage.core.schema import Schema, read_arrays, read_faults, read_numbers
from corsage.core.text import line

R = TypeVar("R")


@dataclass
class Replies:
    """The merged replies of one exchange.

    Parameters
    ----------
    users : users whose reply is used; `rows` and `metrics` are in this order.
    mean : weighted mean over these users of each array they sent.
    rows : one row a user, for algorithms that need to know who sent what.
    metrics : numbers a user, by name (`loss`, `correct`, `num-examples`, ...).
    weight : sum of the users' weights in `mean`, which the server knows itself.
    dropped : why each user that was asked is not among `users`.
    lost : users whose node no longer has their personal state.
    kept : users that keep a personal state of this round.
    wire_bytes, wire_messages : what came over the wire.
    silent : the nodes that sent nothing, and whom they were asked for.
    refused, answered : the nodes of whose replies something was not as declared, and all others.
    """

    users: list[str] = field(default_factory=list)
    mean: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)
    metrics: dict[str, Floats] = field(default_factory=dict)
    weight: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    wire_bytes: int = 0
    wire_messages: int = 0
    silent: dict[int, list[str]] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class NodeReply:
    """One node's usable reply; the fields are those of `Replies`, for the users of this node.

    It is `sound` if nothing of it was refused.
    """

    users: list[str]
    weight: float = 0.0
    mean: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)
    metrics: dict[str, Floats] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    kept: bool = False
    wire_bytes: int = 0
    sound: bool = True


@dataclass(frozen=True)
class Words:
    """What a node says that its users did."""

    users: list[str]
    failed: dict[str, str]
    lost: set[str]
    kept: bool


def merge_replies(
    replies: list[Message],
    asked: Mapping[int, list[str]],
    schema: Schema,
    tokens: Mapping[int, str] | None = None,
) -> Replies:
    """Check every reply against what was asked, and merge the good ones.

    `asked` says for which users each node answers, `tokens` what its message had for it to repeat
    and nobody else knows: no node speaks for another, nor twice by one reply. Whatever is in a
    reply, it costs no more than the users of its node this exchange, and they are named. The
    result does not depend on the order in which the replies came.
    """
    good: list[NodeReply] = []
    dropped: dict[str, str] = {}
    silent, refused, answered = dict(asked), list[int](), list[int]()
    for reply in sorted(replies, key=lambda r: asked.get(r.metadata.src_node_id, [""])[0]):
        node = reply.metadata.src_node_id
        users = silent.pop(node, [])
        try:
            token = (tokens or {}).get(reply.metadata.src_node_id, "")
            good.append(read(reply, users, schema, token))
            dropped.update(good[-1].dropped)
            (answered if good[-1].sound else refused).append(node)
        except BadMessage as why:
            dropped.update(dict.fromkeys(users, line(why)))
            (answered if reply.has_error() else refused).append(node)
    for users in silent.values():
        dropped.update(dict.fromkeys(users, "no reply in time"))
    users = [user for part in good for user in part.users]
    users, order = in_order(users)
    filled = [part for part in good if part.users]
    return Replies(
        users=users,
        mean=weighted_mean([(part.weight, part.mean) for part in filled], schema.arrays),
        rows=_stack([part.rows for part in filled], order),
        metrics=_stack([part.metrics for part in filled], order),
        weight=sum(part.weight for part in good),
        dropped=dropped,
        lost={user for part in good for user in part.lost},
        kept={user for part in good if part.kept for user in part.users},
        wire_bytes=sum(part.wire_bytes for part in good),
        wire_messages=len(replies),
        silent=silent,
        refused=refused,
        answered=answered,
    )


def one_after_the_other(parts: Sequence[Replies]) -> Replies:
    """Replies of several exchanges, each of other users, as if they were of one: rows and numbers,
    and no means."""
    if len(parts) == 1:
        return parts[0]
    ordered, order = in_order([user for part in parts for user in part.users])
    silent: dict[int, list[str]] = {}
    for part in parts:
        for node, users in part.silent.items():
            silent.setdefault(node, []).extend(users)
    return Replies(
        users=ordered,
        rows=_stack([part.rows for part in parts if part.users], order),
        metrics=_stack([part.metrics for part in parts if part.users], order),
        weight=sum(part.weight for part in parts),
        dropped={user: why for part in parts for user, why in part.dropped.items()},
        lost={user for part in parts for user in part.lost},
        kept={user for part in parts for user in part.kept},
        wire_bytes=sum(part.wire_bytes for part in parts),
        wire_messages=sum(part.wire_messages for part in parts),
        silent=silent,
        refused=list(dict.fromkeys(node for part in parts for node in part.refused)),
        answered=list(dict.fromkeys(node for part in parts for node in part.answered)),
    )


def reading_order(user: str) -> tuple[int, str]:
    """Sorts user ids the same way everywhere, and numbers by size."""
    return len(user), user


def in_order(users: list[str]) -> tuple[list[str], Ints | None]:
    """Users in reading order, and the place that each had before; None: they were in order."""
    ordered = in_reading_order(users)
    if ordered == users:
        return users, None
    place = {user: row for row, user in enumerate(users)}
    return ordered, np.fromiter(map(place.__getitem__, ordered), np.int64, len(ordered))


def in_reading_order(users: Iterable[str]) -> list[str]:
    """The same of a million in a second: by their letters, and then by their length."""
    found = sorted(users)
    found.sort(key=len)
    return found


def read(reply: Message, asked: list[str], schema: Schema, token: str) -> NodeReply:
    """One node's reply, or BadMessage.

    A user whose rows or numbers are wrong is left out alone; in a mean it cannot be told apart.
    """
    if reply.has_error():
        raise BadMessage(line(reply.error.reason or "its node failed, and does not say why"))
    if not reply.has_content():
        raise BadMessage("malformed reply: it is empty")
    content = reply.content
    config = record(content, "config", ConfigRecord)
    if config.get("exchange", "") != token:
        raise BadMessage("malformed reply: it answers another exchange")
    words = read_words(config, asked, schema)
    absent = set(asked).difference(words.users) if words.users != asked else ()
    dropped = dict.fromkeys(sorted(absent), "left out of its node's reply") | words.failed
    if not words.users:
        return NodeReply([], dropped=dropped, lost=words.lost)
    metrics, wrong = read_numbers(record(content, "metrics", MetricRecord), words.users, schema)
    arrays, rows = (
        record(content, name, ArrayRecord) if name in content else ArrayRecord()
        for name in ("arrays", "rows")
    )
    mean, each, unfit = read_arrays(arrays, rows, len(words.users), schema)
    wrong = unfit | wrong
    read_faults(words.users, each, wrong, schema)
    if wrong and mean:
        place = min(wrong)
        raise BadMessage(f"its node's reply is bad: user {words.users[place]}: {wrong[place]}")
    users = words.users
    if wrong:
        dropped |= {users[place]: line(why) for place, why in wrong.items()}
        fine = [place for place in range(len(users)) if place not in wrong]
        users = [users[place] for place in fine]
        each, metrics = ({k: v[fine] for k, v in of.items()} for of in (each, metrics))
    return NodeReply(
        users=users,
        weight=schema.weight(users),
        mean=mean,
        rows=each,
        metrics=metrics,
        dropped=dropped,
        lost=words.lost,
        kept=words.kept,
        wire_bytes=payload(arrays) + payload(rows),
        sound=not wrong,
    )


def record(content: Mapping[str, Any], name: str, kind: type[R]) -> R:
    """A record of a reply, of the kind that it must be."""
    if name not in content:
        raise BadMessage(f"malformed reply: no {name}")
    found = content[name]
    if not isinstance(found, kind):
        raise BadMessage(f"malformed reply: {name} is no {kind.__name__}")
    return found


def read_words(config: ConfigRecord, asked: list[str], schema: Schema) -> Words:
    """Who did what, of those that were asked."""
    users, failed, causes, lost = (
        _texts(config, name, len(asked)) for name in ("users", "failed", "causes", "lost")
    )
    absent = set[str]()
    if users != asked:  # else there are thousands, each of whom is known
        known = set(users)
        absent = set(asked) - known
        if len(known) != len(users) or not known <= set(asked):
            raise BadMessage("malformed reply: it speaks of users that were not asked")
    if len(failed) != len(causes):
        raise BadMessage(f"malformed reply: {len(causes)} causes of {len(failed)} failures")
    if not {*failed, *lost} <= absent:
        raise BadMessage("malformed reply: it calls users failed or lost that it was not asked for")
    kept = config.get("kept", False)
    if not isinstance(kept, bool):
        raise BadMessage("malformed reply: kept is neither true nor false")
    if kept and not schema.training:
        raise BadMessage("malformed reply: kept, but nothing is kept of an evaluation")
    named = {user: line(why) for user, why in zip(failed, causes, strict=True)}
    return Words(users, named, set(lost), kept)


def _texts(config: ConfigRecord, name: str, most: int) -> list[str]:
    """A list of texts, not more than users were asked."""
    found: Any = config.get(name, [])
    if not isinstance(found, list):
        raise BadMessage(f"malformed reply: {name} is no list")
    if len(found) > most:
        raise BadMessage(f"malformed reply: {name} has {len(found)} entries, {most} were asked")
    if set(map(type, found)) - {str}:
        raise BadMessage(f"malformed reply: {name} is not of texts")
    return found


def weighted_mean(parts: list[tuple[float, Arrays]], template: Mapping[str, Array]) -> Arrays:
    """The mean over users out of the nodes' means, each with what its users weigh together.

    Summed in double precision; the arrays of `template` say of which type it is. The mean of one
    node is what it sent.
    """
    if not parts:
        return {}
    if len(parts) == 1 and all(a.dtype == template[n].dtype for n, a in parts[0][1].items()):
        return parts[0][1]
    return {
        name: mean_of([(weight, mean[name]) for weight, mean in parts], template[name])
        for name in parts[0][1]
    }


def _stack(parts: Sequence[Mapping[str, Array]], order: Ints | None) -> dict[str, Array]:
    """Per-user values of several nodes, in the order of the user ids."""
    if not parts:
        return {}
    names = set.intersection(*(set(part) for part in parts))
    return {name: _in_order([part[name] for part in parts], order) for name in names}


def _in_order(parts: list[Array], order: Ints | None) -> Array:
    """All rows in an order; rows of users are large, so they are not copied without need."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return rows if order is None else rows[order]


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
