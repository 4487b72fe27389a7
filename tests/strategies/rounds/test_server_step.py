"""FedOpt and FedAvgM against torch's optimizers, a loop, and where they must be FedAvg."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from corsage.app.run.checkpoint import read_checkpoint, write_checkpoint
from corsage.core.configuration.server_keys import ServerKeys
from corsage.core.errors import ConfigError
from corsage.strategies.rounds.server_step import ServerStep, step
from corsage.strategies.rounds.state import Updates
from tests.support.federations import federate, reference, same_arrays

ROUNDS, SIZE = 6, 40


def rounds_of(keys: ServerKeys) -> tuple[Any, Any]:
    """x after some rounds of given means, and these updates Delta_t."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=SIZE).astype(np.float32)
    before = {"m": np.zeros_like(x), "v": np.full_like(x, keys.server_tau**2)}
    deltas, places = [], [x]
    for _ in range(ROUNDS):
        deltas.append(rng.normal(size=SIZE).astype(np.float32))
        moments, x = step(keys, x, x + deltas[-1], before)
        before = {**before, **moments}
        places.append(x)
    return np.array(places), np.array(deltas)


def torch_places(first: Any, deltas: Any, make: Any) -> Any:
    """Where an optimizer of torch goes with the gradients -Delta_t."""
    x = torch.from_numpy(first.copy()).requires_grad_()
    optimiser, places = make([x]), [first]
    for delta in deltas:
        x.grad = -torch.from_numpy(delta)
        optimiser.step()
        places.append(x.detach().numpy().copy())
    return np.array(places)


def test_momentum_is_torchs_sgd() -> None:
    keys = ServerKeys("momentum", server_lr=0.3, server_beta1=0.8)
    places, deltas = rounds_of(keys)
    wanted = torch_places(places[0], deltas, lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8))
    assert np.allclose(places, wanted, atol=1e-5)


def test_adagrad_without_momentum_is_torchs() -> None:
    keys = ServerKeys("adagrad", server_lr=0.3, server_beta1=0.0, server_tau=0.05)
    places, deltas = rounds_of(keys)

    def make(p: Any) -> Any:
        return torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.05**2, eps=0.05)

    assert np.allclose(places, torch_places(places[0], deltas, make), atol=1e-5)


def test_adam_is_torchs_with_its_corrections_taken_back() -> None:
    """From v = 0 and with lr_t = lr (1 - b1^t)/sqrt(1 - b2^t), eps_t = tau/sqrt(1 - b2^t)."""
    keys = ServerKeys("adam", server_lr=0.3, server_beta1=0.7, server_beta2=0.9, server_tau=1e-12)
    places, deltas = rounds_of(keys)
    x = torch.from_numpy(places[0].copy()).requires_grad_()
    optimiser = torch.optim.Adam([x], betas=(0.7, 0.9), eps=1e-12)
    for t, delta in enumerate(deltas, 1):
        optimiser.param_groups[0]["lr"] = 0.3 * (1 - 0.7**t) / (1 - 0.9**t) ** 0.5
        x.grad = -torch.from_numpy(delta)
        optimiser.step()
        assert np.allclose(places[t], x.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["adagrad", "adam", "yogi"])
def test_algorithm_2_number_by_number(name: str) -> None:
    keys = ServerKeys(name, server_lr=0.2, server_beta1=0.6, server_beta2=0.8, server_tau=0.1)
    places, deltas = rounds_of(keys)
    for i in range(0, SIZE, 7):
        x, m, v = float(places[0, i]), 0.0, 0.01
        for t in range(ROUNDS):
            d = float(deltas[t, i])
            m = 0.6 * m + 0.4 * d
            if name == "adagrad":
                v += d * d
            elif name == "adam":
                v = 0.8 * v + 0.2 * d * d
            else:
                v -= 0.2 * d * d * (1 if v > d * d else -1)
            x += 0.2 * m / (v**0.5 + 0.1)
            assert places[t + 1, i] == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "fedrep",
        "fedper",
        "scaffold",
        "pfedme",
        "apfl",
        "ifca",
        "cfl",
        "lg-fedavg",
        "fedem",
    ],
)
def test_momentum_without_memory_is_the_mean(name: str) -> None:
    """eta = 1 and beta_1 = 0: x + (mean - x); also cluster by cluster."""
    _, ours, _ = federate(name, server_optimizer="momentum", server_beta1=0.0)
    _, plain, _ = reference(name)
    assert ours.arrays is not None and same_arrays(ours.arrays, plain.arrays, 2e-6)
    _, other, _ = federate(name, server_optimizer="yogi", server_lr=0.05)
    assert not same_arrays(other.arrays, plain.arrays, 1e-3)


def test_clusters_remember_for_themselves() -> None:
    """One that nobody is in stays; one that was cut off begins with what its parent remembers."""
    network = SimpleNamespace(
        whole=slice(0, 3),
        body=slice(0, 2),
        head=slice(2, 3),
        blocks=[
            SimpleNamespace(where=slice(0, 2), trained=True),
            SimpleNamespace(where=slice(2, 3), trained=False),
        ],
    )
    keys = ServerKeys("momentum", server_lr=0.5, server_beta1=0.5)
    config = SimpleNamespace(server=keys)
    job: Any = SimpleNamespace(config=config, updates=Updates(), network=network)
    server, x = ServerStep(job), np.zeros((2, 3), np.float32)
    means = np.array([[1, 2, 3], [0, 0, 0]], np.float32)
    x = server.of_clusters(x, means, [0, 0])
    assert x.tolist() == [[0.5, 1.0, 3.0], [0, 0, 0]]  # what is not trained is averaged
    assert job.updates.moments["models.m"].tolist() == [[1, 2, 3], [0, 0, 0]]
    three = np.concatenate([x, x[:1]])  # cluster 0 was cut
    x = server.of_clusters(three, three, [2], parents=[0])
    assert x.tolist() == [[0.5, 1.0, 3.0], [0, 0, 0], [0.75, 1.5, 3.0]]
    assert job.updates.moments["models.m"].tolist()[::2] == [[1, 2, 3], [0.5, 1, 1.5]]


def test_what_it_remembers_is_in_the_checkpoint(tmp_path: Path) -> None:
    updates = Updates(moments={"model.m": np.arange(4, dtype=np.float32)})
    path, identity = tmp_path / "c", {"run": "x"}
    write_checkpoint(path, {"updates": updates}, identity)
    found = read_checkpoint(path, identity, {"updates": Updates})["updates"]
    assert found.moments["model.m"].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["local", "l2gd", "fedmtl", "mixed-model", "convex-clustering"])
def test_refused_where_the_server_has_no_step(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^server-optimizer=adam: not for strategy={name}: "):
        federate(name, server_optimizer="adam")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"server_lr": 0.5}, "server-lr=0.5: server-optimizer=none has no use for it"),
        ({"server_optimizer": "momentum", "server_tau": 0.5}, "server-tau=0.5: .*=momentum has no"),
        ({"server_optimizer": "adagrad", "server_beta2": 0.5}, "server-beta2=0.5: .*adam or yogi"),
    ],
)
def test_idle_keys_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        federate("fedavg", **keys)
