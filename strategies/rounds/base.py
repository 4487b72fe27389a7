"""The base of every strategy: what an algorithm says, and how its rounds are played.

An algorithm overrides `initial` (what the server remembers before round 1), `send` (what users get)
and `merge` (the server's step). All that it remembers is in `state`, a dataclass of its own; where
the run stands is in `progress`, what is trained in `job`, and who takes part in `members`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack, cast, get_args

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.config import Config
from corsage.core.encoding import decode, encode
from corsage.core.groups import TrainKeys
from corsage.core.keys import Keys, NoKeys, flatten
from corsage.core.keywords import Keywords
from corsage.core.replies import Replies
from corsage.core.schema import Number, Schema
from corsage.core.seeding import drawn_count, generator, some_of
from corsage.strategies.rounds.averaging import Averaging
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.delivery import Deliveries
from corsage.strategies.rounds.enough import check_evaluated, check_trained
from corsage.strategies.rounds.first_state import first_state, taken_over
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.learning import check_learning
from corsage.strategies.rounds.loop import Evaluate, exchange_once, refuse_no_rounds, run
from corsage.strategies.rounds.model_arrays import by_parameter, parts_of
from corsage.strategies.rounds.parameters import Parameters, read_config
from corsage.strategies.rounds.results import Finding, Result, weighted_metrics
from corsage.strategies.rounds.server_step import ServerStep
from corsage.strategies.rounds.state import Progress, arrays_of
from corsage.strategies.rounds.steps import Steps
from corsage.strategies.rounds.turns import Parcel, Question, Script
from corsage.strategies.rounds.wrappers import around, check, correct, note_fewer

if TYPE_CHECKING:
    from corsage.networks.network import Network

AT_ONCE = 20_000
"""Users that are evaluated in one exchange: what it takes in memory is of so many."""
K = TypeVar("K", bound=Keys)
S = TypeVar("S")


class Strategy(FlowerStrategy, Generic[K, S]):
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

    name: ClassVar[str] = ""
    keys_class: ClassVar[type[Keys]] = NoKeys  # the K of `class Foo(Strategy[FooKeys, FooState])`
    by_user: ClassVar[tuple[str, ...]] = ()  # arrays that come one row a user, not as their mean
    changes: ClassVar[tuple[str, ...]] = ()  # arrays that are sent as changes, not as new values
    unprotected: ClassVar[str] = ""  # why no robust average is possible, if none is
    no_server_step: ClassVar[str] = ""  # why the server has no step of its own, if it has none
    untrained: ClassVar[str] = ""  # why users take no gradient steps on batches, if they do not
    own_steps: ClassVar[str] = ""  # why it has its own number of steps, whatever others do
    solves: ClassVar[bool] = False  # linear models are solved for, by all their parameters
    draws: ClassVar[bool] = True  # a round is of some of the users
    by_cohort: ClassVar[bool] = False  # nodes answer for cohorts: all of their users are evaluated
    __signature__ = Parameters()
    state: S  # what the algorithm remembers: `initial` makes it when the nodes are there

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
        self.configure(read_config(type(self), config, keys), experiment)

    def configure(self, config: Config, experiment: str = "") -> None:
        """Take a configuration; again only before anybody is asked anything."""
        self.config = config
        self.train_options: Mapping[str, Any] = {}
        self.evaluate_options: Mapping[str, Any] = {}
        self.job = Job(self.name, self.config, self.callbacks, experiment)
        self.members, self.keys = self.job.members, cast(K, self.job.keys)
        self.deliveries = Deliveries()  # of the table's rows, by their names
        self._steps = Steps(self)
        self.prepare()
        self.averaging = Averaging(self.job)
        self.averaging.check(self.name, self.unprotected)
        self.server_step = ServerStep(self.job)
        self.server_step.check(self.name, self.no_server_step)
        check_learning(self)

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        return self.job.progress

    # What an algorithm overrides.

    @classmethod
    def epochs(cls, train: TrainKeys, keys: K) -> float | None:
        """Gradients of minibatches that a user takes in a round, as its keys are set, in epochs.

        None: it takes none, or their number is part of the algorithm. See rounds/work.py.
        """
        return None if cls.own_steps else train.local_epochs

    def prepare(self) -> None:
        """Refuse keys that cannot be meant, and make the parts; no user is known yet."""

    def unused(self, name: str) -> str:
        """Why a key of local training (core/train_keys.py, LEARNING) would do nothing or harm."""
        return self.untrained

    def initial(self, network: Network) -> S:
        """What the server remembers before the first round."""
        raise NotImplementedError

    def shared(self) -> Arrays:
        """What of the state all users get; by default all of its arrays."""
        return arrays_of(self.state)

    def send(self, users: list[str]) -> Parcel:
        """What the users of a round get; rows are in their order."""
        return Parcel(self.shared())

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """What users get for an evaluation under some options; by default the same."""
        return self.send(users)

    def options(self, number: int) -> dict[str, Any]:
        """What goes to the users of a round besides arrays."""
        return {}

    def template(self) -> Arrays:
        """Arrays of the shape and dtype that one user sends back."""
        return self.shared()

    def numbers(self, kind: str) -> tuple[Number, ...]:
        """What each user reports besides the usual, with its range: `train` or `evaluate`.

        A number that is not declared is never looked at.
        """
        return ()

    def merge(self, replies: Replies) -> S:
        """The state after a round: by default with the mean over the round's users."""
        return cast(S, replace(cast(Any, self.state), **replies.mean))

    def stride(self) -> float:
        """How far the server goes where the users' mean is 1: noise on what comes is made for 1."""
        return 1.0

    def choose(self, number: int, users: list[str]) -> list[str]:
        """The users of a round: max(r n, 1), uniform, without replacement."""
        count = drawn_count(self.config.federation.share(len(users)), len(users))
        rng = generator(self.config.run.seed, "users", number)
        return [users[i] for i in some_of(rng, len(users), count)]

    def opening(self) -> Script[None]:
        """What must be known before the first round is asked here; a resumed run knows it."""
        yield from ()

    def round(self, number: int) -> Script[Replies]:
        """One round: by default one exchange, and the server's step."""
        return exchange_once(self, number)

    def closing(self) -> Script[None]:
        """What is asked after the last round, before the final evaluation."""
        yield from ()

    def evaluation(self, options: Mapping[str, Any], users: list[str] | None = None) -> Question:
        """The exchange in which every user evaluates its own model, drawn or not; or some do.

        Where nodes answer for whole cohorts (`by_cohort`), all of their users are in it.
        """
        job = self.job
        users = self.judged(options) if users is None else users
        schema = Schema(numbers=(*job.reported, *self.numbers("evaluate")))
        return job.outgoing.question("evaluate", users, self.show(users, options), schema, options)

    def evaluations(
        self, options: Mapping[str, Any], some: bool = False
    ) -> Iterable[Callable[[], Question]]:
        """The same as questions of so many users at a time; with `some` of a sample alone."""
        users = self.members.sample if some else self.judged(options)
        groups = [users[i : i + AT_ONCE] for i in range(0, len(users), AT_ONCE)] or [users]
        return [partial(self.evaluation, options, group) for group in groups]

    def judged(self, options: Mapping[str, Any]) -> list[str]:
        """Whom an evaluation is about: those that train, or those that come only after."""
        return self.members.new_users if options.get("adapt") else self.members.users

    def length(self, rounds: int) -> int:
        """How many rounds there will be, where `rounds` are wanted; asked after `opening`."""
        return rounds

    def finished(self) -> bool:
        """Whether no round is left to do, though `num-rounds` has more: asked after each.

        It must follow from the state alone, so that a resumed run knows it too.
        """
        return False

    def row(self) -> dict[str, Any]:
        """What a round's line of metrics.jsonl has besides the usual; asked once a round."""
        return {}

    def findings(self) -> list[Finding]:
        """What there is to say at the end."""
        return []

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's cluster in a row of the table, where the method has clusters."""
        return {}

    def estimates(self) -> dict[str, Any] | None:
        """A linear model's summary, where the method has one, for the result's file."""
        return None

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """Evaluations after the last round under other options, by the name of their result."""
        return {}

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
        """What all users get now: the arrays that a wrapper of Flower's is to begin with."""
        self.begin(grid)
        return encode(self.shared())

    # Flower's interface.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the next exchange; none if the algorithm has come to its end."""
        self.begin(grid)
        self._steps.enter(decode(arrays))
        for wrapper in around(self):
            check(wrapper, self)
            correct(wrapper, self)
        self.train_options = dict(config)
        return self._steps.training()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies; RoundFailed if too few of them are usable."""
        if found := self._steps.trained(replies):
            note_fewer(self, len(found.users))
        return encode(self.shared()), weighted_metrics(found) if found else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all nodes: every user evaluates its own model; none amid a round."""
        self.begin(grid)
        return self._steps.evaluation(decode(arrays), dict(config))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Merge the users' evaluations."""
        found = self._steps.evaluated(replies)
        return weighted_metrics(found) if found else None

    def summary(self) -> None:
        """Log the settings."""
        settings = {**flatten(self.job.train), **flatten(self.keys)}
        log(INFO, "%s: %s", self.name, ", ".join(f"{k}={v}" for k, v in settings.items()))
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
        num_rounds = num_rounds or self.config.run.num_rounds
        refuse_no_rounds(self, num_rounds)
        self.members.timeout = timeout or self.members.timeout
        self._steps.close()
        self.begin(grid)
        if initial_arrays is not None:
            self.take(decode(initial_arrays))
        self.train_options = dict(train_config or {})
        self.evaluate_options = dict(evaluate_config or {})
        return run(self, num_rounds, evaluate_fn)

    # The steps of a run.

    def begin(self, grid: Grid) -> None:
        """Know the users, and hold the first state."""
        self.job.join(grid)
        if not hasattr(self, "state"):
            self.state = first_state(self)

    def take(self, arrays: Arrays) -> None:
        """Take over arrays from outside: a wrapper's, or a model to begin with."""
        self.state = taken_over(self, arrays)

    def accept_round(self, number: int, replies: Replies) -> None:
        """Note what came; RoundFailed if it is too little."""
        self.job.record(replies, version=number)
        check_trained(number, replies, self.config.federation.min_users)

    def is_over(self, rounds: int) -> bool:
        """Whether all rounds are done, or none is left to do."""
        return self.progress.round >= rounds or (self.progress.round > 0 and self.finished())

    def note_trained(self, replies: Replies) -> None:
        """Remember whose model was trained in a round."""
        self.progress.trained.update(replies.users)

    def evaluated(self, down: int, replies: Replies) -> Replies:
        """Note and count an evaluation, of so many bytes down; RoundFailed if it is of too few."""
        self.job.record(replies, version=self.progress.round + 1)
        least = self.config.federation.min_users
        check_evaluated(self.progress.round, replies, least)
        self.progress.traffic.evaluation_bytes_down += down
        return replies

    def snapshot(self) -> S:
        """The state as it is, safe from what a round does: one that writes into it copies it."""
        return self.state

    def restore(self, progress: Progress, state: S) -> None:
        """Go on where a checkpoint stands."""
        self.progress.go_on(progress)
        self.state = state
