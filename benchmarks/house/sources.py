"""Figures of a checkout's source files by themselves, read with `ast`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

BESIDE = ("tests", "experiments", "benchmarks", "examples", "deploy", "docs")
"""Folders that are not part of what is installed on a device."""
BELOW = ("app", "core", "datasets")
"""Packages that one need not know to understand an algorithm."""
KEYS_ASSERTED = re.compile(r"assert isinstance\([\w.]*\.keys,")
BAGS = ("scalars", "arrays")
"""The parts of a strategy's state that are found by words."""


@dataclass(frozen=True)
class Sources:
    """The Python files of a checkout that belong to the house itself."""

    root: Path

    @cached_property
    def files(self) -> list[Path]:
        """All of them, relative to the root."""
        found = (path.relative_to(self.root) for path in self.root.glob("*/**/*.py"))
        return sorted(
            path
            for path in found
            if path.parts[0] not in BESIDE and not any(part.startswith(".") for part in path.parts)
        )

    @cached_property
    def trees(self) -> dict[Path, ast.Module]:
        """Each file parsed."""
        return {path: ast.parse(self.text(path)) for path in self.files}

    @cached_property
    def imports(self) -> dict[Path, set[Path]]:
        """The files that each file imports, at its top or in a function, but not for types."""
        return {
            path: {file for name in imported(tree) if (file := self.file_of(name))}
            for path, tree in self.trees.items()
        }

    def text(self, path: Path) -> str:
        """What stands in a file."""
        return (self.root / path).read_text(encoding="utf-8")

    def lines(self, paths: Iterable[Path]) -> int:
        """How many lines these files have together."""
        return sum(len(self.text(path).splitlines()) for path in paths)

    def file_of(self, names: tuple[str, str]) -> Path | None:
        """The file that `from MODULE import NAME` reads: a module of that name, or the module."""
        package, name = names
        for module in (f"{package}.{name}", package):
            stem = Path(*module.split(".")[1:])
            for path in (stem.with_suffix(".py") if stem.name else stem, stem / "__init__.py"):
                if path in self.trees:
                    return path
        return None

    def cycle(self, depth: int) -> list[str]:
        """The largest set of packages that all import each other, by so many parts of a path."""
        links: dict[Path, set[Path]] = {}
        for path, others in self.imports.items():
            own = package_of(path, depth)
            links.setdefault(own, set()).update(package_of(other, depth) for other in others)
        reach = {package: reached(package, links) for package in links}
        knots: list[set[Path]] = [{q for q in reach[p] if p in reach[q]} | {p} for p in reach]
        largest = max(knots, key=len)
        return sorted(map(str, largest))

    def largest_folder(self) -> tuple[int, str]:
        """How many files the largest folder has by itself, and its name."""
        folders = [path.parent for path in self.files]
        return max((folders.count(folder), str(folder)) for folder in set(folders))

    def to_know(self, begin: Iterable[Path], without: Collection[str]) -> set[Path]:
        """These files, and all they import, except those of some packages."""
        links = {
            path: {other for other in others if other.parts[0] not in without}
            for path, others in self.imports.items()
        }
        return {path for first in begin for path in {first, *reached(first, links)}}

    def state_keys(self, package: str) -> int:
        """Different words by which a package's files find something in a state."""
        trees = (tree for path, tree in self.trees.items() if path.parts[0] == package)
        return len({key for tree in trees for key in words_of_state(tree)})

    def mentions(self, pattern: re.Pattern[str]) -> int:
        """How often a pattern stands in the files."""
        return sum(len(pattern.findall(self.text(path))) for path in self.files)

    def function_lines(self) -> tuple[int, float, int, int]:
        """How many functions there are; median, 95th percentile and most of their lines."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        sizes = sorted(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, kinds)
        )
        return len(sizes), median(sizes), sizes[int(0.95 * len(sizes))], sizes[-1]


def package_of(path: Path, depth: int) -> Path:
    """The package of a file, cut off below a depth."""
    return Path(*path.parent.parts[:depth])


def reached(begin: Path, links: dict[Path, set[Path]]) -> set[Path]:
    """All that can be reached from one place; itself, if there is a way back."""
    found: set[Path] = set()
    left = list(links.get(begin, ()))
    while left:
        place = left.pop()
        if place not in found:
            found.add(place)
            left += links.get(place, ())
    return found


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of every import of our own below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((a.name, "") for a in child.names if a.name.startswith("corsage."))
        elif isinstance(child, ast.ImportFrom) and (child.module or "").startswith("corsage"):
            yield from ((str(child.module), alias.name) for alias in child.names)
        yield from imported(child)


def words_of_state(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The bag and the literal key of each subscript, `get`, `setdefault` and `pop`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            bag, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr not in ("get", "setdefault", "pop"):
                continue
            bag, key = node.func.value, node.args[0]
        else:
            continue
        name = getattr(bag, "attr", getattr(bag, "id", ""))
        if name in BAGS and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield name, key.value
