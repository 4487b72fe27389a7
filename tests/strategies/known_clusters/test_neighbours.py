"""The mixed model beside one model for all, one a cluster and one a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.messages.replies import Replies
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters.neighbours import (
    ONE_A_USER,
    ONE_FOR_ALL,
    Beside,
    Neighbours,
    beside,
    of_both,
)
from corsage.strategies.known_clusters.own_sums import OwnSums
from corsage.strategies.rounds.base import Result, Strategy
from tests.support.federations import Notes

NAMES = {
    "one model for all": ("exact-global", {}),
    "one model a cluster": ("exact-cluster", {}),
    "one model a user": ("exact-local", {}),
    "random intercepts alone": ("mixed-model", {"mixed_random": "intercept"}),
    "one centre for all clusters": ("mixed-model", {"mixed_grouping": "all"}),
}


def written(folder: Path, spread: float, *, classes: bool = False) -> Path:
    """30 users of three clusters with 20 records; users differ by `spread`."""
    rng, n, m = np.random.default_rng(3), 30, 20
    user = np.repeat(np.arange(n), m)
    x = rng.standard_normal((n * m, 2))
    theta = np.array([1.0, -1.0]) + spread * rng.standard_normal((n, 2))
    scores = (x * theta[user]).sum(1)
    y: Floats = scores + rng.standard_normal(n * m)
    if classes:
        y = (rng.random(n * m) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    path = folder / f"users {spread} {classes}.npz"
    np.savez(path, x=x, y=y, user=user, cluster=user % 3, test=np.arange(n * m) % m < 8)
    return path


def run(name: str, file: Path, **keys: Any) -> tuple[Strategy[Any, Any], Result, Notes]:
    own = {
        "dataset": "npz", "data-file": str(file), "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "num-rounds": 30, "evaluate-every": 1000,
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    notes = Notes()
    strategy = strategy_class(name)(Config.parse(own), [notes])
    return strategy, strategy.start(LocalGrid(app, 2)), notes


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_they_are_the_methods_of_these_names(kind: str, tmp_path: Path) -> None:
    file = written(tmp_path, 0.5, classes=kind == "classes")
    keys = {"labels": kind, "loss": "logistic" if kind == "classes" else "squared"}
    keys |= {"mixed_variances": "one", "mixed_intervals": "never", "mixed_aside": "never"}
    strategy, result, _ = run("mixed-model", file, **keys)
    found = strategy.neighbours
    assert len(found.beside) == (5 if kind == "numbers" else 3)
    assert found.own == pytest.approx(result.summaries[0].loss.mean, rel=1e-9)
    for one in found.beside:
        name, more = NAMES[one.neighbour.title]
        _, theirs, _ = run(name, file, **keys, **more, mixed_neighbours="never")
        if kind == "numbers" or one.neighbour is not ONE_A_USER:  # classes may have none
            assert one.loss == pytest.approx(theirs.summaries[0].loss.mean, rel=1e-6)
        assert one.gap == pytest.approx(one.loss - found.own, abs=1e-9)
    _, without, _ = run("mixed-model", file, mixed_neighbours="never", **keys)
    assert without.json()[0]["bytes_up"] == result.json()[0]["bytes_up"]
    assert "neighbours" not in str(without.json()[0]["findings"])


def test_what_is_better_is_named(tmp_path: Path) -> None:
    """Users that hardly differ, and a mixed model that was made to believe that they do."""
    file = written(tmp_path, 0.0)
    own = np.linspace(1.0, 2.0, 12)
    swing, even = np.sin(np.arange(12)), np.ones(12)
    better = beside(ONE_FOR_ALL, own, own - 0.2 + 0.01 * swing, even)
    noise = beside(ONE_A_USER, own, own - 0.2 + 3.0 * swing, even)
    found = Neighbours(1.5, [noise, better])
    assert not noise.better and found.best is better
    assert "strategy=exact-global" in str(found.findings())
    strategy, _, notes = run("mixed-model", file, labels="numbers")
    assert strategy.neighbours.told == "" and not any("strategy=" in n for n in notes.notes)


def test_who_is_set_aside_has_no_say_in_which_method_is_better() -> None:
    """Users are matched by name, and a liar's losses count as little as its sums."""
    samples = np.array([4.0, 2.0, 0.0, 3.0])
    mine = Replies(["a", "b", "c", "d"], metrics={"loss": np.arange(4.0), "num-examples": samples})
    theirs = Replies(["d", "b", "a"], metrics={"loss": np.array([30.0, 10.0, 0.5])})
    found = of_both(mine, theirs, ["d"])
    assert [one.tolist() for one in found] == [[0.0, 1.0], [0.5, 10.0], [4.0, 2.0]]
    assert of_both(mine, theirs, [])[1].tolist() == [0.5, 10.0, 30.0]


def test_what_the_server_has_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, question = list[str](), OwnSums.question
    monkeypatch.setattr(
        OwnSums,
        "question",
        lambda sums, cohort: (asked.append(cohort.name), question(sums, cohort))[1],
    )
    strategy, _, _ = run("mixed-model", written(tmp_path, 0.5), labels="numbers")
    titles = [one.neighbour.title for one in strategy.neighbours.beside]
    assert titles[3:] == ["random intercepts alone", "one centre for all clusters"]
    assert len(asked) == len(set(asked))


def test_given_strengths_have_none(tmp_path: Path) -> None:
    strategy, _, _ = run("mixed-model", written(tmp_path, 0.5), labels="numbers", known_gamma=1)
    assert strategy.neighbours is None


def test_differences_are_written_as_people_read_them() -> None:
    assert Beside(ONE_FOR_ALL, 1085.2, 804.4, 312.0).text == "1085.2 (+800, se 300)"
    assert Beside(ONE_FOR_ALL, 0.024412, -0.0022, 0.0031).text == "0.024412 (-0.0022, se 0.003)"
