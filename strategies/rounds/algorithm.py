"""An algorithm's server half: its state, what users get, and what comes of their replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from corsage.core.arrays import Arrays
from corsage.core.configuration.config import Config
from corsage.core.configuration.train_keys import LOSS, TrainKeys
from corsage.core.counts import Number
from corsage.core.keys import Keys
from corsage.core.messages.replies import Replies
from corsage.core.seeding import drawn_count, generator, some_of
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.loop import exchange_once
from corsage.strategies.rounds.means.averaging import Averaging
from corsage.strategies.rounds.members import Members
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import Progress, arrays_of
from corsage.strategies.rounds.turns import Parcel, Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.rounds.server_step import ServerStep

EVALUATED_AT_ONCE = 20_000
"""Users that are evaluated in one exchange: what it takes in memory is of so many."""
TUNED_ROWS = {"head": "ft", "all": "ft-all", "own": "own"}
"""Ends of the names of rows, by what users have trained at the end."""
K = TypeVar("K", bound=Keys)
S = TypeVar("S")


class Algorithm(Generic[K, S]):
    """The server's half of an algorithm, with defaults for all that it need not say.

    Attributes
    ----------
    config, keys : all keys, and the algorithm's own.
    job, members : what is trained, and who is there.
    progress : where the run stands.
    state : what the algorithm remembers: `initial` makes it when the nodes are there.
    train_options, evaluate_options : what Flower's configuration has for users besides.
    averaging, server_step : how users' arrays become one, and how far the server goes to that.
    """

    name: ClassVar[str] = ""
    by_user: ClassVar[tuple[str, ...]] = ()  # arrays that come one row a user, not as their mean
    changes: tuple[str, ...] = ()  # arrays that are sent as changes, not as new values
    unprotected: ClassVar[str] = ""  # why no robust average is possible, if none is
    no_server_step: ClassVar[str] = ""  # why the server has no step of its own, if it has none
    untrained: ClassVar[str] = ""  # why users take no gradient steps on batches, if they do not
    own_steps: ClassVar[str] = ""  # why it has its own number of steps, whatever others do
    solves: ClassVar[bool] = False  # linear models are solved for, by all their parameters
    draws: ClassVar[bool] = True  # a round is of some of the users
    own_loss: ClassVar[bool] = False  # has it a loss of its own, in the place of the model's?
    tuned: ClassVar[tuple[str, ...]] = ()  # what users train at the end, for rows of their own
    by_cohort: ClassVar[bool] = False  # nodes answer for cohorts: all of their users are evaluated

    config: Config
    keys: K
    job: Job
    members: Members
    progress: Progress
    state: S
    train_options: Mapping[str, Any]
    evaluate_options: Mapping[str, Any]
    averaging: Averaging
    server_step: ServerStep | None = None

    @classmethod
    def epochs(cls, train: TrainKeys, keys: K) -> float | None:
        """Gradients of minibatches that a user takes in a round, as its keys are set, in epochs.

        None: it takes none, or their number is part of the algorithm. See strategies/effort.py.
        """
        return None if cls.own_steps else train.local_epochs

    def prepare(self) -> None:
        """Refuse keys that cannot be meant, and make the parts; no user is known yet."""

    def unused(self, name: str) -> str:
        """Say why a key of training (train_keys.py, LEARNING) would do nothing or harm."""
        of_loss = self.own_loss and name.replace("-", "_") in LOSS
        return "it has a loss of its own" if of_loss else self.untrained

    def initial(self, network: Network) -> S:
        """Make the state before the first round."""
        raise NotImplementedError

    def shared(self) -> Arrays:
        """Arrays of the state that all users get; by default all of them."""
        return arrays_of(self.state)

    def send(self, users: list[str]) -> Parcel:
        """Parcel for the users of a round; rows are in their order."""
        return Parcel(self.shared())

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Parcel for an evaluation under some options; by default the same."""
        return self.send(users)

    def options(self, number: int) -> dict[str, Any]:
        """Options for the users of a round, besides arrays."""
        return {}

    def template(self) -> Arrays:
        """Arrays of the shape and dtype that one user sends back."""
        return self.shared()

    def numbers(self, kind: str) -> tuple[Number, ...]:
        """Numbers that a user reports besides the usual, with their ranges: `train` or `evaluate`.

        A number that is not declared is never looked at.
        """
        return ()

    def merge(self, replies: Replies) -> S:
        """The state after a round: by default with the mean over the round's users."""
        return cast(S, replace(cast(Any, self.state), **replies.mean))

    def stride(self) -> float:
        """The server's step where the users' mean is 1: noise on what comes is made for 1."""
        return 1.0

    def choose(self, number: int, users: list[str]) -> list[str]:
        """The users of a round: max(r n, 1), uniform, without replacement."""
        count = drawn_count(self.config.federation.share(len(users)), len(users))
        rng = generator(self.config.run.seed, "users", number)
        return [users[i] for i in some_of(rng, len(users), count)]

    def opening(self) -> Script[None]:
        """Ask what must be known before the first round; a resumed run knows it."""
        yield from ()

    round = exchange_once
    """One round: by default one exchange, and the server's step."""

    def closing(self) -> Script[None]:
        """Ask what is needed after the last round, before the final evaluation."""
        yield from ()

    def evaluation(self, options: Mapping[str, Any], users: list[str] | None = None) -> Question:
        """The exchange in which every user evaluates its own model, drawn or not; or some do.

        Where nodes answer for whole cohorts (`by_cohort`), all of their users are in it.
        """
        job = self.job
        users = self.members.judged(options) if users is None else users
        schema = job.judgement(options, self.numbers("evaluate"))
        return question_to(job, "evaluate", users, self.show(users, options), schema, options)

    def evaluations(
        self, options: Mapping[str, Any], some: bool = False
    ) -> Iterable[Callable[[], Question]]:
        """The same as questions of so many users at a time; with `some` of a sample alone."""
        users = self.members.sample if some else self.members.judged(options)
        groups = [
            users[i : i + EVALUATED_AT_ONCE] for i in range(0, len(users), EVALUATED_AT_ONCE)
        ] or [users]
        return [partial(self.evaluation, options, group) for group in groups]

    def length(self, rounds: int) -> int:
        """The number of rounds, where `rounds` are wanted; asked after `opening`."""
        return rounds

    def finished(self) -> bool:
        """True if no round is left to do, though `num-rounds` has more: asked after each.

        It must follow from the state alone, so that a resumed run knows it too.
        """
        return False

    def row(self) -> dict[str, Any]:
        """Entries of a round's line of metrics.jsonl besides the usual; asked once a round."""
        return {}

    def findings(self) -> list[Finding]:
        """Tables of what there is to say at the end."""
        return []

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's cluster in a row of the table, where the method has clusters."""
        return {}

    def estimates(self) -> dict[str, Any] | None:
        """A linear model's summary, where the method has one, for the result's file."""
        return None

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """Evaluations after the last round under other options, by the name of their result."""
        parts = self.tuned if self.config.train.fine_tune_epochs else ()
        return {f"{self.name}+{TUNED_ROWS[part]}": {"fine-tune": part} for part in parts}

    def note_trained(self, replies: Replies) -> None:
        """Remember whose model was trained in a round."""
        self.progress.trained.update(replies.users)

    def judged(self, replies: Replies) -> None:
        """Hear what an evaluation of users came to."""

    def snapshot(self) -> S:
        """The state as it is, safe from what a round does: one that writes into it copies it."""
        return self.state
