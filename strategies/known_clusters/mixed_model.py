"""The mixed model: the exact minimiser for known clusters, from sums, without a step size.

Lyu et al. 2022, (2.3), as solvers/known_clusters/mixed_model.py solves it: users send what is left of their losses
when theta_i is minimised out, P_i and q_i, summed over a cluster; the server solves for w_j and
wbar; users find their theta_i from w_j. For the squared loss one round is all. Other losses are
replaced by their quadratics at the present theta_i, and a few such rounds are Newton's method.

gamma_i and lambda_j on `auto` come out of the same exchange (strategies/known_clusters/estimation.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from corsage.app.cohorts import Cohort
from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.core.replies import Outcome
from corsage.networks.network import Network
from corsage.solvers.known_clusters.laplace import LaplaceSums, centre_covariance
from corsage.solvers.known_clusters.mixed_model import (
    EXACT,
    NEWTON,
    ClusterSums,
    Pace,
    centres,
    change,
)
from corsage.strategies.known_clusters.conversation import Request, Talk
from corsage.strategies.known_clusters.estimation import Estimated
from corsage.strategies.known_clusters.strengths import (
    AUTO,
    ClusterKeys,
    check_covers,
    own,
    read_strengths,
)
from corsage.strategies.rounds.roster import Member


@dataclass(frozen=True)
class MixedModelKeys(ClusterKeys):
    """Keys of the mixed model."""

    title = "Mixed model"

    mixed_tolerance: float = key(
        1e-8,
        "ends when a round moves the models by less than this share of them (float32: 1e-5)",
        low=0.0,
    )
    mixed_em_rounds: int = key(
        20, "auto, but not with the squared loss: rounds that estimate the variances", low=1
    )


class MixedModel(Estimated):
    """The server of the mixed model: w_j, wbar, and the strengths by cluster and coordinate."""

    name = "mixed-model"
    fixed: ClassVar[dict[str, Any]] = {}  # keys that make it another method
    together: ClassVar[bool] = False  # is everybody in one cluster?

    def initial(self, network: Network) -> Arrays:
        """The middle at zero; all else comes with the first round."""
        if not self.convex:
            raise ConfigError(
                f"{self.name}: needs model=linear and a loss with one output (squared, huber, "
                f"logistic, squared-hinge), not model={self.config.model.model} with "
                f"loss={self.loss_name}; async-l2gd takes any model."
            )
        return {"model": np.zeros(network.whole.stop, np.float64)}

    @property
    def mixed_keys(self) -> MixedModelKeys:
        """The keys of the mixed model, with what a method of its own kind fixes."""
        keys = self.config.algorithm["mixed-model"]
        assert isinstance(keys, MixedModelKeys)
        return replace(keys, **self.fixed)

    @property
    def cluster_keys(self) -> MixedModelKeys:
        """The same."""
        return self.mixed_keys

    def cluster_of(self, member: Member) -> str:
        """The cluster of a user, or one for all."""
        return "all" if self.together else super().cluster_of(member)

    @property
    def tolerance(self) -> float:
        """The change at which to end; float32 cannot tell less than 1e-5 of the models."""
        floor = 1e-5 if self.config.model.precision == "float32" else 0.0
        return max(self.mixed_keys.mixed_tolerance, floor)

    @property
    def _em(self) -> bool:
        """Whether this round estimates variances by EM."""
        last = self.state.round >= self.mixed_keys.mixed_em_rounds
        return self.estimates and not self.exact and not last

    def finished(self) -> bool:
        """Whether the last round changed nothing any more."""
        return bool(self.state.scalars.get("done"))

    def open(self, grid: Grid) -> None:
        """Strengths that are given; those on auto come with the rounds."""
        keys, scalars = self.cluster_keys, self.state.scalars
        if "gamma" in scalars:
            return
        self.check_estimates()
        for what, text in (("gamma", keys.known_gamma), ("lambda", keys.known_lambda)):
            scalars[what] = {"": 1.0} if text == AUTO else read_strengths(f"known-{what}", text)
        check_covers(f"known-lambda={keys.known_lambda}", scalars["lambda"], self.here)
        self.tell_apart()

    def _train(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        """A round; after the last one users are told their centres and keep their models."""
        outcome = self._estimate_first(grid, number)
        if outcome is None:
            outcome = super()._train(grid, number, config)
        if self.finished():
            groups = self.cohorts_by_cluster()
            self.converse(grid, {name: self._deliver(group) for name, group in groups.items()})
        return outcome

    def _deliver(self, cohorts: list[Cohort]) -> Talk:
        requests = [Request(c, self.shown(c), {**self.told(c), "ask": "deliver"}) for c in cohorts]
        yield requests
        self.count_sums(requests)

    # One exchange of sums.

    def talks(self, number: int) -> dict[str, Talk]:
        """Each cluster's sums."""
        self._strengths()
        self._sums: dict[str, ClusterSums] = {}
        self._spread: dict[str, LaplaceSums] = {}
        self._moved = np.zeros(2)
        return {name: self._ask(name, group) for name, group in self.cohorts_by_cluster().items()}

    def _ask(self, name: str, cohorts: list[Cohort]) -> Talk:
        """The sums of one cluster, over its cohorts."""
        d = len(self.state.arrays["model"])
        template = {"sums": np.zeros(d * (d + 1) // 2 + d)}
        if self._em:
            template["em"] = np.zeros((2, d))
        requests = [
            Request(cohort, self._moving(cohort), self._asked_of(cohort), template)
            for cohort in cohorts
        ]
        heard = yield requests
        self.count_sums(requests)
        sums = [ClusterSums.unpacked(answer.rows["sums"][None], d) for answer in heard]
        self._sums[name] = sum(sums[1:], start=sums[0])
        for answer in heard:
            self._moved += [answer.metrics["moved"], answer.metrics["length"]]
        if self._em:
            em = np.sum([answer.rows["em"] for answer in heard], axis=0)
            users = float(sum(len(answer.cohort.users) for answer in heard))
            self._spread[name] = LaplaceSums(em[:1], em[1:], np.array([users]))

    def settle(self, number: int, outcome: Outcome) -> None:
        """The server's half of the solution, and whether there is more to do."""
        arrays, here = self.state.arrays, [name for name in self.here if name in self._sums]
        places = [self.clusters.index(name) for name in here]
        p = np.concatenate([self._sums[name].P for name in here])
        q = np.concatenate([self._sums[name].q for name in here])
        lam, arrays["used"] = arrays["lambda"][places], arrays["gamma"].copy()
        even = bool((lam == lam[:, :1]).all())  # only one number a cluster may be 0 or infinite
        arrays["w"][places], arrays["model"] = centres(p, q, lam[:, 0] if even else lam)
        if self._em:
            arrays["covariance"][places], top = centre_covariance(p, lam)
            if self.cluster_keys.known_gamma == AUTO and number > 1:  # the first is of no centre
                arrays["gamma"][places] = self.expected_gamma([self._spread[n] for n in here])
            if self.cluster_keys.known_lambda == AUTO and number > 1 and len(here) > 1:
                arrays["lambda"][:] = self.expected_lambda(p, q, lam, top)
        scalars = self.state.scalars
        moved, by = change(self._moved), self._kind
        scalars["change"], scalars["kind"] = moved, self._next
        if number > 1 and not self._em:
            scalars["pace"] = asdict(Pace(**scalars.get("pace", {})).after(moved))
        still = number > 1 and moved < self.tolerance and not self._em
        still = still and (by == NEWTON or moved < self.tolerance / 100)
        whole = not outcome.dropped  # who was not heard is asked again
        scalars["done"] = whole if self.exact else still

    def _strengths(self) -> None:
        """What there is to know of a cluster when it is new, by coordinate."""
        arrays, d = self.state.arrays, len(self.state.arrays["model"])
        names = self.clusters[len(arrays.get("w", ())) :]
        gamma: dict[str, float] = self.state.scalars["gamma"]
        lam: dict[str, float] = self.state.scalars["lambda"]
        begin = {
            "w": [arrays["model"] for _ in names],
            "gamma": [np.full(d, gamma.get(name, gamma.get("", 1.0))) for name in names],
            "lambda": [np.full(d, own(lam, name)) for name in names],
            "covariance": [np.zeros((d, d)) for _ in names],
        }
        for what, rows in begin.items():
            arrays[what] = np.stack([*arrays.get(what, []), *rows])
        arrays.setdefault("used", arrays["gamma"].copy())
        if len(arrays["used"]) < len(arrays["gamma"]):
            arrays["used"] = np.concatenate(
                [arrays["used"], arrays["gamma"][len(arrays["used"]) :]]
            )

    def _estimate_first(self, grid: Grid, number: int) -> Outcome | None:
        """The squared loss: strengths on auto in the first exchange; if both are, that is all."""
        if not (self.exact and self.estimates and number == 1):
            return None
        _, found, outcome = self.reml(grid)
        keys, scalars, names = self.cluster_keys, self.state.scalars, self.here
        if keys.known_gamma == AUTO:
            gamma = np.broadcast_to(found.gamma_unit, len(names)).tolist()
            scalars["gamma"] = dict(zip(names, gamma, strict=True))
        if keys.known_lambda == AUTO:
            scalars["lambda"] = {"": found.lambda_unit}
        if keys.known_gamma != keys.known_lambda:
            return None
        self._strengths()
        self.state.arrays["w"], self.state.arrays["model"] = found.centres
        scalars["done"] = not outcome.dropped
        self.merged(number, outcome)
        return outcome

    # What users are told.

    def shown(self, cohort: Cohort) -> Arrays:
        """w_j, gamma_j of the sums that it came from, and of the next ones."""
        arrays, d = self.state.arrays, len(self.state.arrays["model"])
        if cohort.cluster not in self.clusters or "w" not in arrays:
            gamma: Floats = np.full(d, self.typical_gamma(cohort))
            return {"w": arrays["model"], "gamma": gamma, "next": gamma}
        place = self.clusters.index(cohort.cluster)
        used, following = arrays["used"][place], arrays["gamma"][place]
        if cohort.cluster not in self.state.scalars["gamma"] and "gammas" in self.state.scalars:
            used = following = np.full(d, self.typical_gamma(cohort))
        return {"w": arrays["w"][place], "gamma": used, "next": following}

    def _moving(self, cohort: Cohort) -> Arrays:
        """The same for a step, and how sure w_j is where variances are estimated."""
        if not self._em:
            return self.shown(cohort)
        place = self.clusters.index(cohort.cluster)
        return {**self.shown(cohort), "covariance": self.state.arrays["covariance"][place]}

    def told(self, cohort: Cohort) -> dict[str, Any]:
        """How users find their models."""
        return {"moves": "w" in self.state.arrays, "as": self._kind}

    def _asked_of(self, cohort: Cohort) -> dict[str, Any]:
        """A round's options: cohorts that know no centre yet stay where they are."""
        known = bool(self.state.versions.get(cohort.name))
        return {"moves": known, "as": self._kind, "next": self._next, "em": self._em}

    @property
    def _kind(self) -> str:
        """What the quadratics of the last sums are."""
        return str(self.state.scalars.get("kind", self._next))

    @property
    def _next(self) -> str:
        """What those of the next sums are."""
        pace = Pace(**self.state.scalars.get("pace", {}))
        return EXACT if self.exact else pace.kind

    def strengths(self, most: float) -> dict[str, dict[str, float]]:
        """gamma and lambda by cluster, at most so large; the mean variance of the coordinates."""

        def typical(what: str) -> dict[str, float]:
            rows = 1 / np.mean(1 / self.state.arrays[what], axis=1)
            return dict(zip(self.clusters, np.minimum(rows, most).tolist(), strict=True))

        return {"gamma": typical("gamma"), "lambda": typical("lambda")}

    def findings(self) -> list[dict[str, Any]]:
        """How the solution was reached, and the variances."""
        rows = [["rounds", f"{self.state.round}"]]
        if not self.exact:
            rows.append(["last change of the models", f"{self.state.scalars['change']:.1e}"])
        return [{"title": "solution", "rows": rows}, *self.variance_findings()]
