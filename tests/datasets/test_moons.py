"""Moons: a data set by the recipe, a file and a line, with keys of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.configuration.catalogue import catalogue
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.datasets.data_set import load_table
from corsage.datasets.dealing.federated import simulated
from corsage.datasets.moons import MoonsKeys
from tests.support.federations import federate

WORDS = {"dataset": "moons", "partition": "natural", "num-users": 0}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(0, 9))
def test_points_are_on_their_cluster_s_arcs(k: int, users: int, m: int, seed: int) -> None:
    table = load_table(
        MoonsKeys(
            dataset="moons", num_clusters=k, users_per_cluster=users, samples_per_user=m,
            data_seed=seed, moons_noise=0.0,
        )
    )  # fmt: skip
    assert table.users is not None and table.clusters is not None and table.test is not None
    assert np.bincount(table.users.astype(int)).tolist() == [m + max(m, 20)] * (k * users)
    assert (~table.test).sum() == m * k * users
    turned = (table.x @ [1, 1j]) * np.exp(-2j * np.pi * table.clusters.astype(int) / k)
    centred = np.where(table.y == 0, turned + 0.5 + 0.25j, 0.5 + 0.25j - turned)
    assert np.allclose(abs(centred), 1, atol=1e-6)
    assert (centred.imag >= -1e-6).all()


def test_noise_is_about_the_arcs() -> None:
    def load(noise: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return load_table(MoonsKeys(dataset="moons", moons_noise=noise, samples_per_user=100)).x

    assert np.std(load(0.5) - load(0.0)) == pytest.approx(0.5, rel=0.03)


def test_simulated(tmp_path: Path) -> None:
    config = Config.parse({**WORDS, "users-per-cluster": 2, "cache-dir": str(tmp_path)})
    data = simulated(config.data, 0, 7)
    assert data.clusters == {str(i): str(i // 2) for i in range(6)}
    assert data.train_sizes.tolist() == [10] * 6 and data.test_sizes.tolist() == [20] * 6


def test_its_keys_are_its_own() -> None:
    """They are listed, and refused elsewhere, without a word on them outside of its file."""
    (key,) = (k for keys in catalogue().values() for k in keys if k.name == "moons-noise")
    assert key.default == 0.1 and key.meaning.startswith("moons: ")
    with pytest.raises(ConfigError, match=r"dataset=ellipses has no use .* set dataset=moons\."):
        Config.parse({"dataset": "ellipses", "moons-noise": 1})
    with pytest.raises(ConfigError, match=r"moons-noise=-1\.0: must be at least 0"):
        Config.parse({"moons-noise": -1})


def test_clusters_are_worth_something() -> None:
    """Half turns swap the classes: one linear model for all users is no better than chance."""
    keys = {
        **WORDS,
        "num-clusters": 2,
        "fraction-train": 1,
        "model": "linear",
        "num-rounds": 20,
        "lr": 0.5,
    }
    means = {
        name: federate(name, **keys)[1].json()[0]["accuracy"]["mean"]
        for name in ("fedavg", "local")
    }
    assert means["fedavg"] < 0.65
    assert means["local"] > 0.75
