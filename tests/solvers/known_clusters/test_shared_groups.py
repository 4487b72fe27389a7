"""Clusters that appear from users' sums: three that are there, and one that is all."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.proposals import proposals
from corsage.solvers.convex_clustering.reading import in_order
from corsage.solvers.known_clusters.variances.shared_groups import groups
from corsage.solvers.known_clusters.variances.shared_rows import Rows, fit


def users(groups_there: int, seed: int, n: int = 24, m: int = 15) -> tuple[Rows, Ints]:
    """Sums of users in so many groups, each with a little of its own."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups_there, 6, 3))
    labels = np.arange(n) % groups_there
    parts: list[tuple[Floats, Floats, float]] = []
    for c in labels:
        z = rng.normal(size=(m, 6))
        theta = centres[c] + 0.2 * rng.normal(size=(6, 3))
        y = z @ theta + rng.normal(size=(m, 3))
        parts.append((z.T @ z, z.T @ y, float(np.square(y).sum())))
    a, b, yy = (np.stack(part) for part in zip(*parts, strict=True))
    return Rows(a, b, yy, np.full(n, float(m))), in_order(labels)


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_are_there_are_found(seed: int) -> None:
    """With the number of groups, and the fit of those who are told."""
    rows, labels = users(3, seed)
    found = groups(rows, proposals)
    assert adjusted_rand_score(found.labels, labels) == 1.0
    assert found.shared.deviance == pytest.approx(fit(rows, labels, 3).deviance)
    assert found.gain > 0


@pytest.mark.parametrize("seed", range(3))
def test_one_group_stays_one(seed: int) -> None:
    found = groups(users(1, seed)[0], proposals)
    assert not found.labels.any() and found.source == "one"


def test_two_users_are_one_cluster() -> None:
    """Fewer than three cannot be told apart."""
    rows = users(1, 0, n=2)[0]
    assert groups(rows, proposals).labels.tolist() == [0, 0]
