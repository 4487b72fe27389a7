"""Figures of a checkout's running code: run in a process of its own, prints JSON.

Nothing of this checkout is imported at the top: PYTHONPATH says whose code is looked at.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

BESIDE = ("tests", "experiments", "benchmarks", "examples", "deploy", "docs")
SETTINGS = {"num-users": 12, "num-rounds": 20, "hidden": "16", "evaluate-every": 100}
WARM = 3
"""The round that is looked at: everything was loaded before, and nobody is evaluated in it."""


def main() -> None:
    """Print what is found about all algorithms, and about a round of two."""
    strategies, clients = loaded("strategy_class"), loaded("client_class")
    classes = {c for owner in (*strategies.values(), *clients.values()) for c in own(owner)}
    found = {
        "depth": best({name: depth(cls) for name, cls in strategies.items()}),
        "methods": best({name: len(methods(cls)) for name, cls in strategies.items()}),
        "overridden": sum(len(overridden(cls)) for cls in classes),
        "files": {name: [file(strategies[name]), file(clients[name])] for name in clients},
        "rounds": {name: one_round(name) for name in ("fedavg", "fedrep")},
    }
    print(json.dumps(found))


@cache
def find(name: str) -> Any:
    """A class or function of the checkout, by its name, in whatever file it is defined."""
    wanted = re.compile(rf"^(class|def) {name}\b", re.MULTILINE)
    for path in sorted(Path().glob("*/**/*.py")):
        if path.parts[0] not in BESIDE and wanted.search(path.read_text(encoding="utf-8")):
            return getattr(import_module(".".join(module_of(path))), name)
    raise SystemExit(f"{name}: no file defines it")


def module_of(path: Path) -> list[str]:
    """The parts of the name of a file's module."""
    parts = path.with_suffix("").parts
    return ["corsage", *(parts[:-1] if path.name == "__init__.py" else parts)]


def algorithms() -> list[str]:
    """The names in the registry."""
    registry = vars(inspect.getmodule(find("strategy_class")))
    tables = (value for value in registry.values() if isinstance(value, Mapping))
    return list(next(table for table in tables if "fedrep" in table))


def loaded(registry: str) -> dict[str, type]:
    """The class of each algorithm; those that cannot be loaded are left out, and named."""
    found = {}
    for name in algorithms():
        try:
            found[name] = find(registry)(name)
        except (ImportError, AttributeError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def own(cls: type) -> list[type]:
    """A class and its bases, those that are ours."""
    return [c for c in cls.__mro__ if c.__module__.startswith("corsage")]


def depth(cls: type) -> int:
    """How many classes of ours stand under each other, this one included."""
    ours = [base for base in cls.__bases__ if own(base)[:1] == [base]]
    return 1 + max((depth(base) for base in ours), default=0)


def methods(cls: type) -> set[str]:
    """The names of all functions and properties of a class and of its bases that are ours."""
    return {name for c in own(cls) for name in defined(c)}


def defined(cls: type) -> Iterator[str]:
    """The functions and properties that stand in a class itself."""
    kinds = (property, staticmethod, classmethod, cached_property)
    for name, value in vars(cls).items():
        if inspect.isfunction(value) or isinstance(value, kinds):
            yield name


def overridden(cls: type) -> set[str]:
    """The private methods of a class that one of its bases of ours has too."""
    bases = {name for base in own(cls)[1:] for name in defined(base)}
    return {n for n in defined(cls) if n in bases and n.startswith("_") and not n.startswith("__")}


def best(sizes: dict[str, int]) -> tuple[int, str]:
    """The largest one, and whose it is."""
    return max((size, name) for name, size in sizes.items())


def file(cls: type) -> str:
    """The file of a class, relative to the checkout."""
    return str(Path(inspect.getfile(cls)).resolve().relative_to(Path.cwd().resolve()))


def one_round(name: str) -> dict[str, int]:
    """How many functions of ours one warm round passes through, and in how many files.

    Comprehensions, lambdas and methods like `__init__` are not counted as functions.
    """
    seen: set[CodeType] = set()
    config = find("Config").parse({**SETTINGS, "strategy": name, "fraction-train": 0.5})
    strategy = find("strategy_class")(name)(config, callbacks=[watch(seen)])
    app = import_module("corsage.app.client_app").app
    strategy.start(find("LocalGrid")(app, 1))
    named = {code for code in seen if not code.co_name.startswith(("<", "__"))}
    return {"functions": len(named), "files": len({code.co_filename for code in seen})}


def watch(seen: set[CodeType]) -> Any:
    """A callback that notes all functions of ours that the warm round calls."""
    inside = str(Path.cwd().resolve())

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(inside):
            seen.add(frame.f_code)

    def on_round_start(self: object, strategy: object, number: int) -> None:
        if number == WARM:
            sys.setprofile(note)

    def on_round_end(self: object, *arguments: object) -> None:
        sys.setprofile(None)

    hooks = {"on_round_start": on_round_start, "on_round_end": on_round_end}
    as_a_command = {"reports": True}  # without one Flower's log has a line a round
    return type("Watch", (find("Callback"),), hooks | as_a_command)()


if __name__ == "__main__":
    main()
