"""Users in known clusters with losses of closed form, and dense references of their objective."""

from __future__ import annotations

import itertools

import numpy as np

from corsage.solvers.known_clusters.hierarchy import Hierarchy


class Quadratics:
    """f_i(x) = 1/2 x'A_i x - b_i'x, a mean over `samples` of such functions with an l_2 weight."""

    def __init__(self, rng, n, d, *, samples=1, spread=1.0, floor=0.3):
        roots = rng.normal(size=(n, samples, d, d)) / np.sqrt(d)
        self.a = roots @ np.swapaxes(roots, -1, -2) + floor * np.eye(d)
        self.b = spread * rng.normal(size=(n, samples, d))
        self.mean_a, self.mean_b = self.a.mean(1), self.b.mean(1)
        self.n, self.d, self.samples = n, d, samples

    def value(self, x):
        return 0.5 * np.einsum("ip,ipq,iq->i", x, self.mean_a, x) - (self.mean_b * x).sum(1)

    def gradient(self, x, users):
        return np.einsum("ipq,iq->ip", self.mean_a[users], x) - self.mean_b[users]

    def sample_gradient(self, drawn, x, users):
        """Of one sample `drawn[i]` of each user i."""
        at = drawn[users]
        return np.einsum("ipq,iq->ip", self.a[users, at], x) - self.b[users, at]

    def smoothness(self):
        return float(np.linalg.eigvalsh(self.a)[..., -1].max())

    def convexity(self):
        return float(np.linalg.eigvalsh(self.mean_a)[..., 0].min())

    def hessian(self):
        """Of sum_i f_i, (n d, n d)."""
        n, d = self.n, self.d
        dense = np.zeros((n, d, n, d))
        dense[np.arange(n), :, np.arange(n), :] = self.mean_a
        return dense.reshape(n * d, n * d)

    def minimiser(self, hierarchy):
        """Of (2.1), by one dense solve."""
        pull = np.kron(pull_matrix(hierarchy), np.eye(self.d))
        best = np.linalg.solve(self.hessian() + pull, self.mean_b.reshape(-1))
        return best.reshape(self.n, self.d)


def pull_matrix(hierarchy):
    """R (n, n): the regularisers of (2.1) as printed are 1/2 tr(theta' R theta)."""
    gamma, own = hierarchy.gamma, hierarchy.cluster
    alpha, unit = hierarchy.alpha[own], np.eye(hierarchy.n)
    weights = alpha * gamma
    middle = weights / weights.sum() if weights.any() else np.zeros(hierarchy.n)
    total = np.zeros((hierarchy.n, hierarchy.n))
    for i in range(hierarchy.n):
        centre = np.where(own == own[i], gamma, 0.0)
        near = unit[i] - centre / max(centre.sum(), 1e-300)
        far = unit[i] - middle
        total += (1 - alpha[i]) * gamma[i] * np.outer(near, near)
        total += alpha[i] * gamma[i] * np.outer(far, far)
    return total


def hierarchy_of(rng, sizes, *, even, alpha=None, gamma=(0.3, 3.0)):
    """Clusters of these sizes, users in any order."""
    k = len(sizes)
    cluster = rng.permutation(np.repeat(np.arange(k), sizes))
    strengths = rng.uniform(*gamma, size=k)[cluster] if even else rng.uniform(*gamma, len(cluster))
    return Hierarchy(cluster, strengths, rng.uniform(0.1, 0.9, k) if alpha is None else alpha)


def faces(network, cluster):
    """All coins of an iteration: (probability, xi_0, xi_j (k,))."""
    for xi_0 in (False, True):
        for xi in itertools.product((False, True), repeat=len(cluster)):
            shares = [p if x else 1 - p for p, x in zip(cluster, xi, strict=True)]
            chance = (network if xi_0 else 1 - network) * float(np.prod(shares))
            if chance:
                yield chance, xi_0, np.array(xi)
