"""The roster: which node hosts which users, as the nodes themselves say.

Nodes come and go; users are known by their ids, which stay. Whose an id is, the first node that
has it says; another that claims it has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from corsage.core.known_devices import NOBODY, Owner
from corsage.core.messages.introduction import Introduction
from corsage.core.messages.replies import in_reading_order, name_users

if TYPE_CHECKING:
    from corsage.strategies.devices.devices import Owners


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


@dataclass
class Roster:
    """All users that are there now.

    Parameters
    ----------
    members, nodes : who is there; the nodes are those that were let in.
    note : is told who goes, and who is refused.
    owners : whose the ids of users are; None where no device could be known again.
    users : ids in an order that depends on nothing but the ids.
    guests : what the nodes said.
    """

    members: dict[str, Member] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    note: Callable[[str], None] = print
    owners: Owners | None = None
    users: list[str] = field(default_factory=list)
    guests: dict[int, Guest] = field(default_factory=dict)
    _claims: dict[str, dict[int, Member]] = field(default_factory=dict)  # that were refused
    _sorted: bool = False
    _loads: dict[int, int] = field(default_factory=dict)
    _held: dict[tuple[str, ...], int] = field(default_factory=dict)

    def clear(self) -> None:
        """Nobody is there."""
        self.members, self.nodes, self.users = {}, set(), []
        self._sorted, self._loads, self._held = False, {}, {}
        self.guests, self._claims = {}, {}

    def by_node(self, users: list[str]) -> dict[int, list[str]]:
        """The given users, grouped by the node that hosts them."""
        groups: dict[int, list[str]] = {}
        for user in users:
            groups.setdefault(self.members[user].node, []).append(user)
        return groups

    def hosted(self, node: int) -> list[str]:
        """The users of a node, one by one: not to be asked for in every round."""
        guest = self.guests.get(node)
        said = guest.said.users if guest else ()
        return [user for user in said if user in self.members and self.members[user].node == node]

    def samples(self, kind: str, users: Iterable[str]) -> dict[str, int]:
        """The users' numbers of samples, of those that a message of a kind is about."""
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

    # Who comes and goes; `sort` after it.

    def enter(self, node: int, guest: Guest) -> None:
        """A node is let in; its users are seated when it is known what data must be like."""
        self.guests[node] = guest
        self.nodes.add(node)

    def drop(self, node: int) -> None:
        """A node is not let in."""
        self.nodes.discard(node)
        self.guests.pop(node, None)

    def leave(self, node: int) -> None:
        """A node is not there any more: others may claim its users' ids."""
        gone = self.forget_all_of(node)
        self.drop(node)
        for claimants in self._claims.values():
            claimants.pop(node, None)
        if gone:
            self.note(f"{name_users(gone)} gone: node {node} left")

    def forget_all_of(self, node: int) -> list[str]:
        """The users of a node are not there any more; who they were."""
        gone = self.hosted(node)
        for user in gone:
            self._forget(user)
        return gone

    def sort(self) -> None:
        """The users in order, if some came or went since they were sorted."""
        if not self._sorted:
            self.users, self._sorted = in_reading_order(self.members), True
            self._loads, self._held = {}, {}

    def _forget(self, user: str) -> None:
        """A user is not there any more."""
        del self.members[user]
        self._sorted = False

    # Whose an id is.

    def seat(self, node: int, users: dict[str, Member]) -> None:
        """Take in users of a node, but for those whose ids are another's."""
        if self._is_open(node, users):
            self.members.update(users)
            self._sorted = False
        else:
            for user, member in users.items():
                self._claim(user, member)

    def reclaim(self) -> None:
        """The run remembers owners of ids: those that are another's are taken from their nodes."""
        for user, member in list(self.members.items()) if self._owned else ():
            self._forget(user)
            self._claim(user, member)
        self.sort()

    def claim_again(self) -> list[tuple[int, str]]:
        """Those that were refused an id have it, if nobody has it now and it may be theirs.

        Gives each such node with its user.
        """
        admitted: list[tuple[int, str]] = []
        for user in [user for user in self._claims if user not in self.members]:
            for node, member in list(self._claims[user].items()):
                if not self._refusal(user, self.guests[node].mark):
                    del self._claims[user][node]
                    self._claim(user, member)
                    admitted.append((node, user))
                    break
        return admitted

    def _is_open(self, node: int, users: dict[str, Member]) -> bool:
        """True if nobody owns ids, nor has any of these: then there is nothing to tell apart."""
        nobody = not self._owned and self.guests[node].mark == NOBODY
        return nobody and self.members.keys().isdisjoint(users)

    def _claim(self, user: str, member: Member) -> None:
        """Give an id to a node, unless it is another's: the first one keeps it."""
        mark, holder = self.guests[member.node].mark, self.members.get(user)
        same = self.owners is not None and self.owners.is_same(user, mark)
        why = self._refusal(user, mark)
        if holder and holder.node != member.node and not same:
            why = f"node {holder.node} had it first"
        if why:
            self.note(f"node {member.node} is refused as user {user}: {why}")
            self._claims.setdefault(user, {})[member.node] = member
            return
        self.members[user], self._sorted = member, False
        if self.owners is not None:
            self.owners.enter(user, mark)

    @property
    def _owned(self) -> bool:
        """True if the run remembers any owner."""
        return self.owners is not None and self.owners.known

    def _refusal(self, user: str, mark: Owner) -> str:
        """The reason why only its owner may have an id, though that is not there; or nothing."""
        return self.owners.refusal(user, mark) if self.owners is not None else ""
