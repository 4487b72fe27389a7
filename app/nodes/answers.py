"""A node's answers to messages, in whatever process they are answered.

Whoever is only asked who its users are does not load torch: on a device a message may be a process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from logging import DEBUG, WARNING
from threading import Lock, Timer, get_ident
from typing import TYPE_CHECKING, Any

import threadpoolctl
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from corsage.app.nodes.deployed import is_device
from corsage.app.nodes.device import admitted, experiment_of, frozen_of, read_task
from corsage.app.nodes.node import Node, Nodes, Order, client_of
from corsage.app.nodes.places import Places
from corsage.app.nodes.reporting import describe, outward
from corsage.app.states.state_dir import mark_key, proof_of
from corsage.core.errors import CheckpointError, Refused, StorageError
from corsage.core.messages.aboard import joined, on_board
from corsage.core.messages.asked import Takes, options_of
from corsage.core.messages.encoding import decode
from corsage.core.messages.fields import BELIEVING, Doubt
from corsage.core.messages.introduction import Introduction, counted, encode_introduction
from corsage.core.messages.limits import limits_of
from corsage.core.messages.replies import encode_reply
from corsage.core.messages.wire import END_HEAD, ENDS_THE_RUN, ENDS_THE_STRATEGY, decode_task
from corsage.core.registry import attachment
from corsage.core.version import untested

if TYPE_CHECKING:
    from corsage.app.nodes.own import Own


class Answers:
    """The answers of a process, and what it keeps for the next message.

    Parameters
    ----------
    own : what the app brings along of its own, if anything.
    guard : the name of a mod that would protect the node and not its users, if there is one.
    """

    def __init__(self, own: Own | None = None, guard: str = "") -> None:
        self.guard, self.nodes, self.places = guard, Nodes(own), Places()

    def answer(self, kind: str, message: Message, context: Context) -> Message:
        """The reply to a message of a kind: `train`, `evaluate` or `query`."""
        if is_device(context):
            return self._safely(kind, message, context)
        try:
            content: Any = message.content
            task = decode_task(content["config"])
            node = self.nodes.of(context, task)
            if kind == "query":
                return introduced(message, introduction(node), self.guard)
            for options in (task.options, *task.cohort_options):
                options_of(options, client_of(task).takes, BELIEVING)
            limit_threads(task.train.torch_threads)
            rows = decode(content["rows"]) if "rows" in content else {}
            order = Order(task, decode(content["arrays"]), rows)
            return self._worked(kind, order, node, message, context)
        except (StorageError, CheckpointError) as error:  # of simulated users
            damaged = isinstance(error, CheckpointError)
            return failure(message, str(error), ENDS_THE_STRATEGY if damaged else ENDS_THE_RUN)
        except Exception as error:
            said = str(error) if kind == "query" else f"{kind}: {describe(error)}"
            return failure(message, said or describe(error))

    def _worked(
        self, kind: str, order: Order, node: Node, message: Message, context: Context
    ) -> Message:
        """The reply to an order; an error if all that there is to report is one cause."""
        from corsage.app.nodes.work import work

        task, places = order.task, self.places
        if self.guard and kind == "train" and END_HEAD in task.options:
            return failure(message, f"{self.guard} protects models, not the sums of end-heads")
        keeps = client_of(task).personal
        store = places.states(context, node, task) if keeps else None
        models = places.models(context, node, task) if kind == "evaluate" else None
        report = work(kind, order, node, store, models)
        if not report.users and not report.lost and len(set(report.failed.values())) == 1:
            return failure(message, next(iter(report.failed.values())))
        report.exchange = task.exchange
        return Message(encode_reply(report), reply_to=message)

    # On a device, which does what it allows.

    def _safely(self, kind: str, message: Message, context: Context) -> Message:
        """A device's reply, whatever happens."""
        if kind == "query":
            user = str(context.node_config.get("user", ""))
            who = f"user {user}" if user else "device"
            return guarded(who, message, context, partial(self._introduce, message, context))
        return guarded(kind, message, context, partial(self._obey, kind, message, context))

    def _introduce(self, message: Message, context: Context) -> Message:
        """Say who its users are and what their data look like."""
        task = read_task(message.content, limits_of(context.node_config))
        node = self.nodes.of(context, task)
        if line := untested():
            log(WARNING, line)
        limits = self.nodes.limits(context)
        options_of(task.options, Takes(), Doubt(limits))
        about = replace(
            introduction(node, mark_key(node.state_dir, task.experiment)),
            proof=proof_of(node.state_dir, task.experiment),
            frozen=frozen_of(task, node, limits),
            most=limits.max_parameters,
        )
        return introduced(message, about, self.guard)

    def _obey(self, kind: str, message: Message, context: Context) -> Message:
        """Train or evaluate; an evaluation on board comes first: it is of the models before."""
        inner = on_board(message) if kind == "train" else None
        if inner is None:
            return self._do(kind, message, context)
        evaluated, trained = (
            caught(name, one, partial(self._do, name, one, context))
            for name, one in (("evaluate", inner), (kind, message))
        )
        return Message(joined(trained, evaluated), reply_to=message)

    def _do(self, kind: str, message: Message, context: Context) -> Message:
        """One thing that a device is asked for."""
        limits = self.nodes.limits(context)
        task = read_task(message.content, limits)
        node = self.nodes.of(context, task)
        order = admitted(task, node, message.content, limits)
        limit_threads(node.threads or limits.threads(task.train.torch_threads))
        own = replace(order.task, experiment=experiment_of(task))
        return self._worked(kind, replace(order, task=own), node, message, context)


def guarded(phase: str, message: Message, context: Context, work: Callable[[], Message]) -> Message:
    """A device's reply, whatever happens: within its time, and no error but in safe words."""
    try:
        with time_limit(limits_of(context.node_config).max_seconds):
            return caught(phase, message, work)
    except TimeUp:
        return too_long(phase, message, context)
    except (Exception, SystemExit) as error:  # of the limits themselves
        return failure(message, outward(phase, error))


def caught(phase: str, message: Message, work: Callable[[], Message]) -> Message:
    """A reply, or the error in words that may leave the device."""
    try:
        return work()
    except (Exception, SystemExit) as error:
        return failure(message, outward(phase, error))


def too_long(phase: str, message: Message, context: Context) -> Message:
    """The reply of a device whose time for one message is over."""
    limits = limits_of(context.node_config)
    why = f"more than this device allows (max-seconds={limits.max_seconds:g})"
    return failure(message, outward(phase, Refused(f"the work took {why}")))


def introduced(message: Message, who: Introduction, guard: str) -> Message:
    """A node's introduction, or why it cannot take part: a guard of nodes protects no user."""
    if guard and len(who.users) > 1:
        return failure(
            message,
            f"{guard} protects what a node sends, and this node hosts {len(who.users)} users: "
            "give each user a node of its own, in a simulation by num-nodes as large as num-users",
        )
    return Message(encode_introduction(who), reply_to=message)


def introduction(node: Node, secret: bytes = b"") -> Introduction:
    """A node's users, and what their data look like; a device without a secret has no marks."""
    data = node.data
    places = data.places(node.users)
    train, test = (part[places].tolist() for part in (data.train_sizes, data.test_sizes))
    clusters = [data.clusters.get(user, "") for user in node.users]
    users = counted(node.users, train, test, clusters)
    found = Introduction(users, data.shape, data.num_classes, node.table)
    if (same := attachment("same data")) is None or not (node.simulated or secret):
        return found
    marks = node.cache.get(("marks", secret), lambda: same.marks(data, node.users, secret))
    return replace(found, marks=marks)


class TimeUp(BaseException):
    """The time that a device gives to one message is over.

    No `Exception`: what catches those, to go on with the next user, must not catch this.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeUp in this thread, between two of its instructions, once the time is over."""
    thread, lock = get_ident(), Lock()
    working = True

    def ring() -> None:
        with lock:
            if working:
                raise_in(thread, TimeUp)

    timer = Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            working = False


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Have Python raise an exception in another thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def limit_threads(number: int) -> None:
    """Torch and BLAS share the cores with other nodes: more threads than cores spin."""
    _limit_threads(number, "scipy.linalg" in sys.modules)


@lru_cache(maxsize=1)
def _limit_threads(number: int, with_scipy: bool) -> None:
    """SciPy has a BLAS of its own, which is there once somebody needs it."""
    import torch

    torch.set_num_threads(number)
    threadpoolctl.threadpool_limits(number, user_api="blas")


def failure(
    message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
) -> Message:
    """An error as a reply; all of it is in the log."""
    log(DEBUG, "the message failed", exc_info=True)
    return Message(Error(code=code, reason=reason), reply_to=message)
