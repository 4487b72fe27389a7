"""SCAFFOLD against a plain loop of option II, what its variates sum to, and where it ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from corsage.clients.base import Got, Sent
from corsage.clients.scaffold import ScaffoldClient, gradients_taken
from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Examples
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from tests.support.federations import federate
from tests.support.reference import (
    DECAY,
    chosen,
    examples,
    final,
    flat,
    fresh,
    run,
    set_flat,
    user_batches,
    users_data,
)


def test_with_momentum_a_variate_is_a_mean_of_the_users_gradients() -> None:
    """The first round by hand: c = c_i = 0, each gradient counts once for each step it drives."""
    data, m, lr = users_data(), 0.5, 0.05
    strategy, result = run("scaffold", num_rounds=1, fraction_train=0.1, momentum=m)
    (user,) = chosen(strategy, 1)
    x, y = examples(data, user)
    module, momentum, gradients = fresh(), None, []
    for batch in user_batches(data, user, "model", 1, 1):
        module.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        decayed = [DECAY * (p.dim() > 1) * p.detach() for p in module.parameters()]
        pairs = zip(module.parameters(), decayed, strict=True)
        g = torch.cat([(p.grad + d).reshape(-1) for p, d in pairs if p.grad is not None]).numpy()
        gradients.append(g.copy())
        momentum = g if momentum is None else m * momentum + g
        set_flat(module, flat(module) - lr * momentum)
    steps = len(gradients)
    assert steps > 1
    counts = [sum(m**j for j in range(steps - k)) for k in range(steps)]
    assert gradients_taken(steps, TrainKeys(momentum=m)) == pytest.approx(sum(counts))
    ahead = TrainKeys(momentum=m, nesterov=True)
    assert gradients_taken(steps, ahead) == pytest.approx(sum(1 + m * count for count in counts))
    wanted = np.average(gradients, axis=0, weights=counts)
    assert np.allclose(12 * strategy.state.variate, wanted, atol=1e-4)
    assert np.allclose(final(result), flat(module), atol=1e-5)


class Variates(Callback):
    """Compares the server's variate with the users' mean, or what a rule says, in every round."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, weights: NDArray[Any], rule: Any = None
    ) -> None:
        self.own: dict[str, NDArray[Any]] = {}
        self.weights, self.rule, self.rounds = weights, rule, 0
        train = ScaffoldClient.train

        def listen(client: ScaffoldClient, got: Got, data: Examples) -> Sent:
            sent = train(client, got, data)
            self.own.update(zip(client.users, sent.keep["variate"], strict=True))
            return sent

        monkeypatch.setattr(ScaffoldClient, "train", listen)

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        server = strategy.state.variate
        own = [self.own.get(str(u), np.zeros_like(server)) for u in range(12)]
        weighted = partial(np.average, weights=self.weights)
        mean = (self.rule or weighted)(own, axis=0)
        assert np.abs(server).max() > 1e-3
        assert np.allclose(server, mean, atol=1e-5)
        self.rounds += 1


@pytest.mark.parametrize(
    ("share", "weighting", "momentum"), [(0.25, "examples", 0.5), (1.0, "uniform", 0.0)]
)
def test_the_servers_variate_is_the_mean_of_the_users(
    monkeypatch: pytest.MonkeyPatch, share: float, weighting: str, momentum: float
) -> None:
    data = users_data(size_sigma=0.8)
    sizes = [len(data[str(u)].y_train) for u in range(12)]
    check = Variates(monkeypatch, np.array(sizes if weighting == "examples" else [1] * 12))
    how = {"fraction_train": share, "weighting": weighting, "momentum": momentum}
    federate("scaffold", 3, [check], size_sigma=0.8, **how)
    assert check.rounds == 4


def test_under_a_rule_the_servers_variate_is_that_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The median of c_i, in which nothing adds up that medians of changes leave over."""
    check = Variates(monkeypatch, np.ones(12), np.median)
    federate("scaffold", 3, [check], size_sigma=0.8, fraction_train=1.0, robust="median")
    assert check.rounds == 4


def test_it_ends_where_the_common_loss_has_no_gradient_and_fedavg_does_not() -> None:
    """A strongly convex problem of unlike users, all of them in each round, full batches."""
    how = {"model": "linear", "batch_size": 1000, "local_epochs": 10, "num_rounds": 75}
    more = {"fraction_train": 1.0, "weight_decay": 0.1, "lr": 0.1, "evaluate_every": 75}
    data, size = users_data(), 64 * 10
    norms = {}
    for name in ("scaffold", "fedavg"):
        _, result = run(name, momentum=0.5, **how, **more)
        model = torch.from_numpy(final(result)).requires_grad_()
        weight, bias = model[:size].view(10, 64), model[size:]
        losses = []
        for user in data.users:
            x, y = examples(data, user)
            losses.append(F.cross_entropy(x.flatten(1) @ weight.T + bias, y))
        loss = torch.stack(losses).mean() + 0.05 * weight.square().sum()
        norms[name] = float(torch.autograd.grad(loss, model)[0].norm())
    assert norms["scaffold"] < 1e-2
    assert norms["fedavg"] > 0.1


def test_without_a_step_nothing_changes() -> None:
    for how in ({"local_epochs": 0}, {"lr": 0.0}):
        strategy, result = run("scaffold", **how)
        assert np.array_equal(final(result), flat(fresh()))
        assert not strategy.state.variate.any()
