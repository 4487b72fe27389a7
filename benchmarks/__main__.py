"""The benchmarks: `python -m corsage.benchmarks [NAME ...] [--json FILE]`.

Without names they are listed. Targets that are missed are shown as such; they are no error.
"""

from __future__ import annotations

import ast
import json
import logging
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from corsage.app.output.terminal import terminal
from corsage.app.output.usage import complain
from corsage.benchmarks.measure import table
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import write_atomically
from corsage.core.keys import nearest
from corsage.core.version import VERSION
from corsage.experiments.words import Parser

MINUTES = {
    "mixed-models": 1.5,
    "beside-lme4": 1.0,
    "wide-tables": 2.0,
    "min-share": 3.0,
    "own-models": 5.0,
    "paths": 5.0,
    "methods": 8.0,
    "pfllib": 10.0,
    "large": 5.0,
    "engines": 1.0,
    "ray": 2.0,
    "memory": 3.0,
    "million": 5.0,
    "robust": 10.0,
    "tables": 1.0,
    "known-clusters": 5.0,
    "sum-of-norms": 6.0,
    "odd-problems": 1.0,
    "device-round": 2.0,
    "crowd": 15.0,
}
"""The benchmarks, and about how long each takes on two cores."""
WIDE = 120
"""Columns of what goes to a file."""
COMMANDS = {
    **{name: f"{name}.command" for name in ("house", "fuzz", "chaos")},
    "fuzz-device": "device.command",
    "doors": "doors",
    "pfllib-split": "pfllib_split",
    "published": "published",
    "liars": "liars",
}
"""Commands with options of their own, and the modules that they are in."""


def main(words: list[str]) -> int:
    """List the benchmarks, or run some; 0, or 2 for a user's mistake, 1 for a failed run."""
    if words and words[0] in COMMANDS:
        return int(loaded(words[0]).main(words[1:]))
    try:
        names, file = parse(words)
        if not names:
            show_list(terminal(WIDE))
        found: dict[str, list[dict[str, object]]] = {}
        for name in names:
            run(name, found.setdefault(name, []), lambda: keep(found, file))
    except ConfigError as error:
        return complain(error, 2)
    except (CorsageError, OSError) as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)
    return 0


def parse(words: list[str]) -> tuple[list[str], str]:
    """Which benchmarks to run, and the file for their figures."""
    parser = Parser("python -m corsage.benchmarks", epilog=", ".join((*MINUTES, *COMMANDS)))
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; without names a list")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures there")
    found = parser.parse_intermixed_args(words)
    for name in found.names:
        if name not in MINUTES:
            raise ConfigError(f"{name}: no such benchmark.{nearest(name, MINUTES)}")
    return found.names, found.json


def show_list(console: Console) -> None:
    """A line for each benchmark: what it is about, and how long it takes."""
    console.print("usage: python -m corsage.benchmarks NAME ... [--json FILE]\n", markup=False)
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("name", "what", "minutes, on 2 cores"):
        rows.add_column(column, no_wrap=column == "name")
    for name, minutes in MINUTES.items():
        rows.add_row(name, title(name), f"{minutes:g}")
    for name in COMMANDS:
        rows.add_row(name, title(name), "--help says")
    console.print(rows)


def title(name: str) -> str:
    """The first line of a benchmark's module, which is not imported for that."""
    path = Path(__file__).parent / f"{module(name).replace('.', '/')}.py"
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or name
    return words.split("\n")[0].rstrip(".")


def module(name: str) -> str:
    """Its place in this package."""
    return COMMANDS.get(name, name.replace("-", "_"))


def loaded(name: str) -> Any:
    """A benchmark's module. Flower, which sets its level when it is imported, is silenced."""
    found = import_module(f"corsage.benchmarks.{module(name)}")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return found


def keep(found: dict[str, list[dict[str, object]]], file: str) -> None:
    """Write what there is so far, if it is to be written anywhere."""
    if file:
        content = {"corsage": VERSION, "benchmarks": found}
        write_atomically(Path(file).expanduser(), json.dumps(content, indent=2))


def run(name: str, found: list[dict[str, object]], written: Callable[[], None]) -> None:
    """Run one benchmark and print its table; `written` is called after each case."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    measures = []
    for measure in loaded(name).run():
        measures.append(measure)
        found.append(measure.as_json())
        written()
        print(measure.line, file=sys.stderr, flush=True)
    terminal(WIDE).print(table(title(name), measures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
