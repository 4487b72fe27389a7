"""Multinomial losses of users with about as many samples each, all at once.

Minimisers are sought along the axes of a user's own rows, in units in which the bound on the
curvature, (I - 11'/C)/2 for each sample (Böhning 1992), is 1: by matrices of few numbers, else by
conjugate gradients, which take products with the Hessian and know its blocks of a class each.
"""

from __future__ import annotations

from functools import cache, cached_property
from logging import getLogger

import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.arrays import Ints
from corsage.solvers.losses import users_newton
from corsage.solvers.losses.linear_block import EXACT_COLUMNS, SETTLED
from corsage.solvers.losses.padded import pad
from corsage.solvers.losses.users_newton import Functions, Map, lengths, thin

MOST_CURVED = 0.5
"""The largest curvature in a sample's scores."""
MOST_WITH_MATRICES = 50
"""Numbers of a user's model, along the axes of its rows, up to which systems are solved at once."""
MOST_WITH_ONE_MATRIX = 3000
"""The same where conjugate gradients do not come to their end: user by user."""
LOOSE, CLOSE_ENOUGH, MOST_PRODUCTS = 0.1, 1e-3, 500
"""What conjugate gradients may leave of a gradient: at first, and near the end; when they stop."""
log = getLogger("corsage")


class SoftmaxBlock:
    """The losses of users with about as many samples each, all at once.

    Parameters
    ----------
    rows : a_j of all these users, one user after the other.
    y : 1 for a row's class, else 0 (rows, C).
    sizes : samples a user.
    share : what sums are multiplied by (users,).
    ridge : c.
    width : features, without the 1 of the intercept.
    """

    def __init__(
        self, rows: Tensor, y: Tensor, sizes: Ints, share: Tensor, ridge: float, width: int
    ) -> None:
        self.a, self.y = pad(rows, sizes), pad(y, sizes)
        self.real = pad(rows.new_ones(len(rows)), sizes)
        self.share, self.ridge, self.width = share[:, None, None], ridge, width
        self.classes = y.shape[1]

    def _models(self, x: Tensor) -> Tensor:
        return by_class(x, self.classes, self.width)

    def _scores(self, x: Tensor) -> Tensor:
        return torch.bmm(self.a, self._models(x).mT)

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""
        scores = self._scores(x)
        own = (scores * self.y).sum(2)
        others = (scores - own[:, :, None]).masked_fill(self.y > 0, -torch.inf).logsumexp(2)
        total = (F.softplus(others) * self.real).sum(1) * self.share[:, 0, 0]
        return total + self.ridge / 2 * x.square().sum(1)

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        return flat(self._slope(self._models(x)), self.width)

    def _slope(self, theta: Tensor) -> Tensor:
        """The gradient at models (users, C, d), as they are."""
        told = slopes(torch.bmm(self.a, theta.mT), self.y)
        return self.share * torch.bmm(told.mT, self.a) + self.ridge * theta

    def descend(self, x: Tensor, k: int, step: float) -> Tensor:
        """x after k gradient steps."""
        theta = self._models(x)
        for _ in range(k):
            theta = theta.sub(self._slope(theta), alpha=step)
        return flat(theta, self.width)

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessian (users, d, d)."""
        h = curved(self._scores(x).softmax(2), self.a)
        return self._laid(self.share[..., None, None] * h)

    def trace(self, x: Tensor) -> Tensor:
        """Its trace."""
        told = self._scores(x).softmax(2)
        curved = (told * (1 - told)).sum(2) * self.a.square().sum(2)
        return self.share[:, 0, 0] * curved.sum(1) + self.ridge * x.shape[1]

    def above(self, x: Tensor) -> Tensor:
        """The bound on the Hessian: (I - 11'/C)/2 for each sample."""
        eye = torch.eye(self.classes, dtype=x.dtype, device=x.device)
        bound = MOST_CURVED * (eye - 1 / self.classes)
        gram = self.share * torch.bmm(self.a.mT, self.a)
        return self._laid(torch.einsum("ce,uij->uciej", bound, gram))

    def _laid(self, h: Tensor) -> Tensor:
        """(users, C, d, C, d) as (users, P, P) in the order of the parameters, with the ridge."""
        size = self.classes * self.a.shape[2]
        places = torch.arange(size, device=h.device).view(1, self.classes, -1)
        order = flat(places, self.width)[0]
        h = h.reshape(len(h), size, size)[:, order][:, :, order]
        h.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return h

    @cached_property
    def smoothness(self) -> Tensor:
        """L_i: of many columns the bound's trace in one class."""
        squares = self._axes[1].square() * self.share[:, :, 0]
        wide = self.a.shape[2] > EXACT_COLUMNS
        return MOST_CURVED * (squares.sum(1) if wide else squares[:, 0]) + self.ridge

    # Minimisers, in the axes of a user's own rows: elsewhere only ridge and ties count.

    @cached_property
    def _axes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows (users, m, r), lengths (users, r) and axes (users, d, r): A = rows axes'."""
        u, s, v = torch.linalg.svd(self.a, full_matrices=False)
        least = 16 * torch.finfo(s.dtype).eps * max(self.a.shape[1:]) * s[:, :1]
        s = torch.where(s > least, s, 0)
        return u * s[:, None], s, v.mT * (s > 0)[:, None]

    @property
    def spanning(self) -> Tensor:
        """True if a user's rows span the space (users,)."""
        return (self._axes[1] > 0).sum(1) == self.a.shape[2]

    def prox(self, centre: Tensor, kappa: Tensor, start: Tensor) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2."""
        x, found = self._found(kappa, kappa[:, None] * centre, start)
        if not found.all():
            say_unsettled()
        return x

    def minimise(self, slope: Tensor, start: Tensor) -> Tensor:
        """argmin f_i(x) + <slope_i, x>; NaN if none is found."""
        x, found = self._found(torch.zeros_like(slope[:, 0]), -slope, start)
        return torch.where(found[:, None], x, torch.nan)

    def _found(self, kappa: Tensor, pull: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """argmin f_i(x) + kappa_i/2 |x|^2 - <pull_i, x>, and who has one.

        Along the axes it is sought; in all other directions, and for what classes have in common,
        it is pull/(kappa + ridge).
        """
        v, pulls = self._axes[2], self._models(pull)
        along = pulls @ v
        shared = along.mean(1, keepdim=True)
        free = pulls - (along - shared) @ v.mT
        weight = (kappa + self.ridge)[:, None, None]
        size = self._force(v.new_ones(())) + lengths(pull)
        loose = lengths(free.flatten(1)) <= thin(v.dtype) * size
        rest = torch.where(weight > 0, free / torch.where(weight > 0, weight, 1), 0)
        held = self.ridge > 0 or bool((kappa > 0).all())
        at = self._models(start) @ v
        z, found = self._along(weight, along - shared, at - at.mean(1, keepdim=True), held)
        return flat(rest + z @ v.mT, self.width), found & (loose | (weight > 0)[:, 0, 0])

    def _force(self, unit: Tensor) -> Tensor:
        """The sum of the sizes of a gradient's terms at 0, in units."""
        steep = (1 - 1 / self.classes) ** 0.5
        sizes: Tensor = (unit * self._axes[0]).norm(dim=2).sum(1)
        force: Tensor = self.share[:, 0, 0] * (steep * sizes)
        return force

    def _along(
        self, weight: Tensor, pull: Tensor, start: Tensor, held: bool
    ) -> tuple[Tensor, Tensor]:
        """The same along the axes, for classes that add up to 0: (users, C, r)."""
        rows, s, _ = self._axes
        bound = MOST_CURVED * self.share * s.square()[:, None] + weight
        unit = torch.where(bound > 0, bound, 1).rsqrt()  # no curvature is above 1 then
        shape = pull.shape

        def models(z: Tensor) -> Tensor:
            return unit * z.view(shape)

        def back(scores: Tensor, at: Tensor) -> Tensor:
            return unit * (self.share * torch.bmm(scores.mT, rows) + weight * at)

        def gradient(z: Tensor) -> Tensor:
            at = models(z)
            return apart(back(slopes(torch.bmm(rows, at.mT), self.y), at) - unit * pull)

        def solve(z: Tensor, damping: Tensor, right: Tensor) -> Tensor:
            told, size = torch.bmm(rows, models(z).mT).softmax(2), right.shape[1]

            def by_matrices(some: Tensor) -> Tensor:
                share, own = self.share[some], (weight * unit.square())[some]
                h = share[..., None, None] * curved(told[some], (rows * unit)[some])
                flat_axes = (s[some] <= 0)[:, None]
                own = torch.where(flat_axes, 1, own + damping[some, None, None])
                h.view(len(some), size, size).diagonal(dim1=1, dim2=2).add_(
                    own.expand(-1, *shape[1:]).flatten(1)
                )
                h.diagonal(dim1=2, dim2=4).add_(1 / self.classes)
                return solved(h.flatten(3).flatten(1, 2), right[some])

            if size <= MOST_WITH_MATRICES:
                return by_matrices(torch.arange(len(right), device=right.device))

            def product(p: Tensor) -> Tensor:
                at = models(p)
                moved = told * torch.bmm(rows, at.mT)
                scores = moved - told * moved.sum(2, keepdim=True)
                return apart(back(scores, at)) + damping[:, None] * p

            known: Map = torch.Tensor.clone
            if shape[1] * shape[2] ** 2 <= MOST_WITH_ONE_MATRIX**2:
                own = weight * unit.square() + damping[:, None, None] + thin(right.dtype)
                known = by_class_alone(self.share * told * (1 - told), rows * unit, own)
            left = (lengths(right) / force.clamp(min=torch.finfo(right.dtype).tiny)).sqrt()
            left = left.clamp(CLOSE_ENOUGH, LOOSE)
            step, far = conjugate_gradients(product, known, right, left)
            for user in far.nonzero() if size <= MOST_WITH_ONE_MATRIX else ():
                step[user] = by_matrices(user)
            return step

        force = self._force(unit) + lengths((unit * pull).flatten(1))
        functions = Functions(gradient, solve, torch.ones_like(force), force, coercive=held)
        z, found = users_newton.minimise(functions, (start / unit).flatten(1))
        if not held:  # the gradient vanishes on a way to infinity, too: there steps have no end
            step = models(users_newton.direction(functions, functions.start(z), 0.0))
            found &= torch.bmm(rows, step.mT).abs().amax((1, 2)) <= SETTLED
        return models(z), found


@cache
def say_unsettled() -> None:
    """A line about proximal steps with slopes that are more than rounding, once a process."""
    log.warning(
        "some users' proximal steps are not exact to the last digits: their features' units are "
        "very different, or hardly anything holds classes that can be told apart; scale them, or "
        "set ridge=0.001."
    )


def by_class(x: Tensor, classes: int, width: int) -> Tensor:
    """Flat models (n, P) as a row a class (n, C, d), the intercept last."""
    weights, rest = x[:, : classes * width], x[:, classes * width :]
    return torch.cat([part.reshape(len(x), classes, -1) for part in (weights, rest)], 2)


def flat(models: Tensor, width: int) -> Tensor:
    """The way back."""
    return torch.cat([models[:, :, :width].flatten(1), models[:, :, width:].flatten(1)], 1)


def apart(models: Tensor) -> Tensor:
    """Models (users, C, r) without what their classes have in common, as rows.

    Conjugate gradients, too, keep to these: what is in common is hardly held, so rounding errors
    grow there, where no slope shows them.
    """
    return (models - models.mean(1, keepdim=True)).flatten(1)


def slopes(scores: Tensor, y: Tensor) -> Tensor:
    """softmax - y; of the right class as what the others have, which may be far below 1."""
    others = scores.softmax(-1) * (1 - y)
    return others - y * others.sum(-1, keepdim=True)


def curved(told: Tensor, a: Tensor) -> Tensor:
    """sum_j (diag p_j - p_j p_j') x a_j a_j' (users, C, d, C, d), for probabilities p."""
    (users, _, d), classes = a.shape, told.shape[2]
    crossed = (told[..., None] * a[:, :, None]).flatten(2)
    h = -torch.bmm(crossed.mT, crossed).view(users, classes, d, classes, d)
    for c in range(classes):
        h[:, c, :, c] += torch.bmm((told[..., c, None] * a).mT, a)
    return h


def solved(h: Tensor, right: Tensor) -> Tensor:
    """h^-1 right; by rounding h may have eigenvalues that are not above 0."""
    factor, bad = torch.linalg.cholesky_ex(h)
    if bad.any():
        step: Tensor = torch.linalg.solve_ex(h, right)[0]
        return step
    return torch.cholesky_solve(right[..., None], factor)[..., 0]


def by_class_alone(weights: Tensor, a: Tensor, own: Tensor) -> Map:
    """A product with nearly a Hessian's inverse: that of its blocks of one class each.

    Parameters
    ----------
    weights : curvature of a row in each class's score (users, m, C).
    a : rows (users, m, r).
    own : what is added on the diagonals (users, 1, r).
    """
    h = (weights.mT[..., None] * a[:, None]).mT @ a[:, None]
    h.diagonal(dim1=2, dim2=3).add_(own)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(h)[0])
    return lambda rest: apart((inverse @ rest.view(*h.shape[:3], 1))[..., 0])


def conjugate_gradients(
    product: Map, known: Map, right: Tensor, left: Tensor
) -> tuple[Tensor, Tensor]:
    """x of product(x) = right for every user (n, d), and whose |rest| is above left |right|.

    `known` is a product with what is near to the inverse.
    """
    x, rest = torch.zeros_like(right), right
    along = known(rest)
    size = (rest * along).sum(1)
    enough = left * lengths(right)
    for _ in range(MOST_PRODUCTS):
        going = lengths(rest) > enough
        if not going.any():
            break
        bent = product(along)
        curved = (along * bent).sum(1)
        length = torch.where(going & (curved > 0), size / curved, 0)[:, None]
        x, rest = x + length * along, rest - length * bent
        nearly = known(rest)
        after = (rest * nearly).sum(1)
        along = nearly + torch.where(going, after / size, 0)[:, None] * along
        size = after
    return x, lengths(rest) > enough
