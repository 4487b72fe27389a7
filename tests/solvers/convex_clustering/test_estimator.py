"""The estimator: what scikit-learn expects of it, the optimum, its path and its tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import check_estimator

from corsage import ConvexClustering
from corsage.solvers.convex_clustering import estimator
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution, fit, gap
from tests.support.convex_problems import random

TRUE = np.repeat(np.arange(3), 8)
CENTRES = np.array([[0.0, 0.0], [3.0, 0.0], [1.5, 2.6]])
POINTS = CENTRES[TRUE] + 0.4 * random(3).normal(size=(24, 2))


@pytest.mark.parametrize("lam", [1.0, pytest.param("auto", marks=pytest.mark.slow)])
def test_scikit_learn_has_nothing_to_say(lam: float | str) -> None:
    check_estimator(ConvexClustering(lam))


@pytest.mark.parametrize("keys", [{}, {"n_neighbors": None, "gamma": 4.0}, {"n_neighbors": 5}])
def test_blobs_are_found_without_a_number_of_clusters(keys: dict) -> None:
    found = ConvexClustering(**keys).fit(POINTS)
    assert adjusted_rand_score(found.labels_, TRUE) == 1
    assert found.centers_.shape == (3, 2)
    assert found.certificate_ <= 1e-6
    assert found.path_.clusters[0] <= 3


def test_the_solution_is_certified_by_its_own_duals_and_at_lambda() -> None:
    found = ConvexClustering(0.03, n_neighbors=None, gamma=0.0).fit(POINTS)
    x = found.centers_[found.labels_]
    mu = np.zeros((len(Edges.all_pairs(24)), 2))
    assert found.lam_ == 0.03
    assert gap(POINTS, x, mu, 0.03) >= found.certificate_
    assert ConvexClustering(0.0).fit(POINTS).centers_ == pytest.approx(POINTS, abs=1e-14)
    assert ConvexClustering(100.0, n_neighbors=None).fit_predict(POINTS).max() == 0


def test_equal_points_are_one_cluster_though_no_edge_joins_them() -> None:
    points = np.repeat([[0.0], [1.0], [5.0], [0.0]], [3, 3, 3, 3], axis=0)
    labels = ConvexClustering(0.001, n_neighbors=2).fit_predict(points)
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3


def test_the_tree_cut_at_a_lambda_has_the_clusters_of_the_path_there() -> None:
    found = ConvexClustering(n_neighbors=None).fit(POINTS)
    assert is_valid_linkage(found.merges_)
    for lam, labels in zip(found.path_.lams, found.path_.labels, strict=True):
        cut = fcluster(found.merges_, lam * (1 + 1e-9), "distance") - 1
        assert adjusted_rand_score(cut, labels) == 1


def test_lists_are_taken_and_a_row_alone_is_refused_as_scikit_learn_does() -> None:
    assert ConvexClustering(0.1).fit_predict(POINTS.tolist()).shape == (24,)
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        ConvexClustering().fit(POINTS[:, 0])
    with pytest.raises(ValueError, match="'lam' parameter of ConvexClustering must be"):
        ConvexClustering(-1.0).fit(POINTS)
    with pytest.raises(NotFittedError):
        ConvexClustering().path_  # noqa: B018


def test_plots_of_ones_own_data() -> None:
    mpl.use("Agg")
    from matplotlib.figure import Figure

    one, other = Figure().subplots(1, 2)
    found = ConvexClustering(n_neighbors=None).fit(POINTS)
    assert found.plot_path(one) is one and len(one.lines) == 48
    assert found.plot_dendrogram(other) is other and other.get_yscale() == "log"


@pytest.mark.parametrize(("unit", "shift"), [(1e-200, 0), (1e12, 0), (1e200, 0), (1, 1e7)])
def test_units_and_places_change_nothing(unit: float, shift: float) -> None:
    usual = ConvexClustering().fit(POINTS)
    found = ConvexClustering().fit(POINTS * unit + shift)
    assert (found.labels_ == usual.labels_).all()
    assert found.certificate_ <= 1e-6
    assert found.lam_ / unit == pytest.approx(usual.lam_, rel=1e-7)
    assert (found.centers_ - shift) / unit == pytest.approx(usual.centers_, abs=1e-7)
    assert found.path_.lams / unit == pytest.approx(usual.path_.lams, rel=1e-7)


def test_any_lambda_that_is_large_joins_all() -> None:
    assert ConvexClustering(1e300).fit_predict(POINTS).max() == 0
    assert ConvexClustering(gamma=1e300).fit_predict(POINTS).max() >= 0


def test_who_is_not_certified_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*args: Any, **keys: Any) -> Solution:
        return replace(fit(*args, **keys), certified=False)

    monkeypatch.setattr(estimator, "fit", stuck)
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        ConvexClustering(0.1).fit(POINTS)
