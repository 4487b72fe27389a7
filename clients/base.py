"""The base of every client: what the users of a node do in one exchange.

An algorithm overrides `train`, `models`, and perhaps `adapt`. They work for several users at once:
arrays of users have a leading axis, one row a user (one row on a device). The node restores what
the users kept before, and keeps what `Sent.keep` says after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.parts.contract import FlowerClient, Got, Models, Sent, report
from corsage.clients.parts.samples import Samples, orders_of
from corsage.core.arrays import Array, Arrays, Floats32
from corsage.core.cache import Cache, Names
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.configuration.train_keys import LOSS
from corsage.core.errors import ConfigError, UserError
from corsage.core.keys import Keys
from corsage.core.measures import ADAPTATION_STEPS, GRADIENT_STEPS, USUAL_MEASURES, Measure, chosen
from corsage.core.messages.asked import Takes
from corsage.core.messages.wire import DELIVER_OPTION, OUTCOMES, Task
from corsage.core.registry import attached
from corsage.datasets.user_data import FederatedData
from corsage.networks.batches import Examples, Loss, Order
from corsage.networks.local_training import train_bodies, train_heads, train_models
from corsage.networks.network import Network
from corsage.networks.proximal import Pull
from corsage.networks.training import Types
from corsage.networks.user_scores import Arithmetic, features_of_each, score
from corsage.strategies.effort import work_of

if TYPE_CHECKING:
    from corsage.clients.parts.own_steps import OwnSteps

__all__ = ["Client", "Got", "K", "Models", "Sent"]

K = TypeVar("K", bound=Keys)


class Client(FlowerClient, Generic[K]):
    """Base of Corsage's clients.

    Parameters
    ----------
    task : what the server asks for; `task.train` and `task.keys` are the settings.
    users : the users to work for.
    data : the node's data.
    network : the model, whose parameters are to be set before use.
    states : what each user kept when it was last merged; empty at first.
    cache : what the node prepared in earlier messages.
    """

    takes: ClassVar[Takes] = Takes()  # what a message may hold for it
    personal: ClassVar[bool] = False  # does a user keep anything between rounds?
    effort: float = 1.0  # what the epochs of a round are multiplied by (work=equal)
    own_training: ClassVar[bool] = False  # can an app's own training function do its steps?
    pace: float = 0.0  # steps that stand for an epoch (work=equal with local-steps); 0: all batches
    by_arithmetic: ClassVar[bool] = False  # do convex losses stand for the network?
    cohorts: ClassVar[bool] = False  # are all users of a known cluster at a node one participant?

    def __init_subclass__(cls) -> None:
        """Refuse a score of another prediction than that of what is stored, loaded and exported."""
        super().__init_subclass__()
        if "outputs" in vars(cls) and "by_arithmetic" not in vars(cls):
            why = "users are scored by what `models` returns, which is loaded and exported, too"
            raise ConfigError(f"{cls.__name__}.outputs: {why}; a Combined has several vectors.")

    def __init__(
        self,
        task: Task,
        users: Sequence[str],
        data: FederatedData,
        network: Network,
        states: Sequence[Arrays],
        cache: Cache | None = None,
    ) -> None:
        self.task, self.users, self.data = task, list(users), data
        self.names = users if isinstance(users, Names) else Names(users)
        self.keys, self.settings = cast(K, task.keys), task.train
        self.full = network
        # What trains: the rear, on features of the frozen front; of images that change all of it.
        self.network = network if self.settings.augment else network.rear
        self.states, self.cache = list(states), cache or Cache()
        self.judged: Models | None = None  # the models that were judged last
        self.outcomes: Arrays = {}  # and the sums of test samples that are sent of them
        self.at_home = False  # in a simulation no number leaves a machine
        self.floor = 0  # rows that what is sent in sums is of, at least
        self.training: OwnSteps | None = None  # of the app's own, instead of Corsage's SGD
        self.steps = np.zeros(len(self.users), np.int64)  # gradients computed for each user

    # What an algorithm overrides.

    def train(self, got: Got, data: Examples) -> Sent:
        """A user's work of a round."""
        raise NotImplementedError

    def models(self, got: Got) -> Models:
        """Each user's own model."""
        raise NotImplementedError

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user's own model: by default after a round of so many epochs.

        What it would send is let go.
        """
        self.settings = replace(self.settings, local_epochs=epochs, local_steps=0)
        self.remember(self.train(got, data).keep)
        return self.models(got)

    def tuned(self, got: Got, data: Examples, epochs: int, part: str) -> Models:
        """Each user's model after epochs on a part at the end: its `own`, or a global one's."""
        return self.adapt(got, data, epochs)

    def loss(self, got: Got, user: str, labels: Tensor) -> Loss:
        """A user's own loss, a function of a batch's (features, outputs, labels).

        `got` is what came, `labels` are those of all the user's training samples; features are what
        goes into the head. A client that does not override this is trained on the model's loss.
        """
        raise NotImplementedError

    # The node's doors; Flower's are in parts/contract.py.

    def respond(self, got: Got) -> Sent:
        """A training message: `train`, on the users' training data."""
        data = self.train_data(got)
        self.effort, self.pace = work_of(self.task.algorithm, self.settings, self.task.keys)
        sent = self.train(got, data)
        usual = {"num-examples": data.sizes, GRADIENT_STEPS.name: self.steps}
        return replace(sent, metrics={**usual, **sent.metrics})

    def judge(self, got: Got) -> Mapping[str, NDArray[Any]]:
        """An evaluation message: how good each user's own model is."""
        if got.options.get("adapt"):
            models = self.adapt(got, self.train_data(got), int(got.options["adapt-epochs"]))
        elif part := str(got.options.get("fine-tune", "")):
            models = self.tuned(got, self.train_data(got), self.settings.fine_tune_epochs, part)
        else:
            models = self.models(got)
        self.judged, data = models, self.test_data()
        outputs = self.outputs(models, data) if len(data.y) else data.x
        facts = data, self.measures, self.task.num_classes
        found = report(score(self.network.criterion, outputs, *facts))
        if most := int(got.options.get(OUTCOMES, 0)):
            self.outcomes = {OUTCOMES: attached("outcomes").sums(self, outputs, data, most)}
        guesses = attached("baseline").baselines_of(self, got, data)
        return {**found, **guesses, ADAPTATION_STEPS.name: self.steps, **models.metrics}

    # What algorithms build on.

    def train_by(self, own: OwnSteps) -> None:
        """Train the whole model by an app's own function from here on."""
        self.training, self.network = own, self.full

    def remembered(self, name: str, initial: Array) -> Array:
        """Arrays that the users kept under a name, one row a user; `initial` for those without."""
        rows = [state.get(name, initial) for state in self.states]
        for user, row in zip(self.users, rows, strict=True):
            if row.shape != initial.shape:
                why = f"{name} has shape {row.shape}, the model needs {initial.shape}"
                raise UserError(user, "restore", why)
        return np.stack(rows)

    def sgd(
        self,
        starts: Floats32,
        data: Examples,
        *,
        epochs: int | None = None,
        pull: Pull | None = None,
        settings: TrainKeys | None = None,
        orders: Sequence[Order] | None = None,
        purpose: str = "model",
    ) -> Floats32:
        """Whole models after the round's SGD, from one start (P,) or from their own (users, P).

        It takes so many epochs, or the batches of `orders`; by default those of a round. Batches,
        and how images change, are drawn for the purpose.
        """
        if self.training is not None:
            return self.training.of(self, "model", starts, data, epochs, pull)
        if orders is None:
            orders = self.orders(purpose, data, epochs)
        self.count(map(len, orders))
        data, keys = data.on(purpose), settings or self.settings
        return train_models(self.network, starts, data, orders, keys, pull)

    def sgd_heads(
        self,
        body: Floats32,
        heads: Floats32,
        data: Examples,
        epochs: int,
        pull: Pull | None = None,
        purpose: str = "head",
    ) -> Floats32:
        """Heads (users, P_head) after epochs of SGD over one body, which is frozen."""
        if self.training is not None:
            return self.training.over(self, "head", (body, heads), data, epochs, pull)
        orders = self.orders(purpose, data, epochs)
        self.count(map(len, orders))
        return train_heads(self.network, body, heads, data.on(purpose), orders, self.settings, pull)

    def sgd_bodies(
        self, body: Floats32, heads: Floats32, data: Examples, epochs: int | None = None
    ) -> Floats32:
        """Bodies (users, P_body) from one start, or their own, each under its own frozen head."""
        if self.training is not None:
            return self.training.over(self, "body", (body, heads), data, epochs)
        orders = self.orders("body", data, epochs)
        self.count(map(len, orders))
        return train_bodies(self.network, body, heads, data.on("body"), orders, self.settings)

    def features(self, models: Floats32, data: Examples) -> Tensor:
        """The inputs of each user's head (samples, F), under whole models (users, P)."""
        return features_of_each(self.network, models, data)

    def orders(
        self, purpose: str, data: Examples, epochs: int | None = None, steps: int = 0
    ) -> list[Order]:
        """The batches of each user: drawn for this purpose, round and user, and nothing else.

        They are of so many epochs, else of `local-steps` or `local-epochs`; with `steps` they are
        so many, over as many epochs as that takes.
        """
        if epochs is None:
            epochs, steps = self.settings.local_epochs, self.settings.local_steps
        return orders_of(self, purpose, data.sizes, epochs, steps)

    def count(self, steps: Iterable[int] | int, gradients: int = 1) -> None:
        """Count steps of each user, each of so many gradients: the result says how many it took."""
        many = steps if isinstance(steps, int) else np.fromiter(steps, np.int64, len(self.users))
        self.steps = self.steps + gradients * many

    @property
    def types(self) -> Types:
        """The types of inputs, and of labels that are numbers."""
        return self.full.inputs, torch.float32

    @property
    def samples(self) -> Samples:
        """The users' samples."""
        return Samples(self.users, self.data, self.full, self.network, self.task.seed, self.cache)

    def train_data(self, got: Got) -> Examples:
        """The users' training examples, one user after the other; new users may have fewer."""
        limit, keys = int(got.options.get("adapt-samples", 0)), self.settings
        rows = self.samples.training(limit)
        data = self.samples.examples(*rows, f"train {limit}", self.types)
        if type(self).loss is not Client.loss:
            own = [self.loss(got, user, data.user(u)[1]) for u, user in enumerate(self.users)]
            data = replace(data, losses=own)
        if keys.changed(LOSS):
            facts = self.network.criterion, self.task.num_classes, self.task.algorithm
            data = attached("objective").with_objective(data, keys, *facts)
        if keys.augment:
            draws = self.task.seed, self.task.round, self.users
            units = self.data.shift, self.data.scale
            views = attached("augment").views_of(keys, *draws, units, data.x)
            data = replace(data, views=views)
        return data

    def test_data(self) -> Examples:
        """The users' test examples; some users may have none.

        Labels that are numbers are in double precision, so that errors are those of the labels.
        """
        part = "" if self.alone else "test"
        return self.samples.examples(*self.samples.test(), part, (self.types[0], torch.float64))

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that the users are judged by."""
        words = str(self.task.options.get("measures", USUAL_MEASURES))
        return chosen(words, self.task.num_classes, self.network.criterion.name)

    def outputs(self, models: Models, data: Examples) -> Tensor:
        """The outputs of models for the users' samples."""
        return models.outputs(self.full if self.alone else self.network, data, self.alone)

    @property
    def alone(self) -> bool:
        """Tell whether users are judged one by one, as their models are when they are loaded."""
        return bool(self.task.options.get(DELIVER_OPTION))

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of a prediction."""
        return Arithmetic(str(self.types[0]).removeprefix("torch."))
