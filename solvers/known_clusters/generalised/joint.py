"""The likelihood of levels above the users: their effects are integrated out by Laplace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.generalised.jets import Jet, derivatives, hessian, profiled
from corsage.solvers.known_clusters.generalised.levels import Design, Jets


@dataclass(frozen=True)
class Integrated:
    """The likelihood of all levels at psi.

    Parameters
    ----------
    effects : the best of each level's, from the clusters up, each (k, c).
    gap : by how much these are better than those with which users were asked.
    curved : second derivatives of each level's A in its model (k, d, d).
    top : the last level, where it is looked at, and its best effects.
    """

    effects: list[Floats]
    gap: float
    curved: list[Floats]
    top: tuple[_Level, Tensor, Tensor]

    @cached_property
    def jet(self) -> Jets:
        """Of psi: a number, (m,), (m, m)."""
        level, at, best = self.top
        found, design = level.jet(at, best, True), level.design
        whole = Jets(*(part.sum(0, keepdim=True).numpy() for part in found))
        return Jets(*(part[0] for part in design.living(design.whole(whole))))


def integrated(
    design: Design,
    jets: Jets,
    asked: Floats,
    effects: list[Floats],
    parents: list[Ints],
    psi: Floats,
) -> Integrated:
    """From jets of clusters that were asked at (theta_j, tau) (k, m), when levels had `effects`.

    `parents`: of each level's units the units above.
    """
    models, last = design.centres(psi, effects, parents), len(effects) - 1
    found, place, gap = Jet(*(torch.from_numpy(np.array(part)) for part in jets)), asked, 0.0
    steps, curved, d = list[tuple[_Level, Tensor, Tensor]](), list[Floats](), len(design.start)
    for level, before in enumerate(effects):
        curved.append(found.bend[:, 0, :d, :d].numpy())
        above = models[level + 1][parents[level]]
        tau = psi[design.free : design.spans[level + 1].stop]
        own = _Level(design, level, found, torch.from_numpy(place))
        at = torch.from_numpy(np.concatenate([above, np.tile(tau, (len(above), 1))], 1))
        old = torch.from_numpy(before)
        best = own.best(at, old.shape[1])
        steps.append((own, at, best))
        heights = (own.height(torch.cat([at, v], 1)).sum() for v in (best, old))
        gap += float(next(heights) - next(heights))
        if level == last:
            break
        jet = own.jet(at, best, False)
        parent = torch.from_numpy(parents[level])
        count = len(models[level + 1])
        found = Jet(*(p.new_zeros((count, *p.shape[1:])).index_add(0, parent, p) for p in jet))
        place = np.concatenate([models[level + 1], np.tile(tau, (count, 1))], 1)
    new, there = list[Floats](), models[-1]
    for level in range(last, -1, -1):
        own, at, best = steps[level]
        if level < last:
            at = torch.cat([torch.from_numpy(there[parents[level]]), at[:, d:]], 1)
            best = own.best(at, best.shape[1])
        new.append(best.numpy())
        there = there[parents[level]] + new[-1] @ design.root(psi, level + 1).T
    return Integrated(new[::-1], gap, curved, steps[-1])


@dataclass(frozen=True)
class _Level:
    """The functions of a level's units as the quadratics that their jets are.

    `at` has of each unit the model of the one above, all numbers up to its own, and its effect.
    """

    design: Design
    level: int
    jets: Jet
    place: Tensor

    def root(self, at: Tensor) -> Tensor:
        """L (n, c, c)."""
        basis, end = torch.from_numpy(self.design.above[self.level]), self.place.shape[1]
        return torch.einsum("kcs,nk->ncs", basis, at[:, end : end + len(basis)])

    def effect(self, at: Tensor) -> Tensor:
        """v (n, c)."""
        return at[:, self.place.shape[1] + len(self.design.above[self.level]) :]

    def away(self, at: Tensor) -> Tensor:
        """(theta_j, tau) of parameters and effects, less the place."""
        around, d = torch.from_numpy(self.design.around), len(self.design.start)
        effect = (self.root(at) @ self.effect(at)[..., None])[..., 0] @ around.T
        theta = at[:, :d] + effect
        return torch.cat([theta, at[:, d : self.place.shape[1]]], 1) - self.place

    def quadratics(self, at: Tensor) -> Tensor:
        """The functions (n, J); the first with its third derivatives where it is looked at."""
        away = self.away(at)
        bent = torch.einsum("njab,nb->nja", self.jets.bend, away)
        found = self.jets.value + torch.einsum("nja,na->nj", self.jets.slope + bent / 2, away)
        return torch.cat(
            [found[:, :1] + self.third(away - away.detach())[:, None], found[:, 1:]], 1
        )

    def third(self, step: Tensor) -> Tensor:
        """The cubic of A, of which all derivatives but those across `around` are known (n,)."""
        around, d = torch.from_numpy(self.design.around), len(self.design.start)
        c = around.shape[1]
        inner = step[:, :d] @ torch.linalg.pinv(around).T
        along = torch.nn.functional.pad(inner @ around.T, (0, step.shape[1] - d))
        rest = step - along
        cubic = torch.einsum("njab,nj->nab", self.jets.bend[:, 2 : 2 + c], inner)
        both = torch.einsum("nab,nb->na", cubic, along + 3 * rest)
        across = torch.einsum("nab,nb->na", cubic, rest)
        return ((both * along).sum(1) + 3 * (across * rest).sum(1)) / 6

    def height(self, at: Tensor) -> Tensor:
        """A_j - |v|^2/2."""
        return self.quadratics(at)[:, 0] - self.effect(at).square().sum(1) / 2

    def parts(self, at: Tensor, last: bool) -> tuple[Tensor, list[Tensor]]:
        """A function that is largest in v, and those of the units above; of the `last` one."""
        values, root, c = self.quadratics(at), self.root(at), self.design.around.shape[1]
        joint = values[:, 0] - self.effect(at).square().sum(1) / 2
        upper = np.triu_indices(c)
        bent = torch.zeros(len(at), c, c, dtype=at.dtype)
        for number, (i, j) in enumerate(zip(*upper, strict=True)):
            bent[:, i, j] = bent[:, j, i] = values[:, 2 + c + number]
        inner = root.mT @ bent @ root + torch.eye(c, dtype=at.dtype)
        small = values[:, 1] - torch.logdet(inner) / 2
        if last:
            return joint, [joint + small]
        cross = root.mT @ bent
        left = bent - cross.mT @ torch.linalg.solve(inner, cross)
        curved = (left[:, i, j] for i, j in zip(*upper, strict=True))
        return joint, [joint, small, *values[:, 2 : 2 + c].unbind(1), *curved]

    def jet(self, at: Tensor, effect: Tensor, last: bool) -> Jet:
        """The jets of `parts` at the best effects."""
        leaf = torch.cat([at, effect], 1).requires_grad_()
        with torch.enable_grad():
            joint, functions = self.parts(leaf, last)
            return profiled(functions, joint, leaf, effect.shape[1])

    def best(self, at: Tensor, c: int) -> Tensor:
        """v^ (n, c), where A_j is a quadratic of it."""
        leaf = torch.cat([at, at.new_zeros(len(at), c)], 1).requires_grad_()
        with torch.enable_grad():
            slope = derivatives(self.height(leaf), leaf)[:, -c:]
            bent = hessian(slope, leaf)[..., -c:]
        found: Tensor = torch.linalg.solve(-bent, slope.detach()[..., None])[..., 0]
        return found
