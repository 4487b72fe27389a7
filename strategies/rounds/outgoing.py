"""Outgoing messages: questions to users as messages to nodes, counted, and what may be replied."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from corsage.core.arrays import Arrays
from corsage.core.encoding import encode, payload
from corsage.core.errors import NodeError
from corsage.core.schema import Schema
from corsage.core.wire import Task, encode_task
from corsage.strategies.rounds.turns import Parcel, Question

if TYPE_CHECKING:
    from corsage.strategies.rounds.federation import Federation


class Outgoing:
    """Makes a federation's messages.

    Parameters
    ----------
    federation : whose they are.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

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
        federation = self.federation
        number = federation.progress.round if number is None else number
        if not users:
            raise NodeError(f"round {number}: no users are connected.")
        asked, shared = federation.roster.by_node(list(users)), encode(parcel.shared)
        place = {user: row for row, user in enumerate(users)}
        down = sum(a.nbytes for a in parcel.shared.values()) * len(users)
        down += sum(a.nbytes for a in parcel.rows.values())
        schema = self.expected(kind, federation.roster.samples(kind, users), schema)
        messages, tokens = [], {node: new_token() for node in asked}
        options = {**(options or {}), **(federation.judging if kind == "evaluate" else {})}
        said: dict[str, Any] = {"sole": len(asked) == 1}
        if kind == "train":
            said["train"] = federation.train.of_round(number, federation.config.run.num_rounds)
        for node, group in asked.items():
            places = [place[user] for user in group]
            rows = parcel.rows if said["sole"] else parcel.pick(places)
            weights = [schema.cut[user] for user in group] if schema.cut else []
            own = {**said, "exchange": tokens[node], "weights": weights}
            task = self.task(number, group, options, **own)
            messages.append(self.message(kind, node, shared, rows, task))
        return Question(messages, asked, schema, down, tokens)

    def expected(self, kind: str, samples: Mapping[str, int], schema: Schema) -> Schema:
        """The schema for participants with so many samples: with these and their weights."""
        federation = self.federation
        members, training = federation.roster.members, kind == "train"
        among = federation.users if federation.lasting else ()
        return replace(
            schema,
            samples=samples,
            by_samples=training and federation.config.train.weighting == "examples",
            most=federation.config.federation.max_share,
            among={user: members[user].train for user in among},
            training=training,
        )

    def message(
        self, kind: str, node: int, shared: ArrayRecord, rows: Arrays, task: ConfigRecord
    ) -> Message:
        """One message to one node, counted."""
        federation, users = self.federation, cast(list[str], task.get("users", []))
        federation.scales.weigh_sent(shared, rows, len(users))
        content = RecordDict({"arrays": shared, "config": task})
        if rows:
            content["rows"] = encode(rows)
        federation.progress.traffic.wire_bytes_down += sum(
            payload(record) for record in content.values() if isinstance(record, ArrayRecord)
        )
        federation.progress.traffic.wire_messages += 1
        return Message(content, node, kind, ttl=federation.timeout, group_id=str(task["round"]))

    def task(
        self,
        number: int,
        users: list[str],
        options: Mapping[str, Any],
        *,
        raw: bool = False,
        **said: Any,
    ) -> ConfigRecord:
        """A node's task, with all that it has to know of the run.

        `raw`: it is asked who it is, and what its columns are before they are prepared. `said` are
        fields of a task that are as its exchange says, or its round.
        """
        federation, config = self.federation, self.federation.config
        versions = federation.progress.versions
        kept = [*federation.books.durable, federation.books.before]
        task = Task(
            algorithm=federation.name,
            experiment=federation.experiment,
            seed=config.run.seed,
            shape=federation.agreed.shape,
            num_classes=federation.agreed.num_classes,
            num_users=config.federation.num_users,
            device_data=config.device_data,
            data=config.data,
            train=federation.train,
            model=federation.model,
            keys=federation.keys,
            preparation=None if raw else federation.agreed.preparation,
            round=number,
            frozen="" if raw else federation.network.vector.fixed.fingerprint,
            users=users,
            versions=[versions.get(user, 0) for user in users],
            keep=[held.get(user, 0) for user in users for held in kept],
            state_dir=federation.state_dir,
            many_machines=bool(config.federation.ray_address),
            options=options,
        )
        return encode_task(replace(task, **said))


def new_token() -> str:
    """A token that only the node that gets it can repeat."""
    return secrets.token_hex(16)
