"""The client app: one for all algorithms. A message names the algorithm, so a device that runs
this app never needs another one.

Whoever is only asked who its users are does not load torch: on a device each message is a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from logging import DEBUG, WARNING
from typing import TYPE_CHECKING, Any

import threadpoolctl
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from corsage.app.nodes.device import admitted, experiment_of, frozen_of, read_task
from corsage.app.nodes.identity import proof_of
from corsage.app.nodes.node import Node, Nodes, is_device
from corsage.app.nodes.outward import describe, outward
from corsage.app.nodes.own import own_of
from corsage.app.nodes.patience import TimeUp, time_limit
from corsage.app.nodes.places import Places
from corsage.core.encoding import decode, encode
from corsage.core.errors import CheckpointError, ConfigError, Refused, StorageError
from corsage.core.limits import limits_of
from corsage.core.version import untested
from corsage.core.wire import ENDS_THE_RUN, ENDS_THE_STRATEGY, config_record, decode_task
from corsage.datasets.given.samples import Columns

if TYPE_CHECKING:
    from corsage.app.nodes.work import Report


def make_client_app(
    mods: Sequence[Mod] = (),
    train_mods: Sequence[Mod] = (),
    *,
    data: Callable[[Context], Any] | None = None,
    model: Any = None,
    train: Callable[..., Any] | None = None,
    client_fn: Callable[[Context], Any] | None = None,
    label: str = "",
    feature_columns: Sequence[str] = (),
) -> ClientApp:
    """A client app for all algorithms, on data, a model and a training function of one's own.

    Parameters
    ----------
    mods, train_mods : Flower's client mods. `mods` see every message, `train_mods` those for
        training only: Flower's mods for differential privacy refuse messages that ask for no
        update. These protect what a node sends: a node that hosts several users is refused.
    data : from the node's context to what its user has, in any form that `simulate` takes; or to
        `{user: samples}`. The user is called by the node config's `user`, or its `partition-id`.
        Without it a node has a share of a data set, or a device's own file.
    model : a class, a function that makes a torch module, or such a module; the strategy is to be
        given the same, `FedRep(context.run_config, model=Net)`.
    train : `train(model, data, ...)`, which takes the place of Corsage's SGD. What it may ask for
        beyond that, by name: config, epochs, lr, batch_size, momentum, weight_decay, device, part,
        round, user.
    client_fn : in the place of `train`, what makes Flower's NumPyClient, whose `fit` trains.
    label, feature_columns : columns of a data set that has names, if not the usual ones.
    """
    if found := private(mods):
        raise ConfigError(f"make_client_app: mods={found}: give it as one of train_mods.")
    own = own_of(data, model, train, client_fn, Columns(label, tuple(feature_columns)))
    app, nodes, places = ClientApp(mods=list(mods)), Nodes(own), Places()
    guard = private(train_mods)

    @app.train(mods=list(train_mods))
    def on_train(message: Message, context: Context) -> Message:
        return answer("train", message, context, nodes, places)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer("evaluate", message, context, nodes, places)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return introduce(message, context, nodes, guard)

    return app


def private(mods: Sequence[Mod]) -> str:
    """The name of a mod among these whose unit of privacy is the node, if there is one."""
    for mod in mods:
        if isinstance(mod, LocalDpMod):
            return type(mod).__name__
        if mod in (fixedclipping_mod, adaptiveclipping_mod):
            return str(getattr(mod, "__name__", mod))
    return ""


def answer(kind: str, message: Message, context: Context, nodes: Nodes, places: Places) -> Message:
    """Train or evaluate the users that the message names."""
    if is_device(context):
        return guarded(kind, message, context, partial(obey, kind, message, context, nodes, places))
    from corsage.app.nodes.work import work

    try:
        content: Any = message.content
        task = decode_task(content["config"])
        node = nodes.of(context, task)
        limit_threads(task.train.torch_threads)
        report = work(
            kind,
            task,
            node,
            places.of(context, node, task),
            decode(content["arrays"]),
            decode(content["rows"]) if "rows" in content else {},
        )
    except (StorageError, CheckpointError) as error:  # of simulated users
        damaged = isinstance(error, CheckpointError)
        return _failure(message, str(error), ENDS_THE_STRATEGY if damaged else ENDS_THE_RUN)
    except Exception as error:
        return _failure(message, f"{kind}: {describe(error)}")
    return _answered(message, report, task.exchange)


def obey(kind: str, message: Message, context: Context, nodes: Nodes, places: Places) -> Message:
    """The same on a device, which does what it allows."""
    limits = nodes.limits(context)
    task = read_task(message.content, limits)
    node = nodes.of(context, task)
    order = admitted(task, node, message.content, limits)
    limit_threads(node.threads or limits.threads(task.train.torch_threads))
    from corsage.app.nodes.work import work

    store = places.of(context, node, replace(task, experiment=experiment_of(task)))
    report = work(kind, order.task, node, store, order.arrays, order.rows)
    return _answered(message, report, task.exchange)


def guarded(phase: str, message: Message, context: Context, work: Callable[[], Message]) -> Message:
    """A device's reply, whatever happens: within its time, and no error but in safe words."""
    try:
        with time_limit(limits_of(context.node_config).max_seconds):
            return work()
    except TimeUp:
        limits = limits_of(context.node_config)
        why = f"more than this device allows (max-seconds={limits.max_seconds:g})"
        return _failure(message, outward(phase, Refused(f"the work took {why}")))
    except (Exception, SystemExit) as error:
        return _failure(message, outward(phase, error))


def _answered(message: Message, report: Report, exchange: str) -> Message:
    """A report as a reply; an error if all that there is to report is one cause."""
    if not report.users and not report.lost and len(set(report.failed.values())) == 1:
        return _failure(message, next(iter(report.failed.values())))
    return Message(_reply(report, exchange), reply_to=message)


def introduce(message: Message, context: Context, nodes: Nodes, guard: str = "") -> Message:
    """Say who the node's users are and what their data look like.

    `guard` is a mod that would protect the node and not its users.
    """
    if is_device(context):
        user = str(context.node_config.get("user", ""))
        who = f"user {user}" if user else "device"
        return guarded(who, message, context, partial(say, message, context, nodes, guard))
    try:
        node = nodes.of(context, decode_task(message.content.config_records["config"]))
    except Exception as error:
        return _failure(message, str(error) or describe(error))
    return introduced(message, node, guard)


def say(message: Message, context: Context, nodes: Nodes, guard: str) -> Message:
    """The same on a device."""
    task = read_task(message.content, limits_of(context.node_config))
    node = nodes.of(context, task)
    if line := untested():
        log(WARNING, line)
    proof = proof_of(node.state_dir, task.experiment)
    return introduced(message, node, guard, proof, frozen_of(task, node, nodes.limits(context)))


def introduced(
    message: Message, node: Node, guard: str, proof: str = "", frozen: str = ""
) -> Message:
    """A node's introduction, or why it cannot take part."""
    if guard and len(node.users) > 1:
        return _failure(
            message,
            f"{guard} protects what a node sends, and this node hosts {len(node.users)} users: "
            "give each user a node of its own, in a simulation by num-nodes as large as num-users",
        )
    return Message(introduction(node, proof, frozen), reply_to=message)


def introduction(node: Node, proof: str = "", frozen: str = "") -> RecordDict:
    """A node's users, what their data look like, and what only a device can say of itself."""
    data = node.data
    place = {user: i for i, user in enumerate(data.users)}
    return RecordDict(
        {
            "config": config_record(
                {
                    "users": list(node.users),
                    "clusters": [data.clusters.get(user, "") for user in node.users],
                    "input-shape": list(data.shape),
                    "num-classes": data.num_classes,
                    "proof": proof,
                    "frozen": frozen,
                    "table": node.table,
                }
            ),
            "metrics": MetricRecord(
                {
                    "train": [int(data.train_sizes[place[user]]) for user in node.users],
                    "test": [int(data.test_sizes[place[user]]) for user in node.users],
                }
            ),
        }
    )


@lru_cache(maxsize=1)
def limit_threads(number: int) -> None:
    """Torch and NumPy's BLAS share the cores with other nodes: more threads than cores spin."""
    import torch

    torch.set_num_threads(number)
    threadpoolctl.threadpool_limits(number, user_api="blas")


def _reply(report: Report, exchange: str) -> RecordDict:
    """A report as the records of a reply."""
    content = RecordDict(
        {
            "metrics": MetricRecord(dict(report.metrics)),
            "config": config_record(
                {
                    "exchange": exchange,
                    "users": report.users,
                    "failed": list(report.failed),
                    "causes": list(report.failed.values()),
                    "lost": report.lost,
                    "kept": report.kept,
                }
            ),
        }
    )
    if report.mean:
        content["arrays"] = encode(report.mean)
    if report.rows:
        content["rows"] = encode(report.rows)
    return content


def _failure(
    message: Message, reason: str, code: int = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
) -> Message:
    log(DEBUG, "the message failed", exc_info=True)
    return Message(Error(code=code, reason=reason), reply_to=message)


app = make_client_app()
