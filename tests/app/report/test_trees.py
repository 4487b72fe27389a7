"""Trees of clusters: who joins whom, how far apart, and that no lines cross."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corsage.app.report.trees import Tree, drawing, joined, trees
from tests.support.reports import EVIL, with_everything


def test_the_nearest_join_first_and_groups_by_their_mean() -> None:
    points = {"a": 0.0, "b": 10.0, "c": 1.0, "d": 12.0}
    tree = joined({name: np.array([value]) for name, value in points.items()})
    assert list(tree.leaves) == ["a", "b", "c", "d"]
    assert [distance for *_, distance in tree.joins] == pytest.approx([1.0, 2.0, 10.5])
    assert sorted(tree.order()[:2]) in ([0, 2], [1, 3])
    places = tree.places()
    assert sorted(row for distance, row in places.values() if not distance) == [0.5, 1.5, 2.5, 3.5]
    assert places[6][0] == pytest.approx(10.5)


def test_its_names_are_escaped_and_it_stands_without_distances() -> None:
    drawn = drawing(Tree([EVIL, "x"], [(0, 1, 0.0)]), {EVIL: 3})
    assert EVIL not in drawn and "&lt;/script&gt;" in drawn and "(3)" in drawn


def test_a_folder_without_models_has_none(tmp_path: Path) -> None:
    results, _ = with_everything()
    assert trees(tmp_path, results) == {}
    (tmp_path / "fedrep" / "models").mkdir(parents=True)
    (tmp_path / "fedrep" / "models" / "fedrep.safetensors").write_bytes(b"damaged")
    assert trees(tmp_path, results) == {}
