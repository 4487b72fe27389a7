"""The federation as a strategy sees it: who is there, what goes out, and what comes back."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import WARNING
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.config import Config
from corsage.core.errors import ConfigError, NodeError
from corsage.core.keys import Keys
from corsage.core.replies import Replies, by_cause
from corsage.core.schema import Schema
from corsage.core.seeding import generator
from corsage.core.text import escaped
from corsage.core.wire import Task, encode, encode_task, payload
from corsage.strategies.rounds.exchange import Exchange
from corsage.strategies.rounds.roster import Roster, fitting, labels
from corsage.strategies.rounds.state import Progress
from corsage.strategies.rounds.turns import Parcel, Question, Script, T, Turn

if TYPE_CHECKING:
    from corsage.core.measures import Measure
    from corsage.networks.network import Network
    from corsage.strategies.rounds.callbacks import Callback


class Federation:
    """Nodes and the users that they host, messages to them, and what is counted of these.

    Parameters
    ----------
    name, config, keys : the algorithm, all keys, and the algorithm's own.
    callbacks : whose `on_note` is called with what is worth a line.
    experiment : names the run at the nodes: personal state is kept under this name.
    """

    def __init__(
        self, name: str, config: Config, keys: Keys, callbacks: list[Callback], experiment: str = ""
    ) -> None:
        self.name, self.config, self.keys, self.callbacks = name, config, keys, callbacks
        self.experiment = experiment or f"{name}-{uuid.uuid4().hex[:12]}"
        self.state_dir = ""  # where simulated users keep what is theirs; devices know themselves
        self.durable: dict[str, int] | None = None  # versions in the last checkpoint
        self.timeout = config.federation.round_timeout
        self.progress = Progress()
        self.left_out: set[str] = set()  # who did not answer a question that is for all
        self.grid: Grid | None = None
        self.roster = Roster(note=self.note, task=lambda: self.task(0, [], {}))

    def beside(self, name: str, purpose: str) -> Federation:
        """The same nodes and traffic for another algorithm, whose users keep states of their own.

        Nobody is told of its notes but the log.
        """
        keys, experiment = self.config.keys_of(name), f"{self.experiment}-{purpose}"
        other = Federation(name, self.config, keys, [], experiment)
        other.roster, other.grid, other.timeout = self.roster, self.grid, self.timeout
        other.state_dir, other.progress.traffic = self.state_dir, self.progress.traffic
        return other

    # Who is there.

    @property
    def users(self) -> list[str]:
        """The users that take part in training."""
        others = {*self.new_users, *self.left_out}
        return [user for user in self.roster.users if user not in others]

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
        from corsage.networks.build import build_network

        roster = self.roster
        seed = self.config.run.seed
        return build_network(self.config.model, roster.shape, roster.num_classes, seed)

    @property
    def measure(self) -> Measure:
        """What users are judged by."""
        return self.network.criterion.measure

    @property
    def loss(self) -> str:
        """The name of the loss, `auto` resolved."""
        from corsage.networks.criterion import criterion_of

        return criterion_of(self.config.model, self.roster.num_classes).name

    @property
    def convex(self) -> bool:
        """Whether the model is linear with one output: losses with known curvature."""
        return self.config.model.model == "linear" and self.loss != "cross-entropy"

    def join(self, grid: Grid) -> None:
        """Wait until as many nodes are there as the config says; another grid has others."""
        if grid is not self.grid:
            self.grid = grid
            self.roster.clear()
        if not self.roster.members:
            keys = self.config.federation
            self.roster.wait(grid, max(keys.num_nodes, 1), keys.node_timeout)

    def refresh(self) -> None:
        """Learn which nodes came and went; if none is left, wait for one."""
        assert self.grid is not None
        patience = self.config.federation.node_timeout
        self.roster.refresh(self.grid, patience)
        if not self.roster.members:
            self.roster.wait(self.grid, 1, patience)

    def check_data(self) -> None:
        """The model is built for the data of the first start, also when the run is resumed."""
        progress, roster = self.progress, self.roster
        if not progress.shape:  # nothing is built yet
            progress.shape, progress.num_classes = roster.shape, roster.num_classes
        fits = fitting(roster.num_classes, progress.num_classes)
        if progress.shape != roster.shape or not fits:
            raise NodeError(
                f"the nodes have samples of shape {roster.shape} with {labels(roster.num_classes)},"
                f" the run began with {progress.shape} and {labels(progress.num_classes)}."
            )
        roster.num_classes = progress.num_classes
        if self.config.new.wanted and not (self.users and self.new_users):
            known = sorted({m.cluster for m in roster.members.values()} - {""})
            keys, count = self.config.new, len(self.new_users)
            raise ConfigError(
                f"new-users={keys.new_users:g} new-cluster={keys.new_cluster}: {count} of "
                f"{len(roster.users)} users would be new; some must be, and some not. "
                f"Known clusters: {', '.join(known) or 'none'}."
            )

    def checkpointed(self) -> None:
        """A checkpoint holds what the users keep now: until the next one they keep it."""
        self.durable = dict(self.progress.versions)

    # What goes out.

    def question(
        self,
        kind: str,
        users: Sequence[str],
        parcel: Parcel,
        schema: Schema,
        options: Mapping[str, Any] | None = None,
        number: int | None = None,
    ) -> Question:
        """One exchange with some users: `parcel.rows` are in their order.

        `schema` has the arrays and numbers that a user sends; the rest of it is filled in here.
        """
        number = self.progress.round if number is None else number
        if not users:
            raise NodeError(f"round {number}: no users are connected.")
        asked, shared = self.roster.by_node(list(users)), encode(parcel.shared)
        place = {user: row for row, user in enumerate(users)}
        down = sum(a.nbytes for a in parcel.shared.values()) * len(users)
        down += sum(a.nbytes for a in parcel.rows.values())
        schema = self.expected(kind, {user: [user] for user in users}, schema)
        messages, tokens = [], {node: new_token() for node in asked}
        for node, group in asked.items():
            places = [place[user] for user in group]
            rows = parcel.rows if len(asked) == 1 else parcel.pick(places)
            task = self.task(number, group, dict(options or {}), tokens[node])
            messages.append(self.message(kind, node, shared, rows, task))
        return Question(messages, asked, schema, down, tokens)

    def expected(
        self, kind: str, participants: Mapping[str, Sequence[str]], schema: Schema
    ) -> Schema:
        """What participants, each of some users, may reply: with samples and weights."""
        members, training = self.roster.members, kind == "train"
        samples = {
            name: sum(members[u].train if training else members[u].test for u in users)
            for name, users in participants.items()
        }
        return replace(
            schema,
            samples=samples,
            by_samples=self.config.train.weighting == "examples",
            training=training,
        )

    def message(
        self, kind: str, node: int, shared: ArrayRecord, rows: Arrays, task: ConfigRecord
    ) -> Message:
        """One message to one node, counted."""
        content = RecordDict({"arrays": shared, "config": task})
        if rows:
            content["rows"] = encode(rows)
        self.progress.traffic.wire_bytes_down += sum(
            payload(record) for record in content.values() if isinstance(record, ArrayRecord)
        )
        self.progress.traffic.wire_messages += 1
        return Message(content, node, kind, ttl=self.timeout, group_id=str(task["round"]))

    def task(
        self, number: int, users: list[str], options: dict[str, Any], exchange: str = ""
    ) -> ConfigRecord:
        """What a node is to do, and all that it has to know of the run."""
        versions = self.progress.versions
        durable = versions if self.durable is None else self.durable
        return encode_task(
            Task(
                algorithm=self.name,
                experiment=self.experiment,
                round=number,
                exchange=exchange,
                seed=self.config.run.seed,
                users=users,
                versions=[versions.get(user, 0) for user in users],
                keep=[durable.get(user, 0) for user in users],
                shape=self.roster.shape,
                num_classes=self.roster.num_classes,
                num_users=self.config.federation.num_users,
                data=self.config.data,
                device_data=self.config.device_data,
                train=self.config.train,
                model=self.config.model,
                keys=self.keys,
                state_dir=self.state_dir,
                many_machines=bool(self.config.federation.ray_address),
                options=options,
            )
        )

    # What comes back.

    def complete(self, turn: Turn) -> Replies:
        """Send and wait until a turn is over."""
        assert self.grid is not None
        line = Exchange(self.grid, self.timeout)
        line.push(turn.messages())
        while done := line.pull():
            turn.answered(done)
            line.push(turn.messages())
        return turn.replies()

    def play(self, script: Script[T]) -> T:
        """Play a script to its end."""
        try:
            turn = next(script)
            while True:
                turn = script.send(self.complete(turn))
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            script.close()  # also where the exchange failed: nothing of it stays under way

    def record(self, replies: Replies, version: int) -> None:
        """Note who was dropped or lost, and that the personal states of the rest moved on."""
        progress = self.progress
        if replies.dropped:
            for user in replies.dropped:
                progress.dropped[user] = progress.dropped.get(user, 0) + 1
            for line in by_cause(replies.dropped):
                self.note(line)
        for user in replies.lost:
            progress.versions.pop(user, None)
        kept = [user for user in replies.users if user in replies.kept]
        progress.versions.update(dict.fromkeys(kept, version))
        progress.traffic.wire_bytes_up += replies.wire_bytes
        progress.traffic.wire_messages += replies.wire_messages

    def count(self, question: Question, replies: Replies) -> None:
        """Count a training exchange as one-user devices would have it."""
        asked = sum(len(group) for group in question.asked.values())
        up = sum(a.nbytes for a in replies.mean.values()) * len(replies.users)
        up += sum(a.nbytes for a in replies.rows.values())
        traffic = self.progress.traffic
        traffic.bytes_down += question.down
        traffic.bytes_up += up
        traffic.messages += (asked if question.down else 0) + (len(replies.users) if up else 0)

    def note(self, text: str) -> None:
        """One line for the log and for whoever watches."""
        text = escaped(text)
        if not any(callback.shows_notes for callback in self.callbacks):
            log(WARNING, "%s: %s", self.name, text)
        for callback in self.callbacks:
            callback.on_note(text)


def new_token() -> str:
    """What only the node that gets it can repeat."""
    return secrets.token_hex(16)
