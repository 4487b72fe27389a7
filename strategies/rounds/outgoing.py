"""Questions to users as messages to nodes, counted, and what may be replied."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from corsage.core.arrays import Arrays
from corsage.core.errors import NodeError
from corsage.core.messages.encoding import encode, payload
from corsage.core.messages.schema import Schema
from corsage.core.messages.wire import encode_task
from corsage.strategies.rounds.turns import Parcel, Question

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job


def question_to(
    job: Job,
    kind: str,
    users: Sequence[str],
    parcel: Parcel,
    schema: Schema,
    options: Mapping[str, Any] | None = None,
    number: int | None = None,
) -> Question:
    """One exchange with some users: `parcel.rows` are in their order.

    `schema` has the arrays and numbers that a user sends; the rest of it is filled in here.
    """
    number = job.progress.round if number is None else number
    if not users:
        raise NodeError(f"round {number}: no users are connected.")
    asked, shared = job.members.roster.by_node(list(users)), encode(parcel.shared)
    place = {user: row for row, user in enumerate(users)}
    down = sum(a.nbytes for a in parcel.shared.values()) * len(users)
    down += sum(a.nbytes for a in parcel.rows.values())
    schema = expected(job, kind, job.members.roster.samples(kind, users), schema)
    messages, tokens = [], {node: new_token() for node in asked}
    options = {**(options or {}), **(job.judging if kind == "evaluate" else {})}
    common: dict[str, Any] = {"sole": len(asked) == 1}
    if kind == "train":
        common["train"] = job.task.train.of_round(number, job.config.run.num_rounds)
    for node, group in asked.items():
        places = [place[user] for user in group]
        rows = parcel.rows if common["sole"] else parcel.pick(places)
        weights = [schema.cut[user] for user in group] if schema.cut else []
        own = {**common, "exchange": tokens[node], "weights": weights}
        task = task_for(job, number, group, options, **own)
        messages.append(message_to(job, kind, node, shared, rows, task))
    return Question(messages, asked, schema, down, tokens)


def expected(job: Job, kind: str, samples: Mapping[str, int], schema: Schema) -> Schema:
    """The schema for participants with so many samples: with these and their weights."""
    members, training = job.members.roster.members, kind == "train"
    among = job.members.users if job.lasting else ()
    return replace(
        schema,
        samples=samples,
        by_samples=training and job.config.train.weighting == "examples",
        most=job.config.federation.max_share,
        among={user: members[user].train for user in among},
        training=training,
    )


def message_to(
    job: Job, kind: str, node: int, shared: ArrayRecord, rows: Arrays, task: ConfigRecord
) -> Message:
    """One message to one node, counted."""
    users = cast(list[str], task.get("users", []))
    if job.members.scales is not None:
        job.members.scales.weigh_sent(shared, rows, len(users))
    content = RecordDict({"arrays": shared, "config": task})
    if rows:
        content["rows"] = encode(rows)
    job.traffic.wire_bytes_down += sum(
        payload(record) for record in content.values() if isinstance(record, ArrayRecord)
    )
    job.traffic.wire_messages += 1
    return Message(content, node, kind, ttl=job.members.timeout, group_id=str(task["round"]))


def task_for(
    job: Job,
    number: int,
    users: list[str],
    options: Mapping[str, Any],
    among: Sequence[str] = (),
    **fields: Any,
) -> ConfigRecord:
    """The task of a node; `fields` of it are as its exchange says, or its round.

    Cohorts have the versions of states that users `among` them have.
    """
    versions, kept = job.progress.versions, [*job.durable, job.before]
    task = replace(
        job.task,
        round=number,
        users=users,
        versions=[versions.get(user, 0) for user in among or users],
        keep=[held.get(user, 0) for user in among or users for held in kept],
        options=options,
        **fields,
    )
    return encode_task(task)


def new_token() -> str:
    """A word that only the node that gets it can repeat."""
    return secrets.token_hex(16)
