"""CFL against a plain loop over its Algorithm 3, cuts by brute force; users of two kinds."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.messages.encoding import decode
from corsage.strategies.cfl import bipartition, norms, similarities
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import federate
from tests.support.grouped import is_turned, two_kinds
from tests.support.reference import (
    Vector,
    agrees,
    chosen,
    examples,
    flat,
    fresh,
    plain_sgd,
    run,
    user_batches,
    users_data,
)

USERS = [str(i) for i in range(12)]
SPLITTING: dict[str, Any] = {"cfl_eps1": 0.3, "cfl_eps2": 0.5}


def brute_force(alpha: np.ndarray) -> tuple[tuple[int, ...], float]:
    """argmin over all cuts in two of the largest similarity across; 0 marks user 0's half."""
    best: tuple[tuple[int, ...], float] = ((), np.inf)
    for rest in product((0, 1), repeat=len(alpha) - 1):
        side = np.array([0, *rest])
        if side.any():
            cross = float(alpha[side == 0][:, side == 1].max())
            if cross < best[1]:
                best = tuple(side.tolist()), cross
    return best


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_the_cut_is_the_best_of_all(n: int) -> None:
    for seed in range(40):
        alpha = similarities(np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32))
        second, cross = bipartition(alpha)
        sides, least = brute_force(alpha)
        assert cross == pytest.approx(least) and second.astype(int).tolist() == list(sides)


def test_similarity_is_the_cosine_and_no_update_is_like_none() -> None:
    updates = np.array([[2, 0], [0, 3], [-1, -1], [0, 0]], np.float32)
    root = np.sqrt(0.5)
    wanted = [[1, 0, -root, 0], [0, 1, -root, 0], [-root, -root, 1, 0], [0, 0, 0, 0]]
    assert np.allclose(similarities(updates), wanted)


def test_the_norms_are_of_the_mean_and_of_the_largest_update() -> None:
    updates = np.array([[3, 4], [0, 1], [0, 0]], np.float32)
    assert norms(updates, np.ones(3)) == pytest.approx((np.hypot(1, 5 / 3), 5))
    assert norms(updates, np.array([1.0, 0, 4])) == pytest.approx((1, 5))


def reference(strategy: Strategy[Any, Any], data: Any, rounds: int, keys: dict[str, Any]) -> Any:
    """Algorithm 3; users that are not drawn send nothing, and all must have sent before a cut."""
    clusters, models = dict.fromkeys(USERS, 0), [flat(fresh())]
    last: dict[str, Vector] = {}
    cuts = []
    for number in range(1, rounds + 1):
        drawn = chosen(strategy, number)
        updates = {}
        for user in drawn:
            start = models[clusters[user]]
            steps = user_batches(data, user, "model", number, 1)
            updates[user] = plain_sgd(start, examples(data, user), steps) - start
        last |= updates
        for c in range(len(models)):
            own = [updates[user] for user in drawn if clusters[user] == c]
            models[c] = models[c] + (np.mean(own, axis=0) if own else 0)
            members = [user for user in USERS if clusters[user] == c]
            if len(members) < 2 or not set(members) <= set(last):
                continue
            known = np.stack([last[user] for user in members])
            largest = max(np.linalg.norm(u) for u in known)
            if np.linalg.norm(known.mean(axis=0)) >= keys["cfl_eps1"]:
                continue
            if largest <= keys["cfl_eps2"]:
                continue
            unit = known / np.linalg.norm(known, axis=1, keepdims=True)
            sides, cross = brute_force(unit @ unit.T)
            if keys.get("cfl_gamma_max", 0.0) >= np.sqrt((1 - cross) / 2):
                continue
            cuts.append((number, c, len(models)))
            for user, side in zip(members, sides, strict=True):
                del last[user]
                clusters[user] = len(models) if side else c
            models.append(models[c])
    return clusters, models, cuts


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_cfl_is_algorithm_3(fraction: float) -> None:
    rounds = 12
    strategy, result = run("cfl", fraction_train=fraction, num_rounds=rounds, **SPLITTING)
    clusters, models, cuts = reference(strategy, users_data(), rounds, SPLITTING)
    assert len(cuts) > 1  # it did happen, and a half was cut again or another round cut
    state = strategy.state
    assert [(s.round, s.cluster, s.new) for s in state.splits] == cuts
    assert state.clusters == clusters
    assert result.arrays is not None
    found = np.concatenate([a.reshape(-1) for a in decode(result.arrays).values()])
    assert np.allclose(found.reshape(len(models), -1), np.stack(models), atol=2e-5)
    assert agrees(result, {user: models[c] for user, c in clusters.items()}, users_data())


def test_each_condition_alone_prevents_a_cut() -> None:
    keys = {**SPLITTING, "fraction_train": 1.0, "num_rounds": 12}
    sizes, told, largest = [], [], []
    for more in ({}, {"cfl_eps1": 0.0}, {"cfl_eps2": 50.0}, {"cfl_gamma_max": 1.0}):
        strategy, _ = run("cfl", **{**keys, **more})
        sizes.append(len(strategy.state.models))
        told.append([text for found in strategy.findings() for _, text in found.rows])
        largest.append(strategy.state.norms[0][1])
    assert sizes[0] > 1 and sizes[1:] == [1, 1, 1] and not told[0]
    assert "is not below cfl-eps1=0" in told[1][0] and "cfl-gamma-max=1" in told[3][0]
    assert f"no |update| is above cfl-eps2=50, the largest is {largest[2]:.3g}" in told[2][0]


TWO_KINDS = {"fraction_train": 1.0, "cfl_eps1": 0.6, "cfl_eps2": 1.0, "cfl_gamma_max": 0.4}


def test_users_of_two_kinds_are_told_apart_and_new_users_find_theirs(tmp_path: Path) -> None:
    keys = {**two_kinds(tmp_path), **TWO_KINDS, "num_rounds": 30, "new_users": 0.3, "seed": 3}
    strategy, result, _ = federate("cfl", **keys, adapt_samples="50", adapt_epochs="1")
    clusters, new = strategy.state.clusters, strategy.members.new_users
    kinds = [{c for u, c in clusters.items() if is_turned(u) == kind} for kind in (False, True)]
    assert not set(new) & set(clusters)
    assert kinds[0] and kinds[1] and not kinds[0] & kinds[1]
    assert {is_turned(user) for user in new} == {False, True}
    (last,) = (s for s in result.json() if s["strategy"] == "cfl+new")
    assert min(last["per_user"].values()) > 0.7  # with the model of the other kind: 0.1 to 0.4


def test_a_user_whose_replies_are_dropped_is_not_waited_for() -> None:
    keys = {**SPLITTING, "fraction_train": 1.0, "num_rounds": 12}
    strategy, _ = run("cfl", **keys)
    first = strategy.state.splits[0].round

    class Silent(type(strategy)):  # type: ignore[misc]
        def choose(self, number: int, users: list[str]) -> list[str]:
            return [user for user in users if user != "3"]

    config = strategy.config
    waits, does_not = Silent(config), Silent(config)
    does_not.progress.dropped["3"] = 1
    for each in (waits, does_not):
        each.start(LocalGrid(app, 1), num_rounds=first + 2)
    assert not waits.state.splits and does_not.state.splits
    assert does_not.state.clusters["3"] == 0
