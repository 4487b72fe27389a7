"""Every method for linear models takes users with one row, few rows, and features without sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import fit
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class
from corsage.strategies.rounds.results import Summary
from tests.support.federations import KNOWN_CLUSTERS, Notes
from tests.support.odd_users import ODD, odd_table

SGD = ("fedrep", "fedavg", "ditto")
METHODS = (*KNOWN_CLUSTERS, "convex-clustering", "local-clusters")


def run(name: str, file: Path, *, numbers: bool, **keys: Any) -> tuple[Summary, list[str]]:
    """A method with its default keys, but for the number of rounds."""
    notes = Notes()
    kinds = {"loss": "squared", "labels": "numbers"} if numbers else {"loss": "logistic"}
    own = {
        "dataset": "npz",
        "data-file": str(file),
        "cluster-column": "cluster",
        "user-column": "user",
        "model": "linear",
        "num-rounds": 3,
        "evaluate-every": 100,
        **kinds,
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }
    strategy = strategy_class(name)(Config.parse(own), [notes])
    return strategy.start(LocalGrid(app, 1)).summaries[0], notes.notes


def text(summary: Summary, notes: list[str]) -> str:
    """All that the method said."""
    rows = [f"{label}: {value}" for f in summary.findings for label, value in f.rows]
    return "\n".join([*rows, *notes])


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_odd_users_take_part(name: str, numbers: bool, tmp_path: Path) -> None:
    keys = {"convex_lambda": 0.05, "convex_report": False} if name == "convex-clustering" else {}
    summary, _ = run(name, odd_table(tmp_path, numbers=numbers), numbers=numbers, **keys)
    assert summary.users == 12 and not summary.dropped
    assert np.isfinite(list(summary.per_user.values())).all()
    assert np.isfinite(summary.loss.mean)


EXACT = [m for m in METHODS if not m.startswith("async")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(m, ODD[(i + j) % (len(ODD) - 1)]) for i, m in enumerate(EXACT) for j in (0, 2)],
)
def test_everybody_may_be_odd(name: str, kind: str, tmp_path: Path) -> None:
    """Two kinds a method, in turns; above, all users of a run are of one kind each."""
    keys = {"convex_lambda": 0.05, "convex_report": False} if name == "convex-clustering" else {}
    file = odd_table(tmp_path, numbers=True, everybody=kind)
    summary, _ = run(name, file, numbers=True, **keys)
    assert summary.users == 12 and not summary.dropped
    assert np.isfinite(list(summary.per_user.values())).all()


@pytest.mark.parametrize("name", ["mixed-model", "exact-local", "exact-global"])
def test_classes_that_a_plane_separates(name: str, tmp_path: Path) -> None:
    file = odd_table(tmp_path, numbers=False, separable=True)
    summary, notes = run(name, file, numbers=False, num_rounds=4)
    assert not summary.dropped and np.isfinite(summary.loss.mean)
    assert "not settled" in text(summary, notes)


def test_what_is_done_with_few_rows_is_said(tmp_path: Path) -> None:
    file = odd_table(tmp_path, numbers=True)
    few = "fewer rows than coefficients: 2 of 12 users"
    said = text(*run("exact-local", file, numbers=True))
    assert few in said and "shortest" in said
    said = text(*run("mixed-model", file, numbers=True))
    assert few in said and "centre" in said
    said = text(*run("local-clusters", file, numbers=True))
    assert few in said


def test_convex_clustering_finds_lambda_with_few_rows(tmp_path: Path) -> None:
    file = odd_table(tmp_path, numbers=True, everybody="few rows")
    summary, notes = run("convex-clustering", file, numbers=True, convex_report=False)
    assert np.isfinite(summary.score.mean)
    assert "fewer rows than coefficients" in text(summary, notes)


@pytest.mark.parametrize("numbers", [True, False])
def test_every_method_takes_one_row_and_no_test_row(numbers: bool) -> None:
    """Straight from a table: sites of one row, two, three and four rows beside larger ones."""
    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 4, 20, 20]
    x, site = rng.standard_normal((sum(sizes), 4)), np.repeat(list("abcdef"), sizes)
    y: Any = x @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.standard_normal(len(x))
    y = y if numbers else (y > 0).astype(int)
    clusters = np.where(np.isin(site, list("ace")), "one", "two")
    for name in ("exact-local", "mixed-model", "convex-clustering", "fedrep", "fedavg", "ditto"):
        own: dict[str, Any] = {} if name in SGD else {"model": "linear"}
        if name not in SGD and not numbers:
            own["loss"] = "logistic"
        if name == "convex-clustering":
            own |= {"convex_lambda": 0.05, "convex_report": False}
        run = fit(
            x=x, y=y, user=site, cluster=clusters, strategy=name, num_rounds=2, hidden="4",
            progress=False, **own,
        )  # fmt: skip
        found = run.summaries[0]
        assert not found.dropped and found.untested == ["a"] and found.users == 5
        assert len(run[name].user("a").predict(x[:2])) == 2
        assert "1 user has no test samples, and no share in these numbers: a" in str(run)
