"""The pages of the documentation, taken apart: links, blocks of code, commands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import corsage

ROOT = Path(corsage.__file__).parent
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^]]*)\]\(((?!http)[^)\s]+)\)")
PLACE = re.compile(r"`((?:[a-z_]+/)+[\w.]+\.\w+)`")


def text_of(name: str) -> str:
    """A page, by its path in the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in one language."""
    return [code for kind, code in BLOCK.findall(page) if kind == language]


def block(page: str, start: str) -> str:
    """The block in which some words are."""
    return next(code for _, code in BLOCK.findall(page) if start in code)


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", page)


def anchors(page: str) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ +(.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a Python file defines: functions, classes and what these have, as `Class.name`."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")), ""))


def _names(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from _names(child, f"{prefix}{child.name}.")
        if isinstance(child, ast.Assign):
            yield from (
                prefix + target.id for target in child.targets if isinstance(target, ast.Name)
            )
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield prefix + child.target.id


def commands(page: str) -> Iterator[list[str]]:
    """The words of every command in a page's shell blocks."""
    for code in blocks(page, "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words:
                end = words.index("&&") if "&&" in words else len(words)
                yield words[:end]
                words = words[end + 1 :]
