"""Steps of optimizers for one or several users at once: theta (users, P).

The arithmetic is that of torch.optim (SGD, Adam, AdamW) and of torch.nn.utils.clip_grad_norm_, on
flat vectors, each user by itself. Weight decay acts on weights and not on biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from corsage.core.configuration.train_keys import TrainKeys

CLIP_EPSILON = 1e-6
"""As in clip_grad_norm_."""


Weights = Tensor | Sequence[slice]
"""The places of weight decay: 1 there and else 0, or the runs of numbers themselves."""


class Decay:
    """rate theta, where weight decay applies, added to gradients (users, P)."""

    def __init__(self, weights: Weights, rate: float) -> None:
        self.rate, self.vector, self.runs = rate, None, list[slice]()
        if isinstance(weights, Tensor):
            self.vector = weights * rate if rate else None
        elif rate:
            self.runs = list(weights)

    def add(self, g: Tensor, theta: Tensor, times: float = 1.0) -> None:
        """g <- g + times rate theta."""
        if self.vector is not None:
            g.addcmul_(theta, self.vector, value=times)
        for run in self.runs:
            g[:, run].add_(theta[:, run], alpha=times * self.rate)


class Rule(Protocol):
    """Steps of theta, which it changes in place."""

    def step(self, g: Tensor) -> None:
        """One step of the first users by their gradients (active, P), which it may change."""

    def restart(self) -> None:
        """Forget what was before."""


class SGD:
    """m <- mu m + g + decay theta; theta <- theta - lr m, or of g + mu m with Nesterov."""

    def __init__(self, theta: Tensor, weights: Weights, keys: TrainKeys) -> None:
        self.theta, self.keys, self.decay = theta, keys, Decay(weights, keys.decay)
        self.m = torch.zeros_like(theta) if keys.momentum else None

    def step(self, g: Tensor) -> None:
        """A step of the first users."""
        theta, keys = self.theta[: len(g)], self.keys
        clip(g, keys.clip_gradient)
        self.decay.add(g, theta)
        if self.m is not None:
            m = self.m[: len(g)].mul_(keys.momentum).add_(g)
            g = g.add_(m, alpha=keys.momentum) if keys.nesterov else m
        theta.add_(g, alpha=-keys.lr)

    def restart(self) -> None:
        """Momentum begins at zero."""
        if self.m is not None:
            self.m.zero_()


class Adam:
    """m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, theta <- theta - lr mhat/(sqrt vhat + eps).

    mhat = m / (1 - b1^t), vhat = v / (1 - b2^t). With `apart` (AdamW) the weights shrink by
    lr decay before the step, else decay theta is part of g.
    """

    def __init__(self, theta: Tensor, weights: Weights, keys: TrainKeys, apart: bool) -> None:
        self.theta, self.keys, self.apart, self.t = theta, keys, apart, 0
        self.decay = Decay(weights, keys.decay)
        self.m, self.v = torch.zeros_like(theta), torch.zeros_like(theta)

    def step(self, g: Tensor) -> None:
        """A step of the first users; all of them have taken as many before."""
        keys, n = self.keys, len(g)
        theta, m, v = self.theta[:n], self.m[:n], self.v[:n]
        self.t += 1
        clip(g, keys.clip_gradient)
        if self.apart:
            self.decay.add(theta, theta, -keys.lr)
        else:
            self.decay.add(g, theta)
        m.lerp_(g, 1 - keys.adam_beta1)
        v.mul_(keys.adam_beta2).addcmul_(g, g, value=1 - keys.adam_beta2)
        root = (1 - keys.adam_beta2**self.t) ** 0.5
        size = keys.lr / (1 - keys.adam_beta1**self.t)
        theta.addcdiv_(m, v.sqrt().div_(root).add_(keys.adam_epsilon), value=-size)

    def restart(self) -> None:
        """As before the first step."""
        self.t = 0
        self.m.zero_()
        self.v.zero_()


def rule_of(theta: Tensor, weights: Weights, keys: TrainKeys) -> Rule:
    """The optimizer of the keys on theta (users, P), with decay of `weights`."""
    if keys.optimizer == "sgd":
        return SGD(theta, weights, keys)
    return Adam(theta, weights, keys, apart=keys.optimizer == "adamw")


def clip(g: Tensor, most: float) -> None:
    """Shorten each user's gradient to a norm; 0: leave them."""
    if most:
        norms = torch.linalg.vector_norm(g, dim=1, keepdim=True)
        g.mul_((most / (norms + CLIP_EPSILON)).clamp_(max=1.0))


def vectors_of(keys: TrainKeys) -> int:
    """The vectors of the model's size that a user's step needs besides the model."""
    return 1 + (2 if keys.optimizer != "sgd" else int(keys.momentum > 0))


class Update(Protocol):
    """An optimizer on theta (users, P): gradients go to `m`, as m <- beta m + gradient.

    `losses.gradient(..., out=update.m, beta=update.beta)`, then `step`.
    """

    m: Tensor
    beta: float

    def step(self, active: int) -> None:
        """The step of the first users."""

    def restart(self) -> None:
        """Forget what was before."""


class Momentum:
    """SGD with momentum and weight decay on theta (users, P), the gradient given through `m`.

    m <- mu m + g is the caller's, by `losses.gradient(..., out=m, beta=mu)`; `step` does the rest:
    m <- m + weight_decay theta where `weights` is 1, theta <- theta - lr m.
    """

    def __init__(self, theta: Tensor, weights: Tensor, keys: TrainKeys) -> None:
        self.theta, self.keys, self.beta = theta, keys, keys.momentum
        self.m = torch.zeros_like(theta)
        self.decay = weights * keys.decay if keys.decay else None

    def step(self, active: int) -> None:
        """The step of the first users."""
        theta, m = self.theta[:active], self.m[:active]
        if self.decay is not None:
            m.addcmul_(theta, self.decay)
        theta.add_(m, alpha=-self.keys.lr)

    def restart(self) -> None:
        """Momentum begins at zero."""
        self.m.zero_()


class ByRule:
    """Any other optimizer: `m` is the gradient alone."""

    beta = 0.0

    def __init__(self, theta: Tensor, weights: Tensor, keys: TrainKeys) -> None:
        self.m, self.rule = torch.zeros_like(theta), rule_of(theta, weights, keys)

    def step(self, active: int) -> None:
        """The step of the first users."""
        self.rule.step(self.m[:active])

    def restart(self) -> None:
        """Forget what was before."""
        self.rule.restart()


def update_rule(theta: Tensor, weights: Tensor, keys: TrainKeys) -> Update:
    """The optimizer of the keys; `weights` is 1 where weight decay applies."""
    return (Momentum if keys.plain else ByRule)(theta, weights, keys)
