"""Every strategy, exchange by exchange: good replies that are recorded once, and one that is not.

The strategy is driven by `configure_train`, `aggregate_train` and their likes, as Flower's own
loop does. What was good is played again from its record; replies go through Flower's protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.fuzz.attacks import Attack
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.state import not_finite, stored

NONE, NOTHING = ConfigRecord(), ArrayRecord()


class Notes(Callback):
    """Remembers what was noted."""

    shows_notes = True

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_note(self, text: str) -> None:
        """One line."""
        self.lines.append(text)


@dataclass
class Part:
    """Exchanges one after the other, from where a run stands: the opening, a round, an evaluation.

    Parameters
    ----------
    kind : `train` or `evaluate`.
    begin : the strategy's parts before it; None: it has none yet.
    replies : of each exchange, the records of each node's good reply.
    end : the state after it, in plain words.
    """

    kind: str
    begin: dict[str, Any] | None
    replies: list[list[bytes]] = field(default_factory=list)
    end: bytes = b""


GOOD = ("dropped", "ignored", "legal", "failed")
BAD = ("crash", "not finite", "unnamed", "unclean")


@dataclass(frozen=True)
class Outcome:
    """What came of an attack.

    Parameters
    ----------
    verdict : `dropped` and named, `failed` in one line, `ignored`: as if nothing was, `legal`;
        or, what must not be, `crash`, `not finite`, `unnamed`, `unclean`.
    why : in words.
    """

    verdict: str
    why: str = ""

    @property
    def bad(self) -> bool:
        """Whether this must not be."""
        return self.verdict in BAD


class Target:
    """One strategy, and what its nodes reply when they are honest."""

    def __init__(self, name: str, keys: Mapping[str, Any], nodes: int = 4) -> None:
        self.name, self.config = name, Config.parse(dict(keys))
        self.grid = LocalGrid(app, nodes)
        strategy = self.made(Notes())
        strategy.begin(self.grid)
        self.job = strategy.job
        self.parts = self._record(strategy)

    def made(self, notes: Notes) -> Strategy[Any, Any]:
        """A new strategy of this name."""
        return strategy_class(self.name)(self.config, [notes], experiment="fuzz")

    def _record(self, strategy: Strategy[Any, Any]) -> list[Part]:
        """The opening and the first round, a second round, and the evaluation after it."""
        parts = []
        for number in (1, 2):
            before = deepcopy(strategy.parts) if number > 1 else None
            part = Part("train", before)
            while strategy.progress.round < number:
                messages = list(strategy.configure_train(number, NOTHING, NONE, self.grid))
                if not messages:
                    break
                replies = list(self.grid.send_and_receive(messages))
                part.replies.append(packed(messages, replies))
                strategy.aggregate_train(number, replies)
            if part.replies:
                parts.append(replace_end(part, strategy))
        part = Part("evaluate", deepcopy(strategy.parts))
        messages = list(strategy.configure_evaluate(2, NOTHING, NONE, self.grid))
        replies = list(self.grid.send_and_receive(messages))
        part.replies.append(packed(messages, replies))
        strategy.aggregate_evaluate(2, replies)
        return [*parts, replace_end(part, strategy)]

    def attacked(self, attack: Attack, rng: np.random.Generator) -> Outcome | None:
        """What comes of an attack somewhere; None if there is nothing that it could change."""
        parts = [part for part in self.parts if attack.kind in ("", part.kind)]
        part = parts[int(rng.integers(len(parts)))]
        exchange = int(rng.integers(len(part.replies)))
        node = int(rng.integers(len(part.replies[exchange])))
        content = unpacked(part.replies[exchange][node])
        if attack.change(content, rng) is False:
            return None
        try:
            wire = recorddict_to_proto(content).SerializeToString()
        except (TypeError, ValueError):
            return None  # Flower cannot send it
        notes = Notes()
        strategy = self._standing(part, notes)
        try:
            with np.errstate(all="ignore"):
                self._play(strategy, part, exchange, node, wire, attack)
        except CorsageError as error:
            return self._failed(strategy, part, notes, str(error))
        except Exception as error:
            return Outcome("crash", f"{type(error).__name__}: {str(error)[:200]}")
        return self._judged(strategy, part, exchange, notes, attack)

    def _standing(self, part: Part, notes: Notes) -> Strategy[Any, Any]:
        """A strategy where the part begins."""
        strategy = self.made(notes)
        own, known = strategy.members, self.job.members
        strategy.job.agreed, own.reception = self.job.agreed, known.reception
        own.grid, own.roster = self.grid, known.roster
        if part.begin is not None:
            strategy.restore(deepcopy(part.begin))
        return strategy

    def _play(
        self,
        strategy: Strategy[Any, Any],
        part: Part,
        exchange: int,
        node: int,
        wire: bytes,
        attack: Attack,
    ) -> None:
        """The good replies up to an exchange, and in it the bad one."""
        number = strategy.progress.round + 1
        for place, good in enumerate(part.replies[: exchange + 1]):
            if part.kind == "train":
                messages = list(strategy.configure_train(number, NOTHING, NONE, self.grid))
            else:
                messages = list(strategy.configure_evaluate(number, NOTHING, NONE, self.grid))
            for i, message in enumerate(messages):  # what a grid does when it sends
                message.metadata.__dict__["_message_id"] = f"{place}-{i}"
            contents = [fresh(raw, message) for raw, message in zip(good, messages, strict=True)]
            replies = [Message(c, reply_to=m) for c, m in zip(contents, messages, strict=True)]
            if place == exchange and attack.error is not None:
                replies[node] = Message(attack.error, reply_to=messages[node])
            elif place == exchange:
                bad = unpacked(wire)
                repeat_token(bad, messages[node])
                replies[node] = Message(bad, reply_to=messages[node])
            if part.kind == "train":
                strategy.aggregate_train(number, replies)
            else:
                strategy.aggregate_evaluate(number, replies)

    def _failed(self, strategy: Strategy[Any, Any], part: Part, notes: Notes, text: str) -> Outcome:
        """A part that failed in one line: what was before must be there still."""
        if not clean([text, *notes.lines]):
            return Outcome("unclean", text)
        if hasattr(strategy, "state") and (name := not_finite(strategy.state)):
            return Outcome("not finite", f"{name} after {text}")
        if part.begin is not None and state_words(strategy.state) != state_words(
            part.begin["state"]
        ):
            return Outcome("unnamed", f"the state is another after {text}")
        return Outcome("failed", text)

    def _judged(
        self,
        strategy: Strategy[Any, Any],
        part: Part,
        exchange: int,
        notes: Notes,
        attack: Attack,
    ) -> Outcome:
        if not clean(notes.lines):
            return Outcome("unclean", "; ".join(notes.lines)[:200])
        if name := not_finite(strategy.state):
            return Outcome("not finite", name)
        known = part.begin["progress"].dropped if part.begin else {}
        if strategy.progress.dropped != known:
            lines = [line for line in notes.lines if "dropped" in line]
            return Outcome("dropped", lines[0]) if lines else Outcome("unnamed", "no line")
        if attack.legal:
            return Outcome("legal")
        amid = exchange + 1 < len(part.replies)
        if amid or words(strategy) == part.end:
            return Outcome("ignored")
        return Outcome("unnamed", "the state is another, and nobody is dropped")


def clean(lines: Sequence[str]) -> bool:
    """Whether lines have nothing that a terminal obeys, and no end."""
    return all(line.isprintable() and len(line) < 3000 for line in lines)


def packed(messages: Sequence[Message], replies: Sequence[Message]) -> list[bytes]:
    """The replies' records as they go over the wire, in the order of the messages."""
    by_id = {reply.metadata.reply_to_message_id: reply for reply in replies}
    found = [by_id[message.metadata.message_id] for message in messages]
    return [recorddict_to_proto(reply.content).SerializeToString() for reply in found]


def unpacked(wire: bytes) -> RecordDict:
    """The records as they come from the wire."""
    return recorddict_from_proto(Proto.FromString(wire))


def fresh(wire: bytes, message: Message) -> RecordDict:
    """A recorded reply to a message of now."""
    content = unpacked(wire)
    repeat_token(content, message)
    return content


def token_of(message: Message) -> Any:
    """What a message has to be repeated."""
    return message.content.config_records["config"]["exchange"]


MARK = "recorded"
"""In records that are attacked: here is the token, which is another every time."""


def repeat_token(content: RecordDict, message: Message) -> None:
    """The token of now, unless the attack is about it."""
    config = content.get("config")
    if isinstance(config, ConfigRecord) and config.get("exchange") == MARK:
        config["exchange"] = token_of(message)


def replace_end(part: Part, strategy: Strategy[Any, Any]) -> Part:
    """The part with the state after it; the records have a mark where the token was."""
    marked = []
    for group in part.replies:
        contents = [unpacked(wire) for wire in group]
        for content in contents:
            content.config_records["config"]["exchange"] = MARK
        marked.append([recorddict_to_proto(c).SerializeToString() for c in contents])
    return Part(part.kind, part.begin, marked, words(strategy))


def words(strategy: Strategy[Any, Any]) -> bytes:
    """A strategy's state and where it stands, to be compared."""
    versions = sorted(strategy.progress.versions.items())
    return state_words(strategy.state) + repr((strategy.progress.round, versions)).encode()


def state_words(state: object) -> bytes:
    """A state as bytes."""
    plain, arrays = stored(state)
    return repr(plain).encode() + b"".join(array.tobytes() for array in arrays.values())
