"""Tables of one's own, from the file to the result: words, gaps, units, delimiters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import simulate
from corsage.core.errors import DataError
from corsage.datasets.columns import csv_cells as reading
from corsage.datasets.data_set import load_table
from corsage.datasets.shared_keys import CsvKeys
from corsage.strategies.rounds.agreed import check_data
from tests.support.federations import federate

RNG = np.random.default_rng(0)
N = 160
SITE = np.arange(N) % 8
AGE = RNG.normal(50, 12, N)
DOSE = np.exp(RNG.normal(3, 1, N))
SEX = RNG.choice(["female", "male"], N)
WARD = RNG.choice(["a", "b", "c"], N)
SCORE = 100 + 3 * AGE - 0.5 * DOSE + 20 * (SEX == "male") + 10 * (SITE % 3) + RNG.normal(0, 9, N)


def written(path: Path, times: float = 1.0, unit: float = 1.0, gaps: bool = False) -> Path:
    """The table, with the dose so many times as large, and the score in another unit."""
    lines = ["site,age,dose,sex,ward,score"]
    for i in range(N):
        age = "" if gaps and i % 17 == 3 else repr(float(AGE[i]))
        sex = "NA" if gaps and i % 23 == 5 else SEX[i]
        row = (SITE[i], age, repr(float(DOSE[i]) * times), sex, WARD[i])
        lines.append(",".join(map(str, (*row, repr(float(SCORE[i]) * unit)))))
    path.write_text("\n".join(lines) + "\n")
    return path


KEYS: dict[str, Any] = {
    "dataset": "csv", "user_column": "site", "label_column": "score", "labels": "numbers",
    "num_rounds": 3, "fraction_train": 1.0, "partition": "natural", "num_users": 0,
}  # fmt: skip


def rmse(path: Path, name: str, nodes: int = 1, **more: Any) -> float:
    """The error of a method on the table."""
    keys = {**KEYS, "data_file": str(path), "cache_dir": str(path.parent / "cache"), **more}
    found = simulate(name, num_nodes=nodes, progress=False, **keys)
    return float(found[name].score.mean)


LINEAR = {"model": "linear"}
TIES = {**LINEAR, "known_missing": "all", "mixed_intervals": "never"}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fedavg", {}), ("exact-local", {**LINEAR, "test_fraction": 0.1, "ridge": 0.1}),
        ("exact-global", LINEAR), ("mixed-model", {**TIES, "num_rounds": 8}),
        ("fedavg", {"scale": "user"}),
    ],
)  # fmt: skip
def test_units_change_nothing_but_the_unit(tmp_path: Path, name: str, more: Any) -> None:
    one = rmse(written(tmp_path / "a.csv"), name, **more)
    dose = rmse(written(tmp_path / "b.csv", times=100.0), name, **more)
    score = rmse(written(tmp_path / "c.csv", unit=1000.0), name, **more)
    assert dose == pytest.approx(one, rel=1e-6)
    assert score == pytest.approx(1000 * one, rel=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_least_squares_are_what_they_are_without_scaling(tmp_path: Path, intercept: bool) -> None:
    more = {**LINEAR, "intercept": intercept, "drop_columns": ("sex", "ward")}
    found = [
        rmse(written(tmp_path / "a.csv"), "exact-global", **more, scale=scale)
        for scale in ("federated", "none")
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-8)


def test_the_result_does_not_depend_on_who_hosts_whom(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", gaps=True)
    found = {rmse(path, "fedavg", nodes, missing="flag") for nodes in (1, 3, 8)}
    assert max(found) == pytest.approx(min(found), rel=1e-6)
    assert max(found) < 200  # that of the mean alone is far beyond


def test_gaps_are_refused_unless_it_is_said_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", gaps=True)
    with pytest.raises(DataError, match=r"line 5, column 'age': '' is empty or missing; .*flag"):
        rmse(path, "fedavg")


def table(folder: Path, text: str, **keys: Any) -> Any:
    path = folder / "t.csv"
    path.write_bytes(text.encode())
    return load_table(CsvKeys(dataset="csv", data_file=str(path), **keys))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a;user;label\n1,5;x;0\n2,25;y;1\n", "cells between semicolons, decimal commas"),
        ("a\tuser\tlabel\n1.5\tx\t0\n2.25\ty\t1\n", "cells between tabs"),
        ("a|user|label\n1.5|x|0\n2.25|y|1\n", "cells between bars"),
        ('a,user,label\n"1,5",x,0\n"2,25",y,1\n', "decimal commas"),
        ("a,user,label\n1.5,x,0\n2.25,y,1\n", ""),
    ],
)
def test_how_a_file_is_written_is_noticed(tmp_path: Path, text: str, said: str) -> None:
    found = table(tmp_path, text)
    assert found.x.tolist() == [[1.5], [2.25]] and found.y.tolist() == [0, 1]
    assert found.notes == ((f"t.csv: {said}",) if said else ())


def test_words_are_categories_classes_and_truths(tmp_path: Path) -> None:
    text = "t,w,user,label\nTRUE,b,x,yes\nfalse,,x,no\nTrue,a,y,yes\n"
    found = table(tmp_path, text, missing="mean")
    assert [c.levels for c in found.facts.columns] == [("false", "true"), ("a", "b")]
    assert found.y.tolist() == [1, 0, 1] and found.facts.label.levels == ("no", "yes")
    np.testing.assert_array_equal(found.x, [[1, 1], [0, np.nan], [1, 0]])


def test_rows_without_a_label_are_left_out_and_counted(tmp_path: Path) -> None:
    text = "a,user,label\n1,x,0\n2,x,\n3,y,1\n"
    found = table(tmp_path, text, missing="mean")
    assert found.y.tolist() == [0, 1] and "1 rows without a label" in found.notes[0]
    with pytest.raises(DataError, match="line 3, column 'label': '' is empty"):
        table(tmp_path, text)


def test_a_word_that_comes_late_is_read_all_the_same(tmp_path: Path) -> None:
    numbers = "".join(f"{i % 2},{i},u,{i % 2}\n" for i in range(5000))
    words = "".join(f"w{i % 3},1,u,0\n" for i in range(9000))
    found = table(tmp_path, "c,n,user,label\n" + numbers + words)
    assert found.facts.columns[0].levels == ("0", "1", "w0", "w1", "w2")
    assert len(found.x) == 14000
    with pytest.raises(DataError, match="line 5002, column 'c': 'w0' is not a number"):
        table(tmp_path, "c,n,user,label\n" + numbers + words[:50].rsplit("\n", 1)[0])


def test_numbers_that_count_the_rows_are_noted_and_texts_refused(tmp_path: Path) -> None:
    lines = "".join(f"{i},p{i},{i % 7},u,0\n" for i in range(200))
    text = "nr,name,a,user,label\n" + lines
    assert "'nr' seems to number the rows" in table(tmp_path, text, drop_columns=("name",)).notes[0]
    with pytest.raises(DataError, match="'name' has 200 different words in 200 rows"):
        table(tmp_path, text)
    codes = table(tmp_path, text, drop_columns=("name", "nr"), category_columns=("a",))
    assert codes.facts.columns[0].levels == tuple("0123456")
    with pytest.raises(DataError, match="drop-columns: no column nam in the header"):
        table(tmp_path, text, drop_columns=("nam",))


def test_both_readers_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.csv")
    keys = CsvKeys(**{k: v for k, v in KEYS.items() if k in ("dataset", "labels")},
                   data_file=str(path), user_column="site", label_column="score")  # fmt: skip
    quick = load_table(keys)
    monkeypatch.setattr(reading, "quickly", lambda *_: None)
    slow = load_table(keys)
    np.testing.assert_array_equal(quick.x, slow.x)
    np.testing.assert_array_equal(quick.y, slow.y)
    assert quick.facts == slow.facts and quick.users.tolist() == slow.users.tolist()


def test_a_run_on_words_goes_on_with_what_was_agreed_on(tmp_path: Path) -> None:
    """One level more in the file is no part of the model that a resumed run has."""
    path = written(tmp_path / "a.csv")
    keys = {**KEYS, "data_file": str(path), "cache_dir": str(tmp_path / "cache")}
    first, _, _ = federate("fedavg", nodes=2, **keys)
    assert first.job.agreed.preparation.features[2:4] == ("sex=female", "sex=male")
    said = first.job.built.preparation
    more = tmp_path / "more.csv"
    more.write_text(path.read_text() + "0,50.0,20.0,other,a,200.0\n" * 3)
    again, _, _ = federate("fedavg", nodes=2, **{**keys, "data_file": str(more)})
    assert again.job.agreed.shape == (8,)
    again.job.built.preparation, again.job.built.shape = said, (7,)
    check_data(again.job)
    assert again.job.agreed.shape == (7,)


def test_frames_are_typed_as_files_are(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = written(tmp_path / "a.csv", gaps=True)
    frame = pandas.read_csv(path)
    more = {"num_rounds": 2, "fraction_train": 1.0, "missing": "flag", "progress": False}
    one = simulate("fedavg", frame, user="site", label="score", **more)
    other = simulate(
        "fedavg", **{**KEYS, **more}, data_file=str(path), cache_dir=str(tmp_path / "cache")
    )
    assert one["fedavg"].score.mean == pytest.approx(other["fedavg"].score.mean, rel=1e-6)


def test_what_a_spreadsheet_leaves_over_is_left_out(tmp_path: Path) -> None:
    """Row numbers without a name, columns and rows without anything."""
    text = ",a,user,label,,\n1,1,x,0,,\n,,,,,\n2,2,y,1,,\n,,,,,\n"
    found = table(tmp_path, text)
    assert found.facts.names == ("a",) and found.x.tolist() == [[1], [2]]
    assert found.clusters is None  # an empty key names no column
    assert [note[-35:] for note in found.notes] == [
        f"column {i} has no name and is left out" [-35:] for i in (1, 5, 6)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words", [["12%", "15%"], ["$5", "$6"], ["1 234", "1 235"], ["-3", "\u22123"], ["1.234,5", "2"],
              [f"{i} kg" for i in range(9)], ["12%", "unknown", "13%"]]
)  # fmt: skip
def test_numbers_with_more_than_their_digits_are_no_words(tmp_path: Path, words: Any) -> None:
    lines = "".join(f'"{word}",0.5,u,0\n' for word in words)
    with pytest.raises(DataError, match=r"line [23], column 'a': .* is not a number"):
        table(tmp_path, f"a,b,user,label\n{lines}")
    found = table(tmp_path, f"a,b,user,label\n{lines}", category_columns=("a",))
    assert len(found.facts.columns[0].levels) == len(words)


@pytest.mark.parametrize(
    "words", [["100m", "200m"], ["18-25", "26-35"], ["1a", "2b"], ["d1", "d2"], ["1st", "2nd"]]
)
def test_words_with_digits_are_words(tmp_path: Path, words: Any) -> None:
    text = "a,user,label\n" + "".join(f"{word},u,0\n" for word in words)
    assert table(tmp_path, text).facts.columns[0].levels == tuple(words)


def test_an_empty_column_is_named_and_has_no_flag(tmp_path: Path) -> None:
    text = "a,b,user,label\n" + "".join(f",{i},u{i % 2},{i % 2}\n" for i in range(20))
    with pytest.raises(
        DataError, match=r"empty or missing, as is all of the column \(drop-columns=a\)"
    ):
        table(tmp_path, text)
    path = tmp_path / "gaps.csv"
    path.write_text(text)
    more = {"data_file": str(path), "missing": "flag", "cache_dir": str(tmp_path / "cache")}
    found, _, _ = federate("fedavg", nodes=2, num_rounds=1, num_users=0, dataset="csv", **more)
    assert found.job.agreed.preparation.features == ("a", "b")


def test_classes_that_do_not_begin_with_0_are_said_and_can_be_words(tmp_path: Path) -> None:
    text = "a,user,label\n1,u,1\n2,u,2\n"
    (note,) = table(tmp_path, text).notes
    assert "no row has the class 0" in note and "category-columns=label" in note
    named = table(tmp_path, text, category_columns=("label",))
    assert named.facts.label.levels == ("1", "2") and named.y.tolist() == [0, 1]


def test_inputs_of_classes_keep_all_digits_when_users_scale_them(tmp_path: Path) -> None:
    def loss(x: Any, **more: Any) -> float:
        path, rows = tmp_path / f"{more['scale']}.csv", zip(SITE, *x.T, SCORE > 250, strict=True)
        lines = (
            "{},{!r},{!r},{}".format(s, float(a), float(b), "ny"[int(c)]) for s, a, b, c in rows
        )
        path.write_text("site,age,dose,high\n" + "\n".join(lines) + "\n")
        keys = {**KEYS, "labels": "classes", "label_column": "high", "cache_dir": str(tmp_path)}
        more |= {**LINEAR, "ridge": 0.1, "test_fraction": 0, "data_file": str(path)}
        found = simulate("exact-global", progress=False, **{**keys, **more})
        return float(found["exact-global"].json()["loss"]["mean"])

    x, of_sites = np.column_stack([AGE, DOSE]), [site == SITE for site in range(8)]
    means, stds = (
        np.array([what(x[own], 0) for own in of_sites])[SITE] for what in (np.mean, np.std)
    )
    assert loss(x, scale="user") == pytest.approx(loss((x - means) / stds, scale="none"), rel=1e-12)
