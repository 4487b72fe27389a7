"""Every model that the table names can be loaded, and says what was reported of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import corsage
from corsage.app.engines import simulate
from corsage.core.registry import ALGORITHMS
from tests.support.federations import settings

MORE = {"new_users": 0.2, "fine_tune_epochs": 2, "num_rounds": 2, "convex_report": True}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_loaded_models_give_the_numbers_that_were_reported(name: str, tmp_path: Path) -> None:
    """Of every row and every user, whether it was ever drawn or is new: the difference is 0."""
    run = corsage.load(simulate(settings(name, strategy=name, run_dir=str(tmp_path), **MORE)))
    assert {name, f"{name}+new"} <= set(run)
    for row in run:
        assert run[row].evaluate() == run[row].per_user
