"""Users whose sums lie: they are set aside and named, and all others have what they would have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.results.frames import user_columns
from corsage.benchmarks.attack import client_of, forging, lying, times
from corsage.core.arrays import Array, Floats
from corsage.core.configuration.config import Config
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.tree import Tree, levels_of
from corsage.solvers.known_clusters.variances.scoring import Scoring
from corsage.solvers.known_clusters.variances.shape_choice import part
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, Shape
from corsage.solvers.known_clusters.variances.unlike import Expected, Own
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters.aside import unguarded
from corsage.strategies.known_clusters.mixed_model import MixedModel
from corsage.strategies.rounds.base import Result
from corsage.strategies.rounds.state import restored, stored
from tests.support.federations import Notes

Table = dict[str, Array]
USERS, TRAIN, D = 21, 15, 4
LIES = ("features x 1,000", "features x 1e6", "labels x 1,000", "noise", "a far model")


@cache
def table(seed: int = 1, path: bool = False, heavy: bool = False) -> Table:
    """21 users in three clusters; where a model is asked for, six clusters in two units."""
    rng = np.random.default_rng(seed)
    each, k = TRAIN + 20, 6 if path else 3
    user = np.repeat(np.arange(USERS), each)
    cluster = np.arange(USERS) % k
    drawn = rng.standard_t(3, (USERS, D)) if heavy else rng.normal(size=(USERS, D))
    theta = rng.normal(size=(k, D))[cluster] + 0.5 * drawn
    x = rng.normal(size=(len(user), D))
    y = (x * theta[user]).sum(1) + rng.normal(size=len(user))
    names = np.array([f"{c % 2}/{c}" if path else str(c) for c in cluster])
    test = np.tile(np.arange(each) >= TRAIN, USERS)
    return {"x": x, "y": y, "user": user, "cluster": names[user], "test": test}


def told(of: Table, liars: tuple[int, ...], lie: str) -> Table:
    """The table in which some users' training rows are made up: sums that data could have."""
    rng, x, y = np.random.default_rng(0), of["x"].copy(), of["y"].copy()
    for liar in liars:
        own = (of["user"] == liar) & ~of["test"]
        theta = np.full(D, 3.0) if lie == "a far model" else rng.normal(size=D)
        times = {"features x 1e6": 1e6, "features x 1,000": 1e3}.get(lie, 1.0)
        x[own] *= times
        y[own] = {
            "labels x 1,000": 1e3 * y[own], "noise": 1e3 * rng.normal(size=TRAIN),
        }.get(lie, x[own] @ theta)  # fmt: skip
    return {**of, "x": x, "y": y}


def without(of: Table, liars: tuple[int, ...]) -> Table:
    kept = ~np.isin(of["user"], liars)
    return {name: column[kept] for name, column in of.items()}


def run(
    folder: Path, of: Table, name: str = "mixed-model", nodes: int = 1, **keys: Any
) -> tuple[MixedModel[Any], Result, list[str]]:
    file = folder / "table.npz"
    np.savez(file, **of)  # type: ignore[arg-type, unused-ignore]
    own = {
        "dataset": "npz", "data-file": str(file), "user-column": "user", "labels": "numbers",
        "cluster-column": "cluster", "model": "linear", "scale": "none", "mixed-intervals": "never",
        "mixed-neighbours": "never", "mixed-summary": "federation", "mixed-aside": "always",
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    notes = Notes()
    strategy = strategy_class(name)(Config.parse(own), [notes])
    result = strategy.start(LocalGrid(app, nodes))
    assert isinstance(strategy, MixedModel)
    return strategy, result, notes.notes


def error(result: Result, liars: tuple[int, ...]) -> float:
    """Of all who do not lie."""
    own = result.summaries[0].per_user
    return float(np.mean([value for user, value in own.items() if int(user) not in liars]))


METHODS: dict[str, dict[str, Any]] = {
    "mixed-model": {"mixed_variances": "one"},
    "mixed-model, full": {"mixed_variances": "full"},
    "mixed-model, given": {"known_gamma": 2, "known_lambda": 1},
    "mixed-model, three levels": {"mixed_variances": "one"},
    "exact-global": {},
    "exact-cluster": {},
    "single-cluster": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_liars_are_set_aside_and_the_others_have_what_they_would_have(
    method: str, tmp_path: Path
) -> None:
    name, keys = method.partition(",")[0], METHODS[method]
    honest = table(path="levels" in method)
    all_lies = LIES if method == "mixed-model" else LIES[2:3]
    for liars, lies in (((3,), LIES[1:2]), ((3, 4, 10, 17), all_lies)):
        _, alone, _ = run(tmp_path, without(honest, liars), name, **keys)
        for lie in lies:
            strategy, result, notes = run(tmp_path, told(honest, liars, lie), name, **keys)
            assert set(strategy.state.aside.named) == {str(liar) for liar in liars}, lie
            assert error(result, liars) <= 1.001 * error(alone, liars)
            assert any("set aside" in note for note in notes)


def test_what_one_liar_did_where_nobody_is_set_aside(tmp_path: Path) -> None:
    """The attack, and that the key gives back the fit to everybody."""
    honest = table()
    for name in ("mixed-model", "exact-global", "exact-cluster"):
        _, before, _ = run(tmp_path, honest, name)
        lied = told(honest, (3, 10), "features x 1e6")
        _, after, _ = run(tmp_path, lied, name, mixed_aside="never")
        assert error(after, (3, 10)) > 1.2 * error(before, (3, 10))


@pytest.mark.parametrize("method", METHODS)
def test_where_nobody_lies_the_fit_is_the_plain_one(method: str, tmp_path: Path) -> None:
    name, keys = method.partition(",")[0], METHODS[method]
    honest = table(path="levels" in method)
    looked, result, _ = run(tmp_path, honest, name, **keys)
    plain, other, _ = run(tmp_path, honest, name, mixed_aside="never", **keys)
    assert looked.state.aside.users and not looked.state.aside.named
    assert (looked.state.w == plain.state.w).all()
    assert result.summaries[0].per_user == other.summaries[0].per_user


def test_who_is_set_aside_is_in_table_and_files_and_has_a_model_of_its_own(tmp_path: Path) -> None:
    lied = told(table(), (3,), "a far model")
    strategy, result, _ = run(tmp_path, lied, nodes=3, mixed_summary="users")
    row = result.json()[0]
    columns = user_columns(row)
    out = dict(zip(columns["user"], columns["aside"], strict=True))
    assert [user for user, aside in out.items() if aside] == ["3"]
    sizes = dict(zip(columns["user"], columns["between"], strict=True))
    assert sizes["3"] > 4 and sorted(sizes.values())[-2] < 4
    assert len(columns["within"]) == USERS
    assert "user 3" in str(strategy.findings())
    theta = row["estimates"]["users"]["3"]["estimate"]
    assert (
        np.linalg.norm(list(theta.values())[:D] - np.full(D, 3.0)) < 3
    )  # on the way to its own rows
    plain, arrays = stored(strategy.state)
    assert restored(type(strategy.state), plain, arrays).aside.named == ["3"]


def test_who_knows_all_variances_moves_the_others_by_less_than_a_hundredth(tmp_path: Path) -> None:
    """Its model is as far as is just not seen, its noise as is right, its features large."""
    honest, rng = table(), np.random.default_rng(0)
    _, alone, _ = run(tmp_path, without(honest, (3,)))
    base, _, _ = run(tmp_path, honest)
    own = (honest["user"] == 3) & ~honest["test"]
    for away in (0.8, 1.2):
        x, y = honest["x"].copy(), honest["y"].copy()
        x[own] *= 1e3
        y[own] = x[own] @ (base.state.w[0][:D] + away) + rng.normal(size=TRAIN)
        _, result, _ = run(tmp_path, {**honest, "x": x, "y": y})
        assert error(result, (3,)) <= 1.01 * error(alone, (3,))


def test_honest_users_with_heavy_tails_are_seldom_set_aside(tmp_path: Path) -> None:
    named = 0
    for seed in range(4):
        strategy, _, _ = run(tmp_path, table(seed, heavy=True), "exact-cluster")
        named += len(strategy.state.aside.named)
    assert named <= 0.03 * 4 * USERS


def test_between_is_what_a_fit_without_the_user_expects() -> None:
    """At the same variances: no fit is repeated for each user."""
    rng, n, d, m = np.random.default_rng(3), 9, 3, 8
    x = rng.normal(size=(n, m, d))
    y = (x @ rng.normal(size=(n, d, 1)))[..., 0] + rng.normal(size=(n, m))
    a, b, yy = x.mT @ x, (x.mT @ y[..., None])[..., 0], np.square(y).sum(1)
    tree = Tree(Sums.of(a, b, yy), levels_of(np.arange(n) % 3, 3), np.full(n, float(m)), 1.0)
    shapes = [Shape(DIAGONAL, np.arange(d), d) for _ in range(2)]
    numbers = [np.full(d, 0.7), np.full(d, 1.1)]

    def between(out: int, inside: bool) -> float:
        kept = np.arange(n) if inside else np.delete(np.arange(n), out)
        fit = Scoring(part(tree, kept), shapes).fitted(numbers, 0)
        expected, own = Expected.of(fit, tree.levels[0]), Own.of(tree.users, tree.counts)
        squares, free = own.between(expected, np.isin(np.arange(n), kept))
        assert free[out] == d
        return float(squares[out])

    for user in range(n):
        rest = np.delete(np.arange(n), user)
        known = Scoring(part(tree, rest), shapes).fitted(numbers, 0).found.known_above()[0]
        away = np.linalg.solve(a[user], b[user]) - known.mean[user % 3]
        spread: Floats = np.linalg.inv(a[user]) + 0.49 * np.eye(d) + known.covariance[user % 3]
        wanted = float(away @ np.linalg.solve(spread, away))
        assert between(user, True) == pytest.approx(wanted)
        assert between(user, False) == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["mixed-model", "exact-cluster"])
def test_in_a_simulation_an_extreme_user_counts_and_is_named(name: str, tmp_path: Path) -> None:
    """Nobody lies in a table of one's own: the answer is that of all rows, digit by digit."""
    own = told(table(), (3,), "a far model")
    strategy, result, notes = run(tmp_path, own, name, mixed_aside="devices")
    plain, other, _ = run(tmp_path, own, name, mixed_aside="never")
    assert not strategy.state.aside.named
    assert (strategy.state.w == plain.state.w).all()
    assert result.summaries[0].per_user == other.summaries[0].per_user
    if name == "mixed-model":  # whose strengths are on auto
        assert strategy.state.aside.unlike == ["3"]
        assert any("user 3 is counted all the same" in note for note in notes)
        assert "user 3" in str(strategy.findings())
        columns = strategy.state.aside.columns()
        assert not any(columns["aside"].values()) and columns["between"]["3"] > 4


def test_where_it_does_not_hold_it_is_said(tmp_path: Path) -> None:
    honest = table()
    for keys, why in (
        ({}, ""),
        ({"mixed_aside": "never"}, "mixed-aside=never"),
        ({"ridge": 0.1, "known_gamma": "1", "known_lambda": "1"}, "squared loss"),
        ({"mixed_variances": "summed"}, "summed"),
        ({"known_gamma": "0", "known_lambda": "0"}, ""),
    ):
        strategy, _, _ = run(tmp_path, honest, **keys)
        said = unguarded(strategy.job, strategy.keys, "")
        assert why in said and bool(said) == bool(why)
    assert unguarded(strategy.job, replace(strategy.keys, known_gamma="1"), "several") == "several"


def later(name: str, true: Array, came: Array) -> Array:
    """True sums for the first step, and slopes of likelihoods that are turned and ten times."""
    m = round(((8 * true.shape[-1] + 1) ** 0.5 - 3) / 2)
    jets = np.concatenate([true[..., :1], -10 * true[..., 1 : 1 + m], true[..., 1 + m :]], -1)
    return jets if name == "jets" else true


def forged(x: Array, y: Array) -> tuple[Array, Array]:
    return 1000 * x, (x.sum(1) > 0).astype(y.dtype)


@cache
def classes(bad: tuple[int, ...] = ()) -> Table:
    """Users of two classes, with 30 rows for training; none of the bad ones."""
    rng = np.random.default_rng(4)
    user = np.repeat(np.arange(USERS), 60)
    theta = rng.normal(size=(3, 2))[np.arange(USERS) % 3] + 0.3 * rng.normal(size=(USERS, 2))
    x = rng.normal(size=(len(user), 2))
    y = (rng.random(len(user)) < 1 / (1 + np.exp(-(x * theta[user]).sum(1)))).astype(int)
    test = np.tile(np.arange(60) >= 30, USERS)
    cluster = (user % 3).astype(str)
    return without({"x": x, "y": y, "user": user, "cluster": cluster, "test": test}, bad)


def logistic(
    folder: Path, bad: tuple[int, ...] = (), of: Table | None = None
) -> tuple[MixedModel[Any], Result, list[str]]:
    keys = {"loss": "logistic", "labels": "classes", "mixed_variances": "one", "num_rounds": 6}
    return run(folder, of or classes(bad), nodes=USERS - len(bad), **keys)


def test_who_has_one_class_alone_is_not_set_aside(tmp_path: Path) -> None:
    """Nor who has one record of the other: its labels leave no noise, and it does not lie."""
    honest = classes()
    one = np.isin(honest["user"], (5, 8, 12)) & ~honest["test"]
    y = np.where(one, 0, honest["y"])
    y[np.flatnonzero(one)[0]] = 1
    strategy, _, _ = logistic(tmp_path, of={**honest, "y": y})
    assert strategy.state.aside.users and not strategy.state.aside.named


@pytest.mark.parametrize("lie", ["rows", "sums", "later"])
def test_liars_do_not_own_a_logistic_likelihood(lie: str, tmp_path: Path) -> None:
    liars, names = (3, 10), {"3", "10"}
    alone, before, _ = logistic(tmp_path, liars)
    assert not alone.state.aside.named and alone.state.aside.users
    lies = {
        "rows": forging(names, forged),
        "sums": lying(client_of("mixed-model"), names, times(-10.0)),
        "later": lying(client_of("mixed-model"), names, later),
    }
    with lies[lie]:
        strategy, after, notes = logistic(tmp_path)
    named = {*strategy.state.aside.named, *after.summaries[0].dropped}
    assert named == (set() if lie == "rows" else names), notes  # as plausible as rows can be
    assert abs(error(after, liars) - error(before, liars)) < 0.02
    assert strategy.solution.likelihood.guards(strategy.solution.present)
