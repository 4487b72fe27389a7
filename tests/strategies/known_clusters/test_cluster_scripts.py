"""A conversation as a turn: scripts of clusters, messages to nodes, and what came of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from corsage.core.errors import RoundFailed
from corsage.core.messages.encoding import decode, encode
from corsage.core.messages.replies import Replies
from corsage.core.messages.wire import decode_task
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames, KnownClusters, Present
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    ClusterScript,
    Conversation,
    Request,
    ask_each,
    check_enough,
    evaluation_of,
)
from corsage.strategies.rounds.job import Job
from tests.support.known_users import hosting

HOSTS = {1: {"a": ["1", "2"], "b": ["3"]}, 2: {"b": ["4", "5"]}}


def there(hosts: Any = HOSTS) -> tuple[Job, Present]:
    job = hosting(hosts)
    return job, KnownClusters(job).meet(ClusterNames())


def reply(message: Message, rows: dict[str, Any] | None = None, silent: int = 0) -> Message:
    """A node's answer: each of its cohorts says how many there are; the last ones are `silent`."""
    task = decode_task(message.content["config"])  # type: ignore[arg-type]
    users = task.users[: len(task.users) - silent]
    metrics = {"num-examples": [10.0 if " " in name else 5.0 for name in users]}
    config = {"users": users, "kept": True, "exchange": task.exchange}
    config = {name: value for name, value in config.items() if value != []}
    content = RecordDict({"metrics": MetricRecord(metrics), "config": ConfigRecord(config)})
    if rows and users:
        stacked = {
            name: np.repeat(np.asarray(row)[None], len(users), 0) for name, row in rows.items()
        }
        content["rows"] = encode(stacked)
    return Message(content, reply_to=message)


def test_no_script_waits_for_another_and_all_return() -> None:
    job, present = there()
    log: list[str] = []

    def script(name: str, steps: int) -> ClusterScript[int]:
        for step in range(steps):
            answers = yield [Request(cohort) for cohort in present.groups[name]]
            log.append(f"{name}{step}: {len(answers)}")
        return steps

    talk = Conversation(job, {"a": script("a", 1), "b": script("b", 2)})
    one, two = talk.messages()
    assert job.progress.exchange == 1 and one.metadata.group_id == "1"
    talk.answered([(one, reply(one))])
    assert log == ["a0: 1"] and talk.messages() == []  # b waits for its other cohort
    talk.answered([(two, reply(two))])
    assert log == ["a0: 1", "b0: 2"]
    again = talk.messages()
    assert len(again) == 2 and job.progress.exchange == 2
    talk.answered([(message, reply(message)) for message in again])
    assert talk.messages() == [] and talk.found == {"a": 1, "b": 2}
    replies = talk.replies()
    assert sorted(replies.users) == ["1", "2", "3", "4", "5"] and not replies.dropped
    assert set(job.progress.versions.values()) == {1, 2}


def test_who_is_silent_is_left_out_and_a_silent_cluster_has_ended() -> None:
    job, present = there()
    asked = ask_each(job, present, Request)
    one, two = asked.messages()
    asked.answered([(one, reply(one, silent=1)), (two, None)])
    assert list(asked.found) == ["a"] and asked.messages() == []
    replies = asked.replies()
    assert replies.users == ["1", "2"] and set(replies.dropped) == {"3", present.cohorts[2].name}
    check_enough(job, 1, replies)
    with pytest.raises(RoundFailed, match="round 3: 0 users gave a usable reply"):
        check_enough(job, 3, Replies(dropped={"1": "boom"}))
    check_enough(job, 3, Replies())  # nobody was asked


def test_what_is_ready_at_once_goes_to_a_node_in_one_message_if_shapes_allow() -> None:
    job, present = there({1: {"a": ["1"], "b": ["2"], "c": ["3"]}})
    width = {"a": 2, "b": 2, "c": 3}
    asked = ask_each(job, present, lambda c: Request(c, {"w": np.ones(width[c.cluster])}))
    sent = [decode(m.content["rows"])["w"].shape for m in asked.messages()]  # type: ignore[arg-type]
    assert sent == [(2, 2), (1, 3)]


def test_nodes_are_told_the_users_of_cohorts_that_they_do_not_know() -> None:
    job, present = there()
    name = present.cohorts[0].name
    job.progress.versions.put([name, *present.cohorts[0].users], 4)
    asked = ask_each(job, present, lambda c: Request(c, options={"of": c.cluster}))
    task = decode_task(asked.messages()[0].content["config"])  # type: ignore[arg-type]
    assert task.users == [name, "3"] and task.versions == [4, 0]
    assert task.members == {"3": ["3"]}
    assert task.cohort_options == [{"of": "a"}, {"of": "b"}]


def test_exchanges_are_counted_as_one_user_devices_would_have_them() -> None:
    job, present = there()
    row, template = {"w": np.ones(3)}, {"sum": np.zeros(2)}

    def answers(counted: bool) -> list[Answer]:
        asked = ask_each(job, present, lambda c: Request(c, row, {}, template), counted)
        asked.answered([(m, reply(m, {"sum": np.ones(2)})) for m in asked.messages()])
        return [answer for group in asked.found.values() for answer in group]

    assert len(answers(counted=False)) == 3 and job.traffic.messages == 0
    assert all(answer.rows["sum"].tolist() == [1, 1] for answer in answers(counted=True))
    traffic = job.traffic
    assert (traffic.bytes_down, traffic.bytes_up, traffic.messages) == (5 * 24, 5 * 16, 10)


def test_cohorts_are_evaluated_user_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    job, present = there()
    monkeypatch.setattr(Job, "measure", property(lambda _: type("M", (), {"numbers": ()})))
    requests = [Request(cohort, {"w": np.ones(3)}) for cohort in present.cohorts]
    question = evaluation_of(job, requests, {"adapt": True})
    assert question.asked == {1: ["1", "2", "3"], 2: ["4", "5"]}
    assert question.down == 5 * 24 and not question.schema.training
    assert question.schema.samples == dict.fromkeys("12345", 5)
    job.progress.versions[present.cohorts[0].name] = 1
    task = decode_task(question.messages()[0].content["config"])  # type: ignore[arg-type]
    assert task.options["adapt"] and len(task.members) == 2
