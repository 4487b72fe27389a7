"""Parts that an app brings along: its data, its model, its training function.

`make_client_app(data=..., model=..., train=...)` makes an `Own`; without it a node has a share of a
data set, or a device's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.app import Context

from corsage.app.nodes.deployed import is_device
from corsage.app.nodes.node import Node, own_words
from corsage.clients import client_class
from corsage.core.configuration.config import named_objects
from corsage.core.configuration.held_objects import Held, is_name, same
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError, DataError, Refused
from corsage.core.messages.limits import Limits
from corsage.core.messages.wire import Task
from corsage.core.registry import ALGORITHMS
from corsage.core.seeding import generator
from corsage.datasets.dealing import partitions
from corsage.datasets.dealing.dealt import Dealt, known_clusters
from corsage.datasets.dealing.federated import arrange, made
from corsage.datasets.given.given_samples import Columns, Samples, is_data_set, samples_of
from corsage.datasets.given.given_table import as_it_is, is_many, table_of, users_of
from corsage.datasets.given.given_table import entries as entries_of
from corsage.datasets.user_data import FederatedData

if TYPE_CHECKING:
    from corsage.networks.own_training import OwnTraining

NAMELESS = (
    'this node has no user id: set user=NAME in its node config ("user=NAME"), or give the data as '
    "{user: samples}"
)
Loader = Callable[[Context], Any]


@dataclass(frozen=True)
class Own:
    """The app's own data, model and training.

    Parameters
    ----------
    data : from the node's context to what its user has, or to `{user: samples}`.
    model : the key that names the model; empty: as the server says.
    held : the model, if it is an object of this process.
    columns : which columns of a data set are meant.
    train, client_fn : how the app trains a model itself: a function `train(model, data, ...)`, or
        what makes a NumPyClient, as Flower's `client_fn`.
    """

    data: Loader | None = None
    model: str = ""
    held: tuple[Held, ...] = ()
    columns: Columns = Columns()
    train: Callable[..., Any] | None = None
    client_fn: Callable[[Context], Any] | None = None

    def check(self, task: Task) -> None:
        """Refuse another model than this app's."""
        asked = task.model.model
        if not self.model or asked == self.model or same(asked, self.model):
            return
        if is_name(self.model) and is_name(asked):
            raise Refused(
                "the model is an object of each process by itself; give make_client_app and the "
                "strategy a class or a function that can be imported"
            )
        mine = "an object of its own" if is_name(self.model) else self.model
        raise Refused(
            f"model={asked[:80]} is not this app's ({mine}); give the strategy the same: "
            "FedRep(context.run_config, model=...)"
        )

    def allowed(self, limits: Limits) -> Limits:
        """A device's limits: who wrote its app said which model it builds."""
        return replace(limits, models=(*limits.models, self.model)) if self.model else limits

    def node(self, context: Context, task: Task) -> Node:
        """The node with the app's own data."""
        assert self.data is not None
        self.check(task)
        self.check_method(task.algorithm)
        given = self.data(context)
        samples, clusters = self.users(given, context.node_config)
        labels = "numbers" if getattr(task.device_data, "labels", "") == "numbers" else ""
        table = as_it_is(table_of(samples, clusters, labels))  # who loads data prepares them too
        users, parts = partitions.natural(table.users, 0, generator(task.seed, "device"))  # type: ignore[arg-type]
        dealt = Dealt(users, parts, known_clusters(users, parts, table.clusters))
        facts, arrays = arrange(table, dealt, task.device_data, task.seed)
        data = made(facts, arrays)
        classes = self.classes(data, task, context.node_config)
        node = Node(
            replace(data, num_classes=classes),
            tuple(users),
            simulated=not is_device(context),
            training=self.training(context, users, given),
        )
        return replace(node, **own_words(context.node_config)) if is_device(context) else node

    def check_method(self, name: str) -> None:
        """Refuse a method whose steps a training function of the app's own cannot do."""
        if self.train is None and self.client_fn is None:
            return
        able = [n for n in ALGORITHMS if vars(client_class(n)).get("own_training", False)]
        if name not in able:
            raise Refused(
                f"strategy={name}: its steps are more than training a model, so a training "
                f"function of the app's own cannot do them; {', '.join(able)} can be trained so, "
                "and without train= Corsage trains for any strategy"
            )

    def training(self, context: Context, users: list[str], given: Any) -> OwnTraining | None:
        """The training function of the node's users, if it is not Corsage's SGD."""
        if self.train is None and self.client_fn is None:
            return None
        from corsage.networks.own_trainers import ClientTrainer, FunctionTrainer
        from corsage.networks.own_training import OwnTraining

        if self.client_fn is not None and len(users) > 1:
            raise ConfigError(
                f"client_fn makes one client a node, and this node hosts {len(users)} users; give "
                "train= instead, or each user a node of its own"
            )
        entries = dict(entries_of(given)) if is_many(given) else {users[0]: given}
        originals = {user: train_part(entry) for user, entry in entries.items()}
        kept = {user: part for user, part in originals.items() if part is not None}
        if self.client_fn is not None:
            return OwnTraining(ClientTrainer(partial(self.client_fn, context)), kept)
        assert self.train is not None
        return OwnTraining(FunctionTrainer(self.train), kept)

    def users(
        self, given: Any, words: Mapping[str, Any]
    ) -> tuple[dict[str, Samples], dict[str, str]]:
        """The samples of each of the node's users, and their clusters as the node config says."""
        if is_many(given):
            return users_of(given, self.columns), {}
        name = words.get("user", words.get("partition-id"))
        if name is None:
            raise ConfigError(NAMELESS)
        user, cluster = str(name), str(words.get("cluster", ""))
        try:
            own = samples_of(given, self.columns)
        except DataError as error:
            raise DataError(f"user {user}: {error}") from error
        return {user: own}, {user: cluster} if cluster else {}

    def classes(self, data: FederatedData, task: Task, words: Mapping[str, Any]) -> int:
        """The number of classes: as the node config says, or a model that knows by itself."""
        if not data.num_classes:
            return 0
        said = int(words.get("num-classes", 0)) or self.outputs(data, task.model)
        return max(said, data.num_classes)

    def outputs(self, data: FederatedData, keys: ModelKeys) -> int:
        """The outputs of a model that takes no number of them; 0 if it does take one."""
        if not self.model:
            return 0
        from corsage.networks.own_models import fixed_outputs

        return fixed_outputs(keys, data.shape)


def train_part(entry: Any) -> Any:
    """The data set or its loader that an app trains on; None for arrays."""
    part = entry.get("train") if isinstance(entry, Mapping) else entry
    if isinstance(part, tuple | list) and len(part) == 2:
        part = part[0]
    return part if is_data_set(part) and part is not entry else None


def own_of(
    data: Loader | None,
    model: Any,
    train: Callable[..., Any] | None,
    client_fn: Callable[[Context], Any] | None,
    columns: Columns,
) -> Own | None:
    """The parts that an app brings along, if it brings any."""
    if data is not None and not callable(data):
        raise ConfigError(
            "make_client_app: data= is a function from the node's context to its data; "
            f"this is a {type(data).__name__}."
        )
    own = (model, train, client_fn)
    if data is None and (any(part is not None for part in own) or columns != Columns()):
        raise ConfigError("make_client_app: give data= too, from which a node knows its users.")
    if train is not None and client_fn is not None:
        raise ConfigError("make_client_app: train= or client_fn=, not both.")
    if data is None:
        return None
    if train is not None:
        from corsage.networks.own_trainers import parameters_of

        parameters_of(train)  # or an error, before anything runs
    values, held = named_objects({"model": model} if model is not None else {})
    return Own(data, str(values.get("model", "")), held, columns, train, client_fn)
