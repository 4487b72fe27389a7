"""The experiments: `python -m corsage.experiments [NAME [--quick] [--out DIR] [--seeds 0,1,2]]`."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from corsage.app.output.summary import human_seconds
from corsage.app.output.usage import complain
from corsage.core.configuration.command_line import read_words
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import write_atomically
from corsage.core.keys import nearest
from corsage.core.version import VERSION
from corsage.experiments import EXPERIMENTS, experiment
from corsage.experiments.outcome import Experiment, Options, Outcome, picture, table
from corsage.experiments.words import Parser

WIDE = 120
"""Columns of a table that goes to a file."""


def main(words: list[str]) -> int:
    """List the experiments, or run one; 0, or 2 for a user's mistake, 1 for a failed run."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        if not words or words[0] in ("-h", "--help"):
            show_list(Console())
            return 0
        if words[0] not in EXPERIMENTS:
            raise ConfigError(f"{words[0]}: no such experiment.{nearest(words[0], EXPERIMENTS)}")
        run(words[0], words[1:])
    except ConfigError as error:
        return complain(error, 2)
    except CorsageError as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)
    return 0


def show_list(console: Console) -> None:
    """A line for each experiment."""
    usage = "usage: python -m corsage.experiments NAME [options] [key=value ...]\n"
    console.print(usage, markup=False, highlight=False)
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("name", "what", "takes about, on 2 cores"):
        rows.add_column(title, no_wrap=title == "name")
    for name in EXPERIMENTS:
        rows.add_row(name, experiment(name).what, experiment(name).takes)
    console.print(rows)
    console.print("\n`NAME --help` shows its options.", highlight=False)


def parse(name: str, chosen: Experiment, words: list[str]) -> Options:
    """The options of one experiment; `key=value` words change its config."""
    parser = Parser(f"python -m corsage.experiments {name}", description=chosen.what)
    parser.add_argument("--quick", action="store_true", help="the cheapest part of it, one seed")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, metavar="DIR")
    parser.add_argument("--seeds", type=numbers, default=(), metavar="0,1,2")
    for option, values in chosen.choices.items():
        parser.add_argument(f"--{option}", choices=values, default=values[0])
    parser.add_argument("keys", nargs="*", metavar="key=value", help="change the config")
    found = vars(parser.parse_intermixed_args(words))
    common = {word: found.pop(word) for word in ("quick", "out", "seeds")}
    keys = {key.replace("-", "_"): v for key, v in read_words(found.pop("keys")).items()}
    return Options(**common, keys=keys, choices=found)


def numbers(text: str) -> tuple[int, ...]:
    """`0,1,2` as numbers."""
    return tuple(int(word) for word in text.split(","))


def run(name: str, words: list[str]) -> None:
    """Measure, write JSON and PNG, and print the table."""
    chosen = experiment(name)
    options = parse(name, chosen, words)
    folder = options.out.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        outcome = chosen.measure(options)
        if options.keys:
            changed = ", ".join(f"{k}={v}" for k, v in options.keys.items())
            outcome.notes.append(f"Changed by hand: {changed}; the reference is without that.")
        seconds = time.monotonic() - begin
        content = json.dumps(summary(name, options, outcome, seconds), indent=2)
        write_atomically(folder / f"{name}.json", content)
        write_atomically(folder / f"{name}.png", picture(outcome))
    except OSError as error:
        raise CorsageError(f"{folder}: cannot be written ({error.strerror}).") from error
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)  # a file has room
    console.print(table(outcome))
    console.print(
        f"{human_seconds(seconds)}; {folder / name}.json and .png", soft_wrap=True, highlight=False
    )


def summary(name: str, options: Options, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """What the JSON file says; `inside` is false if any figure is out of its band."""
    return {
        "corsage": VERSION,
        "experiment": name,
        "quick": options.quick,
        "options": dict(options.choices),
        "changed": dict(options.keys),
        "inside": outcome.inside,
        "figures": [figure.as_json() for figure in outcome.figures],
        "notes": outcome.notes,
        "seconds": round(seconds, 1),
        "results": outcome.results,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
