"""The roster: which node hosts which users, as the nodes themselves say.

Simulation and devices work the same way: every node that connects is asked once who its users are.
Nodes come and go; users are known by their ids, which stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from corsage.app.config import Value
from corsage.app.errors import DataError, NodeError
from corsage.app.exchange import exchange


@dataclass(frozen=True)
class Member:
    """One user: the node that hosts it now, its numbers of samples, its cluster if known."""

    node: int
    train: int
    test: int
    cluster: str = ""


@dataclass
class Roster:
    """All users that are there now, and what their data look like.

    Parameters
    ----------
    keys : what the nodes are told of the run's config, where Flower does not pass it on.
    fixed : the model is built, so data that need another one are refused.
    """

    members: dict[str, Member] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    shape: tuple[int, ...] = ()
    num_classes: int = 0
    note: Callable[[str], None] = print
    keys: dict[str, Value] = field(default_factory=dict)
    fixed: bool = False

    @property
    def users(self) -> list[str]:
        """User ids in an order that depends on nothing but the ids."""
        return sorted(self.members, key=lambda user: (len(user), user))

    def by_node(self, users: list[str]) -> dict[int, list[str]]:
        """The given users, grouped by the node that hosts them."""
        groups: dict[int, list[str]] = {}
        for user in users:
            groups.setdefault(self.members[user].node, []).append(user)
        return groups

    def wait(self, grid: Grid, num_nodes: int, timeout: float) -> None:
        """Wait until enough nodes say who their users are; NodeError if they do not in time.

        A node that died a moment ago is still listed: nodes count when they have answered.
        """
        deadline, pause = time.monotonic() + timeout, 0.02
        while True:
            late = time.monotonic() > deadline
            found = len(set(grid.get_node_ids()))
            if found >= num_nodes:
                left = max(deadline - time.monotonic(), 1.0)
                self.refresh(grid, left, strict=not self.fixed)
                found = len(self.nodes)
                if found >= num_nodes:
                    break
            if late:
                raise NodeError(
                    f"only {found} of {num_nodes} nodes connected within {timeout:g} s: "
                    f"start the others, or set num-nodes={max(found, 1)} or a longer "
                    "node-timeout."
                )
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        if not self.members:
            raise NodeError(f"the {len(self.nodes)} connected nodes host no users.")
        self.fixed = True

    def refresh(self, grid: Grid, timeout: float, strict: bool = False) -> None:
        """Forget the users of nodes that left, and ask the nodes that are new."""
        found = set(grid.get_node_ids())
        for node in self.nodes - found:
            gone = [user for user, member in self.members.items() if member.node == node]
            for user in gone:
                del self.members[user]
            self.note(f"node {node} left with {_names(gone)}")
        new = sorted(found - self.nodes)
        self.nodes = found
        if not new:
            return
        content = RecordDict({"config": ConfigRecord({**self.keys})})
        questions = [Message(content, node, "query", ttl=max(timeout, 1.0)) for node in new]
        replies, silent = exchange(grid, questions, timeout)
        for node in silent:
            self._refuse(node, "did not say who its users are in time", strict=False)
        for reply in replies:
            self._admit(reply, strict)

    def _admit(self, reply: Message, strict: bool) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._refuse(node, str(reply.error.reason), strict)
            return
        config, metrics = reply.content["config"], reply.content["metrics"]
        shape, num_classes = tuple(config["input-shape"]), int(config["num-classes"])
        if self.shape and config["users"] and shape != self.shape:
            self._refuse(node, f"its samples have shape {shape}, the others' {self.shape}", strict)
            return
        if self.fixed and num_classes > self.num_classes:
            why = f"it has {num_classes} classes, and the run began with {self.num_classes}"
            self._refuse(node, f"{why}: set num-classes at one of the first nodes", strict)
            return
        if config["users"]:
            self.shape = shape
            self.num_classes = max(self.num_classes, num_classes)
        columns = config["users"], metrics["train"], metrics["test"], config["clusters"]
        for user, train, test, cluster in zip(*columns, strict=True):
            if test < 1 or train < 1:
                self._refuse_user(user, "test" if test < 1 else "training", strict)
                continue
            if user in self.members and self.members[user].node in self.nodes:
                self.note(f"user {user} is at two nodes: the one that came last is taken")
            self.members[user] = Member(node, int(train), int(test), cluster)

    def _refuse_user(self, user: str, missing: str, strict: bool) -> None:
        why = f"user {user} has no {missing} data: give it more samples, or check test-fraction"
        if strict:
            raise DataError(f"{why}.")
        self.note(f"{why}; it is left out")

    def _refuse(self, node: int, why: str, strict: bool) -> None:
        """At the start a node that cannot take part ends the run; later it is left out."""
        if strict:
            raise DataError(why if why.endswith(".") else f"{why}.")
        self.nodes.discard(node)  # it is asked again in the next round
        self.note(f"node {node} is left out: {why}")


def _names(users: list[str]) -> str:
    if len(users) == 1:
        return f"user {users[0]}"
    return f"{len(users)} users ({', '.join(users[:5])}{', ...' if len(users) > 5 else ''})"
