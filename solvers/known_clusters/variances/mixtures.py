"""Groups of users that nobody told: a mixture of Gaussian priors, from users' sums.

    theta_i ~ sum_k pi_k N(w_k, sigma^2 L L'),   w_k ~ N(wbar, sigma^2 R R'),

where wbar is the centre of the one-centre model (tree.py, whose A, b, yy, P, q these are), and R
is known but for its size, which is found with the rest: groups may be far apart where users
around one centre seem alike. The w_k are integrated out, as in restricted likelihood: without,
more groups would always be likelier. A user's group and the w_k are taken to be independent given
the data (variational EM: Bishop 2006, 10.2); with one group it is exact. Every step raises the
bound. EM takes forever to a deviation of 0, which users of a group may have: so L is also tried
further on the way that it went, twice as far each time that it helped (Salakhutdinov and
Roweis 2003).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.likelihood import noiseless
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL

MOST_RISES = 60
ENOUGH = 1e-3
"""A step that raises the bound, a log likelihood, by less is the last."""
WITHIN = 0.3
"""The deviations within groups at the start, as a share of those around one centre."""
FIRST_MEMBERSHIP = 0.9
"""The membership in a group of who begins in it."""
NEARLY_NONE = 1e-300
FARTHEST = 30.0
"""The logarithm of the factor by which L is tried further at once, at most: more overflows."""


@dataclass(frozen=True)
class OneCentre:
    """wbar (d,) and sigma^2 of the model of one centre; where groups' centres are around it, R."""

    centre: Floats
    root: Floats
    sigma2: float


@dataclass(frozen=True)
class Told:
    """V = L K^-1 L' of users (n, d, d), and what they say of their centres, given L (d, r)."""

    v: Floats
    said: Sums

    @classmethod
    def of(cls, users: Sums, root: Floats) -> Told:
        """Of users' sums."""
        k = root.T @ users.a @ root + np.eye(root.shape[1])
        v = root @ np.linalg.inv(k) @ root.T
        own = times(v, users.b)
        p, q = users.a - users.a @ v @ users.a, users.b - times(users.a, own)
        left = users.yy - np.sum(users.b * own, axis=1)
        return cls(v, Sums(p, q, left, np.linalg.slogdet(k)[1]))

    def squares(self, w: Floats) -> Floats:
        """Squares that are left of the labels of each user around each centre (n, k)."""
        pw = np.einsum("nij,kj->nki", self.said.a, w) - 2 * self.said.b[:, None]
        return np.asarray(self.said.yy[:, None] + np.einsum("nki,ki->nk", pw, w))


@dataclass(frozen=True)
class Mixture:
    """The groups.

    Parameters
    ----------
    shares : pi (k,).
    centres : w_k (k, d).
    root : L (d, r).
    sigma2 : of the noise.
    unsure : the covariances of the w_k over sigma^2 (k, d, d).
    bound : of the log likelihood, from below.
    apart : what R is to be multiplied by for its expected likelihood to be the largest.
    """

    shares: Floats
    centres: Floats
    root: Floats
    sigma2: float
    unsure: Floats | None = None
    bound: float = -np.inf
    apart: float = 1.0

    def members(self, told: Told) -> Floats:
        """The probability of each user to be of each group (n, k)."""
        logs = np.log(self.shares) - told.squares(self.centres) / self.sigma2 / 2
        if self.unsure is not None:
            logs -= np.einsum("nij,kji->nk", told.said.a, self.unsure) / 2
        found = np.exp(logs - logs.max(1, keepdims=True))
        return np.asarray(found / found.sum(1, keepdims=True))

    def models(self, users: Sums) -> Floats:
        """theta_i (n, d): means over what users' groups may be."""
        told = Told.of(users, self.root)
        centre = self.members(told) @ self.centres
        return np.asarray(centre + times(told.v, users.b - times(users.a, centre)))

    @property
    def known(self) -> Mixture:
        """The same, its centres taken for known: so are users told of it."""
        return replace(self, unsure=None)


def times(a: Floats, b: Floats) -> Floats:
    """A b of each user (n, d)."""
    return np.asarray((a @ b[..., None])[..., 0])


def mixture(users: Sums, records: float, one: OneCentre, labels: Ints, kind: str) -> Mixture:
    """The groups, from where users are in those of `labels` (n,); L is of this shape."""
    *_, found = steps(users, records, one, labels, kind)
    return found


def steps(
    users: Sums, records: float, one: OneCentre, labels: Ints, kind: str
) -> Iterator[Mixture]:
    """The same, step by step."""
    n, k = len(labels), int(labels.max()) + 1
    root = WITHIN * root_of(one.root @ one.root.T, np.asarray(one.root.any(1)), kind)
    told = Told.of(users, root)
    member = np.full((n, k), (1 - FIRST_MEMBERSHIP) / max(k - 1, 1))
    member[np.arange(n), labels] = FIRST_MEMBERSHIP if k > 1 else 1.0
    whole = float(users.yy.sum())
    least = max(float(np.finfo(np.float64).eps) * whole / records, NEARLY_NONE)

    def at(now: Mixture, root: Floats) -> tuple[Told, Floats, Mixture]:
        told = Told.of(users, root)
        member = replace(now, root=root).members(told)
        return told, member, centred(told, member, one, root, records, least)

    now, before, further = centred(told, member, one, root, records, least), -np.inf, 1.0
    for _ in range(MOST_RISES):
        yield now
        if now.bound - before < ENOUGH or noiseless(now.sigma2 * records, whole, whole):
            return  # in groups without noise the bound has no top
        before, root = now.bound, around(users, told, now, member, kind)
        ahead = float(np.linalg.norm(root) / max(float(np.linalg.norm(now.root)), NEARLY_NONE))
        far = min(further, FARTHEST / max(abs(float(np.log(max(ahead, NEARLY_NONE)))), NEARLY_NONE))
        one = replace(one, root=one.root * now.apart)
        found = [at(now, root), at(now, root * ahead**far)]
        further = 2 * further if found[1][2].bound > found[0][2].bound else 1.0
        told, member, now = max(found, key=lambda one: one[2].bound)


def centred(
    told: Told,
    member: Floats,
    one: OneCentre,
    root: Floats,
    records: float,
    least: float = NEARLY_NONE,
) -> Mixture:
    """The shares, centres and the noise given the memberships (n, k), and the bound there.

    Noise of less than `least` is rounding.
    """
    p, q = np.einsum("nk,nij->kij", member, told.said.a), member.T @ told.said.b
    h = one.root.T @ p @ one.root + np.eye(one.root.shape[1])
    slope = (q - p @ one.centre) @ one.root
    away = np.asarray(np.linalg.solve(h, slope[..., None])[..., 0])
    w, shares = one.centre + away @ one.root.T, np.maximum(member.mean(0), NEARLY_NONE)
    square = float((member * told.squares(w)).sum() + np.square(away).sum())
    sigma2 = max(square / records, least)
    bound = float((member * np.log(shares / np.maximum(member, NEARLY_NONE))).sum())
    bound -= float(told.said.ld.sum() + np.linalg.slogdet(h)[1].sum()) / 2
    bound -= records / 2 * (np.log(2 * np.pi * sigma2) + 1)
    inverse = np.linalg.inv(h)
    unsure = one.root @ inverse @ one.root.T
    wide = np.square(away).sum() / sigma2 + np.einsum("kii->", inverse)
    return Mixture(shares, w, root, sigma2, unsure, bound, float(np.sqrt(wide / away.size)))


def around(users: Sums, told: Told, now: Mixture, member: Floats, kind: str) -> Floats:
    """L of a shape, of what is expected of the users' deviations from their centres."""
    assert now.unsure is not None
    rest = users.b[:, None] - np.einsum("nij,kj->nki", users.a, now.centres)
    away = np.einsum("nij,nkj->nki", told.v, rest) * np.sqrt(member)[..., None]
    gain, wide = told.v @ users.a, np.einsum("nk,kij->nij", member, now.unsure)
    whole = (told.v + gain @ wide @ gain.mT).sum(0)
    whole = (whole + np.einsum("nki,nkj->ij", away, away) / now.sigma2) / len(member)
    return root_of(whole, np.asarray(now.root.any(1)), kind)


def root_of(whole: Floats, varies: Bools, kind: str) -> Floats:
    """L of a shape, of which L L' is near `whole` (d, d)."""
    if kind == FULL:
        values, vectors = np.linalg.eigh(whole)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
    size = np.diag(whole)
    if kind != DIAGONAL:
        size = size[varies].sum() / max(int(varies.sum()), 1)
    return np.diag(np.sqrt(np.maximum(varies * size, 0.0)))
