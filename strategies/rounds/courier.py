"""Between a strategy and its nodes: who is there, one message a node, and what comes back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.callbacks import Callback
from corsage.core.config import Config
from corsage.core.errors import NodeError
from corsage.core.measures import Measure
from corsage.core.replies import Outcome, by_cause, merge_replies
from corsage.core.seeding import generator
from corsage.core.wire import Task, encode, encode_task, payload
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.strategies.rounds.hooks import Hooks
from corsage.strategies.rounds.roster import Roster


class Courier(Hooks):
    """Sends tasks to the nodes that host users, and merges and counts their replies.

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
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        experiment: str = "",
    ) -> None:
        super().__init__(config)
        self.callbacks = list(callbacks)
        self.experiment = experiment or f"{self.name}-{uuid.uuid4().hex[:12]}"
        self.state_dir = ""  # where simulated users keep what is theirs; devices know themselves
        self.durable: dict[str, int] | None = None  # versions that the last checkpoint holds
        self.roster = Roster(note=self.note, question=lambda: self._task(0, [], {}))
        self._asked: dict[int, list[str]] = {}
        self._down = 0  # bytes that the users asked would get as one-user devices
        self._sent: tuple[Arrays, ArrayRecord] | None = None
        self._last: Outcome | None = None
        self._last_evaluation: Outcome | None = None
        self._timeout = self.config.federation.round_timeout

    @property
    def users(self) -> list[str]:
        """The users that take part in training."""
        new = set(self.new_users)
        return [user for user in self.roster.users if user not in new]

    @property
    def new_users(self) -> list[str]:
        """The users that come only after training: a share by seed, a known cluster, or both."""
        keys, users = self.config.new, self.roster.users
        if not keys.wanted:
            return []
        seed = self.config.run.seed
        return [
            user
            for user in users
            if self.roster.members[user].cluster == (keys.new_cluster or None)
            or generator(seed, "new user", user).random() < keys.new_users
        ]

    @property
    def network(self) -> Network:
        """The model that all users start from, as the nodes build it too."""
        return build_network(
            self.config.model, self.roster.shape, self.roster.num_classes, self.config.run.seed
        )

    @property
    def measure(self) -> Measure:
        """What users are judged by."""
        return self.network.criterion.measure

    def _record(self, shared: Arrays | None = None) -> ArrayRecord:
        """What all users get, encoded once for training and evaluation."""
        shared = self.send([])[0] if shared is None else shared
        if self._sent is None or self._sent[0] is not shared:
            self._sent = shared, encode(shared)
        return self._sent[1]

    def _messages(
        self, kind: str, number: int, users: list[str], options: dict[str, Any]
    ) -> list[Message]:
        """One message for each node that hosts some of the users."""
        if not users:
            raise NodeError(f"round {number}: no users are connected.")
        self._asked = self.roster.by_node(users)
        rows_of = self.send if kind == "train" else partial(self.show, options=options)
        for_all = rows_of([])[0]
        self._down = sum(a.nbytes for a in for_all.values()) * len(users)
        shared, messages = self._record(for_all), []
        for node, group in self._asked.items():
            _, rows = rows_of(group)
            self._down += sum(a.nbytes for a in rows.values())
            task = self._task(number, group, options)
            messages.append(self._letter(kind, node, shared, rows, task))
        return messages

    def _letter(
        self, kind: str, node: int, shared: ArrayRecord, rows: Arrays, task: ConfigRecord
    ) -> Message:
        """One message to one node, counted."""
        content = RecordDict({"arrays": shared, "config": task})
        if rows:
            content["rows"] = encode(rows)
        self.state.traffic.wire_bytes_down += sum(
            payload(record) for record in content.values() if isinstance(record, ArrayRecord)
        )
        self.state.traffic.wire_messages += 1
        return Message(content, node, kind, ttl=self._timeout, group_id=str(task["round"]))

    def _task(self, number: int, users: list[str], options: dict[str, Any]) -> ConfigRecord:
        versions = self.state.versions
        if self.state_dir:
            many = bool(self.config.federation.ray_address)
            options = {**options, "state-dir": self.state_dir, "many-machines": many}
        durable = versions if self.durable is None else self.durable
        return encode_task(
            Task(
                algorithm=self.name,
                experiment=self.experiment,
                round=number,
                seed=self.config.run.seed,
                users=users,
                versions=[versions.get(user, 0) for user in users],
                keep=[durable.get(user, 0) for user in users],
                shape=self.roster.shape,
                num_classes=self.roster.num_classes,
                num_users=self.config.federation.num_users,
                data=self.config.data,
                train=self.config.train,
                model=self.config.model,
                keys=self.keys,
                options=options,
            )
        )

    def _collect(
        self, replies: list[Message], template: Arrays, needed: tuple[str, ...]
    ) -> Outcome:
        """Check and merge replies; note who is dropped, and whose personal state moved on."""
        outcome = merge_replies(replies, self._asked, template, needed)
        self._noted(outcome, version=self.state.round + 1)
        self._last = outcome
        return outcome

    def _noted(self, outcome: Outcome, version: int) -> None:
        """Note who was dropped or lost, and that the personal states of the rest moved on."""
        for user in outcome.dropped:
            self.state.dropped[user] = self.state.dropped.get(user, 0) + 1
        for line in by_cause(outcome.dropped):
            self.note(line)
        for user in outcome.lost:
            self.state.versions.pop(user, None)
        if outcome.kept:
            self.state.versions.update(dict.fromkeys(outcome.users, version))
        self.state.traffic.wire_bytes_up += outcome.wire_bytes
        self.state.traffic.wire_messages += outcome.wire_messages

    def _count_training(self, outcome: Outcome) -> None:
        """Count a training round as one-user devices would exchange it."""
        asked = [user for group in self._asked.values() for user in group]
        down = self._down
        up = sum(a.nbytes for a in outcome.mean.values()) * len(outcome.users)
        up += sum(a.nbytes for a in outcome.rows.values())
        traffic = self.state.traffic
        traffic.bytes_down += down
        traffic.bytes_up += up
        traffic.messages += (len(asked) if down else 0) + (len(outcome.users) if up else 0)

    def note(self, text: str) -> None:
        """One line for the log and for whoever watches."""
        if not any(callback.shows_notes for callback in self.callbacks):
            log(WARNING, "%s: %s", self.name, text)
        self._call("on_note", text)

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)
