"""Sizes of messages, weighed against what carries them before they are sent.

A run's largest messages are known when its users are, before anybody trains; those of methods whose
rounds are conversations are looked at one by one. A simulation in this process carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.turns import Parcel

MB = 1e6
PROTOBUF = 2**31 - 1
"""Bytes of what protobuf, and gRPC as Flower sets it, takes at once."""
MEAN_BYTES = 8
"""Bytes of a number of a mean: nodes may send sums in double precision."""


@dataclass(frozen=True)
class Load:
    """Bytes of a message and of its reply.

    Parameters
    ----------
    common : of arrays that are there once, whoever it is about.
    each : of the rows of one user.
    users : whom it is about.
    largest : of its largest array.
    """

    common: int
    each: int
    users: int
    largest: int

    @property
    def total(self) -> int:
        """Of all of it."""
        return self.common + self.each * self.users

    @property
    def words(self) -> str:
        """The size in words, and of what it is."""
        of = f" for {self.users:,} users of a node" if self.each else ""
        return f"a message{of} and its reply take {self.total / MB:,.1f} MB"

    @property
    def remedy(self) -> str:
        """The key that makes it smaller."""
        rest = "a model of which less travels (frozen, personal, hidden)"
        if self.each * self.users > self.common:
            return f"fewer users in a message (more nodes: num-nodes; fraction-train), or {rest}"
        return rest


class Carrier(Protocol):
    """What messages go through, as a grid names it."""

    def refusal(self, load: Load) -> str:
        """Why it does not take a message, if it does not."""

    def warning(self, load: Load) -> str:
        """A line that is worth saying though it is taken."""


@dataclass(frozen=True)
class Wire:
    """Flower's way to devices: arrays travel in pieces, each in a request of its own.

    Parameters
    ----------
    most : bytes of one request.
    piece : bytes of the largest piece of an array.
    """

    most: int
    piece: int

    def refusal(self, load: Load) -> str:
        """Only a piece can be too large."""
        if min(load.largest, self.piece) <= self.most:
            return ""
        return (
            f"an array of {load.largest / MB:,.1f} MB goes in pieces of {self.piece / MB:,.1f} MB "
            f"(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE), and a request of Flower's takes "
            f"{self.most / MB:,.1f} MB: lower that variable on all machines"
        )

    def warning(self, load: Load) -> str:
        """Nothing."""
        return ""


def wire() -> Wire:
    """Flower's own limits; where it says nothing of pieces, arrays go whole."""
    from flwr.common import constant

    return Wire(PROTOBUF, getattr(constant, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 2**62))


def load_of(parcel: Parcel, reply: Arrays, by_user: Collection[str], users: int) -> Load:
    """A message of which the rows may be those of some users alone, and the reply to it."""
    rows = [array[:1] for array in parcel.rows.values()]
    rows += [array for name, array in reply.items() if name in by_user]
    means = [array for name, array in reply.items() if name not in by_user]
    sums = [MEAN_BYTES * array.size for array in means]
    common = [int(array.nbytes) for array in parcel.shared.values()] + sums
    each = [int(array.nbytes) for array in rows]
    largest = max([*common, *(users * size for size in each)], default=0)
    return Load(sum(common), sum(each), users, largest)


def loads(strategy: Strategy[Any, Any]) -> Iterator[Load]:
    """The largest messages of a run whose rounds and evaluations are one exchange each."""
    from corsage.strategies.rounds.algorithm import EVALUATED_AT_ONCE, Algorithm

    job, kind = strategy.job, type(strategy)
    if kind.round is Algorithm.round:
        chosen = strategy.choose(strategy.progress.round + 1, job.members.users)
        reply = strategy.template()
        rows = tuple(reply) if strategy.config.robust.on else strategy.by_user
        yield load_of(strategy.send(chosen[:1]), reply, rows, most(strategy, chosen))
    if kind.evaluation is Algorithm.evaluation:
        users = job.members.users[:EVALUATED_AT_ONCE]
        yield load_of(strategy.show(users[:1], {}), {}, (), most(strategy, users))


def most(strategy: Strategy[Any, Any], users: list[str]) -> int:
    """Of some users the most that one node hosts."""
    return max(map(len, strategy.members.roster.by_node(users).values()), default=0)


class Scales:
    """Weighs messages before they are sent, and says each thing once.

    Parameters
    ----------
    note : told what is slow.
    carrier : what messages go through, once the nodes are there.
    """

    def __init__(self, note: Callable[[str], None], carrier: Callable[[], Carrier]) -> None:
        self._note, self._said, self._carrier = note, set[str](), carrier

    @cached_property
    def carrier(self) -> Carrier:
        """The way that messages go."""
        return self._carrier()

    def weigh(self, load: Load) -> None:
        """ConfigError if a message cannot be carried; a note if it is slow."""
        if why := self.carrier.refusal(load):
            raise ConfigError(f"{load.words}; {why}. What helps: {load.remedy}.")
        if (line := self.carrier.warning(load)) and line not in self._said:
            self._said.add(line)
            self._note(f"{load.words}; {line}. What helps: {load.remedy}.")

    def weigh_all(self, strategy: Strategy[Any, Any]) -> None:
        """The same of the largest messages of a run, before the first of them."""
        for load in loads(strategy):
            self.weigh(load)

    def weigh_sent(self, shared: Mapping[str, Any], rows: Arrays, users: int) -> None:
        """The same of a message as it is."""
        common = [len(array.data) for array in shared.values()]
        own = [int(array.nbytes) for array in rows.values()]
        largest = max([*common, *own], default=0)
        self.weigh(Load(sum(common), sum(own) // max(users, 1), users, largest))
