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
from corsage.core.counts import Number
from corsage.core.errors import RoundFailed
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies, merge_replies
from corsage.core.messages.schema import Schema

SHAPE = (3,)
TEMPLATE = {"body": np.zeros(SHAPE, np.float32)}
SAMPLES = 5


def merged(
    replies: list[Message],
    asked: dict[int, list[str]],
    numbers: tuple[Number, ...] = (),
    by_user: tuple[str, ...] = (),
    **samples: int,
) -> Replies:
    """What comes of replies; each user has so many samples."""
    known = {user: samples.get(user, SAMPLES) for users in asked.values() for user in users}
    schema = Schema(TEMPLATE, by_user, numbers, known, by_samples=bool(samples))
    return merge_replies(replies, asked, schema)


def reply(node: int, content: RecordDict | Error) -> Message:
    LocalGrid(ClientApp(), 1)  # sets the identity that Flower needs to make a message
    question = Message(RecordDict(), node, "train")
    return Message(content, reply_to=question)  # type: ignore[arg-type]


def content(users: list[str], mean: Any, samples: int = SAMPLES, **metrics: Any) -> RecordDict:
    counts = {"num-examples": [samples] * len(users)}
    return RecordDict(
        {
            "arrays": encode({"body": np.asarray(mean, np.float64)}),
            "metrics": MetricRecord({**counts, **metrics}),
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
    "samples": (
        lambda c: c["metrics"].update({"num-examples": [1e18]}),
        "num-examples is 1e+18, it introduced itself with 5",
    ),
    "stranger": (lambda c: c["config"].update({"users": ["z"]}), "not asked"),
    "metric length": (lambda c: c["metrics"].update({"loss": [1.0, 2.0]}), "2 values of loss"),
    "no metric": (lambda c: c["metrics"].pop("loss"), "loss: it is missing"),
    "metric nan": (lambda c: c["metrics"].update({"loss": [float("nan")]}), "not finite: loss"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_reply_is_dropped_and_named(case: str) -> None:
    bad = content(["b"], [9, 9, 9], loss=[1.0])
    BAD[case][0](bad)
    good = content(["a"], [1, 2, 3], loss=[0.5])
    replies = [reply(1, good), reply(2, bad)]
    outcome = merged(replies, {1: ["a"], 2: ["b"]}, (Number("loss"),))
    assert outcome.users == ["a"]
    assert outcome.mean["body"].tolist() == [1, 2, 3]
    assert BAD[case][1] in outcome.dropped["b"]


def test_garbage_bytes_are_not_an_array() -> None:
    bad = content(["a"], [1, 2, 3])
    bad["arrays"]["body"].data = b"not an array"  # type: ignore[union-attr, index]
    outcome = merged([reply(1, bad)], {1: ["a"]})
    assert "malformed" in outcome.dropped["a"]


def test_silent_failed_and_left_out_users_are_named() -> None:
    partly = content(["a"], [1, 2, 3])
    partly["config"] = ConfigRecord(
        {"users": ["a"], "failed": ["b"], "causes": ["train: boom"], "lost": ["b"]}
    )
    asked = {1: ["a", "b", "c"], 2: ["d"], 3: ["e"]}
    outcome = merged([reply(1, partly), reply(2, Error(2, "it broke"))], asked)
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
    forward = merged(replies, asked)
    backward = merged(replies[::-1], asked)
    assert forward.mean["body"].tolist() == backward.mean["body"].tolist()
    assert np.allclose(forward.mean["body"], np.mean(rows, axis=0), rtol=1e-6, atol=1e-4)
    assert forward.users == backward.users


def test_weights_are_the_servers() -> None:
    """By the samples that users introduced themselves with; what a reply says of it is nothing."""
    replies = [
        reply(1, content(["a"], [0, 0, 0], 1, weight=1e9)),
        reply(2, content(["b"], [4, 4, 4], 3)),
    ]
    outcome = merged(replies, {1: ["a"], 2: ["b"]}, a=1, b=3)
    assert outcome.mean["body"].tolist() == [3, 3, 3]
    assert outcome.weight == 4
    alike = [reply(1, content(["a"], [0, 0, 0])), reply(2, content(["b"], [4, 4, 4]))]
    assert merged(alike, {1: ["a"], 2: ["b"]}).mean["body"].tolist() == [2, 2, 2]


def test_a_round_fails_only_below_min_users() -> None:
    from corsage import FedAvg

    for least, fails in ((1, False), (2, True)):
        strategy = FedAvg({"min-users": least})
        good = content(["a"], [1, 2, 3])
        came = [reply(1, good), reply(2, Error(2, "it broke"))]
        replies = merged(came, {1: ["a"], 2: ["b"]})
        if fails:
            with pytest.raises(
                RoundFailed, match=r"1 usable replies, min-users=2.*user b is dropped: it broke"
            ):
                strategy.job.accept(1, replies)
        else:
            strategy.job.accept(1, replies)
            assert strategy.progress.dropped == {"b": 1}


@pytest.mark.parametrize("wanted", ["mean", "rows"])
def test_a_node_that_sends_rows_for_a_mean_is_dropped_and_the_other_way_round(wanted: str) -> None:
    """However many do: the server says what it wants."""
    one, two = np.ones(SHAPE), np.ones((2, *SHAPE))
    replies = [
        reply(2, rows_of(["a"], [one]) if wanted == "rows" else content(["a"], one)),
        reply(3, content(["b", "c"], one) if wanted == "rows" else rows_of(["b", "c"], two)),
    ]
    by_user = ("body",) if wanted == "rows" else ()
    found = merged(replies, {2: ["a"], 3: ["b", "c"]}, by_user=by_user)
    assert found.users == ["a"]
    assert set(found.dropped) == {"b", "c"} and "wrong arrays" in found.dropped["b"]
    assert list(found.rows if wanted == "rows" else found.mean) == ["body"]
    assert found.weight == 1


def test_one_array_is_not_both_a_mean_and_rows() -> None:
    both = content(["a", "b", "c"], np.zeros(SHAPE))
    both["rows"] = encode({"body": np.zeros(SHAPE, np.float32)})
    found = merged([reply(2, both)], {2: ["a", "b", "c"]})
    assert found.users == []
    assert "wrong arrays" in found.dropped["a"]


@pytest.mark.parametrize("samples", [0.0, -5.0, 5.5, 6])
def test_a_user_has_the_samples_that_it_introduced_itself_with(samples: float) -> None:
    odd = content(["a"], np.zeros(SHAPE))
    odd.metric_records["metrics"]["num-examples"] = [samples]
    found = merged([reply(2, odd)], {2: ["a"]})
    assert found.dropped["a"].endswith(
        f"num-examples is {samples:g}, it introduced itself with {SAMPLES}"
    )


@pytest.mark.parametrize("name", ["users", "failed", "causes", "lost"])
@pytest.mark.parametrize("value", [3, True, "a", b"a"])
def test_what_is_no_list_of_users_is_none(name: str, value: Any) -> None:
    odd = content(["a"], np.zeros(SHAPE))
    odd.config_records["config"][name] = value
    found = merged([reply(2, odd)], {2: ["a"]})
    assert found.dropped == {"a": f"malformed reply: {name}={value}: not a list"}


@pytest.mark.parametrize("whose", ["another's", "its own, which it sent"])
def test_a_node_loses_and_fails_its_own_users_only(whose: str) -> None:
    odd = content(["a"], np.zeros(SHAPE))
    odd.config_records["config"]["lost"] = ["b" if whose == "another's" else "a"]
    good = content(["b"], np.zeros(SHAPE))
    found = merged([reply(2, odd), reply(3, good)], {2: ["a"], 3: ["b"]})
    assert found.lost == set() and found.users == ["b"]
    assert "lost" in found.dropped["a"]


def test_a_user_is_left_out_alone_where_rows_tell_whose_they_are() -> None:
    odd = rows_of(["a", "b"], [np.ones(SHAPE), np.full(SHAPE, np.nan)])
    found = merged([reply(2, odd)], {2: ["a", "b"]}, by_user=("body",))
    assert found.users == ["a"] and found.dropped == {"b": "not finite: body"}
    assert found.rows["body"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07boom", r"\x1b[2J\x1b]0;owned\x07boom"),
        ("one\r\nuser c is dropped: fake", r"one\r\nuser c is dropped: fake"),
        ("\u202eright to left", r"\u202eright to left"),
        ("", "its node failed, and does not say why"),
        (None, "its node failed, and does not say why"),
        ("x" * 20_000_000, "x" * 296 + " ..."),
    ],
)
def test_what_a_node_says_is_one_line(reason: str | None, shown: str) -> None:
    """Of 300 characters at most, in which nothing is left that a terminal obeys."""
    assert merged([reply(2, Error(2, reason))], {2: ["a"]}).dropped == {"a": shown}
    if reason:
        partly = content(["b"], np.zeros(SHAPE))
        partly["config"] = ConfigRecord({"users": ["b"], "failed": ["a"], "causes": [reason]})
        assert merged([reply(2, partly)], {2: ["a", "b"]}).dropped == {"a": shown}


def test_a_node_answers_what_it_was_asked_and_nobody_else_does() -> None:
    schema = Schema(TEMPLATE, samples={"a": SAMPLES, "b": SAMPLES})
    asked, tokens = {2: ["a"], 3: ["b"]}, {2: "two", 3: "three"}

    def answering(token: str) -> RecordDict:
        found = content(["a"], np.ones(SHAPE))
        found.config_records["config"]["exchange"] = token
        return found

    for token in ("", "three", "that of an earlier one"):
        found = merge_replies([reply(2, answering(token))], asked, schema, tokens)
        assert found.dropped["a"] == "malformed reply: it answers another exchange"
    assert merge_replies([reply(2, answering("two"))], asked, schema, tokens).users == ["a"]


def rows_of(users: list[str], rows: Any) -> RecordDict:
    """As `content`, but one row a user."""
    found = content(users, np.zeros(SHAPE))
    del found["arrays"]
    found["rows"] = encode({"body": np.asarray(rows, np.float32)})
    return found
