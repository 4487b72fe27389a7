"""Rounds that do not wait for all clusters: against loops, played again, killed, and bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import HealthCheck, given
from hypothesis import settings as searched
from hypothesis import strategies as st

from corsage.app.run.recorder import Recorder
from corsage.core.errors import ConfigError, RoundFailed
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
from tests.support.grids import At
from tests.support.known_users import (
    HIERARCHICAL,
    LOGISTIC,
    Seen,
    Users,
    far,
    strengths,
    users_of,
)
from tests.support.slow_clusters import SCHEDULES, Slow, recorded, stopped, there

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


# Clusters that take their time.

LIVE: dict[str, Any] = {**HIERARCHICAL, "num_clusters": 4, "known_gamma": 1.5, "known_lambda": LAM}
LIVE |= {"known_p0": P0, "known_p": P}


class Stop(Exception):
    """The server dies."""


class Twice(Slow):
    """Every reply comes again and again, and in the place of later ones too."""

    def __init__(self, *arguments: Any, **words: Any) -> None:
        super().__init__(*arguments, **words)
        self.old: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What is ready, and all that was ever ready of nodes that have more to do."""
        found = list(super().pull_messages(message_ids))
        self.old = [*self.old[-20:], *found]
        return [*found, *self.old]


class Kept:
    """Nodes whose users keep what they have when another server comes."""

    def __init__(self) -> None:
        self.contexts: dict[int, Any] = {}

    def taken(self, grid: Slow) -> Slow:
        """A grid of these nodes."""
        self.contexts = self.contexts or grid._contexts
        grid._contexts = self.contexts
        grid.numbers = {node: place for place, node in enumerate(self.contexts)}
        return grid


def dies(at: int) -> At:
    """The server dies at the beginning of a round."""

    def die() -> None:
        raise Stop

    return At(at, die)


def live(
    name: str,
    folder: Path,
    seconds: Callable[[int], float | None],
    *,
    rounds: int = 30,
    dying: int = 0,
    nodes: int = 4,
    devices: Kept | None = None,
    experiment: str = "",
    kind: type[Slow] = Slow,
    **keys: Any,
) -> tuple[Any, float, Notes]:
    """A run, or what is left of one, with a run folder: its table, seconds, and notes."""
    config = settings(name, **LIVE, num_rounds=rounds, checkpoint_every=4, **keys)
    callbacks: list[Any] = [Recorder(folder / name, {"run": "r"}, config)]
    callbacks += [dies(dying)] if dying else []
    with stopped() as clock:

        def speed(number: int, kind: str, before: int) -> float | None:
            return seconds(number) if kind == "train" and before else 0.01

        grid, notes = kind(clock, nodes, speed, keyed=False), Notes()
        if devices is not None:
            grid = devices.taken(grid)
        strategy = strategy_class(name)(config, [notes, *callbacks], experiment)
        result = strategy.start(grid)
    return result.json()[0], clock.now, notes


def ages(folder: Path, name: str) -> list[dict[str, int]]:
    """The clusters that were at work in each round, and how old their centres were."""
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["timeline"]["stale"] for line in lines]


NUMBERS = ("per_user", "loss", "bytes_up", "bytes_down", "messages")


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("nodes", [9])
def test_a_run_is_played_again_to_the_same_numbers(name: str, nodes: int, tmp_path: Path) -> None:
    """One cluster 20 times slower; again where nobody is slow, bit for bit."""
    slow, _, _ = live(
        name, tmp_path / "a", lambda n: 20.0 if n == 0 else 1.0, nodes=nodes, known_staleness=10
    )
    stale = ages(tmp_path / "a", name)
    assert max(age for row in stale for age in row.values()) == 10
    again, _, _ = live(
        name,
        tmp_path / "b",
        lambda n: 1.0,
        nodes=nodes,
        known_staleness=10,
        known_schedule=str(tmp_path / "a"),
    )
    assert ages(tmp_path / "b", name) == stale
    assert {k: slow[k] for k in NUMBERS} == {k: again[k] for k in NUMBERS}


@pytest.mark.parametrize("name", LOOPS)
def test_a_server_that_died_goes_on_with_those_at_work(name: str, tmp_path: Path) -> None:
    """What was under way is asked again; the whole of it can be played again, bit for bit."""

    def speed(number: int) -> float:
        return 7.0 if number == 0 else 1.0

    keys: dict[str, Any] = {"known_staleness": 6, "nodes": 9, "experiment": "same"}
    devices = Kept()
    with pytest.raises(Stop):
        live(name, tmp_path / "a", speed, dying=17, devices=devices, **keys)
    assert ages(tmp_path / "a", name)[-1]
    whole, _, _ = live(name, tmp_path / "a", speed, devices=devices, **keys)
    stale = ages(tmp_path / "a", name)
    assert len(stale) == 30
    played = {**keys, "known_schedule": str(tmp_path / "a")}
    again, _, _ = live(name, tmp_path / "b", lambda n: 1.0, devices=Kept(), **played)
    assert {k: whole[k] for k in ("per_user", "loss")} == {
        k: again[k] for k in ("per_user", "loss")
    }


@searched(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.floats(0.1, 30.0), min_size=4, max_size=4),
    st.integers(1, 9),
    st.sampled_from(sorted(LOOPS)),
)
def test_no_centre_is_older_than_it_may_be(
    tmp_path_factory: pytest.TempPathFactory, speeds: list[float], staleness: int, name: str
) -> None:
    """Whatever clusters take; and who is away was there when its age says."""
    folder = tmp_path_factory.mktemp("bound")
    live(name, folder, lambda n: speeds[n], rounds=10, known_staleness=staleness)
    stale, joined = ages(folder, name), dict.fromkeys(map(str, range(4)), 1)
    for number, row in enumerate(stale, 1):
        assert all(age <= staleness for age in row.values())
        assert row == {n: number - joined[n] for n in row}
        joined |= {n: number for n in joined if n not in row}


def test_a_slow_cluster_costs_little(tmp_path: Path) -> None:
    """By the clock of the server: nobody waits for it but at the end."""

    def seconds(slow: float, staleness: int) -> float:
        folder = tmp_path / f"{slow}-{staleness}"
        speed = {0: slow}
        _, found, _ = live(
            "async-l2gd",
            folder,
            lambda n: speed.get(n, 1.0),
            rounds=60,
            known_staleness=staleness,
            evaluate_every=1000,
        )
        return found

    usual = seconds(1.0, 0)
    assert seconds(20.0, 0) > 15 * usual
    assert seconds(20.0, 20) < 1.5 * usual


def test_a_cluster_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """At the bound, after `patience`; the others go on, and its centre stays what it was."""
    Slow.patient = False
    try:
        result, _, notes = live(
            "async-l2gd", tmp_path, lambda n: None if n == 0 else 1.0, known_staleness=3, rounds=20
        )
    finally:
        Slow.patient = True
    assert any("no reply in time" in note for note in notes.notes)
    assert result["rounds"] == 20
    assert max(max(row.values(), default=0) for row in ages(tmp_path, "async-l2gd")) <= 3


def test_replies_that_come_again_change_nothing(tmp_path: Path) -> None:
    """Nor do those to messages of rounds that are over."""

    def speed(number: int) -> float:
        return 4.0 if number == 0 else 1.0

    found = [
        live("async-al2sgd", tmp_path / kind.__name__, speed, kind=kind, known_staleness=5)[0]
        for kind in (Slow, Twice)
    ]
    assert ages(tmp_path / "Slow", "async-al2sgd") == ages(tmp_path / "Twice", "async-al2sgd")
    assert {k: found[0][k] for k in NUMBERS} == {k: found[1][k] for k in NUMBERS}


def test_a_round_of_which_nobody_answers_fails(tmp_path: Path) -> None:
    """With the cause, and not for ever."""

    def speed(number: int) -> float | None:
        return None

    with pytest.raises(RoundFailed, match="no reply in time"):
        live("async-l2gd", tmp_path, speed, known_staleness=3, rounds=5)
