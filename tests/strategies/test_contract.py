"""What every algorithm must do, whatever it computes: found through the registry."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.core.registry import ALGORITHMS, place_of
from corsage.strategies import strategy_class
from tests.support.federations import ASK_ALL, SEEDLESS, SUITED, federate, reference, same_arrays

LEVELS = "random-intercepts"
"""Its users share their slopes, and those of the ellipses differ in nothing else."""
EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))


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
    first = 0.4 if name == LEVELS else 0.5 if name in SUITED else curve[0]
    assert np.mean(curve[-5:]) > min(first + 0.1, (1 + first) / 2)  # of .9 and more half the errors
    assert result.json()[0]["accuracy_last10"] == pytest.approx(np.mean(curve[-10:]))
    assert not notes.notes or (name == "fedrep-exact" and "train alone" in notes.notes[0])


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
