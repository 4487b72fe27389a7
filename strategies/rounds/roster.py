"""The roster: which node hosts which users, as the nodes themselves say.

Simulation and devices work the same way: every node that connects is asked once who its users are.
Nodes come and go; users are known by their ids, which stay. A node that introduces itself badly is
refused and named, and asked again after growing pauses; the run goes on with the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from corsage.core.agreement import misfit
from corsage.core.errors import DataError, NodeError
from corsage.core.introduction import (
    BadIntroduction,
    Introduction,
    other_frozen,
    read_introduction,
    too_large,
    too_many,
)
from corsage.core.limits import SPACE
from corsage.core.preparation import Preparation
from corsage.core.replies import in_reading_order, name_users
from corsage.core.text import line
from corsage.strategies.rounds.exchange import exchange
from corsage.strategies.rounds.outlying import outlying
from corsage.strategies.rounds.owners import NOBODY, Owner, Owners, digest
from corsage.strategies.rounds.patience import QUERY, Patience
from corsage.strategies.rounds.pulling import Puller
from corsage.strategies.rounds.refusals import Refusals
from corsage.strategies.rounds.tables import Policy

Kind = tuple[tuple[int, ...], bool]
"""The shape of a sample, and whether it has a class."""


@dataclass(frozen=True, slots=True)
class Member:
    """One user: the node that hosts it now, its numbers of samples, its cluster if known.

    Users of whom all of that is the same have one in common: there may be a million.
    """

    node: int
    train: int
    test: int
    cluster: str = ""


@dataclass(frozen=True)
class Guest:
    """A node that said who its users are: what it said, and by what it is known again."""

    said: Introduction
    mark: Owner


NO_DOOR = "No query function registered"
OWN_APP = (
    "its ClientApp is not Corsage's: make it by corsage.make_client_app(data=..., model=...), "
    "with train= if it trains by a function of its own (docs/library.md)"
)


def explained(reason: str) -> str:
    """Why a node failed; in our words where its app cannot be asked anything."""
    return OWN_APP if NO_DOOR in reason else reason


def nobody_owns() -> Owners:
    """The owners of a roster that remembers them itself."""
    book: dict[str, Owner] = {}
    return Owners(lambda: book)


@dataclass
class Roster:
    """All users that are there now, and what their data look like.

    Parameters
    ----------
    members, nodes : who is there; the nodes are those that were let in.
    shape, num_classes : of a sample, () until the nodes that the run starts with have answered; no
        classes: labels are numbers.
    note : is told who comes, goes and is refused.
    task : what the nodes are sent: the run's settings, as a task without users.
    fixed : the model is built: only nodes whose samples fit it can take part.
    owners : whose the ids of users are.
    patience : how long nodes are waited for.
    arrived : told of every node that is let in, with its users.
    frozen : the fingerprint of what nobody trains of the model, for such samples.
    parameters : how many numbers of the model travel, for such samples.
    policy, preparation : how tables are prepared, and what was agreed on; none: there are none.
    users : ids in an order that depends on nothing but the ids.
    """

    members: dict[str, Member] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    shape: tuple[int, ...] = ()
    num_classes: int = 0
    note: Callable[[str], None] = print
    task: Callable[[], ConfigRecord] = ConfigRecord
    fixed: bool = False
    owners: Owners = field(default_factory=nobody_owns)
    patience: Patience = field(default_factory=Patience)
    arrived: Callable[[int, Iterable[str]], None] = lambda node, users: None
    policy: Policy = Policy()
    frozen: Callable[[tuple[int, ...], int], str] = lambda shape, classes: ""
    parameters: Callable[[tuple[int, ...], int], int] = lambda shape, classes: 0
    preparation: Preparation | None = None
    users: list[str] = field(default_factory=list)
    refusals: Refusals = field(default_factory=Refusals)
    _guests: dict[int, Guest] = field(default_factory=dict)
    _keys: dict[int, bytes] = field(default_factory=dict)
    _listed: dict[int, str] = field(default_factory=dict)  # nodes, and since when
    _claims: dict[str, dict[int, Member]] = field(default_factory=dict)  # that were refused
    _unusable: list[str] = field(default_factory=list)
    _sorted: bool = False
    _loads: dict[int, int] = field(default_factory=dict)
    _held: dict[tuple[str, ...], int] = field(default_factory=dict)

    def clear(self) -> None:
        """Nobody is there; the shape of samples and the number of classes stay known."""
        self.members, self.nodes, self.users = {}, set(), []
        self._sorted, self._loads, self._held = False, {}, {}
        self._guests, self._claims, self.refusals = {}, {}, Refusals()

    def by_node(self, users: list[str]) -> dict[int, list[str]]:
        """The given users, grouped by the node that hosts them."""
        groups: dict[int, list[str]] = {}
        for user in users:
            groups.setdefault(self.members[user].node, []).append(user)
        return groups

    def hosted(self, node: int) -> list[str]:
        """The users of a node, one by one: not to be asked for in every round."""
        guest = self._guests.get(node)
        said = guest.said.users if guest else ()
        return [user for user in said if user in self.members and self.members[user].node == node]

    def samples(self, kind: str, users: Iterable[str]) -> dict[str, int]:
        """How many samples users have, of those that a message of a kind is about."""
        users, own = list(users), attrgetter("train" if kind == "train" else "test")
        return dict(zip(users, map(own, map(self.members.__getitem__, users)), strict=True))

    def held(self, users: tuple[str, ...]) -> int:
        """Training samples of users together; counted again when somebody came or went."""
        if users not in self._held:
            self._held[users] = sum(self.members[user].train for user in users)
        return self._held[users]

    def load(self, node: int) -> int:
        """Training samples of all users of a node; counted again when somebody came or went."""
        if node not in self._loads:
            self._loads[node] = sum(self.members[user].train for user in self.hosted(node))
        return self._loads[node]

    def mark(self, node: int) -> str:
        """By what a node is known again: its key, or else its number."""
        return digest(self._keys.get(node, b"")) or f"node {node}"

    def wait(self, grid: Grid, num_nodes: int, timeout: float, number: int = 0) -> None:
        """Wait until enough nodes say who their users are; NodeError if they do not in time.

        A node that died a moment ago is still listed: nodes count when they have answered, and
        those that are refused have answered too. If all of them are refused, others may come, but
        not in a simulation: there it is the run itself that is wrong, and it ends with DataError.
        """
        deadline, pause = time.monotonic() + timeout, 0.02
        while True:
            late = time.monotonic() > deadline
            found = len(set(grid.get_node_ids()))
            if found >= num_nodes:
                self.refresh(grid, max(deadline - time.monotonic(), 1.0), number)
                found = len(self.nodes) + self.refusals.answered(self._listed)
                usable = any(guest.said.users for guest in self._guests.values())
                if found >= num_nodes and (usable or late or is_closed(grid)):
                    break
            if late:
                raise NodeError(
                    f"only {found} of {num_nodes} nodes connected within {timeout:g} s: "
                    f"start the others, or set num-nodes={max(found, 1)} or a longer "
                    "node-timeout."
                )
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        if not is_at_home(grid):
            self._leave_out_the_outlying(number)
        self._settle(number)
        self._need_somebody()
        self.fixed = True

    def refresh(self, grid: Grid, timeout: float, number: int = 0) -> None:
        """Forget the users of nodes that left, and ask the nodes that are new, or due again."""
        infos = {info.node_id: info for info in grid.get_nodes()}
        self._listed = {node: info.registered_at for node, info in infos.items()}
        self._keys = {} if is_simulation(grid) else {n: i.public_key for n, i in infos.items()}
        for node in sorted(self.nodes - set(infos)):
            self._leave(node)
        new = [n for n in infos if n not in self.nodes and self.refusals.due(n, number)]
        replies = self._late(grid) + self._ask(grid, sorted(new), timeout, number)
        came = [self._admit(reply, number) for reply in replies]
        arrived = sorted((n for n in came if n is not None), key=self._listed.__getitem__)
        if self.fixed:
            for node in arrived:
                self._seat(node, number)
        self._claim_again()
        self._sort()

    def reclaim(self) -> None:
        """The run remembers owners of ids: those that are another's are taken from their nodes."""
        for user, member in list(self.members.items()) if self.owners.known else ():
            self._forget(user)
            self._claim(user, member)
        self._sort()

    def _sort(self) -> None:
        """The users in order, if some came or went since they were sorted."""
        if not self._sorted:
            self.users, self._sorted = in_reading_order(self.members), True
            self._loads, self._held = {}, {}

    def _forget(self, user: str) -> None:
        """A user is not there any more."""
        del self.members[user]
        self._sorted = False

    # Who comes.

    def _ask(self, grid: Grid, nodes: list[int], timeout: float, number: int) -> list[Message]:
        """The introductions of nodes; those that were refused before are not waited for."""
        if not nodes:
            return []
        content = RecordDict({"config": self.task()})
        questions = [Message(content, node, QUERY, ttl=max(timeout, 1.0)) for node in nodes]
        doubtful = self.refusals.among(nodes)
        replies, silent = exchange(grid, questions, timeout, self.patience, doubtful)
        for node in silent:
            why = "did not say who its users are in time"
            self._refuse(node, why, number, answered=False)
        return replies

    def _late(self, grid: Grid) -> list[Message]:
        """Introductions that nobody waited for any more."""
        now = time.monotonic()
        if late := self.patience.given_up(now):
            puller = Puller(grid)
            for reply in puller.pull(late):
                self.patience.came_late(reply, now)
            self.patience.drop(puller.take_broken())
        replies = self.patience.take_late(query=True)
        return [r for r in replies if r.metadata.src_node_id in self._listed]

    def _admit(self, reply: Message, number: int) -> int | None:
        """Let a node in, if what it says of itself can be."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._refuse(node, line(explained(reply.error.reason or "it failed")), number)
            return None
        try:
            said = read_introduction(reply.content)
        except BadIntroduction as why:
            self._refuse(node, f"its introduction is malformed: {line(why)}", number)
            return None
        mark = Owner(digest(self._keys.get(node, b"")), digest(said.proof))
        self._guests[node] = Guest(said, mark)
        self.nodes.add(node)
        self.refusals.let_in(node)
        return node

    def _leave(self, node: int) -> None:
        """A node is not there any more: others may claim its users' ids."""
        gone = self.hosted(node)
        for user in gone:
            self._forget(user)
        self.nodes.discard(node)
        self._guests.pop(node, None)
        for claimants in self._claims.values():
            claimants.pop(node, None)
        if gone:
            self.note(f"{name_users(gone)} gone: node {node} left")

    def _refuse(self, node: int, why: str, number: int, answered: bool = True) -> None:
        """Leave a node out; it is asked again after a pause."""
        self.nodes.discard(node)
        self._guests.pop(node, None)
        self.refusals.refuse(node, number, why, answered)
        self.note(f"node {node} is left out: {why}")

    # What the model is built for.

    def _settle(self, number: int) -> None:
        """Of the nodes that are there first, most say what a sample looks like."""
        if not self.fixed:
            guests = [guest.said for guest in self._guests.values() if guest.said.users]
            if guests:
                self._agree(guests)
            for node in sorted(self._guests, key=self._listed.__getitem__):
                self._seat(node, number)
            self._sort()

    def _leave_out_the_outlying(self, number: int) -> None:
        """Devices of whose tables no model could be made together with the others'."""
        if self.fixed or self.preparation:
            return
        said = {node: guest.said.table for node, guest in self._guests.items() if guest.said.users}
        for node, why in outlying({n: table for n, table in said.items() if table}).items():
            self._refuse(node, why, number)

    def _agree(self, guests: list[Introduction]) -> None:
        """What the model is built for; of tables, how their columns become its inputs."""
        self.shape, self.num_classes = majority(guests)
        kind = self.shape, self.num_classes > 0
        alike = [said for said in guests if (said.shape, said.num_classes > 0) == kind]
        tables = [said.table for said in alike if said.table]
        if 2 * len(tables) > len(alike):
            self._adopt(self.policy.agree(tables, numbers=not self.num_classes))

    def adopt(self, preparation: Preparation, num_classes: int) -> None:
        """A resumed run remembers what was agreed on: nodes that do not fit it have to go."""
        self.num_classes = num_classes
        self._adopt(preparation)
        for node in sorted(self.nodes):
            if why := self._mismatch(self._guests[node].said):
                for user in self.hosted(node):
                    self._forget(user)
                self._refuse(node, why, 0)
        self._sort()

    def _adopt(self, preparation: Preparation) -> None:
        """Hold to what was agreed on."""
        self.preparation, self.shape = preparation, (len(preparation.features),)
        self.num_classes = len(preparation.classes) or self.num_classes

    def _seat(self, node: int, number: int) -> None:
        """Take in the users of a node whose samples fit the model."""
        said = self._guests[node].said
        if why := self._mismatch(said):
            self._refuse(node, why, number)
            return
        kinds = {id(own): own for own in said.users.values()}  # of a million users a few
        made = {n: Member(node, own.train, own.test, own.cluster) for n, own in kinds.items()}
        found = {user: made[id(own)] for user, own in said.users.items()}
        if not all(own.train for own in kinds.values()):
            found = self._with_samples(found)
        if self._is_open(node, found):
            self.members.update(found)
            self._sorted = False
        else:
            for user, member in found.items():
                self._claim(user, member)
        self.arrived(node, self.hosted(node))

    def _with_samples(self, found: dict[str, Member]) -> dict[str, Member]:
        """Who can train; without test samples a user trains like the others, and is not judged."""
        for user in [user for user, member in found.items() if not member.train]:
            why = f"user {user} has no training data: give it more samples, or check test-fraction"
            self._unusable.append(why)
            self.note(f"{why}; it is left out")
        return {user: member for user, member in found.items() if member.train}

    def _is_open(self, node: int, found: dict[str, Member]) -> bool:
        """Whether nobody owns ids, nor has any of these: then there is nothing to tell apart."""
        nobody = not self.owners.known and self._guests[node].mark == NOBODY
        return nobody and self.members.keys().isdisjoint(found)

    def _mismatch(self, said: Introduction) -> str:
        """Why a node's data do not fit the model, if they do not."""
        if said.users and self.preparation:
            found = table_mismatch(self.preparation, said) or self._other_labels(said)
            return found or self._too_large(said)
        if said.users and said.table:
            return "it has a table, the others have not"
        if said.users and said.shape != self.shape:
            return f"its samples have shape {said.shape}, the others' {self.shape}"
        return self._other_labels(said) or self._other_frozen(said) or self._too_large(said)

    def _too_large(self, said: Introduction) -> str:
        """Why the model is more than a node allows, before anything of it is sent there."""
        if not (said.users and said.most):
            return ""
        size, users = self.parameters(self.shape, self.num_classes), len(said.users)
        if size > said.most:
            return too_large(size, said.most)
        space = SPACE * said.most
        return too_many(size, users, said.most, SPACE) if size * users > space else ""

    def _other_frozen(self, said: Introduction) -> str:
        """Why a node's frozen part does not fit, if it says one."""
        if not said.frozen:
            return ""
        here = self.frozen(said.shape, said.num_classes)
        return other_frozen(said.frozen, here) if here != said.frozen else ""

    def _other_labels(self, said: Introduction) -> str:
        """Why a node's labels do not fit the model, if they do not."""
        if said.users and not fitting(said.num_classes, self.num_classes):
            return f"it has {labels(said.num_classes)}, the model {labels(self.num_classes)}"
        return ""

    def _need_somebody(self) -> None:
        """An error that says why, if nobody can take part."""
        causes = self.refusals.causes()
        if self.members:
            return
        if whys := list(dict.fromkeys([*causes.values(), *self._unusable])):
            more = f" ({len(whys)} causes: see the log)" if len(whys) > 1 else ""
            raise DataError(f"{whys[0].removesuffix('.')}{more}.")
        raise NodeError(f"the {len(self.nodes)} connected nodes host no users.")

    # Whose an id is.

    def _claim(self, user: str, member: Member) -> None:
        """Give an id to a node, unless it is another's: the first one keeps it."""
        mark, holder = self._guests[member.node].mark, self.members.get(user)
        if holder is None and not self.owners.known and mark == NOBODY:
            self.members[user], self._sorted = member, False
            return
        same = self.owners.is_same(user, mark)
        why = self.owners.refusal(user, mark)
        if holder and holder.node != member.node and not same:
            why = f"node {holder.node} had it first"
        if why:
            self.note(f"node {member.node} is refused as user {user}: {why}")
            self._claims.setdefault(user, {})[member.node] = member
            return
        self.members[user], self._sorted = member, False
        self.owners.enter(user, mark)

    def _claim_again(self) -> None:
        """Those that were refused an id have it, if nobody has it now and it may be theirs."""
        for user in [user for user in self._claims if user not in self.members]:
            for node, member in list(self._claims[user].items()):
                if not self.owners.refusal(user, self._guests[node].mark):
                    del self._claims[user][node]
                    self._claim(user, member)
                    self.arrived(node, [user])
                    break


def table_mismatch(preparation: Preparation, said: Introduction) -> str:
    """Why a node's table is not what was agreed on, if it is not."""
    return misfit(preparation, said.table) if said.table else "it has no table, the others have"


def majority(guests: Sequence[Introduction]) -> tuple[tuple[int, ...], int]:
    """The shape of a sample and the number of classes that most nodes say.

    Of as many nodes, those with more users. A device may have seen only some of the classes: if no
    number is said by more than half of the nodes, it is the largest that two of them say, or else
    the largest.
    """
    nodes, users = Counter[Kind](), Counter[Kind]()
    for said in guests:
        kind = said.shape, said.num_classes > 0
        nodes[kind] += 1
        users[kind] += len(said.users)
    kind = max(sorted(nodes), key=lambda kind: (nodes[kind], users[kind]))
    counts = Counter(s.num_classes for s in guests if (s.shape, s.num_classes > 0) == kind)
    often = [n for n, count in counts.items() if 2 * count > counts.total()]
    twice = [n for n, count in counts.items() if count > 1]
    return kind[0], max(often or twice or counts)


def is_simulation(grid: Grid) -> bool:
    """Whether the nodes are this machine's own, so that no stranger is among them."""
    # By its name: its module takes half a second to load, and on devices nobody needs it.
    return any(base.__name__ == "InMemoryGrid" for base in type(grid).__mro__)


def is_at_home(grid: Grid) -> bool:
    """Whether all users' data are the server's own anyway: a simulation, by whatever engine."""
    return bool(getattr(grid, "simulated", False)) or is_simulation(grid)


def is_closed(grid: Grid) -> bool:
    """Whether all nodes are there from the beginning."""
    return bool(getattr(grid, "closed", False)) or is_simulation(grid)


def fitting(num_classes: int, model: int) -> bool:
    """Whether labels fit a model: numbers one for numbers, classes one for as many or more."""
    return num_classes == model if 0 in (num_classes, model) else num_classes <= model


def labels(num_classes: int) -> str:
    """What samples are labelled with, in words."""
    return f"{num_classes} classes" if num_classes else "numbers as labels"
