"""The base of every strategy: an algorithm that can be run, here or by Flower's own loop.

An algorithm overrides `initial` (what the server remembers before round 1), `send` (what users get)
and `merge` (the server's step). All that it remembers is in `state`, a dataclass of its own; where
the run stands is in `progress`, what is trained in `job`, and who takes part in `members`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from logging import INFO
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack, cast, get_args

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.clock import Clock
from corsage.core.configuration.config import Config
from corsage.core.configuration.keywords import Keywords
from corsage.core.configuration.known_keys import defaults
from corsage.core.keys import Keys, NoKeys, flatten
from corsage.core.messages.encoding import decode, encode
from corsage.core.registry import attached
from corsage.strategies.rounds.algorithm import Algorithm, K, S
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.evaluations import Deliveries
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.loop import Evaluate, refuse_no_rounds, run
from corsage.strategies.rounds.means.averaging import Averaging
from corsage.strategies.rounds.model_arrays import (
    by_parameter,
    check_numbers,
    check_whole,
    fitted,
    lean,
    parts_of,
)
from corsage.strategies.rounds.parameters import (
    Parameters,
    check_fits,
    check_learning,
    read_config,
    settle,
)
from corsage.strategies.rounds.results import Result, weighted_metrics
from corsage.strategies.rounds.state import ModelState, arrays_of

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.rounds.outside import Steps


class Strategy(Algorithm[K, S], FlowerStrategy):
    """Base of Corsage's strategies, for Flower's message API.

    Parameters
    ----------
    config : Config or mapping, optional
        Flat kebab-case keys (`{"num-rounds": 20}`, or a Flower run config), or a parsed Config.
        What is absent has its default.
    callbacks : sequence of Callback
        Called around each round: progress, metrics, checkpoints.
    experiment : str, optional
        Names the run at the nodes: personal state is kept under this name. A resumed run must
        have the name of the run it resumes; by default each strategy object has a new one.
    **keys
        Keys as keyword arguments, `_` for `-`: `FedRep(num_users=20, head_epochs=10)`. They win.
    """

    keys_class: ClassVar[type[Keys]] = NoKeys  # the K of `class Foo(Strategy[FooKeys, FooState])`
    __signature__ = Parameters()

    def __init_subclass__(cls) -> None:
        """Take the class of the keys from the base's parameters."""
        super().__init_subclass__()
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Keys):
                    cls.keys_class = argument

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        experiment: str = "",
        **keys: Unpack[Keywords],
    ) -> None:
        self.callbacks = list(callbacks)
        self.keywords = dict(keys) if config is None else None  # all that was said, if only so
        self.configure(read_config(type(self), config, keys), experiment)

    def configure(self, config: Config, experiment: str = "") -> None:
        """Take a configuration; again only before anybody is asked anything."""
        self.config = config
        self.train_options, self.evaluate_options = {}, {}
        self.job = Job(self.name, self.config, self.callbacks, experiment)
        self.members, self.progress = self.job.members, self.job.progress
        self.keys = cast(K, self.job.keys)
        self.deliveries = Deliveries()  # of the table's rows, by their names
        self.clock = Clock()
        self.prepare()
        self.averaging = Averaging(self.job)
        self.averaging.check(self.name, self.unprotected)
        if config.server.on:
            self.server_step = attached("server step").ServerStep(self.job)
            self.server_step.check(self.name, self.no_server_step)
        check_learning(self)
        if config.run.stop_after:
            attached("stopping").check(config)

    def accept(self, named: Arrays) -> S:
        """The first state out of a model's state dict, by parameter names."""
        network = self.job.network
        first = self.initial(network)
        parts = parts_of(self.name, network, named, list(arrays_of(first)))
        return cast(S, replace(cast(Any, first), **parts))

    def named_arrays(self) -> ArrayRecord:
        """The shared arrays at the end, under the names that a Flower user expects."""
        network = self.job.network
        return encode(network.vector.whole_state(by_parameter(network, self.shared())))

    def arrays(self, grid: Grid) -> ArrayRecord:
        """Arrays that all users get now: those that a wrapper of Flower's is to begin with."""
        self.begin(grid)
        return encode(self.shared())

    # Flower's interface, exchange by exchange, and its `start`.

    @cached_property
    def outside(self) -> Steps:
        """The steps of who plays it from outside."""
        steps: Steps = attached("outside").Steps(self)
        return steps

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next exchange; none if the algorithm has come to its end."""
        self.begin(grid)
        self.outside.enter(decode(arrays))
        attached("wrappers").fit(self)
        self.train_options = dict(config)
        return self.outside.training()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies; RoundFailed if too few of them are usable."""
        if found := self.outside.trained(replies):
            attached("wrappers").note_fewer(self, len(found.users))
        return encode(self.shared()), weighted_metrics(found) if found else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all nodes: every user evaluates its own model; none amid a round."""
        self.begin(grid)
        return self.outside.evaluation(decode(arrays), dict(config))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Merge the users' evaluations."""
        found = self.outside.evaluated(replies)
        return weighted_metrics(found) if found else None

    def summary(self) -> None:
        """Log the keys that are not as they are by themselves."""
        usual, keys = defaults(), {**flatten(self.job.train), **flatten(self.keys)}
        own = [f"{key}={value}" for key, value in keys.items() if value != usual.get(key)]
        log(INFO, "%s: %s", self.name, ", ".join(own) or "all keys as they are by themselves")
        if self.job.agreed.shape:
            log(INFO, "%s: %s", self.name, self.job.network.described())

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run all rounds; the arguments are Flower's, and those left out come from the config.

        Returns Flower's result with `summaries`, the rows of the final table. Rounds are counted
        from the first on: a second start with a greater `num_rounds` goes on.
        """
        self.clock.start(self.progress.seconds)
        num_rounds = num_rounds or self.config.run.num_rounds
        refuse_no_rounds(self, num_rounds)
        self.members.timeout = timeout or self.members.timeout
        if "outside" in vars(self):
            self.outside.close()
        self.begin(grid)
        if initial_arrays is not None:
            self.take(decode(initial_arrays))
        self.train_options = dict(train_config or {})
        self.evaluate_options = dict(evaluate_config or {})
        if not any(callback.reports for callback in self.callbacks):
            attached("round lines").watch(self, num_rounds)
        return run(self, num_rounds, evaluate_fn)

    # The steps of a run.

    def begin(self, grid: Grid) -> None:
        """Know the users, and hold the first state; ModelError for keys of no use to the model."""
        self.job.join(grid)
        if hasattr(self, "state"):
            return
        settle(self.job)
        network = self.job.network
        check_fits(self, network)
        if self.solves and self.job.convex:
            check_whole(self.name, network)
        self.state = lean(self.initial(network))
        network.vector.forget()

    def take(self, arrays: Arrays) -> None:
        """Take over arrays from outside: a wrapper's, or a model to begin with."""
        shared = self.shared()
        if not arrays:
            return
        check_numbers(self.name, arrays)
        if set(arrays) <= set(shared):
            changed = fitted(self.name, arrays, shared)
            self.state = cast(S, replace(cast(Any, self.state), **changed))
        else:
            self.state = self.accept(arrays)

    @property
    def parts(self) -> dict[str, Any]:
        """All that a checkpoint holds: dataclasses, by name."""
        return {**self.job.parts, "state": self.state}

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stands; who holds a part of the job holds what it becomes."""
        self.state = parts["state"]
        for name, part in self.job.parts.items():
            vars(part).update(vars(parts[name]))
        self.clock.before = self.progress.seconds


M = TypeVar("M", bound=ModelState)


class OneModel(Strategy[K, M]):
    """The server holds the whole model w, and users another that is their own."""

    tuned: ClassVar[tuple[str, ...]] = ("own",)

    def initial(self, network: Network) -> M:
        """The first global model, w_0."""
        return cast(M, ModelState(network.initial))


class GlobalModel(OneModel[K, M]):
    """The server holds the whole model w, by which users are judged."""

    tuned: ClassVar[tuple[str, ...]] = ("head", "all")

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """NAME+ft and NAME+ft-all, which are the same where the model is a head and no more."""
        rows, whole = super().extra_evaluations(), f"{self.name}+ft-all"
        return {n: of for n, of in rows.items() if n != whole or self.job.network.body.stop}
