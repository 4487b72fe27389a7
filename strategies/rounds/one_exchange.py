"""A round of one exchange, as most methods have it: users train, and the server takes a step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Arrays
from corsage.core.measures import GRADIENT_STEPS
from corsage.core.replies import Replies
from corsage.core.schema import Schema
from corsage.core.wire import BY_USER
from corsage.strategies.rounds.model_arrays import lean
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy


def one_exchange(strategy: Strategy[Any, Any], number: int) -> Script[Replies]:
    """The users of a round train on what they are sent, and the state is what that comes to."""
    federation, config, averaging = strategy.federation, strategy.config, strategy.averaging
    users = strategy.choose(number, federation.users)
    options = {**strategy.train_options, **strategy.options(number)}
    numbers, sent = (*strategy.numbers("train"), GRADIENT_STEPS), Arrays()
    schema = Schema(strategy.template(), strategy.by_user, numbers)
    if config.robust.on or config.server.on:
        sent = averaged(strategy)
    if config.robust.on:
        averaging.check_enough(len(users))
        schema = replace(schema, by_user=tuple(schema.arrays))
        options[BY_USER] = True
    parcel = strategy.send(users)
    question = federation.outgoing.question("train", users, parcel, schema, options, number)
    replies = yield question
    strategy.accept_round(number, replies)
    replies = strategy.server_step.taken(averaging.merged(replies, sent), sent)
    strategy.state = lean(strategy.merge(replies))
    federation.books.count(question, replies)
    return replies


def averaged(strategy: Strategy[Any, Any]) -> Arrays:
    """What users were sent of the arrays that are averaged; zeros where they send changes."""
    own, zero = strategy.shared(), np.zeros_like
    return {
        name: zero(like) if name in strategy.changes else own[name]
        for name, like in strategy.template().items()
        if name not in strategy.by_user
    }
