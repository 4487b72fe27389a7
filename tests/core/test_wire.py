"""A task on the wire: what a node is told is what the server's configuration says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from corsage.core.configuration.config import Config
from corsage.core.messages.wire import Task, decode_task, encode_task
from corsage.core.tables.preparation import Column, Preparation


def told(**values: Any) -> Task:
    """A task of which every field is another than by default."""
    config = Config.parse({**values, "strategy": "ditto", "ditto-lambda": 3})
    return Task(
        "ditto",
        "e",
        7,
        (1, 8, 8),
        10,
        num_users=5,
        round=3,
        exchange="token",
        frozen="0af",
        sole=True,
        users=["a", "b"],
        versions=[1, 2],
        keep=[0, 0, 1, 2, 1, 1],
        weights=[1.0, 0.5],
        data=config.data,
        device_data=config.device_data,
        train=config.train,
        model=config.model,
        keys=config.keys_of("ditto"),
        preparation=Preparation((Column("a"),), shift=(0.5,), scale=(2.0,)),
        state_dir="x",
        many_machines=True,
        cohort_options=[{"as": "newton"}, {}],
        former=["a, of others"],
        members={"a": ["ann", "bob"]},
        options={"ask": "facts"},
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"dataset": "ellipses", "num-clusters": 2, "lr": 0.3},
        {"dataset": "csv", "data-file": "x.csv", "feature-columns": "a,b", "labels": "numbers"},
        {"dataset": "moons", "moons-noise": 0.3, "user-column": "who", "cluster-column": "site"},
    ],
)
def test_a_task_arrives_as_it_was_sent(values: dict[str, Any]) -> None:
    """With the keys of the data set's own, and those by which a device reads its file."""
    task = told(**values)
    assert decode_task(encode_task(task)) == task
    assert task.kept(0) == [0, 0, 1] and task.kept(1) == [2, 1, 1]


def test_names_of_a_million_users_of_cohorts_can_be_read() -> None:
    members = {f"cluster {k}": [f"user {k} {n:08d}" for n in range(30_000)] for k in range(3)}
    task = replace(told(), users=list(members), members=members)
    assert decode_task(encode_task(task)).members == members
