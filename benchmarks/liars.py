"""Every strategy among liars: what honest users lose, and whether the liars are named.

21 users in three clusters of seven, each a node of its own, of whom 1, 2 or 4 lie, never most of a
cluster. A lie is told in every exchange of training; evaluations are true. What is lost is counted
on the honest users, from the run in which nobody lies: points of accuracy, or per cent of RMSE. A
liar is named if the run says its id where it said none without the lie.

python -m corsage.benchmarks liars [NAME ...] [--lies NAME,NAME] [--liars 1,2,4] [--quick]
    [--robust RULE,RULE] [--json FILE]
    a line for each strategy and rule when it has it; at the end the table of docs/results.md.
    --quick: one liar, the worst half of the lies, without rules. With --json what the file has
    already is not run again: a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from corsage.app.client_app import make_client_app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.attack import Forgery, Lie, client_of, forging, lying, times
from corsage.core.arrays import Array
from corsage.core.configuration.config import Config
from corsage.core.errors import CorsageError
from corsage.core.registry import ALGORITHMS, source
from corsage.core.seeding import generator
from corsage.strategies import strategy_class
from corsage.strategies.rounds import loop
from corsage.strategies.rounds.callbacks import Callback

USERS = 21
LIARS = {1: ("3",), 2: ("3", "10"), 4: ("3", "5", "10", "17")}
HELD = 3.0
"""Points, or per cent, within which a lie is said to be held."""


def noise(name: str, true: Array, came: Array) -> Array:
    """Normal numbers a thousand wide."""
    return 1e3 * generator(0, "a liar's noise", name, true.size).normal(size=true.shape)


def some_noise(name: str, true: Array, came: Array) -> Array:
    """The truth, and a tenth of its size in noise."""
    rng = generator(0, "a liar's noise", name, true.size)
    return np.asarray(true + 0.1 * np.abs(true).mean() * rng.normal(size=true.shape))


LIES: dict[str, Lie] = {
    "turned": times(-1.0),
    "ten times turned": times(-10.0),
    "a thousand times": times(1e3),
    "a million times": times(1e6),
    "values turned": lambda name, true, came: -true,
    "a constant": lambda name, true, came: np.ones_like(true),
    "zeros": lambda name, true, came: np.zeros_like(true),
    "noise of a thousand": noise,
    "some noise": some_noise,
    "not a number": lambda name, true, came: np.full_like(true, np.nan),
}


def flipped(x: Array, y: Array) -> tuple[Array, Array]:
    """Each class for the other; numbers turned."""
    return x, (1 - y if np.issubdtype(y.dtype, np.integer) else -y)


def steep(x: Array, y: Array) -> tuple[Array, Array]:
    """Features a thousand times as large, and labels that follow a rule of the liar's own."""
    score = 1e3 * x.sum(tuple(range(1, x.ndim)))
    label = score > 0 if np.issubdtype(y.dtype, np.integer) else score
    return (1e3 * x).astype(x.dtype), label.astype(y.dtype)


FORGERIES: dict[str, Forgery] = {"labels flipped": flipped, "rows forged": steep}
QUICK = ("ten times turned", "a million times", "noise of a thousand", "rows forged")
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"robust": "clip"},
    "median": {"robust": "median"},
    "trimmed-mean": {"robust": "trimmed-mean", "robust-share": 0.2},
    "krum": {"robust": "krum", "robust-share": 0.2},
}
COMMON: dict[str, Any] = {
    "num-rounds": 8,
    "fraction-train": 1.0,
    "evaluate-every": 1000,
    "fine-tune-epochs": 0,
    "users-per-cluster": USERS // 3,
    "partition": "natural",
    "num-users": 0,
    "samples-per-user": 30,
}
CLASSES = {**COMMON, "dataset": "ellipses", "model": "mlp", "hidden": "16", "lr": 0.05}
CONVEX = {**CLASSES, "model": "linear", "loss": "squared-hinge", "ridge": 0.001}
COINS = {**CONVEX, "loss": "logistic", "ridge": 0.0, "known-gamma": 1, "known-lambda": 1}
NUMBERS = {
    **COMMON,
    "dataset": "hierarchical",
    "num-clusters": 3,
    "num-features": 4,
    "model": "linear",
    "mixed-aside": "always",
    "user-variance": "0.2",
    "num-rounds": 1,
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "convex-clustering": {**CONVEX, "convex-lambda": 0.03, "convex-tolerance": 1e-7},
    "local-clusters": CONVEX,
    "async-l2gd": COINS,
    "async-al2sgd": COINS,
    "mixed-model": NUMBERS,
    "single-cluster": NUMBERS,
    "fedrep-exact": {**CLASSES, "hidden": "20", "num-rounds": 1},
}

OTHER_PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixed-model, logistic": (
        "mixed-model",
        {**CLASSES, "model": "linear", "loss": "logistic", "num-rounds": 12}
        | {"mixed-aside": "always", "mixed-variances": "one"},
    ),
    "fedrep-convex, five neighbours": (
        "fedrep-convex",
        {**CLASSES, "fedrep-convex-neighbours": 5},
    ),
}
"""Strategies on a problem that is not theirs above."""


class Notes(Callback):
    """All that a run says."""

    shows_notes = reports = True

    def __init__(self) -> None:
        self.text: list[str] = []

    def on_note(self, text: str) -> None:
        """Keep it."""
        self.text.append(text)


@dataclass
class Outcome:
    """A run: each user's score, and who is named; or why there is none."""

    scores: dict[str, float] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    merit: bool = True
    failed: str = ""


@dataclass
class Cell:
    """A lie: what honest users lose by it, how many liars are named, and who else is."""

    strategy: str
    rule: str
    liars: int
    lie: str
    lost: float
    named: int
    others: int
    failed: str = ""


def main(words: Sequence[str]) -> int:
    """Run the cells, with a line for each strategy and rule, and print the table."""
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    options, begin = asked(words), time.process_time()
    cells = kept(options.json)
    counts = [1] if options.quick else [int(n) for n in options.liars.split(",")]
    lies = options.lies.split(",") if options.lies else [*LIES, *FORGERIES]
    lies = [lie for lie in lies if not options.quick or options.lies or lie in QUICK]
    rules = ["none"] if options.quick else options.robust.split(",")
    for name in options.names or [*ALGORITHMS, *OTHER_PROBLEMS]:
        for rule in rules:
            there = {(c.liars, c.lie) for c in cells if (c.strategy, c.rule) == (name, rule)}
            open_ones = [(n, lie) for n in counts for lie in lies if (n, lie) not in there]
            since = time.process_time()
            found = list(told(name, rule, open_ones)) if open_ones else []
            cells += found
            if found:
                seconds = time.process_time() - since
                print(f"{line(found)} ({seconds:.0f} CPU s)", flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in cells]))
    print("", *table(cells), sep="\n")
    print(f"\n{len(cells)} lies, {time.process_time() - begin:.0f} CPU s.")
    return 0


def kept(file: Path | None) -> list[Cell]:
    """The lies that a file has."""
    there = file is not None and file.exists()
    return [Cell(**one) for one in json.loads(file.read_text())] if file and there else []


def asked(words: Sequence[str]) -> argparse.Namespace:
    """The options, all of whose names are known."""
    made = parser()
    options = made.parse_args(words)
    for given, known in (
        (options.names, [*ALGORITHMS, *OTHER_PROBLEMS]),
        (options.lies.split(",") if options.lies else [], [*LIES, *FORGERIES]),
        (options.liars.split(","), [str(count) for count in LIARS]),
        (options.robust.split(","), RULES),
    ):
        if odd := [name for name in given if name not in known]:
            made.error(f"{odd[0]!r}: not one of {', '.join(known)}")
    return options


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        "python -m corsage.benchmarks liars",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="these strategies alone")
    made.add_argument("--lies", default="", metavar="NAMES", help="these lies alone")
    made.add_argument("--liars", default="1,2,4", metavar="N,N", help="how many of 21 lie")
    made.add_argument("--robust", default="none,median", metavar="RULES", help=", ".join(RULES))
    made.add_argument("--quick", action="store_true", help="one liar, four lies, no rule")
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="every lie; what is there is not run again"
    )
    return made


def told(name: str, rule: str, wanted: Sequence[tuple[int, str]]) -> Iterator[Cell]:
    """Lies of so many to a strategy under a rule; none if it has no such rule."""
    honest = outcome(name, rule, (), "")
    if honest.failed:
        if rule == "none":
            yield Cell(name, rule, 0, "", float("nan"), 0, 0, honest.failed)
        return
    for count, lie in wanted:
        bad = LIARS[count]
        found = outcome(name, rule, bad, lie)
        new = found.named - honest.named
        lost = loss(honest, found, bad) if found.scores else float("nan")
        named = len(new.intersection(bad))
        yield Cell(name, rule, count, lie, lost, named, len(new) - named, found.failed)


def loss(honest: Outcome, found: Outcome, bad: Sequence[str]) -> float:
    """What honest users lose on average, in points or per cent; who has no score lost it all."""
    users = [user for user in honest.scores if user not in bad]
    usual = float(np.mean([honest.scores[user] for user in users]))
    nothing = 0.0 if honest.merit else float("inf")
    now = float(np.mean([found.scores.get(user, nothing) for user in users]))
    return 100 * (usual - now if honest.merit else now / usual - 1)


def outcome(name: str, rule: str, bad: Sequence[str], lie: str) -> Outcome:
    """One run."""
    notes = Notes()
    name, own = OTHER_PROBLEMS[name] if name in OTHER_PROBLEMS else (name, problem(name))
    try:
        with redirect_stderr(io.StringIO()), judged_at_the_end(), telling(name, set(bad), lie):
            strategy = strategy_class(name)(Config.parse({**own, **RULES[rule]}), [notes])
            result = strategy.start(LocalGrid(make_client_app(), USERS))
    except CorsageError as error:
        return Outcome(failed=str(error))
    except Exception as error:
        return Outcome(failed=f"uncaught {type(error).__name__}: {error}")
    summary, said = result[name], list(notes.text)
    for finding in summary.findings:
        if finding.title.startswith(("Left out", "Set aside", "left out", "set aside")):
            said += [f"{finding.title}: {label} {text}" for label, text in finding.rows]
    said += [f"user {user}" for user in summary.dropped]
    lists = re.findall(r"\busers? ((?:\d+(?:, )?)+)", "\n".join(said))
    named = {user for some in lists for user in re.findall(r"\d+", some)}
    return Outcome(summary.per_user, named, summary.measure != "rmse")


def problem(name: str) -> dict[str, Any]:
    """What a strategy is run on."""
    return PROBLEMS.get(source(name), CLASSES)


def telling(name: str, bad: set[str], lie: str) -> AbstractContextManager[None]:
    """While it lasts, the lie is told."""
    if not lie:
        return nullcontext()
    if lie in FORGERIES:
        return forging(bad, FORGERIES[lie])
    return lying(client_of(name), bad, LIES[lie])


@contextmanager
def judged_at_the_end() -> Iterator[None]:
    """While it lasts, runs are evaluated after their last round alone."""
    with patch.object(loop, "LAST_ROUNDS", 1):
        yield


def line(cells: Sequence[Cell]) -> str:
    """What a strategy under a rule came to."""
    if cells[0].failed and not cells[0].lie:
        return f"{cells[0].strategy}: {cells[0].failed}"
    parts = [f"{n} {text(some)}" for n, some in by_count(cells).items()]
    return f"{cells[0].strategy}, robust={cells[0].rule}: liars " + "; ".join(parts)


def by_count(cells: Sequence[Cell]) -> dict[int, list[Cell]]:
    """The lies of so many liars."""
    found: dict[int, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.liars, []).append(cell)
    return found


def text(cells: Sequence[Cell]) -> str:
    """The worst lie; how many are held, in how many all liars are named, and if others are."""
    bad = [cell for cell in cells if cell.failed]
    worst = max(cells, key=lambda cell: np.inf if cell.failed else cell.lost)
    held = sum(not cell.failed and cell.lost <= HELD for cell in cells)
    named = sum(cell.named == cell.liars for cell in cells)
    found = (
        f"{'no result' if bad else number(worst.lost)} ({worst.lie}), {held} held, {named} named"
    )
    others = max(cell.others for cell in cells)
    return found + (f", {others} honest" if others else "")


def number(value: float) -> str:
    """A loss, short."""
    return f"{value:.1f}" if abs(value) < 1e4 else f"{value:.1e}"


def table(cells: Sequence[Cell]) -> list[str]:
    """A line for each strategy and rule, in Markdown: the worst loss, lies held, liars named."""
    counts = sorted({cell.liars for cell in cells if cell.lie})
    head = " | ".join(f"{n} of {USERS}" for n in counts)
    lines = [f"| strategy | robust | {head} |", "|---|---|" + "---|" * len(counts)]
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.lie:
            groups.setdefault((cell.strategy, cell.rule), []).append(cell)
    for (name, rule), own in groups.items():
        parts = by_count(own)
        lines.append(f"| {name} | {rule} | " + " | ".join(text(parts[n]) for n in counts) + " |")
    return lines
