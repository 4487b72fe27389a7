"""Clusters of local models: found where local models are good, refitted as one knows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import adjusted_rand_score

from corsage.core.errors import ConfigError
from corsage.solvers.convex_clustering.reading import refit, refit_by_slopes
from corsage.solvers.losses.softmax import SoftmaxLosses
from tests.support.at_hand import central
from tests.support.federations import federate
from tests.support.points import picked

MANY: dict[str, Any] = {"samples_per_user": 200, "fraction_train": 1.0}
TRUE = np.repeat([0, 1, 2], 4)


@pytest.mark.parametrize(
    "keys",
    [{}, {"local_clusters_number": 3}, {"local_clusters_by": "kmeans", "local_clusters_number": 3}],
)
def test_users_with_samples_enough_are_grouped_as_they_are(keys: dict[str, Any]) -> None:
    strategy, result, _ = federate("local-clusters", nodes=3, **MANY, **keys)
    labels = np.array(strategy.state.labels)
    assert adjusted_rand_score(labels, TRUE) == 1
    assert result.json()[0]["rounds"] == 1
    assert result.json()[0]["accuracy"]["mean"] > 0.87
    assert "('users in each', '4, 4, 4')" in str(strategy.findings())


def test_a_clusters_model_is_the_minimiser_of_its_sum() -> None:
    strategy, _, _ = federate("local-clusters", **MANY, local_clusters_number=3)
    losses = central(samples_per_user=200)
    for k in range(3):
        own = picked(losses, np.flatnonzero(k == TRUE))

        def total(x: Any, own: Any = own) -> float:
            return float(own.value(own.features.new_tensor(x).expand(4, -1)).sum())

        best = minimize(total, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-8})
        assert total(strategy.models[4 * k]) == pytest.approx(best.fun, rel=1e-6)  # type: ignore[attr-defined]


def test_models_without_hessians_are_those_with_them() -> None:
    """Of several classes, with a ridge and, where samples suffice, without one."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(120, 15))), torch.from_numpy(np.arange(120) % 4)
    facts: dict[str, Any] = {"classes": 4, "scale": "mean"}
    losses = SoftmaxLosses(x, y, [20] * 6, ridge=0.01, **facts)
    labels = np.array([0, 0, 1, 1, 1, 2])
    assert refit_by_slopes(losses, labels) == pytest.approx(refit(losses, labels), abs=1e-5)
    one = SoftmaxLosses(x[:, :1], y, [60, 60], **facts)
    assert refit_by_slopes(one, labels[1:3]) == pytest.approx(refit(one, labels[1:3]), abs=1e-5)


def test_k_means_must_be_told_the_number() -> None:
    with pytest.raises(ConfigError, match="it needs local-clusters-number above 0"):
        federate("local-clusters", local_clusters_by="kmeans")
