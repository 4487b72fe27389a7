"""Replies of a round: checked, the bad ones dropped and named, the good ones merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from corsage.core.arrays import Array, Arrays, Floats, Ints
from corsage.core.errors import Refused, line
from corsage.core.finite_pieces import mean_of
from corsage.core.messages.encoding import encode, payload
from corsage.core.messages.fields import (
    LARGEST_WHOLE,
    Doubt,
    Flag,
    Kind,
    Listed,
    Text,
    put,
    record_of,
    said,
    take,
)
from corsage.core.messages.limits import Limits
from corsage.core.messages.schema import Schema, read_arrays, read_numbers


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
class Causes(Kind):
    """Users that failed, and their causes, in two columns."""

    converts = wide = True

    def columns(self, name: str) -> Mapping[str, Kind]:
        """As many of one as of the other; causes are cut to a line, however long."""
        return dict.fromkeys((name, "causes"), Listed(Text(LARGEST_WHOLE)))

    def put(self, record: dict[str, Any], name: str, value: Mapping[str, str]) -> None:
        """Column by column."""
        record |= {name: list(value), "causes": list(value.values())}

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> dict[str, str]:
        """Causes as lines that can be shown."""
        columns = self.columns(name).items()
        users, causes = (kind(column, value.get(column, [])) for column, kind in columns)
        if len(users) != len(causes):
            raise Refused(f"{len(causes)} causes of {len(users)} failures")
        return dict(zip(users, map(line, causes), strict=True))


@dataclass
class Reply:
    """A node's reply: who did what, numbers of each of these users, and arrays.

    Parameters
    ----------
    exchange : what the message had for it to be repeated.
    users : who has a result; `rows` and `metrics` are in this order.
    failed, lost : who has none and why, and whose personal state is not there any more.
    kept : whether the users keep a personal state of this exchange.
    metrics, mean, rows : as `Replies` has them; what they must be, a `Schema` says.
    """

    exchange: str = said(Text(100), "")
    users: list[str] = said(Listed(Text()), list)
    failed: dict[str, str] = said(Causes(), dict)
    lost: list[str] = said(Listed(Text()), list)
    kept: bool = said(Flag(), False)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    mean: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)


def encode_reply(own: Reply) -> RecordDict:
    """A reply as the records of a message."""
    words, numbers = ConfigRecord(put(own)), MetricRecord(dict(own.metrics))
    content = RecordDict({"metrics": numbers, "config": words})
    for name, arrays in (("arrays", own.mean), ("rows", own.rows)):
        if arrays:
            content[name] = encode(arrays)
    return content


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
    parts, silent = [], dict(asked)
    for reply in sorted(replies, key=lambda r: asked.get(r.metadata.src_node_id, [""])[0]):
        node = reply.metadata.src_node_id
        users = silent.pop(node, [])
        try:
            part, wrong = read(reply, users, schema, (tokens or {}).get(node, ""))
        except Refused as why:
            part, wrong = Replies(dropped=dict.fromkeys(users, line(why))), not reply.has_error()
        part.wire_messages = 1
        (part.refused if wrong else part.answered).append(node)
        parts.append(part)
    for node, users in silent.items():
        late = dict.fromkeys(users, "no reply in time")
        parts.append(Replies(dropped=late, silent={node: users}))
    return joined(parts, schema)


def one_after_the_other(parts: Sequence[Replies]) -> Replies:
    """Replies of several exchanges, each of other users, as if they were of one: rows and numbers,
    and no means."""
    return parts[0] if len(parts) == 1 else joined(parts)


def joined(parts: Sequence[Replies], schema: Schema | None = None) -> Replies:
    """Replies of different users as one; with a schema there are means of them."""
    came, order = [user for part in parts for user in part.users], None
    if (users := in_reading_order(came)) != came:  # else rows stay where they are
        place = {user: row for row, user in enumerate(came)}
        order = np.fromiter(map(place.__getitem__, users), np.int64, len(users))
    filled = [part for part in parts if part.users]
    weight = schema.weight(users) if schema else sum(part.weight for part in parts)
    silent: dict[int, list[str]] = {}
    for part in parts:
        for node, absent in part.silent.items():
            silent.setdefault(node, []).extend(absent)
    return Replies(
        users=users,
        mean=weighted_mean(filled, weight, schema.arrays) if schema else {},
        rows=_stack([part.rows for part in filled], order),
        metrics=_stack([part.metrics for part in filled], order),
        weight=weight,
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


def in_reading_order(users: Iterable[str]) -> list[str]:
    """The same of a million in a second: by their letters, and then by their length."""
    found = sorted(users)
    found.sort(key=len)
    return found


def read(reply: Message, asked: list[str], schema: Schema, token: str) -> tuple[Replies, bool]:
    """One node's reply, and whether something of it was refused; or Refused.

    A user whose rows or numbers are wrong is left out alone; in a mean it cannot be told apart.
    """
    if reply.has_error():
        raise Refused(line(reply.error.reason or "its node failed, and does not say why"))
    try:
        words = read_words(reply, asked, schema, token)
        absent = set(asked).difference(words.users) if words.users != asked else ()
        dropped = dict.fromkeys(sorted(absent), "left out of its node's reply") | words.failed
        if not words.users:
            return Replies(dropped=dropped, lost=set(words.lost)), False
        numbers = record_of(reply.content, "metrics", MetricRecord)
        metrics, wrong = read_numbers(numbers, words.users, schema)
        arrays, rows = (
            record_of(reply.content, name, ArrayRecord) if name in reply.content else ArrayRecord()
            for name in ("arrays", "rows")
        )
    except Refused as why:
        raise Refused(f"malformed reply: {why}") from None
    users = words.users
    mean, each, unfit = read_arrays(arrays, rows, users, schema)
    wrong = unfit | wrong
    if wrong and mean:
        place = min(wrong)
        raise Refused(f"its node's reply is bad: user {users[place]}: {wrong[place]}")
    if wrong:
        dropped |= {users[place]: line(why) for place, why in wrong.items()}
        fine = [place for place in range(len(users)) if place not in wrong]
        users = [users[place] for place in fine]
        each, metrics = ({k: v[fine] for k, v in of.items()} for of in (each, metrics))
    found = Replies(
        users=users,
        weight=schema.weight(users),
        mean=mean,
        rows=each,
        metrics=metrics,
        dropped=dropped,
        lost=set(words.lost),
        kept=set(users) if words.kept else set(),
        wire_bytes=(payload(arrays) + payload(rows)) * schema.training,  # no numbers of users
    )
    return found, bool(wrong)


def read_words(reply: Message, asked: list[str], schema: Schema, token: str) -> Reply:
    """Read who did what, of those that were asked."""
    if not reply.has_content():
        raise Refused("it is empty")
    record = record_of(reply.content, "config", ConfigRecord)
    words = Reply(**take(Reply, record, Doubt()))
    if words.exchange != token:
        raise Refused("it answers another exchange")
    absent = set[str]()
    if words.users != asked:  # else there are thousands, each of whom is known
        known = set(words.users)
        absent = set(asked) - known
        if len(known) != len(words.users) or not known <= set(asked):
            raise Refused("it speaks of users that were not asked")
    if not {*words.failed, *words.lost} <= absent or len(words.lost) > len(absent):
        raise Refused("it calls users failed or lost that it was not asked for")
    if words.kept and not schema.training:
        raise Refused("kept, but nothing is kept of an evaluation")
    return words


def weighted_mean(parts: Sequence[Replies], weight: float, template: Mapping[str, Array]) -> Arrays:
    """The mean over users out of what nodes sent of theirs: means, or sums as high and low.

    The arrays of `template` say of which type it is. The mean of one node is what it sent.
    """
    found = Arrays()
    for name, first in parts[0].mean.items() if parts else ():
        like, own = template[name], [(part.weight, part.mean[name]) for part in parts]
        rows = [(w, a[None]) if a.shape == like.shape else (1.0, a) for w, a in own]
        whole = len(parts) == 1 and (first.dtype, first.shape) == (like.dtype, like.shape)
        found[name] = first if whole else mean_of(rows, weight, like.dtype)
    return found


def _stack(parts: Sequence[Mapping[str, Array]], order: Ints | None) -> dict[str, Array]:
    """Per-user values of several nodes, in the order of the user ids.

    Rows of users are large: they are not copied without need.
    """
    found: dict[str, Array] = {}
    for name in set.intersection(*map(set, parts)) if parts else ():
        rows = np.concatenate([part[name] for part in parts]) if parts[1:] else parts[0][name]
        found[name] = rows if order is None else rows[order]
    return found


def by_cause(dropped: Mapping[str, str]) -> list[str]:
    """The dropped users, one line a cause, however many share it."""
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
