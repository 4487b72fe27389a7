"""Optimizers, losses and precision of local training against torch's own, alone and together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.networks import local_training as doors
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.proximal import Pull
from corsage.networks.rules import Momentum, clip, rule_of, update_rule
from corsage.networks.training import StepLoss, batches, pulled_sgd, sgd
from corsage.networks.training_objective import Objective, class_weights

MODELS = {"linear": (6,), "mlp": (6,), "lenet": (1, 12, 12)}
SIZES = [11, 4, 9]
WEIGHTS = torch.tensor([[0.5, 2.0, 1.0], [1.0, 1.0, 3.0], [0.2, 0.0, 1.0]])
BASE = TrainKeys(lr=0.05, momentum=0.0, weight_decay=0.02)
SMALL: Any = {"adam_epsilon": 1e-3}  # else a gradient that is rounding alone takes whole steps
RULES = {
    "nesterov": replace(BASE, momentum=0.9, nesterov=True),
    "clipped": replace(BASE, momentum=0.5, clip_gradient=0.3),
    "adam": replace(BASE, optimizer="adam", adam_beta1=0.8, **SMALL),
    "adamw": replace(BASE, optimizer="adamw", weight_decay=0.3, adam_beta2=0.9, **SMALL),
    "adam, clipped": replace(BASE, optimizer="adam", clip_gradient=0.1, **SMALL),
    "sgd": replace(BASE, momentum=0.5),
}
LOSSES = {
    "plain": None,
    "smooth": Objective(0.2),
    "weighted": Objective(0.0, WEIGHTS),
    "both": Objective(0.1, WEIGHTS),
}


def net_of(model: str) -> Network:
    return build_network(ModelKeys(model=model, hidden="9,7"), MODELS[model], 3, 0)


def users(model: str, objective: Objective | None = None) -> tuple[Examples, list[Any]]:
    """Three users of unlike sizes, whose last batches are short, and two epochs for each."""
    g = torch.Generator().manual_seed(0)
    n = sum(SIZES)
    x, y = torch.randn((n, *MODELS[model]), generator=g), torch.randint(3, (n,), generator=g)
    y[-SIZES[2] :][y[-SIZES[2] :] == 1] = 2  # user 2 has no sample of the class that weighs 0
    rng = np.random.default_rng(0)
    orders = [batches(rng, n, epochs, 4) for n, epochs in zip(SIZES, (2, 3, 2), strict=True)]
    return Examples(x, y, np.array(SIZES, np.int64), objective=objective), orders


def torch_training(
    net: Network,
    start: Any,
    data: tuple[torch.Tensor, torch.Tensor],
    order: Any,
    part: slice,
    keys: TrainKeys,
    objective: Objective | None = None,
    *,
    user: int = 0,
    near: tuple[float, torch.Tensor] | None = None,
) -> Any:
    """torch.optim, F.cross_entropy and clip_grad_norm_ on the network's module."""
    net.set(net.whole, start)
    trained = [b.tensor for b in net.blocks_of(part)]
    for b in net.blocks:
        b.tensor.requires_grad_(any(b.tensor is t for t in trained))
    net._active = None
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": keys.weight_decay},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]
    betas = {"betas": (keys.adam_beta1, keys.adam_beta2), "eps": keys.adam_epsilon}
    optimiser: Any
    if keys.optimizer == "sgd":
        own = {"momentum": keys.momentum, "nesterov": keys.nesterov}
        optimiser = torch.optim.SGD(groups, lr=keys.lr, **own)
    else:
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[keys.optimizer]
        optimiser = kind(groups, lr=keys.lr, **betas)
    weight = None if objective is None or objective.weights is None else objective.weights[user]
    smoothing = 0.0 if objective is None else objective.smoothing
    x, y = data
    for rows in order:
        optimiser.zero_grad(set_to_none=False)
        logits = net.module(x[rows])
        loss = F.cross_entropy(logits, y[rows], weight=weight, label_smoothing=smoothing)
        if near is not None:
            theta = torch.cat([p.reshape(-1) for p in trained])
            loss = loss + near[0] / 2 * (theta - near[1]).square().sum()
        loss.backward()
        if keys.clip_gradient:
            nn.utils.clip_grad_norm_(trained, keys.clip_gradient)
        optimiser.step()
    return net.get(part)


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("part", ["whole", "body", "head"])
def test_rules_are_torchs_alone_and_together(rule: str, model: str, part: str) -> None:
    if model == "linear" and part == "body":
        return
    net, keys = net_of(model), RULES[rule]
    where = getattr(net, part)
    data, orders = users(model)
    found = doors.train_part(
        doors.Job(net, where, data, orders, keys, None), np.tile(net.initial, (3, 1))
    )
    for u, order in enumerate(orders):
        wanted = torch_training(net, net.initial, data.user(u), order, where, keys)
        net.set(net.whole, net.initial)
        sgd(net, data.user(u), order, where, keys)
        np.testing.assert_allclose(net.get(where), wanted, atol=2e-6)
        np.testing.assert_allclose(found[u], wanted, atol=1e-5)
        assert np.abs(wanted - net.initial[where]).max() > 2e-3


@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_losses_are_torchs_alone_and_together(loss: str, rule: str, model: str) -> None:
    net, keys, objective = net_of(model), RULES[rule], LOSSES[loss]
    data, orders = users(model, objective)
    found = doors.train_models(net, net.initial, data, orders, keys)
    heads = np.tile(net.initial[net.head], (3, 1))
    own = doors.train_heads(net, net.initial[net.body], heads, data, orders, keys)
    alike = doors.train_models(net, net.initial, replace(data, objective=None), orders, keys)
    for u, order in enumerate(orders):
        wanted = torch_training(
            net, net.initial, data.user(u), order, net.whole, keys, objective, user=u
        )
        np.testing.assert_allclose(found[u], wanted, atol=1e-5)
        mine, head = data.user(u), net.head
        wanted = torch_training(net, net.initial, mine, order, head, keys, objective, user=u)
        np.testing.assert_allclose(own[u], wanted, atol=1e-5)
        net.set(net.whole, net.initial)
        mean = data.mean_of(u, net.criterion.mean)
        sgd(net, data.user(u), order, net.head, keys, what=StepLoss(mean=mean))
        np.testing.assert_allclose(net.get(net.head), wanted, atol=2e-6)
        assert (np.abs(found[u] - alike[u]).max() > 1e-3) == (objective is not None)


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("part", ["whole", "head"])
def test_a_pull_is_part_of_the_gradient_that_is_clipped(rule: str, part: str) -> None:
    net, keys = net_of("mlp"), RULES[rule]
    data, orders = users("mlp")
    where, rng = getattr(net, part), np.random.default_rng(1)
    centres = rng.normal(size=(3, where.stop - where.start)).astype(np.float32)
    strength = np.array([0.3, 0.0, 1.5], np.float32)
    rows, pull = np.tile(net.initial, (3, 1)), Pull(strength, centres)
    found = doors.train_part(doors.Job(net, where, data, orders, keys, pull), rows)
    for u, order in enumerate(orders):
        near = float(strength[u]), torch.from_numpy(centres[u])
        wanted = torch_training(net, net.initial, data.user(u), order, where, keys, near=near)
        np.testing.assert_allclose(found[u], wanted, atol=1e-5)


@pytest.mark.parametrize("rule", ["adam", "nesterov"])
def test_a_centre_that_follows_is_the_loop_s(rule: str) -> None:
    net, keys = net_of("mlp"), RULES[rule]
    data, orders = users("mlp")
    start = np.tile(net.initial, (3, 1))
    pull = Pull(0.5, start.copy(), every=2, follow=0.1)
    found = doors.train_models(net, net.initial, data, orders, keys, pull)
    for u, order in enumerate(orders):
        net.set(net.whole, net.initial)
        own = Pull(0.5, start[:1].copy(), every=2, follow=0.1)
        pulled_sgd(net, data.user(u), order, net.whole, keys, own)
        np.testing.assert_allclose(found[u], net.get(net.whole), atol=1e-5)
        np.testing.assert_allclose(pull.centre[u], own.centre[0], atol=1e-5)


def test_plain_sgd_takes_the_kernels_that_it_took() -> None:
    """And these are the rule's steps, to the last bit of a user alone."""
    net = net_of("mlp")
    data, orders = users("mlp")
    theta, g = torch.randn(3, 5), torch.randn(3, 5)
    assert RULES["sgd"].plain and not any(RULES[r].plain for r in RULES if r != "sgd")
    update = update_rule(theta.clone(), torch.ones(5), RULES["sgd"])
    assert isinstance(update, Momentum) and update.beta == 0.5
    found = doors.train_models(net, net.initial, data, orders, RULES["sgd"])
    through = doors.train_models(
        net, net.initial, data, orders, replace(RULES["sgd"], clip_gradient=1e9)
    )
    np.testing.assert_allclose(found, through, atol=2e-6)
    clip(g, 0.0)


def test_clipping_is_each_users_own() -> None:
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    clip(g, 1.0)
    assert torch.allclose(g, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_class_weights() -> None:
    """n / (K n_c) of the classes that there are; or as said, one a class."""
    labels = torch.tensor([0, 0, 0, 2])
    auto = class_weights(TrainKeys(class_weights=("auto",)), 4, labels)
    assert torch.allclose(auto, torch.tensor([4 / 6, 0.0, 4 / 2, 0.0]))
    said = class_weights(TrainKeys(class_weights=("1", "2", "0.5")), 3, labels)
    assert said.tolist() == [1.0, 2.0, 0.5]
    with pytest.raises(Exception, match="2 weights are given, there are 3 classes"):
        class_weights(TrainKeys(class_weights=("1", "2")), 3, labels)
    with pytest.raises(Exception, match="all classes that the user has weigh 0"):
        class_weights(TrainKeys(class_weights=("0", "2", "0")), 3, labels)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("path", ["layers", "loop", "together-4"])
def test_nothing_is_learnt_from_a_batch_in_which_all_weigh_0(path: str, smoothing: float) -> None:
    """torch has 0/0 there. A user who has another batch too learns from that alone."""
    net = build_network(ModelKeys(training_path=path, hidden="9,7"), (6,), 3, 0)
    x, y = torch.rand(8, 6), torch.tensor([0, 0, 1, 2, 0, 0, 0, 0])
    weights = torch.tensor([[0.0, 1.0, 1.0]] * 2)
    data = Examples(x, y, np.array([4, 4]), objective=Objective(smoothing, weights))
    first, last = np.arange(2), np.arange(2, 4)
    keys = replace(BASE, momentum=0.0, weight_decay=0.0)
    found = doors.train_models(net, net.initial, data, [[first, last], [first]], keys)
    wanted = doors.train_models(net, net.initial, data, [[last], []], keys)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert not np.allclose(found[0], net.initial, atol=1e-3)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_mixed_precision_is_torchs_autocast(kind: str) -> None:
    net, keys = net_of("mlp"), replace(RULES["sgd"], mixed_precision=kind)
    data, orders = users("mlp")
    found = doors.train_models(net, net.initial, data, orders, keys)
    full = doors.train_models(net, net.initial, data, orders, RULES["sgd"])
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "fp16")
    for u, order in enumerate(orders):
        module = nn.Sequential(
            nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)
        )
        nn.utils.vector_to_parameters(torch.from_numpy(net.initial.copy()), module.parameters())
        every = list(module.parameters())
        groups = [
            {"params": [p for p in every if p.dim() > 1], "weight_decay": keys.weight_decay},
            {"params": [p for p in every if p.dim() == 1]},
        ]
        optimiser = torch.optim.SGD(groups, lr=keys.lr, momentum=keys.momentum)
        x, y = data.user(u)
        for rows in order:
            optimiser.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = F.cross_entropy(module(x[rows]), y[rows])
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
        wanted = nn.utils.parameters_to_vector(every).detach().numpy()
        np.testing.assert_allclose(found[u], wanted, atol=1e-6)
        assert 0 < np.abs(found[u] - full[u]).max() < 0.05


def test_fp16_halves_its_scale_until_gradients_are_finite() -> None:
    net, keys = net_of("linear"), replace(RULES["sgd"], mixed_precision="fp16")
    data, orders = users("linear")
    large = replace(data, x=data.x * 500.0)
    found = doors.train_models(net, net.initial, large, orders, keys)
    assert np.isfinite(found).all() and np.abs(found - net.initial).max() > 1e-2


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_decay_by_runs_of_numbers_is_that_by_a_vector(optimizer: str) -> None:
    """Large models say where weight decay applies, small ones have a number for each parameter."""
    keys = TrainKeys(optimizer=optimizer, lr=0.1, momentum=0.5, weight_decay=0.3)
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    torch.manual_seed(0)
    theta, gradients = torch.randn(2, 5), torch.randn(3, 2, 5)
    both = theta.clone(), theta.clone()
    rules = [rule_of(both[0], weights, keys), rule_of(both[1], [slice(0, 2), slice(3, 4)], keys)]
    for g in gradients:
        for rule in rules:
            rule.step(g.clone())
    assert torch.equal(*both) and not torch.equal(both[0], theta)
