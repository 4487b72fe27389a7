"""What every algorithm must do, whatever it computes: found through the registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.registry import ALGORITHMS, place_of
from corsage.strategies import strategy_class
from tests.support.federations import (
    ASK_ALL,
    SEEDLESS,
    SUITED,
    federate,
    reference,
    same_arrays,
)
from tests.support.resuming import Resume, Stop

EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))


@EVERY
@pytest.mark.parametrize("nodes", [3, 12])
def test_the_number_of_nodes_changes_nothing(name: str, nodes: int) -> None:
    _, one, _ = reference(name)
    _, many, _ = reference(name, nodes)
    assert one.json()[0]["per_user"] == pytest.approx(many.json()[0]["per_user"], abs=1e-9)
    assert one.json()[0]["loss"] == pytest.approx(many.json()[0]["loss"], abs=1e-5)
    assert same_arrays(one.arrays, many.arrays)
    for key in ("bytes_up", "bytes_down", "messages"):
        assert one.json()[0][key] == many.json()[0][key]


@pytest.mark.parametrize("name", ["fedrep", "fedavg", "local"])
def test_one_three_or_fifty_nodes(name: str) -> None:
    _, one, _ = reference(name, num_users=50, fraction_train=0.3)
    for nodes in (3, 50):
        _, many, _ = federate(name, nodes=nodes, num_users=50, fraction_train=0.3)
        assert one.json()[0]["per_user"] == many.json()[0]["per_user"]
        assert same_arrays(one.arrays, many.arrays)


@EVERY
def test_a_second_run_is_identical_and_another_seed_is_not(name: str) -> None:
    _, first, _ = reference(name)
    _, second, _ = federate(name)
    _, other, _ = federate(name, seed=1)
    assert first.json()[0]["per_user"] == second.json()[0]["per_user"]
    assert first.json()[0]["loss"] == second.json()[0]["loss"]
    assert same_arrays(first.arrays, second.arrays, tolerance=0)
    assert (first.json()[0]["loss"] == other.json()[0]["loss"]) == (name in SEEDLESS)


@EVERY
def test_training_helps(name: str) -> None:
    """Methods that may be at their end after one round beat what they begin with: all is 0."""
    strategy, result, notes = federate(name, num_rounds=15, evaluate_every=1, lr=0.1)
    curve = [accuracy for _, accuracy in strategy.progress.curve]
    assert len(curve) == result.json()[0]["rounds"] == 15 or name in SEEDLESS
    first = 0.5 if name in SUITED else curve[0]
    assert np.mean(curve[-5:]) > min(first + 0.1, (1 + first) / 2)  # of .9 and more half the errors
    assert result.json()[0]["accuracy_last10"] == pytest.approx(np.mean(curve[-10:]))
    assert not notes.notes


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"local-clusters"}))  # has one round
def test_a_run_resumed_from_its_checkpoint_ends_the_same(name: str, tmp_path: Path) -> None:
    """Round 3 is trained but never checkpointed: what users kept of it must not leak."""
    whole, wanted, _ = federate(name, num_rounds=4, fraction_train=1.0)
    path, config = tmp_path / "checkpoint", whole.config
    grid = LocalGrid(app, 3)
    broken = type(whole)(config, [Stop(path, after=3)], experiment="e")
    with pytest.raises(KeyboardInterrupt):
        broken.start(grid)
    result = type(whole)(config, [Resume(path, 2)], experiment="e").start(grid)
    assert result.json()[0]["per_user"] == wanted.json()[0]["per_user"]
    assert result.json()[0]["loss"] == pytest.approx(wanted.json()[0]["loss"], abs=1e-7)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=1e-7)
    for key in ("bytes_up", "bytes_down", "messages", "never_drawn"):
        assert result.json()[0][key] == wanted.json()[0][key]


@EVERY
def test_every_user_is_evaluated_and_the_rest_named(name: str) -> None:
    strategy, result, notes = federate(name, num_rounds=1, fraction_train=0.25)
    summary = result.json()[0]
    assert summary["users"] == 12
    last, trained = notes.rows[-1], 12 if name in ASK_ALL else 3
    assert summary["never_drawn"] == 12 - trained
    assert last["participants"]["users"] == trained
    assert last.get("newcomers", {"users": 0})["users"] == 12 - trained
    drawn = [summary["per_user"][user] for user in strategy.progress.trained]
    assert last["participants"]["accuracy"] == pytest.approx(np.mean(drawn))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_class_says_which_file_it_is_of(name: str) -> None:
    """A preset's, which is made and not written, too."""
    cls = strategy_class(name)
    assert cls.__module__ == f"corsage.{place_of(name)}"
    assert cls.__name__ == ALGORITHMS[name].cls
