"""The proximal term, in both ways of training, against torch's own optimiser and against itself."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.training import Pull, batches

MODELS = {"linear": (6,), "mlp": (6,), "lenet": (1, 12, 12), "cnn": (2, 18, 16)}


@cache
def network(name: str) -> Network:
    return build_network(ModelKeys(model=name, hidden="9,7"), MODELS[name], 3, 0)


def problem(sizes, shape, epochs, seed=0, batch=4):
    g, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    x, y = (
        torch.randn((sum(sizes), *shape), generator=g),
        torch.randint(3, (sum(sizes),), generator=g),
    )
    data = Examples(x, y, np.array(sizes, np.int64))
    return data, [batches(rng, n, e, batch) for n, e in zip(sizes, epochs, strict=True)]


def vector(rng, kind, users, size):
    shape = {"none": None, "one": (size,), "each": (users, size)}[kind]
    return None if shape is None else (0.1 * rng.normal(size=shape)).astype(np.float32)


def reference(net, rows, part, data, orders, keys, pull):
    """torch.optim.SGD on the loss plus the proximal term and shift, written as a loss."""
    out = []
    for u, order in enumerate(orders):
        net.set(net.whole, rows[u])
        net.vector.active = None
        blocks = list(net.blocks_of(part))
        for b in net.blocks:
            b.tensor.requires_grad_(any(b.tensor is o.tensor for o in blocks))
        weights = [b.tensor for b in blocks if b.tensor.dim() > 1]
        others = [b.tensor for b in blocks if b.tensor.dim() == 1]
        groups = [{"params": weights, "weight_decay": keys.weight_decay}, {"params": others}]
        optimiser = torch.optim.SGD(groups, lr=keys.lr, momentum=keys.momentum)
        if pull is None:
            pull = Pull(0.0, np.zeros(part.stop - part.start, np.float32))
        strength = float(np.broadcast_to(pull.strength, len(orders))[u])
        centre = torch.from_numpy(pull.centre[u] if pull.centre.ndim == 2 else pull.centre)
        shift = torch.zeros(len(centre)) if pull.shift is None else torch.from_numpy(pull.shift)
        shift = shift[u] if shift.dim() == 2 else shift
        x, y = data.user(u)
        for batch in order:
            optimiser.zero_grad(set_to_none=False)
            theta = torch.cat([b.tensor.reshape(-1) for b in blocks])
            term = strength / 2 * (theta - centre).square().sum() + (shift * theta).sum()
            (F.cross_entropy(net.module(x[batch]), y[batch]) + term).backward()
            optimiser.step()
        out.append(net.get(part))
    net.vector.active = None
    return np.array(out)


def alone(net, rows, part, data, orders, keys, pull):
    """The loop of `sgd` over the users."""
    out, job = [], doors.Job(net, part, data, orders, keys, pull)
    for u in range(len(orders)):
        net.set(net.whole, rows[u])
        doors.train_alone(job, u)
        out.append(net.get(part))
    return np.array(out)


def on_an_edge(trained, rows, wanted):
    """Whether a ReLU or a maximum is so near its edge that rounding decides: a tiny change does."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        near = rows + 1e-6 * rng.normal(size=rows.shape).astype(np.float32)
        if not np.allclose(trained(near), wanted, rtol=0, atol=3e-5):
            return True
    return False


SETTINGS = st.fixed_dictionaries(
    {
        "momentum": st.sampled_from([0.0, 0.5]),
        "decay": st.sampled_from([0.0, 1e-2]),
        "strength": st.sampled_from(["no pull", 0.0, 0.3, 2.0, "each"]),
        "centre": st.sampled_from(["one", "each"]),
        "shift": st.sampled_from(["none", "one", "each"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(list(MODELS)),
    part=st.sampled_from(["whole", "body", "head"]),
    sizes=st.lists(st.integers(1, 11), min_size=1, max_size=5),
    epochs=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    how=SETTINGS,
    seed=st.integers(0, 99),
)
def test_both_ways_of_training_are_torchs_sgd_with_a_pull_and_without(
    model, part, sizes, epochs, how, seed
):
    net, rng, users = network(model), np.random.default_rng(seed), len(sizes)
    keys = TrainKeys(lr=0.1, momentum=how["momentum"], weight_decay=how["decay"])
    data, orders = problem(sizes, MODELS[model], epochs[:users], seed)
    where = getattr(net, part)
    size = where.stop - where.start
    each = rng.random(users).astype(np.float32)
    strength = each if how["strength"] == "each" else how["strength"]
    centre, shift = (vector(rng, how[name], users, size) for name in ("centre", "shift"))
    pull = None if how["strength"] == "no pull" else Pull(strength, centre, shift)
    rows = (net.initial + 0.05 * rng.normal(size=(users, len(net.initial)))).astype(np.float32)
    rows[:, net.body] = rows[0, net.body]
    if part == "whole":
        got = doors.train_models(net, rows, data, orders, keys, pull)
    elif part == "body":
        got = doors.train_bodies(
            net, rows[0, net.body], rows[:, net.head], data, orders, keys, pull
        )
    else:
        heads = rows[:, net.head]
        got = doors.train_heads(net, rows[0, net.body], heads, data, orders, keys, pull)
    if size == 0:
        return
    work = (where, data, orders, keys, pull)
    wanted = reference(net, rows, *work)
    for found in (got, alone(net, rows, *work)):
        if not np.allclose(found, wanted, rtol=0, atol=1e-5):
            assume(not on_an_edge(lambda near: reference(net, near, *work), rows, wanted))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(list(MODELS)),
    rounds=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    every=st.integers(1, 3),
    momentum=st.sampled_from([0.0, 0.5]),
    loop=st.booleans(),
    extra=st.integers(0, 1),
)
def test_a_centre_that_follows_is_one_training_after_the_other(
    model, rounds, every, momentum, loop, extra
):
    """Every `every` steps: train to there, move the centres, go on with new momentum."""
    net, rng, users = network(model), np.random.default_rng(0), len(rounds)
    keys = TrainKeys(lr=0.1, momentum=momentum, weight_decay=1e-2)
    data, _ = problem([5] * users, MODELS[model], [0] * users)
    extra = extra if every > 1 else 0
    orders = [[rng.permutation(5)[:4] for _ in range(every * r + extra)] for r in rounds]
    rows = (net.initial + 0.05 * rng.normal(size=(users, len(net.initial)))).astype(np.float32)
    centre = vector(rng, "each", users, len(net.initial))
    moving = centre.copy()
    pull = Pull(0.7, moving, vector(rng, "one", users, len(net.initial)), every, 0.4)
    work = (net, rows, net.whole, data, orders, keys, pull)
    got = alone(*work) if loop else doors.train_models(*work[:2], *work[3:])

    def trained(rows, at):
        out = []
        for u, order in enumerate(orders):
            own, one = rows[u], Examples(*data.user(u), np.array([5]))
            for r in range(rounds[u] + 1):
                piece = order[every * r : every * (r + 1)]
                still = Pull(0.7, at[u], pull.shift)
                own = doors.train_models(net, own, one, [piece], keys, still)[0]
                if len(piece) == every:
                    at[u] += np.float32(0.4) * (own - at[u])
            out.append(own)
        return np.array(out)

    began = centre.copy()
    wanted = trained(rows, centre)
    if not np.allclose(got, wanted, rtol=0, atol=1e-5):
        assume(not on_an_edge(lambda near: trained(near, began.copy()), rows, wanted))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(moving, centre, atol=1e-5)


@pytest.mark.parametrize("model", list(MODELS))
def test_a_pull_of_strength_nought_changes_no_bit(model):
    net = network(model)
    data, orders = problem([9, 5, 12], MODELS[model], [2, 1, 2])
    plain = doors.train_models(net, net.initial, data, orders, TrainKeys(lr=0.1))
    pull = Pull(0.0, np.full_like(net.initial, 7.0))
    pulled = doors.train_models(net, net.initial, data, orders, TrainKeys(lr=0.1), pull)
    np.testing.assert_array_equal(pulled, plain)


def test_one_step_by_hand():
    """Zero gradient of the loss (one class): only the pull, the shift and weight decay act."""
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(2, 1)), "", torch.rand(3, 2))
    data = Examples(torch.rand(4, 2), torch.zeros(4, dtype=torch.int64), np.array([4]))
    start, centre = np.array([1, 2, 3], np.float32), np.array([0, 4, 1], np.float32)
    pull = Pull(0.5, centre, np.array([[1, -1, 2]], np.float32))
    keys = TrainKeys(lr=0.1, momentum=0.0, weight_decay=0.1)
    got = doors.train_models(net, start, data, [[np.arange(4)]], keys, pull)
    gradient = 0.5 * (start - centre) + pull.shift[0] + 0.1 * start * [1, 1, 0]
    np.testing.assert_allclose(got[0], start - 0.1 * gradient, rtol=1e-6)


def test_what_is_not_trained_is_not_pulled():
    """Running statistics and parameters that a user froze."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.Linear(3, 3))
    module[0].weight.requires_grad_(False)
    module[3].weight.requires_grad_(False)
    data, orders = problem([12], (6,), [1])
    net = Network(module, "", data.x)
    shift = np.ones_like(net.initial)
    for block in net.blocks:
        shift[block.where] = 0.0 if block.trained else 1.0
    plain = doors.train_models(net, net.initial, data, orders, TrainKeys())
    pull = Pull(0.0, net.initial, shift)
    pulled = doors.train_models(net, net.initial, data, orders, TrainKeys(), pull)
    np.testing.assert_array_equal(pulled, plain)
    heads, body = net.initial[None, net.head], net.initial[net.body]
    far = Pull(1.0, np.full_like(heads[0], 9.0))
    weight = module[3].weight.clone()
    got = doors.train_heads(net, body, heads, data, orders, TrainKeys(), far)
    assert torch.equal(module[3].weight, weight) and heads.shape == (1, 3)
    assert np.abs(got - heads).min() > 0.01


def test_a_centre_that_follows_has_rows_of_its_own():
    with pytest.raises(ValueError, match="rows"):
        Pull(1.0, np.zeros(3, np.float32), every=2)
