"""Cohorts: who is in which, where they are hosted, and whose failure is whose."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.nodes.node import hosted_together
from corsage.app.nodes.reporting import Report
from corsage.app.nodes.work import Worker, read_members, write_members
from corsage.clients.base import Got, Sent
from corsage.clients.known_clusters.async_l2gd import AsyncL2GDClient
from corsage.core.errors import ConfigError, NodeError
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters.clusters.cohorts import (
    ClusterNames,
    KnownClusters,
    check_clusters,
    cohort_name,
    cohorts_of,
)
from corsage.strategies.rounds.base import Result
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.roster import Member
from corsage.strategies.rounds.state import Progress
from tests.support.federations import ELLIPSES, TIES, federate, same_arrays, settings
from tests.support.grids import Watched
from tests.support.known_users import hosting
from tests.support.resuming import Resume, Stop

CLUSTERS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40)


def cluster_of(user: str, member: Member) -> str:
    return member.cluster


@effort(max_examples=50, deadline=None)
@given(CLUSTERS, st.integers(1, 9))
def test_every_user_is_hosted_by_one_node_with_its_cluster(names: list[str], count: int) -> None:
    """Whole clusters if there are enough for all nodes, else equal shares in their order."""
    users = [str(i) for i in range(len(names))]
    data: Any = SimpleNamespace(users=users, clusters=dict(zip(users, names, strict=True)))
    nodes = [hosted_together(data, number, count) for number in range(count)]
    assert sorted(user for node in nodes for user in node) == sorted(users)
    clusters = [{data.clusters[user] for user in node} for node in nodes]
    if len(set(names)) >= count:
        assert all(clusters) and sum(map(len, clusters)) == len(set(names))
    else:
        sizes = [len(node) for node in nodes]
        assert max(sizes) - min(sizes) <= 1
        order = [data.clusters[user] for node in nodes for user in node]
        assert order == sorted(order)


@effort(max_examples=50, deadline=None)
@given(CLUSTERS, st.lists(st.integers(0, 3), min_size=40), st.sets(st.sampled_from("abcdef")))
def test_cohorts_are_the_users_of_a_cluster_at_a_node(
    names: list[str], nodes: list[int], single: set[str]
) -> None:
    members = {str(i): Member(nodes[i], 5, 5, name) for i, name in enumerate(names)}
    cohorts = cohorts_of(members, list(members), cluster_of, Progress(), frozenset(single))
    assert sorted(user for c in cohorts for user in c.users) == sorted(members)
    assert len({cohort.name for cohort in cohorts}) == len(cohorts)
    for cohort in cohorts:
        assert {(members[u].cluster, members[u].node) for u in cohort.users} == {
            (cohort.cluster, cohort.node)
        }
        assert len(cohort.users) == 1 or cohort.cluster not in single
    together = [(c.cluster, c.node) for c in cohorts if c.cluster not in single]
    assert len(set(together)) == len(together)


def test_a_lone_user_has_its_own_name_and_others_one_of_all_of_them() -> None:
    assert cohort_name("a", ["7"]) == "7"
    name = cohort_name("a", ["7", "8"])
    assert name.startswith("cluster a #")
    assert len({name, cohort_name("a", ["7", "9"]), cohort_name("a", ["78"]),
                cohort_name("b", ["7", "8"])}) == 4  # fmt: skip


@given(st.lists(st.text()))
def test_who_is_in_a_cohort_is_written_as_an_array(users: list[str]) -> None:
    assert read_members(write_members(users)) == tuple(users)


def test_users_without_a_cluster_are_refused_with_some_names() -> None:
    users = [str(i) for i in range(9)]
    check_clusters(users, [])
    with pytest.raises(ConfigError, match=r"7 of 9 .*\(0, 1, 2, 3, 4, \.\.\.\)"):
        check_clusters(users, users[:7])


def test_clusters_are_numbered_as_they_come_and_cohorts_are_made_anew() -> None:
    job = hosting({1: {"a": ["10", "2"], "b": ["3"]}})
    clusters, names = KnownClusters(job), ClusterNames()
    present = clusters.meet(names)
    assert (names.known, present.names, present.places) == (["a", "b"], ["a", "b"], [0, 1])
    assert [cohort.users for cohort in present.cohorts] == [("2", "10"), ("3",)]
    assert clusters.meet(names) is present
    job = hosting({1: {"a": ["10", "2"]}, 2: {"A": ["5"], "a": ["7"]}}, job)
    later = clusters.meet(names)
    assert (names.known, later.names, later.places) == (["a", "b", "A"], ["a", "A"], [0, 2])
    assert {name: len(group) for name, group in later.groups.items()} == {"A": 1, "a": 2}
    assert clusters.meet(ClusterNames(["x", "a"])).places == [1, 2]  # another run's names


@pytest.mark.parametrize("all_apart", [False, True])
def test_users_that_are_told_apart_are_cohorts_of_their_own(all_apart: bool) -> None:
    job = hosting({1: {"a": ["1", "2"], "b": ["3", "4"]}})
    clusters, names = KnownClusters(job, all_apart=all_apart), ClusterNames()
    assert len(clusters.meet(names).cohorts) == 2
    names.apart = ["b"]
    assert len(clusters.meet(names).cohorts) == (4 if all_apart else 3)
    assert names.apart == (["a", "b"] if all_apart else ["b"])


def test_everybody_may_be_in_one_cluster_and_the_rest_in_one_of_their_own() -> None:
    job = hosting({1: {"a": ["1", "2"], "": ["3"]}})
    together, names = KnownClusters(job, together=True), ClusterNames()
    assert [cohort.users for cohort in together.meet(names).cohorts] == [("1", "2", "3")]
    assert KnownClusters(job, missing="rest").meet(ClusterNames()).names == ["a", "rest"]
    with pytest.raises(ConfigError, match=r"1 of 3 users have no known cluster \(3\)"):
        KnownClusters(job).meet(ClusterNames())


def test_nobody_is_no_federation_and_who_answered_was_trained() -> None:
    job, names = hosting({1: {"a": ["1", "2"], "b": ["3"]}}), ClusterNames()
    clusters = KnownClusters(job)
    job.progress.versions["3"] = 1
    clusters.note_trained(names)
    assert job.progress.trained == {"3"}
    clusters.meet(names).need_somebody(1)
    hosting({}, job)
    with pytest.raises(NodeError, match="round 7: no users are connected"):
        clusters.meet(names).need_somebody(7)


def test_one_users_evaluation_that_is_not_finite_is_its_own() -> None:
    worker, report = object.__new__(Worker), Report()
    worker.report, worker.arrays, worker.kind = report, {}, "evaluate"
    metrics = {"loss": np.array([1.0, np.nan, 3.0]), "num-examples": np.array([5.0, 5.0, 5.0])}
    worker.add_evaluation(["a", "b", "c"], metrics, {})
    assert report.users == ["a", "c"] and report.metrics["loss"] == [1.0, 3.0]
    assert list(report.failed) == ["b"] and "not finite" in report.failed["b"]


def test_one_cohorts_failure_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohorts at the same node go on; the one that fails is named with what went wrong."""
    step = AsyncL2GDClient.step

    def fragile(client: AsyncL2GDClient, got: Got) -> Sent:
        if client.users[0] == "4" and client.task.round == 3:
            raise ValueError("out of luck")
        return step(client, got)

    monkeypatch.setattr(AsyncL2GDClient, "step", fragile)
    keys = {key.replace("-", "_"): value for key, value in {**ELLIPSES, **TIES}.items()}
    strategy, result, notes = federate("async-l2gd", grid=Watched(1), num_rounds=4, **keys)
    ((name, times),) = strategy.progress.dropped.items()
    assert name.startswith("cluster 1 #") and times == 1
    assert len(notes.notes) == 1 and "ValueError: out of luck" in notes.notes[0]
    assert len(result.json()[0]["per_user"]) == 12
    assert set(strategy.progress.versions.values()) == {strategy.progress.exchange}


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd", "mixed-model"])
def test_a_resume_on_other_nodes_finds_every_users_model(tmp_path: Path, name: str) -> None:
    """Three times; at last on the nodes that it began on, whose cohorts' states are old by then."""
    path, keys = tmp_path / "checkpoint", {"num_rounds": 6, "mixed_intervals": "never"}

    def run(nodes: int, *callbacks: Callback) -> Result:
        strategy = strategy_class(name)(settings(name, **keys), callbacks, "dealt anew")
        strategy.job.state_dir = str(tmp_path / f"users of {not callbacks}")
        return strategy.start(LocalGrid(app, nodes))

    whole = run(1)
    for nodes, first, last in ((3, 0, 1), (12, 1, 2), (5, 2, 3)):
        again = [Resume(path, first)] if first else []
        with pytest.raises(KeyboardInterrupt):
            run(nodes, *again, Stop(path, last + 1))
    result = run(3, Resume(path, 3))
    assert same_arrays(result.arrays, whole.arrays, 0)
    assert result.json()[0]["per_user"] == pytest.approx(whole.json()[0]["per_user"])


def test_a_resume_on_nodes_with_the_same_cohorts_is_not(tmp_path: Path) -> None:
    """Whole clusters, on one node or on three."""
    with pytest.raises(KeyboardInterrupt):
        federate("mixed-model", 1, [Stop(tmp_path / "checkpoint", 3)])
    federate("mixed-model", 3, [Resume(tmp_path / "checkpoint", 2)])
