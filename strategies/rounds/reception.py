"""The reception of nodes: each that connects is asked once who its users are.

Simulation and devices work the same way. A node that introduces itself badly, or whose data do not
fit the others', is refused and named, and asked again after growing pauses; the run goes on with
the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from corsage.core.errors import DataError, NodeError, NodesSilent, Refused, line
from corsage.core.known_devices import NOBODY
from corsage.core.messages.introduction import read_introduction
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.roster import Guest, Member, Roster
from corsage.strategies.rounds.turns import Line, is_at_home, is_closed

if TYPE_CHECKING:
    from corsage.core.tables.preparation import Preparation
    from corsage.strategies.devices.devices import Devices

NO_DOOR = "No query function registered"
OWN_APP = (
    "its ClientApp is not Corsage's: make it by corsage.make_client_app(data=..., model=...), "
    "with train= if it trains by a function of its own (docs/library.md)"
)


def explained(reason: str) -> str:
    """The reason why a node failed; in our words where its app cannot be asked anything."""
    return OWN_APP if NO_DOOR in reason else reason


@dataclass(frozen=True)
class Refusal:
    """A node that is not let in: why, in words, and whether it said anything at all."""

    why: str
    answered: bool


SOON = 10.0
"""Seconds after which it is said that nodes are waited for."""


@dataclass
class Reception:
    """Asks nodes who they are, and enters those that fit into the roster.

    Parameters
    ----------
    roster : who is there.
    agreed : what data must be like.
    devices : what is known of them, where the nodes are devices.
    fixed : the model is built: only nodes whose samples fit it can take part.
    refused : who was not let in.
    """

    roster: Roster
    agreed: Agreed
    devices: Devices | None = None
    fixed: bool = False
    refused: dict[int, Refusal] = field(default_factory=dict)
    _listed: dict[int, str] = field(default_factory=dict)  # nodes, and since when
    _unusable: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Nobody is there; what was agreed on stays known."""
        self.roster.clear()
        self.refused = {}

    def wait(
        self,
        grid: Grid,
        num_nodes: int,
        timeout: float,
        number: int = 0,
        task: Callable[[], ConfigRecord] = ConfigRecord,
    ) -> None:
        """Wait until enough nodes say who their users are; NodeError if they do not in time.

        They are sent a task without users, which has the run's settings. A node counts when it has
        answered, as those that are refused have; one that died a moment ago is still listed. If all
        are refused others may come, but in a simulation the run itself is wrong: a DataError.
        Only while too few have answered are silent devices asked again: a question may be lost.
        """
        begun, pause, told = time.monotonic(), 0.02, False
        deadline, most = begun + timeout, self.devices.silence if self.devices else timeout
        while True:
            late = time.monotonic() > deadline
            listed = count = len(set(grid.get_node_ids()))
            if listed >= num_nodes:
                left = max(deadline - time.monotonic(), 1.0)
                self.refresh(grid, min(left, most), number, task)
                refused = {n: self.refused[n] for n in self._listed if n in self.refused}
                silent = [node for node, one in refused.items() if not one.answered]
                count = len(self.roster.nodes) + len(refused) - len(silent)
                usable = any(guest.said.users for guest in self.roster.guests.values())
                if count >= num_nodes and (usable or late or is_closed(grid)):
                    break
                if self.devices is not None:
                    self.devices.ask_again(silent, task)
            if late:
                few = listed < num_nodes
                came, do = ("connected", "start") if few else ("answered", "see the logs of")
                raise NodesSilent(
                    f"only {count} of {num_nodes} nodes {came} within {timeout:g} s: {do} the "
                    f"others, or set num-nodes={max(count, 1)} or a longer node-timeout."
                )
            if not told and time.monotonic() > begun + SOON:
                told = True
                self.roster.note(
                    f"{count} of {num_nodes} nodes are there (num-nodes={num_nodes}): waiting for "
                    f"more, up to {timeout:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        open_still = not (self.fixed or self.agreed.preparation or is_at_home(grid))
        if self.devices is not None and open_still:
            for node, why in self.devices.outlying().items():
                self._refuse(node, why, number)
        self._settle(number)
        self._need_somebody()
        self.fixed = True

    def refresh(
        self,
        grid: Grid,
        timeout: float,
        number: int = 0,
        task: Callable[[], ConfigRecord] = ConfigRecord,
    ) -> None:
        """Forget the users of nodes that left, and ask the nodes that are new, or due again."""
        infos, roster = {info.node_id: info for info in grid.get_nodes()}, self.roster
        self._listed = {node: info.registered_at for node, info in infos.items()}
        if self.devices is not None:
            self.devices.see(infos.values())
        for node in sorted(roster.nodes - set(infos)):
            roster.leave(node)
        away = infos.keys() - roster.nodes
        late = self.devices.late() if self.devices is not None else []
        said = {r.metadata.src_node_id: r for r in late if r.metadata.src_node_id in away}
        replies = [*said.values()]  # one of each, though it was asked twice
        if new := sorted(n for n in away - said.keys() if self._is_due(n, number)):
            replies += self._ask(grid, new, task(), timeout, number)
        came = [self._admit(reply, number) for reply in replies]
        arrived = sorted((n for n in came if n is not None), key=self._listed.__getitem__)
        if self.fixed:
            for node in arrived:
                self._seat(node, number)
        for node, user in roster.claim_again():
            self._arrived(node, [user])
        roster.sort()

    def _is_due(self, node: int, number: int) -> bool:
        """True if a node that is not there is to be asked; without pauses only once."""
        return self.devices.pauses.due(node, number) if self.devices else node not in self.refused

    def _arrived(self, node: int, users: Iterable[str]) -> None:
        """A node was let in, with its users."""
        if self.devices is not None:
            self.devices.came(node, users)

    def adopt(self, preparation: Preparation, num_classes: int) -> None:
        """A resumed run remembers what was agreed on: nodes that do not fit it have to go."""
        self.agreed.num_classes = num_classes
        self.agreed.adopt(preparation)
        for node in sorted(self.roster.nodes):
            if why := self.agreed.mismatch(self.roster.guests[node].said):
                self.roster.forget_all_of(node)
                self._refuse(node, why, 0)
        self.roster.sort()

    def _ask(
        self, grid: Grid, nodes: list[int], task: ConfigRecord, timeout: float, number: int
    ) -> list[Message]:
        """The introductions of nodes."""
        if self.devices is not None:
            replies, silent = self.devices.ask(nodes, task, timeout)
            for node in silent:
                why = "did not say who its users are in time"
                self._refuse(node, why, number, answered=False)
            return replies
        content, line = RecordDict({"config": task}), Line(grid)
        line.push(Message(content, node, "query", ttl=timeout) for node in nodes)
        return [reply for done in iter(line.pull, []) for _, reply in done if reply]

    def _admit(self, reply: Message, number: int) -> int | None:
        """Let a node in, if what it says of itself can be."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._refuse(node, line(explained(reply.error.reason or "it failed")), number)
            return None
        try:
            introduction = read_introduction(reply.content)
        except Refused as why:
            self._refuse(node, f"its introduction is malformed: {line(why)}", number)
            return None
        mark = NOBODY
        if self.devices is not None:
            mark = self.devices.owner(node, introduction.proof)
            if shared := self.devices.twin(node, mark, introduction.users):
                self._refuse(node, shared, number)
                return None
            self.devices.let_in(node)
        self.roster.enter(node, Guest(introduction, mark))
        if self.refused.pop(node, None):
            self.roster.note(f"node {node} says who its users are now")
        return node

    def _refuse(self, node: int, why: str, number: int, answered: bool = True) -> None:
        """Leave a node out; it is asked again after a pause."""
        self.roster.drop(node)
        self.refused[node] = Refusal(why, answered)
        if self.devices is not None:
            self.devices.pauses.begin(node, number)
        self.roster.note(f"node {node} is left out: {why}")

    def _settle(self, number: int) -> None:
        """Of the nodes that are there first, most say what a sample looks like."""
        if not self.fixed:
            guests = [guest.said for guest in self.roster.guests.values() if guest.said.users]
            if guests:
                self.agreed.agree(guests)
            for node in sorted(self.roster.guests, key=self._listed.__getitem__):
                self._seat(node, number)
            self.roster.sort()

    def _seat(self, node: int, number: int) -> None:
        """Take in the users of a node whose samples fit the model."""
        guest = self.roster.guests[node].said
        if why := self.agreed.mismatch(guest):
            self._refuse(node, why, number)
            return
        kinds = {id(own): own for own in guest.users.values()}  # of a million users a few
        made = {n: Member(node, own.train, own.test, own.cluster) for n, own in kinds.items()}
        members = {user: made[id(own)] for user, own in guest.users.items()}
        if not all(own.train for own in kinds.values()):
            members = self._with_samples(members)
        self.roster.seat(node, members)
        self._arrived(node, self.roster.hosted(node))

    def _with_samples(self, members: dict[str, Member]) -> dict[str, Member]:
        """Users who can train; those without test samples train like the others."""
        for user in [user for user, member in members.items() if not member.train]:
            why = f"user {user} has no training data: give it more samples, or check test-fraction"
            self._unusable.append(why)
            self.roster.note(f"{why}; it is left out")
        return {user: member for user, member in members.items() if member.train}

    def _need_somebody(self) -> None:
        """An error that says why, if nobody can take part."""
        causes = [refusal.why for refusal in self.refused.values()]
        if self.roster.members:
            return
        if whys := list(dict.fromkeys([*causes, *self._unusable])):
            more = f" ({len(whys)} causes: see the log)" if len(whys) > 1 else ""
            raise DataError(f"{whys[0].removesuffix('.')}{more}.")
        raise NodeError(f"the {len(self.roster.nodes)} connected nodes host no users.")
