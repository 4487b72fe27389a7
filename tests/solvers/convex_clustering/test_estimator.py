"""The estimator: what scikit-learn expects of it, the optimum, its path and its tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from scipy.sparse import csr_array
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import check_estimator

from corsage import ConvexClustering
from corsage.solvers.convex_clustering import estimator
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution, fit, gap
from corsage.solvers.convex_clustering.points_path import (
    DIMENSIONS,
    LOG_STEP,
    SIZES,
    STRETCHES,
    Split,
    dimension,
    longest,
    threshold,
)
from tests.support.convex_problems import random

TRUE = np.repeat(np.arange(3), 8)
CENTRES = np.array([[0.0, 0.0], [3.0, 0.0], [1.5, 2.6]])
POINTS = CENTRES[TRUE] + 0.4 * random(3).normal(size=(24, 2))


@pytest.mark.slow
def test_scikit_learn_has_nothing_to_say() -> None:
    check_estimator(ConvexClustering())


@pytest.mark.parametrize("keys", [{}, {"n_neighbors": None, "gamma": 4.0}, {"n_neighbors": 5}])
def test_blobs_are_found_without_a_number_of_clusters(keys: dict) -> None:
    found = ConvexClustering(**keys).fit(POINTS)
    assert adjusted_rand_score(found.labels_, TRUE) == 1
    assert found.cluster_centers_.shape == (3, 2)
    assert found.certificate_ <= 1e-6
    assert found.path_.clusters[0] <= 3


def test_the_solution_is_certified_by_its_own_duals_and_at_lambda() -> None:
    found = ConvexClustering(0.03, n_neighbors=None, gamma=0.0).fit(POINTS)
    x = found.cluster_centers_[found.labels_]
    mu = np.zeros((len(Edges.all_pairs(24)), 2))
    assert found.lam_ == 0.03
    assert gap(POINTS, x, mu, 0.03) >= found.certificate_
    assert ConvexClustering(0.0).fit(POINTS).cluster_centers_ == pytest.approx(POINTS, abs=1e-14)
    assert ConvexClustering(100.0, n_neighbors=None).fit_predict(POINTS).max() == 0


def test_clusters_at_a_lambda_are_proved_and_those_of_a_rough_solution_are_not_believed() -> None:
    line = np.array([[0.0], [1.0], [5.0]])  # 2 lam, 1 and 5 - 2 lam: two meet at 1/2, all at 3/2
    for lam, labels in [(0.45, [0, 1, 2]), (0.6, [0, 0, 1]), (1.6, [0, 0, 0])]:
        found = ConvexClustering(lam, n_neighbors=None, gamma=0.0, tol=0.1).fit(line)
        assert found.partition_certified_ is True
        assert found.labels_.tolist() == labels
    assert ConvexClustering().fit(line).partition_certified_ is None


def test_equal_points_are_one_cluster_though_no_edge_joins_them() -> None:
    points = np.repeat([[0.0], [1.0], [5.0], [0.0]], [3, 3, 3, 3], axis=0)
    labels = ConvexClustering(0.001, n_neighbors=2).fit_predict(points)
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3


def test_the_tree_cut_at_a_lambda_has_the_clusters_of_the_path_there() -> None:
    found = ConvexClustering(n_neighbors=None).fit(POINTS)
    assert is_valid_linkage(found.merges_)
    assert (np.diff(found.merges_[:, 2]) >= 0).all()
    assert found.path_.clusters[-1] >= 0.8 * len(POINTS)
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
    assert (found.cluster_centers_ - shift) / unit == pytest.approx(
        usual.cluster_centers_, abs=1e-7
    )
    assert found.path_.lams / unit == pytest.approx(usual.path_.lams, rel=1e-7)


def test_any_lambda_that_is_large_joins_all() -> None:
    assert ConvexClustering(1e300).fit_predict(POINTS).max() == 0
    assert ConvexClustering(np.inf).fit_predict(POINTS).max() == 0
    far = np.concatenate([POINTS, POINTS + 1e3])
    pieces = np.repeat([0, 1], 24)
    assert (ConvexClustering(np.inf, n_neighbors=12).fit_predict(far) == pieces).all()
    assert ConvexClustering(gamma=1e300).fit_predict(POINTS).max() >= 0


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 24])
def test_as_many_clusters_as_are_wanted(wanted: int) -> None:
    found = ConvexClustering(n_clusters=wanted).fit(POINTS)
    assert len(np.unique(found.labels_)) == len(found.cluster_centers_) == wanted
    if wanted == 3:
        assert adjusted_rand_score(found.labels_, TRUE) == 1


def test_pieces_of_the_graph_are_joined_and_taken_apart_for_a_number_of_clusters() -> None:
    far = np.concatenate([POINTS, POINTS + 100, POINTS + np.array([120, 90])])
    near = ConvexClustering(n_neighbors=4, n_clusters=2).fit_predict(far)
    assert (near == np.repeat([0, 1, 1], 24)).all()
    two = np.repeat([[0.0], [1.0], [2.0]], 5, axis=0)
    assert (ConvexClustering(n_clusters=3).fit_predict(two) == np.repeat([0, 1, 2], 5)).all()


def test_what_makes_no_number_of_clusters_is_refused() -> None:
    with pytest.raises(ValueError, match="n_clusters=3: there are 2 different points only"):
        ConvexClustering(n_clusters=3).fit([[0.0], [0.0], [1.0]])
    with pytest.raises(ValueError, match="lam must be 'auto'"):
        ConvexClustering(0.1, n_clusters=3).fit(POINTS)
    with pytest.raises(TypeError, match="dense data is required"):
        ConvexClustering().fit(csr_array(POINTS))


def test_new_points_go_with_the_nearest_even_where_clusters_are_bent() -> None:
    points, moons = make_moons(200, noise=0.05, random_state=5)
    found = ConvexClustering().fit(points)
    assert adjusted_rand_score(found.labels_, moons) == 1
    assert (found.predict(points) == found.labels_).all()
    fresh, groups = make_moons(100, noise=0.05, random_state=6)
    assert adjusted_rand_score(found.predict(fresh), groups) == 1


def test_noise_is_one_cluster_and_a_split_must_last() -> None:
    assert ConvexClustering().fit_predict(random(1).uniform(size=(60, 2))).max() == 0
    labels = np.array([[0, 0, 0, 0]] * 3 + [[0, 0, 1, 1]] * 4 + [[0, 1, 2, 3]] * 9)
    assert longest(labels, 2) == Split(4 * LOG_STEP, 5)
    assert longest(labels, 3) == Split()
    assert longest(labels, 1, most=2) == Split(4 * LOG_STEP, 5)
    assert threshold(10**6, 10**6) == STRETCHES[-1][-1]
    assert threshold(SIZES[0], DIMENSIONS[1]) == pytest.approx(STRETCHES[1][0])


def test_dimensions_are_read_along_the_graph_and_a_bent_band_has_one() -> None:
    rng = random(2)
    angle = rng.uniform(0, np.pi, 200)
    band = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.03 * rng.normal(size=(200, 2))
    for points, low, high in [(band, 1.0, 1.2), (rng.uniform(size=(200, 2)), 1.7, 2.0)]:
        assert low <= dimension(points, Edges.knn(points, 10), np.arange(200)) <= high
    equal = np.zeros((6, 3))
    assert dimension(equal, Edges.all_pairs(6), np.arange(6)) == 3


def test_who_is_not_certified_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*args: Any, **keys: Any) -> Solution:
        return replace(fit(*args, **keys), relative_gap=1.0)

    monkeypatch.setattr(estimator, "fit", stuck)
    monkeypatch.setattr(estimator, "proved", lambda points, found, graph: found)
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        ConvexClustering(0.1).fit(POINTS)
