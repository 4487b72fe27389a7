"""What the two coin-throwing methods share: their settings, fixed at the start, and the coins.

Lyu et al. 2022: p_0, p_j, tau_j and eta are those of Corollary 3.6 and Proposition 3.3 unless they
are given; the losses' smoothness L and convexity mu are asked for once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from corsage.core.errors import ConfigError, RoundFailed
from corsage.core.keys import key
from corsage.core.replies import Outcome
from corsage.solvers.known_clusters.coins import (
    Coins,
    Stretch,
    count,
    deviations,
    expected_communications,
    stretch,
)
from corsage.solvers.known_clusters.settings import (
    Parameters,
    check,
    largest_step,
    probabilities,
    tau_of,
)
from corsage.strategies.known_clusters.base import Clustered
from corsage.strategies.known_clusters.conversation import Request
from corsage.strategies.known_clusters.mixed_model import MixedModel
from corsage.strategies.known_clusters.strengths import (
    AUTO,
    ClusterKeys,
    check_covers,
    own,
    read_strengths,
)

MOST_ROUNDS = 100
"""Rounds of the mixed model that strengths on auto may take."""
MOST_GAMMA = 1e3
"""An infinite gamma, where users do not differ, is this: steps need a bound."""
RARE = 1e-6
"""Steps to the middle that are less probable do not end rounds in any time that one could wait."""
FAR = 1e8
"""A model this far out, in units of the first round's, has diverged."""


@dataclass(frozen=True)
class CoinKeys(ClusterKeys):
    """Keys of both coin-throwing methods."""

    known_iterations: int = key(
        0, "coin-throwing methods: iterations (T); 0: as many as num-rounds rounds hold", low=0
    )
    known_p0: str = key(
        AUTO, "probability of a step to the middle, for which all wait (p_0), or auto: Cor. 3.6"
    )
    known_p: str = key(
        AUTO,
        "probability of a step to the centre of the cluster (p_j): a number, a JSON file of one "
        "for each cluster, or auto; 0: one coin for both pulls, the variant of section 6",
    )
    known_tau: str = key(
        AUTO, "share of the pull to the centre in steps to the middle (tau_j), or auto: Prop. 3.3"
    )
    known_eta: str = key(AUTO, "step size (eta), or auto: the largest one that is proven safe")


class Coined(Clustered):
    """A method whose iterations are told by coins; a round is a stretch of them."""

    @property
    def coin_keys(self) -> CoinKeys:
        """The keys of the coin-throwing methods."""
        assert isinstance(self.keys, CoinKeys)
        return self.keys

    @property
    def iterations(self) -> int | None:
        """T, or None if the number of rounds says when to end."""
        return self.coin_keys.known_iterations or None

    @property
    def coins(self) -> Coins:
        """The coins of the clusters that have users now."""
        settings, names = self.state.scalars["settings"], self.here
        p = tuple(own(settings["p"], name) for name in names)
        return Coins(self.config.run.seed, settings["p0"], p, tuple(names))

    @property
    def parameters(self) -> Parameters:
        """p_0, p_j, tau_j and eta for the clusters that have users now."""
        settings = self.state.scalars["settings"]
        p = np.array([own(settings["p"], name) for name in self.here])
        tau = np.array([own(settings["tau"], name) for name in self.here])
        return Parameters(settings["eta"], settings["p0"], p, tau)

    def length(self, rounds: int) -> int:
        """With `known-iterations` as many rounds as these take."""
        if self.iterations is None:
            return rounds
        return self.state.round + self._rounds_left(self.iterations)

    def finished(self) -> bool:
        """Whether all iterations are done."""
        done = int(self.state.scalars.get("iteration", 0))
        return self.iterations is not None and done >= self.iterations

    def estimate(self, grid: Grid) -> None:
        """Strengths on auto are those of the mixed model, which solves the problem on the way."""
        if not self.convex:
            raise ConfigError(
                f"known-gamma={self.cluster_keys.known_gamma} known-lambda="
                f"{self.cluster_keys.known_lambda}: auto is for model=linear with a loss of one "
                "output; give numbers."
            )
        solver = MixedModel(self.config, experiment=f"{self.experiment}-strengths")
        solver.roster, solver.state_dir = self.roster, self.state_dir
        solver.state.traffic = self.state.traffic
        while not solver.finished() and solver.state.round < MOST_ROUNDS:
            if solver.state.round == 0:
                solver._prepare(grid, None)
                solver.open(grid)
            solver._train(grid, solver.state.round + 1, ConfigRecord())
        strengths = solver.strengths(most=MOST_GAMMA)
        self.state.scalars |= {**strengths, "estimates": solver.variance_findings()}

    def tell_apart(self) -> None:
        """If one cluster's users differ in gamma, all users' models are told apart."""
        super().tell_apart()
        self._know({})

    def _know(self, names: Mapping[str, None]) -> None:
        """Those of clusters that come later, too."""
        super()._know(names)
        if "uneven" in self.state.scalars:
            self.state.scalars["uneven"] = self.clusters

    def open(self, grid: Grid) -> None:
        """Fix the settings of the run: later comers change nothing in them."""
        super().open(grid)
        if "settings" in self.state.scalars:
            return
        self.state.scalars["facts"] = facts = self._facts(grid)
        self.state.scalars["settings"] = self.fix(facts["smoothness"], facts["convexity"])
        self.state.scalars["iteration"] = 0

    def fix(self, smoothness: float, convexity: float) -> dict[str, Any]:
        """The settings for losses with these constants."""
        keys, names, hierarchy = self.coin_keys, self.here, self.hierarchy
        p0, p = probabilities(hierarchy, smoothness)
        p0 = number("known-p0", keys.known_p0, p0)
        given = {name: float(value) for name, value in zip(names, p, strict=True)}
        given = given if keys.known_p == AUTO else read_strengths("known-p", keys.known_p)
        check_covers(f"known-p={keys.known_p}", given, names)
        for key_, value in (("known-p0", p0), *(("known-p", value) for value in given.values())):
            if not 0 <= value < 1:
                raise ConfigError(f"{key_}={value:g}: must be from 0 to below 1.")
        p = np.array([own(given, name) for name in names])
        tau = tau_of(p0, p)
        if keys.known_tau != AUTO:
            tau = np.full(len(names), number("known-tau", keys.known_tau, 0.0))
        check(Parameters(1.0, p0, p, tau), hierarchy)
        safe = self.safe_step(smoothness, p0, p)
        eta = number("known-eta", keys.known_eta, safe)
        check(Parameters(eta, p0, p, tau), hierarchy)
        if eta > safe:
            self.note(f"known-eta={eta:g} is above {safe:.3g}, the largest step that is safe")
        if p0 < RARE and self.iterations is None:
            many = f"it would hold about {1 / p0:.0e} iterations" if p0 else "nothing would end it"
            raise ConfigError(
                f"{self.name}: a round ends with a step to the middle, p_0={p0:.3g}: {many}; set "
                "known-iterations or known-p0, or scale the features."
            )
        return {
            "p0": p0,
            "p": given,
            "tau": dict(zip(names, tau.tolist(), strict=True)),
            "eta": eta,
            "safe": safe,
        }

    def safe_step(self, smoothness: float, p0: float, p: NDArray[np.float64]) -> float:
        """The largest eta that is proven safe."""
        return largest_step(self.hierarchy, smoothness, p0, p)

    def _facts(self, grid: Grid) -> dict[str, float]:
        """L and mu of the losses. A torch model's are not known: lr stands for 1/(2 L)."""
        answers = self.ask_all(grid, Request(self.cohorts[0], options={"ask": "facts"}))
        if not self.convex:
            return {"smoothness": 1 / (2 * self.config.train.lr), "convexity": 0.0}
        found = [answer.metrics for answer in answers]
        return {
            "smoothness": max(facts["smoothness"] for facts in found),
            "convexity": min(facts["convexity"] for facts in found),
        }

    def _rounds_left(self, iterations: int) -> int:
        """The stretches that are left until iteration T."""
        place, rounds, coins = int(self.state.scalars["iteration"]), 0, self.coins
        while place < iterations:
            place, rounds = self.part(coins, place).last, rounds + 1
        return rounds

    def part(self, coins: Coins, first: int) -> Stretch:
        """The iterations of the round that begins at `first`."""
        return stretch(coins, first, self.iterations)

    def watch(self, reach: float) -> None:
        """RoundFailed if the iterates run away: the step is too long."""
        scalars = self.state.scalars
        first = scalars.setdefault("reach", max(reach, 1.0))
        if reach > FAR * first:
            self._diverged()

    def check_heard(self, number: int, outcome: Outcome) -> None:
        """Models that are not finite are no fault of a user's, where the step is too long."""
        settings = self.state.scalars.get("settings", {"eta": 0.0, "safe": 0.0})
        long = settings["eta"] > settings["safe"] or not self.convex
        if long and any("not finite" in why for why in outcome.dropped.values()):
            self._diverged()
        super().check_heard(number, outcome)

    def _diverged(self) -> NoReturn:
        """Say so, and which step would be safe."""
        settings, place = self.state.scalars["settings"], self.state.scalars["iteration"]
        what = f"known-eta={settings['eta']:g} is too long a step"
        if self.convex:
            what += f", {settings['safe']:.3g} is the largest safe one"
        else:
            what += f" for lr={self.config.train.lr:g}: lower one of them"
        raise RoundFailed(f"{self.name} diverged after iteration {place}: {what}.")

    def findings(self) -> list[dict[str, Any]]:
        """The settings, and communications: expected and counted."""
        settings, done = self.state.scalars["settings"], int(self.state.scalars["iteration"])
        gamma = {**self.state.scalars["gamma"], **self.state.scalars.get("gammas", {})}
        strengths = [
            [name, spelled(values)]
            for name, values in (("gamma_i", gamma), ("lambda_j", self.state.scalars["lambda"]))
        ]
        rows = [
            ["iterations", f"{done:,}"],
            *strengths,
            *([name, spelled(settings[name])] for name in ("p0", "p", "tau")),
            ["eta", f"{settings['eta']:.4g} (safe up to {settings['safe']:.4g})"],
        ]
        return [
            {"title": "settings", "rows": rows},
            {"title": "communications", "rows": self._communications(done)},
            *self.state.scalars.get("estimates", []),
        ]

    def _communications(self, iterations: int) -> list[list[str]]:
        """What the coins made, what was to be expected of them, and its standard deviation."""
        coins = self.coins
        actual, expected = count(coins, iterations), expected_communications(coins, iterations)
        spread = deviations(coins, iterations)

        def told(kind: str, place: Any) -> str:
            numbers = (np.asarray(found[kind])[place] for found in (actual, expected, spread))
            return "{:,.0f} (expected {:,.1f} ± {:.1f})".format(*map(float, numbers))

        rows = [["between clusters", told("between", ())]]
        for j, name in enumerate(coins.names):
            rows.append([f"within {name}", told("within", j)])
            rows.append([f"round trips of {name}", told("round-trips", j)])
        return rows


def number(name: str, text: str, default: float) -> float:
    """A key that is a number, or `auto`."""
    if text == AUTO:
        return default
    try:
        found = float(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: not a number, and not auto.") from None
    if not np.isfinite(found):
        raise ConfigError(f"{name}={text}: must be finite.")
    return found


def spelled(values: float | dict[str, float]) -> str:
    """One number, or one by name, in few words."""
    if not isinstance(values, dict):
        return f"{values:.4g}"
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values())):.4g}"
    some = [f"{name}: {value:.4g}" for name, value in list(values.items())[:6]]
    return ", ".join(some) + (f", ... ({len(values)} in all)" if len(values) > 6 else "")
