"""The command line: words in, exit code out; every expected error is one line."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app import commands
from corsage.app.output.complaint import complain
from corsage.app.studies.grid import grid_of, is_study
from corsage.app.study import is_study_of, run_study
from corsage.core.catalogue import Declared, catalogue
from corsage.core.config import AUTOMATIC, Config, read_words
from corsage.core.errors import UNUSABLE, ConfigError, CorsageError, StrategiesFailed
from corsage.core.files import guarded, write_atomically
from corsage.core.keys import Value
from corsage.core.version import VERSION

if TYPE_CHECKING:
    from rich.table import Table

USAGE = """\
usage: python run_simulation.py [key=value ...] [FILE.toml]
                                [--resume RUN_FOLDER [--from-round N]] [--json FILE]

  key=value            set a key; the same words go into `flwr run . --run-config "..."`
  FILE.toml            a file of keys; words after it win over it
  seed=0,1,2           a study: several seeds, or values of any key, in one table (sweep --help)
  --resume RUN_FOLDER  finish an interrupted run, try what failed again, or do more rounds
  --from-round N       go back to a round first: to 0, or one that a checkpoint is kept of
  --json FILE          also write the summary there
  --help               this text, and all keys with their defaults
"""


NEEDED = {"--resume": "folder", "--json": "file", "--from-round": "round"}
"""What stands after the options."""


def run(words: list[str], title: str) -> int:
    """Do what the words say; 0, or 2 for a user's mistake, 1 for a failed run.

    A subcommand in front has words of its own (`app/commands.py`); without one it is a run.
    """
    if command := commands.named(words):
        return command.run(words[1:])
    return perform(words, title)


def perform(words: list[str], title: str = "") -> int:
    """A run, or its help: `corsage run key=value ...`."""
    try:
        if {"-h", "--help"} & set(words):
            show_help(title)
            return 0
        if words == ["--version"]:
            print(f"corsage {VERSION}")
            return 0
        run_or_study(*parse(words))
    except UNUSABLE as error:
        return complain(error, 2)
    except CorsageError as error:
        return complain(error, 1)
    except KeyboardInterrupt:
        return complain("interrupted.", 130)
    return 0


def run_or_study(values: dict[str, Any], json_file: str) -> None:
    """One run, or several: where a key has several values, such as seed=0,1,2."""
    values = decided(values)
    if is_study_of(values):
        run_study(values, json_file)
    else:
        simulate_and_report(Config.parse(values), json_file)


def decided(values: dict[str, Any]) -> dict[str, Any]:
    """The keys; with strategy=auto those that suit the data, which is said in a line.

    Of a study its first run decides.
    """
    if AUTOMATIC not in str(values.get("strategy", "")).split(","):
        return values
    from corsage.app.automatic import chosen

    grid = grid_of(values)
    found, line = chosen({**values, **grid.keys(grid.cells[0])})
    print(line, file=sys.stderr)
    return {**found, **values, "strategy": found["strategy"]}


def simulate_and_report(config: Config, json_file: str) -> None:
    """Run the simulation, then copy its summary, also of a comparison that is not whole."""
    from corsage.app.engines import simulate

    logging.getLogger("flwr").setLevel(logging.ERROR)  # Flower sets it when it is imported
    target = Path(json_file).expanduser() if json_file else None
    if target and not target.parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder does not exist.")
    try:
        folder = simulate(config)
    except StrategiesFailed as error:
        copy_summary(error.folder, target)
        raise
    copy_summary(folder, target)


def copy_summary(folder: Path, target: Path | None) -> None:
    """Copy a run's summary to where the user wants it."""
    if target:
        guarded(write_atomically, target, (folder / "summary.json").read_bytes())


def parse(words: list[str]) -> tuple[dict[str, Any], str]:
    """The keys, and the file for the summary. A resumed run brings its own keys along."""
    plain, options = [], {"--resume": "", "--json": "", "--from-round": ""}
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name in options:
            options[name] = value or next(rest, "")
            if not options[name]:
                raise ConfigError(f"{name}: needs a {NEEDED[name]}.")
        else:
            plain.append(word)
    if plain and not ("=" in plain[0] or plain[0].endswith(".toml")):
        hint = commands.suggestion(plain[0])
        raise ConfigError(f"{plain[0]}: expected key=value or a TOML file.{hint}")
    values = read_words(plain)
    resume = options["--resume"] or values.get("resume", "")
    if resume and is_study(Path(resume).expanduser()):
        values["resume"] = resume
    elif resume:
        from corsage.app.run.resuming import read_config

        values = {**read_config(Path(resume).expanduser())["config"], **values, "resume": resume}
    if options["--from-round"]:
        values["from-round"] = options["--from-round"]
    return values, options["--json"]


def show_help(title: str) -> None:
    """Usage and every key, grouped, with its default."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(title.strip(), markup=False, soft_wrap=True)
    console.print(f"\n{USAGE}\n{commands.listing()}", markup=False, soft_wrap=True)
    for heading, keys in catalogue().items():
        console.print(key_table(heading, keys))


def key_table(title: str, keys: list[Declared]) -> Table:
    """One group of keys as a table."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 2))
    table.add_column("key", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for key in keys:
        table.add_row(key.name, word(key.default), key.meaning)
    return table


def word(value: Value) -> str:
    """A default as a table shows it; an empty one shows that it is empty."""
    return (str(value).lower() if isinstance(value, bool) else str(value)) or '""'
