"""Replies that cannot be used are dropped, counted and named; the others are merged exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.local_grid import LocalGrid
from corsage.core.errors import RoundFailed
from corsage.core.replies import merge_replies
from corsage.core.wire import encode

SHAPE = (3,)
TEMPLATE = {"body": np.zeros(SHAPE, np.float32)}


def reply(node: int, content: RecordDict | Error) -> Message:
    LocalGrid(ClientApp(), 1)  # sets the identity that Flower needs to make a message
    question = Message(RecordDict(), node, "train")
    return Message(content, reply_to=question)  # type: ignore[arg-type]


def content(
    users: list[str], mean: Any, weight: float | None = None, **metrics: list[float]
) -> RecordDict:
    return RecordDict(
        {
            "arrays": encode({"body": np.asarray(mean, np.float64)}),
            "metrics": MetricRecord({"weight": float(weight or len(users)), **metrics}),
            "config": ConfigRecord({"users": users, "failed": [], "causes": [], "lost": []}),
        }
    )


BAD: dict[str, tuple[Callable[[RecordDict], Any], str]] = {
    "shape": (lambda c: c.update({"arrays": encode({"body": np.zeros(4)})}), "wrong shape"),
    "name": (lambda c: c.update({"arrays": encode({"head": np.zeros(3)})}), "wrong arrays"),
    "dtype": (lambda c: c.update({"arrays": encode({"body": np.zeros(3, int)})}), "wrong type"),
    "nan": (lambda c: c.update({"arrays": encode({"body": np.full(3, np.nan)})}), "not finite"),
    "missing arrays": (lambda c: c.pop("arrays"), "wrong arrays"),
    "missing metrics": (lambda c: c.pop("metrics"), "malformed"),
    "missing config": (lambda c: c.pop("config"), "malformed"),
    "weight": (lambda c: c["metrics"].update({"weight": float("inf")}), "weight"),
    "stranger": (lambda c: c["config"].update({"users": ["z"]}), "not asked"),
    "metric length": (lambda c: c["metrics"].update({"loss": [1.0, 2.0]}), "2 values of loss"),
    "no metric": (lambda c: c["metrics"].pop("loss"), "no loss"),
    "metric nan": (lambda c: c["metrics"].update({"loss": [float("nan")]}), "not finite: loss"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_dropped_and_named(case: str) -> None:
    bad = content(["b"], [9, 9, 9], loss=[1.0])
    BAD[case][0](bad)
    good = content(["a"], [1, 2, 3], loss=[0.5])
    replies = [reply(1, good), reply(2, bad)]
    outcome = merge_replies(replies, {1: ["a"], 2: ["b"]}, TEMPLATE, ("loss",))
    assert outcome.users == ["a"]
    assert outcome.mean["body"].tolist() == [1, 2, 3]
    assert BAD[case][1] in outcome.dropped["b"]


def test_garbage_bytes_are_not_an_array() -> None:
    bad = content(["a"], [1, 2, 3])
    bad["arrays"]["body"].data = b"not an array"  # type: ignore[union-attr, index]
    outcome = merge_replies([reply(1, bad)], {1: ["a"]}, TEMPLATE)
    assert "malformed" in outcome.dropped["a"]


def test_silent_failed_and_left_out_users_are_named() -> None:
    partly = content(["a"], [1, 2, 3])
    partly["config"] = ConfigRecord(
        {"users": ["a"], "failed": ["b"], "causes": ["train: boom"], "lost": ["b"]}
    )
    asked = {1: ["a", "b", "c"], 2: ["d"], 3: ["e"]}
    outcome = merge_replies([reply(1, partly), reply(2, Error(2, "it broke"))], asked, TEMPLATE)
    assert outcome.dropped == {
        "b": "train: boom",
        "c": "left out of its node's reply",
        "d": "it broke",
        "e": "no reply in time",
    }
    assert outcome.lost == {"b"}


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1))
def test_the_mean_over_nodes_is_the_mean_over_users(rows: list[list[float]]) -> None:
    """However users are dealt to nodes, and in whatever order the nodes reply."""
    users = [f"u{i}" for i in range(len(rows))]
    cut = len(rows) // 3
    parts = [(1, 0, cut), (2, cut, len(rows))]
    asked = {node: users[a:b] for node, a, b in parts if a < b}
    replies = [
        reply(node, content(users[a:b], np.mean(np.float64(rows[a:b]), axis=0)))
        for node, a, b in parts
        if a < b
    ]
    forward = merge_replies(replies, asked, TEMPLATE)
    backward = merge_replies(replies[::-1], asked, TEMPLATE)
    assert forward.mean["body"].tolist() == backward.mean["body"].tolist()
    assert np.allclose(forward.mean["body"], np.mean(rows, axis=0), rtol=1e-6, atol=1e-4)
    assert forward.users == backward.users


def test_weights_count() -> None:
    replies = [reply(1, content(["a"], [0, 0, 0], 1)), reply(2, content(["b"], [4, 4, 4], 3))]
    outcome = merge_replies(replies, {1: ["a"], 2: ["b"]}, TEMPLATE)
    assert outcome.mean["body"].tolist() == [3, 3, 3]
    assert outcome.weight == 4


def test_a_round_fails_only_below_min_users() -> None:
    from corsage import FedAvg

    for least, fails in ((1, False), (2, True)):
        strategy = FedAvg({"min-users": least})
        good = content(["a"], [1, 2, 3], **{"num-examples": [5.0]})
        came = [reply(1, good), reply(2, Error(2, "it broke"))]
        replies = merge_replies(came, {1: ["a"], 2: ["b"]}, TEMPLATE)
        if fails:
            with pytest.raises(
                RoundFailed, match=r"1 usable replies, min-users=2.*user b is dropped: it broke"
            ):
                strategy.accept_round(1, replies)
        else:
            strategy.accept_round(1, replies)
            assert strategy.progress.dropped == {"b": 1}


def rows_of(users: list[str], rows: Any) -> RecordDict:
    """As `content`, but one row a user."""
    found = content(users, np.zeros(SHAPE))
    del found["arrays"]
    found["rows"] = encode({"body": np.asarray(rows, np.float32)})
    return found


@pytest.mark.parametrize("most", ["mean", "rows"])
def test_a_node_that_sends_rows_among_means_is_dropped_and_the_other_way_round(most: str) -> None:
    """What most users' nodes do is what was asked for."""
    one, two = np.ones(SHAPE), np.ones((2, *SHAPE))
    replies = [
        reply(2, content(["a"], one) if most == "rows" else rows_of(["a"], [one])),
        reply(3, rows_of(["b", "c"], two) if most == "rows" else content(["b", "c"], one)),
    ]
    merged = merge_replies(replies, {2: ["a"], 3: ["b", "c"]}, TEMPLATE)
    assert merged.users == ["b", "c"]
    assert set(merged.dropped) == {"a"}
    assert "malformed reply" in merged.dropped["a"]
    assert list(merged.rows if most == "rows" else merged.mean) == ["body"]
    assert merged.weight == 2


def test_one_array_is_not_both_a_mean_and_rows() -> None:
    both = content(["a", "b", "c"], np.zeros(SHAPE))
    both["rows"] = encode({"body": np.zeros(SHAPE, np.float32)})
    merged = merge_replies([reply(2, both)], {2: ["a", "b", "c"]}, TEMPLATE)
    assert merged.users == []
    assert "wrong arrays" in merged.dropped["a"]


@pytest.mark.parametrize("samples", [0.0, -5.0])
def test_a_user_has_samples(samples: float) -> None:
    odd = content(["a"], np.zeros(SHAPE), **{"num-examples": [samples]})
    merged = merge_replies([reply(2, odd)], {2: ["a"]}, TEMPLATE, ("num-examples",))
    assert merged.dropped == {"a": "malformed reply: users without samples"}


@pytest.mark.parametrize("name", ["users", "failed", "lost"])
def test_a_number_is_no_list_of_users(name: str) -> None:
    odd = content(["a"], np.zeros(SHAPE))
    odd.config_records["config"][name] = 3
    merged = merge_replies([reply(2, odd)], {2: ["a"]}, TEMPLATE)
    assert "malformed reply: TypeError" in merged.dropped["a"]
