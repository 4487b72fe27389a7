"""Groups that nobody told, and if they pay: mixtures beside one centre, on held-out records.

The squared error on a fold's records of a model that is made of the others' follows from users'
sums of each fold, so all is refitted without each fold at the server. Groups are taken if they err
less than one centre by `SURELY` standard errors over the users: a likelihood alone finds groups in
users that are a continuum. Of numbers of groups those up to the likeliest one may be taken (BIC);
of these the fewest that do as well as the best, within an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree, levels_of
from corsage.solvers.known_clusters.variances.mixtures import (
    Mixture,
    OneCentre,
    Told,
    mixture,
    times,
)
from corsage.solvers.known_clusters.variances.scoring import Fitted
from corsage.solvers.known_clusters.variances.shape_choice import CLOSE, chosen
from corsage.solvers.known_clusters.variances.shapes import ONE
from corsage.solvers.known_clusters.variances.turning import searched
from corsage.solvers.losses.held_out import bounded

MOST_GROUPS = 5
LEAST_USERS = 3
"""Users a group has at least, on average."""
SURELY = 1.64
"""Standard errors by which groups must err less: 5% of false alarms."""


@dataclass(frozen=True)
class Tried:
    """A number of groups, by what share it errs less than one centre, and in standard errors."""

    groups: int
    gain: float
    sure: float


@dataclass(frozen=True)
class Groups:
    """The groups, in the model's units; of one centre none.

    Parameters
    ----------
    tried : all numbers that were tried.
    mixture : the groups, the largest first.
    """

    tried: list[Tried]
    mixture: Mixture | None


@dataclass(frozen=True)
class Part:
    """Users' sums in standard units, and the one-centre model fitted to them."""

    tree: Tree
    one: Fitted

    def grouped(self, count: int) -> Mixture:
        """So many groups, from Ward's linkage of the users' models around one centre.

        Users differ equally in all directions within them: a covariance of any shape would have
        some of the groups in it.
        """
        from scipy.cluster.hierarchy import cut_tree, linkage

        users, centre = self.one.found.known()
        away = users.mean - centre.mean
        labels = cut_tree(linkage(away, "ward"), n_clusters=[count])[:, 0]
        top = OneCentre(centre.mean[0], self.one.roots[0][0], self.one.found.middle.sigma2)
        return mixture(self.tree.users, self.tree.records, top, labels, ONE).known


def found_groups(folds: list[Sums], counts: Floats, keys: Floats, intercept: bool) -> Groups:
    """The groups that pay.

    Parameters
    ----------
    folds : of each fold the users' sums, in the model's units.
    counts : the records of each user in each fold (F, n).
    keys : a random number of each user (n,), by which covariances' shapes are chosen.
    """
    units, whole, held = standard(folds, counts, intercept)
    n, some = len(keys), np.flatnonzero(units.sound)
    tree = Tree(whole, levels_of(np.zeros(n, np.int64), 1), counts.sum(0))
    part = Part(tree, chosen(tree, keys, some)[0])
    rests = [without(part, own, count) for own, count in zip(held, counts, strict=True)]
    one = errors(held, [rest.one.found.known()[0].mean for rest in rests])
    mixtures, lost = list[Mixture](), list[Floats]()
    for count in range(2, min(MOST_GROUPS, n // LEAST_USERS) + 1):
        mixtures.append(part.grouped(count))
        models = [rest.grouped(count).models(rest.tree.users) for rest in rests]
        lost.append(errors(held, models))
    tried = [
        Tried(len(m.shares), 1 - float(own.sum() / one.sum()), sure(one, own))
        for m, own in zip(mixtures, lost, strict=True)
    ]
    place = taken(tried, [m.bound for m in mixtures], lost)
    return Groups(tried, None if place is None else settled(mixtures[place], whole, units))


def standard(
    folds: list[Sums], counts: Floats, intercept: bool
) -> tuple[Standard, Sums, list[Sums]]:
    """Standard units, and in these the sums of all records and of each fold's."""
    a, b, yy = (np.sum([getattr(own, name) for own in folds], axis=0) for name in ("a", "b", "yy"))
    units = Standard.of(a.sum(0), b.sum(0), float(counts.sum()), intercept)
    return units, units.sums(a, b, yy), [units.sums(own.a, own.b, own.yy) for own in folds]


def without(part: Part, fold: Sums, counts: Floats) -> Part:
    """The same without a fold's records, fitted anew."""
    users = Sums(*(all_ - own for all_, own in zip(part.tree.users, fold, strict=True)))
    tree = Tree(users, part.tree.levels, part.tree.counts - counts)
    return Part(tree, searched(tree, part.one.shapes, part.one.x, CLOSE))


def errors(held: list[Sums], models: list[Floats]) -> Floats:
    """Squared errors of each user on all folds (n,), of the models (n, d) without each."""
    total = np.zeros(len(models[0]))
    for own, theta in zip(held, models, strict=True):
        total += own.yy + np.sum((times(own.a, theta) - 2 * own.b) * theta, axis=1)
    return total


def sure(one: Floats, other: Floats) -> float:
    """By how many standard errors others err less; a few large users do not decide for all."""
    loud = bounded(np.stack([one, other]))
    gains = loud[0] - loud[1]
    error = float(gains.std(ddof=1)) * np.sqrt(len(gains))
    return float(gains.sum()) / error if error else 0.0


def taken(tried: list[Tried], bounds: list[float], lost: list[Floats]) -> int | None:
    """The place of the number that is taken; None: one centre."""
    if not tried:
        return None
    price = np.log(len(lost[0])) / 2
    likeliest = int(
        np.argmax([b - price * one.groups for b, one in zip(bounds, tried, strict=True)])
    )
    paying = [place for place in range(likeliest + 1) if tried[place].sure > SURELY]
    if not paying:
        return None
    best = min(paying, key=lambda place: float(lost[place].sum()))
    return next(place for place in paying if sure(lost[place], lost[best]) <= 1.0)


def settled(found: Mixture, users: Sums, units: Standard) -> Mixture | None:
    """The groups that somebody is most likely in, in the model's units; None if that is one."""
    labels = found.members(Told.of(users, found.root)).argmax(1)
    sizes = np.bincount(labels, minlength=len(found.shares))
    order = [int(k) for k in np.argsort(-sizes, kind="stable") if sizes[k]]
    if len(order) == 1:
        return None
    shares, centres = found.shares[order], units.models(found.centres[order])
    return Mixture(shares / shares.sum(), centres, units.matrix @ found.root, found.sigma2)
