"""Linear regressions that share a low-dimensional representation, and distances to it.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, sections 4 and 5.1: user i's labels are y = <w_i*, B*^T x> + noise,
with x ~ N(0, I_d), B* (d, k) with orthonormal columns, and heads w_i* (k) of norm sqrt(k)
(Assumption 3).

All arrays may have leading axes, one entry a problem: bodies (..., d, k), heads (..., n, k),
samples (..., n, m, d). Every problem of a stack is drawn by its own seed, so it is the same in
any company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator


class Samples(NamedTuple):
    """Inputs (..., n, m, d) and labels (..., n, m) of n users."""

    x: Floats
    y: Floats

    def of(self, users: Ints) -> Samples:
        """Those of some users, (..., r n) numbers: others in each problem."""
        return Samples(
            np.take_along_axis(self.x, users[..., None, None], -3),
            np.take_along_axis(self.y, users[..., None], -2),
        )


@dataclass(frozen=True)
class Problems:
    """Ground truths, one a seed: `body` is B* (S, d, k), `heads` are w_i* (S, n, k)."""

    seeds: tuple[int, ...]
    body: Floats
    heads: Floats
    noise: float  # the standard deviation of the labels' noise

    @classmethod
    def draw(cls, seeds: Sequence[int], d: int, k: int, n: int, noise: float) -> Problems:
        """Gaussian matrices, normalised: B* by QR, each head to the norm sqrt(k)."""
        rngs = [generator(seed, "linear truth") for seed in seeds]
        bodies = orthonormal(np.stack([rng.standard_normal((d, k)) for rng in rngs]))
        heads = np.stack([rng.standard_normal((n, k)) for rng in rngs])
        return cls(tuple(seeds), bodies, normalised(heads), noise)

    @property
    def models(self) -> Floats:
        """B* w_i* of every user, (S, n, d)."""
        return predictors(self.body, self.heads)

    def samples(self, m: int, *words: str | int, users: Ints | None = None) -> Samples:
        """m samples of each user, or of `users` (S, r n) only; `words` say what for."""
        heads = self.heads
        if users is not None:
            heads = np.take_along_axis(heads, users[..., None], -2)
        n, d = heads.shape[-2], self.body.shape[-2]
        rngs = [generator(seed, "linear samples", *words) for seed in self.seeds]
        x = np.stack([rng.standard_normal((n, m, d)) for rng in rngs])
        noise = np.stack([rng.standard_normal((n, m)) for rng in rngs])
        clean = (x @ predictors(self.body, heads)[..., None])[..., 0]
        return Samples(x, clean + self.noise * noise)

    def newcomers(self, n: int) -> Problems:
        """n other users that share the representation."""
        k = self.body.shape[-1]
        rngs = [generator(seed, "linear newcomers") for seed in self.seeds]
        heads = np.stack([rng.standard_normal((n, k)) for rng in rngs])
        return Problems(self.seeds, self.body, normalised(heads), self.noise)


def normalised(heads: Floats) -> Floats:
    """Heads (..., k) of norm sqrt(k)."""
    length = np.linalg.norm(heads, axis=-1, keepdims=True)
    return np.asarray(heads * (np.sqrt(heads.shape[-1]) / length))


def orthonormal(body: Floats) -> Floats:
    """B^, an orthonormal basis of the columns of B."""
    return np.asarray(np.linalg.qr(body)[0])


def predictors(body: Floats, heads: Floats) -> Floats:
    """B w_i (..., n, d): each user's model as one vector of the inputs' space."""
    return np.asarray(heads @ np.swapaxes(body, -1, -2))


def distance(one: Floats, other: Floats) -> Floats:
    """dist(B_1, B_2) = || B_1,perp^T B_2 ||_2, equation (9): the sine of the largest angle.

    Not its square. A body that diverged (not finite) spans nothing of use: its distance is 1.
    """
    finite = np.asarray(np.isfinite(one).all(axis=(-2, -1)))
    basis = orthonormal(np.where(finite[..., None, None], one, 0.0))
    target = orthonormal(other)
    beyond = target - basis @ (np.swapaxes(basis, -1, -2) @ target)
    sine = np.linalg.norm(beyond, ord=2, axis=(-2, -1))
    return np.where(finite, np.minimum(sine, 1.0), 1.0)


def excess_error(models: Floats, truth: Floats) -> Floats:
    """E (<v_i - B* w_i*, x>)^2 = || v_i - B* w_i* ||^2 of models v_i (..., n, d), (..., n).

    The mean squared error on new samples beyond the variance of their noise; 2 f_i of section 2.1.
    """
    return np.asarray(np.square(models - truth).sum(-1))
