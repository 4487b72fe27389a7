"""`corsage fit`: a table in, a model for every user and what it says out."""

from __future__ import annotations

from pathlib import Path

from corsage.app.answer.questions import OF_FILES
from corsage.app.command import parse, run_or_study, settled
from corsage.app.given import COLUMN_KEYS
from corsage.app.output.usage import command
from corsage.core.configuration.config import AUTOMATIC
from corsage.core.errors import ConfigError, DataError

USAGE = """\
usage: corsage fit FILE label=COLUMN [user=COLUMN] [cluster=COLUMN]
                   [key=value ...] [--json FILE]

  FILE            a CSV or NPZ file; of a CSV file the other columns are inputs
  label=COLUMN    what is predicted: numbers, or classes
  user=COLUMN     whose each row is (default: the column named user)
  cluster=COLUMN  the user's known cluster, if there are any
  key=value       keys of a run (corsage help), such as drop-columns=a,b;
                  strategy=auto, the default, takes what suits the data
  test-fraction=0 compares nothing: one strategy, fitted to all rows
  --json FILE     copy the results there

Models are compared on rows that they have not seen, then fitted to all rows; the
answer is printed, and is in a run folder (predict, export, report take it).
"""


@command(USAGE, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    values, json_file = parse(translated(words))
    if "label-column" not in values:
        raise ConfigError("fit: label=COLUMN is missing: which column is to be predicted?")
    run_or_study(settled({"strategy": AUTOMATIC, **values}), json_file, fits=True)


def translated(words: list[str]) -> list[str]:
    """The words as those of a run: a file, and columns by their short names."""
    found, files, rest = list[str](), list[str](), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--json":
            found += [word, next(rest, "")]
        elif equals and not Path(word).expanduser().is_file():
            name = name.removeprefix("--")
            found.append(f"{COLUMN_KEYS[name]}={value}" if name in COLUMN_KEYS else word)
        elif word.endswith(".toml"):
            found.append(word)
        else:
            files.append(word)
    return [f"data-file={the_file(files)}", *found]


def the_file(files: list[str]) -> str:
    """The one file that is named; ConfigError if it is none, or several."""
    if not files:
        raise ConfigError("fit: name a file, corsage fit FILE label=COLUMN; see corsage fit -h.")
    if len(files) > 1:
        raise ConfigError(f"fit: one file; {files[1]} is neither a second one nor key=value.")
    path = Path(files[0]).expanduser()
    if not path.is_file():
        raise DataError(f"{files[0]}: no such file.")
    if path.suffix.removeprefix(".").lower() not in OF_FILES:
        kinds = " or ".join(f".{kind}" for kind in OF_FILES)
        raise ConfigError(f"{files[0]}: its name must end in {kinds}.")
    return files[0]
