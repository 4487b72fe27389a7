"""Rounds that do not wait for all clusters: against loops, and schedules that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app as client_app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError
from corsage.solvers.known_clusters.al2sgd_coalescing import plan
from corsage.solvers.known_clusters.async_l2gd import iterate
from corsage.solvers.known_clusters.coins import Coins, stretch
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.solvers.known_clusters.katyusha import (
    begin,
    local_step,
    means_of,
    parameters,
    pull_step,
)
from corsage.solvers.known_clusters.settings import Parameters, largest_step, tau_of
from corsage.strategies import strategy_class
from tests.support.federations import Notes, federate, settings
from tests.support.known_users import (
    HIERARCHICAL,
    LOGISTIC,
    Seen,
    Users,
    far,
    strengths,
    users_of,
)
from tests.support.slow_clusters import SCHEDULES, recorded, there

P0, P, LAM = 0.15, 0.3, 0.8


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


# The algorithms on all users, iteration by iteration, with rounds that some clusters miss.


def stale_l2gd(users: Users, found: Hierarchy, joins: Any) -> Any:
    """Algorithm 1: those who miss a round stand still, and are seen as they were."""
    p = np.full(found.k, P)
    step = largest_step(found, users.smoothness(), P0, p)
    settings = Parameters(step, P0, p, tau_of(P0, p))
    coins = Coins(0, P0, tuple(p.tolist()), tuple(users.clusters))
    theta = np.zeros((users.n, users.d))
    shown, t = theta, 0
    for here in joins:
        part, mine = stretch(coins, t, None), here[found.cluster][:, None]
        if not part.globals:
            shown = np.where(mine, theta, shown)
        for t in range(part.first, part.last):
            xi_0, xi = bool(coins.network_at(t, t + 1)[0]), coins.clusters_at(t, t + 1)[:, 0]
            if xi_0:
                shown = np.where(mine, theta, shown)
                after = iterate(shown, users.gradient, found, settings, True, xi)
            else:
                after = iterate(theta, users.gradient, found, settings, False, xi)
            theta = np.where(mine, after, theta)
        t = part.last
    return theta


def stale_al2sgd(users: Users, found: Hierarchy, joins: Any) -> Any:
    """Algorithm 2: anchors that a cluster renewed are new for all when it next takes part.

    A cluster hears of their middle then too, unless its users have steps by the old one to catch
    up with: those since they last were asked.
    """
    p, smooth = np.full(found.k, P), users.smoothness()
    settings = parameters(found, smooth, max(users.convexity(), 1e-4 * smooth), P0, p)
    coins = Coins(0, P0, tuple(p.tolist()), tuple(users.clusters))
    refresh = coins.refresh_coin(settings.rho)
    rows = begin(np.zeros((users.n, users.d)), users.gradient, found, settings)
    fresh, ready = rows.slope, np.zeros(users.n, dtype=bool)
    shown, t = rows.theta(settings), 0
    behind, known = np.zeros(found.k, dtype=bool), np.tile(rows.middle, (found.k, 1))
    for here in joins:
        part, mine = plan(coins, refresh, t, None), here[found.cluster]
        new, ready = (ready & mine)[:, None], ready & ~mine
        x, slope = np.where(new, rows.y, rows.x), np.where(new, fresh, rows.slope)
        centres, middle = found.means(x)
        known = np.where((here & ~behind)[:, None], middle, known)
        own_middle = known[found.cluster]
        rows = replace(rows, x=x, slope=slope, centre=centres[found.cluster], middle=own_middle)
        behind = np.where(here, [left_behind(b, part, j) for j, b in enumerate(behind)], behind)
        if not part.globals:
            shown = np.where(mine[:, None], rows.theta(settings), shown)
        who = np.flatnonzero(mine)
        for t in range(part.first, part.last):
            theta, own = rows.theta(settings), rows.pick(who)
            if coins.network_at(t, t + 1)[0]:
                shown = np.where(mine[:, None], theta, shown)
                near, middle = means_of(found, shown)
                moved = pull_step(own, settings, shown[who], (near[who], middle))
                rows = rows.put(who, moved)
                continue
            toward = coins.clusters_at(t, t + 1)[found.cluster, 0] & mine
            drawn, rest = np.flatnonzero(toward), np.flatnonzero(~toward & mine)
            near = means_of(found, theta)[0]
            pulled = pull_step(rows.pick(drawn), settings, theta[drawn], (near[drawn], None))
            local = local_step(rows.pick(rest), settings, t, users.gradient, None, rest)
            rows = rows.put(drawn, pulled).put(rest, local)
        if part.refresh:
            ready = ready | mine
            fresh = np.where(mine[:, None], users.gradient(rows.y, np.arange(users.n)), fresh)
        t = part.last
    return rows.y


def left_behind(before: bool, part: Any, j: int) -> bool:
    """Whether the last steps of a cluster were not told to its users."""
    runs = part.walks[j]
    if part.refresh:
        return False
    if any(k for _, k in runs):
        return not runs[-1][1]
    return before or part.globals > 0 or any(r for r, _ in runs)


LOOPS = {"async-l2gd": stale_l2gd, "async-al2sgd": stale_al2sgd}
CASES = [
    # method, data, gamma, nodes, schedule, staleness
    ("async-l2gd", HIERARCHICAL, "number", 1, "constant", 3),
    ("async-l2gd", HIERARCHICAL, "cluster", 12, "random", 2),
    ("async-l2gd", LOGISTIC, "user", 3, "adversarial", 4),
    ("async-al2sgd", HIERARCHICAL, "number", 1, "constant", 3),
    ("async-al2sgd", LOGISTIC, "cluster", 12, "random", 2),
    ("async-al2sgd", HIERARCHICAL, "user", 5, "adversarial", 4),
]
ROUNDS = 24


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_the_loop_that_leaves_clusters_out(
    case: Any, seen: Seen, tmp_path: Path
) -> None:
    """To rounding, whatever the schedule, and however clusters are dealt to nodes."""
    name, data, gamma, nodes, kind, staleness = case
    users = users_of(name, **data)
    values, text = strengths(gamma, users, tmp_path)
    schedule = SCHEDULES[kind](users.clusters, ROUNDS, staleness)
    keys = {"known_gamma": text, "known_lambda": LAM, "known_p0": P0, "known_p": P}
    folder = recorded(tmp_path / "played", name, schedule)
    keys |= {"known_staleness": staleness, "known_schedule": folder, "num_rounds": ROUNDS}
    _, _, models = seen.run(name, nodes, **data, **keys)
    wanted = LOOPS[name](users, users.hierarchy(values, LAM), there(schedule, users.clusters))
    assert far(users.rows(models), wanted) < 1e-12


@pytest.mark.parametrize("name", LOOPS)
def test_with_everybody_there_it_is_the_paper_s(name: str, seen: Seen) -> None:
    """A node works for one cluster after the other: nobody is late."""
    keys = {**HIERARCHICAL, "known_gamma": 1.5, "known_lambda": LAM, "num_rounds": 12}
    _, result, models = seen.run(name, **keys)
    _, stale, same = seen.run(name, known_staleness=3, **keys)
    assert all((models[user] == same[user]).all() for user in models)
    assert stale.json()[0]["bytes_up"] == result.json()[0]["bytes_up"]
    assert stale.json()[0]["messages"] == result.json()[0]["messages"]


def test_words_that_cannot_be_meant(tmp_path: Path) -> None:
    ties = {**HIERARCHICAL, "known_gamma": 1.5, "known_lambda": LAM}
    with pytest.raises(ConfigError, match="without known-staleness all clusters"):
        federate("async-l2gd", known_schedule="somewhere", **ties)
    with pytest.raises(ConfigError, match="leave one of them out"):
        federate("async-l2gd", known_staleness=2, quorum=0.5, **ties)
    with pytest.raises(ConfigError, match="give the folder of a run"):
        federate("async-l2gd", known_staleness=2, known_schedule=str(tmp_path), **ties)
    short = recorded(tmp_path, "async-l2gd", [{}] * 3)
    with pytest.raises(ConfigError, match="has no round 4: it is of 3"):
        federate("async-l2gd", known_staleness=2, known_schedule=short, num_rounds=9, **ties)


FOUR = {"num_rounds": 4, "known_gamma": 1.5, "known_lambda": LAM, "known_staleness": 2}
IMPOSSIBLE: dict[str, tuple[list[Any], str]] = {
    "nobody is left": ([{}, {"0": 1, "1": 1, "2": 1}, {}, {}], "round 2: all clusters are at work"),
    "before its first": ([{"0": 1}, {}, {}, {}], "round 1: cluster 0 is at work before its first"),
    "of another run": ([{}, {"zebra": 1}, {}, {}], "round 2: there is no cluster zebra here"),
    "too old": ([{}, {"0": 1}, {"0": 2}, {"0": 3}], "up to 3 rounds old in it: set known-stal"),
    "too old, and it lies": ([{}, *[{"0": 1}] * 3], "round 4: the centre of cluster 0 is 3 rounds"),
    "no number": ([{}, {"0": "x"}, {}, {}], "says of no round who took part in it"),
    "no names": ([{}, ["0"], {}, {}], "says of no round who took part in it"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_schedule_that_cannot_be_of_this_run_is_refused(case: str, tmp_path: Path) -> None:
    """In one line: it would wait for ever, or be a staleness that nobody allowed."""
    rows, why = IMPOSSIBLE[case]
    data = {**HIERARCHICAL, "known_schedule": recorded(tmp_path, "async-l2gd", rows)}
    with pytest.raises(ConfigError, match=why):
        federate("async-l2gd", **data, **FOUR)


def test_the_schedule_of_a_run_that_was_killed_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    """A line that is cut short is none; what is missing is known before the first round."""
    folder = recorded(tmp_path, "async-l2gd", [{}, {"0": 1}, {}, {}])
    with (tmp_path / "async-l2gd" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "timel')
    data = {**HIERARCHICAL, **FOUR, "known_schedule": folder}
    assert federate("async-l2gd", **data)[1].json()[0]["rounds"] == 4
    with pytest.raises(ConfigError, match="has no round 5"):
        federate("async-l2gd", **data | {"num_rounds": 5})


def test_where_nobody_can_be_late_that_is_said() -> None:
    """And not that numbers depend on how fast clusters are."""
    notes = Notes()
    strategy = strategy_class("async-l2gd")(settings("async-l2gd", **HIERARCHICAL, **FOUR), [notes])
    strategy.start(LocalGrid(client_app, 2))
    assert any("the numbers are those of 0" in note for note in notes.notes)
    assert not any("depends on how fast" in note for note in notes.notes)
