"""Coefficients that differ by their columns' names, beside statsmodels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import statsmodels.api as sm

import corsage
from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ConfigError

KEYS: dict[str, Any] = {
    "model": "linear", "mixed_grouping": "all", "mixed_variances": "full", "progress": False,
    "mixed_neighbours": "never", "mixed_intervals": "never", "labels": "numbers",
    "user_column": "user",
}  # fmt: skip
NAMES = ["x0", "x1", "x2", "x3", "intercept"]


class Table(NamedTuple):
    """Days, age, two levels of a word, and ones (n, 5); all rows are for training."""

    x: Floats
    y: Floats
    user: Ints

    @classmethod
    def drawn(cls) -> Table:
        """Features are far from 0, where lines without random intercepts meet."""
        rng, n, m = np.random.default_rng(4), 60, 14
        user, kind = np.repeat(np.arange(n), m), rng.integers(0, 3, n * m)
        days, age = rng.integers(3, 13, n * m), 40 + 10 * rng.standard_normal(n * m)
        x = np.column_stack([days, age, kind == 1, kind == 2, np.ones(n * m)]).astype(np.float64)
        root = np.array([[0.4, 0, 0, 0.3], [0, 1.0, 0.6, 0], [0, 0, 0.7, 0], [0, 0, 0, 2.0]])
        own = np.insert(rng.standard_normal((n, 4)) @ root, 1, 0.0, axis=1)
        theta = np.array([1.5, 0.2, 0.0, 0.0, 5.0]) + own
        return cls(x, (x * theta[user]).sum(1) + rng.standard_normal(n * m), user)

    def npz(self, folder: Path) -> Path:
        """With one row of each user once more for testing."""
        again = np.unique(self.user, return_index=True)[1]
        rows = np.concatenate([np.arange(len(self.y)), again])
        test = np.arange(len(rows)) >= len(self.y)
        path = folder / "table.npz"
        np.savez(path, x=self.x[rows, :-1], y=self.y[rows], user=self.user[rows], test=test)
        return path

    def csv(self, folder: Path) -> Path:
        """With the word as it is."""
        words = np.array(["a", "b", "c"])[(self.x[:, 2:4] @ [1, 2]).astype(int)]
        rows = zip(self.x[:, 0], self.x[:, 1], words, self.user, self.y, strict=True)
        path = folder / "table.csv"
        lines = ["days,age,kind,user,y", *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
        return path


DATA = Table.drawn()


def estimates(file: Path, **keys: Any) -> dict[str, Any]:
    """What a run finds."""
    own = {"dataset": file.suffix[1:], "data_file": str(file), **KEYS, **keys}
    own |= {"label_column": "y"} if file.suffix == ".csv" else {}
    found = corsage.simulate("mixed-model", **own)["mixed-model"].json()
    rows = dict(row for finding in found["findings"] for row in finding["rows"])
    return {**found["estimates"], "rows": rows}


@pytest.mark.parametrize(
    ("named", "which"),
    [
        ("intercept,x0", [0, 4]),
        (["x0"], [0]),
        ("x0, x2", [0, 2]),
    ],
)
def test_named_columns_are_those_of_statsmodels(
    named: Any, which: list[int], tmp_path: Path
) -> None:
    """lme4's (1 + days | user) and (0 + days | user), whatever the columns are centred on."""
    found = estimates(DATA.npz(tmp_path), mixed_random=named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sm.MixedLM(DATA.y, DATA.x, DATA.user, DATA.x[:, which])
        wanted = model.fit(reml=True, gtol=1e-9)
    assert found["varying"] == [NAMES[n] for n in which]
    fixed = [one["estimate"] for one in found["coefficients"]]
    assert fixed == pytest.approx(wanted.fe_params, rel=2e-3, abs=2e-3)
    variances = {one["level"]: one["variance"] for one in found["variances"]}
    for n, value in zip(which, np.diag(wanted.cov_re), strict=True):
        name = f"user: {NAMES[n]}" if len(which) > 1 else "user"
        assert variances[name] == pytest.approx(value, rel=5e-3, abs=1e-3)
    assert variances["residual"] == pytest.approx(wanted.scale, rel=2e-3)
    loglik = float(found["rows"]["log likelihood"].split()[0])
    assert loglik == pytest.approx(wanted.llf, abs=5e-3)


def test_a_word_is_all_its_levels(tmp_path: Path) -> None:
    found = estimates(DATA.csv(tmp_path), mixed_random="kind,intercept")
    assert found["varying"] == ["kind=b", "kind=c", "intercept"]
    levels = {one["level"] for one in found["variances"]}
    assert levels == {"residual", "user", "user: kind=b", "user: kind=c", "user: intercept"}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"mixed_random": "dayz"}, "mixed-random=dayz: no column of that name. Did you mean days?"),
        ({"mixed_random": "all,days"}, "all stands alone"),
        ({"mixed_random": ""}, "mixed-random: name all, intercept, or columns"),
        ({"mixed_random": "days", "mixed_variances": "summed"}, "asked for"),
    ],
)
def test_names_that_cannot_be(keys: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mixed-random") as error:
        estimates(DATA.csv(tmp_path), **keys)
    assert why in str(error.value)
