"""A job: the model that is trained, its measures, and the books of what came back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.counts import Number
from corsage.core.errors import RoundFailed, StatesGone
from corsage.core.measures import GRADIENT_STEPS, USUAL_MEASURES, Measure, chosen, reported
from corsage.core.messages.replies import Replies, by_cause, name_users, reading_order
from corsage.core.messages.schema import Schema
from corsage.core.messages.wire import OUTCOMES, Task, encode_task
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.callbacks import Callback, Notes
from corsage.strategies.rounds.ledger import Ledger
from corsage.strategies.rounds.members import Members
from corsage.strategies.rounds.state import Built, Progress, Traffic, Updates
from corsage.strategies.rounds.turns import Question

if TYPE_CHECKING:
    from corsage.networks.network import Network

HEARTBEAT = "no reply in time: its node's heartbeat was lost"


class Job:
    """An algorithm's training, with the users that take part in it.

    Parameters
    ----------
    name, config : the algorithm, and all keys.
    callbacks : whose `on_note` is called with what is worth a line.
    experiment : names the run at the nodes: personal state is kept under this name.
    beside : the job whose users, data and traffic are this one's, too.

    Attributes
    ----------
    keys : the algorithm's own.
    members : who is there.
    progress, built, updates, traffic : what a run remembers: where it stands, what its model is
        built for, earlier updates, and what was exchanged.
    agreed : what the data of all must be like.
    state_dir : where simulated users keep what is theirs; devices know themselves.
    collects : whether this process takes the users' models at the end.
    training_path : that of the run's earlier strategies.
    lasting : each user weighs the same in every round, whoever takes part.
    durable : the versions of users' states that each kept checkpoint holds.
    before : those at the beginning of the round.
    gone : users of this round whose states turned out to be gone.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        callbacks: list[Callback],
        experiment: str = "",
        beside: Job | None = None,
    ) -> None:
        self.name, self.config, self.keys = name, config, config.keys_of(name)
        self.experiment = experiment or f"{name}-{uuid.uuid4().hex[:12]}"
        self.note, self.progress = Notes(name, callbacks), Progress()
        self.built, self.updates, self.traffic = Built(), Updates(), Traffic()
        self.state_dir: str = beside.state_dir if beside else ""
        self.training_path, self.collects, self.lasting = "", False, False
        self.agreed: Agreed = beside.agreed if beside else Agreed(config)
        if beside is None:
            self.members = Members(config, self.agreed, self.note.warn)
        else:
            self.members = beside.members
            self.built.training_path = beside.built.training_path
            self.traffic = beside.traffic
        self.durable: list[Mapping[str, int]] = []
        self.before: Mapping[str, int] = {}
        self.gone: set[str] = set()

    def beside(self, name: str, purpose: str) -> Job:
        """The same nodes and traffic for another algorithm, whose users keep states of their own.

        Nobody is told of its notes but the log.
        """
        return Job(name, self.config, [], f"{self.experiment}-{purpose}", self)

    def join(self, grid: Grid) -> None:
        """Wait until as many nodes are there as the config says."""
        self.members.join(grid, self.introduction)

    def refresh(self) -> None:
        """Before a round: learn which nodes came and went."""
        self.members.refresh(self.progress.round + 1, self.introduction)

    def introduction(self) -> ConfigRecord:
        """The task with which a node is asked who it is, and what its columns are as they are."""
        return encode_task(self._settings())

    @property
    def parts(self) -> dict[str, Any]:
        """All that a run remembers besides its algorithm's state: dataclasses, by name."""
        return {
            "progress": self.progress,
            "built": self.built,
            "updates": self.updates,
            "traffic": self.traffic,
            "devices": self.members.known,
        }

    # What is trained.

    @property
    def train(self) -> TrainKeys:
        """Keys of training, with what the data say where nobody set them."""
        keys, agreed = self.config.train, self.agreed.preparation
        return keys.of_tables() if agreed is not None and agreed.scaled_numbers else keys

    @property
    def model(self) -> ModelKeys:
        """The model, with the path that it is trained on, once that is known."""
        own = self.config.model
        return replace(own, training_path=self.built.training_path or own.training_path)

    @property
    def network(self) -> Network:
        """The model that all users start from, as the nodes build it too."""
        from corsage.networks.build import build_network

        agreed, seed = self.agreed, self.config.run.seed
        return build_network(self.model, agreed.shape, agreed.num_classes, seed)

    @cached_property
    def task(self) -> Task:
        """A task as all messages have it, made once the data are known; `check_data` renews it."""
        fixed = self.network.vector.fixed.fingerprint
        return replace(self._settings(), frozen=fixed, preparation=self.agreed.preparation)

    def _settings(self) -> Task:
        """All that a node has to know of the run, as far as nodes need not agree on it."""
        config, agreed = self.config, self.agreed
        return Task(
            algorithm=self.name,
            experiment=self.experiment,
            seed=config.run.seed,
            shape=agreed.shape,
            num_classes=agreed.num_classes,
            num_users=config.federation.num_users,
            data=config.data,
            device_data=config.device_data,
            train=self.train,
            model=self.model,
            keys=self.keys,
            state_dir=self.state_dir,
            many_machines=bool(config.federation.ray_address),
        )

    @property
    def loss(self) -> str:
        """The name of the loss, `auto` resolved."""
        from corsage.networks.criterion import criterion_of

        return criterion_of(self.config.model, self.agreed.num_classes).name

    @property
    def convex(self) -> bool:
        """True if the model is linear: losses with known curvature."""
        return self.config.model.model == "linear"

    # What it is judged by.

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Measures of users; the first is what rows are compared by."""
        words = ",".join(self.config.run.measures)
        return chosen(words, self.agreed.num_classes, self.loss)

    @property
    def measure(self) -> Measure:
        """The first measure."""
        return self.measures[0]

    @property
    def judging(self) -> dict[str, Any]:
        """Options of an evaluation for the measures; none where they are the usual one."""
        words = ",".join(self.config.run.measures)
        return {} if words == USUAL_MEASURES else {"measures": words}

    def judgement(self, options: Mapping[str, Any], more: Iterable[Number] = ()) -> Schema:
        """The reply to an evaluation: numbers of each user, and its sums if asked for."""
        sums = {OUTCOMES: np.zeros(most, np.float32)} if (most := options.get(OUTCOMES)) else {}
        usual = reported(self.measures, self.agreed.num_classes)
        return Schema(sums, (*sums,), (*usual, *more))

    # What came back: versions of users' states, traffic, who was dropped.

    def record(self, replies: Replies, version: int) -> None:
        """Note who was dropped or lost, and that the personal states of the rest moved on."""
        progress = self.progress
        if self.members.devices is not None:
            for node in self.members.devices.disconnected(replies):
                replies.dropped.update(dict.fromkeys(replies.silent[node], HEARTBEAT))
        if replies.dropped:
            for user in replies.dropped:
                progress.dropped[user] = progress.dropped.get(user, 0) + 1
            for line in by_cause(replies.dropped):
                self.note.warn(line)
        if replies.lost:
            self.reset(replies)
        kept = [user for user in replies.users if user in replies.kept]
        progress.versions.put(kept, version)
        if (steps := replies.metrics.get(GRADIENT_STEPS.name)) is not None:
            progress.gradient_steps = (progress.gradient_steps or 0.0) + float(steps.sum())
        self.traffic.wire_bytes_up += replies.wire_bytes
        self.traffic.wire_messages += replies.wire_messages

    def accept(self, number: int, replies: Replies) -> None:
        """The same of a round's training; RoundFailed if fewer than the least have trained."""
        self.record(replies, version=number)
        if len(replies.users) < (least := self.config.federation.min_users):
            raise RoundFailed(
                f"round {number}: {len(replies.users)} usable replies, min-users={least}. "
                + causes(replies)
            )

    def accept_evaluation(self, replies: Replies, down: int) -> None:
        """The same of an evaluation, of so many bytes down.

        RoundFailed if fewer than the least, or than were asked, were evaluated.
        """
        number = self.progress.round
        self.record(replies, version=number + 1)
        users, dropped = len(replies.users), len(replies.dropped)
        if not users:
            raise RoundFailed(f"round {number}: no user could be evaluated. {causes(replies)}")
        if users < (least := min(self.config.federation.min_users, users + dropped)):
            raise RoundFailed(
                f"round {number}: {users} users could be evaluated, "
                f"min-users={least}. {causes(replies)}"
            )
        self.traffic.evaluation_bytes_down += down

    def reset(self, replies: Replies) -> set[str]:
        """Let the users start anew whose nodes no longer have their states; who they are.

        In a simulation nobody loses them but by damage to the run's own files: StatesGone.
        """
        versions = self.progress.versions
        gone = {user for user in replies.lost if versions.get(user)}
        if gone and self.members.simulated:
            why = next((replies.dropped[user] for user in gone if user in replies.dropped), "gone")
            who = name_users(in_order(gone))
            raise StatesGone(f"{who} without a state that the run has left there ({why}).")
        for user in gone:
            del versions[user]
        self.gone |= gone
        return gone

    def begin(self) -> Ledger:
        """The versions that a round, or the opening, goes back to if it fails."""
        self.before, self.gone = self.progress.versions.copy(), set()
        return self.before

    def go_back(self, versions: Ledger) -> list[str]:
        """Void what users kept since then; those who have lost what they kept before."""
        for user in self.gone & versions.keys():
            del versions[user]
        self.progress.versions = versions
        return in_order(self.gone)

    def hold(self, kept: Sequence[Mapping[str, int]]) -> None:
        """Users keep the versions that the kept checkpoints hold, until others are kept."""
        self.durable = list(kept)

    def count(self, question: Question, replies: Replies) -> None:
        """Count a training exchange as one-user devices would have it."""
        asked = sum(len(group) for group in question.asked.values())
        up = sum(a.nbytes for a in replies.mean.values()) * len(replies.users)
        up += sum(a.nbytes for a in replies.rows.values())
        traffic = self.traffic
        traffic.bytes_down += question.down
        traffic.bytes_up += up
        traffic.messages += (asked if question.down else 0) + (len(replies.users) if up else 0)


def causes(replies: Replies) -> str:
    """The most frequent causes of what was dropped."""
    return "; ".join(by_cause(replies.dropped)[:3])


def in_order(users: Iterable[str]) -> list[str]:
    """Users as a reader has them."""
    return sorted(users, key=reading_order)
