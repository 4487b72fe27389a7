"""The federation as a strategy sees it: who is there, what goes out, and what comes back."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.config import Config
from corsage.core.encoding import encode, payload
from corsage.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    NodeError,
    RoundFailed,
    StatesGone,
    StorageError,
)
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.keys import Keys
from corsage.core.measures import GRADIENT_STEPS, USUAL, Measure, chosen, reported
from corsage.core.preparation import Preparation
from corsage.core.replies import Replies, by_cause, name_users, reading_order
from corsage.core.schema import Number, Schema
from corsage.core.seeding import generator, some_of
from corsage.core.text import escaped
from corsage.core.wire import ENDS_THE_RUN, ENDS_THE_STRATEGY, Task, encode_task
from corsage.datasets.dealing.federated import NO_TESTS
from corsage.strategies.rounds.exchange import Exchange
from corsage.strategies.rounds.owners import Owners
from corsage.strategies.rounds.patience import Patience
from corsage.strategies.rounds.roster import Roster, fitting, is_at_home, is_simulation, labels
from corsage.strategies.rounds.standing import Conduct
from corsage.strategies.rounds.state import Progress
from corsage.strategies.rounds.tables import policy_of, suited
from corsage.strategies.rounds.turns import Parcel, Question, Script, T, Turn

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.rounds.callbacks import Callback


A_DAY = 86_400.0
"""Seconds that nodes on Ray have to start: on a busy machine that takes long, and an engine that
fails says so."""
HEARTBEAT = "no reply in time: its node's heartbeat was lost"


@dataclass
class Attendance:
    """Who is asked at present.

    Parameters
    ----------
    number : the round that is under way, or was last.
    resting : the users that are set aside.
    missing : the users of nodes that did not reply as they had to when they were last asked.
    """

    number: int = 0
    resting: frozenset[str] = frozenset()
    missing: set[str] = field(default_factory=set)


@dataclass
class Sorted:
    """Who takes part, of all that are there.

    Parameters
    ----------
    of, out : the list that it was found from, who rests and who was left out.
    users, new : who trains, and who comes only after.
    sample : who is evaluated after a round; empty until somebody asks.
    """

    of: list[str]
    out: tuple[frozenset[str], frozenset[str]]
    users: list[str]
    new: list[str]
    sample: list[str] = field(default_factory=list)


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
        self.collects = False  # whether this process takes the users' models at the end
        self.gone: set[str] = set()  # users of this round whose states turned out to be gone
        self.training_path = ""  # that of the run's earlier strategies
        self.simulated = False  # whether the server's own files hold the users' states
        self.durable: list[Mapping[str, int]] = []  # versions that each kept checkpoint holds
        self.before: Mapping[str, int] = {}  # versions at the beginning of the round
        self.timeout = config.federation.round_timeout
        self.progress = Progress()
        self.left_out: set[str] = set()  # who did not answer a question that is for all
        self.grid: Grid | None = None
        self.now = Attendance()
        self._sorted: Sorted | None = None
        self.least = 1  # users that must be left to ask, whoever is set aside
        self.lasting = False  # each user weighs the same in every round, whoever takes part
        own = config.federation
        self.patience = Patience(own.patience, own.quorum)
        self.conduct = Conduct(lambda: self.progress.standings, self.note)
        self.roster = Roster(
            note=self.note,
            task=lambda: self.task(0, [], {}, raw=True),
            owners=Owners(lambda: self.progress.owners, own.registered_keys),
            patience=self.patience,
            arrived=lambda node, users: self.conduct.came(users, self.roster.mark(node)),
            policy=policy_of(config),
            frozen=self.frozen,
            parameters=self.parameters,
        )

    def beside(self, name: str, purpose: str) -> Federation:
        """The same nodes and traffic for another algorithm, whose users keep states of their own.

        Nobody is told of its notes but the log.
        """
        keys, experiment = self.config.keys_of(name), f"{self.experiment}-{purpose}"
        other = Federation(name, self.config, keys, [], experiment)
        other.roster, other.grid, other.timeout = self.roster, self.grid, self.timeout
        other.patience, other.conduct = self.patience, self.conduct
        other.now = self.now
        other.state_dir, other.simulated = self.state_dir, self.simulated
        other.progress.training_path = self.progress.training_path
        other.progress.traffic = self.progress.traffic
        return other

    # Who is there.

    @property
    def users(self) -> list[str]:
        """The users that take part in training; nobody is to change the list."""
        return self._sorted_out().users

    @property
    def new_users(self) -> list[str]:
        """The users that come only after training: a share by seed, a known cluster, or both."""
        return self._sorted_out().new

    @property
    def sample(self) -> list[str]:
        """The users who are evaluated after a round: all of them, or so many drawn by the seed."""
        found = self._sorted_out()
        if not found.sample:
            count, users = self.config.run.evaluate_users, found.users
            rng = generator(self.config.run.seed, "evaluated users")
            few = count and len(users) > count
            found.sample = (
                [users[i] for i in some_of(rng, len(users), count)] if few else found.users
            )
        return found.sample

    def _sorted_out(self) -> Sorted:
        """Who takes part and who comes after, found again when somebody came, left or rests."""
        everybody, out = self.roster.users, (self.now.resting, frozenset(self.left_out))
        if self._sorted is None or self._sorted.of is not everybody or self._sorted.out != out:
            there = [u for u in everybody if u not in out[0]] if out[0] else everybody
            new = [user for user in there if self._is_new(user)] if self.config.new.wanted else []
            others = {*new, *out[1]}
            users = [user for user in there if user not in others] if others else there
            self._sorted = Sorted(everybody, out, users, new)
        return self._sorted

    def _is_new(self, user: str) -> bool:
        """Whether a user comes only after training."""
        keys, own = self.config.new, self.roster.members[user]
        drawn = generator(self.config.run.seed, "new user", user).random() < keys.new_users
        return own.cluster == (keys.new_cluster or None) or bool(drawn)

    @property
    def train(self) -> TrainKeys:
        """How users train, with what the data say where the keys do not."""
        return suited(self.config.train, self.roster.preparation)

    @property
    def model(self) -> ModelKeys:
        """The model, with the path that it is trained on, once that is known."""
        own = self.config.model
        return replace(own, training_path=self.progress.training_path or own.training_path)

    @property
    def network(self) -> Network:
        """The model that all users start from, as the nodes build it too."""
        from corsage.networks.build import build_network

        roster = self.roster
        seed = self.config.run.seed
        return build_network(self.model, roster.shape, roster.num_classes, seed)

    def frozen(self, shape: tuple[int, ...], num_classes: int) -> str:
        """The fingerprint of what nobody trains of the model, for such samples."""
        network = self._network_for(shape, num_classes)
        return network.vector.fixed.fingerprint if network else ""

    def parameters(self, shape: tuple[int, ...], num_classes: int) -> int:
        """How many numbers of the model travel, for such samples."""
        network = self._network_for(shape, num_classes)
        return network.whole.stop if network else 0

    def _network_for(self, shape: tuple[int, ...], num_classes: int) -> Network | None:
        """The model for such samples, if there can be one; why not is said elsewhere."""
        from corsage.networks.build import build_network

        keys, seed = self.config.model, self.config.run.seed
        try:
            return build_network(keys, shape, num_classes, seed)
        except ModelError:
            return None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What users are judged by; the first is what rows are compared by."""
        words = ",".join(self.config.run.measures)
        return chosen(words, self.roster.num_classes, self.loss)

    @property
    def measure(self) -> Measure:
        """The first measure."""
        return self.measures[0]

    @property
    def judging(self) -> dict[str, Any]:
        """What an evaluation says of the measures; nothing where they are the usual one."""
        words = ",".join(self.config.run.measures)
        return {} if words == USUAL else {"measures": words}

    @property
    def reported(self) -> tuple[Number, ...]:
        """What each user reports of an evaluation, besides its number of samples."""
        return reported(self.measures, self.roster.num_classes)

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
            if is_simulation(grid):  # nobody is silent there, and the order of work is not ours
                self.patience.times = 0.0
        if not self.roster.members:
            keys = self.config.federation
            patience = A_DAY if is_simulation(grid) else keys.node_timeout
            self.roster.wait(grid, max(keys.num_nodes, 1), patience)

    def refresh(self) -> None:
        """Before a round: learn which nodes came and went; if none is left, wait for one."""
        assert self.grid is not None
        patience, self.now.number = self.config.federation.node_timeout, self.progress.round + 1
        self.roster.refresh(self.grid, patience, self.now.number)
        if not self.roster.members:
            self.roster.wait(self.grid, 1, patience, self.now.number)
        self.rest()

    def rest(self) -> None:
        """Do not ask those whose pause is not over, nor slow ones that are still at work."""
        working, hosted = self.patience.working(), self.roster.hosted
        for reply in self.patience.take_late(query=False):
            node = reply.metadata.src_node_id
            if not reply.has_error() and node not in working:
                self.conduct.late(hosted(node))
        busy = {user for node in working for user in hosted(node)}
        least = max(self.config.federation.min_users, self.least)
        self.now.resting = self.conduct.resting(self.roster.members, self.now.number, least, busy)

    def go_without(self) -> bool:
        """For the rest of this round, do not ask whom the last turn had no reply of.

        False if that was nobody, or too few would be left.
        """
        resting, self.now.missing = self.now.resting | self.now.missing, set()
        left = len(self.roster.users) - sum(user in self.roster.members for user in resting)
        found = resting > self.now.resting and left >= max(self.config.federation.min_users, 1)
        self.now.resting = resting if found else self.now.resting
        return found

    def set_aside(self) -> list[tuple[str, str]]:
        """Which users' nodes were set aside, which nodes were not let in, and why."""
        refused = self.roster.refusals.causes().items()
        rows = [(f"node {node}", f"not let in: {why}") for node, why in refused]
        return self.conduct.table() + rows

    def check_data(self) -> None:
        """The model is built for the data of the first start, also when the run is resumed."""
        progress, roster = self.progress, self.roster
        if not progress.shape:  # nothing is built yet
            progress.shape, progress.num_classes = roster.shape, roster.num_classes
            progress.preparation = (
                json.dumps(roster.preparation.json()) if roster.preparation else ""
            )
        elif progress.preparation:  # a resumed run's tables are prepared as they were
            roster.adopt(Preparation.read(json.loads(progress.preparation)), progress.num_classes)
        fits = fitting(roster.num_classes, progress.num_classes)
        if progress.shape != roster.shape or not fits:
            raise NodeError(
                f"the nodes have samples of shape {roster.shape} with {labels(roster.num_classes)},"
                f" the run began with {progress.shape} and {labels(progress.num_classes)}."
            )
        roster.num_classes = progress.num_classes
        roster.reclaim()  # a resumed run remembers whose ids are
        self.now.number = progress.round
        self.measures  # noqa: B018 - those that such labels have, or a ConfigError
        if not any(member.test for member in roster.members.values()):
            raise DataError(NO_TESTS)
        self.rest()
        if self.config.new.wanted and not (self.users and self.new_users):
            known = sorted({m.cluster for m in roster.members.values()} - {""})
            keys, count = self.config.new, len(self.new_users)
            raise ConfigError(
                f"new-users={keys.new_users:g} new-cluster={keys.new_cluster}: {count} of "
                f"{len(roster.users)} users would be new; some must be, and some not. "
                f"Known clusters: {', '.join(known) or 'none'}."
            )

    def hold(self, kept: Sequence[Mapping[str, int]]) -> None:
        """Users keep the versions that the kept checkpoints hold, until others are kept."""
        self.durable = list(kept)

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
        options = {**(options or {}), **(self.judging if kind == "evaluate" else {})}
        train = self.train.of_round(number, self.config.run.num_rounds) if kind == "train" else None
        sole = len(asked) == 1
        for node, group in asked.items():
            places = [place[user] for user in group]
            rows = parcel.rows if len(asked) == 1 else parcel.pick(places)
            weights = [schema.cut[user] for user in group] if schema.cut else []
            task = self.task(
                number, group, dict(options), tokens[node], weights, train=train, sole=sole
            )
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
            by_samples=training and self.config.train.weighting == "examples",
            most=self.config.federation.max_share,
            among={user: members[user].train for user in self.users} if self.lasting else {},
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
        self,
        number: int,
        users: list[str],
        options: dict[str, Any],
        exchange: str = "",
        weights: Sequence[float] = (),
        raw: bool = False,
        train: TrainKeys | None = None,
        sole: bool = False,
    ) -> ConfigRecord:
        """What a node is to do, and all that it has to know of the run.

        `raw`: it is asked who it is, and what its columns are before they are prepared. `train`
        are the settings of a round that has its own. `sole`: no other node is asked.
        """
        versions = self.progress.versions
        kept = [*self.durable, self.before]
        return encode_task(
            Task(
                algorithm=self.name,
                experiment=self.experiment,
                round=number,
                exchange=exchange,
                frozen="" if raw else self.network.vector.fixed.fingerprint,
                seed=self.config.run.seed,
                sole=sole,
                users=users,
                versions=[versions.get(user, 0) for user in users],
                keep=[[held.get(user, 0) for held in kept] for user in users],
                weights=list(weights),
                shape=self.roster.shape,
                num_classes=self.roster.num_classes,
                num_users=self.config.federation.num_users,
                data=self.config.data,
                device_data=self.config.device_data,
                train=train or self.train,
                model=self.model,
                keys=self.keys,
                state_dir=self.state_dir,
                many_machines=bool(self.config.federation.ray_address),
                preparation=None if raw else self.roster.preparation,
                options=options,
            )
        )

    # What comes back.

    def complete(self, turn: Turn) -> Replies:
        """Send and wait until a turn is over."""
        assert self.grid is not None
        doubtful = self.roster.by_node(self.conduct.doubtful(self.roster.members))
        line = Exchange(self.grid, self.timeout, self.patience, doubtful, self._work)
        line.push(turn.messages())
        while done := line.pull():
            self.heed(done)
            turn.answered(done)
            line.push(turn.messages())
        replies = turn.replies()
        self.judge(replies)
        return replies

    def heed(self, done: Sequence[tuple[Message, Message | None]]) -> None:
        """Stop if a simulated node says that it cannot keep its users' states, or read them."""
        for _, reply in done if self.simulated else ():
            if reply is None or not reply.has_error():
                continue
            if reply.error.code == ENDS_THE_RUN:
                raise StorageError(reply.error.reason)
            if reply.error.code == ENDS_THE_STRATEGY:
                raise CheckpointError(reply.error.reason)

    def play(self, script: Script[T], begin: Callable[[Turn], Replies] | None = None) -> T:
        """Play a script to its end; its first turn by `begin`, if something goes with it."""
        complete = begin or self.complete
        try:
            turn = next(script)
            while True:
                turn, complete = script.send(complete(turn)), self.complete
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            script.close()  # also where the exchange failed: nothing of it stays under way

    def _work(self, message: Message) -> float:
        """How many samples a message is about, as far as the roster tells."""
        task: Any = message.content.get("config", {})
        named = [u for u in task.get("users", []) if u in self.roster.members]
        users = named or self.roster.hosted(message.metadata.dst_node_id)
        return float(sum(self.roster.members[user].train for user in users))

    def judge(self, replies: Replies) -> None:
        """Note how the nodes behaved in a turn; where none replied, it was not theirs to do."""
        hosted, mark = self.roster.hosted, self.roster.mark
        there = set(replies.silent) - self._gone(replies)
        bad = {*replies.silent, *replies.refused}
        self.now.missing = {user for node in bad for user in hosted(node)}
        if replies.answered or replies.refused:
            for node in there:
                self.conduct.silent(hosted(node), mark(node), self.now.number)
        for node in set(replies.refused) - there:
            self.conduct.refused(hosted(node), mark(node), self.now.number)
        if self.progress.standings:
            for node in {*replies.answered} - {*replies.refused} - there:
                self.conduct.alive(hosted(node))
        self.conduct.tell()

    def judge_others(self, replies: Replies) -> None:
        """The same of nodes that were asked something else in the turn that was judged last."""
        missing = self.now.missing
        self.judge(replies)
        self.now.missing |= missing

    @property
    def at_home(self) -> bool:
        """Whether all users' data are the server's own anyway."""
        return self.grid is not None and is_at_home(self.grid)

    def _gone(self, replies: Replies) -> set[int]:
        """The silent nodes that are not connected any more."""
        if not replies.silent or self.grid is None:
            return set()
        return set(replies.silent) - set(self.grid.get_node_ids())

    def record(self, replies: Replies, version: int) -> None:
        """Note who was dropped or lost, and that the personal states of the rest moved on."""
        progress = self.progress
        for node in self._gone(replies):
            replies.dropped.update(dict.fromkeys(replies.silent[node], HEARTBEAT))
        if replies.dropped:
            for user in replies.dropped:
                progress.dropped[user] = progress.dropped.get(user, 0) + 1
            for line in by_cause(replies.dropped):
                self.note(line)
        self.reset(replies)
        kept = [user for user in replies.users if user in replies.kept]
        progress.versions.put(kept, version)
        if (steps := replies.metrics.get(GRADIENT_STEPS.name)) is not None:
            progress.gradient_steps = (progress.gradient_steps or 0.0) + float(steps.sum())
        progress.traffic.wire_bytes_up += replies.wire_bytes
        progress.traffic.wire_messages += replies.wire_messages

    def reset(self, replies: Replies) -> set[str]:
        """Let the users start anew whose nodes no longer have their states; who they are.

        In a simulation nobody loses them but by damage to the run's own files: StatesGone.
        """
        versions = self.progress.versions
        gone = {user for user in replies.lost if versions.get(user)}
        if gone and self.simulated:
            why = next((replies.dropped[user] for user in gone if user in replies.dropped), "gone")
            who = name_users(in_order(gone))
            raise StatesGone(f"{who} without a state that the run has left there ({why}).")
        for user in gone:
            del versions[user]
        self.gone |= gone
        return gone

    def unless_states_are_gone(self, script: Callable[[], Script[T]]) -> Script[T]:
        """A script of a round; played again if it fails where it turned out that states are gone.

        Their users start anew. A round that fails leaves no trace in what the others keep.
        """
        while True:
            before = self.progress.versions.copy()
            self.before, self.gone = before, set()
            try:
                return (yield from script())
            except BaseException as error:
                for user in self.gone & before.keys():
                    del before[user]
                self.progress.versions = before
                if not (self.gone and isinstance(error, RoundFailed)):
                    raise
            finally:
                self.before = {}
            self.note(f"{name_users(in_order(self.gone))} to start anew: the round is tried again")

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


def in_order(users: Iterable[str]) -> list[str]:
    """Users as a reader has them."""
    return sorted(users, key=reading_order)


def new_token() -> str:
    """What only the node that gets it can repeat."""
    return secrets.token_hex(16)
