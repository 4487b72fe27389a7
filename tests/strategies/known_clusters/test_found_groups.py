"""`mixed-grouping=found` through a run: what is sent once, taken, told, forgotten and refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from corsage.app.client_app import app
from corsage.app.command import run
from corsage.app.fitting import fit
from corsage.app.local_grid import LocalGrid
from corsage.app.run.loaded import load
from corsage.core.errors import ConfigError
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters.found_groups import UNLIKELY, findings, variances
from corsage.strategies.known_clusters.mixed_state import FoundGroups
from corsage.strategies.rounds.base import Strategy
from tests.support.federations import federate, reference, settings
from tests.support.known_users import HIERARCHICAL

FOUND: dict[str, Any] = {
    **HIERARCHICAL, "known_gamma": "auto", "known_lambda": "auto", "mixed_grouping": "found",
    "mixed_intervals": "never", "mixed_variances": "one", "users_per_cluster": 12,
    "cluster_variance": 4.0, "user_variance": 0.05, "samples_per_user": 8, "data_seed": 0,
}  # fmt: skip
"""Users in three clusters, whose names are not told."""


def test_groups_are_found_in_one_exchange_whatever_the_nodes() -> None:
    one, result, _ = reference("mixed-model", **FOUND)
    other, *_ = federate("mixed-model", 3, **FOUND)
    for name, array in one.state.groups.arrays.items():
        assert np.array_equal(array, other.state.groups.arrays[name])
    assert one.state.groups.of == other.state.groups.of
    assert np.array_equal(one.state.w, other.state.w)
    assert one.progress.round == 1 and one.job.traffic.messages == 36 * (
        1 + 1
    )  # sums up, models down
    found, known = result.summaries[0].clusters, result.summaries[0].known_clusters
    pairs = {(found[user], known[user]) for user in known}
    assert len(pairs) == 3 == len({own for own, _ in pairs})
    told = dict(next(f for f in one.findings() if f.title.startswith("groups")).rows)
    assert told["groups"] == "3, of 12, 12, 12 users"
    assert "3 groups beside one centre" in told
    members = one.estimates()["columns"]
    assert {f"p_group_{k}" for k in (1, 2, 3)} <= {*members}
    first = [sum(members[f"p_group_{k}"][user] for k in (1, 2, 3)) for user in known]
    assert first == pytest.approx([1.0] * 36, abs=1e-3)


@pytest.mark.parametrize("lost", ["after the sums", "with the sums", "with the models"])
def test_a_server_that_died_on_the_way_to_the_groups_ends_with_the_same(
    lost: str, tmp_path: Path
) -> None:
    """It begins anew among the same users, who may have answered, and have models already."""
    wanted, *_ = reference("mixed-model", **FOUND)
    grid, none = LocalGrid(app, 3), ConfigRecord()

    def fresh() -> Strategy[Any, Any]:
        strategy = strategy_class("mixed-model")(settings("mixed-model", **FOUND), [], "dies")
        strategy.job.state_dir = str(tmp_path)
        return strategy

    def asked(strategy: Strategy[Any, Any]) -> Any:
        messages = list(strategy.configure_train(1, ArrayRecord(), none, grid))
        return grid.send_and_receive(messages) if messages else None

    dead = fresh()
    replies = asked(dead)
    if lost != "with the sums":
        dead.aggregate_train(1, replies)
    if lost == "with the models":
        asked(dead)
    strategy = fresh()
    while strategy.progress.round < 1 and (replies := asked(strategy)) is not None:
        strategy.aggregate_train(1, replies)
    assert strategy.progress.round == 1 and strategy.state.groups.of == wanted.state.groups.of
    for name, array in wanted.state.groups.arrays.items():
        assert np.array_equal(array, strategy.state.groups.arrays[name])


def test_they_are_as_good_as_known_ones_and_of_one_cluster_there_is_one_centre() -> None:
    errors = {}
    for grouping in ("found", "known", "all"):
        _, result, _ = reference("mixed-model", **{**FOUND, "mixed_grouping": grouping})
        errors[grouping] = np.mean([*result.summaries[0].per_user.values()])
    assert errors["found"] == pytest.approx(errors["known"], rel=0.01)
    assert errors["found"] < 0.95 * errors["all"]
    alike = {**FOUND, "cluster_variance": 0.0, "user_variance": 0.5}
    none, result, _ = federate("mixed-model", **alike)
    same, wanted, _ = federate("mixed-model", **{**alike, "mixed_grouping": "all"})
    assert "none that pay" in str(none.findings()) and not result.summaries[0].clusters
    assert none.state.w == pytest.approx(same.state.w, rel=1e-9)
    found, own = (each.summaries[0].per_user for each in (result, wanted))
    assert found == pytest.approx(own, rel=1e-6)


def test_new_users_are_in_groups_by_their_own_rows() -> None:
    _, result, _ = federate("mixed-model", new_users=0.25, **FOUND)
    rows = {row.strategy: row for row in result.summaries}
    trained = np.mean([*rows["mixed-model"].per_user.values()])
    new = next(row for name, row in rows.items() if name != "mixed-model" and "new" in name)
    assert np.mean([*new.per_user.values()]) < 1.15 * trained


def test_other_losses_have_their_own_fit_within_groups_of_least_squares() -> None:
    keys: dict[str, Any] = {
        "dataset": "ellipses", "loss": "logistic", "users_per_cluster": 12, "samples_per_user": 15,
        "known_gamma": "auto", "known_lambda": "auto", "num_rounds": 20, "evaluate_every": 1000,
        "mixed_neighbours": "never",
    }  # fmt: skip
    found, result, _ = federate("mixed-model", mixed_grouping="found", **keys)
    assert found.state.done and len({*found.state.groups.of.values()}) == 3
    assert np.mean([*result.summaries[0].per_user.values()]) > 0.87
    sizes = np.exp(found.state.groups.arrays["odds"])  # variances are of log odds, as centres
    away = found.state.w - sizes @ found.state.w
    parts = variances(found.state.groups, found.solution.units)
    between = [one.variance for one in parts if one.level.startswith("cluster")]
    assert between == pytest.approx(sizes @ np.square(away))
    assert parts[0].variance == pytest.approx(np.pi**2 / 3)


def table(folder: Path, sizes: list[int]) -> Path:
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.standard_normal((len(user), 2))
    w = np.array([[2.0, 0.0], [-2.0, 1.0]])[user % 2]
    y = (x * w).sum(1) + 1 + 0.5 * rng.standard_normal(len(user))
    path = folder / "table.npz"
    np.savez(path, x=x, y=y, user=user)
    return path


@pytest.mark.parametrize("share", [0, 3])
def test_users_of_few_rows_have_fewer_folds_which_is_said(
    share: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sizes = [1, 2, *[4, 9, 20, 13] * 7]
    words = {
        "strategy": "mixed-model", "dataset": "npz", "data-file": table(tmp_path, sizes),
        "user-column": "user", "labels": "numbers", "model": "linear", "test-fraction": 0,
        "min-share": share, "mixed-variances": "one", "mixed-intervals": "never",
        "mixed-aside": "always", "mixed-grouping": "found", "run-dir": tmp_path / "runs",
        "cache-dir": tmp_path / "cache",
    }  # fmt: skip
    assert run([f"{key}={value}" for key, value in words.items()]) == 0
    few = sum(size // max(share, 1) < 5 for size in sizes)
    assert f"{few} of 30 users have rows for fewer folds" in capfd.readouterr().err
    folder = next((tmp_path / "runs").iterdir())
    found = load(folder)["mixed-model"]
    groups = found.clusters
    assert len(set(groups.values())) == 2
    wrong = [u for u in groups if sizes[int(u)] > 8 and groups[u] != groups[str(2 + int(u) % 2)]]
    assert not wrong
    rows = list(csv.DictReader((folder / "users.csv").open()))
    assert {"p_group_1", "p_group_2"} <= {*rows[0]}


@pytest.mark.parametrize(
    ("strategy", "keys", "words"),
    [
        ("mixed-model", {"mixed_random": "intercept"}, "mixed-random=all"),
        ("random-intercepts", {}, "mixed-random=all"),
        ("single-cluster", {}, "mixed-model finds them"),
        ("mixed-model", {"loss": "poisson"}, "not with loss=poisson"),
    ],
)
def test_what_groups_are_not_found_for_is_refused(
    strategy: str, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"mixed-grouping=found: .*{words}"):
        federate(strategy, **{**FOUND, **keys})


def words_of(folder: Path, data: Path) -> list[str]:
    """The words of a run on a table."""
    words = {
        "strategy": "mixed-model", "dataset": "npz", "data-file": data, "user-column": "user",
        "labels": "numbers", "model": "linear", "mixed-variances": "one",
        "mixed-intervals": "never", "mixed-grouping": "found", "run-dir": folder / "runs",
        "cache-dir": folder / "cache",
    }  # fmt: skip
    return [f"{key}={value}" for key, value in words.items()]


def test_groups_are_looked_for_anew_when_a_user_is_forgotten(tmp_path: Path) -> None:
    """Sums that were kept know the groups of before."""
    words = words_of(tmp_path, table(tmp_path, [6] * 60))
    assert run([*words, "mixed-keep-sums=true"]) == 0
    folder = next((tmp_path / "runs").iterdir())
    before = load(folder)["mixed-model"].clusters
    assert run(["forget", str(folder), "user=3"]) == 0
    after = load(folder)["mixed-model"].clusters
    assert {*before} - {*after} == {"3"} and len({*after.values()}) == 2
    pairs = {(before[user], after[user]) for user in after}
    assert len(pairs) == 2


def test_known_clusters_are_not_used_which_is_said() -> None:
    notes = reference("mixed-model", **FOUND)[2].notes
    assert any("known clusters are not used" in note for note in notes)
    assert not any("not like the others'" in note for note in notes)


def test_fit_names_no_rows_that_refuse_groups(tmp_path: Path) -> None:
    found = fit(
        str(table(tmp_path, [12] * 12)), user="user", labels="numbers", mixed_grouping="found",
        progress=False,
    )  # fmt: skip
    assert not found.failed and {*found} == {"mixed-model", "exact-global", "exact-local"}


def test_what_is_told_of_groups_is_so() -> None:
    """Signs are those of all users, and where few decide of the others; BIC is named."""
    tried = [(2, 0.5, -2.0, ""), (3, 0.1, 2.5, UNLIKELY)]
    told = dict(findings(FoundGroups(json.dumps({"tried": tried})))[0].rows)
    assert told["groups"] == "none that pay: one centre"
    assert "-50.0%" in told["2 groups beside one centre"]
    assert "+2.0 standard errors where no few" in told["2 groups beside one centre"]
    assert told["3 groups beside one centre"].endswith("fewer are likelier (BIC)")
    none = dict(findings(FoundGroups(json.dumps({"tried": []})))[0].rows)
    assert none["groups"].startswith("not looked for")


def test_a_small_group_is_no_liars_and_who_is_alone_is(tmp_path: Path) -> None:
    """Of 30 users four are a group far away, and count; two who lie each in its own way do not."""
    rng = np.random.default_rng(5)
    user = np.repeat(np.arange(30), 12)
    x = rng.standard_normal((len(user), 2))
    w = np.array([[1.0, 0.0]] * 24 + [[-6.0, 5.0]] * 4 + [[30.0, 9.0], [-9.0, -40.0]])
    y = (x * w[user]).sum(1) + 0.5 * rng.standard_normal(len(user))
    np.savez(tmp_path / "table.npz", x=x, y=y, user=user)
    words = [*words_of(tmp_path, tmp_path / "table.npz"), "mixed-aside=always"]
    assert run(words) == 0
    folder = next((tmp_path / "runs").iterdir())
    rows = {row["user"]: row for row in csv.DictReader((folder / "users.csv").open())}
    assert [u for u, row in rows.items() if row["aside"] == "1"] == ["28", "29"]
    groups = load(folder)["mixed-model"].clusters
    assert {u for u in groups if groups[u] == groups["25"]} >= {"24", "25", "26", "27"}
    assert {groups[str(u)] for u in range(24)}.isdisjoint({groups["25"]})
