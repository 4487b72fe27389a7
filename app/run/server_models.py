"""Users' models that the server of a deployed run has itself: of some methods all, or none."""

from __future__ import annotations

from dataclasses import asdict, replace
from logging import DEBUG
from typing import Any

import numpy as np
import torch
from flwr.supercore import log

from corsage.app.nodes.delivery import fixed, tensors
from corsage.app.results.header import Header, spec
from corsage.app.results.rowfile import OF_A_USER, encoded
from corsage.clients import client_class
from corsage.clients.base import Client, Got, Models
from corsage.core.arrays import Arrays
from corsage.core.configuration.data_keys import BY_USER
from corsage.core.errors import CorsageError
from corsage.core.messages.wire import END_HEAD, Task, decode_task
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.evaluations import AUTO_BYTES, Delivery
from corsage.strategies.rounds.outgoing import task_for

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
