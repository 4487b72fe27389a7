"""The figures that may not grow, and their limits: `benchmarks/house.toml`."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from corsage.benchmarks.house.sources import Sources

LIMITS = Path(__file__).resolve().parents[1] / "house.toml"
KNOWN = ("fedavg", "fedrep", "async_al2sgd", "mixed_model", "convex_clustering")
"""Algorithms of which it is counted what one must know for them."""
OPENING = re.compile(r"(What|How|Who|Whom|Whose|Whether|Which|Where)\b")
"""Words with which a docstring says nothing yet."""
EVERYWHERE = ("__init__", "base", "keys")
"""Names of files that mean the same wherever they stand."""
DECLARED = ("DATASET", "USAGE")
"""Constants that are asked for by their name, of whatever module has them."""
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef)


def figures(root: Path, rounds: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """All of them; `rounds` are the functions and files that an exchange passes through."""
    sources = Sources(root)
    found = in_files(sources, root) | in_words(sources)
    for name in KNOWN:
        halves = ("strategies", "clients")
        begin = [p for p in sources.files if p.parts[0] in halves and p.stem == name]
        files = sources.to_know(begin, ())
        found[f"to know for {name}: files"] = len(files)
        found[f"to know for {name}: lines"] = sources.lines(files)
    for name, seen in rounds.items():
        found |= {f"an exchange of {name}: {what}": count for what, count in seen.items()}
    return found


def in_files(sources: Sources, root: Path) -> dict[str, int]:
    """The size of the house, and its order."""
    importers = Counter(other for others in sources.imports.values() for other in others)
    classes = (
        n for t in sources.trees.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)
    )
    circle = sources.cycle(9)
    return {
        "product lines": sources.lines(sources.files),
        "product files": len(sources.files),
        "test lines": sum(map(lines_of, (root / "tests").rglob("*.py"))),
        "files in the largest flat folder": sources.largest_folder()[0],
        "rooms in the largest circle of imports": len(circle) if len(circle) > 1 else 0,
        "modules that exactly one other imports": sum(
            importers[path] == 1 for path in sources.files if path.stem != "__init__"
        ),
        "methods of the largest class": max(
            sum(isinstance(node, ast.FunctionDef) for node in cls.body) for cls in classes
        ),
        "files over 300 lines": sum(sources.lines([path]) > 300 for path in sources.files),
    }


def in_words(sources: Sources) -> dict[str, int]:
    """The words that can be counted."""
    modules = [ast.get_docstring(tree) or "" for tree in sources.trees.values()]
    functions = [
        ast.get_docstring(node) or ""
        for tree in sources.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED)
    ]
    return {
        "docstrings of modules that open with What, How, Who ...": opened(modules),
        "docstrings of functions that do": opened(functions),
        "names of files in several rooms": len(doubled_files(sources)),
        "names of constants in several modules": len(doubled_constants(sources)),
    }


def opened(docstrings: list[str]) -> int:
    """How many of these open with a word that says nothing yet."""
    return sum(bool(OPENING.match(text)) for text in docstrings)


def doubled_files(sources: Sources) -> dict[str, list[str]]:
    """The names of files that stand in several rooms; the halves of an algorithm have one name."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in sources.files:
        half = "strategies" if path.parts[0] == "clients" else path.parts[0]
        if path.stem not in EVERYWHERE:
            rooms[path.stem].add("/".join((half, *path.parts[1:-1])))
    return {name: sorted(places) for name, places in rooms.items() if len(places) > 1}


def doubled_constants(sources: Sources) -> dict[str, list[str]]:
    """The names of constants that several modules give a value of their own."""
    places: dict[str, set[str]] = defaultdict(set)
    for path, tree in sources.trees.items():
        for name in constants(tree):
            places[name].add(str(path))
    several = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    return {name: found for name, found in several.items() if name not in DECLARED}


def constants(tree: ast.Module) -> Iterator[str]:
    """The constants at the top of a module."""
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [t for t in node.targets for t in getattr(t, "elts", [t])]
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        yield from (t.id for t in targets if isinstance(t, ast.Name) and CONSTANT.fullmatch(t.id))


def lines_of(path: Path) -> int:
    """The lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def limits(path: Path = LIMITS) -> dict[str, int]:
    """The limit of each figure."""
    found: dict[str, int] = tomllib.loads(path.read_text(encoding="utf-8"))["limits"]
    return found


def beyond(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """A line for each figure that is beyond its limit, or has none."""
    return [
        f"{name}: {count:,}, and the limit is {allowed.get(name, 0):,}"
        for name, count in found.items()
        if count > allowed.get(name, 0)
    ]
