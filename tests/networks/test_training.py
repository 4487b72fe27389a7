"""The common training loop, many users at once, and evaluation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.batches import Examples, Plan
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.together import parts as together
from corsage.networks.together import stacked
from corsage.networks.training import batches, sgd, to_tensors
from tests.support.scores import evaluate, evaluate_models

KEYS = TrainKeys(lr=0.1, momentum=0.5, weight_decay=1e-2, batch_size=4)
MODELS = {"linear": (6,), "mlp": (6,), "lenet": (1, 12, 12), "cnn": (2, 18, 16)}


def net_of(model="mlp"):
    return build_network(ModelKeys(model=model, hidden="9,7"), MODELS[model], 3, 0)


def examples(sizes, shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    y = torch.randint(3, (n,), generator=g)
    return Examples(torch.randn((n, *shape), generator=g), y, np.array(sizes, np.int64))


def orders_for(sizes, epochs, batch, seed=0):
    rng = np.random.default_rng(seed)
    epochs = epochs if isinstance(epochs, list) else [epochs] * len(sizes)
    return [batches(rng, n, e, batch) for n, e in zip(sizes, epochs, strict=True)]


def loop(net, rows, part, data, orders, keys):
    out = []
    for u, order in enumerate(orders):
        net.set(net.whole, rows[u])
        sgd(net, data.user(u), order, part, keys)
        out.append(net.get(part))
    return np.array(out)


def rows_for(net, users, seed=0):
    noise = np.random.default_rng(seed).normal(size=(users, len(net.initial)))
    return (net.initial + 0.05 * noise).astype(np.float32)


def test_batches_are_permutations_with_the_short_one_kept():
    steps = batches(np.random.default_rng(0), 11, 3, 4)
    assert [len(b) for b in steps] == [4, 4, 3] * 3
    epochs = [np.concatenate(steps[i : i + 3]) for i in (0, 3, 6)]
    assert all(sorted(e) == list(range(11)) for e in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    assert batches(np.random.default_rng(0), 5, 0, 4) == []


def test_to_tensors():
    x, y = to_tensors(np.array([[0, 255]], np.uint8), np.array([3], np.uint8), 127.5, 2 / 255)
    np.testing.assert_allclose(x.numpy(), [[-1.0, 1.0]])
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    raw = np.ones((1, 2), np.float32)
    to_tensors(raw, np.array([0]), 1.0, 1.0)
    assert (raw == 1).all()


def test_frozen_part_is_bitwise_unchanged_even_after_momentum():
    net = net_of()
    data, order = examples([12], (6,)), orders_for([12], 3, 4)[0]
    net.set(net.whole, net.initial)
    sgd(net, (data.x, data.y), order, net.whole, KEYS)
    body = net.get(net.body)
    sgd(net, (data.x, data.y), order, net.head, KEYS)
    np.testing.assert_array_equal(net.get(net.body), body)
    head = net.get(net.head)
    sgd(net, (data.x, data.y), order, net.body, KEYS)
    np.testing.assert_array_equal(net.get(net.head), head)
    assert not np.array_equal(net.get(net.body), body)


def test_frozen_running_statistics_stay():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    data = examples([12], (6,))
    net = Network(module, "", data.x)
    sgd(net, (data.x, data.y), orders_for([12], 1, 4)[0], net.head, KEYS)
    np.testing.assert_array_equal(net.get(net.body), net.initial[net.body])
    sgd(net, (data.x, data.y), orders_for([12], 1, 4)[0], net.body, KEYS)
    assert not np.array_equal(
        net.named(net.get(net.whole))["1.running_mean"], np.zeros(5, np.float32)
    )


def test_parameters_a_user_froze_stay():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    module[0].weight.requires_grad_(False)
    data = examples([12], (6,))
    net = Network(module, "", data.x)
    weight = module[0].weight.clone()
    out = doors.train_models(net, net.initial, data, orders_for([12], 2, 4), KEYS)
    assert torch.equal(module[0].weight, weight) and "0.weight" not in net.named(net.initial)
    assert not np.array_equal(out[0, :5], net.initial[:5])


def test_dropout_depends_on_the_batches_and_not_on_the_global_state():
    torch.manual_seed(0)
    data, order = examples([12], (6,)), orders_for([12], 1, 4)[0]
    net = Network(nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)), "", data.x)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        net.set(net.whole, net.initial)
        sgd(net, (data.x, data.y), order, net.whole, KEYS)
        results.append(net.get(net.whole))
    np.testing.assert_array_equal(*results)


def test_adjust_changes_the_gradient_in_place():
    net = net_of()
    data = examples([4], (6,))
    keys = TrainKeys(lr=0.1, momentum=0.0, weight_decay=0.0)
    net.set(net.whole, net.initial)

    def pull(g, theta):
        g.copy_(theta)

    sgd(net, (data.x, data.y), [np.arange(4)], net.head, keys, adjust=pull)
    np.testing.assert_allclose(net.get(net.head), 0.9 * net.initial[net.head], rtol=1e-6)


def test_models_may_start_from_one_vector():
    net, data, orders = net_of(), examples([5, 7], (6,)), orders_for([5, 7], 2, 4)
    got = doors.train_models(net, net.initial, data, orders, KEYS)
    same = doors.train_models(net, np.tile(net.initial, (2, 1)), data, orders, KEYS)
    np.testing.assert_array_equal(got, same)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 13), min_size=1, max_size=6),
    batch=st.integers(1, 9),
    epochs=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    momentum=st.sampled_from([0.0, 0.5]),
    bias=st.booleans(),
    size=st.integers(1, 4),
)
def test_heads_together_are_the_loop(sizes, batch, epochs, momentum, bias, size):
    torch.manual_seed(0)
    net = Network(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3, bias=bias)), "", torch.rand(3, 6))
    keys = TrainKeys(lr=0.2, momentum=momentum, weight_decay=1e-2)
    data = examples(sizes, (6,))
    orders = orders_for(sizes, epochs[: len(sizes)], batch)
    rows = rows_for(net, len(sizes))
    rows[:, net.body] = net.initial[net.body]
    before, together.MOST_TOGETHER = together.MOST_TOGETHER, size
    try:
        got = doors.train_heads(net, net.initial[net.body], rows[:, net.head], data, orders, keys)
    finally:
        together.MOST_TOGETHER = before
    wanted = loop(net, rows, net.head, data, orders, keys)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["nested head", "dropout", "softmax", "tanh"])
def test_other_networks_go_one_by_one(kind):
    torch.manual_seed(0)
    module, head = {
        "nested head": (
            nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3))),
            "1",
        ),
        "dropout": (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), ""),
        "softmax": (nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3), nn.Softmax(1)), ""),
        "tanh": (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), ""),
    }[kind]
    data, orders = examples([5, 9], (6,)), orders_for([5, 9], 2, 4)
    net = Network(module, head, data.x)
    assert not net.stackable and together.users_together(net, net.whole) == 0
    rows = rows_for(net, 2)
    rows[:, net.body] = rows[0, net.body]
    body, heads = rows[0, net.body], rows[:, net.head]
    got = doors.train_heads(net, body, heads, data, orders, KEYS)
    np.testing.assert_allclose(got, loop(net, rows, net.head, data, orders, KEYS), atol=1e-5)
    got = doors.train_bodies(net, body, heads, data, orders, KEYS)
    np.testing.assert_array_equal(got, loop(net, rows, net.body, data, orders, KEYS))


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("where", ["data", "parameters"])
def test_one_users_nan_stays_its_own(model, where):
    net, sizes = net_of(model), [8, 9, 10]
    data, orders, rows = examples(sizes, MODELS[model]), orders_for(sizes, 1, 4), None
    rows = rows_for(net, 3)
    rows[:, net.body] = rows[0, net.body]
    clean = doors.train_models(net, rows, data, orders, KEYS)
    heads = rows[:, net.head].copy()
    fine = doors.train_heads(net, rows[0, net.body], heads, data, orders, KEYS)
    if where == "data":
        data.x[8:17] = torch.nan
    else:
        rows[1], heads[1] = np.nan, np.nan
    got = doors.train_models(net, rows, data, orders, KEYS)
    np.testing.assert_allclose(got[[0, 2]], clean[[0, 2]], atol=1e-5)
    assert np.isnan(got[1]).any()
    got = doors.train_heads(net, rows[0, net.body], heads, data, orders, KEYS)
    np.testing.assert_allclose(got[[0, 2]], fine[[0, 2]], atol=1e-5)
    assert np.isnan(got[1]).any()


def test_users_are_trained_alone_when_a_group_is_spoilt(monkeypatch):
    net, sizes = net_of("lenet"), [8, 9, 10]
    data, orders = examples(sizes, MODELS["lenet"]), orders_for(sizes, 1, 4)
    wanted = doors.train_models(net, net.initial, data, orders, KEYS)
    real = stacked.train_stacked

    def leaking(job, rows, group):
        users, out, centres = real(job, rows, group)
        return users, (out.fill_(torch.nan) if len(group) > 1 else out), centres

    monkeypatch.setattr(stacked, "train_stacked", leaking)
    got = doors.train_models(net, net.initial, data, orders, KEYS)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_plan_puts_users_with_more_steps_first():
    orders = orders_for([3, 0, 9, 5], 1, 4)
    plan = Plan.build(orders, np.array([0, 3, 3, 12]), [0, 1, 2, 3])
    assert plan.users == [2, 3, 0, 1] and plan.active == [3, 2, 1]
    assert plan.rows[2, 0].tolist() == [orders[2][2][0] + 3, 3, 3, 3]
    np.testing.assert_allclose(plan.weights[2].flatten(), [1, 0, 0, 0])
    np.testing.assert_allclose(plan.weights[0][2].flatten(), [1 / 3, 1 / 3, 1 / 3, 0])
    assert plan.weights[0].shape == (3, 4, 1)
    assert Plan.build(orders, np.array([0, 3, 3, 12]), [2]).weights[0] is None


def reference_scores(net, rows, data):
    net.train(False)
    out = []
    for u, row in enumerate(rows):
        net.set(net.whole, row)
        x, y = data.user(u)
        with torch.no_grad():
            logits = net.module(x)
        loss = F.cross_entropy(logits, y, reduction="sum").item() if len(y) else 0.0
        out.append(((logits.argmax(1) == y).sum().item(), loss, len(y)))
    return np.array(out).T


def own_networks():
    torch.manual_seed(0)
    soft = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3), nn.Softmax(1))
    deep = nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))
    x = torch.rand(3, 6)
    return [
        net_of("mlp"),
        net_of("lenet"),
        net_of("linear"),
        Network(soft, "", x),
        Network(deep, "1", x),
    ]


@pytest.mark.parametrize("net", own_networks(), ids=["mlp", "lenet", "linear", "softmax", "deep"])
def test_evaluation_of_all_users_at_once(net):
    sizes = [5, 0, 9, 5, 1, 300]
    data = examples(sizes, (1, 12, 12) if net.channels_last else (6,))
    rows = rows_for(net, len(sizes))
    rows[:, net.body] = rows[0, net.body]
    wanted = reference_scores(net, rows, data)
    shared = evaluate(net, rows[0, net.body], rows[:, net.head], data)
    for scores in (shared, evaluate_models(net, rows, data)):
        np.testing.assert_array_equal(scores.counted, wanted[0])
        np.testing.assert_allclose(scores.loss, wanted[1], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(scores.n, wanted[2])
    one = evaluate_models(net, rows[0], data)
    wanted = reference_scores(net, np.tile(rows[0], (6, 1)), data)
    np.testing.assert_array_equal(one.counted, wanted[0])
    np.testing.assert_allclose(one.loss, wanted[1], rtol=1e-5, atol=1e-5)


def test_evaluation_of_nothing_and_of_a_broken_head():
    net = net_of()
    heads = rows_for(net, 2)[:, net.head]
    scores = evaluate(net, net.initial[net.body], heads, examples([0, 0], (6,)))
    assert scores.n.sum() == scores.counted.sum() == 0
    heads[0] = np.nan
    scores = evaluate(net, net.initial[net.body], heads, examples([4, 5], (6,)))
    assert np.isnan(scores.loss[0]) and np.isfinite(scores.loss[1])
