"""The roster: which node hosts which users, as the nodes themselves say.

Simulation and devices work the same way: every node that connects is asked once who its users are.
Nodes come and go; users are known by their ids, which stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from corsage.core.errors import DataError, NodeError
from corsage.core.replies import name_users, reading_order
from corsage.strategies.rounds.exchange import exchange


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
    users : ids in an order that depends on nothing but the ids.
    shape, num_classes : of a sample, () until a node has answered; no classes: labels are
        numbers.
    task : what the nodes are sent: the run's settings, as a task without users.
    fixed : the model is built: a node that cannot take part in it does not end the run.
    """

    members: dict[str, Member] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    shape: tuple[int, ...] = ()
    num_classes: int = 0
    note: Callable[[str], None] = print
    task: Callable[[], ConfigRecord] = ConfigRecord
    fixed: bool = False
    users: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Nobody is there; the shape of samples and the number of classes stay known."""
        self.members, self.nodes, self.users = {}, set(), []

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
            self.users = [user for user in self.users if user in self.members]
            if gone:
                self.note(f"{name_users(gone)} gone: node {node} left")
        new = sorted(found - self.nodes)
        self.nodes = found
        if not new:
            return
        content = RecordDict({"config": self.task()})
        questions = [Message(content, node, "query", ttl=max(timeout, 1.0)) for node in new]
        replies, silent = exchange(grid, questions, timeout)
        for node in silent:
            self._refuse(node, "did not say who its users are in time", strict=False)
        for reply in replies:
            self._admit(reply, strict)
        self.users = sorted(self.members, key=reading_order)

    def _admit(self, reply: Message, strict: bool) -> None:
        """Take in a node and its users, or refuse it."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._refuse(node, str(reply.error.reason), strict)
            return
        try:
            shape, num_classes, users = introduction(reply)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(node, f"its introduction is malformed ({error})", strict)
            return
        if why := self._mismatch(users, shape, num_classes, strict):
            self._refuse(node, why, strict)
            return
        if users:
            self.shape, self.num_classes = shape, max(self.num_classes, num_classes)
        for user, member in users.items():
            if member.train < 1 or member.test < 1:
                self._refuse_user(user, "test" if member.test < 1 else "training", strict)
                continue
            if user in self.members and self.members[user].node in self.nodes:
                self.note(f"user {user} is at two nodes: the one that came last is taken")
            self.members[user] = member

    def _mismatch(
        self, users: dict[str, Member], shape: tuple[int, ...], num_classes: int, strict: bool
    ) -> str:
        """Why a node's data do not fit the model, if they do not."""
        if users and self.shape and shape != self.shape:
            return f"its samples have shape {shape}, the others' {self.shape}"
        if users and self.shape and not fitting(num_classes, self.num_classes, more=strict):
            return f"it has {labels(num_classes)}, the model {labels(self.num_classes)}"
        return ""

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


def fitting(num_classes: int, model: int, more: bool = False) -> bool:
    """Whether labels fit a model: numbers one for numbers, classes one for as many or `more`."""
    if 0 in (num_classes, model):
        return num_classes == model
    return more or num_classes <= model


def labels(num_classes: int) -> str:
    """What samples are labelled with, in words."""
    return f"{num_classes} classes" if num_classes else "numbers as labels"


def introduction(reply: Message) -> tuple[tuple[int, ...], int, dict[str, Member]]:
    """What a node says of itself: the shape of a sample, the number of classes, its users."""
    config: Any = reply.content["config"]
    metrics: Any = reply.content["metrics"]
    node = reply.metadata.src_node_id
    columns = (
        config.get("users", []),
        metrics["train"],
        metrics["test"],
        config.get("clusters", []),
    )
    users = {
        str(user): Member(node, int(train), int(test), str(cluster))
        for user, train, test, cluster in zip(*columns, strict=True)
    }
    return tuple(int(n) for n in config.get("input-shape", [])), int(config["num-classes"]), users
