"""Figure 4 of FedRep: users that come later need only k samples, not d.

Collins et al. 2021, section 5.1: FedRep and FedAvg train on n=100 users as in Figure 1, (d, k) =
(20, 2), m=10 samples a user. A new user with m_new samples finds its optimal head on the body that
they learned, or trains a vector of d weights by itself. What counts is the squared error on new
samples, beyond the noise, of 200 new users.

With m_new = k some users' samples are all but dependent, and the mean error of optimal heads is not
finite: for FedRep and FedAvg the median over users counts. Local training, which takes as many
steps as in Figure 1, is counted by its mean: k(1 - m_new/d) for m_new < d.

The reference was measured outside of this library with draws of its own. It says nothing of
FedAvg, the paper that its error is large. That holds for one local step a round. With five, FedAvg
learns the representation too, if less exactly (Collins, Hassani, Mokhtari, Shakkottai: "FedAvg with
Fine Tuning: Local Updates Lead to Representation Learning", NeurIPS 2022); it is shown beside.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from corsage.app.report import plots
from corsage.core.arrays import Floats
from corsage.experiments.fedrep.figure1 import LOCAL_STEPS, SETTING, STEP, averaged
from corsage.experiments.fedrep.linear import Setting
from corsage.experiments.fedrep.linear_fedrep import Alternation, descend, solve_heads
from corsage.experiments.fedrep.linear_problem import Samples, excess_error, predictors
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

NEW_USERS = 200
REFERENCE: dict[int, dict[str, float]] = {  # by m_new: FedRep median, Local mean
    1: {"FedRep": 0.95, "Local": 1.89},
    2: {"FedRep": 0.0033, "Local": 1.80},
    3: {"FedRep": 0.0010, "Local": 1.70},
    5: {"FedRep": 0.0005, "Local": 1.48},
    10: {"FedRep": 0.0002, "Local": 1.00},
    20: {"FedRep": 0.0001, "Local": 0.26},
}
COLOURS = {
    "FedRep": "fedrep",
    "FedAvg, 1 step": "fedavg",
    "FedAvg, 5 steps": "fedavg+ft",
    "Local": "local",
}
FACTOR = {"FedRep": 2.0, "Local": 1.2}
SEEDS = 20
NOTES = [
    "Over 200 new users the median of FedRep and FedAvg and the mean of Local, noise taken out; "
    "means over seeds. FedAvg with one local step a round does not find the representation (the "
    "paper's claim), with five it nearly does."
]

Errors = dict[str, Floats]


def measure(options: Options) -> Outcome:
    """All methods for every m_new."""
    seeds = chosen_seeds("fedrep-figure4", options, SEEDS)
    found = errors(SETTING, seeds)
    return Outcome(
        "FedRep, Figure 4: squared error of new users",
        unit="squared error",
        figures=[
            figure(f"m_new={m}", name, values, REFERENCE[m].get(name), FACTOR.get(name, 1.0))
            for m, own in found.items()
            for name, values in own.items()
        ],
        results=[as_json(m, own) for m, own in found.items()],
        notes=[*NOTES, *few(seeds, SEEDS)],
        draw=lambda theme: picture(found, theme),
    )


def errors(setting: Setting, seeds: tuple[int, ...]) -> dict[int, Errors]:
    """What counts of each method by m_new, one a seed; the bodies are learned once."""
    federation = setting.federation(seeds)
    bodies = {
        "FedRep": federation.run(Alternation(STEP)),
        "FedAvg, 1 step": averaged(federation, 1)[0],
        "FedAvg, 5 steps": averaged(federation, 5)[0],
    }
    newcomers = federation.problems.newcomers(NEW_USERS)
    found = {}
    for m in REFERENCE:
        samples = newcomers.samples(m, "new", m)
        found[m] = {
            name: np.median(excess_error(adapted(body, samples), newcomers.models), axis=-1)
            for name, body in bodies.items()
        }
        local = descend(samples, STEP, LOCAL_STEPS)
        found[m]["Local"] = excess_error(local, newcomers.models).mean(-1)
    return found


def adapted(body: Floats, samples: Samples) -> Floats:
    """New users' models: their optimal heads on a body that stays."""
    return predictors(body, solve_heads(body, samples))


def as_json(m: int, found: Errors) -> dict[str, Any]:
    """Setting and errors of one m_new."""
    setting = {**dataclasses.asdict(SETTING), "m_new": m, "new_users": NEW_USERS}
    return {"case": f"m_new={m}", **setting, **{name: own.tolist() for name, own in found.items()}}


def picture(found: dict[int, Errors], theme: plots.Theme) -> Drawing:
    """Errors against m_new; diamonds: reference."""
    drawing, ((axes,),) = panels(theme, 1, 1, plots.SIZE)
    look = plots.styles(COLOURS.values(), theme)
    for name, colour in COLOURS.items():
        curve(
            axes, list(found), np.stack([own[name] for own in found.values()]), name, look[colour]
        )
        known = {m: REFERENCE[m][name] for m in found if name in REFERENCE[m]}
        diamonds(axes, theme, list(known), list(known.values()), look[colour])
    entitle(
        axes,
        theme,
        "trained on n=100 users, d=20, k=2, m=10, noise variance 1e-3",
        "over 200 new users: medians of FedRep and FedAvg, means of Local",
    )
    axes.set_xscale("log")
    axes.set_xticks(list(found), [str(m) for m in found])
    axes.minorticks_off()
    axes.set_xlabel("samples of the new user (m_new)")
    axes.set_ylabel("squared error beyond the noise")
    legend(drawing, axes, theme, "medians over the seeds, middle half shaded; diamonds: reference")
    return drawing


EXPERIMENT = Experiment(
    what="linear FedRep, FedAvg and local training: errors of new users with few samples",
    takes="3 s; --quick 1 s",
    measure=measure,
)
