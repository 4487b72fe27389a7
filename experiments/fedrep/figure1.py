"""Figure 1 of FedRep: errors on the users that trained, for few and many samples a user.

Collins et al. 2021, Figure 1, in the setting of section 5.1: (d, k, n) = (20, 2, 100), noise of
variance 1e-3, m=5, 10 or 20 samples a user for good, T=500 rounds with r=0.1. What counts is the
mean over users of the squared error on new samples, beyond the noise: ||v_i - B* w_i*||^2.

- FedRep: Algorithm 2 with step 0.05; at the end every user finds its optimal head on B^T.
- FedAvg: one (B, w) for all, from the same start as FedRep, with one local step of 0.05 on both in
  a round. No model for all can be better than k - ||mean w_i*||^2, about 1.98.
- Local: a vector of d weights for each user, 250 gradient steps of 0.05 from 0. For m < d that is
  the shortest interpolator, with the error k(1 - m/d) on average. For m = d the interpolator's mean
  error is not finite, and the number says when one stops: .51 after 50 steps, .18 after 500. So 250
  is the reference's number of steps as far as it can be told from its error.

The reference was measured outside of this library with draws of its own: means of 5 seeds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from corsage.app.report import plots
from corsage.core.arrays import Floats
from corsage.experiments.fedrep.linear import Federation, Setting
from corsage.experiments.fedrep.linear_fedrep import Alternation, average, descend, solve_heads
from corsage.experiments.fedrep.linear_problem import excess_error, predictors
from corsage.experiments.outcome import Experiment, Options, Outcome
from corsage.experiments.pictures import (
    chosen_seeds,
    curve,
    diamonds,
    entitle,
    few,
    figure,
    legend,
    panels,
)

SETTING = Setting(d=20, k=2, n=100, m=10, noise=1e-3**0.5, rounds=500)
STEP, LOCAL_STEPS = 0.05, 250
REFERENCE = {  # by m
    5: {"FedRep": 0.0014, "FedAvg": 2.06, "Local": 1.51},
    10: {"FedRep": 0.00036, "FedAvg": 2.01, "Local": 1.00},
    20: {"FedRep": 0.00014, "FedAvg": 1.99, "Local": 0.25},
}
FACTOR = {"FedRep": 2.0, "FedAvg": 1.1, "Local": 1.2}
COLOURS = {"FedRep": "fedrep", "FedAvg": "fedavg", "Local": "local"}
SEEDS = 20
NOTES = [
    "Means over users and seeds, noise taken out. All steps are 0.05: one a round for FedRep and "
    "FedAvg, 250 for Local. Reference: means of 5 seeds."
]

Errors = dict[str, Floats]
"""Errors by method."""


def measure(options: Options) -> Outcome:
    """All methods for every m; quick: m=5."""
    seeds = chosen_seeds("fedrep-figure1", options, SEEDS)
    found = {m: errors(m, seeds) for m in ([5] if options.quick else REFERENCE)}
    return Outcome(
        "FedRep, Figure 1: squared error of users that trained",
        unit="squared error",
        figures=[
            figure(f"m={m}", name, values, REFERENCE[m][name], FACTOR[name])
            for m, own in found.items()
            for name, values in own.items()
        ],
        results=[as_json(m, own) for m, own in found.items()],
        notes=[*NOTES, *few(seeds, SEEDS)],
        draw=lambda theme: picture(found, theme),
    )


def errors(m: int, seeds: tuple[int, ...]) -> Errors:
    """Mean errors over users, one a seed, of each method."""
    federation = dataclasses.replace(SETTING, m=m).federation(seeds)
    problems, samples = federation.problems, federation.samples
    body = federation.run(Alternation(STEP))
    models = {
        "FedRep": predictors(body, solve_heads(body, samples)),
        "FedAvg": predictors(*averaged(federation, 1)),
        "Local": descend(samples, STEP, LOCAL_STEPS),
    }
    return {name: excess_error(own, problems.models).mean(-1) for name, own in models.items()}


def averaged(federation: Federation, count: int) -> tuple[Floats, Floats]:
    """FedAvg's body and head with `count` local steps, (S, d, k) and (S, 1, k)."""
    body, head = average(federation.start, federation.batch, federation.drawn, STEP, count)
    return body, head[..., None, :]


def as_json(m: int, found: Errors) -> dict[str, Any]:
    """Setting and errors of one m."""
    setting = dataclasses.asdict(dataclasses.replace(SETTING, m=m))
    return {"case": f"m={m}", **setting, **{name: own.tolist() for name, own in found.items()}}


def picture(found: dict[int, Errors], theme: plots.Theme) -> Drawing:
    """Errors against m; diamonds: reference."""
    drawing, ((axes,),) = panels(theme, 1, 1, plots.SIZE)
    look = plots.styles(COLOURS.values(), theme)
    for name, colour in COLOURS.items():
        curve(
            axes, list(found), np.stack([own[name] for own in found.values()]), name, look[colour]
        )
        diamonds(axes, theme, list(found), [REFERENCE[m][name] for m in found], look[colour])
    entitle(axes, theme, "n=100 users, d=20, k=2, noise variance 1e-3", "after 500 rounds, r=0.1")
    axes.set_xlabel("samples a user (m)")
    axes.set_ylabel("squared error beyond the noise")
    axes.set_xticks(list(found))
    legend(
        drawing, axes, theme, "medians of the seeds' means, middle half shaded; diamonds: reference"
    )
    return drawing


EXPERIMENT = Experiment(
    what="linear FedRep, FedAvg and local training: errors for m=5, 10, 20 samples a user",
    takes="5 s; --quick 1 s",
    measure=measure,
)
