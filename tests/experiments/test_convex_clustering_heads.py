"""The experiment on clustered heads: its data, and what it makes of results that are made up."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.core.errors import DataError
from corsage.datasets.idx import IDX_FILES
from corsage.experiments.convex_clustering import heads
from corsage.experiments.outcome import Options
from tests.support.grouped import two_kinds


def results(ours: float, agreement: float) -> heads.Results:
    """Two seeds of FedRep at 60%, and of the clustered heads."""

    def row(accuracy: float, **more: Any) -> dict[str, Any]:
        return {"accuracy_last10": accuracy, **more}

    found = {"clusters-found": 3, "agreement": agreement}
    return {
        "fedrep": [row(0.6), row(0.6)],
        heads.OURS: [row(ours - 0.1, **found), row(ours + 0.1, **found)],
        heads.EXACT: [row(ours, **found), row(ours, **found)],
    }


@pytest.mark.parametrize(
    ("ours", "agreement", "inside"),
    [(0.7, 1.0, (True, True)), (0.5, 1.0, (False, True)), (0.7, 0.5, (True, False))],
    ids=["both", "worse than FedRep", "other groups"],
)
def test_the_claims(ours: float, agreement: float, inside: tuple[bool, ...]) -> None:
    rows = heads.figures(results(ours, agreement), claims=True)
    lead = next(row for row in rows if row.case == "points")
    agree = next(row for row in rows if row.case == "agreement with the groups")
    assert (lead.inside, agree.inside) == inside
    assert lead.measured == pytest.approx(100 * ours - 60)
    bare = heads.figures(results(ours, agreement), claims=False)
    assert all(row.inside is None for row in bare)


def test_groups_call_the_same_classes_by_other_names(tmp_path: Path) -> None:
    """Images are all of one brightness a class: the label is a function of it in each group."""
    rng = np.random.default_rng(0)
    for name, count in zip(IDX_FILES[::2], (5000, 2000), strict=True):
        y = rng.integers(0, 10, count).astype(np.uint8)
        x = np.repeat(y, 4)
        (tmp_path / name).write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, count, 2, 2) + x.tobytes())
        labels = name.replace("images-idx3", "labels-idx1")
        (tmp_path / labels).write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + y.tobytes())
    options = Options(keys={"data_dir": str(tmp_path)})
    with np.load(heads.hidden(tmp_path, 0, options)) as data:
        brightness, arrays = data["x"][:, 0, 0], dict(data)
    names = {}
    for group in "012":
        mine = arrays["group"] == group
        pairs = set(zip(brightness[mine].tolist(), arrays["label"][mine].tolist(), strict=True))
        assert len(pairs) == 10 and len({label for _, label in pairs}) == 10
        names[group] = frozenset(pairs)
    assert len(set(names.values())) == 3
    for user in np.unique(arrays["user"]):
        mine = arrays["user"] == user
        assert len(set(arrays["group"][mine])) == 1
        assert (arrays["test"][mine].sum(), mine.sum()) == (heads.TEST, heads.TRAIN + heads.TEST)


def test_without_fashion_mnist_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"apt-get install dataset-fashion-mnist"):
        heads.hidden(tmp_path, 0, Options(keys={"data_dir": str(tmp_path)}))


def test_every_method_runs_and_says_which_clusters_it_finds(tmp_path: Path) -> None:
    """Users of two kinds stand for the groups."""
    keys = {**two_kinds(tmp_path), "num_rounds": 2, "fine_tune_epochs": 0, "seed": 0}
    for method in heads.METHODS:
        row = heads.once(method, {**keys, "fraction_train": 1.0, **method.keys})
        finds = method.strategy in ("fedrep-convex", "fedrep-exact", "ifca", "cfl")
        assert row["strategy"] == method.label and row["users"] == 10
        assert ("clusters-found" in row, "agreement" in row) == (finds, finds)
        if finds:
            assert 1 <= row["clusters-found"] <= 10 and -0.5 <= row["agreement"] <= 1
