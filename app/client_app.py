"""The client app: one for all algorithms. A message names the algorithm, so a device that runs
this app never needs another one.

On a device each message is a process. What it loads is as little as a message needs; most of the
work is done by a worker that stays (`nodes/resident`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode

from corsage.app.nodes.deployed import is_client
from corsage.core.errors import ConfigError

if TYPE_CHECKING:
    from corsage.app.nodes.answers import Answers
    from corsage.app.nodes.own import Own


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
    parts = None
    if (data, model, train, client_fn, label, *feature_columns) != (None, None, None, None, ""):
        from corsage.app.nodes.own import own_of
        from corsage.datasets.given.given_samples import Columns

        parts = own_of(data, model, train, client_fn, Columns(label, tuple(feature_columns)))
    app, desk = ClientApp(mods=list(mods)), Desk(parts, private(train_mods))
    app.train(mods=[refused_here, *train_mods] if train_mods else [])(partial(desk.answer, "train"))
    app.evaluate()(partial(desk.answer, "evaluate"))
    app.query()(partial(desk.answer, "query"))
    return app


class Desk:
    """Where messages are answered: by the worker of this SuperNode, if it keeps one, or here.

    Parameters
    ----------
    own : what the app brings along of its own; a worker would not have it.
    guard : the name of a mod that would protect the node and not its users, if there is one.
    """

    def __init__(self, own: Own | None, guard: str) -> None:
        self.own, self.guard = own, guard

    def __reduce__(self) -> tuple[type[Desk], tuple[Own | None, str]]:
        """Another process, such as a worker of Ray's, keeps nothing of this one."""
        return Desk, (self.own, self.guard)

    def answer(self, kind: str, message: Message, context: Context) -> Message:
        """The reply to a message of a kind."""
        if self.own is None and is_client():
            from corsage.app.nodes.resident.door import ask

            if (reply := ask(kind, message, context, self.guard)) is not None:
                return reply
        return self.here.answer(kind, message, context)

    @cached_property
    def here(self) -> Answers:
        """The answers of this process itself; their code is loaded when it is needed."""
        from corsage.app.nodes.answers import Answers

        return Answers(self.own, self.guard)


def private(mods: Sequence[Mod]) -> str:
    """The name of a mod among these whose unit of privacy is the node, if there is one."""
    for mod in mods:
        if isinstance(mod, LocalDpMod):
            return type(mod).__name__
        if mod in (fixedclipping_mod, adaptiveclipping_mod):
            return str(getattr(mod, "__name__", mod))
    return ""


def refused_here(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """The reply, to the message also where a mod refuses what comes back, and answers that."""
    reply = answer(message, context)
    if not reply.has_error() or reply.error.code != ErrorCode.MOD_FAILED_PRECONDITION:
        return reply
    reason = (
        f"{reply.error.reason} Such a mod is for methods whose users send back the arrays that "
        "they are sent, and no others, as those of strategy=fedavg do; take it out, or another "
        "strategy."
    )
    return Message(Error(reply.error.code, reason), reply_to=message)


app = make_client_app()
