"""FedRep with exact heads: its keys, what its server may ask, its state and its findings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from corsage.core.arrays import Floats32
from corsage.core.keys import Keys, key
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import BodyState

QUESTIONS = ("moments", "sums", "calibration", "strength", "softmax", "body")


@dataclass(frozen=True)
class FedRepExactKeys(Keys):
    """Keys of FedRep with exact heads."""

    title = "FedRep, exact heads"

    fedrep_exact_body: str = key(
        "auto",
        "where the body begins: pca (its first layer, which must be linear, is set to random "
        "directions of the inputs' principal components), initial (as the model is made), or auto: "
        "pca if that layer is linear",
        choices=("auto", "pca", "initial"),
    )
    fedrep_exact_components: int = key(100, "principal components of pca", low=1, high=2048)
    fedrep_exact_body_rounds: int = key(
        0,
        "rounds after the first: FedRep's step on the body, then heads are solved again",
        low=0,
    )
    fedrep_exact_centre: str = key(
        "auto",
        "what heads are drawn to: known (each known cluster's own centre), one (of all users), "
        "clusters (centres of clusters that appear), or auto: known if every user has a cluster",
        choices=("auto", "known", "one", "clusters"),
    )
    fedrep_exact_loss: str = key(
        "squared",
        "the heads' loss: squared (of each class, in closed form), or multinomial: the "
        "cross-entropy, in two exchanges more",
        choices=("squared", "multinomial"),
    )


EVERYBODY = ""
"""The name of the one cluster, where none are known."""
MOST_GAMMA = 1e12
"""The strength of a pull that nothing is known of yet."""
BOUNDARY = ", at the end of where it was looked for"


@dataclass
class FedRepExactState(BodyState):
    """phi, and what heads are drawn to.

    Parameters
    ----------
    wbar : the middle, as a flat head.
    w : w_j, flat heads, one row a cluster.
    clusters : the names of these rows.
    rho, tau, sigma2 : s^2/sigma^2, sb^2/sigma^2 and sigma^2; rho is 0 before the first sums.
    heat : what scores are multiplied by.
    pull : the strength of the pull under the multinomial loss, w_j and wbar then being of it; 0
        where heads are of the squared loss.
    left : by how much a record's multinomial loss can still be lowered at most, on average, at the
        user where that is most.
    members, own : users, and the cluster that was found for each; none where none are looked for.
    answered : how many users' sums that is from.
    at_boundary : whether rho is at an end of where it is looked for.
    projected : whether the body's first layer was set.
    aside : users whose moments are too far from the others' to count; nor do their sums.
    told_right : of some users' left-out records the share that heads tell, and what is simpler.
    """

    wbar: Floats32
    w: Floats32
    clusters: list[str]
    members: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    rho: float = 0.0
    tau: float = 0.0
    sigma2: float = 0.0
    heat: float = 1.0
    pull: float = 0.0
    left: float = 0.0
    answered: int = 0
    at_boundary: bool = False
    projected: bool = False
    aside: list[str] = field(default_factory=list)
    told_right: list[float] = field(default_factory=list)

    def rivals(self) -> str:
        """The shares of left-out records that heads tell, and what they must be better than."""
        alone = "models that users train alone"
        names = "heads", "their centre alone", "each user's most frequent class", alone
        each = zip(names, self.told_right, strict=True)
        return ", ".join(f"{name} {right:.1%}" for name, right in each)

    def told(self) -> dict[str, float]:
        """gamma, infinite before anything is known, sigma^2, the heat, the multinomial pull."""
        gamma = 1 / self.rho if self.rho else MOST_GAMMA
        return {"gamma": gamma, "sigma2": self.sigma2, "heat": self.heat, "pull": self.pull}

    def shares(self, own: list[str]) -> Floats32:
        """The users' prior probabilities of the clusters (n, k)."""
        count = np.array([self.own.count(name) for name in self.clusters], np.float32)
        prior = {EVERYBODY: count / count.sum()}
        prior |= dict(zip(self.clusters, np.eye(len(self.clusters), dtype=np.float32), strict=True))
        return np.stack([prior[name] for name in own])

    def findings(self) -> list[Finding]:
        """The variances, and what scores are multiplied by."""
        user, cluster = (f"{self.sigma2 * ratio:.4g}" for ratio in (self.rho, self.tau))
        rows = [
            ("between records (sigma^2)", f"{self.sigma2:.4g}"),
            ("between users (s^2)", user + BOUNDARY * self.at_boundary),
        ]
        if len(self.clusters) > 1:
            rows.append(("between clusters (sb^2)", cluster))
        rows += [
            ("users' sums", str(self.answered)),
            ("scores are multiplied by", f"{self.heat:.3g}"),
        ]
        if self.told_right:
            rows.append(("told of left-out training records", self.rivals()))
        if self.pull:
            rows.append(("pull of the multinomial loss", f"{self.pull:.3g}"))
            rows.append(("left of a record's loss, at most", f"{self.left:.2g}"))
        found = [Finding("heads by restricted maximum likelihood", rows)]
        lines = [(f"user {user}", "its inputs; its sums are its own alone") for user in self.aside]
        return [*found, Finding("Set aside: far from all others", lines)] if lines else found
