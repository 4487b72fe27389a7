"""Every model that the table names can be loaded, and says what was reported of it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import corsage
from corsage.app.engines import simulate
from corsage.core.config import Config
from corsage.core.registry import ALGORITHMS
from tests.support.federations import settings

TABLES = ("users", "clusters", "coefficients")
SIX = ("fedrep", "fedrep+new")
MORE = {"new_users": 0.2, "fine_tune_epochs": 2, "num_rounds": 2, "convex_report": True}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_loaded_models_give_the_numbers_that_were_reported(name: str, tmp_path: Path) -> None:
    """Of every row and every user, whether it was ever drawn or is new: the difference is 0."""
    run = corsage.load(simulate(settings(name, strategy=name, run_dir=str(tmp_path), **MORE)))
    assert {name, f"{name}+new"} <= set(run)
    for row in run:
        assert run[row].evaluate() == run[row].per_user


def test_a_run_without_a_folder_has_its_models_too() -> None:
    """In memory: rows of several strategies, and of one that is run twice."""
    keys = {"num_users": 6, "num_rounds": 2, "num_nodes": 3, "new_users": 0.3, "hidden": "8"}
    found = corsage.simulate(["fedrep,fedavg", "fedrep"], progress=False, **keys)
    assert list(found) == [
        *SIX[:2],
        "fedavg",
        "fedavg+ft",
        "fedavg+new",
        "fedrep#2",
        "fedrep#2+new",
    ]
    for row in found:
        assert found[row].evaluate() == found[row].per_user
    head = found["fedrep"].user(found["fedrep"].users[0]).state_dict()["head.bias"]
    assert found["fedrep"].score.mean == found.results["fedrep"]["fedrep"].score.mean
    assert head.shape == (10,)


def test_linear_models_and_clusters_are_tables(tmp_path: Path) -> None:
    """In double precision; a name that a spreadsheet would compute is text."""
    names, data = ("=1+1", "@b", "c"), np.random.default_rng(0)
    lines = ["who,site,a,b,y"]
    for user in names:
        x = data.normal(size=(20, 2))
        y = x @ [2.0, -1.0] + len(user)
        rows = zip(x.tolist(), y.tolist(), strict=True)
        lines += [f"{user},north,{a},{b},{label}" for (a, b), label in rows]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    keys = {"dataset": "csv", "data-file": str(tmp_path / "t.csv"), "user-column": "who"}
    keys |= {"label-column": "y", "labels": "numbers", "model": "linear", "num-rounds": "3"}
    keys |= {"cluster-column": "site", "run-dir": str(tmp_path), "known-gamma": "1"}
    strategies = {"strategy": "mixed-model,exact-local,fedavg", "known-lambda": "1"}
    folder = simulate(Config.parse({**keys, **strategies}))
    run = corsage.load(folder)
    for row in run:
        assert run[row].evaluate() == run[row].per_user
    own = run["exact-local"].user("c").coefficients
    assert np.allclose(list(own.values()), [2.0, -1.0, 1.0])
    assert run["exact-local"].user("c").module().state_dict()["head.weight"].dtype == torch.float64
    assert run["mixed-model"].clusters == dict.fromkeys(names, "north")
    assert run["exact-local"].clusters == {}
    found = {name: list(csv.reader((folder / f"{name}.csv").open())) for name in TABLES}
    assert found["users"][0] == ["strategy", "user", "train", "test", "cluster", "rmse"]
    assert found["users"][3][:3] == ["mixed-model", "'=1+1", "16"]
    assert [line[1:] for line in found["clusters"][1:]] == [
        [user, "north"] for user in ("c", "'@b", "'=1+1")
    ]
    last = {
        line[2]: float(line[3])
        for line in found["coefficients"]
        if line[:2] == ["exact-local", "c"]
    }
    assert last == own
