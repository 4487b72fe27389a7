"""Chemistry A-levels: pupils in schools in authorities, personal models against pooled ones.

`dataset=chem97`: a user is a school with two pupils or more, a known cluster its local education
authority. A fifth of each school's pupils are held out; what is measured is the root mean squared
error of their point scores, over all pupils. Models are of the intercept alone, with the average
GCSE score, and with gender and age besides. Strengths are estimated, by restricted maximum
likelihood from one exchange of sums.

With the intercept alone and all pupils this is the usual nested model of a mixed-model package, and
its variances must be those of statsmodels' MixedLM on the pooled data: they are stored, or fitted
anew with `--statsmodels fit`. Of the variance 1.4 % is between authorities: knowing them cannot
gain much over one centre for all schools (`single-cluster`), and the bands say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing

from corsage.app.report import plots
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.keys import kebab
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.user_data import FederatedData
from corsage.experiments.known_clusters.nested import PARTS, Nested, mixedlm, nested
from corsage.experiments.known_clusters.scores import root_mean_square
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import entitle, few
from corsage.experiments.runner import say
from corsage.solvers.known_clusters.variances.reml import shares

SEEDS, LEAST, NORMAL = 5, 2, 1.96
DATA: dict[str, Any] = {
    "dataset": "chem97",
    "partition": "natural",
    "num_users": 0,
    "min_samples": LEAST,
    "model": "linear",
    "evaluate_every": 10**6,
}
FEATURES = {
    "intercept": "none",
    "gcsecnt": "gcsecnt",
    "gcsecnt, gender, age": "gcsecnt,gender,age",
}
MIXED, ONE, CV, LOCAL, SINGLE, CLUSTER, COINS = (
    "mixed-model", "single-cluster", "single-cluster, cv", "exact-local", "exact-global",
    "exact-cluster", "async-l2gd, 5,000 steps",
)  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    SINGLE: ("exact-global", {}),
    CLUSTER: ("exact-cluster", {}),
    LOCAL: ("exact-local", {}),
    ONE: ("single-cluster", {}),
    CV: ("single-cluster", {"single_cluster_lambda": "cv"}),
    MIXED: ("mixed-model", {}),
}
ITERATIONS = {"known_iterations": 5000}
BEHIND = 0.005  # what the mixed model may be behind one centre for all
STATSMODELS = dict(zip(PARTS, (8.513270, 2.725159, 0.154430, 5.349412, -78498.812742), strict=True))
VERSION = "0.15.0"
CLOSE = 3e-3  # relative difference of variances: MixedLM stops that far from its optimum
LOWER = 1e-4  # log likelihood
NOTES = (
    "RMSE of held-out pupils' scores (0 to 10), all pupils alike. Variances: of all pupils.",
    "One centre for all (single-cluster) has one strength for all coefficients: age is in months, "
    "so with it they are tied more than they should be. The mixed model fits a covariance.",
)
Errors = dict[str, dict[str, tuple[float, ...]]]
"""RMSE by features and method, one a seed."""


def measure(options: Options) -> Outcome:
    """Held-out errors for every seed of the split; quick: one seed, the intercept alone."""
    if options.keys:
        words = ", ".join(f"{kebab(k)}={v}" for k, v in options.keys.items())
        raise ConfigError(f"{words}: known-clusters-chem97 has no keys to change; leave it out.")
    seeds = options.seeds or ((0,) if options.quick else tuple(range(SEEDS)))
    features = dict(list(FEATURES.items())[: 1 if options.quick else None])
    errors = {title: held_out(columns, seeds) for title, columns in features.items()}
    if not options.quick:
        keys = {**DATA, **ITERATIONS, "feature_columns": FEATURES["intercept"], "seed": seeds[0]}
        errors["intercept"][COINS] = (root_mean_square("async-l2gd", keys),)
    found = nested(everyone())
    again = options.choices.get("statsmodels") == "fit"
    reference = mixedlm(everyone()) if again else STATSMODELS
    whose = version("statsmodels") if again else VERSION
    return Outcome(
        "Chem97: schools in authorities",
        unit="",
        figures=[*predictions(errors), *components(found, reference)],
        results=[{"rmse": errors, "seeds": seeds, "variances": found.parts()}],
        notes=[
            *few(seeds, SEEDS),
            *NOTES,
            f"Reference: MixedLM of statsmodels {whose}; it stops a little short of its optimum.",
        ],
        draw=lambda theme: picture(found, errors, theme),
    )


def held_out(columns: str, seeds: Sequence[int]) -> dict[str, tuple[float, ...]]:
    """Every method's error, one a seed."""
    say(f"features {columns}: {len(METHODS)} methods, {len(seeds)} splits")
    keys = {**DATA, "feature_columns": columns}
    return {
        label: tuple(root_mean_square(name, {**keys, **own, "seed": seed}) for seed in seeds)
        for label, (name, own) in METHODS.items()
    }


def everyone() -> FederatedData:
    """All pupils, the intercept alone."""
    keys = {**DATA, "feature_columns": FEATURES["intercept"]}
    return simulated(Config.parse({kebab(k): v for k, v in keys.items()}).data, 0, 0)


# What comes out.


def predictions(errors: Errors) -> list[Figure]:
    """Errors, and the mixed model's less those of the others, paired by split."""
    shown = []
    highs = {LOCAL: 0.0, SINGLE: 0.0, CLUSTER: 0.0, ONE: BEHIND}
    for title, own in errors.items():
        case = f"RMSE, {title}"
        shown += [Figure(case, name, values, form=".3f") for name, values in own.items()]
        for name, high in highs.items():
            gaps = tuple(np.subtract(own[MIXED], own[name]).tolist())
            shown.append(Figure(case, f"{MIXED} - {name}", gaps, high=high, form=".3f"))
    return shown


def components(found: Nested, reference: dict[str, float]) -> list[Figure]:
    """Variances beside statsmodels', and their shares: intraclass correlations."""
    case, shown = "variances, intercept", []
    for (name, value), known in zip(found.parts().items(), reference.values(), strict=True):
        whole = name == PARTS[-1]
        low, high = (
            (known - LOWER, math.inf) if whole else (known * (1 - CLOSE), known * (1 + CLOSE))
        )
        shown.append(Figure(case, name, (value,), known, low, high, form=".5f"))
    parts = zip(PARTS, shares(found.found), strict=False)
    percents = [Figure("share of the variance, %", name, (100 * part,)) for name, part in parts]
    return [*shown, *percents]


def picture(found: Nested, errors: Errors, theme: plots.Theme) -> Drawing:
    """The authorities with their intervals, and the errors of the methods."""
    drawing = Drawing(figsize=(10.5, 5.2), dpi=plots.DPI, facecolor=theme.paper)
    drawing.set_layout_engine("constrained")
    FigureCanvasAgg(drawing)
    left, right = drawing.subplots(1, 2, width_ratios=(1.7, 1))
    caterpillar(left, found, theme)
    dots(right, errors, theme)
    return drawing


def caterpillar(axes: Axes, found: Nested, theme: plots.Theme) -> None:
    """Each authority's mean, shrunk, with its 95 % interval; hollow: the plain mean of pupils."""
    plots.dress(axes, theme, "authorities, from the lowest to the highest", "mean point score")
    order, at = np.argsort(found.w), np.arange(len(found.w))
    w, reach = found.w[order], NORMAL * found.deviation[order]
    middle = float(found.found.centres.wbar[0])
    apart = np.abs(w - middle) > reach
    axes.axhline(middle, color=theme.ink, lw=1)
    for mask, colour in ((~apart, theme.lines[2]), (apart, theme.lines[1])):
        axes.vlines(at[mask], (w - reach)[mask], (w + reach)[mask], color=colour, lw=1.4)
        axes.plot(at[mask], w[mask], "o", ms=3.5, color=colour)
    axes.plot(at, found.raw[order], "o", ms=3, mfc="none", mec=theme.lines[0], mew=0.7, alpha=0.6)
    words = (
        f"95 % intervals; {int(apart.sum())} of {len(w)} apart from the middle; hollow: plain means"
    )
    entitle(axes, theme, "Local education authorities, intercept alone", words)
    axes.set_xlim(-1.5, len(w) + 0.5)


def dots(axes: Axes, errors: Errors, theme: plots.Theme) -> None:
    """The error of each method, a dot a split, relative to the mixed model's."""
    plots.dress(axes, theme, "", "")
    axes.grid(visible=False)
    axes.grid(axis="x", color=theme.faint, linewidth=0.8)
    labels: list[str] = []
    for title, own in errors.items():
        labels.append(title)
        for name in METHODS:
            gaps = 100 * (np.divide(own[name], own[MIXED]) - 1)
            row, colour = len(labels), theme.lines[0 if name == MIXED else 2]
            axes.plot(gaps, [row] * len(gaps), "o", ms=4, color=colour, alpha=0.45)
            axes.plot([gaps.mean()], [row], "D", ms=6, color=colour)
            labels.append(f"{name}  {np.mean(own[name]):.3f}")
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5)
    for place, text in enumerate(axes.get_yticklabels()):
        text.set_fontweight("bold" if labels[place] in errors else "normal")
    axes.invert_yaxis()
    axes.axvline(0, color=theme.lines[0], lw=1)
    axes.set_xlim(-1, 12.5)
    axes.set_xlabel("% above the mixed model", color=theme.ink)
    entitle(axes, theme, "RMSE of held-out pupils", "diamonds: means; beyond 12 %: not drawn")


EXPERIMENT = Experiment(
    what="chem97: pupils in schools in authorities; prediction, variances, statsmodels beside",
    takes="50 s; --quick 5 s",
    measure=measure,
    choices={"statsmodels": ("stored", "fit")},
)
