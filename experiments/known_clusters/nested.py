"""The nested model of the intercept: records in users in clusters, beside a mixed-model package.

Variances by restricted maximum likelihood from the users' sums (variances/reml.py),
the clusters' means with their deviations, and the same fitted by statsmodels on pooled records.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ConfigError
from corsage.datasets.user_data import FederatedData
from corsage.solvers.known_clusters.mixed_model import ClusterSums, by_cluster, centres
from corsage.solvers.known_clusters.variances.laplace import centre_covariance
from corsage.solvers.known_clusters.variances.reml import (
    RHO_GRID,
    Variances,
    fit,
    level_sums,
    refined_grid,
)

PARTS = ("between pupils", "between schools", "between authorities", "mean", "log likelihood")


@dataclass(frozen=True)
class Nested:
    """The model of the intercept: what was fitted, and each cluster's mean with its deviation."""

    found: Variances
    w: Floats
    deviation: Floats
    raw: Floats

    def parts(self) -> dict[str, float]:
        """The variances, and the mean."""
        found = self.found
        numbers = (
            found.sigma2,
            float(found.user[0]),
            found.cluster,
            float(found.centres.wbar[0]),
            found.loglik,
        )
        return dict(zip(PARTS, numbers, strict=True))


def nested(data: FederatedData) -> Nested:
    """Variances by restricted maximum likelihood, and the clusters' means."""
    names = np.array([data.clusters[user] for user in data.users])
    _, cluster = np.unique(names, return_inverse=True)
    y, counts = data.y, data.bounds[:, 2] - data.bounds[:, 0]
    sums = np.add.reduceat(y, data.bounds[:, 0])
    squares = np.add.reduceat(np.square(y), data.bounds[:, 0])
    return fitted(counts, sums, squares, cluster)


def fitted(counts: Ints, sums: Floats, squares: Floats, cluster: Ints) -> Nested:
    """The same from users' numbers of records, sums of labels and of squares."""
    k, grid = int(cluster.max()) + 1, RHO_GRID
    a, b = counts[:, None, None].astype(np.float64), sums[:, None]
    for _ in range(2):  # on the first grid, then on a finer one around what was found
        found = fit(level_sums(a, b, squares, counts, cluster, k, grid), common=True)
        grid = refined_grid(found)[0]
    gamma, lam = found.gamma_unit[cluster], np.full((k, 1), found.lambda_unit)
    parts = ClusterSums.of(a, b, gamma, cluster, k)
    covariance, _ = centre_covariance(parts.P, lam)
    raw = by_cluster(sums, cluster, k) / by_cluster(counts.astype(np.float64), cluster, k)
    deviation = np.sqrt(found.sigma2 * covariance[:, 0, 0])
    return Nested(found, centres(parts.P, parts.q, lam).w[:, 0], deviation, raw)


def mixedlm(data: FederatedData) -> dict[str, float]:
    """The same by statsmodels on the pooled data."""
    try:
        api: Any = importlib.import_module("statsmodels.formula.api")
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigError(f"--statsmodels fit: {error}; `pip install statsmodels`.") from error
    schools = np.repeat(data.users, data.bounds[:, 2] - data.bounds[:, 0])
    areas = [data.clusters[user] for user in schools]
    frame = pandas.DataFrame({"score": data.y, "school": schools, "area": areas})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested_in = {"school": "0 + C(school)"}
        model = api.mixedlm("score ~ 1", frame, groups="area", re_formula="1", vc_formula=nested_in)
        found = model.fit(reml=True)
    numbers = (
        found.scale,
        found.vcomp[0],
        found.cov_re.iloc[0, 0],
        found.fe_params.iloc[0],
        found.llf,
    )
    return dict(zip(PARTS, map(float, numbers), strict=True))
