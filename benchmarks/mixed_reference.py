"""A mixed model by statsmodels: what Corsage's summary of linear models is compared with."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints


class Reference(NamedTuple):
    """What statsmodels found, and what generalised least squares says at its variances.

    Parameters
    ----------
    scale, user, cluster : sigma^2, s^2, and sb^2 or 0.
    estimates, errors : of the fixed coefficients; errors are of generalised least squares.
    loglik : the restricted log likelihood.
    """

    scale: float
    user: float
    cluster: float
    estimates: Floats
    errors: Floats
    loglik: float


def reference(x: Floats, y: Floats, z: Floats, user: Ints, cluster: Ints | None) -> Reference:
    """The restricted likelihood's best fit.

    Parameters
    ----------
    x, y : the records; fixed coefficients are those of x.
    z : the columns whose coefficients vary between users, all with the same variance.
    user, cluster : of each record; with clusters, these vary in the same columns.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    group = user if cluster is None else cluster
    rows = [group == name for name in np.unique(group)]
    parts = {"user": [by_user(z[r], user[r]) for r in rows]}
    if cluster is not None:
        parts["cluster"] = [z[r] for r in rows]
    names = [[[f"{i}" for i in range(m.shape[1])] for m in mats] for mats in parts.values()]
    mats = [dict(zip(np.unique(group), own, strict=True)) for own in parts.values()]
    columns = [dict(zip(np.unique(group), own, strict=True)) for own in names]
    spec = VCSpec(list(parts), columns, mats)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixedLM(y, x, group, exog_re=None, exog_vc=spec)
        found = model.fit(reml=True, method=["powell", "lbfgs"], ftol=1e-14, xtol=1e-10)
    own_variance, top = (*found.vcomp, 0.0)[:2]
    v = [found.scale * np.eye(int(r.sum())) for r in rows]
    for variance, own in zip(found.vcomp, parts.values(), strict=True):
        v = [all_ + variance * mat @ mat.T for all_, mat in zip(v, own, strict=True)]
    fisher = sum(x[r].T @ np.linalg.solve(own, x[r]) for r, own in zip(rows, v, strict=True))
    errors = np.sqrt(np.diag(np.linalg.inv(fisher)))
    return Reference(found.scale, own_variance, top, found.fe_params, errors, float(found.llf))


def by_user(z: Floats, user: Ints) -> Floats:
    """The columns z of each user apart."""
    return np.hstack([z * (user == i)[:, None] for i in np.unique(user)])
