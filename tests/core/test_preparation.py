"""What columns become: agreed on out of what nodes say, and refused where it cannot be meant."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from corsage.core.errors import DataError
from corsage.core.tables.agreement import agreed, misfit
from corsage.core.tables.column_facts import (
    CATEGORY,
    NUMBER,
    BadColumns,
    ColumnFacts,
    Moments,
    TableFacts,
    merged,
    read_facts,
)
from corsage.core.tables.preparation import Preparation, of_numbers, standard_of


def facts(*columns: ColumnFacts, label: ColumnFacts | None = None) -> TableFacts:
    return TableFacts(columns, label or ColumnFacts("y", CATEGORY, ("no", "yes")))


AGE = ColumnFacts("age", moments=Moments(4, 3.0, 2.0), gaps=True)
SEX = ColumnFacts("sex", CATEGORY, ("f", "m"))


def agreement(*said: TableFacts, **more: Any) -> Preparation:
    keys: dict[str, Any] = {"missing": "mean", "scaling": "federated", "numbers": False}
    return agreed(list(said), **{**keys, **more})


def test_it_is_the_same_whoever_counted_what() -> None:
    values = np.random.default_rng(0).normal(1e6, 3.0, 1000)
    whole = of_numbers(values)
    for cuts in ([500], [1, 2, 3], [10, 700, 900]):
        found = merged([of_numbers(part) for part in np.split(values, cuts)])
        assert found.count == 1000
        assert (found.mean, found.std) == pytest.approx((whole.mean, whole.std), rel=1e-9)
    assert merged([Moments(), of_numbers(values)]).count == 1000


def test_huge_and_constant_numbers() -> None:
    huge = of_numbers(np.array([1e300, -1e300, 1e300]))
    assert np.isfinite(merged([huge, huge]).std) and merged([huge, huge]).std > 1e299
    assert standard_of(of_numbers(np.full(7, 0.1))) == (pytest.approx(0.1), 1.0)
    assert standard_of(Moments()) == (0.0, 1.0)


@pytest.mark.parametrize(("size", "unit"), [(1e200, "larger"), (1e-200, "smaller")])
def test_numbers_without_squares_want_another_unit(size: float, unit: str) -> None:
    """Scaled they would do, and their coefficients' errors would not."""
    column = ColumnFacts("age", moments=Moments(4, 0.0, size))
    with pytest.raises(DataError, match=f"column 'age': .* write it in a {unit} unit"):
        agreement(facts(column))


def test_categories_are_an_input_a_level_and_strangers_are_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = replace(SEX, levels=("f", "x"))
    found = agreement(facts(AGE, SEX), facts(AGE, other))
    assert found.features == ("age", "sex=f", "sex=m", "sex=x")
    x = found.inputs({"sex": ["m", "q", "x"], "age": [3, None, "5"], "more": [1, 2, 3]})
    assert x.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    assert "'q' was not there" in caplog.text
    linear = agreement(facts(AGE, SEX), reference=True)
    assert linear.features == ("age", "sex=m") and linear.columns[1].reference == "f"


def test_missing_words_are_a_level_and_missing_numbers_may_have_an_input() -> None:
    flag = agreement(facts(AGE, replace(SEX, gaps=True)), missing="flag")
    assert flag.features == ("age", "age=(missing)", "sex=f", "sex=m", "sex=(missing)")
    assert flag.inputs([[None, "NA"]]).tolist() == [[0, 1, 0, 0, 1]]
    with pytest.raises(DataError, match=r"column 'age': row 0 is missing; .*missing=mean"):
        agreement(facts(AGE), missing="refuse").inputs([[None]])


def test_labels_have_their_names_and_their_unit() -> None:
    found = agreement(facts(AGE), facts(AGE, label=ColumnFacts("y", CATEGORY, ("maybe",))))
    assert found.classes == ("maybe", "no", "yes")
    assert found.labels(["yes", "maybe"]).tolist() == [2, 0]
    with pytest.raises(DataError, match="'perhaps' is no class; there are: maybe, no, yes"):
        found.labels(["perhaps"])
    label = ColumnFacts("y", NUMBER, moments=Moments(4, 10.0, 5.0))
    numbers = agreement(facts(AGE, label=label), numbers=True)
    assert numbers.labels([20]).tolist() == [2.0] and numbers.original(np.array([2.0])) == [20.0]


def test_a_model_without_intercept_keeps_zero() -> None:
    label = ColumnFacts("y", NUMBER, moments=Moments(4, 10.0, 5.0))
    found = agreement(facts(AGE, label=label), numbers=True, centred=False)
    assert found.shift == (0.0,) and found.label.mean == 0.0


def test_coefficients_in_the_original_units() -> None:
    label = ColumnFacts("y", NUMBER, moments=Moments(4, 10.0, 5.0))
    found = agreement(facts(AGE, label=label), numbers=True)
    matrix, start = found.linear()
    theta = np.array([0.7, -0.2])
    x = np.array([[1.0], [4.0]])
    inputs = np.append(found.inputs(x), np.ones((2, 1)), axis=1)
    own = matrix @ theta + start
    np.testing.assert_allclose(found.original(inputs @ theta), x @ own[:1] + own[1])


def test_it_survives_json() -> None:
    found = agreement(facts(AGE, replace(SEX, gaps=True)), missing="flag")
    assert Preparation.read(json.loads(json.dumps(found.json()))) == found


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (facts(SEX), "lacks age"),
        (facts(AGE, SEX, ColumnFacts("bmi")), "has bmi besides"),
        (facts(replace(AGE, kind=CATEGORY, levels=("old",)), SEX), "column 'age' has words"),
        (facts(AGE, SEX, label=ColumnFacts("y", "classes")), "labels are numbered"),
        (facts(AGE, SEX, label=ColumnFacts("y", CATEGORY, ("hm",))), "class 'hm' is not among"),
        (facts(AGE, replace(SEX, kind="empty", levels=())), ""),
    ],
)
def test_a_table_of_another_kind_is_named(said: TableFacts, why: str) -> None:
    found = misfit(agreement(facts(AGE, SEX)), said)
    assert why in found and bool(found) == bool(why)


def hostile(**changes: Any) -> str:
    names = ("name", "kind", "levels", "gaps", "count", "mean", "std")
    good: dict[str, Any] = dict(zip(names, ["a", NUMBER, [], False, 3, 1.0, 2.0], strict=True))
    label = ["y", "classes", [], False, 0, 0.0, 0.0]
    return json.dumps([label, list({**good, **changes}.values())])


@pytest.mark.parametrize(
    "words",
    [
        None, 7, "", "[]", "{}", "[[1]]", "[" * 100_000, "null",
        *(hostile(**change) for change in [
            {"name": ""}, {"name": "x" * 201}, {"name": "a\x1b[31m"}, {"name": 7},
            {"kind": "date"}, {"kind": []}, {"levels": ["x"]}, {"levels": "xy"},
            {"kind": CATEGORY, "levels": ["x", "x"]}, {"kind": CATEGORY, "levels": [""]},
            {"kind": CATEGORY, "levels": [str(i) for i in range(1001)]}, {"gaps": 1},
            {"count": 11}, {"count": -1}, {"count": True}, {"count": 1.5}, {"std": -1.0},
            {"mean": float("nan")}, {"mean": float("inf")}, {"mean": 1e301}, {"mean": "1"},
            {"mean": 10**400}, {"count": 0},
        ]),
    ],
)  # fmt: skip
def test_no_word_of_a_node_is_believed(words: Any) -> None:
    assert read_facts(hostile(), 10).columns[0].moments.mean == 1.0
    with pytest.raises(BadColumns):
        read_facts(words, 10)


@pytest.mark.parametrize(
    "changes",
    [
        {"shift": []}, {"scale": [float("inf")]}, {"missing": "zero"}, {"scaling": "x"},
        {"numbers": 1}, {"columns": 3}, {"columns": [{}]}, {"label": {}}, {"more": 1},
        {"label": {"name": "y", "classes": [], "mean": 0.0, "scale": 0.0}},
    ],
)  # fmt: skip
def test_no_word_of_a_server_is_believed(changes: dict[str, Any]) -> None:
    good = json.loads(json.dumps(agreement(facts(AGE)).json()))
    assert Preparation.read(good)
    with pytest.raises(BadColumns):
        Preparation.read({**good, **changes})
