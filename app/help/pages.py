"""The pages of `--help`: the short one, and one a strategy, data set, group of keys, or key."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corsage.app.help import commands
from corsage.app.help.facts import FACTS
from corsage.app.output.terminal import terminal
from corsage.app.output.usage import narrowed
from corsage.core.configuration.key_groups import GROUPS
from corsage.core.configuration.known_keys import OF_SOME, known_keys
from corsage.core.errors import ConfigError
from corsage.core.keys import Value, kebab, names
from corsage.core.registry import ALGORITHMS, DATASETS, data_keys, keys_class, place_of, source

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from corsage.core.configuration.catalogue import Declared

Page = Callable[[], "Iterator[RenderableType]"]
SOURCES = Path(__file__).parents[2]
HELP_TITLE = "Personalised federated learning: a model of its own for every participant."
USAGE = """\
usage: corsage run [key=value ...] [FILE.toml] [--json FILE]
                   [--resume RUN_FOLDER [--from-round N]]
       corsage COMMAND ...

  key=value            set a key; the same words go into `flwr run . --run-config "..."`
  FILE.toml            a file of keys; words after it win over it
  seed=0,1,2           a study: several seeds, or values of any key, in one table (sweep --help)
  --resume RUN_FOLDER  finish an interrupted run, try what failed again, or do more rounds
  --from-round N       go back to a round first: to 0, or one that a checkpoint is kept of
  --json FILE          also write the summary there

`corsage key=value ...` is the same, and in a checkout `python run_simulation.py ...`.
Without a key it is the main job: FedRep, FedAvg and local training on the digits, 50 users with \
two classes each.
"""
OWN_DATA = {
    "csv": "corsage run dataset=csv data-file=FILE.csv",
    "npz": "corsage run dataset=npz data-file=FILE.npz",
    "memory": 'corsage.simulate("fedrep,local", data) in Python',
}
"""How data of one's own are tried, which nobody else has."""
MORE_HELP = """\
More: corsage --help NAME, for a strategy (fedrep), a command (clean), a data set (csv), a group \
of keys (data, model, training, ...) or a key (lr). corsage --help keys lists every key.
"""


def page(topic: str = "", title: str = "") -> list[RenderableType]:
    """The page on a topic, also `strategy=fedrep`; ConfigError if there is none."""
    if not topic:
        return list(short(title))
    found, (name, _, value) = topics(), topic.lower().strip("-").partition("=")
    topic = value if value in found else name
    if topic not in found:
        close = get_close_matches(topic, found, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ConfigError(f"--help {topic}: no such topic.{hint} `corsage --help` lists them.")
    return list(found[topic]())


def topics() -> dict[str, Page]:
    """All pages by the word for them; the first of a name has it."""
    found: dict[str, Page] = {"keys": every_key, "run": run}
    sources: tuple[dict[str, Page], ...] = (
        {name: partial(strategy, name) for name in ALGORITHMS},
        {name: partial(group, title) for name, title in group_words().items()},
        {name: partial(data_set, name) for name in DATASETS},
        {name: partial(one_key, name) for name in key_names()},
    )
    for pages in sources:
        found = {**pages, **found}
    return found


def run() -> Iterator[RenderableType]:
    """Words with which a run is begun, and the keys of what is written of it."""
    yield USAGE
    yield from group(GROUPS["run"].title)


def short(title: str = "") -> Iterator[RenderableType]:
    """All that there is: commands, strategies, data sets."""
    yield f"{title.strip() or HELP_TITLE}\n"
    yield USAGE
    yield commands.listing()
    yield "Strategies, one or several with commas (strategy=fedrep,local):"
    width = max(map(len, ALGORITHMS))
    yield grid({name.ljust(width): line(name) for name in ALGORITHMS})
    yield f"\nData sets (dataset=csv):\n  {', '.join(DATASETS)}\n"
    yield MORE_HELP


def strategy(name: str) -> Iterator[RenderableType]:
    """An algorithm: what its file says, what it costs, and its keys."""
    entry, facts = ALGORITHMS[name], FACTS.get(name)
    yield f"strategy={name}\n"
    if entry.of:
        fixed = " ".join(f"{kebab(key)}={value}" for key, value in entry.fixed.items())
        yield f"{line(name)} It is {entry.of} with {fixed}:\n"
    yield docstring(name)
    yield ""
    if facts:
        sent, kept = "sent down / up", "kept at the user / server"
        said = {"take it for": facts.take, sent: facts.sent, kept: facts.kept}
        cost = facts.cost + " models" * facts.cost[-1].isdigit()
        yield grid({**said, "bytes a round and user": cost})
    settled = {kebab(key) for key in entry.fixed}
    yield from table_of([key for key in names(keys_class(name)) if key not in settled])
    trial = facts.trial(name) if facts else f"corsage run strategy={name},local"
    yield f"\nTry: {trial}    in Python: corsage.{entry.public}()"


def data_set(name: str) -> Iterator[RenderableType]:
    """A data set: what its file says, and the keys that are not of all."""
    module = SOURCES / "datasets" / f"{DATASETS[name].replace('.', '/')}.py"
    yield f"dataset={name}\n"
    yield ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    shared = set(names(GROUPS["data"]))
    own = [key for key in names(data_keys(name)) if key not in shared]
    yield from table_of(own)
    trial = OWN_DATA.get(name, f"corsage run dataset={name}")
    yield f"\nTry: {trial}    and: corsage --help data"


def group(title: str) -> Iterator[RenderableType]:
    """The keys of a group."""
    from corsage.core.configuration.catalogue import catalogue

    found = catalogue()
    for heading in (title, OF_SOME) if title == GROUPS["data"].title else (title,):
        yield key_table(heading, found.get(heading, []))
    if title == GROUPS["data"].title:
        yield f"\nData sets: {', '.join(DATASETS)}; corsage --help csv says more of one."


def every_key() -> Iterator[RenderableType]:
    """All keys by group, each with its default."""
    from corsage.core.configuration.catalogue import catalogue

    for heading, keys in catalogue().items():
        yield key_table(heading, keys)


def one_key(name: str) -> Iterator[RenderableType]:
    """A key: what it means, and what it may be."""
    from corsage.core.configuration.catalogue import catalogue

    heading, key = next((t, k) for t, keys in catalogue().items() for k in keys if k.name == name)
    yield f"{name} ({heading})\n"
    said = {"meaning": key.meaning, "default": word(key.default), "may be": key.limits}
    yield grid({what: text for what, text in said.items() if text})
    yield f"\nPython: {name.replace('-', '_')}=..."


def table_of(own: list[str]) -> Iterator[RenderableType]:
    """The keys that only one strategy or data set has, if there are any."""
    from corsage.core.configuration.catalogue import catalogue

    known = {key.name: key for found in catalogue().values() for key in found}
    if own:
        yield ""
        yield key_table("Its own keys", [known[name] for name in own])


def group_words() -> dict[str, str]:
    """The words that mean a group of keys, and its title."""
    found = {name: group.title for name, group in GROUPS.items()}
    found |= {"training": GROUPS["train"].title, "users": GROUPS["federation"].title}
    for key in known_keys().values():
        found.setdefault(key.title.lower().replace(" ", "-"), key.title)
    return found


def key_names() -> list[str]:
    """All keys."""
    return list(known_keys())


def line(name: str) -> str:
    """A strategy in a line: the first of its file, without its name in front."""
    if (facts := FACTS.get(name)) and facts.line:
        return facts.line
    first = docstring(name).splitlines()[0]
    head, _, rest = first.partition(": ")
    said = rest if rest and len(head.split()) <= 3 else first
    return f"{said[0].upper()}{said[1:]}"


def docstring(name: str) -> str:
    """The text at the top of an algorithm's file, which is not imported for that."""
    file = SOURCES.joinpath(*place_of(source(name)).split(".")).with_suffix(".py")
    if not file.is_file():
        return "Not in this installation."
    try:
        return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or name
    except SyntaxError as error:
        return f"This file is no Python ({file.name}, line {error.lineno}): {error.msg}."


def grid(rows: Mapping[str, str]) -> Table:
    """Lines of a word and what is said of it."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in dict(rows).items():
        table.add_row(f"  {name}", text)
    return table


def key_table(title: str, keys: list[Declared]) -> Table:
    """One group of keys as a table."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 2))
    table.add_column("key", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for row in cells(keys):
        table.add_row(*row)
    return table


def cells(keys: Iterable[Declared]) -> list[tuple[str, str, str]]:
    """A row for each key, here and in docs/keys.md: its name, default and meaning."""
    return [(key.name, word(key.default), key.meaning) for key in keys]


def word(value: Value) -> str:
    """A default as a table shows it; an empty one shows that it is empty."""
    return (str(value).lower() if isinstance(value, bool) else str(value)) or '""'


def show(topic: str = "", title: str = "") -> None:
    """Print a page."""
    console = terminal(highlight=False)
    for part in page(topic, title):
        said = narrowed(part, console.width) if isinstance(part, str) else part
        console.print(said, markup=False, soft_wrap=isinstance(part, str))
