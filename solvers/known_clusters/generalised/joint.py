"""The likelihood of clusters, whose effects are integrated out by Laplace's approximation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.generalised.jets import Jet, derivatives, hessian, profiled
from corsage.solvers.known_clusters.generalised.levels import Design, Jets


class Clusters(NamedTuple):
    """The likelihood of clusters at psi: its jet, the clusters' effects, and what is still to gain.

    `gap`: by how much v_j from here is better than that of the place where users were asked.
    """

    jet: Jets
    v: Floats
    gap: float


def clusters_likelihood(
    design: Design, jets: Jets, asked: Floats, v: Floats, psi: Floats
) -> Clusters:
    """From jets of clusters that were asked at (theta_j, tau) (k, m), when they had v (k, s)."""
    found = [torch.from_numpy(np.array(part)) for part in jets]
    place, at = torch.from_numpy(asked), torch.from_numpy(psi).expand(len(v), -1)
    model = _Model(design, Jet(*found), place)
    before = torch.from_numpy(v)
    after = model.best(torch.cat([at, torch.zeros_like(before)], 1))
    gap = (model.height(torch.cat([at, after], 1)) - model.height(torch.cat([at, before], 1))).sum()
    leaf = torch.cat([at, after], 1).requires_grad_()
    with torch.enable_grad():
        joint, whole = model.height(leaf), model.whole(leaf)
        jet = profiled([whole], joint, leaf, v.shape[1]).summed()
    own = Jets(*(part[0].numpy() for part in jet))
    return Clusters(own, after.numpy(), float(gap))


@dataclass(frozen=True)
class _Model:
    """The users' functions as the quadratics that their jets are."""

    design: Design
    jets: Jet
    place: Tensor

    def away(self, at: Tensor) -> Tensor:
        """(theta_j, tau) of parameters and effects, less the place."""
        design, (free, own, end) = self.design, self.design.ends
        matrix, start = torch.from_numpy(design.matrix), torch.from_numpy(design.start)
        root = torch.einsum("kcs,nk->ncs", torch.from_numpy(design.above), at[:, own:end])
        effect = (root @ at[:, end:, None])[..., 0] @ torch.from_numpy(design.around).T
        theta = at[:, :free] @ matrix.T + start + effect
        return torch.cat([theta, at[:, free:own]], 1) - self.place

    def quadratics(self, at: Tensor) -> Tensor:
        """The functions (n, J)."""
        away = self.away(at)
        bent = torch.einsum("njab,nb->nja", self.jets.bend, away)
        return self.jets.value + torch.einsum("nja,na->nj", self.jets.slope + bent / 2, away)

    def height(self, at: Tensor) -> Tensor:
        """A_j - |v|^2/2."""
        return self.quadratics(at)[:, 0] - at[:, self.design.ends[2] :].square().sum(1) / 2

    def whole(self, at: Tensor) -> Tensor:
        """All of a cluster's likelihood."""
        design, values = self.design, self.quadratics(at)
        root = torch.einsum(
            "kcs,nk->ncs", torch.from_numpy(design.above), at[:, design.ends[1] : design.ends[2]]
        )
        c = root.shape[1]
        upper = np.triu_indices(c)
        bent = torch.zeros(len(at), c, c, dtype=at.dtype)
        for number, (i, j) in enumerate(zip(*upper, strict=True)):
            bent[:, i, j] = bent[:, j, i] = values[:, 2 + number]
        inner = root.mT @ bent @ root + torch.eye(root.shape[2], dtype=at.dtype)
        return self.height(at) + values[:, 1] - torch.logdet(inner) / 2

    def best(self, at: Tensor) -> Tensor:
        """v^, where `at` has 0: A_j is a quadratic of it."""
        leaf, end = at.clone().requires_grad_(), self.design.ends[2]
        with torch.enable_grad():
            slope = derivatives(self.height(leaf), leaf)[:, end:]
            bent = hessian(slope, leaf)[..., end:]
        found: Tensor = torch.linalg.solve(-bent, slope.detach()[..., None])[..., 0]
        return found
