"""Two messages in one: a training message that has an evaluation on board, and its reply.

The evaluation has a task of its own, in a record beside the training's, and takes the arrays of the
training message. It adds none: Flower's mods that clip or noise want one record of arrays.
"""

from __future__ import annotations

import copy
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

EVALUATION = "evaluation"
"""The record of the evaluation's task in the message, and of what was done in the reply."""
METRICS = "evaluation-metrics"
FAILED_WHOLE = "failed-as-a-whole"
"""The record with the causes, where the training or the evaluation has no result at all."""


def packed(training: RecordDict, evaluation: RecordDict) -> RecordDict:
    """A training message's content with an evaluation on board."""
    return RecordDict({**training, EVALUATION: evaluation["config"]})


def on_board(message: Message) -> Message | None:
    """The evaluation message that a training message has on board, if it has one."""
    content: Any = message.content
    task, arrays = content.get(EVALUATION), content.get("arrays")
    if not isinstance(task, ConfigRecord):
        return None
    return part(
        message, RecordDict({"config": task, **({} if arrays is None else {"arrays": arrays})})
    )


def joined(trained: Message, evaluated: Message) -> RecordDict:
    """The content of one reply out of two."""
    content = RecordDict() if trained.has_error() else RecordDict({**trained.content})
    causes: dict[str, Any] = {}
    if trained.has_error():
        causes["train"] = trained.error.reason
    if evaluated.has_error():
        causes["evaluate"] = evaluated.error.reason
    else:
        content[EVALUATION] = evaluated.content["config"]
        content[METRICS] = evaluated.content["metrics"]
    if causes:
        content[FAILED_WHOLE] = ConfigRecord(causes)
    return content


def split(reply: Message) -> tuple[Message, Message]:
    """The replies to the training and to the evaluation, as if they had come by themselves."""
    if not reply.has_content():
        return reply, reply
    content: Any = reply.content
    names = {EVALUATION: "config", METRICS: "metrics"}
    apart = {names[name]: record for name, record in content.items() if name in names}
    rest = {name: record for name, record in content.items() if name not in (*names, FAILED_WHOLE)}
    causes = content.get(FAILED_WHOLE)
    causes = causes if isinstance(causes, ConfigRecord) else {}
    return (
        half(reply, rest, causes.get("train")),
        half(reply, apart, causes.get("evaluate")),
    )


def half(reply: Message, records: dict[str, Any], cause: object) -> Message:
    """One of the two replies; an error if it has a cause in the place of records."""
    if isinstance(cause, str) and not records:
        return part(reply, None, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, cause))
    return part(reply, RecordDict(records))


def part(message: Message, content: RecordDict | None, error: Error | None = None) -> Message:
    """A message with something else in it."""
    found = copy.copy(message)
    found.__dict__.update(_content=content, _error=error)
    return found
