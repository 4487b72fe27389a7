"""What is said at the end, out of what is known: no federation is needed for the words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from corsage import simulate
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit
from corsage.solvers.convex_clustering.reading import refitted_models
from corsage.solvers.convex_clustering.summary import Reading, fully_read, plainly_read
from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.opening import Choice
from corsage.strategies.convex_clustering.report import (
    Certificate,
    ClusterReport,
    Solved,
    bounds,
    cluster_rows,
    members,
)
from tests.support.federations import settings
from tests.support.points import points

POINTS = np.array([[0.0], [0.1], [5.0], [5.1]])
ABCD = ["a", "b", "c", "d"]


def solved(lam: float = 0.2, **choice: Any) -> Solved:
    """Four points in two groups, solved."""
    graph, found = Graph(ABCD), fit(POINTS, lam)
    return Solved(graph, Choice(lam, **choice), Certificate(3, 2.5, 1e-8, 4e-9), found.x)


def losses() -> Any:
    return points(torch.from_numpy(POINTS))


def text(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label}: {value}" for label, value in rows)


def test_in_full_the_clusters_are_certified_and_lambda_is_compared_with_theory() -> None:
    reading = fully_read(losses(), solved().solution)
    assert reading.labels == [0, 0, 1, 1]
    assert reading.distinct == 2
    assert reading.exact is True
    assert reading.gap is not None and reading.gap < 1e-10
    # nabla f_i = x - a_i: .1 apart in a cluster of two
    assert reading.theorem1 == pytest.approx(0.05)
    assert reading.necessary == pytest.approx(0.05)
    assert reading.theorem2 == pytest.approx(5.0 / (2 * (4 - 2)))


def test_without_asking_the_clusters_are_those_that_the_models_show() -> None:
    assert plainly_read(solved().solution) == Reading([0, 0, 1, 1], 2)
    alone = plainly_read(solved(0.0).solution)
    assert (alone.labels, alone.distinct) == ([0, 1, 2, 3], 4)


def test_in_part_of_the_graph_theory_says_nothing() -> None:
    pairs = Graph(ABCD, np.array([[0, 1], [2, 3]]), np.ones(2))
    found = replace(solved(), graph=pairs, models=fit(POINTS, 0.2, pairs.edges).x)
    reading = fully_read(losses(), found.solution)
    assert (reading.labels, reading.exact) == ([0, 0, 1, 1], True)
    assert reading.necessary is reading.theorem1 is reading.theorem2 is None


def test_refitted_models_are_those_of_each_cluster_alone() -> None:
    labels = np.array([0, 0, 1, 1])
    models, missing = refitted_models(losses(), labels, np.zeros((4, 1)))
    assert models.ravel() == pytest.approx([0.05, 0.05, 5.05, 5.05])
    assert missing == 0


def test_clusters_without_a_best_model_keep_their_mean() -> None:
    class Endless:
        """The second cluster's losses fall for ever."""

        n, d, dtype, device = 4, 1, torch.float64, torch.device("cpu")
        slopes = torch.tensor([0.0, 0.0, -1.0, -1.0], dtype=torch.float64)[:, None]
        curved = 1 - slopes.abs()

        def value(self, x: Any) -> Any:
            return (self.curved * x.square() / 2 + self.slopes * x).sum(1)

        def gradient(self, x: Any) -> Any:
            return self.curved * x + self.slopes

        def hessian(self, x: Any) -> Any:
            return self.curved[:, :, None].expand(4, 1, 1)

        def smoothness(self) -> Any:
            return torch.ones(4, dtype=torch.float64)

    x = np.array([[1.0], [2.0], [3.0], [5.0]])
    models, missing = refitted_models(Endless(), np.array([0, 0, 1, 1]), x)  # type: ignore[arg-type]
    assert models.ravel() == pytest.approx([0.0, 0.0, 4.0, 4.0])
    assert missing == 1


# Words.


def test_bounds_say_whether_lambda_keeps_to_them() -> None:
    reading = Reading([0, 0], 1, necessary=0.1, theorem1=0.3, theorem2=0.2)
    assert text(bounds(reading, 0.2)) == (
        "necessary: lambda at least: 0.1: yes\n"
        "sufficient, Theorem 1: at least: 0.3: no\n"
        "sufficient, Theorem 2: below: 0.2: no"
    )
    assert bounds(Reading([0, 0], 1), 0.2) == []


@pytest.mark.parametrize(
    ("reading", "words", "absent"),
    [
        (
            Reading([0, 0, 1, 1], 2, True, 1e-15),
            ["2, exact (relative", "can be narrow"],
            ["global"],
        ),
        (
            Reading([0, 0, 1, 1], 4, False, 1e-3),
            ["clusters: 2, approximate (", "models: 4"],
            ["can"],
        ),
        (Reading([0, 0, 1, 1], 2), ["clusters: 2, not certified"], ["(", "can", "refit"]),
        (Reading([0, 0, 0, 0], 1, True, 0.0), ["this is the global model"], ["can"]),
        (
            Reading([0, 1, 2, 3], 4, True, 0.0),
            ["none: every user has a model of its own (exact)"],
            ["can"],
        ),
        (Reading([0, 0, 1, 1], 2, not_refitted=1), ["without a best model: 1"], []),
        (Reading([0, 0, 1, 1], 2, not_refitted=0), [], ["without a best model"]),
    ],
)
def test_how_sure_the_clusters_are(reading: Reading, words: list[str], absent: list[str]) -> None:
    found = text(cluster_rows(reading, solved()))
    assert all(word in found for word in words)
    assert not any(word in found for word in absent)


def test_the_first_clusters_are_listed_with_their_first_users() -> None:
    users = [f"u{i}" for i in range(30)]
    rows = members(Reading([0] * 8 + list(range(1, 23)), 23), users)
    assert rows[0] == ("cluster 0", "8 users: u0, u1, u2, u3, u4, u5, ...")
    assert rows[1] == ("cluster 1", "1 users: u8")
    assert len(rows) == 12


def report(questions: int) -> ClusterReport:
    strategy = ConvexClustering(settings("convex-clustering"))
    strategy.progress.questions = questions
    return strategy.report


def test_the_solution_is_told_with_its_proof_and_what_it_cost() -> None:
    (first,) = report(1234).findings(solved(exchanges=1000), None)
    assert first.title == "solution"
    assert text(first.rows) == (
        "lambda: 0.2 (found by 1,000 exchanges)\n"
        "optimality: certified: relative gap 4e-09\n"
        "objective: 2.5\n"
        "exchanges besides the rounds: 1,234"
    )


def test_a_large_gap_is_no_certificate() -> None:
    far = Certificate(3, 2.5, 2.5, 1.0)
    (first,) = report(1).findings(replace(solved(), certificate=far), None)
    assert "optimality: far from optimal: relative gap 1e+00; more num-rounds" in text(first.rows)


@pytest.mark.parametrize("certificate", [None, Certificate(3), Certificate(3, 2.5)])
def test_what_is_not_certified_is_told_so(certificate: Certificate | None) -> None:
    found = report(1).findings(replace(solved(), certificate=certificate), Reading([0, 0, 1, 1], 2))
    assert [finding.title for finding in found] == ["solution", "clusters"]
    told = text(found[0].rows)
    assert "not certified: not all users answered" in told
    assert ("objective: 2.5" in told) == (certificate is not None and certificate.value is not None)


@pytest.mark.parametrize("in_full", [True, False])
def test_in_full_asks_and_otherwise_nothing_is_asked(in_full: bool) -> None:
    keys = {"convex_report": in_full, "num_rounds": 5, "convex_certify_every": 5}
    keys |= {"convex_lambda": 0.2}
    strategy = ConvexClustering(settings("convex-clustering", **keys))
    result = strategy.start(LocalGrid(app, 2))
    assert (strategy.progress.questions > 2) == in_full  # facts, and one certificate
    assert (strategy.state.refit is not None) == in_full
    assert len(result.summaries) == (2 if in_full else 1)


def test_every_user_its_own_is_a_finding() -> None:
    """At a small lambda nothing fuses, and the certificate says so."""
    reading = fully_read(losses(), solved(0.001).solution)
    assert reading.exact and reading.labels == [0, 1, 2, 3]
    found = text(cluster_rows(reading, solved(0.001)))
    assert "none: every user has a model of its own (exact)" in found
    assert "a larger lambda would fuse some" in found
    assert members(reading, ABCD) == []
    assert "its own" not in text(cluster_rows(fully_read(losses(), solved().solution), solved()))


def test_a_lambda_that_was_chosen_for_models_makes_no_clusters_of_a_few_users() -> None:
    reading = Reading([0, 0, 1, 2, 3], 4, exact=True)
    assert not reading.clustered(True) and reading.clustered(False)
    found = text(cluster_rows(reading, replace(solved(), choice=Choice(0.1, 7))))
    assert "none to speak of: 3 of 5 users have models of their own (exact)" in found
    assert "4, exact" in text(cluster_rows(reading, solved(0.1)))
    most = Reading([0, 0, 0, 1, 2], 3)
    assert most.alone == 2 and most.clustered(True)


def test_models_outlive_what_cannot_be_said_of_their_clusters(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of three classes of a raw table without a ridge: fused users have no best model."""

    def refused(*_: object) -> None:
        raise ModelError("no model is best for users who share one; set ridge.")

    module = "corsage.strategies.convex_clustering.report"
    monkeypatch.setattr(f"{module}.quickly_read", refused)
    found = simulate("convex-clustering", num_rounds=3, convex_lambda=0.05)["convex-clustering"]
    assert found.user(found.users[0]).arrays and found.clusters
    assert "uncertified: no model is best for users who share" in capfd.readouterr().err
