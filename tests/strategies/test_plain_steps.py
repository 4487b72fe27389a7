"""Every method of SGD is the plain loop that it says: its models, its numbers, its traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import FederatedData
from tests.support.plain_steps import EPOCHS, ROUNDS, TABLE, Turn, descended, models, played
from tests.support.reference import agrees, examples, final, run, users_data

SIZES: dict[str, Any] = {"size_sigma": 0.8}
USUAL: dict[str, Any] = {"nodes": 3, "weighting": "examples", "local_epochs": EPOCHS, **SIZES}
ADAPTED = ["fedavg", "fedrep", "fedper", "fedbabu", "fedbabu, head", "lg-fedavg", "ditto"]
ADAPTED += ["lg-fedavg, warm-up", "perfedavg, fo"]


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """Users of unlike sizes."""
    return users_data(**SIZES)


@pytest.mark.parametrize("name", TABLE)
def test_a_run_is_the_loop(name: str, data: FederatedData) -> None:
    plain, algorithm = TABLE[name], name.partition(",")[0]
    two = {"num_rounds": 2, "perfedavg_adapt_steps": 0} if algorithm == "perfedavg" else {}
    strategy, result = run(algorithm, **{**USUAL, **plain.keys, **two})
    common, own = played(plain, strategy, data, two.get("num_rounds", ROUNDS))
    assert np.allclose(final(result), plain.shared(common), atol=2e-5)
    assert agrees(result, models(plain, common, own), data)
    summary = result.json()[0]
    if plain.floats or algorithm == "local":
        up = summary["rounds"] * 6 * 4 * plain.floats
        assert summary["bytes_up"] == summary["bytes_down"] == up
        assert summary["messages"] == (summary["rounds"] * 6 * 2 if plain.floats else 0)
    if algorithm == "scaffold":
        assert np.allclose(strategy.state.variate, common[1], atol=1e-4)
        assert np.abs(common[1]).max() > 1e-2
    if algorithm == "apfl":
        assert any(abs(kept[1] - 0.3) > 1e-3 for kept in own.values() if kept) == (
            "adaptive" in name
        )


@pytest.mark.parametrize("name", ADAPTED)
def test_a_new_user_adapts_as_the_method_says(name: str, data: FederatedData) -> None:
    """To six of its samples, and it sends nothing."""
    plain, algorithm = TABLE[name], name.partition(",")[0]
    new = {"new_users": 0.3, "adapt_samples": "6", "adapt_epochs": "5", "num_rounds": 3}
    strategy, result = run(algorithm, **{**USUAL, **plain.keys, **new})
    common, _ = played(plain, strategy, data, 3)
    assert plain.adapted is not None and np.allclose(final(result), plain.shared(common), atol=2e-5)
    found = {}
    for user in strategy.members.new_users:
        x, y = examples(data, user)
        rows = np.sort(generator(0, "new user's samples", user).permutation(len(y))[:6])
        found[user] = plain.adapted(common, Turn(user, 3, (x[rows], y[rows]), epochs=5))
    assert found and agrees(result, found, data, row=-1)


@pytest.mark.parametrize("name", ["fedavg", "fedbabu", "fedbabu, head"])
def test_fine_tuning_is_the_same_by_everybody_at_the_end(name: str, data: FederatedData) -> None:
    plain, algorithm = TABLE[name], name.partition(",")[0]
    strategy, result = run(algorithm, **USUAL, **plain.keys, fine_tune_epochs=3)
    common, own = played(plain, strategy, data)
    assert [row["strategy"] for row in result.json()] == [algorithm, f"{algorithm}+ft"]
    assert agrees(result, models(plain, common, own), data)
    turns = {user: Turn(user, ROUNDS, examples(data, user), epochs=3) for user in data.users}
    assert plain.adapted is not None
    tuned = {user: plain.adapted(common, turn) for user, turn in turns.items()}
    assert agrees(result, tuned, data, row=1)


def test_perfedavg_is_judged_after_its_steps_with_all_data_whatever_their_number(
    data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corsage.clients.perfedavg.CHUNK_GRADIENTS", 16)
    assert len({len(data[u].y_train) % 16 for u in data.users}) > 3
    _, result = run("perfedavg", perfedavg_alpha=0.5, perfedavg_adapt_steps=2, **SIZES)
    w = final(result)
    assert agrees(result, {u: descended(w, examples(data, u), 0.5, 2) for u in data.users}, data)
