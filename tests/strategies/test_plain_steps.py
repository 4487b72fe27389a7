"""Every method of SGD is the plain loop that it says: its models, its numbers, its traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import FederatedData
from tests.support.plain_steps import EPOCHS, ROUNDS, TABLE, Turn, descended, models, played
from tests.support.reference import KEYS, agrees, examples, final, run, users_data

SIZES: dict[str, Any] = {"size_sigma": 0.8}
USUAL: dict[str, Any] = {"nodes": 3, "weighting": "examples", "local_epochs": EPOCHS, **SIZES}
ADAPTED = ["fedavg", "fedrep", "fedper", "fedbabu", "lg-fedavg", "ditto"]
ADAPTED += ["lg-fedavg, warm-up", "perfedavg, fo", "fedlc", "mr-mtl", "fedala", "moon", "feddbe"]


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


@pytest.mark.parametrize("name", [name for name, plain in TABLE.items() if plain.tuned])
def test_everybody_trains_at_the_end_drawn_or_not(name: str, data: FederatedData) -> None:
    """The head or all of a global model, or its own part: rows of their own, with their steps."""
    plain, algorithm = TABLE[name], name.partition(",")[0]
    keys = {**USUAL, **plain.keys, "fine_tune_epochs": 3, "num_rounds": 3}
    strategy, result = run(algorithm, **keys)
    common, own = played(plain, strategy, data, 3)
    rows, turns = result.json(), {}
    assert [r["strategy"] for r in rows] == [algorithm, *(f"{algorithm}+{n}" for n in plain.tuned)]
    assert agrees(result, models(plain, common, own), data)
    never = [user for user in data.users if own[user] is None] if "own" in plain.tuned else []
    assert rows[0].get("untrained", []) == never or name == "lg-fedavg, warm-up"
    for user in data.users:
        turns[user] = Turn(user, 3, examples(data, user), {**KEYS, **plain.keys}, epochs=3)
    for row, tune in enumerate(plain.tuned.values(), 1):
        tuned = {user: tune(common, own[user], turn) for user, turn in turns.items()}
        assert agrees(result, tuned, data, row=row)
        assert rows[row].get("untrained") is None
        assert rows[row]["gradient_steps"] > rows[0]["gradient_steps"]


def test_who_learns_alone_trains_on_at_the_end_only_where_somebody_never_did() -> None:
    for share, rows in ((1.0, ["local"]), (0.5, ["local", "local+own"])):
        _, result = run("local", num_rounds=1, fraction_train=share, fine_tune_epochs=1)
        assert [summary.strategy for summary in result.summaries] == rows


def test_perfedavg_is_judged_after_its_steps_with_all_data_whatever_their_number(
    data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corsage.clients.perfedavg.CHUNK_GRADIENTS", 16)
    assert len({len(data[u].y_train) % 16 for u in data.users}) > 3
    _, result = run("perfedavg", perfedavg_alpha=0.5, perfedavg_adapt_steps=2, **SIZES)
    w = final(result)
    assert agrees(result, {u: descended(w, examples(data, u), 0.5, 2) for u in data.users}, data)
