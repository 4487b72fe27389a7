"""The mixed model on auto from each user's own sums, through a job."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.clients.known_clusters.mixed_model import MixedModelClient, Quadratics, packed
from corsage.clients.parts.contract import Got
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.solvers.known_clusters.variances.covariance_fit import sized
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters import own_sums
from corsage.strategies.known_clusters.covariance_table import NOT_CONVERGED
from corsage.strategies.rounds.base import Result, Strategy
from corsage.strategies.rounds.members import Members
from tests.strategies.known_clusters.test_impossible import Lying
from tests.support.federations import Notes, federate
from tests.support.grids import Watched
from tests.support.known_users import HIERARCHICAL, LOGISTIC, Seen, users_of
from tests.support.linear_users import counted_passes
from tests.support.resuming import Resume, Stop

AUTO: dict[str, Any] = {"known_gamma": "auto", "known_lambda": "auto"}
SQUARED = {**HIERARCHICAL, **AUTO, "samples_per_user": 8, "mixed_intervals": "never"}
INTERCEPTS = {**SQUARED, "mixed_random": "intercept"}
"""With one coefficient there are no shapes to choose among."""
CLASSES = {**LOGISTIC, **AUTO, "num_rounds": 40, "evaluate_every": 1000}
CLASSES |= {"mixed_likelihood": "quasi"}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def table(folder: Path, scale: float = 1.0, shift: float = 0.0, d: int = 3) -> Path:
    """40 users of two clusters; each coefficient has a variance of its own."""
    rng, n, m = np.random.default_rng(2), 40, 12
    user = np.repeat(np.arange(n), m)
    x = rng.standard_normal((n * m, d - 1))
    w = np.array([[1.0, -1.0, 3.0], [0.5, -2.0, 4.0]])[user % 2]
    theta = w + (np.array([0.2, 1.0, 2.0]) * rng.standard_normal((n, 3)))[user]
    y = (x * theta[:, :2]).sum(1) + theta[:, 2] + rng.standard_normal(len(user))
    x[:, 0] = scale * (x[:, 0] + shift)
    path = folder / f"table {scale:g} {shift:g}.npz"
    np.savez(path, x=x, y=y, user=user, cluster=user % 2, test=np.arange(n * m) % m < 3)
    return path


def run(file: Path, nodes: int = 1, **keys: Any) -> tuple[Strategy[Any, Any], Result, list[str]]:
    own = {
        "dataset": "npz", "data-file": str(file), "user-column": "user", "labels": "numbers",
        "cluster-column": "cluster", "model": "linear", "scale": "none", "mixed-intervals": "never",
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    notes = Notes()
    strategy = strategy_class("mixed-model")(Config.parse(own), [notes])
    return strategy, strategy.start(LocalGrid(app, nodes)), notes.notes


def errors(result: Result) -> Floats:
    """Every user's error."""
    found = result.summaries[0].per_user
    return np.array([found[user] for user in sorted(found)])


def test_one_exchange_of_the_sums_and_nothing_else() -> None:
    users = users_of("mixed-model", **SQUARED)
    strategy, result, _ = federate("mixed-model", 3, mixed_summary="none", **SQUARED)
    d, found = users.d, result.json()[0]
    assert strategy.progress.round == 1 and strategy.finished()
    assert found["bytes_up"] == 12 * 8 * (d * (d + 1) // 2 + d + 1)
    assert strategy.state.estimates.way == own_sums.USERS


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Floats]:
    """The errors on the table in its own units: once for the same keys."""
    file = table(tmp_path_factory.mktemp("units"))
    return cache(lambda **keys: errors(run(file, **keys)[1]))


@pytest.mark.parametrize(
    ("variances", "scale", "shift"),
    [
        ("auto", 1e-3, 40.0),
        ("one", 1e-3, 40.0),
        ("diagonal", 100.0, 0.0),  # of columns as they are: where their 0 is is meant
        ("full", 100.0, 40.0),
    ],
)
def test_units_of_a_column_change_nobody_s_error(
    variances: str, scale: float, shift: float, as_it_is: Callable[..., Floats], tmp_path: Path
) -> None:
    keys = {"mixed_variances": variances}
    one = as_it_is(**keys)
    other = errors(run(table(tmp_path, scale, shift), 3, **keys)[1])
    assert other == pytest.approx(one, rel=1e-6)
    assert one.mean() < as_it_is(known_gamma="inf", known_lambda=0).mean()


def test_the_variances_are_told_in_the_units_of_the_table(tmp_path: Path) -> None:
    """With `scale=federated` they are found in other units, and told in these."""
    found = []
    for scale in ("none", "federated"):
        _, result, _ = run(table(tmp_path, 10.0), scale=scale, mixed_variances="diagonal")
        estimates = result.json()[0]["estimates"]
        found.append({one["level"]: one["variance"] for one in estimates["variances"]})
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0]["user: x0"] == pytest.approx(0.2**2 / 100, rel=0.8)
    assert found[0]["residual"] == pytest.approx(1.0, rel=0.2)


def test_a_shape_that_fits_predicts_better_than_one_variance(tmp_path: Path) -> None:
    strategy, auto, _ = run(table(tmp_path))
    assert strategy.state.estimates.covariance.kinds[0] == "diagonal"
    assert errors(auto).mean() < errors(run(table(tmp_path), mixed_variances="one")[1]).mean()
    tables = {f["title"]: f["rows"] for f in auto.json()[0]["findings"]}
    tried = tables["log likelihood of users that were left out, by shapes"]
    assert tried[0][0].startswith("users: ") and "(+0.00)" in tried[0][1]


def classes(folder: Path) -> tuple[Path, Floats, Floats, Floats]:
    """30 users of two clusters with 40 records of two classes; a path, x, user and label."""
    rng, n, m = np.random.default_rng(1), 30, 40
    user = np.repeat(np.arange(n), m)
    theta = [0.5, -1.0, 0.3] + np.array([0.3, 0.8, 1.2]) * rng.standard_normal((n, 3))
    x = np.column_stack([rng.standard_normal((n * m, 2)), np.ones(n * m)])
    y = (rng.random(n * m) < 1 / (1 + np.exp(-(x * theta[user]).sum(1)))).astype(int)
    path, test = folder / "classes.npz", np.arange(n * m) % m < 5
    np.savez(path, x=x[:, :2], y=y, user=user, cluster=user % 2, test=test)
    return path, x[~test], user[~test], y[~test]


def em_step(strategy: Strategy[Any, Any], theta: Floats, x: Floats, user: Floats) -> Floats:
    """EM's next covariance of the users at their models: mean of u u' and of its covariance."""
    fit = strategy.state.estimates.covariance.users[0]
    n, d = theta.shape
    scores = 1 / (1 + np.exp(-(x * theta[user]).sum(1)))
    weighted = x * np.sqrt(scores * (1 - scores))[:, None]
    a = np.stack([weighted[user == i].T @ weighted[user == i] for i in range(n)])
    own = np.arange(n) % 2
    s = fit @ np.linalg.inv(np.eye(d) + a @ fit)  # fit may be singular
    away, rest = theta - strategy.state.w[own], s @ a
    spread = s + rest @ strategy.state.covariance[own] @ rest.mT
    return np.asarray((away[:, :, None] * away[:, None] + spread).mean(0))


def test_classes_end_where_em_stands_still(seen: Seen, tmp_path: Path) -> None:
    """In few exchanges; and said to have converged only then."""
    path, x, user, _ = classes(tmp_path)
    keys = {"loss": "logistic", "labels": "classes", "mixed_variances": "full"}
    keys |= {"mixed_likelihood": "quasi"}
    keys["mixed_neighbours"] = "never"  # their models would be the last that are seen
    strategy, result, _ = run(path, 2, **keys, num_rounds=40, evaluate_every=1000)
    theta = np.stack([seen.models[str(i)] for i in range(30)])
    covariance = strategy.state.estimates.covariance.users[0]
    assert strategy.finished() and strategy.progress.round <= 20
    assert np.diag(covariance).min() > 0.01
    assert em_step(strategy, theta, x, user) == pytest.approx(covariance, abs=1e-5)
    assert "converged: its slope is 0" in str(result.json()[0]["findings"])
    _, stopped, _ = run(path, **keys, num_rounds=3)
    assert "not converged" in str(stopped.json()[0]["findings"])


def test_users_of_float32_are_at_their_minima_in_a_few_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange looks at the rows some twenty times, and comes to what float64 comes to."""
    path, *_ = classes(tmp_path)
    seen = counted_passes(monkeypatch)
    keys = {"loss": "logistic", "labels": "classes", "mixed_variances": "full"}
    keys |= {"mixed_likelihood": "quasi"}
    keys |= {"mixed_neighbours": "never", "evaluate_every": 1000, "num_rounds": 40}
    exact, _, _ = run(path, 1, **keys)
    seen.clear()
    rounded, _, _ = run(path, 1, **keys, precision="float32")
    assert rounded.finished() and rounded.progress.round <= 20
    looks = 2 * (rounded.progress.round + 3)  # at two clusters; evaluated, kept and told about
    assert seen.total() <= 20 * looks
    one, other = (s.state.estimates.covariance.users for s in (rounded, exact))
    assert one == pytest.approx(other, rel=1e-3)


def test_a_variance_of_0_is_said_to_be_at_the_boundary(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, user = rng.standard_normal((400, 2)), np.repeat(np.arange(20), 20)
    y, path = x @ [1.0, 2.0] + rng.standard_normal(400), tmp_path / "same.npz"
    np.savez(path, x=x, y=y, user=user, cluster=user % 2, test=np.arange(400) % 20 < 2)
    _, result, _ = run(path, mixed_variances="diagonal")
    found = result.json()[0]
    assert "at the boundary" in str(found["findings"])
    assert any(one["at_boundary"] for one in found["estimates"]["variances"])


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_unit_puts_no_variance_at_the_boundary(kind: str, tmp_path: Path) -> None:
    """A column in millionths: its coefficient's variance is 1e-14 of what it was."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(30), 20)
    x, theta = rng.standard_normal((600, 2)), rng.standard_normal((30, 2))
    y = (x * theta[user]).sum(1) + user % 3 + rng.standard_normal(600)
    path, correlations = tmp_path / "units.npz", []
    for unit in (1.0, 1e7):
        rest = {"user": user, "cluster": user % 2, "test": np.arange(600) % 20 < 2}
        np.savez(path, x=x * [unit, 1.0], y=y, **rest)
        _, result, _ = run(path, mixed_variances=kind)
        found = result.json()[0]["estimates"]
        own = [one for one in found["variances"] if one["level"].startswith("user: ")]
        assert len(own) == 3 and not any(one["at_boundary"] for one in own)
        correlations.append([one["estimate"] for one in found["correlations"]])
    assert correlations[0] == pytest.approx(correlations[1], rel=1e-4)
    assert (len(correlations[0]) > 0) == (kind == "full")


def test_devices_with_one_user_send_the_same_and_others_their_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_home = federate("mixed-model", 12, **INTERCEPTS)[1]
    monkeypatch.setattr(Members, "at_home", False)
    watched = Watched(12)
    strategy, away, notes = federate("mixed-model", grid=watched, **INTERCEPTS)
    assert errors(away) == pytest.approx(errors(at_home), rel=1e-12)
    assert all("each" not in str(task.options) for _, task in watched.training()[:12])
    strategy, _, notes = federate("mixed-model", 3, **SQUARED)
    assert strategy.state.estimates.way == own_sums.SUMMED
    assert any("a device has several users" in note for note in notes.notes)
    with pytest.raises(ConfigError, match="tells no more than their sum"):
        federate("mixed-model", 3, mixed_variances="full", **SQUARED)


def test_a_device_never_sends_rows_of_several_users() -> None:
    """Their sum, unless it is asked for `each`, which is no word that a device reads."""
    squares = packed(Quadratics(np.tile(np.eye(2), (4, 1, 1)), np.ones((4, 2))), np.ones(4))
    client: Any = SimpleNamespace(theta=lambda: np.zeros((4, 2)), told_squares=squares, floored={})
    options = {"as": "exact", "moves": False}
    sent = MixedModelClient.own_quadratics(client, Got(options=options))
    assert sent.rows["sums"].tolist() == [[4.0, 0.0, 4.0, 4.0, 4.0, 4.0]]
    each = MixedModelClient.own_quadratics(client, Got(options={**options, "each": True}))
    assert each.rows["sums"].tolist() == [[1.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 4
    assert "each" not in MixedModelClient.takes.options


@pytest.mark.parametrize("value", [-1.0, 1e9])
@pytest.mark.parametrize("keys", [INTERCEPTS, {**CLASSES, "num_rounds": 3}])
def test_sums_that_no_records_have(value: float, keys: dict[str, Any]) -> None:
    strategy, _, notes = federate("mixed-model", grid=Lying("sums", value), **keys)
    assert strategy.progress.round >= 2
    assert any("its sums cannot be" in note for note in notes.notes)


def test_too_many_numbers_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_sums, "MOST_HELD", 10)
    strategy, _, notes = federate("mixed-model", **SQUARED)
    assert strategy.state.estimates.way == own_sums.SUMMED
    assert any("too many for sums of each" in note for note in notes.notes)


@pytest.mark.parametrize("likelihood", ["quasi", "laplace"])
def test_a_killed_run_goes_on_to_the_same_numbers(likelihood: str, tmp_path: Path) -> None:
    """Stopped after shapes were chosen: what was fitted is in the checkpoint."""
    path, *_ = classes(tmp_path)
    keys = {"loss": "logistic", "labels": "classes", "evaluate_every": 1000, "num_rounds": 60}
    keys["mixed_likelihood"] = likelihood
    whole, wanted, _ = run(path, 1, **keys)
    own = {
        "dataset": "npz", "data-file": str(path), "user-column": "user", "scale": "none",
        "cluster-column": "cluster", "model": "linear",
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    grid, checkpoint, kind = LocalGrid(app, 1), tmp_path / "checkpoint", type(whole)
    broken = kind(Config.parse(own), [Stop(checkpoint, 5)], experiment="e")
    with pytest.raises(KeyboardInterrupt):
        broken.start(grid)
    resumed = kind(Config.parse(own), [Resume(checkpoint, 4)], experiment="e")
    result = resumed.start(grid)
    assert resumed.progress.round == whole.progress.round > 5
    assert errors(result) == pytest.approx(errors(wanted), rel=1e-12)
    found = resumed.state.estimates.covariance
    assert found.held_out if likelihood == "quasi" else len(found.generalised.tried) == 3


def test_errors_of_predictions_are_those_of_all_records(tmp_path: Path) -> None:
    """With any covariance: best linear unbiased prediction, and its errors, as one dense system."""
    file = table(tmp_path)
    strategy, result, _ = run(file, mixed_variances="full")
    data = np.load(file)
    train = ~data["test"]
    x = np.column_stack([data["x"], np.ones(len(data["y"]))])[train]
    y, user, cluster = (data[name][train] for name in ("y", "user", "cluster"))
    fit = strategy.state.estimates.covariance
    own = np.equal.outer(user, user) * (x @ fit.users[0] @ x.T)
    near = np.equal.outer(cluster, cluster) * (x @ fit.clusters[0] @ x.T)
    inverse = np.linalg.inv(own + near + fit.sigma2 * np.eye(len(y)))
    fisher = np.linalg.inv(x.T @ inverse @ x)
    wbar = fisher @ x.T @ inverse @ y
    estimates = result.json()[0]["estimates"]
    found = np.array([[c["estimate"], c["se"]] for c in estimates["coefficients"]])
    assert found[:, 0] == pytest.approx(wbar, rel=1e-6)
    assert found[:, 1] == pytest.approx(np.sqrt(np.diag(fisher)), rel=1e-6)
    both = np.stack([fit.users[0], fit.clusters[0]])
    for one in (0, 17, 39):
        share = np.stack([x * (user == one)[:, None], x * (cluster == one % 2)[:, None]])
        pull = sum(d @ part.T for d, part in zip(both, share, strict=True))  # of theta with y
        theta = wbar + pull @ inverse @ (y - x @ wbar)
        over = np.eye(3) - pull @ inverse @ x
        error = both.sum(0) - pull @ inverse @ pull.T + over @ fisher @ over.T
        told = estimates["users"][str(one)]
        assert list(told["estimate"].values()) == pytest.approx(theta, rel=1e-5, abs=1e-6)
        assert list(told["se"].values()) == pytest.approx(np.sqrt(np.diag(error)), rel=1e-5)


@pytest.mark.parametrize("kind", ["one", "full"])
def test_units_of_columns_change_no_errors_and_no_intervals(tmp_path: Path, kind: str) -> None:
    found = []
    for scale in (1.0, 1e7):
        keys = {"mixed_variances": kind, "mixed_grouping": "all", "mixed_intervals": "auto"}
        fit = run(table(tmp_path, scale, d=2), **keys)[0].state.estimates.covariance
        own = fit.likely["users: x0"].times(scale**2)
        found.append([own.se, own.low, own.high])
        assert fit.likely["users: intercept"].se is not None
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize("noise", [1e-3, 1e-5, 0.0])
@pytest.mark.parametrize("kind", ["one", "full"])
def test_labels_that_users_explain_to_the_last_digit(
    tmp_path: Path, noise: float, kind: str
) -> None:
    """Users differ a hundred million times as much as records: no errors, and it is said."""
    rng, user = np.random.default_rng(0), np.repeat(np.arange(8), 6)
    x = rng.standard_normal((48, 1))
    y = x[:, 0] + rng.standard_normal(8)[user] + noise * rng.standard_normal(48)
    file = tmp_path / "exact.npz"
    np.savez(file, x=x, y=y, user=user, cluster=user % 2, test=np.arange(48) % 6 < 2)
    fit = run(file, mixed_variances=kind, mixed_intervals="auto")[0].state.estimates.covariance
    assert (fit.intervals == NOT_CONVERGED) == (noise < 1e-3)
    assert noise == 1e-3 or not fit.likely


def test_what_a_search_that_ends_at_0_leaves_is_0() -> None:
    assert not sized(np.full((1, 2, 2), 4e-13)).any()
    assert sized(np.full((1, 2, 2), 4e-9)).all()
