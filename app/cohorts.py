"""Cohorts: all users of one known cluster that one node hosts, as one participant.

Thirty thousand users in five clusters are five participants: a cohort's models are kept, sent for
and answered for together, and a node that hosts a whole cluster does its averaging. On a device
a cohort is the device's one user, and has its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.app.node import Node
from corsage.app.store import PersonalStore
from corsage.app.users import Report, name_failure
from corsage.clients.known_clusters.cohort import CohortClient
from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError, UserError
from corsage.core.wire import Task
from corsage.networks.build import build_network
from corsage.core.registry import client_class
from corsage.strategies.rounds.roster import Member

MEMBERS = "members"  # the array in a cohort's state that names its users


@dataclass(frozen=True)
class Cohort:
    """The users of one cluster that one node hosts."""

    name: str
    cluster: str
    node: int
    users: tuple[str, ...]


def cohorts_of(
    members: dict[str, Member],
    users: Iterable[str],
    cluster_of: Callable[[Member], str],
    single: frozenset[str] = frozenset(),
) -> list[Cohort]:
    """The users as cohorts; those of the clusters in `single` one by one."""
    groups: dict[tuple[str, int, str], list[str]] = {}
    for user in users:
        member = members[user]
        cluster = cluster_of(member)
        alone = user if cluster in single else ""
        groups.setdefault((cluster, member.node, alone), []).append(user)
    cohorts = [
        Cohort(cohort_name(cluster, group), cluster, node, tuple(group))
        for (cluster, node, _), group in groups.items()
    ]
    return sorted(cohorts, key=lambda cohort: (cohort.cluster, cohort.name))


def cohort_name(cluster: str, users: list[str]) -> str:
    """A lone user's id; else a name that changes with the users."""
    if len(users) == 1:
        return users[0]
    return f"cluster {cluster} #{blake2b(chr(31).join(users).encode(), digest_size=6).hexdigest()}"


def work_cohorts(
    kind: str, task: Task, node: Node, store: PersonalStore, arrays: Arrays, rows: Arrays
) -> Report:
    """Do what the task says for its cohorts, one after the other; a failure is the cohort's own.

    Training is answered for by cohort, evaluation user by user.
    """
    report, told = Report(), json.loads(str(task.options.get(MEMBERS, "{}")))
    network = build_network(
        task.model, task.shape, task.num_classes, task.seed, node.device or task.train.device
    )
    for place, name in enumerate(task.users):
        members = told.get(name, [name])
        try:
            state = store.load(name, task.versions[place])
            members = read_members(state.pop(MEMBERS)) if MEMBERS in state else members
            cls = client_class(task.algorithm)
            assert issubclass(cls, CohortClient)
            own = {key: array[place] for key, array in rows.items()}
            client = cls(task, members, node.data, network, [state], own, list(arrays))
            options = {**task.options, **json.loads(options_of(task, place))}
            if kind == "evaluate":
                judge = client.adapt if task.options.get("adapt") else client.evaluate
                add_users(report, members, judge(list(arrays.values()), options)[2])
            else:
                outputs, _, metrics = client.fit(list(arrays.values()), options)
                named = dict(zip(client.returns, outputs, strict=True))
                check_finite(name, {**named, **client.kept, **metrics})
                keep(store, task, place, members, client.kept)
                report.kept |= bool(client.kept)
                add_cohort(report, name, named, metrics)
        except Exception as error:
            for user in members if kind == "evaluate" else [name]:
                name_failure(report, user, kind, error)
    return report


def options_of(task: Task, place: int) -> str:
    """The options of one cohort, as JSON."""
    own: Any = task.options.get("cohort-options")
    return str(own[place]) if own else "{}"


def check_finite(name: str, values: dict[str, Any]) -> None:
    """Refuse results that are not numbers: a step was too long, or data are too large."""
    for what, value in values.items():
        if not np.isfinite(np.asarray(value)).all():
            raise UserError(name, "train", f"{what} is not finite")


def keep(store: PersonalStore, task: Task, place: int, members: list[str], kept: Arrays) -> None:
    """Write a cohort's new state, and who is in it."""
    if not kept:
        return
    name, state = task.users[place], dict(kept)
    if members != [name]:
        state[MEMBERS] = write_members(members)
    try:
        store.save(name, task.round, state, {task.versions[place], task.keep[place]})
    except OSError as error:
        raise UserError(name, "keep", str(error.strerror or error)) from error


def add_cohort(report: Report, name: str, outputs: Arrays, metrics: dict[str, Any]) -> None:
    """A cohort's answer: one row of each array, one number of each metric."""
    report.users.append(name)
    report.weight += 1.0
    for key, row in outputs.items():
        old = report.rows.get(key)
        rows = np.asarray(row)[None]
        report.rows[key] = rows if old is None else np.concatenate([old, rows])
    for key, value in metrics.items():
        report.metrics.setdefault(key, []).append(float(value))


def add_users(report: Report, users: list[str], metrics: dict[str, NDArray[Any]]) -> None:
    """The evaluation of a cohort's users; one whose numbers are not finite is named."""
    columns = {key: np.asarray(values, np.float64) for key, values in metrics.items()}
    good = np.all([np.isfinite(values) for values in columns.values()], axis=0)
    for place in np.flatnonzero(~good):
        report.failed[users[place]] = "evaluate: its numbers are not finite"
    report.users += users if good.all() else [users[i] for i in np.flatnonzero(good)]
    report.weight += float(good.sum())
    for key, values in columns.items():
        report.metrics.setdefault(key, []).extend(values[good].tolist())


def write_members(users: list[str]) -> NDArray[np.uint8]:
    """Users' ids as an array, as a state can hold it."""
    return np.frombuffer(json.dumps(users).encode(), np.uint8)


def read_members(array: NDArray[np.uint8]) -> list[str]:
    """The inverse of `write_members`."""
    return list(json.loads(array.tobytes()))


def check_clusters(users: list[str], missing: list[str]) -> None:
    """Refuse users without a known cluster."""
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ConfigError(
            f"{len(missing)} of {len(users)} users have no known cluster ({some}): set "
            "cluster-column or cluster-map (on a device, cluster=NAME in its node config), or "
            "known-missing=NAME to put them into a cluster of that name."
        )
