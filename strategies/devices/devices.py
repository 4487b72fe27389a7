"""A network of devices: who of them is waited for and how long, and who is set aside.

A simulation has none of it: its nodes are all there, and each of them replies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from corsage.core.configuration.key_groups import FederationKeys
from corsage.core.errors import NodesSilent
from corsage.core.known_devices import NOBODY, KnownDevices, Owner
from corsage.core.messages.replies import Replies
from corsage.strategies.devices.exchange import Exchange, Puller, exchange
from corsage.strategies.devices.patience import QUERY, Pace, Patience, Pending
from corsage.strategies.devices.standing import Conduct, Pauses, outlying

if TYPE_CHECKING:
    from corsage.strategies.rounds.reception import Reception
    from corsage.strategies.rounds.roster import Roster

FIRST_WAIT, LONGEST_WAIT = 5.0, 40.0
"""Seconds that silent nodes have to say who they are, before they are asked once more."""
LONGEST_SILENCE = 60.0
"""The same where a run waits to begin: half of node-timeout, and no longer than this."""


class Devices:
    """The devices that a grid leads to.

    Parameters
    ----------
    grid, keys : the grid, and how long one waits for whom.
    roster : which users they host.
    known : how they behaved, and whose users' ids are, as the run remembers it.
    note : told of those that are set aside.

    Attributes
    ----------
    number : the round that is under way, or was last.
    resting : the users that are set aside.
    missing : the users of nodes that did not reply as they had to when they were last asked.
    changed : nodes to be asked anew who they are: what they sent is not what they had said, and
        their files may have grown.
    silence : seconds after which a run that cannot begin asks a silent one again.
    """

    def __init__(
        self,
        grid: Grid,
        keys: FederationKeys,
        roster: Roster,
        known: KnownDevices,
        note: Callable[[str], None],
    ) -> None:
        self.grid, self.keys, self.roster, self.known = grid, keys, roster, known
        self.note, self._until = note, math.inf  # silence is not borne for ever
        self._line: Exchange | None = None
        self.owners = Owners(known, keys.registered_keys)
        times = 0.0 if getattr(grid, "patient", False) else keys.patience
        self.patience = Patience(times, keys.quorum)
        self.conduct, self.pauses = Conduct(known, note), Pauses()
        self.number, self.resting, self.missing = 0, frozenset[str](), set[str]()
        self.changed, self.silence = set[int](), min(keys.node_timeout / 2, LONGEST_SILENCE)
        self._keys: dict[int, bytes] = {}
        self._again: dict[int, tuple[float, float]] = {}  # when a silent one is, and the pause then

    # Who is let in.

    def see(self, nodes: Iterable[NodeInfo]) -> None:
        """The nodes that are there, and their keys."""
        self._keys = {info.node_id: info.public_key for info in nodes}
        while self.changed:
            self.roster.drop(self.changed.pop())

    def mark(self, node: int) -> str:
        """By what a node is known again: its key, or else its number."""
        return digest(self._keys.get(node, b"")) or f"node {node}"

    def owner(self, node: int, proof: str) -> Owner:
        """The device that a node is, by its key and what it proves itself with."""
        return Owner(digest(self._keys.get(node, b"")), digest(proof))

    def came(self, node: int, users: Iterable[str]) -> None:
        """A node introduced itself."""
        self.conduct.came(users, self.mark(node))

    def ask(
        self, nodes: list[int], task: ConfigRecord, timeout: float
    ) -> tuple[list[Message], list[int]]:
        """The introductions of nodes, and who gave none; who was refused is not waited for."""
        self._again |= dict.fromkeys(nodes, (time.monotonic() + self.silence, 2 * self.silence))
        doubtful, questions = self.pauses.among(nodes), self._questions(nodes, task, timeout)
        return exchange(self.grid, questions, timeout, self.patience, doubtful)

    def ask_again(self, nodes: Iterable[int], task: Callable[[], ConfigRecord]) -> None:
        """Ask silent nodes once more, after growing pauses; what they say is taken as `late`.

        Nobody waits for it: what is known of the nodes' pace stays as it is.
        """
        now = time.monotonic()
        due = {n: pause for n in nodes for at, pause in [self._again[n]] if now >= at}
        if not due:
            return
        self.note(f"asked again, as there is no answer: node {', '.join(map(str, due))}")
        self._again |= {node: (now + pause, 2 * pause) for node, pause in due.items()}
        self.grid.push_messages(questions := self._questions(due, task(), 0.0))
        for one in questions:
            self.patience.give_up(one.metadata.message_id, Pending(one, now), now, Pace())

    def _questions(self, nodes: Iterable[int], task: ConfigRecord, timeout: float) -> list[Message]:
        """A question for each; an answer that comes after the wait is a good one as well."""
        content, ttl = RecordDict({"config": task}), max(timeout, self.keys.node_timeout, 1.0)
        return [Message(content, node, QUERY, ttl=ttl) for node in nodes]

    def let_in(self, node: int) -> None:
        """A node has said who its users are: it need not say it twice."""
        self.pauses.end(node)
        self.patience.forget(node)

    def late(self) -> list[Message]:
        """Introductions that nobody waited for any more."""
        now = time.monotonic()
        if late := self.patience.given_up(now):
            puller = Puller(self.grid)
            for reply in puller.pull(late):
                self.patience.came_late(reply, now)
            self.patience.drop(puller.take_broken())
        return self.patience.take_late(query=True)

    def twin(self, node: int, owner: Owner, users: Collection[str]) -> str:
        """Why a node is another that is there, with its secret and other users; empty: it is not.

        With the same users it is the node that was there before it was started again.
        """
        for other, guest in self.roster.guests.items() if owner.proof else ():
            same = guest.mark.proof == owner.proof and set(guest.said.users) != set(users)
            if other != node and same:
                return f"its state-dir is node {other}'s, too: each SuperNode needs its own"
        return ""

    def outlying(self) -> dict[int, str]:
        """The nodes of whose tables no model could be made with the others', and why."""
        said = {n: guest.said for n, guest in self.roster.guests.items() if guest.said.users}
        return outlying({n: one.table for n, one in said.items() if one.table})

    def disconnected(self, replies: Replies) -> set[int]:
        """The silent nodes that are not connected any more."""
        if not replies.silent:
            return set()
        return set(replies.silent) - set(self.grid.get_node_ids())

    # Messages out and replies in.

    def line(self, timeout: float) -> Exchange:
        """A way to send messages, and to wait for replies as long as it is worth it."""
        doubtful = self.roster.by_node(self.conduct.doubtful(self.roster.members))
        self._until = self._until if self.absent else math.inf
        self._line = Exchange(self.grid, timeout, self.patience, doubtful, self.work)
        return self._line

    @property
    def silent(self) -> bool:
        """True if no node replied to the last turn's messages."""
        return self._line is not None and self._line.silent

    @property
    def absent(self) -> bool:
        """True if a node did not reply in the last turn, or too few users are there at all."""
        missed = self._line is not None and self._line.missed
        return missed or len(self.roster.users) < self.keys.min_users

    def work(self, message: Message) -> float:
        """The number of samples that a message is about, as far as the roster tells."""
        task: Any = message.content.get("config", {})
        members = self.roster.members
        named = [u for u in task.get("users", []) if u in members]
        if not named:
            return float(self.roster.load(message.metadata.dst_node_id))
        return float(sum(members[user].train for user in named))

    # Who is asked at present, by how the nodes behaved when they were asked before.

    def rest(self, least: int) -> None:
        """Do not ask those whose pause is not over, nor slow ones that are still at work."""
        hosted, working = self.roster.hosted, self.patience.working()
        for reply in self.patience.take_late(query=False):
            node = reply.metadata.src_node_id
            if not reply.has_error() and node not in working:
                self.conduct.late(hosted(node))
        busy = {user for node in working for user in hosted(node)}
        least = max(self.keys.min_users, least)
        self.resting = self.conduct.resting(self.roster.members, self.number, least, busy)

    def go_without(self) -> bool:
        """For the rest of this round, do not ask whom the last turn had no reply of.

        False if that was nobody, or too few would be left.
        """
        resting, self.missing = self.resting | self.missing, set()
        left = len(self.roster.users) - sum(user in self.roster.members for user in resting)
        found = resting > self.resting and left >= max(self.keys.min_users, 1)
        self.resting = resting if found else self.resting
        return found

    def outlast(self, reception: Reception, task: Callable[[], ConfigRecord]) -> None:
        """Wait, where too few reply, until enough of them, or others, say who they are.

        NodesSilent if they do not within round-timeout of the first turn with too few replies.
        """
        wait, begin = FIRST_WAIT, time.monotonic()
        self._until = min(self._until, begin + self.keys.round_timeout)
        who = "no node replies" if self.silent else "too few nodes reply"
        self.note(f"{who}: waiting for them, up to {self._until - begin:.0f} s")
        alive = set[int]()
        while (now := time.monotonic()) < self._until:
            seconds = min(wait, self._until - now)
            before = set(self.roster.nodes)
            reception.refresh(self.grid, seconds, self.number, task)
            alive = (alive | self.roster.nodes - before) & self.roster.nodes
            if self._woken(alive, task(), seconds):
                return
            time.sleep(max(now + seconds - time.monotonic(), 0.0))
            wait = min(2 * wait, LONGEST_WAIT)
        raise NodesSilent(
            f"round {self.number}: {who}, and not enough came back within "
            f"{self.keys.round_timeout:g} s (round-timeout): when the devices are there again, "
            "--resume goes on with the last checkpoint."
        )

    def _woken(self, alive: set[int], task: ConfigRecord, seconds: float) -> bool:
        """Ask the others whether they are there, until there are users enough."""
        content, line = RecordDict({"config": task}), Exchange(self.grid, seconds)
        others, done = sorted(self.roster.nodes - alive), self._enough(alive)
        line.push([] if done else [Message(content, n, QUERY, ttl=seconds) for n in others])
        while not done and (came := line.pull()):
            alive |= {
                m.metadata.dst_node_id for m, reply in came if reply and not reply.has_error()
            }
            done = self._enough(alive)
        return done

    def _enough(self, nodes: Iterable[int]) -> bool:
        """True if nodes have users enough for a round."""
        return sum(len(self.roster.hosted(n)) for n in nodes) >= max(self.keys.min_users, 1)

    def judge(self, replies: Replies) -> None:
        """Note how the nodes behaved in a turn; where none replied, it was not theirs to do."""
        conduct, hosted, number = self.conduct, self.roster.hosted, self.number
        silent = set(replies.silent) - self.disconnected(replies)
        bad = {*replies.silent, *replies.refused}
        self.missing = {user for node in bad for user in hosted(node)}
        if replies.answered or replies.refused:
            for node in silent:
                conduct.silent(hosted(node), self.mark(node), number)
        for node in set(replies.refused) - silent:
            conduct.refused(hosted(node), self.mark(node), number)
            self.changed.add(node)
        if self.known.standings:
            for node in {*replies.answered} - {*replies.refused} - silent:
                conduct.alive(hosted(node))
        conduct.tell()

    def judge_others(self, replies: Replies) -> None:
        """The same of nodes that were asked something else in the turn that was judged last."""
        missing = self.missing
        self.judge(replies)
        self.missing |= missing


class Owners:
    """Tells whose a user's id is: the device's that first had it in the run.

    A device is known by its key, if Flower has one of it, and by a proof that only it can give: a
    word made of a secret in its state-dir and the name of the run. Flower gives a SuperNode without
    a key of its own a new one at every start, so a key that changed says nothing, unless the keys
    are registered.

    Parameters
    ----------
    known : the owners that the run remembers.
    registered : keys are registered, so they stay: an id is never given to another key.
    """

    def __init__(self, known: KnownDevices, registered: bool = False) -> None:
        self._known, self._registered = known, registered

    @property
    def known(self) -> bool:
        """True if the run remembers any owner."""
        return bool(self._known.owners)

    def is_same(self, user: str, claim: Owner) -> bool:
        """True if the device that claims an id is known to be the one that has it."""
        known = self._known.owners.get(user, NOBODY)
        by_key = bool(claim.key) and claim.key == known.key
        return by_key or (bool(claim.proof) and claim.proof == known.proof)

    def refusal(self, user: str, claim: Owner) -> str:
        """The reason why only its owner may have an id, though that is not there; or nothing."""
        known = self._known.owners.get(user)
        if known is None or self.is_same(user, claim):
            return ""
        if known.proof:
            return "it belongs to a device with another state-dir in this run"
        return "it belongs to another key in this run" if self._registered and known.key else ""

    def enter(self, user: str, claim: Owner) -> None:
        """Remember who has an id now, if the device could be known again."""
        if claim != NOBODY:
            known = self._known.owners.get(user, NOBODY) if self.is_same(user, claim) else NOBODY
            self._known.owners[user] = Owner(claim.key or known.key, claim.proof or known.proof)


def digest(word: bytes | str) -> str:
    """A short name of a word, which does not tell it; none of an empty one."""
    data = word.encode() if isinstance(word, str) else word
    return blake2b(data, digest_size=12).hexdigest() if data else ""
