"""FedRep is its own paper's Algorithm 1, and needs nothing of the other two papers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_floors import ROOT, imported

OTHERS = ("known_clusters", "convex_clustering")


def file_of(name: str) -> Path | None:
    """The file of a module, or of the module that a name is taken from."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if found.is_file():
                return found
    return None


def needed(*first: str) -> set[Path]:
    """All files that some modules import, also inside of functions, and what these import."""
    found: set[Path] = set()
    todo = list(first)
    while todo:
        path = file_of(todo.pop())
        if path is not None and path not in found:
            found.add(path)
            todo += imported(path)
    return found


@pytest.mark.parametrize("floor", ["strategies", "clients"])
def test_fedrep_needs_neither_of_the_other_papers(floor: str) -> None:
    files = needed(f"{floor}.fedrep.fedrep")
    assert ROOT / "strategies/rounds/base.py" in files  # the search finds what is needed
    wrong = [file for file in files if set(file.relative_to(ROOT).parts) & set(OTHERS)]
    beside = [file for file in files if file.parent.name == "fedrep" and file.stem != "fedrep"]
    assert not wrong
    assert [file.name for file in beside if file.name != "__init__.py"] == []


def test_the_search_finds_the_papers_where_they_are_needed() -> None:
    for name, paper in (("fedrep_convex", OTHERS[1]), ("fedrep_known", OTHERS[0])):
        files = needed(f"strategies.fedrep.{name}")
        assert any(paper in file.parts for file in files)
