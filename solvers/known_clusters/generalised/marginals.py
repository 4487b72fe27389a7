"""Users' log marginal likelihoods in closed form: values, gradients and Hessians in psi.

psi is (theta, tau) and the family's shape, if it has one. A user's model is w = theta + D T u,
with T = sum_k tau_k T_k, and l(w, shape) is the log likelihood of its rows. With G = D'l_w, K =
-D'l_ww D, H = 1 + T'KT, Sigma = TT' (S), E = (1 + SK)^-1, M = KE, N = ES = T H^-1 T', and a dot for
the derivative along u^(psi),

    u^ = T'G         H u. = T.'G + T'G_w p.         |H| = |1 + SK|         M = K - KT H^-1 T'K
    M. = E'K.E - M S. M         N. = E S. E' - N K. N         E. = -(E S. M + N K. E)

where p. is what (w, shape) move by while u stays. All else is the chain rule. Rows come in by sums
over them alone, of l's derivatives up to the fourth; users' parts are small matrices. In code these
have small letters, D is `directions`, and a number counts derivatives. Arrays have users first and
derivatives in psi last, but for k1, m1 and e1, which have them before the matrix. `jets.profiled`
gives the same by automatic differentiation, one function after the other.
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
    basis : of the users' roots R = directions t (q, P, r), linear in tau.
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
    def directions(self) -> Tensor:
        """Orthonormal directions of all that differs (P, k)."""
        columns = torch.cat([self.basis.transpose(0, 1).flatten(1), self.around], 1)
        lengths = columns.norm(dim=0)
        left, sizes, _ = torch.linalg.svd(columns[:, lengths > 0] / lengths[lengths > 0], False)
        found: Tensor = left[:, sizes > SPANNED]
        return found

    @cached_property
    def inner(self) -> Tensor:
        """The directions around, in these (k, c)."""
        return self.directions.mT @ self.around

    @cached_property
    def t(self) -> Tensor:
        """(k, r)."""
        return self.directions.mT @ self.root

    @cached_property
    def t1(self) -> Tensor:
        """t's derivatives (m, k, r)."""
        own = self.directions.mT @ self.basis
        before, after = (own.new_zeros(len(p), *own.shape[1:]) for p in (self.theta, self.shape))
        return torch.cat([before, own, after])

    @cached_property
    def spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sigma (k, k), its derivatives (m, k, k), and the second (m, m, k, k)."""
        first, second = self.t1 @ self.t.mT, torch.einsum("aij,bkj->abik", self.t1, self.t1)
        return self.t @ self.t.mT, first + first.mT, second + second.mT

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
        bend = ((by * self.second[0][0]) @ square).reshape(*slope.shape, x.shape[2])
        for own, edge, corner in zip(
            self.first[1:], self.second[0][1:], self.second[1:], strict=True
        ):
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
        first, third = [family.slope(at[0], row), *each(value, at[1:])], each(curvature)
        second = [[-curvature, *each(first[0], at[1:])], *map(each, first[1:])]
        slope = [[-part for part in third], *map(each, second[0][1:])]
        fourth = [each(part) for part in third]
    found = (value, first, second), (first[0], second[0], slope), (curvature, third, fourth)
    return tuple(  # type: ignore[return-value]
        Bends(a.detach(), [p.detach() for p in b], [[p.detach() for p in o] for o in c])
        for a, b, c in found
    )


class Marginals:
    """The jets of users with rows x (n, R, P), at the modes u (n, r) of their effects."""

    def __init__(self, family: Family, x: Tensor, row: Row, place: Place, u: Tensor) -> None:
        self.family, self.x, self.row, self.place, self.u = family, x, row, place, u
        own, width = (x @ place.directions).mT, place.directions.shape[1]
        i, j = torch.triu_indices(width, width)
        where = torch.zeros(width, width, dtype=torch.long)
        where[i, j] = where[j, i] = torch.arange(len(i))
        value, slope, curvature = self.terms(u[:, None])
        self.rows = Jet(*(part[:, 0] for part in value.summed(x)))
        self.g = self.along(slope.summed(x, own), curvature.summed(x, own[:, i] * own[:, j]), where)

    def terms(self, u: Tensor) -> tuple[Bends, Bends, Bends]:
        """The rows at effects u (n, J, r)."""
        score = (self.place.theta + u @ self.place.root.mT) @ self.x.mT
        return bends(self.family, self.row, score, self.place.shape)

    def along(self, slope: Jet, curvature: Jet, where: Tensor) -> Jet:
        """g along u^; and with it u^ itself, and k, whose entries are at `where`."""
        t, t1, d = self.place.t, self.place.t1, self.x.shape[2]
        self.k = k = curvature.value[:, where]
        h = torch.eye(t.shape[1], dtype=t.dtype) + t.mT @ k @ t
        self.p = self.place.fixed(self.u)
        pull = torch.einsum("akr,nk->nra", t1, slope.value) + t.mT @ slope.slope @ self.p
        self.u1 = torch.linalg.solve(h, pull)
        w1 = self.p.clone()
        w1[:, :d] += self.place.root @ self.u1
        g1, w = slope.slope @ w1, w1[:, None]
        bent, turned = w.mT @ slope.bend @ w, both(torch.einsum("akr,nrb->nkab", t1, self.u1))
        pull = both(torch.einsum("akr,nkb->nrab", t1, g1)) + times(t.mT, bent - times(k, turned))
        self.u2 = torch.linalg.solve(h, pull.flatten(2)).unflatten(-1, pull.shape[2:])
        t2 = turned + times(t, self.u2)
        k2 = w.mT @ curvature.bend @ w + times(curvature.slope[..., :d] @ self.place.directions, t2)
        self.w1, self.k2 = w1, k2[:, where]
        self.k1 = (curvature.slope @ w1)[:, where].permute(0, 3, 1, 2)
        return Jet(slope.value, g1, bent - times(k, t2))

    # The functions, and their derivatives along u^.

    def joint(self) -> Jet:
        """h(u^)."""
        turned = torch.einsum("nk,akr,nrb->nab", self.g.value, self.place.t1, self.u1)
        bend = self.w1.mT @ self.rows.bend @ self.w1 + both(turned) - self.u1.mT @ self.u1
        slope = (self.rows.slope[:, None] @ self.p)[:, 0]
        return Jet(self.rows.value - self.u.square().sum(1) / 2, slope, bend)

    @cached_property
    def e(self) -> Tensor:
        """(n, k, k)."""
        s = self.place.spread[0]
        found: Tensor = torch.linalg.inv(torch.eye(len(s), dtype=s.dtype) + s @ self.k)
        return found

    @cached_property
    def m1(self) -> Tensor:
        """m's derivatives (n, m, k, k)."""
        e, m = self.e[:, None], (self.k @ self.e)[:, None]
        return e.mT @ self.k1 @ e - m @ self.place.spread[1] @ m

    def small(self) -> Jet:
        """-log|h|/2."""
        (s, s1, s2), e, k1 = self.place.spread, self.e, self.k1
        m, n = self.k @ e, e @ s
        n1 = e[:, None] @ s1 @ e.mT[:, None] - n[:, None] @ k1 @ n[:, None]
        slope = torch.einsum("aij,nij->na", s1, m) + torch.einsum("naij,nij->na", k1, n)
        bend = torch.einsum("abij,nij->nab", s2, m) + torch.einsum("nijab,nij->nab", self.k2, n)
        bend += torch.einsum("aij,nbij->nab", s1, self.m1) + torch.einsum("naij,nbij->nab", k1, n1)
        return Jet(torch.logdet(e) / 2, -slope / 2, -bend / 2)

    def slopes(self) -> Jet:
        """h's slope in the directions around: (n, c), (n, c, m), (n, c, m, m)."""
        return Jet(*(torch.einsum("kc,nk...->nc...", self.place.inner, own) for own in self.g))

    def curvatures(self) -> Jet:
        """h's curvature in these directions, pair by pair, with what u^ takes of it."""
        (s, s1, s2), own, k1 = self.place.spread, self.place.inner, self.k1
        ea, ma = self.e @ own, self.k @ self.e @ own
        e1 = -(self.e[:, None] @ (s1 @ ma[:, None] + s @ (k1 @ ea[:, None])))
        bend = torch.einsum("naki,nbkj->nijab", k1 @ ea[:, None], e1)
        bend -= torch.einsum("naki,nbkj->nijab", s1 @ ma[:, None], self.m1 @ own)
        bend = bend + bend.transpose(1, 2)
        bend += torch.einsum("nki,nklab,nlj->nijab", ea, self.k2, ea)
        bend -= torch.einsum("nki,abkl,nlj->nijab", ma, s2, ma)
        first = torch.einsum("ki,nakl,lj->nija", own, self.m1, own)
        i, j = np.triu_indices(own.shape[1])
        return Jet(*(part[:, i, j] for part in (own.mT @ ma, first, bend)))

    def quadrature(self, nodes: int) -> Jet:
        """The integral, over one number u."""
        place, weight = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(nodes))
        size, d, small = self.place.t, self.x.shape[2], self.small()
        wide = sqrt(2) * small.value.exp()[:, None] * place
        u = self.u + wide
        u1 = self.u1 + wide[..., None] * small.slope[:, None]
        u2 = self.u2 + wide[..., None, None] * (small.bend + outer(small.slope))[:, None]
        rows = self.terms(u[..., None])[0].summed(self.x)
        w1 = self.place.fixed(u[..., None])
        w1[..., :d, :] += self.place.root[:, 0, None] * u1[..., None, :]
        pull = rows.slope[..., :d] @ self.place.directions
        turned = both(torch.einsum("njk,ak,njb->njab", pull, self.place.t1[..., 0], u1))
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
    found = matrix @ parts.flatten(2)
    return found.reshape(*found.shape[:2], *parts.shape[2:])


def outer(parts: Tensor) -> Tensor:
    """(..., a, b) of (..., a)."""
    return parts[..., None] * parts[..., None, :]
