"""The models of a strategy's rows, put together from what its nodes left: one file a row.

The server of a deployed run has the users' models itself: of some methods all, or none.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from logging import DEBUG
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.supercore import log

from corsage.app.nodes.delivery import fixed, tensors
from corsage.app.output.summary import human_bytes
from corsage.app.results.header import Header, spec
from corsage.app.results.known_models import note_model
from corsage.app.results.rowfile import OF_A_USER, RowFile, encoded, joined
from corsage.app.states.pieces import FOLDER, pieces_in, taken_from
from corsage.clients import client_class
from corsage.clients.base import Client, Got, Models
from corsage.core.arrays import Arrays
from corsage.core.configuration.data_keys import BY_USER
from corsage.core.errors import CorsageError
from corsage.core.files import clear_temporaries, delete, sync_folder, write_atomically
from corsage.core.messages.wire import END_HEAD, Task, decode_task
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.evaluations import AUTO_BYTES, Delivery
from corsage.strategies.rounds.outgoing import task_for

MODEL_ENDING = ".safetensors"


def write_models(strategy: Strategy[Any, Any], folder: Path) -> None:
    """In a strategy's folder, the file of each row that was delivered; no pieces are left."""
    folder = folder / FOLDER
    if not strategy.members.simulated:
        write_held(strategy, folder)
    if not folder.is_dir():
        return
    clear_temporaries(folder)
    left = pieces_in(folder)
    for row, pieces in of_rows(strategy, left).items():
        target = folder / f"{row}{MODEL_ENDING}"
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        joined(head_of(strategy, strategy.deliveries[row], pieces), pieces, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_folder(folder)
    delete(*(path for paths in left.values() for path in paths))


def write_held(strategy: Strategy[Any, Any], folder: Path) -> None:
    """Write the users' models that the server of a deployed run has."""
    for row, delivery in strategy.deliveries.items():
        data = held(strategy, delivery)
        write_atomically(folder / f"{row}{MODEL_ENDING}", data, durable=True)


def models_in_memory(
    strategy: Strategy[Any, Any], contexts: Iterable[Context]
) -> dict[str, RowFile]:
    """The same of a run without a folder, by the rows' names."""
    left: dict[str, list[bytes]] = {}
    for context in contexts:
        left |= taken_from(context)
    return {
        row: RowFile(joined(head_of(strategy, strategy.deliveries[row], pieces), pieces, None))
        for row, pieces in of_rows(strategy, left).items()
    }


def of_rows(
    strategy: Strategy[Any, Any], left: Mapping[str, Sequence[Path | bytes]]
) -> dict[str, list[RowFile]]:
    """The pieces of each row that was delivered: those that answer its messages."""
    rows = {
        row: [RowFile(piece) for token in delivery.tokens for piece in left.get(token, [])]
        for row, delivery in strategy.deliveries.items()
    }
    return {row: pieces for row, pieces in rows.items() if pieces}


def head_of(strategy: Strategy[Any, Any], delivery: Delivery, pieces: Sequence[RowFile]) -> Header:
    """The header of a row's file; a line if users' models are not in it for want of room."""
    first, kept = pieces[0].header, all(piece.header.kept for piece in pieces)
    size = sum(piece.header.size for piece in pieces)
    clusters = strategy.user_clusters(delivery.row)
    note_model((first.combination or {}).get("rule", ""))
    if not kept and strategy.config.run.keep_models == "auto":
        strategy.job.note(
            f"{delivery.row}: the users' models take {human_bytes(size)} and are not kept; "
            "keep-models=all keeps them"
        )
    return replace(
        first,
        users=delivery.users,
        round=delivery.round,
        kept=kept,
        size=size,
        clusters={user: clusters[user] for user in delivery.users if user in clusters},
    )


OWN_AT_END = {"adapt", "fine-tune", END_HEAD}
"""Options of evaluations for which users find a model of their own."""


class Elsewhere(CorsageError):
    """Something that only a user's device has."""


class Absent:
    """In the place of the users' data and states, which a server does not have."""

    def __getattr__(self, name: str) -> Any:
        raise Elsewhere(f"{name} is on the device")

    def __getitem__(self, name: object) -> Any:
        raise Elsewhere(f"{name} is on the device")

    def __iter__(self) -> Any:
        raise Elsewhere("states are on the device")


def held(strategy: Strategy[Any, Any], delivery: Delivery) -> bytes:
    """A row's file of a deployed run: the users' models, if the server has them."""
    job, users = strategy.job, list(delivery.users)
    task = decode_task(task_for(job, delivery.round, users, dict(delivery.options)))
    absent: Any = Absent()
    client = client_class(strategy.name)(task, users, absent, job.network, [])
    client.states = absent
    models = models_of(strategy, delivery, client)
    arrays = Arrays() if models is None else tensors(client.network, models, [*range(len(users))])
    size = sum(array.nbytes for name, array in arrays.items() if name.startswith(OF_A_USER))
    if size > {"auto": AUTO_BYTES, "none": 0}.get(strategy.config.run.keep_models, size):
        arrays = Arrays()
    arrays |= fixed(job.network) if arrays else {}
    clusters = strategy.user_clusters(delivery.row)
    known = {user: clusters[user] for user in users if user in clusters}
    head = header_of(task, delivery, bool(arrays), size)
    form = asdict(client.arithmetic)
    if models is not None and models.spec is not None:
        form |= {"linear": "", "combination": models.spec}
    return encoded(replace(head, **form, clusters=known), arrays)


def models_of(
    strategy: Strategy[Any, Any], delivery: Delivery, client: Client[Any]
) -> Models | None:
    """The models that users are judged by, where they follow from what the server sends alone."""
    options, users, prepared = delivery.options, list(delivery.users), client.task.preparation
    at_the_end = OWN_AT_END & options.keys()
    if at_the_end or client.cohorts or (prepared and prepared.scaling == BY_USER):
        return None
    try:
        parcel = strategy.show(users, options)
        clusters = strategy.user_clusters(delivery.row)
        if set(parcel.shared) == {"models"} and not parcel.rows:  # users pick one of them
            picked = np.array([int(clusters[user]) for user in users], np.int64)
            return Models(parcel.shared["models"], picked=picked)
        return client.models(Got(parcel.shared, parcel.rows, options))
    except CorsageError:
        return None
    except Exception as error:  # a run's results are not lost for want of this
        log(DEBUG, "%s: %s", delivery.row, error, exc_info=True)
        return None


def header_of(task: Task, delivery: Delivery, kept: bool, size: int) -> Header:
    """The header of the file; samples on devices come as the model takes them."""
    return Header(
        strategy=task.algorithm,
        row=delivery.row,
        round=delivery.round,
        users=delivery.users,
        kept=kept,
        size=size,
        model=spec(task.model),
        shape=task.shape,
        num_classes=task.num_classes,
        seed=task.seed,
        threads=torch.get_num_threads(),
        preparation=task.preparation.json() if task.preparation else None,
        devices=True,
    )
