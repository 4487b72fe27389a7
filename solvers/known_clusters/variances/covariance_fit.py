"""The most likely covariances of users and clusters, as a run holds them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.constraints import NO_DEVIATION
from corsage.solvers.known_clusters.variances.scoring import BLIND, Fitted, Scoring
from corsage.solvers.known_clusters.variances.shape_choice import equal_shapes, grouped
from corsage.solvers.known_clusters.variances.shapes import Shape
from corsage.solvers.known_clusters.variances.turning import searched
from corsage.solvers.known_clusters.variances.uncertainty import Likely

NO_VARIANCE_SHARE = 1e-12
"""A variance below this share of the level's is none, all of them in standard units."""


@dataclass
class Generalised:
    """A fit by a marginal likelihood.

    Parameters
    ----------
    how : the integral is computed, in words; empty: there is no such fit.
    shape : the logarithm of the family's.
    aic : Akaike's criterion, and `tried` that of all shapes of covariances.
    open : what has no best value, as the likelihood grows for ever.
    bound : whether the shape is at its bound, where the family is another one.
    """

    how: str = ""
    shape: float = 0.0
    aic: float = 0.0
    tried: dict[str, float] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    bound: bool = False


@dataclass
class CovarianceFit:
    """The most likely covariances, given their shapes.

    Parameters
    ----------
    kinds : the shape of each level, from the users up: one, diagonal or full.
    varying : of each level the coefficients that it has a variance of.
    held : why those of others are 0, by level and number: the data do not tell them.
    names : clusters, if the users' covariance has a size of its own in each; else none.
    x : the numbers of all levels' roots (scoring.py), in standard units.
    units : from standard units to those of the model.
    sigma2 : sigma^2, between records; 1 where losses are log likelihoods themselves.
    users, clusters : covariances (g, d, d) and (1, d, d), or (0, d, d) if there is one cluster.
    above : of the levels above the clusters, from below, each (d, d).
    loglik : the restricted log likelihood.
    squares : of all labels around their mean: a mark of the data.
    gain : what following its slope would add to twice that; less than `flat` is nothing.
    fault : why its likelihood has no top; empty: nothing is known against it.
    shares : of records, users and clusters in the variance of a record; empty if unknown.
    held_out : log likelihood of users that were left out, by the shapes that were tried.
    refused : why others were not judged.
    likely : how sure the numbers are, in the data's units (uncertainty.py).
    intervals : how that was found, or why it was not.
    generalised : what else a marginal likelihood says.
    """

    kinds: list[str] = field(default_factory=list)
    varying: list[list[int]] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    x: Floats = field(default_factory=lambda: np.zeros(0))
    units: Standard = field(default_factory=lambda: Standard(*np.zeros((3, 0))))
    sigma2: float = 1.0
    users: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    clusters: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    above: list[Floats] = field(default_factory=list)
    loglik: float = 0.0
    squares: float = 0.0
    gain: float = 0.0
    flat: float = BLIND
    fault: str = ""
    shares: list[float] = field(default_factory=list)
    held_out: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    likely: dict[str, Likely] = field(default_factory=dict)
    intervals: str = ""
    generalised: Generalised = field(default_factory=Generalised)

    @classmethod
    def of(
        cls,
        found: Fitted,
        units: Standard,
        names: list[str],
        shares: list[float],
        squares: float = 0.0,
    ) -> CovarianceFit:
        """A fit to these clusters in standard units, told in those of the model."""
        sigma2, d = found.found.middle.sigma2, len(units.start)
        own = [sigma2 * units.covariances(sized(part)) for part in found.covariances]
        return cls(
            kinds=[shape.kind for shape in found.shapes],
            varying=[shape.varies.tolist() for shape in found.shapes],
            names=names if found.shapes[0].groups > 1 else [],
            x=np.concatenate(found.x),
            units=units,
            sigma2=sigma2,
            users=own[0],
            clusters=own[1] if len(own) > 1 else np.zeros((0, d, d)),
            above=[one[0] for one in own[2:]],
            loglik=units.density - found.deviance / 2,
            squares=squares,
            gain=found.gain,
            shares=shares,
        )

    def shapes(self, d: int) -> tuple[Shape, ...]:
        """The shapes once more."""
        groups = (max(len(self.names), 1), *(1 for _ in self.kinds[1:]))
        return tuple(
            Shape(kind, np.array(which, np.int64), d, count)
            for kind, which, count in zip(self.kinds, self.varying, groups, strict=True)
        )

    @property
    def converged(self) -> bool:
        """True if the slope of the likelihood is 0."""
        return self.gain < self.flat and not self.fault

    def root(self, cluster: str) -> Floats:
        """L of a cluster's users over sigma (d, d); of a cluster that came later, of the mean."""
        known = cluster in self.names
        one = self.users[self.names.index(cluster)] if known else self.users.mean(0)
        values, vectors = np.linalg.eigh(one / self.sigma2)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def levels(self) -> dict[str, Floats]:
        """The covariance of each level that there is; of users with several, on average."""
        found = [self.users.mean(0), *self.clusters[:1], *self.above]
        return {level_name(place): one for place, one in enumerate(found)}

    def sizes(self, matrix: Floats) -> Floats:
        """The lengths of coefficients, each a row of a matrix to other units, in standard units."""
        return np.asarray(np.linalg.norm(matrix @ self.units.matrix, axis=1))


def sized(covariance: Floats) -> Floats:
    """A level's covariance over sigma^2; 0 if it is what a search that ended at 0 has left."""
    there = covariance.max(initial=0.0) > NO_DEVIATION**2
    return covariance if there else np.zeros_like(covariance)


def level_name(place: int) -> str:
    """The name of a level's units: users, clusters, superclusters, ..."""
    return "users" if place == 0 else "super" * (place - 1) + "clusters"


def correlation(covariance: Floats, one: int, other: int) -> float:
    """Of two coefficients that vary."""
    sizes = np.sqrt(covariance[one, one]) * np.sqrt(covariance[other, other])
    return float(covariance[one, other] / sizes)


def none(covariance: Floats, number: int, sizes: Floats) -> bool:
    """True if a coefficient does not vary, whatever its unit is; `sizes`: `CovarianceFit.sizes`."""
    own = np.diag(covariance) / np.square(sizes)
    return bool(own[number] <= NO_VARIANCE_SHARE * own.sum())


def again(
    tree: Tree, before: CovarianceFit, kind: str, names: list[str], varies: Floats, slow: bool
) -> Fitted:
    """The most likely numbers of the shapes of the fit `before`, from it on.

    Of one kind for all levels, if it had others. `names` are the clusters'; `slow`: half the way.
    """
    shapes = equal_shapes(tree, kind, np.flatnonzero(varies))
    known = before.shapes(len(varies)) if before.kinds else shapes
    same = len(known) == len(shapes) and (not before.names or before.names == names)
    shapes = known if same else shapes
    whole = grouped(tree, shapes)
    search = Scoring(whole, shapes)
    if not (same and before.kinds):
        return searched(whole, shapes)
    start = search.apart(before.x)
    found = searched(whole, shapes, start)
    if not slow:
        return found
    half = [(one + other) / 2 for one, other in zip(start, found.x, strict=True)]
    return replace(search.fitted(half, 0), gain=found.gain, first=found.first)
