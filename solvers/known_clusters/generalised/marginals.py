"""Users' log marginal likelihoods in closed form: values, gradients and Hessians in psi.

psi is (theta, tau) and the family's shape, if it has one. A user's model is w = theta + D T u, with
T = sum_k tau_k T_k, and l(w, shape) is the log likelihood of its rows. With G = D'l_w, K = -D'l_ww D,
H = 1 + T'KT, Sigma = TT', E = (1 + Sigma K)^-1, M = KE, N = E Sigma = T H^-1 T', and a dot for the
derivative along u^(psi),

    u^ = T'G        H u. = T.'G + T'G_w p.        |H| = |1 + Sigma K|        M = K - KT H^-1 T'K
    M. = E'K.E - M Sigma. M        N. = E Sigma. E' - N K. N        E. = -(E Sigma. M + N K. E)

where p. is what (w, shape) move by while u stays. All else is the chain rule. Rows come in by sums
over them alone, of l's derivatives up to the fourth; users' parts are small matrices. Arrays have
users first, derivatives in psi (a, b) last, but for K1 and those above, which have them before the
matrix. `jets.profiled` gives the same by automatic differentiation, one function after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, pi, sqrt

import numpy as np
import torch
from torch import Tensor

from corsage.core.families import Family, Row
from corsage.solvers.known_clusters.generalised.jets import Jet

SPANNED = 1e-12
"""A direction that others span but for such a share is none of its own."""


@dataclass(frozen=True)
class Place:
    """Where users are asked, and in which terms.

    Parameters
    ----------
    theta, tau, shape : the parameters; the shape is empty if the family has none.
    basis : of the users' roots R = D T (q, P, r), linear in tau.
    around : directions in which a slope and a curvature are wanted (P, c).
    """

    theta: Tensor
    tau: Tensor
    shape: Tensor
    basis: Tensor
    around: Tensor

    @cached_property
    def root(self) -> Tensor:
        """R (P, r)."""
        return torch.einsum("kpr,k->pr", self.basis, self.tau)

    @cached_property
    def D(self) -> Tensor:
        """Orthonormal directions of all that differs (P, k)."""
        columns = torch.cat([self.basis.transpose(0, 1).flatten(1), self.around], 1)
        lengths = columns.norm(dim=0)
        left, sizes, _ = torch.linalg.svd(columns[:, lengths > 0] / lengths[lengths > 0], False)
        return left[:, sizes > SPANNED]

    @cached_property
    def T(self) -> Tensor:
        """(k, r)."""
        return self.D.T @ self.root

    @cached_property
    def T1(self) -> Tensor:
        """T's derivatives (m, k, r)."""
        before, after = len(self.theta), len(self.shape)
        own = self.D.T @ self.basis
        return torch.cat([own.new_zeros(before, *own.shape[1:]), own, own.new_zeros(after, *own.shape[1:])])

    @cached_property
    def spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sigma (k, k), its derivatives (m, k, k), and the second (m, m, k, k)."""
        first, second = self.T1 @ self.T.T, torch.einsum("aij,bkj->abik", self.T1, self.T1)
        return self.T @ self.T.T, first + first.mT, second + second.mT

    def fixed(self, u: Tensor) -> Tensor:
        """p., what (w, shape) move by if u (..., r) stays: (..., P or P + 1, m)."""
        d, q, s = (len(part) for part in (self.theta, self.tau, self.shape))
        found = u.new_zeros(*u.shape[:-1], d + s, d + q + s)
        found[..., :d, :d] = torch.eye(d, dtype=u.dtype)
        found[..., :d, d : d + q] = torch.einsum("qpr,...r->...pq", self.basis, u)
        found[..., d:, d + q :] = 1.0
        return found


class Bends:
    """A number a row, (n, J, R) for J places of each user, with its derivatives.

    Parameters
    ----------
    value : of the rows.
    first, second : derivatives in the score, and in the shape if there is one.
    """

    def __init__(self, value: Tensor, first: list[Tensor], second: list[list[Tensor]]) -> None:
        self.value, self.first, self.second = value, first, second

    def summed(self, x: Tensor, by: Tensor | float = 1.0) -> Jet:
        """The jet in (w, shape) of the sum over rows x (n, R, P) of the numbers times `by`."""
        square = (x[..., None] * x[..., None, :]).flatten(2)
        slope = (by * self.first[0]) @ x
        bend = ((by * self.second[0][0]) @ square).unflatten(-1, (x.shape[2], -1))
        for own, edge, corner in zip(self.first[1:], self.second[0][1:], self.second[1:], strict=True):
            slope = torch.cat([slope, (by * own).sum(-1, keepdim=True)], -1)
            side = ((by * edge) @ x)[..., None]
            last = torch.cat([side.mT, (by * corner[1]).sum(-1)[..., None, None]], -1)
            bend = torch.cat([torch.cat([bend, side], -1), last], -2)
        return Jet((by * self.value).sum(-1), slope, bend)


def bends(family: Family, row: Row, score: Tensor, shape: Tensor) -> tuple[Bends, Bends, Bends]:
    """Rows' log likelihoods, their slopes in the score, and their curvatures: see `Family`."""
    at = [part.expand(score.shape).clone().requires_grad_() for part in (score, *shape)]

    def each(value: Tensor, leaves: list[Tensor] = at) -> list[Tensor]:
        return list(torch.autograd.grad(value.sum(), leaves, create_graph=True)) if leaves else []

    with torch.enable_grad():
        row = Row(row.y[:, None], row.weight[:, None], at[-1] if len(shape) else row.shape)
        value, curvature = family.likelihood(at[0], row), family.curvature(at[0], row)
        first, third = [family.slope(at[0], row), *each(value, at[1:])], [each(curvature)]
        second = [[-curvature, *each(first[0], at[1:])], *map(each, first[1:])]
        slope = [[-part for part in third[0]], *map(each, second[0][1:])]
        fourth = [each(part) for part in third[0]]
    found = (value, first, second), (first[0], second[0], slope), (curvature, third[0], fourth)
    return tuple(  # type: ignore[return-value]
        Bends(a.detach(), [p.detach() for p in b], [[p.detach() for p in o] for o in c])
        for a, b, c in found
    )


class Marginals:
    """The jets of users with rows x (n, R, P), at the modes u (n, r) of their effects."""

    def __init__(self, family: Family, x: Tensor, row: Row, place: Place, u: Tensor) -> None:
        self.family, self.x, self.row, self.place, self.u = family, x, row, place, u
        own, k = (x @ place.D).mT, place.D.shape[1]
        i, j = torch.triu_indices(k, k)
        where = torch.zeros(k, k, dtype=torch.long)
        where[i, j] = where[j, i] = torch.arange(len(i))
        value, slope, curvature = self.terms(u[:, None])
        self.rows = Jet(*(part[:, 0] for part in value.summed(x)))
        self.G = self.along(slope.summed(x, own), curvature.summed(x, own[:, i] * own[:, j]), where)

    def terms(self, u: Tensor) -> tuple[Bends, Bends, Bends]:
        """The rows at effects u (n, J, r)."""
        score = (self.place.theta + u @ self.place.root.T) @ self.x.mT
        return bends(self.family, self.row, score, self.place.shape)

    def along(self, slope: Jet, curvature: Jet, where: Tensor) -> Jet:
        """G along u^; and with it u^ itself, and K, whose entries are at `where`."""
        T, T1, d = self.place.T, self.place.T1, self.x.shape[2]
        self.K = K = curvature.value[:, where]
        H = torch.eye(T.shape[1], dtype=T.dtype) + T.T @ K @ T
        self.p = self.place.fixed(self.u)
        pull = torch.einsum("akr,nk->nra", T1, slope.value) + T.T @ slope.slope @ self.p
        self.u1 = torch.linalg.solve(H, pull)
        w1 = self.p.clone()
        w1[:, :d] += self.place.root @ self.u1
        G1, w = slope.slope @ w1, w1[:, None]
        bent, turned = w.mT @ slope.bend @ w, both(torch.einsum("akr,nrb->nkab", T1, self.u1))
        pull = both(torch.einsum("akr,nkb->nrab", T1, G1)) + times(T.T, bent - times(K, turned))
        self.u2 = torch.linalg.solve(H, pull.flatten(2)).unflatten(-1, pull.shape[2:])
        t2 = turned + times(T, self.u2)
        K2 = w.mT @ curvature.bend @ w + times(curvature.slope[..., :d] @ self.place.D, t2)
        self.w1, self.K2 = w1, K2[:, where]
        self.K1 = (curvature.slope @ w1)[:, where].permute(0, 3, 1, 2)
        return Jet(slope.value, G1, bent - times(K, t2))

    # The functions, and their derivatives along u^.

    def joint(self) -> Jet:
        """h(u^)."""
        turned = torch.einsum("nk,akr,nrb->nab", self.G.value, self.place.T1, self.u1)
        bend = self.w1.mT @ self.rows.bend @ self.w1 + both(turned) - self.u1.mT @ self.u1
        slope = (self.rows.slope[:, None] @ self.p)[:, 0]
        return Jet(self.rows.value - self.u.square().sum(1) / 2, slope, bend)

    @cached_property
    def E(self) -> Tensor:
        """(n, k, k)."""
        S = self.place.spread[0]
        return torch.linalg.inv(torch.eye(len(S), dtype=S.dtype) + S @ self.K)

    @cached_property
    def M1(self) -> Tensor:
        """M's derivatives (n, m, k, k)."""
        E, M = self.E[:, None], (self.K @ self.E)[:, None]
        return E.mT @ self.K1 @ E - M @ self.place.spread[1] @ M

    def small(self) -> Jet:
        """-log|H|/2."""
        (S, S1, S2), E, K1 = self.place.spread, self.E, self.K1
        M, N = self.K @ E, E @ S
        N1 = E[:, None] @ S1 @ E.mT[:, None] - N[:, None] @ K1 @ N[:, None]
        slope = torch.einsum("aij,nij->na", S1, M) + torch.einsum("naij,nij->na", K1, N)
        bend = torch.einsum("abij,nij->nab", S2, M) + torch.einsum("nijab,nij->nab", self.K2, N)
        bend += torch.einsum("aij,nbij->nab", S1, self.M1) + torch.einsum("naij,nbij->nab", K1, N1)
        return Jet(torch.logdet(E) / 2, -slope / 2, -bend / 2)

    def slopes(self) -> Jet:
        """h's slope in the directions around: (n, c), (n, c, m), (n, c, m, m)."""
        own = self.place.D.T @ self.place.around
        return Jet(*(torch.einsum("kc,nk...->nc...", own, part) for part in self.G))

    def curvatures(self) -> Jet:
        """h's curvature in these directions, pair by pair, with what u^ takes of it."""
        (_, S1, S2), own, c = self.place.spread, self.place.D.T @ self.place.around, self.place.around.shape[1]
        Ea, Ma = self.E @ own, self.K @ self.E @ own
        S, K1 = self.place.spread[0], self.K1
        E1 = -(self.E[:, None] @ (S1 @ Ma[:, None] + S @ (K1 @ Ea[:, None])))
        bend = torch.einsum("naki,nbkj->nijab", K1 @ Ea[:, None], E1)
        bend -= torch.einsum("naki,nbkj->nijab", S1 @ Ma[:, None], self.M1 @ own)
        bend = bend + bend.transpose(1, 2)
        bend += torch.einsum("nki,nklab,nlj->nijab", Ea, self.K2, Ea)
        bend -= torch.einsum("nki,abkl,nlj->nijab", Ma, S2, Ma)
        first = torch.einsum("ki,nakl,lj->nija", own, self.M1, own)
        i, j = np.triu_indices(c)
        return Jet(*(part[:, i, j] for part in (own.T @ Ma, first, bend)))

    def quadrature(self, nodes: int) -> Jet:
        """The integral, over one number u."""
        place, weight = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(nodes))
        size, d, small = self.place.T, self.x.shape[2], self.small()
        wide = sqrt(2) * small.value.exp()[:, None] * place
        u = self.u + wide
        u1 = self.u1 + wide[..., None] * small.slope[:, None]
        u2 = self.u2 + wide[..., None, None] * (small.bend + outer(small.slope))[:, None]
        rows = self.terms(u[..., None])[0].summed(self.x)
        w1 = self.place.fixed(u[..., None])
        w1[..., :d, :] += self.place.root[:, 0, None] * u1[..., None, :]
        pull = rows.slope[..., :d] @ self.place.D
        turned = both(torch.einsum("njk,ak,njb->njab", pull, self.place.T1[..., 0], u1))
        slope = (rows.slope[..., None, :] @ w1)[..., 0, :] - u[..., None] * u1
        bend = w1.mT @ rows.bend @ w1 + turned - outer(u1)
        bend += (pull @ size - u[..., None])[..., None] * u2
        height = rows.value - u.square() / 2 + place.square() + weight.log()
        inner, share = torch.logsumexp(height, 1), height.softmax(1)
        first = torch.einsum("nj,nja->na", share, slope)
        second = torch.einsum("nj,njab->nab", share, bend + outer(slope)) - outer(first)
        value = inner + small.value - log(pi) / 2
        return Jet(value, first + small.slope, second + small.bend)

    def jet(self, nodes: int) -> Jet:
        """The jets of all functions that are wanted (n, J), (n, J, m), (n, J, m, m)."""
        if nodes:
            return Jet(*(part[:, None] for part in self.quadrature(nodes)))
        joint, small = self.joint(), self.small()
        if not self.place.around.shape[1]:
            return Jet(*((a + b)[:, None] for a, b in zip(joint, small, strict=True)))
        one = (Jet(*(part[:, None] for part in found)) for found in (joint, small))
        parts = [*one, self.slopes(), self.curvatures()]
        return Jet(*(torch.cat(each, 1) for each in zip(*parts, strict=True)))


def both(parts: Tensor) -> Tensor:
    """Parts (..., a, b), and the same with a and b the other way round."""
    return parts + parts.mT


def times(matrix: Tensor, parts: Tensor) -> Tensor:
    """A matrix (i, k) or (n, i, k) times parts (n, k, a, b), over k."""
    return (matrix @ parts.flatten(2)).unflatten(-1, parts.shape[2:])


def outer(parts: Tensor) -> Tensor:
    """(..., a, b) of (..., a)."""
    return parts[..., None] * parts[..., None, :]
