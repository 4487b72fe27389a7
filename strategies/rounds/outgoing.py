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
        rounds, sole = federation.config.run.num_rounds, len(asked) == 1
        train = federation.train.of_round(number, rounds) if kind == "train" else None
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
        federation = self.federation
        versions = federation.progress.versions
        kept = [*federation.books.durable, federation.books.before]
        return encode_task(
            Task(
                algorithm=federation.name,
                experiment=federation.experiment,
                round=number,
                exchange=exchange,
                frozen="" if raw else federation.network.vector.fixed.fingerprint,
                seed=federation.config.run.seed,
                sole=sole,
                users=users,
                versions=[versions.get(user, 0) for user in users],
                keep=[[held.get(user, 0) for held in kept] for user in users],
                weights=list(weights),
                shape=federation.agreed.shape,
                num_classes=federation.agreed.num_classes,
                num_users=federation.config.federation.num_users,
                data=federation.config.data,
                device_data=federation.config.device_data,
                train=train or federation.train,
                model=federation.model,
                keys=federation.keys,
                state_dir=federation.state_dir,
                many_machines=bool(federation.config.federation.ray_address),
                preparation=None if raw else federation.agreed.preparation,
                options=options,
            )
        )


def new_token() -> str:
    """What only the node that gets it can repeat."""
    return secrets.token_hex(16)
