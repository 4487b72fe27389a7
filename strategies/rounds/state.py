"""The whole state of a strategy, as one explicit object: all of it goes into the checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from corsage.core.arrays import Arrays


@dataclass
class Traffic:
    """What was exchanged, counted as one-user devices would exchange it.

    So the numbers compare algorithms, whatever the engine and the number of nodes. `wire_*` is
    what really passed between the server and the nodes of this run, evaluation included.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    messages: int = 0
    evaluation_bytes_down: int = 0
    wire_bytes_down: int = 0
    wire_bytes_up: int = 0
    wire_messages: int = 0


@dataclass
class State:
    """Where a run stands after a round.

    Parameters
    ----------
    round : the last round that was merged.
    arrays : what the server holds: shared parameters, duals, variates, ...
    shape, num_classes : what the model is built for; nodes that come back later may show less.
        Without a shape nothing is built yet; without classes labels are numbers.
    scalars : what else the algorithm's server side must remember, as JSON can hold it.
    versions : for each user with a personal state the round in which it was last merged.
    drawn : how often each user's training was merged.
    dropped : how often each user's reply was not usable.
    curve : (round, mean over users) of every evaluation.
    """

    round: int = 0
    arrays: Arrays = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    num_classes: int = 0
    scalars: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON can hold it."""
        return {k: v for k, v in asdict_shallow(self).items() if k != "arrays"}

    @classmethod
    def restore(cls, plain: dict[str, Any], arrays: Arrays) -> State:
        """The state out of what `plain` gave and the arrays."""
        fields = {**plain, "traffic": Traffic(**plain["traffic"])}
        fields["shape"] = tuple(plain["shape"])
        fields["curve"] = [(int(r), float(a)) for r, a in plain["curve"]]
        return cls(arrays=arrays, **fields)


def asdict_shallow(state: State) -> dict[str, Any]:
    """Fields of a state by name; the traffic as a dict too."""
    return {**vars(state), "traffic": asdict(state.traffic)}
