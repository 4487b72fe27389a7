"""Who is worse off than alone, or than with one model for all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.output.notes import notes, percent
from corsage.core.hurt import Hurt, Row, hurt, hurts
from corsage.core.measures import ACCURACY, RMSE
from tests.support.federations import federate

values = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1)


def table(**rows: dict[str, float]) -> dict[str, Row]:
    """Rows of accuracies, without errors."""
    return {
        name.replace("_", "+"): Row(name.replace("_", "+"), ACCURACY, own)
        for name, own in rows.items()
    }


def test_users_who_are_worse_off_are_named_the_most_hurt_first() -> None:
    rows = table(fedrep={"a": 0.9, "b": 0.2, "c": 0.6}, local={"a": 0.8, "b": 0.7, "c": 0.7})
    found = hurt(rows["fedrep"], rows)
    assert found == {"alone": Hurt("local", 2 / 3, ["b", "c"], 3)}
    assert hurt(rows["local"], rows) == {}


def test_of_numbers_the_higher_is_the_worse() -> None:
    rows = {n: Row(n, RMSE, {"a": v}) for n, v in {"fedavg": 2.0, "local": 1.0}.items()}
    assert hurt(rows["fedavg"], rows)["alone"].users == ["a"]
    assert hurt(rows["local"], rows)["together"].users == []


def test_a_tie_hurts_nobody() -> None:
    rows = table(fedrep={"a": 0.7, "b": 0.5}, local={"a": 0.7 + 1e-9, "b": 0.5 + 1e-4})
    assert hurt(rows["fedrep"], rows)["alone"].users == ["b"]


def test_errors_that_are_rounding_hurt_nobody() -> None:
    """Labels that a linear model fits without error: RMSE is 1e-14, where a guess has 20."""
    own = {"exact-local": 2e-14, "exact-global": 5e-14}
    results = [
        {"strategy": name, "measure": "rmse", "per_user": {"a": value}, "baseline": {"mean": 20.0}}
        for name, value in own.items()
    ]
    assert hurts(results)["exact-global"]["alone"].users == []
    results[1]["per_user"] = {"a": 1e-6}
    assert hurts(results)["exact-global"]["alone"].users == ["a"]


def test_exact_rows_stand_in_for_local_and_fedavg() -> None:
    rows = table(ditto={"a": 0.5})
    rows |= {n: Row(n, ACCURACY, {"a": 0.9}) for n in ("exact-local", "exact-global")}
    found = hurt(rows["ditto"], rows)
    assert {kind: one.than for kind, one in found.items()} == {
        "alone": "exact-local",
        "together": "exact-global",
    }
    rows["local"] = Row("local", ACCURACY, {"a": 0.1})
    assert hurt(rows["ditto"], rows)["alone"].than == "local"


def test_new_users_are_compared_with_new_users() -> None:
    rows = table(fedrep_new={"n": 0.5}, local={"a": 1.0}, local_new={"n": 0.6}, fedavg={"b": 1.0})
    assert {k: v.than for k, v in hurt(rows["fedrep+new"], rows).items()} == {"alone": "local+new"}


def test_a_user_that_only_one_row_judges_is_not_compared() -> None:
    rows = table(fedrep={"a": 0.1, "b": 0.1}, local={"a": 0.2, "z": 0.2})
    assert hurt(rows["fedrep"], rows)["alone"].compared == 1
    assert hurt(rows["fedrep"], table(fedrep={"a": 0.1}, local={"z": 0.9})) == {}


@given(own=values, other=values)
def test_nobody_is_hurt_both_ways(own: dict[str, float], other: dict[str, float]) -> None:
    rows = {"local": Row("local", ACCURACY, own), "fedavg": Row("fedavg", ACCURACY, other)}
    one = hurt(rows["fedavg"], rows).get("alone", Hurt("", 0.0))
    two = hurt(rows["local"], rows).get("together", Hurt("", 0.0))
    assert not set(one.users) & set(two.users)
    assert one.share + two.share <= 1 + 1e-12


@pytest.mark.parametrize(("n", "hurt_surely"), [(1, False), (5, False), (50, True)])
def test_few_test_samples_are_no_proof(n: int, hurt_surely: bool) -> None:
    """From 90% to 60% (of one: from right to wrong) may be chance, or not."""
    rows = {}
    for name, share in {"fedrep": 0.6, "local": 0.9}.items():
        counts = {"correct": np.array([round(share * n - 0.1)]), "num-examples": np.array([n])}
        error = ACCURACY.error({k: v.astype(float) for k, v in counts.items()})
        assert error is not None and math.isfinite(error[0])
        value = {"a": float(counts["correct"][0] / n)}
        rows[name] = Row(name, ACCURACY, value, {"a": float(error[0])})
    found = hurt(rows["fedrep"], rows)["alone"]
    assert found.users == ["a"] * (rows["fedrep"].values != rows["local"].values)
    assert found.beyond_noise == ["a"] * hurt_surely
    assert found.share_beyond_noise == float(hurt_surely)


def test_a_table_says_how_many_are_hurt() -> None:
    keys: dict[str, Any] = {"num_users": 8, "num_rounds": 2, "fraction_train": 1.0}
    rows = [s.json() for name in ("fedavg", "local") for s in federate(name, **keys)[1].summaries]
    for row, own in zip(rows, hurts(rows).values(), strict=True):
        row["hurt"] = {kind: one.json() for kind, one in own.items()}
    line, *_ = notes(rows)
    assert line.startswith("Users worse off than alone (local): fedavg ")
    users = rows[0]["hurt"]["alone"]["users"]
    worse = {u for u, v in rows[0]["per_user"].items() if v < rows[1]["per_user"][u]}
    assert set(users) == worse and worse
    assert percent(len(worse) / 8) in line


def test_older_results_have_no_errors_and_none_are_made_up() -> None:
    old = [
        {"strategy": n, "accuracy": {}, "per_user": {"a": v}}
        for n, v in (("local", 1.0), ("fedavg", 0.0))
    ]
    found = hurts(old)["fedavg"]["alone"]
    assert found.users == ["a"] and found.beyond_noise is None
    assert found.json()["share_beyond_noise"] is None


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (1.0, "100%"), (0.012, "1.2%"), (0.0995, "10%"), (0.42, "42%")]
)
def test_shares_in_few_characters(share: float, text: str) -> None:
    assert percent(share) == text
