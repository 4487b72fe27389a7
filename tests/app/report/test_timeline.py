"""The picture of who works and who waits: what it is drawn of, and that it bears any line."""

from __future__ import annotations

from typing import Any

from corsage.app.output.page.timeline import WINDOW, between, section, times

ROWS: list[dict[str, Any]] = [
    {
        "strategy": "async-l2gd",
        "round": 1,
        "timeline": {"stale": {}, "at": 0.0, "work": {"a": [0.0, 1.0], "c": [0.0, 1.5]}},
    },
    {
        "strategy": "async-l2gd",
        "round": 2,
        "timeline": {"stale": {"b": 1}, "at": 2.0, "work": {"a": [2.0, 3.0], "b": [0.0, 4.0]}},
    },
]
RESULT = {"strategy": "async-l2gd"}


def test_shares_and_ages_are_of_the_whole_run() -> None:
    found = times(ROWS, "async-l2gd")
    assert found.steps == [0.0, 2.0]
    assert found.end == 4.0
    assert {name: found.share(name) for name in "abc"} == {"a": 0.5, "b": 1.0, "c": 0.375}
    assert found.missed == {"b": (1, 1)}
    assert between(found.work["a"], found.end) == [(1.0, 2.0), (3.0, 4.0)]
    assert between(found.work["b"], found.end) == []


def test_lines_that_are_damaged_or_of_others_are_left_out() -> None:
    bad: list[Any] = [
        {"strategy": "fedavg", "timeline": ROWS[0]["timeline"]},
        {"strategy": "async-l2gd", "timeline": 3},
        {"strategy": "async-l2gd", "timeline": {"at": 1.0, "stale": {}, "work": {"a": [1.0]}}},
        {"strategy": "async-l2gd", "timeline": {"at": 1.0, "stale": [], "work": {}}},
        {"strategy": "async-l2gd", "timeline": {"at": float("nan"), "stale": {}, "work": {}}},
        {"strategy": "async-l2gd"},
    ]
    assert times([*ROWS, *bad], "async-l2gd") == times(ROWS, "async-l2gd")
    assert section([RESULT], bad[:1]) == ""


def test_names_are_text_and_long_runs_are_cut() -> None:
    rows = [
        {
            "strategy": "async-l2gd",
            "timeline": {
                "stale": {},
                "at": float(t),
                "work": {n: [t, t + 0.5] for n in ("<b>", "x")},
            },
        }
        for t in range(500)
    ]
    page = section([RESULT], rows)
    assert "<b>" not in page
    assert "&lt;b&gt;: 50% at work" in page
    assert f"the last {WINDOW} of 500 rounds" in page
    assert len(page) < 20_000
