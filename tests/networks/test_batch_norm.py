"""Layers with a memory: batches of one, statistics that stand, and none that leak."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ModelError
from corsage.core.messages.replies import Replies
from corsage.core.seeding import generator
from corsage.networks.batch_norm import needs_two
from corsage.networks.build import build_network
from corsage.networks.training import batches, sgd, steps_of
from corsage.strategies.rounds.model_arrays import learned, without_statistics
from tests.support.federations import federate, same_arrays

KEYS = TrainKeys(lr=0.05, momentum=0.5, weight_decay=0.01)


class Counting(nn.Module):
    """A layer that shifts by how often it was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x moved by a number that grows."""
        if self.training:
            self.times += 1
        return x + 0.01 * self.times


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A small model with the usual BatchNorm."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs)
    )


def averaging(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Statistics that are means over all batches so far, and a counter of one's own."""
    layers = [nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=None), Counting(), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(16, outputs))


def bare(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """No such layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


NORMED, AVERAGING, BARE = (f"{__name__}:{f.__name__}" for f in (normed, averaging, bare))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
def test_no_batch_has_one_sample_where_there_are_more(n: int, size: int, epochs: int) -> None:
    joined = batches(np.random.default_rng(0), n, epochs, size, join=True)
    plain = batches(np.random.default_rng(0), n, epochs, size)
    assert len(joined) == epochs * steps_of(n, size, True)
    assert len(plain) == epochs * steps_of(n, size)
    if epochs:
        assert np.array_equal(np.concatenate(joined), np.concatenate(plain))
    if n > 1 and size > 1:
        assert all(len(batch) > 1 for batch in joined)
    if n % size != 1:
        assert [len(b) for b in joined] == [len(b) for b in plain] or size == 1


def test_a_user_of_one_sample_too_many_trains() -> None:
    """61 samples, batches of 10: six steps, of which the last has eleven samples."""
    keys: dict[str, Any] = {"model": NORMED, "num_users": 3, "fraction_train": 1.0}
    keys |= {"partition": "iid", "max_train_samples": 61, "num_rounds": 1, "work": "as-set"}
    strategy, _, _ = federate("fedavg", **keys)
    assert not strategy.progress.dropped
    assert strategy.progress.gradient_steps == 3 * 6


@pytest.mark.parametrize("model", [NORMED, AVERAGING])
@pytest.mark.parametrize("name", ["fedavg", "local", "apfl"])
def test_nothing_leaks_between_runs_users_or_nodes(model: str, name: str) -> None:
    """A second run in this process is the same to the last bit; other nodes, but for rounding."""
    first, second, third = (
        federate(name, nodes=n, model=model, num_rounds=3)[1] for n in (1, 1, 3)
    )
    losses = [[row["loss"]["mean"] for row in result.json()] for result in (first, second, third)]
    assert losses[0] == losses[1] and np.allclose(losses[0], losses[2], atol=1e-6)
    assert same_arrays(first.arrays, second.arrays, 0) and same_arrays(first.arrays, third.arrays)


def test_running_statistics_are_a_plain_loop_s() -> None:
    """Trained as torch does it, for two users in turn on one network."""
    net = build_network(ModelKeys(model=NORMED), (64,), 3, 0)
    x, y = torch.randn(21, 64), torch.randint(3, (21,))
    for u in range(2):
        order = batches(generator(0, "x", u), 21, 2, 10, join=True)
        net.set(net.whole, net.initial)
        sgd(net, (x, y), order, net.whole, KEYS)
        module = normed((64,), 3)
        wanted = {k: torch.from_numpy(v) for k, v in net.named(net.initial).items()}
        module.load_state_dict(wanted, strict=False)
        named = list(module.named_parameters())
        groups = [
            {"params": [p for n, p in named if "bias" not in n], "weight_decay": 0.01},
            {"params": [p for n, p in named if "bias" in n]},
        ]
        optimiser = torch.optim.SGD(groups, lr=0.05, momentum=0.5)
        for batch in order:
            optimiser.zero_grad()
            F.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
        found = net.named(net.get(net.whole))
        for name, tensor in module.state_dict().items():
            if name in found:
                np.testing.assert_allclose(found[name], tensor.numpy(), atol=2e-6)
        assert found["2.running_mean"].any()


def test_frozen_statistics_stand_and_features_are_kept() -> None:
    net = build_network(ModelKeys(model=NORMED, batch_norm="frozen"), (64,), 3, 0)
    assert net.cacheable and not net.batch_statistics
    x, y = torch.randn(11, 64), torch.randint(3, (11,))
    net.set(net.whole, net.initial)
    sgd(net, (x, y), batches(generator(0, "x"), 11, 2, 5), net.whole, KEYS)
    found, before = (net.named(v) for v in (net.get(net.whole), net.initial))
    assert not np.array_equal(found["2.weight"], before["2.weight"])
    for name in ("2.running_mean", "2.running_var"):
        assert np.array_equal(found.get(name, 0), before.get(name, 0))
    assert needs_two(normed((64,), 3)) and not needs_two(bare((64,), 3))
    with pytest.raises(ModelError, match=r"^batch-norm=frozen: the model has no layer that"):
        build_network(ModelKeys(model=BARE, batch_norm="frozen"), (64,), 3, 0)


def test_clusters_are_told_apart_without_running_statistics() -> None:
    """Updates of which only the running statistics differ are the same to CFL and Fed-MTL."""
    network = build_network(ModelKeys(model=NORMED), (64,), 3, 0)
    stays = np.zeros(network.whole.stop, bool)
    for block in network.blocks:
        stays[block.where] = block.trained
    updates = np.where(stays, 0.0, 5.0).astype(np.float32)[None]
    assert not stays.all() and not without_statistics(network, updates).any()
    assert without_statistics(network, np.ones_like(updates)).sum() == stays.sum()
    for name in ("cfl", "fedmtl"):
        first, moved = (relations(name, by) for by in (0.0, 100.0))
        assert len(first) > 1 and np.allclose(first, moved, atol=1e-6)


def relations(name: str, by: float) -> Any:
    """What the server makes of updates whose running statistics are moved by so much."""
    strategy: Any = federate(name, model=NORMED, num_rounds=1)[0]
    network, rng = strategy.job.network, np.random.default_rng(0)
    rows = rng.normal(size=(6, network.whole.stop)).astype(np.float32)
    rows += by * ~learned(network, "model") * rng.normal(size=rows.shape)
    if name == "cfl":
        users, roster = strategy.state.users[:6], strategy.members.roster
        strategy.state.updates[:6], strategy.state.fresh = rows, users
        strategy.state.clusters = dict.fromkeys(users, 0)
        roster.members = {user: roster.members[user] for user in users}
        strategy._cut(0, strategy.state)
        return np.array(strategy.state.norms[0])
    replies = Replies(users=strategy.state.users[:6], rows={"model": rows})
    return strategy.merge(replies).omega


def imaged(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """BatchNorm of images: of one of them a channel has several values."""
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, outputs))


def test_batches_of_one_sample_are_refused_at_the_start_if_nobody_has_others() -> None:
    """Where it does not do; a model that takes one sample, or stands, is trained."""
    one = {"max_train_samples": 1, "num_rounds": 1}
    with pytest.raises(ModelError, match=r"every user has one training sample.*batch-norm=frozen"):
        federate("fedavg", **one, model=NORMED)
    with pytest.raises(ModelError, match=r"batch-size=1, too few for BatchNorm"):
        federate("fedavg", num_rounds=1, model=NORMED, batch_size=1)
    federate("fedavg", **one, model=NORMED, batch_norm="frozen")
    federate("fedavg", **one, model=f"{__name__}:imaged")
    federate("fedavg", max_train_samples=2, num_rounds=1, model=NORMED, batch_size=1)
