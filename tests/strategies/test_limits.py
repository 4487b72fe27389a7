"""Methods at the ends of their keys, where one is another; and what each sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from corsage import FedRep, simulate
from corsage.core.errors import ModelError
from corsage.core.messages.encoding import decode
from tests.support.plain_steps import START
from tests.support.reference import examples, final, fresh, run, users_data

UNLIKE: dict[str, Any] = {"size_sigma": 0.5, "weighting": "examples"}
ALONE: dict[str, Any] = {"num_users": 1, "fraction_train": 1.0, "local_epochs": 2}
APART: dict[str, Any] = {"fedpac_lambda": 0.0, "fedpac_collaboration": False}
SAME = [
    # a method, the keys at their end, and the one that it is then; other keys of both
    ("apfl", {"apfl_alpha": 0.0}, "fedavg", {}),
    ("apfl", {"apfl_alpha": 1.0}, "local", {"num_rounds": 6}),
    ("cfl", {"cfl_eps1": 0.0}, "fedavg", UNLIKE),
    ("cfl", {"cfl_eps1": 0.0}, "fedavg", {"size_sigma": 0.5}),
    ("ditto", {"ditto_lambda": 0.0, "ditto_epochs": 3}, "local", {"local_epochs": 3}),
    ("fedala", {"fedala_eta": 0.0}, "fedavg", UNLIKE),
    ("fedbn", {}, "fedavg", UNLIKE),
    ("feddbe", {"feddbe_kappa": 0.0, "feddbe_shift": 0.0}, "fedavg", UNLIKE),
    ("feddyn", {"feddyn_alpha": 0.0}, "fedavg", UNLIKE),
    ("fedem", {"fedem_components": 1}, "fedavg", UNLIKE),
    ("fedem", {"fedem_components": 1}, "fedavg", {"size_sigma": 0.5}),
    ("fedlc", {"fedlc_tau": 0.0}, "fedavg", {**UNLIKE, "fine_tune_epochs": 2}),
    ("fedmtl", {"fedmtl_lambda1": 0.0, "fedmtl_lambda2": 0.0}, "local", {}),
    ("fedpac", {**APART, "fedpac_head_epochs": 3}, "fedrep", {**UNLIKE, "head_epochs": 3}),
    ("fedper", {}, "local", ALONE),
    ("fedprox", {"fedprox_mu": 0.0}, "fedavg", {**UNLIKE, "fine_tune_epochs": 2}),
    ("ifca", {"ifca_clusters": 1}, "fedavg", UNLIKE),
    ("ifca", {"ifca_clusters": 1}, "fedavg", {"size_sigma": 0.5}),
    ("knn-per", {"knn_per_lambda": 0.0}, "fedavg", UNLIKE),
    ("lg-fedavg", {}, "local", ALONE),
    ("moon", {"moon_mu": 0.0}, "fedavg", {**UNLIKE, "fine_tune_epochs": 2}),
    ("mr-mtl", {"mr_mtl_lambda": 0.0}, "local", {}),
    ("perfedavg", {"perfedavg_alpha": 0.0, "lr": 0.0}, "fedavg", {"lr": 0.0}),
    ("scaffold", {"num_rounds": 1}, "fedavg", {"num_rounds": 1, "fine_tune_epochs": 2}),
]


@pytest.mark.parametrize(("name", "keys", "other", "more"), SAME)
def test_at_the_end_of_its_keys_it_is_another(
    name: str, keys: dict[str, Any], other: str, more: dict[str, Any]
) -> None:
    _, one = run(name, **{**more, **keys})
    _, two = run(other, **more)
    for mine, theirs in zip(one.json(), two.json(), strict=True):
        assert mine["per_user"] == pytest.approx(theirs["per_user"])
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        twice = 2 if name == "scaffold" else 1
        more_up = 6 * 16 * 4 if name == "feddbe" else 0  # the mean of features, once
        alone = other in ("local", "fedrep")
        assert alone or mine["bytes_up"] == twice * theirs["bytes_up"] + more_up
    if other in ("fedavg", "fedrep"):
        pairs = zip(decode(one.arrays).values(), decode(two.arrays).values(), strict=True)
        assert all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("path", ["loop", "together-4"])
@pytest.mark.parametrize("name", ["feddbe", "moon"])
def test_a_head_that_normalises_by_the_batch_is_run_once_a_step(name: str, path: str) -> None:
    """Running statistics count batches: with no pull and no shift they are those of FedAvg."""
    rng, found = np.random.default_rng(0), []
    users = [(rng.normal(size=(20, 5)), rng.integers(0, 2, 20)) for _ in range(4)]
    layers = [nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)]
    own = {"moon": {"moon_mu": 0.0}, "feddbe": {"feddbe_kappa": 0.0, "feddbe_shift": 0.0}}[name]
    for one, more in ((name, own), ("fedavg", {})):
        keys: Any = {**more, "model": nn.Sequential(*layers), "head": "1,3", "training_path": path}
        row = simulate(one, users, num_rounds=3, lr=0.1, progress=False, **keys)[one]
        found.append(row.user(row.users[0]).outputs(np.ones((1, 5))))
    assert np.allclose(*found, rtol=0, atol=1e-5)


def test_a_user_that_takes_no_step_has_a_mean_of_features() -> None:
    """In FedDBE one of 0 would draw all users' features to 0."""
    strategy, _ = run("feddbe", num_rounds=1, local_epochs=0, fraction_train=1.0)
    data, front = users_data(), fresh()[:3]
    means = [front(examples(data, user)[0]).mean(0).detach().numpy() for user in data.users]
    assert np.allclose(strategy.state.consensus, np.mean(means, axis=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["apfl", "ditto"])
def test_their_common_model_is_fedavgs_to_the_last_bit(name: str) -> None:
    """A user's own model is trained beside it, and changes nothing of it."""
    _, one = run(name, local_epochs=2)
    _, two = run("fedavg", local_epochs=2)
    assert np.allclose(final(one), final(two), rtol=0, atol=0 if name == "ditto" else 1e-6)


@pytest.mark.parametrize(
    ("name", "keys"), [("pfedme", {"pfedme_beta": 0.0}), ("scaffold", {"lr": 0.0})]
)
def test_the_common_model_stays(name: str, keys: dict[str, Any]) -> None:
    _, result = run(name, **keys)
    assert np.array_equal(final(result), START)


def test_users_stay_nearer_the_larger_mu_is() -> None:
    moved = []
    for mu in (0.0, 1.0, 10.0):
        _, result = run("fedprox", fedprox_mu=mu, num_rounds=1, local_epochs=5)
        moved.append(float(np.linalg.norm(final(result) - START)))
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2] > 0


def test_a_body_is_needed() -> None:
    with pytest.raises(ModelError, match="fedbabu: the model is a head and nothing else"):
        run("fedbabu", model="linear")


def test_users_are_drawn_uniformly_and_without_replacement() -> None:
    strategy = FedRep({"fraction-train": 0.1})
    users = [str(i) for i in range(50)]
    counts = dict.fromkeys(users, 0)
    for number in range(2000):
        drawn = strategy.choose(number, users)
        assert len(set(drawn)) == 5
        for user in drawn:
            counts[user] += 1
    # 2000 rounds at r = 0.1: mean 200, standard deviation 13.4
    assert abs(np.mean(list(counts.values())) - 200) < 1e-9
    assert max(abs(count - 200) for count in counts.values()) < 5 * 13.4
    assert len(strategy.choose(1, users[:3])) == 1  # max(r n, 1)
