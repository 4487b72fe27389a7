"""Every method of SGD is the plain loop that it says: its models, its numbers, its traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import FederatedData
from tests.support.plain_steps import EPOCHS, ROUNDS, TABLE, Turn, descended, models, played
from tests.support.reference import KEYS, agrees, chosen, examples, final, run, users_data

SIZES: dict[str, Any] = {"size_sigma": 0.8}
USUAL: dict[str, Any] = {"nodes": 3, "weighting": "examples", "local_epochs": EPOCHS, **SIZES}
ALIKE = ("fedavg, users alike", "fedavg, lr step", "fedrep, users alike")
"""Rows whose users train on at the end as those of another row do."""
NEW = {"new_users": 0.3, "adapt_samples": "6", "adapt_epochs": "5"}
ADAPTED = ["fedavg", "fedrep", "fedper", "fedbabu", "lg-fedavg", "ditto"]
ADAPTED += ["lg-fedavg, warm-up", "perfedavg, fo", "fedlc", "mr-mtl", "fedala", "moon", "feddbe"]


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """Users of unlike sizes."""
    return users_data(**SIZES)


@pytest.mark.parametrize("name", TABLE)
def test_a_run_is_the_loop(name: str, data: FederatedData) -> None:
    """And what comes after its rounds: everybody trains on, and new users adapt to six samples."""
    plain, algorithm = TABLE[name], name.partition(",")[0]
    rounds = 2 if algorithm == "perfedavg" else ROUNDS
    tuned = plain.tuned if name not in ALIKE else {}
    more: dict[str, Any] = {"num_rounds": rounds, "fine_tune_epochs": 2 if tuned else 0}
    more |= {"perfedavg_adapt_steps": 0} if algorithm == "perfedavg" else {}
    more |= NEW if name in ADAPTED else {}
    strategy, result = run(algorithm, **{**USUAL, **plain.keys, **more})
    common, own = played(plain, strategy, data, rounds)
    own = {user: own[user] for user in strategy.members.users}
    assert np.allclose(final(result), plain.shared(common), atol=2e-5)
    assert agrees(result, models(plain, common, own), data)
    summary = result.json()[0]
    if plain.floats or algorithm == "local":
        sent = summary["rounds"] * len(chosen(strategy, 1)) if plain.floats else 0
        assert summary["bytes_up"] == summary["bytes_down"] == sent * 4 * plain.floats
        assert summary["messages"] == 2 * sent
    if algorithm == "scaffold":
        assert np.allclose(strategy.state.variate, common[1], atol=1e-4)
        assert np.abs(common[1]).max() > 1e-2
    if algorithm == "apfl":
        assert any(abs(kept[1] - 0.3) > 1e-3 for kept in own.values() if kept) == (
            "adaptive" in name
        )
    ends = [*tuned, *(["new"] if name in ADAPTED else [])]
    found = [row["strategy"] for row in result.json()]
    assert found == [algorithm, *(f"{algorithm}+{end}" for end in ends)]
    if tuned:
        train_on(name, result, data, common, own)
    if name in ADAPTED:
        adapt(plain, strategy, result, data, common)


def train_on(name: str, result: Any, data: FederatedData, common: Any, own: Any) -> None:
    """The head or all of a global model, or a user's own part, drawn or not."""
    plain, rows, turns = TABLE[name], result.json(), {}
    never = [user for user in own if own[user] is None] if "own" in plain.tuned else []
    assert rows[0].get("untrained", []) == never or name == "lg-fedavg, warm-up"
    for user in own:
        turns[user] = Turn(user, ROUNDS, examples(data, user), {**KEYS, **plain.keys}, epochs=2)
    for row, tune in enumerate(plain.tuned.values(), 1):
        tuned = {user: tune(common, own[user], turn) for user, turn in turns.items()}
        assert agrees(result, tuned, data, row=row)
        assert rows[row].get("untrained") is None
        assert rows[row]["gradient_steps"] > rows[0]["gradient_steps"]


def adapt(plain: Any, strategy: Any, result: Any, data: FederatedData, common: Any) -> None:
    """A new user sends nothing."""
    found = {}
    for user in strategy.members.new_users:
        x, y = examples(data, user)
        rows = np.sort(generator(0, "new user's samples", user).permutation(len(y))[:6])
        turn = Turn(user, strategy.progress.round, (x[rows], y[rows]), epochs=5)
        found[user] = plain.adapted(common, turn)
    assert found and agrees(result, found, data, row=-1)


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
