"""Names and docstrings of the product: what can be counted of them grows beyond no limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from corsage.benchmarks.house.limits import beyond, doubled_files, in_words, limits
from corsage.benchmarks.house.sources import Sources

ROOT = Path(__file__).parents[1]


def test_words_are_within_their_limits() -> None:
    found = in_words(Sources(ROOT))
    assert len(found) == 4
    assert not beyond(found, limits())


def test_a_figure_beyond_its_limit_or_without_one_is_named() -> None:
    assert beyond({"files": 3}, {"files": 3, "lines": 9}) == []
    assert beyond({"files": 1234}, {"files": 3}) == ["files: 1,234, and the limit is 3"]
    assert beyond({"new": 1}, {}) == ["new: 1, and the limit is 0"]


@pytest.mark.parametrize(
    ("places", "several"),
    [
        (["app/run/held.py", "core/held.py"], ["held"]),
        (["strategies/ditto.py", "clients/ditto.py"], []),
        (["strategies/base.py", "core/base.py"], []),
    ],
)
def test_one_file_name_stands_in_one_room(
    tmp_path: Path, places: list[str], several: list[str]
) -> None:
    """But for the halves of an algorithm, and for what means the same wherever it stands."""
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    assert list(doubled_files(Sources(tmp_path))) == several


def test_docstrings_and_constants_are_counted(tmp_path: Path) -> None:
    for name in ("one", "two"):
        text = '"""What it is."""\nMOST = 3\ndef f():\n    """Who it is."""\n'
        (tmp_path / "app").mkdir(exist_ok=True)
        (tmp_path / "app" / f"{name}.py").write_text(text)
    assert list(in_words(Sources(tmp_path)).values()) == [2, 2, 0, 1]
