"""Losses of one output in every loop: slopes, users together, evaluation, the model's size."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.networks import local_training as doors
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.criterion import CROSS_ENTROPY, criterion_of
from corsage.networks.gradients import training
from corsage.networks.network import Network
from corsage.networks.together import parts as together
from corsage.networks.together import stacked
from corsage.networks.together.stacked_gradients import StackedLosses
from corsage.networks.training import batches, sgd, to_tensors
from tests.support.scores import evaluate, evaluate_models

DELTA = 0.7
# The mean loss of a batch as torch has it, or as its paper writes it.
REFERENCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logistic": lambda u, y: F.binary_cross_entropy_with_logits(u[:, 0], y.float()),
    "squared-hinge": lambda u, y: F.relu(1 - u[:, 0] * torch.where(y == 1, 1, -1)).square().mean(),
    "squared": lambda u, y: F.mse_loss(u[:, 0], y) / 2,
    "huber": lambda u, y: F.huber_loss(u[:, 0], y, delta=DELTA),
}
NUMBERS = ("squared", "huber")
MODELS = {"linear": (6,), "mlp": (6,), "lenet": (1, 12, 12), "cnn": (2, 18, 16)}
EVERY = pytest.mark.parametrize("loss", list(REFERENCE))


def keys_of(loss: str, **more: Any) -> ModelKeys:
    return ModelKeys(loss=loss, huber_delta=DELTA, **more)


def network_of(loss: str, model: str = "mlp", **more: Any) -> Network:
    keys = keys_of(loss, model=model, hidden="9,7", **more)
    return build_network(keys, MODELS[model], 0 if loss in NUMBERS else 2, 0)


def examples(loss: str, sizes: list[int], shape: tuple[int, ...]) -> Examples:
    g = torch.Generator().manual_seed(0)
    n = sum(sizes)
    x = torch.randn((n, *shape), generator=g)
    numbers = 2 * torch.randn(n, generator=g)
    y = numbers if loss in NUMBERS else (numbers > 0).long()
    return Examples(x, y, np.array(sizes, np.int64))


def orders_for(sizes: list[int], epochs: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [batches(rng, n, epochs, 4) for n in sizes]


# What the keys come to


@pytest.mark.parametrize(
    ("loss", "classes", "name", "outputs"),
    [
        ("auto", 0, "squared", 1),
        ("auto", 1, "cross-entropy", 1),
        ("auto", 2, "cross-entropy", 2),
        ("auto", 10, "cross-entropy", 10),
        ("cross-entropy", 2, "cross-entropy", 2),
        ("logistic", 2, "logistic", 1),
        ("squared-hinge", 1, "squared-hinge", 1),
        ("huber", 0, "huber", 1),
    ],
)
def test_the_loss_of_the_labels(loss: str, classes: int, name: str, outputs: int) -> None:
    criterion = criterion_of(ModelKeys(loss=loss), classes)
    assert (criterion.name, criterion.outputs(classes)) == (name, outputs)
    assert criterion.numbers == (classes == 0)
    assert criterion.measure.name == ("accuracy" if classes else "rmse")


@pytest.mark.parametrize(
    ("loss", "classes", "advice"),
    [
        ("cross-entropy", 0, "labels are numbers; set loss=squared or huber"),
        ("logistic", 0, "labels are numbers; set loss=squared or huber"),
        ("squared", 2, "labels are 2 classes; set loss=cross-entropy, or labels=numbers"),
        ("huber", 10, "labels are 10 classes"),
        ("logistic", 10, "is for two classes, the labels are 10; set loss=cross-entropy"),
        ("squared-hinge", 3, "is for two classes"),
    ],
)
def test_a_loss_that_the_labels_cannot_have_is_refused(
    loss: str, classes: int, advice: str
) -> None:
    with pytest.raises(ConfigError, match=f"loss={loss}: .*{advice}") as caught:
        build_network(ModelKeys(loss=loss), (4,), classes, 0)
    assert "\n" not in str(caught.value)


# The functions


@EVERY
@settings(max_examples=40, deadline=None)
@given(
    outputs=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=8),
    labels=st.lists(st.floats(-5, 5, width=32), min_size=8, max_size=8),
)
def test_slopes_are_the_gradients_of_the_mean(
    loss: str, outputs: list[float], labels: list[float]
) -> None:
    criterion = criterion_of(keys_of(loss), 0 if loss in NUMBERS else 2)
    u = torch.tensor(outputs).unsqueeze(1).requires_grad_()
    numbers = torch.tensor(labels[: len(outputs)])
    y = numbers if loss in NUMBERS else (numbers > 0).long()
    mean = criterion.mean(u, y)
    assert torch.allclose(mean, REFERENCE[loss](u, y), rtol=1e-4, atol=1e-5)
    assert torch.allclose(criterion.each(u, y).mean(), mean, rtol=1e-5, atol=1e-6)
    (wanted,) = torch.autograd.grad(REFERENCE[loss](u, y), u)
    (own,) = torch.autograd.grad(mean, u)
    slope = criterion.slope(u.detach()[None], y[None, :, None])[0] / len(outputs)
    assert torch.allclose(own, wanted, atol=1e-4)
    assert torch.allclose(slope, wanted, atol=1e-4)


def test_cross_entropy_is_bitwise_torchs() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, y = torch.randn((50, 7), generator=g), torch.randint(7, (50,), generator=g)
    assert torch.equal(CROSS_ENTROPY.mean(outputs, y), F.cross_entropy(outputs, y))
    each = F.cross_entropy(outputs, y, reduction="none")
    assert torch.equal(CROSS_ENTROPY.each(outputs, y), each)
    wanted = F.softmax(outputs, dim=1) - F.one_hot(y, 7)
    slope = CROSS_ENTROPY.slope(outputs[None], y[None, :, None])[0]
    assert torch.equal(slope, wanted)


def test_what_is_counted() -> None:
    u = torch.tensor([[-1.0], [0.0], [0.5], [3.0]])
    for loss in ("logistic", "squared-hinge"):
        counted = criterion_of(ModelKeys(loss=loss), 2).counted(u, torch.tensor([0, 0, 0, 1]))
        assert counted.tolist() == [True, True, False, True]
    for loss in NUMBERS:
        counted = criterion_of(ModelKeys(loss=loss), 0).counted(u, torch.tensor([1.0, 0, 0, 1]))
        assert counted.tolist() == [4.0, 0.0, 0.25, 4.0]


# The model


def test_models_have_one_output_and_perhaps_no_intercept() -> None:
    for model, shape in MODELS.items():
        net = network_of("squared", model)
        with torch.no_grad():
            assert net(torch.rand(3, *shape)).shape == (3, 1)
    assert len(network_of("logistic", "linear").flat) == 7
    bare = network_of("logistic", "linear", intercept=False)
    assert [b.name for b in bare.blocks] == ["head.weight"] and len(bare.flat) == 6
    ten = build_network(ModelKeys(model="linear", intercept=False), (6,), 10, 0)
    assert len(ten.flat) == 60
    with pytest.raises(ConfigError, match="intercept=false: only model=linear"):
        network_of("squared", "mlp", intercept=False)


def test_a_model_of_the_intercept_alone_learns_the_mean() -> None:
    keys = ModelKeys(model="linear")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = build_network(keys, (0,), 0, 0)
    assert len(net.flat) == 1
    y = torch.tensor([1.0, 2.0, 6.0, -4.0, 0.0])
    data = Examples(torch.empty(5, 0), y, np.array([3, 2], np.int64))
    train = TrainKeys(lr=0.5, momentum=0.0, weight_decay=0.0)
    orders = [[np.arange(n)] * 40 for n in (3, 2)]
    models = doors.train_models(net, net.initial, data, orders, train)
    np.testing.assert_allclose(models[:, 0], [3.0, -2.0], atol=1e-5)
    scores = evaluate(net, net.initial[:0], models, data)
    np.testing.assert_allclose(scores.counted, [4 + 1 + 9, 4 + 4], rtol=1e-5)
    with pytest.raises(ModelError, match="no input, so nothing is left to learn"):
        build_network(ModelKeys(model="linear", intercept=False), (0,), 0, 0)


def test_ones_own_model_is_asked_for_one_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_single.py").write_text(
        "from torch import nn\n"
        "def good(shape, outputs):\n    return nn.Linear(*shape, outputs)\n"
        "def two():\n    return nn.Linear(4, 2)\n"
    )
    net = build_network(ModelKeys(model="own_single:good", loss="logistic"), (4,), 2, 0)
    assert len(net.flat) == 5
    with pytest.raises(ModelError, match=r"must return \(3, 1\): one number a sample, for loss=sq"):
        build_network(ModelKeys(model="own_single:two"), (4,), 0, 0)


def test_labels_that_are_numbers_stay_numbers() -> None:
    x = np.zeros((2, 1))
    _, y = to_tensors(x, np.array([0.25, -3.5]), 0.0, 1.0)
    assert y.dtype == torch.float32 and y.tolist() == [0.25, -3.5]
    _, y = to_tensors(x, np.array([0, 1], np.uint8), 0.0, 1.0)
    assert y.dtype == torch.int64


# The loops


def torch_sgd(net: Network, loss: str, data: Any, order: Any, part: slice, keys: TrainKeys) -> Any:
    """By torch.optim.SGD and torch's losses."""
    trained = [b.tensor for b in net.blocks_of(part)]
    for b in net.blocks:
        b.tensor.requires_grad_(any(b.tensor is t for t in trained))
    net.vector.active = None
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": keys.weight_decay},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.SGD(groups, lr=keys.lr, momentum=keys.momentum)
    x, y = data
    for rows in order:
        optimiser.zero_grad(set_to_none=False)
        REFERENCE[loss](net.module(x[rows]), y[rows]).backward()
        optimiser.step()
    return net.get(part)


@EVERY
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_users_together_and_alone_are_torchs(loss: str, model: str, momentum: float) -> None:
    net = network_of(loss, model)
    lr = 0.005 if model == "cnn" else 0.02
    keys = TrainKeys(lr=lr, momentum=momentum, weight_decay=1e-2)
    sizes = [9, 1, 4, 14, 3]
    data, orders = examples(loss, sizes, MODELS[model]), orders_for(sizes, 2)
    noise = np.random.default_rng(0).normal(size=(len(sizes), len(net.initial)))
    rows = (net.initial + 0.05 * noise).astype(np.float32)
    rows[:, net.body] = body = rows[0, net.body].copy()
    heads = rows[:, net.head]
    assert together.users_together(net, net.whole) > 0
    for got, part in (
        (doors.train_heads(net, body, heads, data, orders, keys), net.head),
        (doors.train_bodies(net, body, heads, data, orders, keys), net.body),
        (doors.train_models(net, rows, data, orders, keys), net.whole),
    ):
        for u, order in enumerate(orders):
            if part.start == part.stop:  # a linear model has no body
                continue
            net.set(net.whole, rows[u])
            wanted = torch_sgd(net, loss, data.user(u), order, part, keys)
            np.testing.assert_allclose(got[u], wanted, atol=1e-5)
            net.set(net.whole, rows[u])
            sgd(net, data.user(u), order, part, keys)
            np.testing.assert_allclose(net.get(part), wanted, atol=1e-5)
            assert np.abs(wanted - rows[u, part]).max() > 1e-3


@EVERY
@pytest.mark.parametrize("model", ["linear", "lenet"])
def test_gradients_of_users_together_are_torchs(loss: str, model: str) -> None:
    net, sizes = network_of(loss, model), [9, 1, 14]
    data, orders = examples(loss, sizes, MODELS[model]), orders_for(sizes, 1)
    ready = Examples(stacked.data_for(net, data.x), data.y, data.sizes)
    losses = StackedLosses(net, ready, [orders], range(3))
    theta = torch.from_numpy(np.tile(net.initial, (3, 1)))
    for step, active in enumerate(losses.active):
        out = torch.zeros_like(theta)
        with training(net):
            losses.gradient(theta, step, out)
        for row, u in enumerate(losses.users[:active]):
            batch = orders[u][step] + data.offsets[u]
            net.flat.copy_(theta[row])
            net.grad.zero_()
            REFERENCE[loss](net.module(data.x[batch]), data.y[batch]).backward()
            assert torch.allclose(out[row], net.grad, atol=1e-5)


@EVERY
def test_other_networks_go_one_by_one(loss: str) -> None:
    torch.manual_seed(0)
    criterion = criterion_of(keys_of(loss), 0 if loss in NUMBERS else 2)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    net = Network(module, "", torch.rand(3, 6), criterion=criterion)
    data, orders = examples(loss, [5, 9], (6,)), orders_for([5, 9], 2)
    keys = TrainKeys(lr=0.1, momentum=0.5, weight_decay=1e-2)
    got = doors.train_models(net, net.initial, data, orders, keys)
    for u in range(2):
        net.set(net.whole, net.initial)
        wanted = torch_sgd(net, loss, data.user(u), orders[u], net.whole, keys)
        np.testing.assert_allclose(got[u], wanted, atol=1e-6)


@EVERY
@pytest.mark.parametrize("model", ["linear", "mlp", "lenet"])
def test_evaluation_of_all_users_at_once(loss: str, model: str) -> None:
    net, sizes = network_of(loss, model), [5, 0, 9, 5, 1, 300]
    data = examples(loss, sizes, MODELS[model])
    noise = np.random.default_rng(0).normal(size=(len(sizes), len(net.initial)))
    rows = (net.initial + 0.05 * noise).astype(np.float32)
    rows[:, net.body] = rows[0, net.body]
    shared = evaluate(net, rows[0, net.body], rows[:, net.head], data)
    own = evaluate_models(net, rows, data)
    for u, row in enumerate(rows):
        net.set(net.whole, row)
        x, y = data.user(u)
        with torch.no_grad():
            out = net.module(x)
            value = len(y) * float(REFERENCE[loss](out, y)) if len(y) else 0.0
        hits = ((out[:, 0] > 0).long() == y).sum()
        count = F.mse_loss(out[:, 0], y, reduction="sum") if loss in NUMBERS else hits
        for scores in (shared, own):
            assert scores.loss[u] == pytest.approx(value, rel=1e-4, abs=1e-5)
            assert scores.counted[u] == pytest.approx(float(count), rel=1e-4)
            assert scores.n[u] == len(y)
