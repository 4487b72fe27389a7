"""What goes out: questions to users as messages to nodes, counted, and what may be replied."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from corsage.core.arrays import Arrays
from corsage.core.encoding import encode, payload
from corsage.core.errors import NodeError
from corsage.core.groups import TrainKeys
from corsage.core.schema import Schema
from corsage.core.wire import Task, encode_task
from corsage.strategies.rounds.turns import Parcel, Question

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job


class Outgoing:
    """Makes a federation's messages.

    Parameters
    ----------
    job : whose they are.
    """

    def __init__(self, job: Job) -> None:
        self.job = job

    def question(
        self,
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
        job = self.job
        number = job.progress.round if number is None else number
        if not users:
            raise NodeError(f"round {number}: no users are connected.")
        asked, shared = job.members.roster.by_node(list(users)), encode(parcel.shared)
        place = {user: row for row, user in enumerate(users)}
        down = sum(a.nbytes for a in parcel.shared.values()) * len(users)
        down += sum(a.nbytes for a in parcel.rows.values())
        schema = self.expected(kind, job.members.roster.samples(kind, users), schema)
        messages, tokens = [], {node: new_token() for node in asked}
        options = {**(options or {}), **(job.judging if kind == "evaluate" else {})}
        rounds, sole = job.config.run.num_rounds, len(asked) == 1
        train = job.train.of_round(number, rounds) if kind == "train" else None
        for node, group in asked.items():
            places = [place[user] for user in group]
            rows = parcel.rows if sole else parcel.pick(places)
            weights = [schema.cut[user] for user in group] if schema.cut else []
            task = self.task(
                number, group, dict(options), tokens[node], weights, train=train, sole=sole
            )
            messages.append(self.message(kind, node, shared, rows, task))
        return Question(messages, asked, schema, down, tokens)

    def expected(self, kind: str, samples: Mapping[str, int], schema: Schema) -> Schema:
        """What participants with so many samples may reply: with these and their weights."""
        job = self.job
        members, training = job.members.everybody, kind == "train"
        among = job.members.users if job.lasting else ()
        return replace(
            schema,
            samples=samples,
            by_samples=training and job.config.train.weighting == "examples",
            most=job.config.federation.max_share,
            among={user: members[user].train for user in among},
            training=training,
        )

    def message(
        self, kind: str, node: int, shared: ArrayRecord, rows: Arrays, task: ConfigRecord
    ) -> Message:
        """One message to one node, counted."""
        job, users = self.job, cast(list[str], task.get("users", []))
        if job.members.scales is not None:
            job.members.scales.weigh_sent(shared, rows, len(users))
        content = RecordDict({"arrays": shared, "config": task})
        if rows:
            content["rows"] = encode(rows)
        job.progress.traffic.wire_bytes_down += sum(
            payload(record) for record in content.values() if isinstance(record, ArrayRecord)
        )
        job.progress.traffic.wire_messages += 1
        return Message(content, node, kind, ttl=job.members.timeout, group_id=str(task["round"]))

    def task(
        self,
        number: int,
        users: list[str],
        options: dict[str, Any],
        exchange: str = "",
        weights: Sequence[float] = (),
        raw: bool = False,
        train: TrainKeys | None = None,
        sole: bool = False,
    ) -> ConfigRecord:
        """What a node is to do, and all that it has to know of the run.

        `raw`: it is asked who it is, and what its columns are before they are prepared. `train`
        are the settings of a round that has its own. `sole`: no other node is asked.
        """
        job = self.job
        versions = job.progress.versions
        kept = [*job.durable, job.before]
        return encode_task(
            Task(
                algorithm=job.name,
                experiment=job.experiment,
                round=number,
                exchange=exchange,
                frozen="" if raw else job.network.vector.fixed.fingerprint,
                seed=job.config.run.seed,
                sole=sole,
                users=users,
                versions=[versions.get(user, 0) for user in users],
                keep=[[held.get(user, 0) for held in kept] for user in users],
                weights=list(weights),
                shape=job.agreed.shape,
                num_classes=job.agreed.num_classes,
                num_users=job.config.federation.num_users,
                data=job.config.data,
                device_data=job.config.device_data,
                train=train or job.train,
                model=job.model,
                keys=job.keys,
                state_dir=job.state_dir,
                many_machines=bool(job.config.federation.ray_address),
                preparation=None if raw else job.agreed.preparation,
                options=options,
            )
        )


def new_token() -> str:
    """What only the node that gets it can repeat."""
    return secrets.token_hex(16)
