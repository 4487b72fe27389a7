"""What a pandas frame may hold: gaps in any column, categories, an index; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corsage import fit, simulate
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.given.reading import Given, read

pandas = pytest.importorskip("pandas")
SITES = ["ward 1", "ward 2", "north"] * 4
RNG = np.random.default_rng(0)


def frame(**columns: Any) -> Any:
    """Twelve rows of three sites."""
    return pandas.DataFrame(
        {"site": SITES, "age": RNG.normal(50, 9, 12), "y": RNG.random(12), **columns}
    )


def table(data: Any, **more: Any) -> Any:
    return read(Given(data, **{"user": "site", "label": "y", **more}))


def with_gap(values: Any, dtype: str) -> Any:
    cells = pandas.Series(values, dtype=dtype)
    cells[3] = None
    return cells


@pytest.mark.parametrize("dtype", ["str", "object", "string", "category"])
@pytest.mark.parametrize("what", ["user", "cluster"])
def test_an_id_that_is_missing_is_none(dtype: str, what: str) -> None:
    """pandas' texts become numpy's, which were cut to one letter where one is missing."""
    data = frame(region=with_gap(["north", "south", "south"] * 4, dtype))
    if what == "user":
        with pytest.raises(DataError, match="sample 3 has an empty user id"):
            table(data, user="region")
    else:
        regions = ["north", "south", "south"] * 4
        regions[3] = ""
        assert table(data, cluster="region").clusters.tolist() == regions


@pytest.mark.parametrize("dtype", ["int64", "float64", "Int64", "str"])
def test_numbers_are_ids_without_a_point(dtype: str) -> None:
    data = frame(ward=pandas.Series([1, 2, 3] * 4).astype(dtype))
    assert set(table(data, user="ward").users) == {"1", "2", "3"}
    if dtype in ("float64", "Int64"):
        with pytest.raises(DataError, match="sample 3 has an empty user id"):
            table(data.assign(ward=with_gap(data["ward"], dtype)), user="ward")
    assert set(table(data[["age", "y"]], user=list(data["ward"])).users) == {"1", "2", "3"}


def test_columns_are_chosen_as_those_of_a_file() -> None:
    data = frame(name=[f"p{i}" for i in range(12)], zip=[10115, 20095, 80331] * 4)
    found = table(data, drop=("name",), categories=("zip",)).facts
    assert found.names == ("age", "zip") and found.columns[1].levels == ("10115", "20095", "80331")
    typed = data.assign(zip=data["zip"].astype("category"))
    assert table(typed, features=("zip",)).facts.columns[0].levels == ("10115", "20095", "80331")
    with pytest.raises(DataError, match="drop-columns: no column nam; there are site"):
        table(data, drop=("nam",))
    with pytest.raises(ConfigError, match="has no feature ag; set some of age"):
        table(data, features=("ag",))
    with pytest.raises(DataError, match="feature-columns=none if that is meant"):
        table(data[["site", "y"]])
    with pytest.raises(DataError, match="must be different columns"):
        table(data, label="site")
    with pytest.raises(DataError, match="'age' is there twice"):
        table(pandas.concat([data, data[["age"]]], axis=1))
    with pytest.raises(DataError, match=r"row 0, column 'zip': .* neither a number nor a word"):
        table(data.assign(zip=[[1, 2]] * 12))


def test_words_are_no_numbers_to_predict() -> None:
    with pytest.raises(DataError, match="row 0, column 'y': 'no' is not a number, and labels="):
        table(frame(y=["no", "yes"] * 6), labels="numbers")


@pytest.mark.parametrize("labels", [["no", "yes"] * 6, [0.5, 1.5] * 6])
def test_rows_without_a_label_are_left_out_and_counted(labels: Any) -> None:
    data = frame(y=pandas.Series(labels))
    data.loc[3, "y"] = None
    with pytest.raises(DataError, match="row 3, column 'y': its label is missing"):
        table(data)
    found = table(data, missing="mean")
    assert len(found.y) == 11 and found.users.tolist() == SITES[:3] + SITES[4:]
    assert found.notes == ("data: 1 rows without a label are left out",)
    ids = np.array(SITES)
    assert table(data.drop(columns="site"), user=ids, missing="flag").users.tolist() == [
        *SITES[:3], *SITES[4:]
    ]  # fmt: skip


def test_an_index_and_frames_of_others_are_columns_too() -> None:
    data = frame()
    np.testing.assert_array_equal(table(data.set_index("site")).x, table(data).x)
    arrow = pytest.importorskip("pyarrow").Table.from_pandas(data)
    assert table(arrow).users.tolist() == SITES


def test_what_was_noticed_is_said_once_in_a_run(capfd: pytest.CaptureFixture[str]) -> None:
    data = pandas.concat([frame(), frame()], ignore_index=True)
    data["nr"] = np.arange(24)
    names, chosen = "exact-global,exact-local", [name for name in data if name not in ("site", "y")]
    keys = {"feature_columns": chosen, "model": "linear"}
    fit(data, user="site", label="y", strategy=names, **keys)
    assert capfd.readouterr().err.count("data: the column 'nr' seems to number the rows") == 1


def test_a_model_of_the_intercept_alone_predicts_as_many_rows_as_it_is_given() -> None:
    data = frame()
    keys = {"feature_columns": "none", "model": "linear", "progress": False}
    found = simulate("exact-local", data, user="site", label="y", **keys)
    model = found["exact-local"].user("north")
    assert list(model.coefficients) == ["intercept"] and len(model.predict(data)) == 12
    assert found["exact-local"].evaluate() == found["exact-local"].per_user


def test_text_is_text_though_it_may_be_digits() -> None:
    """A level is a level; numbers that came as text are asked for, not guessed."""
    rng = np.random.default_rng(0)
    data = pandas.DataFrame(
        {"site": np.repeat(SITES[:3], 40), "kind": rng.choice(list("1234"), 120)}
    )
    data["y"] = data["kind"].map({"1": 3.0, "2": -4.0, "3": 9.0, "4": 0.0}) + rng.normal(size=120)
    as_text = fit(data, user="site", label="y", strategy="exact-global", progress=False)
    named = data.assign(kind=data["kind"].astype(int))
    as_named = fit(
        named,
        user="site",
        label="y",
        strategy="exact-global",
        category_columns="kind",
        progress=False,
    )
    mean = as_text["exact-global"].score.mean
    assert mean == as_named["exact-global"].score.mean < 1.3
    assert table(data.assign(kind=[1, None, 3] * 40).astype({"kind": object}), missing="mean",
                 label="y").facts.columns[0].kind == "number"  # fmt: skip
    with pytest.raises(DataError, match="'a' has 120 different numbers that are text; make"):
        table(data.assign(a=[f"{i}.5" for i in range(120)]), label="y")
    many = data.assign(movieId=rng.permutation(120) // 2)
    notes = table(many, label="y").notes
    assert any("'movieId' is taken as a number, though it seems to name" in note for note in notes)


def test_labels_that_are_text_are_classes_unless_numbers_are_asked_for() -> None:
    data = frame().assign(y=list("0120" * 3))
    assert table(data, label="y").facts.label.levels == ("0", "1", "2")
    assert table(data, label="y", labels="numbers").y.tolist() == [0.0, 1.0, 2.0, 0.0] * 3
