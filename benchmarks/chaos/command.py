"""Disturb runs as the world does, and compare their numbers with those of a run left in peace.

python -m corsage.benchmarks chaos --seed 0 --times 100 [--engine local|ray|deploy]

A run is started as a process and disturbed one to four times at random moments: killed, its disk
filled, its files damaged, resumed by two processes at once, sent back to an earlier round; on
`deploy` the server script, SuperNodes and the SuperLink are killed. After each it is resumed, with
no other help than what its own error line says. The exit code is 1 if a number differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from rich import box
from rich.console import Console
from rich.table import Table

from corsage.benchmarks.chaos.disk import Disk, disk
from corsage.benchmarks.chaos.process import numbers, process
from corsage.benchmarks.chaos.trial import DISTURBANCES, Event, Trial
from corsage.experiments.words import Parser

ROUNDS, STRATEGIES = 12, ("fedrep", "ditto", "fedavg")
WORDS = [
    *(f"strategy={','.join(STRATEGIES)}", f"num-rounds={ROUNDS}", "num-users=12"),
    *("fraction-train=0.5", "hidden=16", "head-epochs=2", "fine-tune-epochs=1", "run-dir=runs"),
]
ENGINES = {"local": ["engine=local"], "ray": ["engine=ray", "num-nodes=2"]}


def main(words: list[str]) -> int:
    """Do it as often as asked; 0, or 1 if a run did not come back as it should."""
    options = parser().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing stays mounted or running
    if options.engine == "deploy":
        from corsage.benchmarks.chaos.deployed import disturbed

        events, note = disturbed(options.seed, options.times), "full disk: not on devices"
    else:
        events, note = simulated(options)
    show(events, options, note)
    if options.json:
        options.json.write_text(json.dumps([vars(event) for event in events], indent=2))
    return int(any(event.why or not event.same for event in events))


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = Parser(
        "python -m corsage.benchmarks chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--seed", type=int, default=0, help="of all choices")
    found.add_argument("--times", type=int, default=100, help="disturbances")
    found.add_argument("--engine", choices=[*ENGINES, "deploy"], default="local")
    found.add_argument("--json", type=Path, metavar="FILE", help="write every event there")
    return found


def simulated(options: argparse.Namespace) -> tuple[list[Event], str]:
    """Trials of the command line on this machine, until there are enough disturbances."""
    random, events = Random(options.seed), list[Event]()
    words = [*WORDS, *ENGINES[options.engine], f"seed={options.seed}"]
    with tempfile.TemporaryDirectory(prefix="chaos") as scratch, disk(Path(scratch) / "disk") as at:
        whole = undisturbed(at, words)
        while len(events) < options.times:
            most = min(random.randint(1, 4), options.times - len(events))
            events += disturb(at, words, random, most, whole, len(events))
        return events, at.words


def undisturbed(at: Disk, words: list[str]) -> list[dict[str, object]]:
    """The numbers of a run that is left in peace."""
    place = at.folder / "whole"
    place.mkdir()
    with process(words, place) as one:
        if one.ended():
            raise SystemExit(one.said())
    (folder,) = (place / "runs").iterdir()
    return numbers(folder)


def disturb(
    at: Disk,
    words: list[str],
    random: Random,
    times: int,
    whole: list[dict[str, object]],
    number: int,
) -> list[Event]:
    """One run, so often disturbed."""
    place = at.folder / f"run-{number}"
    place.mkdir()
    total = ROUNDS * len(STRATEGIES)
    trial = Trial(place, at, words, total, random)
    for kind in random.choices(list(DISTURBANCES), weights=[3, 3, 2, 1, 1], k=times):
        trial.disturb(kind)
    trial.finish(whole)
    for event in trial.events:
        mark = "same" if event.same and not event.why else f"OTHER NUMBERS {event.why}"
        print(f"{event.kind} {event.detail}: {event.after}, {mark}", file=sys.stderr, flush=True)
    if all(event.same for event in trial.events):
        clear(place)
    return trial.events


def clear(place: Path) -> None:
    """Make room on the disk."""
    shutil.rmtree(place)


def show(events: list[Event], options: argparse.Namespace, note: str) -> None:
    """The table: what was done how often, and what became of it."""
    table = Table(title=f"chaos, engine={options.engine}, seed={options.seed}", box=box.SIMPLE_HEAD)
    after = ("resumed", "older checkpoint", "begun anew, as its line says")
    for name in ("disturbance", "times", *after, "same numbers"):
        table.add_column(name, justify="left" if name == "disturbance" else "right")
    for kind in [*dict.fromkeys(event.kind for event in events), "all"]:
        own = [event for event in events if kind in (event.kind, "all")]
        counts = Counter(event.after for event in own)
        same = sum(event.same and not event.why for event in own)
        cells = [len(own), *(counts[name] for name in after), same]
        table.add_row(kind, *map(str, cells))
    table.caption, table.caption_justify = note, "left"
    Console(width=110).print(table)
