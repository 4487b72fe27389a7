"""The parts that the methods for known clusters hold: strengths, schedule, legs, rows, checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corsage.core.errors import ConfigError, RoundFailed
from corsage.core.messages.replies import Replies
from corsage.experiments.known_clusters.async_al2sgd import Faces, iterate
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.katyusha import Momenta, Rows, begin
from corsage.solvers.known_clusters.coins.settings import largest_step, probabilities
from corsage.strategies.known_clusters.async_l2gd import AsyncL2GDKeys
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames, Cohort, KnownClusters
from corsage.strategies.known_clusters.clusters.strengths import ClusterKeys, Strengths, settle
from corsage.strategies.known_clusters.coins.coin_keys import (
    CoinSettings,
    CoinState,
    check_end,
    fixed_settings,
)
from corsage.strategies.known_clusters.coins.coin_server import RUNAWAY, StepCheck
from corsage.strategies.known_clusters.coins.conversation import Answer
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule, hierarchy_of, legs
from corsage.strategies.known_clusters.coins.server_rows import AsyncAL2SGDState, ServerRows
from tests.support.known_users import hosting

HOSTS = {1: {"a": ["1", "2"], "b": ["3"]}, 2: {"b": ["4", "5"]}}
D = 2


def cohort(cluster: str, *users: str) -> Cohort:
    return Cohort(users[0], cluster, 1, users)


# Strengths.


def test_a_user_has_its_own_gamma_or_its_clusters_or_the_mean() -> None:
    some = Strengths(gamma={"a": 2.0}, users={"3": 4.0, "4": 6.0}, lam={"a": 1.0, "b": 3.0})
    assert some.gammas(cohort("a", "1", "2")).tolist() == [2.0, 2.0]
    assert some.gammas(cohort("b", "3", "4", "5")).tolist() == [4.0, 6.0, 2.0]
    assert some.typical_gamma(cohort("b", "3", "4")) == 5.0
    assert some.lambdas(["b", "later"]).tolist() == [3.0, 2.0]
    assert Strengths(users={"3": 4.0, "4": 6.0}).gammas(cohort("c", "9")).tolist() == [5.0]
    assert Strengths(gamma={"": 7.0}).gammas(cohort("c", "9")).tolist() == [7.0]


EVERYBODY = {**dict.fromkeys("12345", 1.0), "a": 9.0}
SOME = {"3": 1.0, "4": 2.0, "5": 2.0}


@pytest.mark.parametrize(
    ("gamma", "clusters", "users", "apart"),
    [
        ({"": 1.0}, {"": 1.0}, {}, []),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}, {}, []),
        (EVERYBODY, {}, EVERYBODY, []),
        ({"a": 1.0, **SOME}, {"a": 1.0}, SOME, ["b"]),
    ],
)
def test_names_in_a_file_are_users_or_clusters(
    gamma: dict[str, float], clusters: dict[str, float], users: dict[str, float], apart: list[str]
) -> None:
    names, found = ClusterNames(), Strengths(gamma=gamma, lam={"": 1.0})
    present = KnownClusters(hosting(HOSTS)).meet(names)
    settle(found, ClusterKeys(), names, present)
    assert (found.gamma, found.users, names.apart) == (clusters, users, apart)


def test_what_a_file_leaves_out_is_named() -> None:
    names = ClusterNames()
    present = KnownClusters(hosting(HOSTS)).meet(names)
    for gamma, lam, message in (
        ({"a": 1.0, "3": 1.0}, {"": 1.0}, "neither cluster b nor its user 4"),
        ({"": 1.0}, {"a": 1.0}, "does not have cluster b"),
    ):
        with pytest.raises(ConfigError, match=message):
            settle(Strengths(gamma=gamma, lam=lam), ClusterKeys(), names, present)


# The schedule.


def schedule(p0: float = 0.2, p: float = 0.4, **users: float) -> CoinSchedule:
    """Two clusters; gamma of users that have another one than 1.5."""
    names, gamma = ClusterNames(), {user[1:]: value for user, value in users.items()}
    names.apart = ["a", "b"] if gamma else []
    present = KnownClusters(hosting(HOSTS), all_apart=True).meet(names)
    own = {"users": {**dict.fromkeys("12345", 1.5), **gamma}} if gamma else {"gamma": {"": 1.5}}
    found = hierarchy_of(present, Strengths(**own, lam={"a": 0.8, "b": 1.6}))  # type: ignore[arg-type]
    settings = CoinSettings(p0, {"": p}, {"a": 0.5, "b": 0.25}, 0.01, 0.02)
    return CoinSchedule(3, present, found, settings)


def test_a_schedule_is_of_the_users_in_their_order() -> None:
    found = schedule(u4=2.0)
    assert found.hierarchy.gamma.tolist() == [1.5, 1.5, 1.5, 2.0, 1.5]
    assert found.hierarchy.alpha.tolist() == [0.8 / (0.8 + 3.0), 1.6 / (1.6 + 5.0)]
    assert found.parameters.tau.tolist() == [0.5, 0.25]
    assert found.coins == Coins(3, 0.2, (0.4, 0.4), ("a", "b"))
    assert found.rates.within == pytest.approx(
        0.01 * found.hierarchy.gamma * (1 - found.parameters.tau[found.hierarchy.cluster])
        * (1 - found.hierarchy.alpha[found.hierarchy.cluster]) / (0.8 * 0.4)
    )  # fmt: skip
    rows = dict(found.communications(500))
    assert list(rows)[:3] == ["between clusters", "within a", "round trips of a"]
    assert "(expected 80.0 ± " in rows["between clusters"]


RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=5)


@given(RUNS, st.integers(0, 50), st.booleans())
def test_legs_are_the_walk(walk: list[tuple[int, int]], first: int, whole: bool) -> None:
    """All steps, in their order; each run of local steps knows its iteration."""
    found = legs(tuple(walk), first, whole)
    steps: list[str] = []
    t = first
    for leg in found:
        steps += ["centre"] * leg.to_centre
        t += leg.to_centre
        for r, k, begin_ in leg.runs:
            steps += ["centre"] * r + ["local"] * k
            assert begin_ == t + r
            t += r + k
        assert leg.trips == len(leg.runs) <= (99 if whole else 1)
    assert steps == [kind for r, k in walk for kind in ["centre"] * r + ["local"] * k]
    assert len(found) == (1 if whole or not walk else len(walk))


def test_settings_are_the_theorems_unless_they_are_given() -> None:
    found = schedule()
    hierarchy = found.hierarchy

    def fixed(**keys: Any) -> CoinSettings:
        return fixed_settings(
            AsyncL2GDKeys(**keys), ["a", "b"], hierarchy, 5.0,
            lambda p0, p: largest_step(hierarchy, 5.0, p0, p),
        )  # fmt: skip

    p0, p = probabilities(hierarchy, 5.0)
    auto = fixed()
    assert (auto.p0, auto.p, auto.eta) == (p0, dict(zip("ab", p.tolist(), strict=True)), auto.safe)
    own = fixed(known_p0="0.3", known_p="0.1", known_tau="0.5", known_eta="9")
    assert own.parameters(["b"]).p.tolist() == [0.1] and own.parameters(["a"]).tau.tolist() == [0.5]
    assert own.eta == 9 > own.safe > 0
    check_end("x", 0.1, None)
    check_end("x", 0.0, 5)
    with pytest.raises(ConfigError, match="nothing would end it"):
        check_end("x", 0.0, None)


def test_steps_that_are_too_long_are_noticed() -> None:
    job, state = hosting(HOSTS), CoinState(np.zeros(D), iteration=7)
    state.settings = CoinSettings(eta=2.0, safe=1.0)
    check = StepCheck(job, state)
    check.remember([1e139, 3.0, 2.0])
    check.remember([2 * RUNAWAY])
    assert state.reach == 3.0
    for why in ("train: theta is not finite", "reach is 4e+09, not a number from 0 to 3e+08"):
        bad = Replies(users=["1"], dropped={"2": why})
        with pytest.raises(RoundFailed, match="diverged after iteration 7: known-eta=2 is too"):
            check.check(1, bad, cohorts=2)
        check.check(1, bad, cohorts=3)  # one against two: it is not the step
    check.check(1, Replies(users=["1"], dropped={"2": "boom"}), cohorts=2)


# The rows of Async-AL2SGD+.


def rows_of(found: CoinSchedule) -> tuple[ServerRows, Rows, Any]:
    """Rows at the server, and the users that they stand for, with gradients x - i of user i."""
    rng, n = np.random.default_rng(0), found.hierarchy.n

    def gradient(theta: Any, users: Any) -> Any:
        return theta - np.arange(n)[users, None]

    state = AsyncAL2SGDState.beginning(D)
    state.momenta, state.rho = Momenta(0.01, 0.3, 0.2, 0.9, 0.05), 0.1
    state.strengths = Strengths(gamma={"": 1.5})
    state.clusters.known = ["a", "b"]
    state.clusters.apart = list(found.present.names) if len(found.present.cohorts) > 3 else []
    server = ServerRows(found, state)
    server.enter()
    users = begin(rng.normal(size=(n, D)), gradient, found.hierarchy, server.settings)
    users = users.put(
        np.arange(n), Rows(*rng.normal(size=(4, n, D)), users.x, users.x[0], users.oracle)
    )
    ends = np.cumsum([0, *(len(cohort.users) for cohort in found.present.cohorts)])
    for name, mine in groups(found, server, ends).items():
        told = {kind: getattr(users, kind)[mine] for kind in ("z", "y", "x", "slope")}
        row = server.row_of[name]
        state.z[row], state.y[row] = told["z"].mean(0), told["y"].mean(0)
        state.x[row], state.slope[row] = told["x"].mean(0), told["slope"].mean(0)
    server.settle_anchors()
    return server, users, gradient


def groups(found: CoinSchedule, server: ServerRows, ends: Any) -> dict[str, list[int]]:
    """The users behind each row."""
    mine: dict[str, list[int]] = {}
    for place, own in enumerate(found.present.cohorts):
        mine.setdefault(server.name_of(own), []).extend(range(ends[place], ends[place + 1]))
    return mine


@pytest.mark.parametrize("apart", [False, True])
def test_rows_move_as_the_users_do_and_know_what_these_missed(apart: bool) -> None:
    found = schedule(u4=2.0) if apart else schedule()
    server, users, gradient = rows_of(found)
    faces = [Faces(True, np.zeros(2, bool), False)] * 2 + [Faces(False, np.ones(2, bool), False)]
    for t, face in enumerate(faces):
        users = iterate(users, gradient, None, found.hierarchy, server.settings, t, face)
    server.global_steps(2)
    for j in range(2):
        server.steps_to_centre(j, 1)
    ends = np.cumsum([0, *(len(cohort.users) for cohort in found.present.cohorts)])
    for name, mine in groups(found, server, ends).items():
        row = server.row_of[name]
        assert np.allclose(server.state.y[row], users.y[mine].mean(0), rtol=0, atol=1e-12)
        assert np.allclose(server.state.z[row], users.z[mine].mean(0), rtol=0, atol=1e-12)
        assert server.state.missed[name].is_global == [True, True, False]
    assert np.allclose(server.middle(), found.hierarchy.means(users.y)[1], rtol=0, atol=1e-12)


def test_who_answers_has_missed_nothing_and_may_be_renewed() -> None:
    found = schedule()
    server, _, _ = rows_of(found)
    server.global_steps(1)
    first, *others = found.present.cohorts
    before, ones = server.state.x.copy(), np.ones(D)
    answers = [
        Answer(o, {"z": ones * i, "y": ones * i, "slope": ones}, {}) for i, o in enumerate(others)
    ]
    server.hear(answers, ("z", "y", "slope"))
    assert server.state.y[1].tolist() == [2 / 3, 2 / 3]  # of two users and one
    assert server.missed(first).is_global == [True] and server.missed(others[0]).is_global == []
    assert len(server.missed(first).means) == len(server.missed(others[0]).means) == 1
    server.refresh()
    assert server.state.x[1].tolist() == [2 / 3, 2 / 3]
    assert np.array_equal(server.state.x[0], before[0]) and server.state.refreshes == 1


def test_who_is_not_here_keeps_the_means_that_it_knows() -> None:
    found = schedule(u4=2.0)
    server, _, _ = rows_of(found)
    state = server.state
    state.names = [*state.names, "gone"]
    for kind in ("z", "y", "x", "slope", "xbar_j"):
        setattr(state, kind, np.concatenate([getattr(state, kind), np.full((1, D), 7.0)]))
    later = ServerRows(found, state)
    later.settle_anchors()
    assert state.xbar_j[-1].tolist() == [7.0, 7.0] and (state.xbar_j[:-1] != 7.0).all()
    assert len(later.here) == 5
