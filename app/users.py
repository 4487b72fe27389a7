"""The work of a node in one round: its users in groups, the good ones merged, the bad ones named.

One user's failure is its own: if a group fails, its users are tried one by one.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from logging import DEBUG
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore import log
from numpy.typing import NDArray

from corsage.app.node import Node
from corsage.app.store import PersonalStore
from corsage.clients.base import Client
from corsage.core.arrays import Arrays
from corsage.core.errors import StateLost, UserError
from corsage.core.wire import Task
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.core.registry import client_class

# Rows of one group of users take at most this much memory.
GROUP_BYTES = 64 * 2**20
GROUP_USERS = 256


@dataclass
class Report:
    """What a node's users did.

    `mean` is the weighted mean over `users` of what they returned, in double precision if they are
    several, so that the server's result does not depend on how users are dealt to nodes.
    """

    users: list[str] = field(default_factory=list)
    weight: float = 0.0
    mean: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    kept: bool = False


def work(
    kind: str, task: Task, node: Node, store: PersonalStore, arrays: Arrays, rows: Arrays
) -> Report:
    """Do what the task says for all its users."""
    network = build_network(
        task.model, task.shape, task.num_classes, task.seed, node.device or task.train.device
    )
    report = Report()
    size = max(1, min(GROUP_USERS, GROUP_BYTES // (4 * max(network.whole.stop, 1))))
    places = list(range(len(task.users)))
    todo = [places[i : i + size] for i in range(0, len(places), size)]
    worker = _Worker(kind, task, node, store, network, arrays, rows, report)
    while todo:
        group = todo.pop(0)
        try:
            worker.run(group)
        except Exception as error:
            if len(group) > 1:
                todo = [[place] for place in group] + todo
            else:
                name_failure(report, task.users[group[0]], kind, error)
    if report.users and worker.averaged:
        scale = 1.0 if len(report.users) == 1 else 1.0 / report.weight
        report.mean = {n: a if scale == 1.0 else a * scale for n, a in report.mean.items()}
    return report


def name_failure(report: Report, user: str, kind: str, error: Exception) -> None:
    """Note why a user (or cohort) has no result."""
    log(DEBUG, "user %s failed:\n%s", user, traceback.format_exc())
    if isinstance(error, UserError):
        report.failed[user] = f"{error.phase}: {error.cause}"
        if isinstance(error, StateLost):
            report.lost.append(user)
        return
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    text = " ".join(str(error).split())
    report.failed[user] = f"{kind}: {type(error).__name__}: {text} ({where})"


@dataclass
class _Worker:
    """One message's work; `run` does a group of users and adds it to the report."""

    kind: str
    task: Task
    node: Node
    store: PersonalStore
    network: Network
    arrays: Arrays
    rows: Arrays
    report: Report
    averaged: bool = True

    def run(self, group: list[int]) -> None:
        """Restore, train or evaluate, check, keep, merge: nothing is merged before it is kept."""
        task = self.task
        users = [task.users[i] for i in group]
        cls = client_class(task.algorithm)
        self.averaged = cls.averaged
        states = [
            self.store.load(user, task.versions[i]) if cls.personal else {}
            for user, i in zip(users, group, strict=True)
        ]
        rows = {name: array[group] for name, array in self.rows.items()}
        client = cls(task, users, self.node.data, self.network, states, rows, list(self.arrays))
        parameters = list(self.arrays.values())
        if self.kind == "evaluate":
            judge = client.adapt if task.options.get("adapt") else client.evaluate
            _, _, metrics = judge(parameters, dict(task.options))
            self._add(users, np.ones(len(users), bool), {}, metrics, client)
            return
        returned, _, metrics = client.fit(parameters, dict(task.options))
        names = client.returns or client.names
        outputs = dict(zip(names, returned, strict=True))
        self._check_shapes(users, outputs, client)
        good = self._finite(users, {**outputs, **client.kept}, metrics)
        self._keep(group, users, good, client)
        self._add(users, good, outputs, metrics, client)

    def _check_shapes(self, users: list[str], outputs: Arrays, client: Client) -> None:
        """One row a user, and of the shape that was sent, where the same array comes back."""
        for name, rows in outputs.items():
            own = self.arrays[name].shape if name in self.arrays else rows.shape[1:]
            if rows.shape != (len(users), *own):
                raise ValueError(f"wrong shape: {name} is {rows.shape}, not {(len(users), *own)}")

    def _finite(
        self, users: list[str], outputs: Arrays, metrics: dict[str, Any]
    ) -> NDArray[np.bool_]:
        """Which users' results are finite throughout; the others are named."""
        good = np.ones(len(users), dtype=bool)
        for name, values in {**metrics, **outputs}.items():
            rows = np.asarray(values).reshape(len(users), -1)
            fine = np.isfinite(rows).all(axis=1)
            for place in np.flatnonzero(good & ~fine):
                self.report.failed[users[place]] = f"{self.kind}: {name} is not finite"
            good &= fine
        return good

    def _keep(
        self, group: list[int], users: list[str], good: NDArray[np.bool_], client: Client
    ) -> None:
        """Write the users' new states; one that cannot be written takes its user out."""
        if not client.kept:
            return
        for place, user in enumerate(users):
            if not good[place]:
                continue
            state = {name: rows[place] for name, rows in client.kept.items()}
            i = group[place]
            try:
                self.store.save(
                    user, self.task.round, state, {self.task.versions[i], self.task.keep[i]}
                )
            except OSError as error:
                good[place] = False
                self.report.failed[user] = f"keep: {error.strerror or error}"
        self.report.kept = True

    def _add(
        self,
        users: list[str],
        good: NDArray[np.bool_],
        outputs: Arrays,
        metrics: dict[str, Any],
        client: Client,
    ) -> None:
        """Add the good users of a group to the report."""
        if not good.any():
            return
        report, places = self.report, np.flatnonzero(good)
        report.users += [users[place] for place in places]
        for name, values in metrics.items():
            column = np.asarray(values, dtype=np.float64)[places]
            report.metrics.setdefault(name, []).extend(column.tolist())
        weights = np.ones(len(places))
        if self.task.train.weighting == "examples":
            weights = np.asarray(metrics["num-examples"], dtype=np.float64)[places]
        report.weight += float(weights.sum())
        for name, rows in outputs.items():
            chosen = rows if good.all() else rows[places]
            if not client.averaged or name in client.singly:
                old = report.rows.get(name)
                report.rows[name] = chosen if old is None else np.concatenate([old, chosen])
            elif len(self.task.users) == 1:
                report.mean[name] = chosen[0]
            else:
                sums = np.einsum(
                    "u,u...->...", weights, chosen, dtype=np.float64, casting="same_kind"
                )
                report.mean[name] = report.mean.get(name, 0.0) + sums
