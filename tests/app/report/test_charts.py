"""The report's charts as numbers: what is drawn, where its limits are, and what is left out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.report import divisions, result_fields, words
from corsage.app.report.chart import Axis, Series, finite, limits, log_ticks, thinned
from corsage.app.report.curves import learning_charts
from corsage.app.report.document import drawn_of
from corsage.app.report.drawing import Frame, flags, marked
from corsage.app.report.estimates import caterpillars
from corsage.app.report.people import CELLS, people_charts, table
from corsage.app.report.style import looks
from corsage.app.report.trees import Tree, drawing, joined, trees
from corsage.core.measures import ACCURACY, MEASURES
from corsage.core.pairs.hurt import with_hurt
from tests.support.reports import EVIL, Json, a_run, rmse_run, with_everything


def chart_of(results: list[Json], rows: list[Json], *choice: str):  # type: ignore[no-untyped-def]
    return next(c for c in learning_charts(results, rows) if c.choice == choice)


def test_curves_are_those_of_the_rows_against_rounds_bytes_and_seconds() -> None:
    results, rows = a_run(("fedrep", "fedavg"))
    for against, first in (("round", 5), ("bytes", 15_000), ("seconds", 0.5)):
        one, other = chart_of(results, rows, "accuracy", against).series
        assert (one.name, other.name) == ("fedrep", "fedavg")
        assert one.x == pytest.approx([first * n for n in (1, 2, 3, 4)])
        assert one.y == pytest.approx([100 * mean for _, mean in results[0]["curve"]])
        assert len(one.low) == 4
    loss = chart_of(results, rows, "training loss", "round").series[0]
    assert list(loss.y) == pytest.approx([0.4, 0.2, 2 / 15, 0.1])
    assert not any(s.low for s in chart_of(*a_run(tuple("abcde")), "accuracy", "round").series)


def test_results_without_rows_have_their_curve_spent_evenly() -> None:
    results, _ = a_run(("fedrep",))
    assert list(chart_of(results, [], "accuracy", "bytes").series[0].x) == [15e3, 3e4, 45e3, 6e4]
    assert [c.choice[0] for c in learning_charts(results)] == ["accuracy"] * 3


def test_one_evaluation_is_a_point_with_a_line_across() -> None:
    results, rows = a_run(("mixed-model", "local"), rounds=1)
    for against in ("round", "bytes", "seconds"):
        chart = chart_of(results, rows, "accuracy", against)
        assert all(series.across and len(series.x) == 1 for series in chart.series)
        assert chart.x.high > chart.x.low
    bytes_of = {s.name: s for s in chart_of(results, rows, "accuracy", "bytes").series}
    assert bytes_of["local"].note == "spends nothing"
    extra = {**results[0], "strategy": "mixed-model+ft", "curve": []}
    assert chart_of([*results, extra], rows, "accuracy", "round").series[-1].across


def test_one_that_diverges_does_not_flatten_the_others_and_is_named_at_the_border() -> None:
    results, rows = rmse_run()
    chart = chart_of(results, rows, "RMSE", "round")
    assert chart.y.high < 100
    frame = Frame(chart, order := ["ditto", "fedavg", "local"], order)
    said = flags(frame, looks(["ditto", "fedavg", "local"]))
    assert said.count("<span") == 1 and "fedavg" in said and "\u25b2" in said


def test_limits_hold_all_where_nothing_is_far() -> None:
    def drawn(*values: list[float]) -> list[Series]:
        return [Series("a", range(len(v)), v) for v in values]

    low, high = limits(drawn([60.0, 70.0], [75.0, 120.0]))
    assert low < 60 and high > 120
    assert limits(drawn([10.0, 98.0], [97.0, 99.0]), ACCURACY.bounds) == (10 - 5.34, 100)
    assert limits(drawn([0.9, 0.8], [0.85, -1e5]))[0] > -10
    assert limits(drawn([5.0]))[0] < 5 < limits(drawn([5.0]))[1]
    assert limits(drawn([math.nan])) == (0.0, 1.0)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30))
def test_any_numbers_have_limits_and_ticks(values: list[float]) -> None:
    low, high = limits([Series("a", range(len(values)), values)])
    assert low < high
    axis = Axis("", "number", low, high)
    assert 1 <= len(axis.ticks()) <= 12
    assert all(-0.01 <= axis.place(value) <= 1.01 for value, _ in axis.ticks())


@given(st.floats(1e-3, 1e12), st.floats(1.01, 1e9))
def test_any_logarithmic_axis_has_few_ticks(low: float, ratio: float) -> None:
    assert len(log_ticks(low, low * ratio)) <= 12


def test_ticks_are_written_as_people_do() -> None:
    def said(*axis: object) -> list[str]:
        return [text for _, text in Axis("", *axis).ticks()]  # type: ignore[arg-type]

    assert said("percent", 0.0, 100.0) == ["0", "20", "40", "60", "80", "100"]
    assert said("round", 0.0, 1.0) == ["0", "1"]
    assert said("bytes", 900.0, 2e6, True) == ["1 kB", "10 kB", "100 kB", "1 MB"]
    assert said("number", 3.448, 3.452)[0] == "3.448"


def test_twenty_strategies_are_told_apart() -> None:
    many = looks(f"method{n}" for n in range(20))
    assert len({(look.colour, look.dash) for look in many.values()}) == 20


def test_marks_are_at_the_end_and_few() -> None:
    assert marked([], 0) == []
    assert marked([500.0], 3) == [0]
    for number in range(20):
        found = marked([10.0 * n for n in range(101)], number)
        assert found[-1] == 100 and 3 <= len(found) <= 7


def test_users_go_from_worst_to_best_and_have_names() -> None:
    results, _ = a_run(("fedrep",))
    (series,) = next(c for c in people_charts(results) if c.choice[1] == "worst to best").series
    assert list(series.y) == sorted(100 * v for v in results[0]["per_user"].values())
    assert set(series.names) == set(results[0]["per_user"])
    results, _ = rmse_run()
    one, *_ = next(c for c in people_charts(results) if c.choice[1] == "worst to best").series
    assert list(one.y) == sorted(one.y, reverse=True)


def test_gains_are_paired_and_signed_by_the_measure() -> None:
    results, _ = a_run()
    (chart,) = (c for c in people_charts(results) if c.choice[1] == "against local")
    assert [s.name for s in chart.series] == ["fedrep", "fedavg"] and chart.zero == 0.0
    own, local = results[0]["per_user"], results[2]["per_user"]
    for user, gain in zip(chart.series[0].names, chart.series[0].y, strict=True):
        assert gain == pytest.approx(100 * (own[user] - local[user]), abs=1e-9)
    assert list(chart.series[0].y) == sorted(chart.series[0].y)
    errors, _ = rmse_run()
    found = result_fields.differences(errors[0], errors[2])
    assert all(
        math.copysign(1, g) == math.copysign(1, errors[2]["per_user"][u] - errors[0]["per_user"][u])
        for u, g in found.items()
        if g
    )


def test_who_is_hurt_comes_from_the_result() -> None:
    results = with_hurt(a_run()[0])
    found = {(h.strategy, h.than): h for h in result_fields.hurt(results)}
    assert set(found) == {
        ("fedrep", "local"),
        ("fedrep", "fedavg"),
        ("fedavg", "local"),
        ("local", "fedavg"),
    }
    own, local = results[0]["per_user"], results[2]["per_user"]
    worse = {u for u in own if own[u] < local[u] - 1e-9}
    assert set(found["fedrep", "local"].users) == worse and worse
    assert found["fedrep", "local"].share == len(worse) / 20
    given_by, _ = with_everything()
    assert list(result_fields.hurt(given_by)[0].users) == [EVIL, "u3"]


def test_differences_of_rounding_hurt_nobody() -> None:
    results, _ = a_run(("fedrep", "local"))
    results[0]["per_user"] = {u: v * (1 - 1e-15) for u, v in results[1]["per_user"].items()}
    assert result_fields.hurt(with_hurt(results))[0].users == []


def test_the_table_has_every_user_measure_and_cluster() -> None:
    results, _ = with_everything()
    found = table(results)
    titles = [(c["title"], c["measure"]) for c in found["columns"]]
    auc = MEASURES["auc"].title
    assert titles[0] == ("user", "") and ("test samples", "") in titles
    assert ("fedrep: cluster", "") in titles and ("local", auc) in titles
    assert found["users"] == found["shown"] == 21  # the one without test samples, too
    low = next(c for c in found["columns"] if c["measure"])
    assert all(low["values"][i] < low["limit"] for i in low["low"])
    assert [
        low["values"][i] for i, u in enumerate(found["columns"][0]["values"]) if "img" in u
    ] == [None]


def test_many_users_are_drawn_by_quantiles_and_both_ends_and_listed_by_extremes() -> None:
    results, _ = a_run(("fedrep", "local"), users=40_000)
    found = table(results)
    assert found["users"] == 40_000
    assert 3 < found["shown"] * len(found["columns"]) < CELLS
    worst = sorted(results[0]["per_user"].items(), key=lambda item: item[1])[0][1]
    assert 100 * worst in next(c for c in found["columns"] if c["measure"])["values"]
    for chart in people_charts(results):
        for series in chart.series:
            assert len(series.x) < 300
            assert series.y[0] == min(series.y) and series.y[-1] == max(series.y)


def test_clusters_are_grouped_and_compared_whatever_they_are_called() -> None:
    results, _ = with_everything()
    names = [names for names, _ in divisions.divisions(results)]
    assert names == [["fedrep"], ["fedavg"], ["local"]]
    one, other = {"a": "0", "b": "1"}, {"a": "x", "b": "y"}
    assert divisions.same_division(one, other)
    assert not divisions.same_division(one, {"a": "x", "b": "x"})
    assert list(divisions.grouped({"u10": "1", "u2": "1", "u1": "0"}).items()) == [
        ("1", ["u2", "u10"]),
        ("0", ["u1"]),
    ]


def test_a_caterpillar_goes_from_the_lowest_to_the_highest() -> None:
    results, _ = with_everything()
    charts = caterpillars(results)
    assert [chart.choice[0] for chart in charts] == ["intercept", EVIL]
    (series,) = charts[0].series
    assert list(series.y) == sorted(series.y)
    assert series.high[0] - series.low[0] == pytest.approx(4 * 0.98 * 0.2, rel=1e-3)


def test_thinning_keeps_both_ends() -> None:
    assert thinned(3) == [0, 1, 2]
    found = thinned(10_000)
    assert len(found) <= 240 and (found[0], found[-1]) == (0, 9_999)
    assert finite([None, math.inf, 1]) == [1.0]
    assert np.diff(found).max() < 100


def test_the_level_without_a_model_is_drawn_where_all_rows_agree_on_it() -> None:
    results, rows = with_everything()
    chart = chart_of(results, rows, "accuracy", "round")
    assert chart.basis == (pytest.approx(60.0), EVIL)
    results[1]["baseline"]["mean"] = 0.4
    assert chart_of(results, rows, "accuracy", "round").basis is None
    assert chart_of(*a_run(), "accuracy", "round").basis is None


def test_known_clusters_come_first_and_once() -> None:
    results, _ = with_everything()
    results[0]["known_clusters"] = dict(results[0]["clusters"])
    (names, _), *others = divisions.divisions(results)
    assert names == [divisions.KNOWN_CLUSTERS, "fedrep"] and len(others) == 2
    titles = [c["title"] for c in table(results)["columns"]]
    assert "cluster" in titles and "fedrep: cluster" not in titles


def test_who_is_hurt_beyond_noise_is_counted() -> None:
    results, _ = with_everything()
    results[0]["hurt"]["alone"] |= {"beyond_noise": ["u3"]}
    found = result_fields.hurt(results)
    assert [h.certain for h in found[:2]] == [1, None]
    assert "beyond noise" in words.worse_off(results, drawn_of(results))


def test_users_who_are_all_by_themselves_are_no_clusters() -> None:
    own = {f"u{i}": str(i) for i in range(60)}
    text = divisions.division(["convex-clustering"], own, [(["convex-clustering"], own)], [], {})
    assert "no clusters" in text and "1 user" not in text
    assert not divisions.alone({"a": "x"}) and not divisions.alone({"a": "x", "b": "x"})


def test_the_nearest_join_first_and_groups_by_their_mean() -> None:
    points = {"a": 0.0, "b": 10.0, "c": 1.0, "d": 12.0}
    tree = joined({name: np.array([value]) for name, value in points.items()})
    assert list(tree.leaves) == ["a", "b", "c", "d"]
    assert [distance for *_, distance in tree.joins] == pytest.approx([1.0, 2.0, 10.5])
    assert sorted(tree.order()[:2]) in ([0, 2], [1, 3])
    places = tree.places()
    assert sorted(row for distance, row in places.values() if not distance) == [0.5, 1.5, 2.5, 3.5]
    assert places[6][0] == pytest.approx(10.5)


def test_its_names_are_escaped_and_it_stands_without_distances() -> None:
    drawn = drawing(Tree([EVIL, "x"], [(0, 1, 0.0)]), {EVIL: f"{EVIL} (3)", "x": "x"})
    assert EVIL not in drawn and "&lt;/script&gt;" in drawn and "(3)" in drawn


def test_a_folder_without_models_has_none(tmp_path: Path) -> None:
    results, _ = with_everything()
    assert trees(tmp_path, results) == {}
    (tmp_path / "fedrep" / "models").mkdir(parents=True)
    (tmp_path / "fedrep" / "models" / "fedrep.safetensors").write_bytes(b"damaged")
    assert trees(tmp_path, results) == {}
