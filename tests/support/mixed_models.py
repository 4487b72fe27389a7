"""Records of users in clusters, and what statsmodels finds in them."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

from corsage.core.arrays import Floats, Ints

INTERCEPT = np.array([0.0, 0.0, 1.0])
"""What varies if only intercepts do; the intercept is last."""


class Records(NamedTuple):
    """x (n, 3) with the column of ones last, y (n,), the user of each record, and its cluster."""

    x: Floats
    y: Floats
    user: Ints
    cluster: Ints

    @property
    def own(self) -> Ints:
        """The cluster of each user."""
        return np.array([self.cluster[self.user == i][0] for i in range(self.user.max() + 1)])

    def sums(self) -> tuple[Floats, Floats, Floats, Ints]:
        """X'X, X'y, y'y and the records of each user."""
        rows = [self.user == i for i in range(self.user.max() + 1)]
        a = np.stack([self.x[r].T @ self.x[r] for r in rows])
        b = np.stack([self.x[r].T @ self.y[r] for r in rows])
        yy = np.array([self.y[r] @ self.y[r] for r in rows])
        return a, b, yy, np.array([int(r.sum()) for r in rows])


def records(seed: int, *, slopes: float, own: float = 0.8, top: float = 0.6) -> Records:
    """Unbalanced users in 8 clusters; intercepts vary, and slopes with the deviation `slopes`."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(8), 6)
    sizes = rng.integers(3, 25, len(cluster))
    scale = np.array([slopes, slopes, 1.0])
    w = np.array([1.0, -0.5, 2.0]) + top * scale * rng.standard_normal((8, 3))
    theta = w[cluster] + own * scale * rng.standard_normal((len(cluster), 3))
    user = np.repeat(np.arange(len(cluster)), sizes)
    x = np.column_stack([rng.standard_normal(len(user)), 1 + rng.random(len(user)), user * 0 + 1.0])
    y = (x * theta[user]).sum(1) + 1.3 * rng.standard_normal(len(user))
    return Records(x, y, user, cluster[user])


class Reference(NamedTuple):
    """What statsmodels found, and what generalised least squares says at its variances.

    Parameters
    ----------
    scale, user, cluster : sigma^2, s^2, and sb^2 or 0.
    estimates, errors : of the fixed coefficients; errors are of generalised least squares.
    theirs : errors as statsmodels prints them: it takes the variances to be uncertain, too.
    loglik : the restricted log likelihood.
    """

    scale: float
    user: float
    cluster: float
    estimates: Floats
    errors: Floats
    theirs: Floats
    loglik: float


def statsmodels_fit(data: Records, *, slopes: bool, nested: bool) -> Reference:
    """The best fit: intercepts vary, or all coefficients with the same variance."""
    z = data.x if slopes else data.x[:, 2:]
    group = data.cluster if nested else data.user
    rows = [group == name for name in np.unique(group)]
    parts = {"user": [by_user(z[r], data.user[r]) for r in rows]}
    if nested:
        parts["cluster"] = [z[r] for r in rows]
    names = [[[f"{i}" for i in range(m.shape[1])] for m in mats] for mats in parts.values()]
    mats = [dict(zip(np.unique(group), own, strict=True)) for own in parts.values()]
    columns = [dict(zip(np.unique(group), own, strict=True)) for own in names]
    spec = VCSpec(list(parts), columns, mats)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixedLM(data.y, data.x, group, exog_re=None, exog_vc=spec)
        found = model.fit(reml=True, method=["powell", "lbfgs"], ftol=1e-14, xtol=1e-10)
    user, cluster = (*found.vcomp, 0.0)[:2]
    v = [found.scale * np.eye(int(r.sum())) for r in rows]
    for variance, own in zip(found.vcomp, parts.values(), strict=True):
        v = [all_ + variance * mat @ mat.T for all_, mat in zip(v, own, strict=True)]
    fisher = sum(
        data.x[r].T @ np.linalg.solve(own, data.x[r]) for r, own in zip(rows, v, strict=True)
    )
    errors = np.sqrt(np.diag(np.linalg.inv(fisher)))
    return Reference(
        found.scale, user, cluster, found.fe_params, errors, found.bse_fe, float(found.llf)
    )


def by_user(z: Floats, user: Ints) -> Floats:
    """The columns z of each user apart."""
    return np.hstack([z * (user == i)[:, None] for i in np.unique(user)])
