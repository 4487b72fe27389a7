"""The summary of linear models in a federation, beside statsmodels and dense formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

import corsage
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.report import estimates
from corsage.app.results.csv_files import STATISTICS, statistics
from corsage.clients.known_clusters.mixed_model import MixedModelClient
from corsage.clients.parts.contract import Got, Sent
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.core.tables.preparation import Column, Label, Preparation
from corsage.solvers.known_clusters.tree import Sums, Tree, levels_of
from corsage.solvers.known_clusters.variances.profile import Errors, Intervals
from corsage.solvers.known_clusters.variances.scoring import Scoring
from corsage.solvers.known_clusters.variances.shape_choice import equal_shapes
from corsage.solvers.known_clusters.variances.shapes import ONE
from corsage.strategies import strategy_class
from corsage.strategies.known_clusters import inference, mixed_model, own_fit, units
from corsage.strategies.known_clusters.coins.impossible import summary_fault
from corsage.strategies.known_clusters.linear_summary import Coefficient, number_text
from corsage.strategies.known_clusters.units import Units
from tests.support.mixed_models import Records, records, statsmodels_fit

DATA = records(4, slopes=0.0)


def written(folder: Path, data: Records, y: Floats) -> Path:
    """All records for training, and each user's first one once more for testing."""
    first = np.unique(data.user, return_index=True)[1]
    rows = np.concatenate([np.arange(len(y)), first])
    test = np.arange(len(rows)) >= len(y)
    parts = {"x": data.x[rows, :2], "y": y[rows], "user": data.user[rows]}
    path = folder / "records.npz"
    np.savez(path, test=test, cluster=data.cluster[rows], **parts)
    return path


def summary(name: str, file: Path, nodes: int = 1, **keys: Any) -> dict[str, Any]:
    """The `estimates` of a result as JSON has them, and under `rows` what was printed."""
    own = {
        "dataset": "npz", "data-file": str(file), "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "num-rounds": 60, "evaluate-every": 100,
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }  # fmt: skip
    result = strategy_class(name)(Config.parse(own)).start(LocalGrid(app, nodes))
    whole = json.loads(json.dumps(result.json()[0]))
    rows = [row for finding in whole["findings"] for row in finding["rows"]]
    return {**whole["estimates"], "rows": dict(rows)}


def column(found: dict[str, Any], what: str) -> Floats:
    return np.array([one[what] for one in found["coefficients"]])


NUMBERS = {"loss": "squared", "labels": "numbers", "mixed_random": "intercept", "known_refine": 1}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("numbers"), DATA, DATA.y)


@pytest.fixture(scope="module")
def any_shape(numbers: Path) -> dict[str, Any]:
    """The summary of users that differ in all coefficients, with any covariance."""
    own = {**NUMBERS, "mixed_random": "all", "mixed_variances": "full", "mixed_grouping": "all"}
    return summary("mixed-model", numbers, mixed_intervals="always", **own)


@pytest.mark.parametrize("nodes", [1, 5])
def test_random_intercepts_of_users_in_clusters(numbers: Path, nodes: int) -> None:
    wanted = statsmodels_fit(DATA, slopes=False, nested=True)
    found = summary("mixed-model", numbers, nodes, **NUMBERS)
    assert column(found, "estimate") == pytest.approx(wanted.estimates, rel=1e-3)
    assert column(found, "se") == pytest.approx(wanted.errors, rel=1e-3)
    variances = {one["level"]: one["variance"] for one in found["variances"]}
    assert variances == pytest.approx(
        {"residual": wanted.scale, "user": wanted.user, "cluster": wanted.cluster}, rel=1e-3
    )
    total = sum(variances.values())
    for one in found["variances"]:
        assert one["share"] == pytest.approx(variances[one["level"]] / total, rel=1e-3)
    assert found["varying"] == ["intercept"] and len(found["users"]) == 48


@pytest.mark.parametrize("scale", ["federated", "none"])
def test_the_log_likelihood_is_that_of_the_table(numbers: Path, scale: str) -> None:
    wanted = statsmodels_fit(DATA, slopes=False, nested=True)
    rows = summary("mixed-model", numbers, scale=scale, **NUMBERS)["rows"]
    assert float(rows["log likelihood"].split()[0]) == pytest.approx(wanted.loglik, abs=2e-3)
    assert rows["between records (sigma^2)"].startswith(f"{wanted.scale:.3g}")


def test_one_level_is_estimated_and_predicted_as_by_statsmodels(numbers: Path) -> None:
    found = summary("single-cluster", numbers, **NUMBERS)
    wanted = statsmodels_fit(DATA, slopes=False, nested=False)
    assert column(found, "se") == pytest.approx(wanted.errors, rel=1e-3)
    x, y, v = DATA.x, DATA.y, wanted.scale
    same = np.equal.outer(DATA.user, DATA.user) * wanted.user
    inverse = np.linalg.inv(same + v * np.eye(len(y)))
    rest = inverse @ (y - x @ wanted.estimates)
    fisher = np.linalg.inv(x.T @ inverse @ x)
    for user in (0, 17, 47):
        one, own = found["users"][str(user)], (DATA.user == user) * wanted.user
        assert one["estimate"]["intercept"] == pytest.approx(
            wanted.estimates[2] + own @ rest, rel=1e-3
        )
        away = np.array([0.0, 0.0, 1.0]) - own @ inverse @ x
        error = wanted.user - own @ inverse @ own + away @ fisher @ away
        assert one["se"]["intercept"] == pytest.approx(error**0.5, rel=1e-3)
        count = (DATA.user == user).sum()
        assert 1 - one["shrinkage"] == pytest.approx(
            wanted.user / (wanted.user + v / count), rel=1e-3
        )
        rows = DATA.user == user
        alone = np.mean(y[rows] - x[rows, :2] @ column(found, "estimate")[:2])
        assert one["own"]["intercept"] == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 200.0, 1e5])
def test_variances_are_those_of_analysis_of_variance(ratio: float) -> None:
    """With as many rows a user, and the same features: however far users are apart."""
    data, users, n = np.random.default_rng(3), 30, 10
    x, away = np.linspace(-1, 1, n), np.sqrt(ratio) * data.normal(size=(users, 1))
    y = 5 + 2 * x + away + data.normal(size=(users, n))
    given = [(x[:, None], row, x[:1, None], row[:1]) for row in y]
    keys: dict[str, Any] = {
        "model": "linear", "mixed_random": "intercept", "mixed_grouping": "all",
    }  # fmt: skip
    run = corsage.simulate("mixed-model", given, progress=False, **keys)
    within = y - y.mean(1, keepdims=True)
    slope = (within @ x).sum() / (users * x @ x)
    noise = np.square(within - slope * x).sum() / (users * (n - 1) - 1)
    between = y.mean(1).var(ddof=1) - noise / n
    found = [one["variance"] for one in run["mixed-model"].json()["estimates"]["variances"]]
    assert found == pytest.approx([noise, between], rel=1e-3)


def test_one_model_for_all_is_least_squares(numbers: Path) -> None:
    found = summary("exact-global", numbers, 3, **NUMBERS)
    wanted = sm.OLS(DATA.y, DATA.x).fit()
    assert column(found, "estimate") == pytest.approx(wanted.params)
    assert column(found, "se") == pytest.approx(wanted.bse)
    assert found["variances"][0]["variance"] == pytest.approx(wanted.scale)


def test_clusters_apart_are_least_squares_with_one_noise(numbers: Path) -> None:
    found = summary("exact-cluster", numbers, 3, **NUMBERS)
    each = [sm.OLS(DATA.y[DATA.cluster == c], DATA.x[DATA.cluster == c]).fit() for c in range(8)]
    noise = sum(one.ssr for one in each) / sum(one.df_resid for one in each)
    assert found["variances"][0]["variance"] == pytest.approx(noise)
    for name, one in found["clusters"].items():
        own = each[int(name)]
        assert list(one["estimate"].values()) == pytest.approx(own.params)
        errors = np.sqrt(noise * np.diag(own.normalized_cov_params))
        assert list(one["se"].values()) == pytest.approx(errors)
    assert set(column(found, "se")) == {None}


def test_users_alone_are_least_squares_with_one_noise(numbers: Path) -> None:
    found = summary("exact-local", numbers, **NUMBERS)
    each = [sm.OLS(DATA.y[DATA.user == u], DATA.x[DATA.user == u]).fit() for u in range(48)]
    noise = sum(one.ssr for one in each) / sum(one.df_resid for one in each)
    for user in (3, 30):
        one, own = found["users"][str(user)], each[user]
        assert list(one["estimate"].values()) == pytest.approx(own.params)
        errors = np.sqrt(noise * np.diag(own.normalized_cov_params))
        assert list(one["se"].values()) == pytest.approx(errors)
    assert found["coefficients"] == []


@pytest.mark.parametrize("random", ["all", "intercept"])
def test_given_strengths_are_variances_over_the_noise(numbers: Path, random: str) -> None:
    """With gamma = sigma^2/s^2 as it was estimated, all else is as it was estimated."""
    keys = {**NUMBERS, "mixed_random": random, "known_refine": 2, "mixed_variances": "summed"}
    fit = summary("mixed-model", numbers, **keys)
    noise, user, cluster = (one["variance"] for one in fit["variances"])
    given = {"known_gamma": noise / user, "known_lambda": noise / cluster}
    found = summary("mixed-model", numbers, **{**keys, **given})
    assert column(found, "estimate") == pytest.approx(column(fit, "estimate"), rel=1e-3)
    assert column(found, "se") == pytest.approx(column(fit, "se"), rel=1e-3)
    assert found["variances"][0]["variance"] == pytest.approx(noise, rel=1e-3)


def test_classes_have_errors_from_the_likelihood(tmp_path: Path) -> None:
    y = (DATA.y > 1).astype(np.int64)
    file = written(tmp_path, DATA, y)
    found = summary("exact-global", file, loss="logistic")
    wanted = sm.Logit(y, DATA.x).fit(disp=False)
    assert found["rows"]["units"] == "log odds of y=1"
    assert column(found, "estimate") == pytest.approx(wanted.params, rel=1e-5)
    assert column(found, "se") == pytest.approx(wanted.bse, rel=1e-5)
    found = summary("mixed-model", file, loss="logistic", mixed_random="intercept")
    assert (column(found, "se") > 0).all() and "Laplace" in found["errors"]
    assert sum(one["share"] for one in found["variances"]) == pytest.approx(1.0)
    assert {one["level"] for one in found["variances"]} == {"residual", "user", "cluster"}


def test_what_is_no_likelihood_has_no_errors(numbers: Path, tmp_path: Path) -> None:
    for keys in ({"loss": "huber", "known_gamma": 1, "known_lambda": 1}, {"ridge": 0.1}):
        found = summary("exact-global", numbers, **{**NUMBERS, **keys})
        assert set(column(found, "se")) == {None} and found["errors"].startswith("none: ")


def test_a_coefficient_that_the_data_do_not_tell_has_no_error(tmp_path: Path) -> None:
    x = DATA.x.copy()
    x[:, 1] = 2 * x[:, 0]
    file = written(tmp_path, DATA._replace(x=x), DATA.y)
    found = summary("exact-global", file, **NUMBERS)
    errors = column(found, "se")
    assert errors[0] is None and errors[1] is None and errors[2] > 0
    found = summary("exact-cluster", file, **NUMBERS)
    assert all(one["se"] is None for one in found["clusters"].values())
    found = summary("mixed-model", file, **NUMBERS)
    for one in [*found["clusters"].values(), *found["users"].values()]:
        assert one["se"]["x1"] is None and one["se"]["intercept"] > 0


def test_a_model_that_is_too_wide_for_a_summary_says_so(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (inference, mixed_model):
        monkeypatch.setattr(module, "MOST_COEFFICIENTS", 2)
    keys = {
        "data-file": str(numbers),
        "dataset": "npz",
        "model": "linear",
        "strategy": "exact-global",
    }
    config = Config.parse({**keys, "loss": "squared", "labels": "numbers"})
    result = strategy_class("exact-global")(config).start(LocalGrid(app, 1)).json()[0]
    assert "estimates" not in result
    assert result["findings"][-1]["rows"][0][1].startswith("no summary of more than 2")


def test_nothing_is_asked_if_it_is_not_wanted(numbers: Path) -> None:
    found = summary("mixed-model", numbers, mixed_summary="federation", **NUMBERS)
    assert found["users"] == {} and found["coefficients"]
    with pytest.raises(KeyError):
        summary("mixed-model", numbers, mixed_summary="none", **NUMBERS)


def test_estimated_variances_need_no_residuals_of_users(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given strengths do: their sigma^2 is of what is left."""

    def nobody(self: MixedModelClient, got: Got) -> Sent:
        raise AssertionError("asked")

    monkeypatch.setattr(MixedModelClient, "summary", nobody)
    found = summary("mixed-model", numbers, mixed_summary="federation", **NUMBERS)
    assert all(one["se"] for one in found["coefficients"])
    own = {**NUMBERS, "known_gamma": 1, "known_lambda": 1}
    found = summary("mixed-model", numbers, mixed_summary="federation", **own)
    assert not any(one["se"] for one in found["coefficients"])


def test_a_table_of_very_many_users_is_left_to_files(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "MOST_ESTIMATES", 48 * 3 - 1)
    found = summary("mixed-model", numbers, **NUMBERS)
    assert found["users"] == {} and found["coefficients"]
    assert found["rows"]["too many for a table"].startswith("of 48 users in coefficients.csv")


def raw_tree() -> Tree:
    """The users' own sums in the table's units."""
    a, b, yy, counts = DATA.sums()
    return Tree(Sums.of(a, b, yy), levels_of(DATA.own, 8), counts * 1.0)


@pytest.mark.parametrize("scale", ["none", "federated"])
def test_variances_have_errors_and_intervals_in_the_tables_units(numbers: Path, scale: str) -> None:
    found = summary("mixed-model", numbers, scale=scale, **NUMBERS)
    tree, last = raw_tree(), np.array([0.0, 0.0, 1.0])
    shapes = equal_shapes(tree, ONE, np.array([2]))
    fit = Scoring(tree, shapes).fitted()
    errors = Errors(tree, shapes, fit.x, fit.found.middle.sigma2)
    ends = Intervals(tree, shapes, fit.x)
    wanted = [
        (errors.noise(), ends.noise()),
        *((errors.variance(level, last), ends.variance(level, last)) for level in (0, 1)),
    ]
    for one, (se, interval) in zip(found["variances"], wanted, strict=True):
        assert interval is not None
        assert one["se"] == pytest.approx(se, rel=1e-3)
        assert [one["low"], one["high"]] == pytest.approx([interval.low, interval.high], rel=1e-3)
    assert "95%" in found["rows"]["between users (s^2)"] and "profile" in found["intervals"]


def test_covariances_of_any_shape_have_intervals_of_correlations(any_shape: Any) -> None:
    found = any_shape
    pairs = [(one["name"], one["other"]) for one in found["correlations"]]
    assert pairs == [("x0", "x1"), ("x0", "intercept"), ("x1", "intercept")]
    assert "correlation with x1" in found["rows"]["users: x0"]
    assert any(one["low"] is not None for one in found["correlations"])
    for one in found["correlations"]:
        if one["low"] is not None:
            assert -1 <= one["low"] < one["estimate"] < one["high"] <= 1
    levels = {one["level"]: one for one in found["variances"]}
    assert levels["user: intercept"]["low"] < levels["user: intercept"]["variance"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"loss": "squared", "labels": "numbers", "mixed_intervals": "never"}, "never"),
        ({"loss": "squared", "labels": "numbers", "mixed_variances": "summed"}, "several users"),
        ({"loss": "logistic", "mixed_likelihood": "quasi"}, "approximated at one set of variances"),
    ],
)
def test_where_there_are_no_intervals_it_is_said(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    y = DATA.y if keys["loss"] == "squared" else (DATA.y > np.median(DATA.y)).astype(np.int64)
    file = written(tmp_path, DATA, y)
    found = summary("mixed-model", file, mixed_random="intercept", **keys)
    assert told in found["intervals"]
    assert all(one["high"] is None and one["se"] is None for one in found["variances"])


def test_intervals_that_take_long_are_left_out(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_fit, "LONG_WORK", 100)
    found = summary("mixed-model", numbers, **NUMBERS)
    assert "mixed-intervals=always" in found["rows"]["intervals"]


def test_statistics_are_a_table_and_in_the_report(any_shape: Any) -> None:
    found = any_shape
    row = {"strategy": "mixed-model", "per_user": {}, "estimates": found}
    lines = list(statistics(row))
    assert [line[1] for line in lines].count("correlation") == 3
    first = dict(zip(("strategy", "part", "name", *STATISTICS), lines[0], strict=True))
    assert first["name"] == "x0" and first["low"] < first["estimate"] < first["high"]
    page = estimates.tables("mixed-model", found)
    assert "std. error" in page and "with intercept" in page and "profile" in page


def test_new_users_of_random_intercepts_keep_the_slopes(numbers: Path) -> None:
    own = {**NUMBERS, "new_users": 0.3, "adapt_samples": "3"}
    assert summary("mixed-model", numbers, **own)["coefficients"]


def test_random_intercepts_need_an_intercept(numbers: Path) -> None:
    with pytest.raises(ConfigError, match="intercept=false"):
        summary("mixed-model", numbers, intercept=False, **NUMBERS)
    with pytest.raises(ConfigError, match=r"known-gamma=0: .*above 0"):
        summary("mixed-model", numbers, known_gamma=0, **NUMBERS)


def test_units_are_those_of_the_table() -> None:
    """The same least squares from standardised numbers, brought back."""
    prepared = Preparation(
        (Column("ses"), Column("age")), Label("score", mean=3.0, scale=2.0), scaling="federated",
        shift=(1.0, -2.0), scale=(0.5, 3.0), numbers=True,
    )  # fmt: skip
    matrix, start = prepared.linear()
    units = Units([*prepared.features, "intercept"], matrix, start, 2.0)
    raw = DATA.x[:, :2]
    z = np.column_stack([(raw - prepared.shift) * prepared.scale, np.ones(len(raw))])
    there, here = sm.OLS((DATA.y - 3) / 2, z).fit(), sm.OLS(DATA.y, DATA.x).fit()
    assert units.estimate(there.params) == pytest.approx(here.params)
    assert units.errors(there.cov_params()) == pytest.approx(here.bse)


def test_text_of_a_coefficient() -> None:
    assert Coefficient("a", 2.0, 1.0).text() == "2 (se 1, z 2.00, p = .046)"
    assert Coefficient("a", 9.0, 1.0).text() == "9 (se 1, z 9.00, p < .001)"
    assert Coefficient("a", 1.0).text() == "1"


# Nothing that comes is believed, and devices send no user's numbers.


def test_impossible_summaries_are_refused() -> None:
    good = {"square": np.array(1.0), "rank": np.array(2.0), "se": np.ones((2, 3))}
    good |= {"known": np.array([0.0, 1.0]), "shrinkage": np.array([0.0, 1.0])}
    assert summary_fault(good, 6) == ""
    assert "rank" in summary_fault(good, 1)
    for name in good:
        assert "cannot be" in summary_fault({**good, name: good[name] - 3}, 6)
    for name in ("known", "shrinkage"):
        assert "cannot be" in summary_fault({**good, name: good[name] + 0.5}, 6)


def test_a_device_does_not_know_the_question_for_each_user() -> None:
    assert "each" not in MixedModelClient.takes.options


def test_a_number_has_the_digits_that_tell_it_from_others() -> None:
    """Intercepts of a column such as a time in seconds are all about 1e9."""
    assert number_text(1_000_000_003.2, 1.5) == "1000000003.2"
    assert number_text(-0.123456, 0.05) == "-0.1235"
    assert number_text(0.0, 0.0) == "0"
    prepared = Preparation(
        tuple(Column(name) for name in ("year", "age", "same")), Label(), "refuse", "federated",
        (2000.0, 40.0, 7e3), (0.1, 0.1, 1.0), True,
    )  # fmt: skip
    assert units.far(prepared) == "intercepts are where year is 0, far from the data"
