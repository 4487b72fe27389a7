"""Figure 6 of FedRep: new users train a head on the body that others have learned.

Collins et al. 2021, section 5.2: train on one population, then let users of another adapt, epoch by
epoch. The paper goes from letters to digits (`dataset=femnist femnist-classes=letters-digits
new-cluster=digits partition=natural data-dir=FOLDER`). With `data-file` it is MNIST by its writers:
train on the users of cluster 0 (Census employees), adapt to those of cluster 4 (high-school
students). With neither, a fifth of Fashion-MNIST's users is new.

The paper prints curves and no numbers. Its claim is the band: after all epochs FedRep is above
local training from scratch, paired by seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from corsage.app.report import plots
from corsage.experiments.fedrep.fashion_mnist import PROTOCOL
from corsage.experiments.fedrep.table1 import WRITERS
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import Results, compact, run

METHODS = ("fedrep", "fedavg", "perfedavg", "lg-fedavg", "apfl", "l2gd", "fedprox", "local")
EPOCHS = (0, 1, 2, 5, 10, 20)
STRANGERS = {**PROTOCOL, "classes_per_user": 5, "max_train_samples": 50, "new_users": 0.2}
STUDENTS = {**WRITERS, "cluster_column": "hsf", "new_cluster": "4"}

Curves = dict[str, dict[int, tuple[float, ...]]]


def measure(options: Options) -> Outcome:
    """All methods: one training, and an evaluation of the new users for every number of epochs."""
    seeds = options.seeds or ((0,) if options.quick else (0, 1, 2))
    setting: dict[str, Any] = STUDENTS if "data_file" in options.keys else STRANGERS
    if options.keys.get("dataset") == "femnist":
        setting = {**PROTOCOL, "num_users": 0, "new_cluster": "digits", "partition": "natural"}
    keys = {**setting, "adapt_epochs": ",".join(map(str, EPOCHS)), **options.keys}
    methods = METHODS[::2] if options.quick else METHODS
    results = run([*dict.fromkeys((*methods, "local"))], seeds, **{**keys, "fine_tune_epochs": 0})
    found = {
        name.removesuffix("+new"): curve(results, name) for name in results if name.endswith("+new")
    }
    last = EPOCHS[-1]
    ahead = tuple(np.subtract(found["fedrep"][last], found["local"][last]))
    figures = [
        Figure(f"{epochs} epochs", name, values)
        for epochs in EPOCHS
        for name, values in ((n, found[n][epochs]) for n in found)
    ]
    return Outcome(
        "FedRep, Figure 6: accuracy % of new users",
        unit="points",
        figures=[*figures, Figure(f"{last} epochs", "fedrep - local", ahead, low=0.0)],
        results=compact(results, "new users"),
        draw=lambda theme: drawing(found, theme),
    )


def curve(results: Results, name: str) -> dict[int, tuple[float, ...]]:
    """The new users' accuracy in percent after each number of epochs, one a seed."""
    cases = [
        {c["epochs"]: c["accuracy"]["mean"] for c in row["new_users"]} for row in results[name]
    ]
    return {epochs: tuple(100 * case[epochs] for case in cases) for epochs in EPOCHS}


def drawing(found: Curves, theme: plots.Theme) -> Drawing:
    """Accuracy against epochs of adaptation."""
    figure, axes = plots.canvas(theme, "epochs of adaptation", "accuracy of new users (%)")
    axes.set_xticks(EPOCHS)
    look = plots.styles(found, theme)
    ends = {}
    for name, own in found.items():
        means = np.array([np.mean(values) for values in own.values()])
        plots.draw(axes, (np.array(list(own)), means), name, look[name])
        ends[name] = float(means[-1])
    plots.label_ends(axes, ends, look)
    return figure


EXPERIMENT = Experiment(
    what="new users adapt to what others have learned (data-file=: MNIST by writer)",
    takes="6 min; --quick 1 min",
    measure=measure,
)
