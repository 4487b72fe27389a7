"""Groups that nobody told, and if they pay: mixtures beside one centre, on held-out records.

The squared error on a fold's records of a model that is made of the others' follows from users'
sums of each fold, so all is refitted without each fold at the server. Groups are taken if they err
less than one centre for sure (`FALSE_ALARMS`), by three readings of the users' gains, of which none
hangs on a few of them, and if a single user could not have made all of the gain: a likelihood alone
finds groups in users that are a continuum, and with heavy tails a few users decide a mean. Of
numbers of groups those up to the likeliest one may be taken (BIC); of these the fewest that do as
well as the best, within an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.likelihood import noiseless
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
"""Users whose likeliest group each is, at least: of fewer nobody could say that they are one."""
FALSE_ALARMS = 0.05
"""The level at which groups are taken (1.64 standard errors, and more of few users: Student's t),
divided by how many numbers of groups may be: each of them is looked at."""
TRIMMED = 0.1
"""The share of users at each end whom the trimmed mean leaves out."""
FIRST_APART = 0.3
"""The deviation of groups' centres at the start, in that of records; it is found with the rest."""
OF_ONE_USER = 1.0
"""Standard errors of a mean gain that a single user makes, at most."""


@dataclass(frozen=True)
class Tried:
    """A number of groups beside one centre.

    Parameters
    ----------
    gain : the share by which it errs less on held-out records.
    sure : the same in standard errors over users, of whom a few do not decide: it may be below 0
        where the gain is not.
    shared : whether one user cannot have made all of the gain.
    likely : whether it is the likeliest number, or smaller.
    peopled : whether each group is the likeliest one of `LEAST_USERS` or more.
    """

    groups: int
    gain: float
    sure: float
    shared: bool = True
    likely: bool = True
    peopled: bool = True


@dataclass(frozen=True)
class Groups:
    """The groups, in the model's units; of one centre none.

    Parameters
    ----------
    tried : all numbers that were tried; none where users or rows are too few to judge them by, or
        labels have no noise.
    mixture : the groups, the largest first.
    error : its squared error a record that is held out.
    """

    tried: list[Tried]
    mixture: Mixture | None
    error: float = 0.0


@dataclass(frozen=True)
class Part:
    """Users' sums in standard units, the one-centre model fitted to them, and columns in use."""

    tree: Tree
    one: Fitted
    sound: Ints

    @property
    def noiseless(self) -> bool:
        """True if around one centre users explain all: squares are rounding then."""
        around = float(self.tree.users.yy.sum())
        return noiseless(self.one.found.middle.square, around, around)

    def grouped(self, count: int) -> Mixture:
        """So many groups, from Ward's linkage of the users' models around one centre.

        Users differ equally in all directions within them: a covariance of any shape would have
        some of the groups in it. Groups' centres differ as users around one centre do, or equally
        in all directions, whichever is likelier: groups may be far apart where users seem alike.
        """
        from scipy.cluster.hierarchy import cut_tree, linkage

        users, (own, centre) = self.tree.users, self.one.found.known()
        round_ = FIRST_APART * np.eye(users.b.shape[1])[:, self.sound]
        roots = [root for root in (self.one.roots[0][0], round_) if root.any()]
        away = own.mean - centre.mean
        if not away.any():
            away = times(Told.of(users, round_).v, users.b - times(users.a, centre.mean))
        labels = cut_tree(linkage(away, "ward"), n_clusters=[count])[:, 0]
        tops = [OneCentre(centre.mean[0], root, self.one.found.middle.sigma2) for root in roots]
        found = [mixture(users, self.tree.records, top, labels, ONE) for top in tops]
        return max(found, key=lambda own: own.bound).known


def found_groups(folds: list[Sums], counts: Floats, keys: Floats, intercept: bool) -> Groups:
    """The groups that pay.

    Parameters
    ----------
    folds : of each fold the users' sums, in the model's units.
    counts : the records of each user in each fold (F, n).
    keys : a random number of each user (n,), by which covariances' shapes are chosen.
    """
    n, d = folds[0].b.shape
    left = counts.sum() - counts.sum(1).max()
    most = min(MOST_GROUPS, n // LEAST_USERS) if left > d else 1
    if most < 2:
        return Groups([], None)
    units, whole, held = standard(folds, counts, intercept)
    some = np.flatnonzero(units.sound)
    tree = Tree(whole, levels_of(np.zeros(n, np.int64), 1), counts.sum(0))
    part = Part(tree, chosen(tree, keys, some)[0], some)
    rests = [without(part, own, count) for own, count in zip(held, counts, strict=True)]
    if any(each.noiseless for each in (part, *rests)):
        return Groups([], None)
    one = errors(held, [rest.one.found.known()[0].mean for rest in rests])
    mixtures, lost = list[Mixture](), list[Floats]()
    for count in range(2, most + 1):
        mixtures.append(part.grouped(count))
        models = [rest.grouped(count).models(rest.tree.users) for rest in rests]
        lost.append(errors(held, models))
    price, counted = np.log(n) / 2, range(len(mixtures))
    likeliest = max(counted, key=lambda k: mixtures[k].bound - price * len(mixtures[k].shares))
    sizes = [np.bincount(likeliest_of(own, whole), minlength=len(own.shares)) for own in mixtures]
    tried = [
        Tried(
            k + 2,
            1 - float(own.sum() / one.sum()),
            sure(one, own),
            errors_apart(one - own) > OF_ONE_USER,
            k <= likeliest,
            bool((sizes[k] >= LEAST_USERS).all()),
        )
        for k, own in enumerate(lost)
    ]
    if (place := taken(tried, lost)) is None:
        return Groups(tried, None)
    order = np.argsort(-sizes[place], kind="stable")
    error = float(lost[place].sum() / counts.sum())
    return Groups(tried, in_units(mixtures[place], order, units), error)


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
    return Part(tree, searched(tree, part.one.shapes, part.one.x, CLOSE), part.sound)


def errors(held: list[Sums], models: list[Floats]) -> Floats:
    """Squared errors of each user on all folds (n,), of the models (n, d) without each."""
    total = np.zeros(len(models[0]))
    for own, theta in zip(held, models, strict=True):
        total += own.yy + np.sum((times(own.a, theta) - 2 * own.b) * theta, axis=1)
    return np.maximum(total, 0.0)  # of labels without noise they are rounding


def sure(one: Floats, other: Floats) -> float:
    """By how many standard errors others err less, for any of three readings of the users.

    Their mean, where a few large ones do not decide; the mean of those who are left if at each end
    `TRIMMED` of them are not counted; and the signed ranks of their gains, in units of what each
    errs around one centre (Wilcoxon), in which all users are of one size.
    """
    from scipy.stats import trim_mean, wilcoxon
    from scipy.stats.mstats import trimmed_stde

    gains = one - other
    if not gains.any():
        return 0.0
    error = float(trimmed_stde(gains, (TRIMMED, TRIMMED)))
    middle = float(trim_mean(gains, TRIMMED)) / error if error else 0.0
    shares = gains / np.maximum(one, np.finfo(np.float64).tiny)
    ranks = wilcoxon(shares, method="asymptotic", alternative="greater").zstatistic
    return min(by_mean(one, other), middle, float(ranks))


def by_mean(one: Floats, other: Floats) -> float:
    """The same of the mean alone, to which a few large users add no more than others."""
    loud = bounded(np.stack([one, other]))
    return errors_apart(loud[0] - loud[1])


def errors_apart(gains: Floats) -> float:
    """The mean in its standard errors."""
    error = float(gains.std(ddof=1)) * np.sqrt(len(gains))
    return float(gains.sum()) / error if error else 0.0


def taken(tried: list[Tried], lost: list[Floats]) -> int | None:
    """The place of the number that is taken; None: one centre."""
    from scipy.stats import t

    looked_at = max(sum(own.likely for own in tried), 1)
    least = float(t.isf(FALSE_ALARMS / looked_at, len(lost[0]) - 1))
    paying = [
        k
        for k, own in enumerate(tried)
        if own.likely and own.peopled and own.shared and own.sure > least
    ]
    if not paying:
        return None
    best = min(paying, key=lambda place: float(lost[place].sum()))
    return next(place for place in paying if by_mean(lost[place], lost[best]) <= 1.0)


def likeliest_of(found: Mixture, users: Sums) -> Ints:
    """The group that each user is most likely in (n,)."""
    return np.asarray(found.members(Told.of(users, found.root)).argmax(1))


def in_units(found: Mixture, order: Ints, units: Standard) -> Mixture:
    """The groups in this order, in the model's units."""
    centres = units.models(found.centres[order])
    return Mixture(found.shares[order], centres, units.matrix @ found.root, found.sigma2)
