"""PDMM and Douglas-Rachford: how many rounds and floats to the optimum, at any participation.

Armacki et al. 2022, Algorithm 1 (with half the edges, and the duals at the server), and `dr`, on
the ellipses of section V. With every user's d numbers down and up, a round costs 2 d floats an
active user in both. The gap is P(X)/P* - 1, P* by the exact solver; the certified one is what the
server can prove with its duals, without knowing P*.

The reference is the number of rounds to a gap of 1e-6 with the best fixed rho; here rho follows
from rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing

from corsage.app.report import plots
from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator
from corsage.experiments.convex_clustering.problem import curvature, objective, problem, slope
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import chosen_seeds, entitle, legend, panels
from corsage.solvers.convex_clustering import pdmm, splitting
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit, gap
from corsage.solvers.losses.linear_losses import LinearLosses

LAMS, SHARES, QUICK = (0.0913593, 0.01), (1.0, 0.5, 0.2, 0.1), (1.0, 0.5)
GOAL, BEYOND = 1e-6, 3e-8
ROUNDS = {"pdmm": 6000, "dr": 400}  # at most
CHECKS = 150  # rounds whose gaps are drawn
REFERENCE = {
    ("pdmm", 0.0913593): (401, 1080, 2800, 5680),
    ("pdmm", 0.01): (181, 341, 821, 1660),
    ("dr", 0.0913593): (9, 27, 77, 199),
    ("dr", 0.01): (10, 36, 93, 177),
}
SLACK = 1.5
NOTE = (
    "Rounds to a gap of 1e-6. Reference: the best rho for each lam and share, dr with relax "
    "1.6 where all take part. Here rho starts at 5 H/N and is balanced (pdmm), or follows from "
    "lam, curvature and slope (dr, relax 1.6)."
)


@dataclass(frozen=True)
class Setting:
    """One run: a method, lam, the share of users in a round, the seed of the draws."""

    method: str
    lam: float
    share: float
    seed: int

    def users(self, number: int, n: int) -> Ints:
        """The users of a round."""
        count = max(1, round(self.share * n))
        return np.sort(generator(self.seed, "users", number).permutation(n)[:count])


@dataclass(frozen=True)
class Trace:
    """Rounds, and the true and certified gaps after them, relative to P*."""

    setting: Setting
    rounds: list[int]
    true: list[float]
    certified: list[float]
    reached: int | None


def measure(options: Options) -> Outcome:
    """All runs on the ellipses of seed 1; seeds are those of the draws."""
    seeds = chosen_seeds("convex-clustering-pdmm", options, 1)
    losses, _ = problem()
    edges = Edges.all_pairs(losses.n)
    outcome = Outcome("PDMM and Douglas-Rachford (Armacki et al. 2022)", "rounds")
    traces = []
    for lam in LAMS:
        best = fit(losses, lam, edges, tolerance=1e-11).value
        for method, most in ROUNDS.items():
            for place, share in enumerate(QUICK if options.quick else SHARES):
                runs = [trace(Setting(method, lam, share, s), losses, edges, best) for s in seeds]
                traces.append(runs[0])
                known = REFERENCE[method, lam][place]
                took = tuple(float(run.reached or most) for run in runs)
                outcome.figures.append(
                    Figure(f"lam={lam:g}, {method}", f"participation {share:g}", took, known,
                           high=SLACK * known, form=".0f")
                )  # fmt: skip
    outcome.results = [
        {"method": each.setting.method, "lam": each.setting.lam, "share": each.setting.share,
         "rounds": each.rounds, "gap": each.true, "certified": each.certified}
        for each in traces
    ]  # fmt: skip
    outcome.notes = [NOTE]
    outcome.draw = lambda theme: picture(traces, losses.n, losses.d, theme)
    return outcome


def trace(own: Setting, losses: LinearLosses, edges: Edges, best: float) -> Trace:
    """One run, until its gap is far below the goal."""
    found = Trace(own, [], [], [], None)
    shown = set(np.geomspace(1, ROUNDS[own.method], CHECKS).round().astype(int).tolist())
    iterates = {"pdmm": pdmm_iterates, "dr": dr_iterates}[own.method]
    for number, (x, mu) in enumerate(iterates(own, losses, edges), 1):
        above = objective(losses, own.lam, edges, x) / best - 1
        if found.reached is None and abs(above) <= GOAL:
            found = replace(found, reached=number)
        if number in shown:
            found.rounds.append(number)
            found.true.append(above)
            found.certified.append(gap(losses, x, mu, own.lam, edges) / best)
        if (found.reached and abs(above) <= BEYOND) or number == ROUNDS[own.method]:
            break
    return found


def solve(losses: LinearLosses, users: Ints, centre: Floats, kappa: Floats) -> Floats:
    """What the users do in both methods."""
    whole, weight = torch.zeros(losses.n, losses.d, dtype=losses.dtype), torch.ones(losses.n)
    whole[users], weight = torch.from_numpy(centre), weight.to(losses.dtype)
    weight[users] = torch.from_numpy(kappa)
    return losses.prox(whole, weight)[users].numpy()


def pdmm_iterates(own: Setting, losses: LinearLosses, edges: Edges) -> Any:
    """(x, mu) after each round of PDMM with the default rules."""
    rho = pdmm.start_rho(curvature(losses), losses.n)
    rules = pdmm.Settings(rho, pdmm.default_tau(own.share, own.share))
    state, number = pdmm.PdmmState.zeros(losses.n, edges, losses.d), 0
    while True:
        number += 1
        users = own.users(number, losses.n)
        pairs = pdmm.chosen_pairs(own.seed, number, edges, own.share)
        p, kappa = pdmm.centres(state, edges, rules.rho, rules.eta, users)
        found = solve(losses, users, p, kappa)
        new = pdmm.absorb(state, users, found, edges, own.lam, rules, pairs)
        if number % pdmm.BALANCE_EVERY == 0:
            left = pdmm.residuals(state, new, edges, rules.rho, own.share)
            rules = replace(rules, rho=pdmm.balanced(rules.rho, left.primal, left.dual))
        state = new
        yield state.x, state.mu


def dr_iterates(own: Setting, losses: LinearLosses, edges: Edges) -> Any:
    """(y, mu) after each round of Douglas-Rachford with the default rules."""
    pull = own.lam * (losses.n - 1)
    rho = splitting.start_rho(curvature(losses), slope(losses), pull)
    state, number = splitting.DrState.zeros(losses.n, edges, losses.d), 0
    while True:
        number += 1
        users = own.users(number, losses.n)
        asked = splitting.request(state, users)
        found = solve(losses, users, asked, np.full(len(users), rho))
        state = splitting.update(state, users, found, edges, own.lam, rho)
        yield state.y, state.mu


def picture(traces: list[Trace], n: int, d: int, theme: plots.Theme) -> Drawing:
    """A row for each lam; gaps against rounds, and against floats."""
    drawing, grid = panels(theme, len(LAMS), 2, (13, 4.2 * len(LAMS)))
    shares = sorted({each.setting.share for each in traces}, reverse=True)
    for row, lam in zip(grid, LAMS, strict=True):
        for each in (one for one in traces if one.setting.lam == lam):
            own = each.setting
            style: dict[str, Any] = {"color": theme.lines[COLOURS[shares.index(own.share)]]}
            style["lw"] = 2.4 if own.method == "dr" else 1.2
            rounds, name = np.array(each.rounds), f"{own.method}, {own.share:g}"
            floats = rounds * 2 * d * max(1, round(own.share * n))
            for axes, x in zip(row, (rounds, floats), strict=True):
                axes.plot(x, np.maximum(np.abs(each.true), 1e-9), label=name, **style)
                axes.plot(x, each.certified, ls=(0, (1, 1.5)), alpha=0.8, **style)
        for axes, words in zip(row, ("rounds", "floats down and up, all users"), strict=True):
            axes.set_xscale("log")
            axes.set_ylim(1e-8, 3)
            axes.axhline(GOAL, color=theme.ink, lw=0.8)
            axes.set_xlabel(words, color=theme.ink, fontsize=10)
            entitle(axes, theme, f"lam={lam:g}: gap / P*", "full: true; dotted: certified")
    legend(drawing, grid[0][0], theme, "method, share of the users in a round")
    return drawing


COLOURS = (0, 1, 4, 2)

EXPERIMENT = Experiment(
    what="PDMM and Douglas-Rachford: true and certified gap against rounds and floats",
    takes="60 s; --quick 15 s",
    measure=measure,
)
