"""Figure 5 of FedRep: more local epochs never hurt FedRep, but they hurt FedAvg.

Collins et al. 2021, section 5.2: 100 users with S=2 classes, E epochs of the head for FedRep (one
of the body), E epochs of the whole model for FedAvg. The paper uses CIFAR10 and prints a curve, no
numbers; here it is Fashion-MNIST with 50 samples a user. What it claims are the bands: FedRep at E
is not worse than at any smaller E by more than the noise of the seeds, and FedAvg is worse at the
largest E than at its best. The second does not come out here: FedAvg gains from more epochs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from corsage.app.report import plots
from corsage.experiments.fedrep.fashion_mnist import PROTOCOL
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import compact, percents, run, say

EPOCHS = (1, 2, 5, 10, 20)
NOISE = 1.0  # points: half the spread of a mean of three seeds in this regime
SETTING: dict[str, Any] = {**PROTOCOL, "classes_per_user": 2, "max_train_samples": 50}


def measure(options: Options) -> Outcome:
    """Both methods for every number of epochs."""
    seeds = options.seeds or ((0,) if options.quick else (0, 1, 2))
    epochs = EPOCHS[::2] if options.quick else EPOCHS
    keys = {**SETTING, **options.keys, "fine_tune_epochs": 0}
    errors: dict[str, dict[int, tuple[float, ...]]] = {"fedrep": {}, "fedavg": {}}
    outcome = Outcome("FedRep, Figure 5: error % after E local epochs a round", unit="points")
    for number in epochs:
        say(f"E={number}")
        found = run(["fedrep"], seeds, **{**keys, "head_epochs": number})
        found |= run(["fedavg"], seeds, **{**keys, "local_epochs": number})
        for name, own in errors.items():
            own[number] = tuple(100 - value for value in percents(found, name))
        outcome.results += compact(found, f"E={number}")
    outcome.figures = [
        Figure(f"E={number}", name, values)
        for number in epochs
        for name, values in ((n, errors[n][number]) for n in errors)
    ]
    outcome.figures += claims(errors)
    outcome.draw = lambda theme: drawing(errors, theme)
    return outcome


def claims(errors: dict[str, dict[int, tuple[float, ...]]]) -> list[Figure]:
    """What the paper says of the curves, paired by seed."""
    fedrep, fedavg = (np.array(list(errors[name].values())) for name in ("fedrep", "fedavg"))
    below = np.minimum.accumulate(fedrep.mean(axis=1))
    worst = float((fedrep.mean(axis=1) - below).max())
    best = int(fedavg.mean(axis=1).argmin())
    hurt = tuple(float(x) for x in fedavg[-1] - fedavg[best])
    return [
        Figure("claims", "fedrep is hurt by", (worst,), high=NOISE),
        Figure("claims", "fedavg is hurt by", hurt, low=NOISE),
    ]


def drawing(errors: dict[str, dict[int, tuple[float, ...]]], theme: plots.Theme) -> Drawing:
    """Error against E, the seeds as dots."""
    figure, axes = plots.canvas(theme, "local epochs E", "test error (%)")
    look = plots.styles(errors, theme)
    for name, own in errors.items():
        means = np.array([np.mean(values) for values in own.values()])
        plots.draw(axes, (np.array(list(own)), means), name, look[name])
        for number, values in own.items():
            axes.plot(
                [number] * len(values), values, "o", ms=3, color=look[name]["color"], alpha=0.5
            )
    axes.set_xscale("log")
    axes.set_xticks(list(EPOCHS), [str(number) for number in EPOCHS])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    what="error of FedRep and FedAvg against the number of local epochs",
    takes="3 min; --quick 40 s",
    measure=measure,
)
