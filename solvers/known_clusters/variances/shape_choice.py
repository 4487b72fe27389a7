"""The choice of the covariances' shapes: by the likelihood of users that were left out.

Users are dealt into `CHOICE_FOLDS`. Covariances are fitted without one fold, by a few steps from
those of all, and judged by the restricted likelihood of that fold's data given those of all others:

    -2 log p(fold | rest) = deviance(all) - deviance(rest), at the covariances fitted to the rest.

The levels' shapes are tried one after the other, the users' first: one variance, then one a
coefficient, then any covariance; at last a size of its own for each cluster's users. One with more
numbers is taken if it is better by more than a standard error, over the folds, of the difference,
and if all its searches came to an end: else a fold would be judged by what it was fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.scoring import BLIND, Fitted, Scoring
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from corsage.solvers.known_clusters.variances.turning import searched

CHOICE_FOLDS = 5
MOST_DRAWN = 2000
"""Of more, these are drawn to choose by."""
MOST_FULL = 30
"""With more coefficients than these a full covariance, of hundreds of numbers, is not tried."""
MOST_APART = 50
"""With more clusters than these the users of each have no variance of their own."""
LEAST_APART = 10
"""Nor where they have fewer users than these on average: a size of so few is mostly chance."""
LIFTED_SHARE = 1e-2
"""The start of a variance that was found to be 0, as a share of the largest, or in all."""
CLOSE = 0.1
"""Shapes are compared at numbers where the slope of the deviance promises less than this: a
twentieth of what one number more must gain."""
OUT = 1e-3
"""The same of a fold's: what is left of its own users in numbers that began with them."""
NO_END = "the search for its most likely numbers has not come to an end"
EXPLAINED = "its likelihood has no top: with no noise at all it explains these few records a user"
DEAR = "what it gains is less than its numbers cost (AIC)"
FEW_UNITS = (
    "there are no more units than coefficients, so there would be directions without variance"
)


@dataclass(frozen=True)
class Judged:
    """Shapes fitted to all users, and the held-out log likelihood of each fold under them.

    `refused`: why they are out of the question, in words; then there may be no fit.
    """

    shapes: tuple[Shape, ...]
    fitted: Fitted | None = None
    folds: Floats = field(default_factory=lambda: np.zeros(0))
    refused: str = ""

    @property
    def total(self) -> float:
        """Over all folds."""
        return float(self.folds.sum())

    def ahead(self, other: Judged) -> bool:
        """True if it is better than another by more than a standard error."""
        if self.refused:
            return False
        gaps = self.folds - other.folds
        return bool(gaps.sum() > np.sqrt(len(gaps)) * gaps.std(ddof=1))


def best(tried: Sequence[Judged]) -> Fitted:
    """The likeliest; one with more numbers must be ahead of what was best before it."""
    now = tried[0]
    for one in tried[1:]:
        now = one if one.ahead(now) else now
    assert now.fitted is not None  # the first one is not refused
    return now.fitted


def chosen(
    tree: Tree, keys: Floats, varies: Ints, flat: float = BLIND
) -> tuple[Fitted, list[Judged]]:
    """The likeliest shapes fitted to everybody, and all that were tried.

    Users are dealt, and drawn where they are many, by their random `keys` (n,). Of wider shapes the
    fit to everybody must come to where following the slope gains less than `flat`.
    """
    some = np.sort(np.argsort(keys, kind="stable")[:MOST_DRAWN])
    small = part(tree, some)
    tried = tried_shapes(small, dealt(small.levels[0].parent, keys[some]), varies)
    while True:
        near = best(tried)
        found = searched(grouped(tree, near.shapes), near.shapes, near.x)
        if near is tried[0].fitted or found.converged or found.gain < flat:
            return replace(found, first=max(found.first, near.first)), tried
        tried = [replace(o, refused=NO_END) if o.fitted is near else o for o in tried]


def tried_shapes(tree: Tree, fold: Ints, varies: Ints) -> list[Judged]:
    """All that were tried; `fold` (n,) is each user's, `varies` which coefficients differ.

    One variance alone where nothing could be fitted without some fold.
    """
    shapes = equal_shapes(tree, ONE, varies)
    if too_few(tree, fold):
        found = Scoring(grouped(tree, shapes), shapes).fitted(None)
        return [Judged(shapes, found, np.zeros(CHOICE_FOLDS))]
    tried = [judged(tree, fold, shapes)]
    for place in range(len(shapes)):
        now = best(tried)
        for other in wider(now.shapes, place):
            tried.append(judged(tree, fold, other, now))
    if 1 < tree.levels[0].above <= min(MOST_APART, len(fold) // LEAST_APART):
        now = best(tried)
        tried.append(judged(tree, fold, apart(tree, now.shapes), now))
    return tried


def too_few(tree: Tree, fold: Ints) -> bool:
    """True if nothing can be fitted without the users of some fold."""
    if tree.sigma2 is not None:
        return len(fold) == 1
    left = tree.records - np.bincount(fold, tree.counts, CHOICE_FOLDS)
    return bool(left.min() <= tree.users.b.shape[1])


def equal_shapes(tree: Tree, kind: str, varies: Ints) -> tuple[Shape, ...]:
    """The same kind for all levels, of what varies and has a variance that the data tell."""
    d = tree.users.b.shape[1]
    told = (varies if at.told is None else varies[at.told[varies]] for at in tree.levels)
    return tuple(Shape(kind, own, d) for own in told)


def wider(shapes: tuple[Shape, ...], place: int) -> Iterator[tuple[Shape, ...]]:
    """One level's shape with more numbers."""
    r = len(shapes[place].varies)
    for kind in (DIAGONAL, FULL) if r <= MOST_FULL else (DIAGONAL,):
        if r > 1:
            yield (*shapes[:place], replace(shapes[place], kind=kind), *shapes[place + 1 :])


def apart(tree: Tree, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The users' covariance with a size of its own in each cluster."""
    return (replace(shapes[0], groups=tree.levels[0].above), *shapes[1:])


def judged(tree: Tree, fold: Ints, shapes: tuple[Shape, ...], near: Fitted | None = None) -> Judged:
    """Fitted to all, beginning with a fit of other shapes, and by a few steps to all but each fold.

    Shapes that are tried beside others are refused by the first search that has no top, and where
    Akaike's criterion does not prefer them: left-out users say little of few clusters, for all
    folds have the same ones.
    """
    whole = grouped(tree, shapes)
    if near and (refused := hopeless(whole, fold, shapes)):
        return Judged(shapes, refused=refused)
    found = searched(whole, shapes, started(near, shapes) if near else None, CLOSE)
    if near and found.gain >= CLOSE:
        return Judged(shapes, refused=NO_END)
    if near and near.deviance - found.deviance < 2 * (numbers(shapes) - numbers(near.shapes)):
        return Judged(shapes, refused=DEAR)
    folds = list[float]()
    for number in range(CHOICE_FOLDS):
        rest = searched(part(whole, np.flatnonzero(fold != number)), shapes, found.x, OUT)
        if near and rest.gain >= CLOSE:
            return Judged(shapes, refused=NO_END)
        folds.append(left_out(whole, rest))
    return Judged(shapes, found, np.array(folds))


def numbers(shapes: tuple[Shape, ...]) -> int:
    """Free numbers: of sizes apart one is not."""
    return sum(shape.size - (shape.groups > 1) for shape in shapes)


def left_out(tree: Tree, rest: Fitted) -> float:
    """log p(fold | rest), of a fit to the rest."""
    middle = tree.integrated(rest.roots, rest.found.middle.sigma2).middle
    return (rest.deviance - middle.deviance) / 2


def hopeless(tree: Tree, fold: Ints, shapes: tuple[Shape, ...]) -> str:
    """The reason not to fit shapes at all, in words; empty: there is none."""
    pairs = zip(shapes, tree.levels, strict=True)
    if any(one.kind == FULL and len(at.parent) <= len(one.varies) for one, at in pairs):
        return FEW_UNITS
    if shapes[0].kind == FULL and tree.sigma2 is None:
        rests = [part(tree, np.flatnonzero(fold != number)) for number in range(CHOICE_FOLDS)]
        return "" if all(bounded(rest, len(shapes[0].varies)) for rest in rests) else EXPLAINED
    return ""


def bounded(tree: Tree, r: int) -> bool:
    """True if the likelihood of any covariance of r coefficients of users has a top.

    One of rank q leaves m - q of a user's m records that the noise alone explains. Where the
    q (r - q) numbers that tell its directions, with those of the centres, are enough to make all
    of these 0, the likelihood grows without end as the noise goes to 0.
    """
    rank = np.arange(r)
    left = np.maximum(tree.counts[:, None] - rank, 0.0).sum(0)
    left -= tree.levels[0].above * tree.users.b.shape[1]
    return not bool(((left > 0) & (left <= rank * (r - rank))).any())


def started(near: Fitted, shapes: tuple[Shape, ...]) -> list[Floats]:
    """The numbers of these shapes that are nearest to a fit's, and not 0."""
    roots = [root[0] * np.sqrt(np.mean(np.square(size(root)))) for root in near.roots]
    return [shape.numbers(lifted(root)) for shape, root in zip(shapes, roots, strict=True)]


def size(root: Floats) -> Floats:
    """The sizes (g,) of the groups' roots, that of the first one being 1."""
    lengths = np.sqrt(np.square(root).sum((1, 2)))
    return lengths / lengths[0] if lengths[0] > 0 else np.ones(len(lengths))


def lifted(root: Floats) -> Floats:
    """A root (d, r) whose variances are above 0: from 0 no slope leads away."""
    d = len(root)
    covariance = root @ root.T
    floor = LIFTED_SHARE * max(float(np.diag(covariance).max()), LIFTED_SHARE)
    return np.asarray(np.linalg.cholesky(covariance + floor * np.eye(d)), np.float64)


def grouped(tree: Tree, shapes: Sequence[Shape]) -> Tree:
    """The tree with the users' groups that the shapes have: their clusters, or all as one."""
    first = tree.levels[0]
    group = first.parent if shapes[0].groups > 1 else np.zeros_like(first.parent)
    return replace(tree, levels=(replace(first, group=group), *tree.levels[1:]))


def part(tree: Tree, users: Ints) -> Tree:
    """The tree of some users alone; the levels above stay."""
    levels = (tree.levels[0].at(users), *tree.levels[1:])
    thin = tree.thin and tree.thin.at(users)
    own, counts = tree.users.at(users), tree.counts[users]
    return replace(tree, users=own, levels=levels, counts=counts, thin=thin)


def dealt(cluster: Ints, keys: Floats) -> Ints:
    """Each user's fold: those of a cluster in turn, in the order of their keys (n,)."""
    fold = np.empty(len(cluster), np.int64)
    fold[np.lexsort((keys, cluster))] = np.arange(len(cluster)) % CHOICE_FOLDS
    return fold
