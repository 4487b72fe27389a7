"""Linear FedRep, and what it is compared with, for all users (and seeds, and steps) at once.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, Algorithm 2 and section 5.1. Bodies B (..., d, k), heads w_i
(..., n, k), samples of `linear_problem`. Leading axes are separate runs and broadcast: one axis of
steps beside one of seeds runs a whole grid. As in Algorithm 2, B^t is not made orthonormal again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import drawn_count, generator
from corsage.experiments.fedrep.linear_problem import Samples

RANK = 1e-12
"""Singular values below this share of the largest count as zero."""
HUGE = 1e50
"""A body with an entry beyond this has diverged."""

Batch = Callable[[int, Ints], Samples]
"""The samples of round t for the users (..., r n) of that round."""


# Algorithm 2, Initialization: the method of moments.


def moments(samples: Samples) -> Floats:
    """sum_i Z_i (..., d, d), Z_i = 1/m sum_j (y_i^j)^2 x_i^j x_i^j^T, over the given users.

    The one federated round before the first: a node adds up its users, the server its nodes.
    """
    *leading, n, m, d = samples.x.shape
    weighted = (samples.x * samples.y[..., None]).reshape(*leading, n * m, d)
    return np.asarray(np.swapaxes(weighted, -1, -2) @ weighted / m)


def leading_subspace(total: Floats, users: int, k: int) -> Floats:
    """B^0 = U of the rank-k SVD of 1/n sum_i Z_i, which is symmetric, >= 0."""
    vectors = np.linalg.eigh(total / users)[1]
    return np.ascontiguousarray(vectors[..., : -k - 1 : -1])


# The client's steps.


def features(body: Floats, x: Floats) -> Floats:
    """B^T x of every sample, (..., n, m, k)."""
    *leading, n, m, d = x.shape
    flat = x.reshape(*leading, n * m, d) @ body
    return flat.reshape(*flat.shape[:-2], n, m, body.shape[-1])


def residuals(z: Floats, heads: Floats, y: Floats) -> Floats:
    """<w_i, z> - y of every sample, (..., n, m)."""
    return np.asarray((z @ heads[..., None])[..., 0] - y)


def solve_heads(body: Floats, samples: Samples) -> Floats:
    """argmin_w f^_i(w, B) of every user; the shortest one where m < k leaves it open."""
    inverse = np.linalg.pinv(features(body, samples.x), rcond=RANK)
    return np.asarray((inverse @ samples.y[..., None])[..., 0])


def step_heads(
    body: Floats, heads: Floats, samples: Samples, step: Floats | float, count: int
) -> Floats:
    """`count` gradient steps on f^_i (7) from w_i, with B frozen."""
    z, rate = features(body, samples.x), spread(step, 2)
    m = samples.y.shape[-1]
    for _ in range(count):
        error = residuals(z, heads, samples.y)
        heads = heads - rate * (error[..., None, :] @ z)[..., 0, :] / m
    return heads


def body_gradient(body: Floats, heads: Floats, samples: Samples) -> Floats:
    """The mean over the given users of the gradient of f^_i (7) with respect to B, (..., d, k).

    1/(n m) sum_i sum_j (<w_i, B^T x_i^j> - y_i^j) x_i^j w_i^T
    """
    *_, n, m, d = samples.x.shape
    error = residuals(features(body, samples.x), heads, samples.y)
    pulls = error[..., None] * heads[..., None, :]  # (..., n, m, k)
    flat = samples.x.reshape(*samples.x.shape[:-3], n * m, d)
    pulls = pulls.reshape(*pulls.shape[:-3], n * m, pulls.shape[-1])
    return np.asarray(np.swapaxes(flat, -1, -2) @ pulls / (n * m))


# Rounds.


def drawn_users(seeds: Sequence[int], n: int, share: float, number: int) -> Ints:
    """I^t of every run (runs, r n): max(r n, 1) users, uniform, without replacement."""
    count = drawn_count(share, n)
    return np.stack([generator(s, "users", number).permutation(n)[:count] for s in seeds])


@dataclass(frozen=True)
class Alternation:
    """How a round goes: the heads first, then one step of B at the new heads.

    `head_steps` None is FedRep, whose users find their optimal heads; 1 is GD-GD and 10 10GD-GD,
    whose users take as many steps from their last heads, which are 0 at first. `body_step` is eta,
    `head_step` alpha: numbers, or arrays that broadcast against the leading axes of the body.
    """

    body_step: Floats | float
    head_steps: int | None = None
    head_step: Floats | float = 0.0

    def run(
        self,
        body: Floats,
        n: int,
        batch: Batch,
        drawn: Sequence[Ints],
        watch: Callable[[Floats], object] = lambda body: None,
    ) -> Floats:
        """B^T from B^0 (..., d, k) over the rounds of `drawn`; `watch` sees every B^t, t >= 1.

        The mean of the users' B - eta gradient_i is B - eta mean gradient. A run whose body
        grows beyond `HUGE` is not a number from there on; the others go on.
        """
        runs = np.broadcast_shapes(
            np.shape(self.body_step), np.shape(self.head_step), body.shape[:-2]
        )
        body = np.broadcast_to(body, (*runs, *body.shape[-2:]))
        heads, alive = np.zeros((*runs, n, body.shape[-1])), np.ones((*runs, 1, 1), bool)
        with np.errstate(over="ignore", invalid="ignore"):
            for number, users in enumerate(drawn, 1):
                samples = batch(number, users)
                own = self._heads(body, heads, users, samples)
                body = body - spread(self.body_step, 2) * body_gradient(body, own, samples)
                alive &= (np.abs(body) < HUGE).all(axis=(-2, -1), keepdims=True)
                body = np.where(alive, body, 0.0)
                watch(np.where(alive, body, np.nan))
        return np.where(alive, body, np.nan)

    def _heads(self, body: Floats, heads: Floats, users: Ints, samples: Samples) -> Floats:
        """w_i^{t+1} of the round's users; those that are found by steps are kept in `heads`."""
        if self.head_steps is None:
            return solve_heads(body, samples)
        places = np.expand_dims(users, (*range(heads.ndim - users.ndim - 1), -1))
        own = np.take_along_axis(heads, places, -2)
        own = step_heads(body, own, samples, self.head_step, self.head_steps)
        np.put_along_axis(heads, places, own, -2)
        return own


def average(
    body: Floats, batch: Batch, drawn: Sequence[Ints], step: float, count: int
) -> tuple[Floats, Floats]:
    """FedAvg on (B, w), McMahan et al. 2017: `count` steps on f^_i at each user, then the mean.

    One model for all: B (runs, d, k) and w (runs, k), which is 0 at first.
    """
    head = np.zeros((*body.shape[:-2], body.shape[-1]))
    for number, users in enumerate(drawn, 1):
        samples = batch(number, users)
        n, m = samples.y.shape[-2:]
        bodies = np.repeat(body[..., None, :, :], n, -3)
        heads = np.repeat(head[..., None, :], n, -2)
        for _ in range(count):
            z = samples.x @ bodies
            error = residuals(z, heads, samples.y)[..., None, :] / m
            down = np.swapaxes(error @ samples.x, -1, -2) * heads[..., None, :]
            heads = heads - step * (error @ z)[..., 0, :]
            bodies = bodies - step * down
        body, head = bodies.mean(-3), heads.mean(-2)
    return body, head


def descend(samples: Samples, step: float, count: int) -> Floats:
    """Local training: `count` gradient steps on 1/(2m) sum (y - <v, x>)^2 from v = 0, (..., n, d).

    A user whose loss curves more than 1/step takes 1/(its curvature) instead. As `count` grows
    this is the shortest least-squares solution; that one has no finite mean error at m = d, where
    some users' inputs are all but dependent, while a finite `count` has.
    """
    x, y = samples
    d, m = x.shape[-1], x.shape[-2]
    curvature = np.square(np.linalg.norm(x, ord=2, axis=(-2, -1))) / m
    rate = np.minimum(step, 1.0 / curvature)[..., None]
    models = np.zeros((*y.shape[:-1], d))
    for _ in range(count):
        models = models - rate * (residuals(x, models, y)[..., None, :] @ x)[..., 0, :] / m
    return models


def spread(step: Floats | float, axes: int) -> Floats:
    """A step a run as an array that multiplies arrays with `axes` further axes."""
    step = np.asarray(step, np.float64)
    return step.reshape(*step.shape, *(1,) * axes) if step.ndim else step
