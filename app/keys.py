"""Print what repeats keys and names: in `pyproject.toml`, `docs/keys.md`, `keywords.py`.

Flower refuses to override a key that is not in the block, readers want a table, and editors want
keyword arguments, and the names in `corsage.py`. All are made of the declarations and the registry;
`--write` puts them in place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size

from corsage.app.help.facts import FACTS
from corsage.app.help.pages import cells
from corsage.app.output.usage import complain, narrowed
from corsage.core.configuration.catalogue import catalogue, printed_as
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import write_atomically
from corsage.core.keys import Value
from corsage.core.registry import ALGORITHMS, place_of, source

USAGE = """\
usage: python -m corsage.app.keys --toml | --markdown | --python | --write

  --toml      print the block [tool.flwr.app.config] of pyproject.toml
  --markdown  print docs/keys.md
  --python    print core/configuration/keywords.py, the keys as keyword arguments for type checkers
  --write     put all of them in place, in this checkout
"""
CHECKOUT = Path(__file__).parents[1]
SEEN = "if TYPE_CHECKING:  # what type checkers and editors see\n"
STRATEGIES = (
    *("strategy", "sent down / up", "kept at the user / at the server"),
    *("bytes a round and user", "take it for"),
)
CODE_COLUMNS = 100
"""Columns of a line of code."""
HEADER = "[tool.flwr.app.config]\n"
INTRODUCTION = """\
# Keys

Every key, its default and its meaning. Keys are the same words everywhere: `key=value` on the
command line, in a TOML file (`python run_simulation.py my.toml`), in
`flwr run . --run-config "key=value"`, and in Python, `Config.parse({"num-rounds": 20})`. A key that
there is not, or a value that cannot be meant, is one line that says what would be right. A device
reads a file of its own by the keys of `csv`; what its node config says of them wins.

This page is printed by `python -m corsage.app.keys --markdown`; a key is declared where it is used:
those of an algorithm or a data set in its file, the others in `core/configuration/key_groups.py`.
"""
KEYWORDS = '''\
"""Every key as a keyword argument, `FedRep(num_users=20)`: what type checkers and editors read.

Printed by `python -m corsage.app.keys --write`; keys are declared where they are used. A key that
only some algorithms or data sets have comes with its default, so that none is imported for it.
"""

# fmt: off
# ruff: noqa: E501

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from corsage.core.keys import Own


class Keywords(TypedDict, total=False):
    """Keys with `_` for `-`."""

'''


def toml() -> str:
    """The block of `pyproject.toml`: every key with its default."""
    keys = [key for listed in catalogue().values() for key in listed]
    lines = [f"{key.name} = {literal(key.default)}\n" for key in keys]
    return HEADER + "".join(lines)


def literal(value: Value) -> str:
    """A value as TOML writes it."""
    return json.dumps(value) if isinstance(value, (bool, str)) else repr(value)


def markdown() -> str:
    """The page on keys: a table a group."""
    parts = [INTRODUCTION]
    for title, keys in catalogue().items():
        rows = ((f"`{name}`", f"`{value}`", said) for name, value, said in cells(keys))
        parts.append(f"## {title}\n\n{table(('key', 'default', 'meaning'), rows)}")
    return "\n".join(parts)


def strategies() -> str:
    """The table of all strategies in docs/strategies.md."""
    rows = ((f"`{n}`", f.sent, f.kept, f.cost, f.take) for n, f in FACTS.items())
    return table(STRATEGIES, rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = (" | ".join(text.replace("|", r"\|") for text in row) for row in (heads, *rows))
    first, *rest = (f"| {line} |\n" for line in lines)
    return "".join([first, "|" + "---|" * len(heads) + "\n", *rest])


def keywords() -> str:
    """The module of keyword arguments: every key with its type."""
    lines = [
        f"    {key.name.replace('-', '_')}: {printed_as(title, key)}\n"
        for title, keys in catalogue().items()
        for key in keys
    ]
    return KEYWORDS + "".join(lines)


def with_block(project: str) -> str:
    """The text of a `pyproject.toml` with the block as it should be."""
    pattern = rf"^{re.escape(HEADER)}(?:(?!\[).*\n)*?(?=\n*(?:\[|\Z))"
    if not re.search(pattern, project, re.MULTILINE):
        raise ConfigError(f"pyproject.toml: has no line {HEADER.strip()}; add it.")
    return re.sub(pattern, lambda _: toml(), project, count=1, flags=re.MULTILINE)


def with_table(page: str) -> str:
    """The text of docs/strategies.md with the table of them as it should be."""
    return re.sub(
        r"^\| strategy \| sent .*\n(\|.*\n)*", lambda _: strategies(), page, flags=re.MULTILINE
    )


def with_names(source: str) -> str:
    """The text of `corsage.py` with the public names as editors and type checkers see them."""
    imports = [imported(name, place) for name, place in sorted(named().items())]
    names = [f'    "{name.rpartition(" ")[2]}",\n' for name in named()]
    for head, lines, tail in (
        (SEEN, sorted(imports, key=str.split), "\n"),
        ("__all__ = [\n", sorted(names, key=order), "]\n"),
    ):
        pattern = rf"^{re.escape(head)}.*?^{tail}"
        whole = head + "".join(lines) + tail
        source = re.sub(pattern, whole, source, count=1, flags=re.MULTILINE | re.DOTALL)
    return source


def imported(name: str, place: str) -> str:
    """An import as ruff formats it: in brackets where the line would be too long."""
    line = f"    from corsage.{place} import {name}\n"
    brackets = f"    from corsage.{place} import (\n        {name},\n    )\n"
    return line if len(line) <= CODE_COLUMNS + 1 else brackets


def order(line: str) -> tuple[bool, bool, str]:
    """Constants, classes, functions, as linters want public names sorted."""
    return not line.isupper(), not line.strip(' "')[0].isupper(), line


def named() -> dict[str, str]:
    """The import behind each public name, `X` or `Y as X`, and its module."""
    door = import_module("corsage").PLACES
    found = {"app as client_app" if n == "client_app" else n: place for n, place in door.items()}
    for name, entry in ALGORITHMS.items():
        of = ALGORITHMS[source(name)].cls
        found[of if of == entry.public else f"{of} as {entry.public}"] = place_of(name)
    return found


def places() -> dict[Path, str]:
    """The files that repeat the keys, and what they should hold."""
    if not (CHECKOUT / "pyproject.toml").is_file():
        raise ConfigError(f"{CHECKOUT}: no checkout, there is no pyproject.toml in it.")
    made = {"docs/keys.md": markdown(), "core/configuration/keywords.py": keywords()}
    for name, edit in EDITED.items():
        made[name] = edit((CHECKOUT / name).read_text(encoding="utf-8"))
    return {CHECKOUT / name: text for name, text in made.items()}


EDITED = {"pyproject.toml": with_block, "docs/strategies.md": with_table, "corsage.py": with_names}
"""Files of which a part repeats them."""


def run(words: list[str]) -> int:
    """Do what the word says; 0, or 2 with one line on what is wrong."""
    printed = {"--toml": toml, "--markdown": markdown, "--python": keywords}
    if words == ["--write"]:
        return write()
    if len(words) == 1 and words[0] in printed:
        print(printed[words[0]](), end="")
        return 0
    print(narrowed(USAGE, get_terminal_size((100, 24)).columns), end="")
    return 0 if {"-h", "--help"} & set(words) else 2


def write() -> int:
    """Put the texts in place; one line on each that was not as it should be."""
    try:
        for path, text in places().items():
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_atomically(path, text)
                print(f"{path}: written")
    except (CorsageError, OSError) as error:
        return complain(error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
