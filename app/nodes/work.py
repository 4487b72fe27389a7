"""The work of a node in one exchange: users in groups, the good ones merged, the bad named.

A *participant* answers as one: a user, or, for methods of known clusters, a cohort, which is all
the users of one cluster at this node. One participant's failure is its own: if a group fails, its
participants are tried one by one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.app.nodes.delivery import ModelDelivery, delivers
from corsage.app.nodes.node import Node, Order, client_of
from corsage.app.nodes.reporting import Numbers, Report, not_kept
from corsage.app.states.pieces import ModelShelf
from corsage.app.states.shelf import Kept
from corsage.app.states.store import PersonalStore
from corsage.clients.base import Client, Got, Sent
from corsage.core.arrays import Array, Arrays, Bools
from corsage.core.cache import Names
from corsage.core.errors import CheckpointError, Refused, StateLost, StorageError
from corsage.core.finite_pieces import ExactSum, finite_rows
from corsage.core.messages.introduction import other_frozen
from corsage.core.messages.wire import COHORT_MEMBERS, ROWS_BY_USER
from corsage.core.registry import attached
from corsage.networks.local_training import network_on_its_path
from corsage.networks.network import NETWORK_LOCK

# Rows of one group of users take at most this much memory.
GROUP_BYTES = 64 * 2**20
GROUP_USERS, FEW_USERS = 256, 4
LARGEST_ENTRY = 1e15
DIVERGED = "; if training diverges: a smaller lr, or inputs scaled to about 1"


def work(
    kind: str,
    order: Order,
    node: Node,
    store: PersonalStore | None = None,
    models: ModelShelf | None = None,
) -> Report:
    """Do what a message says for all its participants; what needs no network needs not wait.

    `store` has what they keep, if they keep anything, and `models` takes what they are judged by.
    """
    with NETWORK_LOCK:
        worker = Worker(kind, order, node, store, models)
        if not worker.convex:
            return all_groups(worker)
    return all_groups(worker)


def all_groups(worker: Worker) -> Report:
    """Group by group; a group of which somebody fails one by one."""
    todo = worker.groups()
    while todo:
        group = todo.pop(0)
        try:
            worker.run(group)
        except (StorageError, CheckpointError):
            raise
        except Exception as error:
            if len(group) > 1:
                todo = [[place] for place in group] + todo
            else:
                worker.failed(group[0], error)
    return worker.finished()


class Worker:
    """One message's work; `run` does a group of participants and adds it to the report."""

    def __init__(
        self,
        kind: str,
        order: Order,
        node: Node,
        store: PersonalStore | None = None,
        models: ModelShelf | None = None,
    ) -> None:
        self.kind, self.node, self.store = kind, node, store
        self.task, self.arrays, self.rows = order.task, order.arrays, order.rows
        task = self.task
        self.report = Report(device=not node.simulated)
        self.sums: dict[str, tuple[ExactSum, np.dtype[Any]]] = {}  # and of what type the rows are
        self.weights: list[float] = []
        self.rows_sent: dict[str, list[Array]] = {}  # of each group, put together at the end
        self.cls = client_of(task)
        device = node.device or task.train.device
        facts = task.shape, task.num_classes, task.seed, device
        self.network = network_on_its_path(task.model, *facts)
        frozen = self.network.vector.fixed.fingerprint
        if task.frozen != frozen:  # nobody would notice
            raise Refused(other_frozen(frozen, task.frozen))
        self.delivery = None
        if models is not None and delivers(task, node):
            self.delivery = ModelDelivery(task, node, models)
        new = task.members.items()
        self.members = {name: read_members(write_members(users)) for name, users in new}
        self.stored: dict[str, Array] = {}  # the same of cohorts that are known, as they are kept

    @property
    def convex(self) -> bool:
        """True if users are worked for by their losses' own arithmetic, without a network."""
        return self.task.model.model == "linear" and self.cls.by_arithmetic

    def groups(self) -> list[list[int]]:
        """The numbers of participants that are worked for at once; a cohort is alone.

        Where only few fit, no more are in memory than are trained together.
        """
        fit = GROUP_BYTES // (4 * max(self.network.whole.stop, 1))
        if fit < FEW_USERS:
            fit = min(fit, self.network.path.users)
        size = 1 if self.cls.cohorts else max(1, min(GROUP_USERS, fit))
        places = list(range(len(self.task.users)))
        return [places[i : i + size] for i in range(0, len(places), size)]

    def run(self, group: list[int]) -> None:
        """Restore, train or evaluate, check, keep, merge: nothing is merged before it is kept."""
        client, got = self.client(group), self.got(group)
        if self.kind == "evaluate":
            metrics = client.judge(got)
            if self.delivery is not None:
                self.delivery.add(client)
            self.add_evaluation(client.users, metrics, client.outcomes)
            return
        sent = client.respond(got)
        self.network.vector.fixed.check()
        if self.task.options.get(ROWS_BY_USER):
            sent = replace(sent, mean={}, rows={**sent.mean, **sent.rows})
        good = self.judged([self.task.users[place] for place in group], sent)
        if sent.keep:
            self.keep(group, good, sent.keep)
        self.add(group, good, sent)

    def client(self, group: list[int]) -> Client[Any]:
        """A client for a group, with what its participants kept."""
        task, names = self.task, [self.task.users[i] for i in group]
        if self.cls.cohorts:  # alone in their groups
            states = [self.of_cohort(names[0], task.versions[group[0]])]
        elif self.store is None:
            states = [Arrays() for _ in names]
        else:
            states = [
                self.store.load(n, task.versions[i]) for n, i in zip(names, group, strict=True)
            ]
        users: Sequence[str] = self.members[names[0]] if self.cls.cohorts else names
        client = self.cls(task, users, self.node.data, self.network, states, self.node.cache)
        client.at_home = self.node.simulated
        client.floor = max(self.node.floor, task.model.min_share)
        if self.node.training is not None:
            client.train_by(attached("own steps").OwnSteps(self.node.training))
        return client

    def of_cohort(self, name: str, version: int) -> Arrays:
        """The state of a cohort; of one that has none, its users' rows in those of others."""
        users, rows = dict.fromkeys(self.members.get(name, ())), dict[str, Arrays]()
        if self.store is None or not version or not users:
            state = self.store.load(name, version) if self.store is not None else {}
            if (stored := state.pop(COHORT_MEMBERS, None)) is not None:
                self.members[name], self.stored[name] = read_members(stored), stored
            self.members.setdefault(name, Names([name]))
            return state
        for at in (name, *self.task.former, *users):
            if at not in rows and not users.keys() <= rows.keys():
                with suppress(StateLost):
                    state = self.store.load(at, version)
                    own = read_members(state.pop(COHORT_MEMBERS, write_members([at])))
                    rows |= {u: {k: a[i] for k, a in state.items()} for i, u in enumerate(own)}
        if lost := [user for user in users if user not in rows]:
            self.store.load(lost[0], version)  # StateLost, with the reason
        return {kind: np.stack([rows[user][kind] for user in users]) for kind in state}

    def got(self, group: list[int]) -> Got:
        """All that came for a group."""
        options, own = self.task.options, self.task.cohort_options
        if own and self.cls.cohorts:
            options = {**options, **own[group[0]]}
        rows = {name: array[group] for name, array in self.rows.items()}
        return Got(self.arrays, rows, options)

    def judged(self, users: Sequence[str], sent: Sent) -> Bools:
        """Mark participants whose results are finite throughout; the others are named.

        Each has one row, and of the shape that was sent, where the same comes back.
        """
        good, came = np.ones(len(users), bool), {n: a.shape for n, a in self.arrays.items()}
        numbers: dict[str, tuple[int, ...]] = dict.fromkeys(sent.metrics, ())
        parts = (("metric ", sent.metrics, numbers), ("", sent.mean, came), ("", sent.rows, came))
        for kind, part, shapes in (*parts, ("kept ", sent.keep, {})):
            for name, values in part.items():
                rows = np.asarray(values)
                wanted = (len(users), *shapes.get(name, rows.shape[1:]))
                if rows.shape != wanted:
                    raise ValueError(f"wrong shape: {kind}{name} is {rows.shape}, not {wanted}")
                # Of a mean with an entry beyond that nobody could tell whose it is.
                fine = finite_rows(rows, LARGEST_ENTRY if part is sent.mean else np.inf)
                for place in np.flatnonzero(good & ~fine).tolist():
                    why = f"{self.kind}: {name} is not finite{DIVERGED}"
                    self.report.failed[users[place]] = why
                good &= fine
        return good

    def keep(self, group: list[int], good: Bools, kept: Arrays) -> None:
        """Write new states; one that cannot be written takes its participant out."""
        assert self.store is not None
        task, states = self.task, []
        places: dict[str, int] = {}
        for place in np.flatnonzero(good):
            i = group[place]
            name = task.users[i]
            state = {key: rows[place] for key, rows in kept.items()}
            if self.members.get(name, (name,)) != (name,):
                own = self.stored.get(name)
                state[COHORT_MEMBERS] = write_members(self.members[name]) if own is None else own
            states.append(Kept(name, state, frozenset({task.versions[i], *task.kept(i)})))
            places[name] = int(place)
        for name, cause in self.store.save(task.round, states).items():
            good[places[name]] = False
            self.report.failed[name] = not_kept(name, cause)
        self.report.kept = True

    def add(self, group: list[int], good: Bools, sent: Sent) -> None:
        """Add the good participants of a group to the report."""
        if not good.any():
            return
        report, places = self.report, np.flatnonzero(good)
        report.add_numbers([self.task.users[i] for i in group], good, sent.metrics)
        weights = np.ones(len(places))
        if self.task.train.weighting == "examples":
            own = [self.task.weights[i] for i in group] if self.task.weights else None
            weights = np.asarray(own or sent.metrics["num-examples"], dtype=np.float64)[places]
        self.weights += weights.tolist()
        for name, rows in sent.rows.items():
            self.rows_sent.setdefault(name, []).append(rows if good.all() else rows[places])
        for name, rows in sent.mean.items():
            chosen = rows if good.all() else rows[places]
            if len(self.task.users) == 1:
                report.mean[name] = chosen[0]
            else:
                if name not in self.sums:
                    self.sums[name] = ExactSum(rows.shape[1:]), rows.dtype
                self.sums[name][0].add(chosen, weights)

    def add_evaluation(self, users: list[str], metrics: Numbers, rows: Arrays) -> None:
        """Add an evaluation, user by user."""
        good = self.judged(users, Sent(metrics=metrics, rows=rows))
        self.report.add_numbers(users, good, metrics)
        for name, sums in rows.items():
            self.rows_sent.setdefault(name, []).append(sums[good])

    def failed(self, place: int, error: Exception) -> None:
        """A participant has no result; of an evaluation each of a cohort's users has none."""
        name = self.task.users[place]
        users = self.members.get(name, (name,)) if self.kind == "evaluate" else [name]
        for user in users:
            self.report.name_failure(user, self.kind, error)

    def finished(self) -> Report:
        """The report, its rows put together; of sums the mean, where nobody else adds to them."""
        self.network.vector.rest()
        report = self.report
        report.rows = {
            name: groups[0] if len(groups) == 1 else np.concatenate(groups)
            for name, groups in self.rows_sent.items()
        }
        for name, (total, dtype) in self.sums.items():
            kind = dtype if self.task.sole else np.dtype(np.float64)
            alone = self.task.sole or report.device
            own = total.mean(math.fsum(self.weights), kind) if alone else total.rows()
            report.mean[name] = own
        return report


def write_members(users: Sequence[str]) -> NDArray[np.uint8]:
    """Users' ids as an array, as a state can hold it."""
    return np.frombuffer(json.dumps(users).encode(), np.uint8)


def read_members(array: NDArray[np.uint8]) -> Names:
    """The inverse of `write_members`."""
    return _ids(array.tobytes())


@lru_cache(maxsize=256)
def _ids(text: bytes) -> Names:
    """The same in every message: thousands of ids are read once."""
    return Names(json.loads(text))
