"""The base of every strategy: choose users, one message a node, merge what comes back.

An algorithm overrides three small hooks: `initial` (what the server holds before round 1), `send`
(what users get) and `merge` (the step of the server). All it remembers is in `self.state`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log

from corsage.app.callbacks import Callback
from corsage.app.config import Config, flatten
from corsage.app.errors import ConfigError, NodeError, RoundFailed
from corsage.app.exchange import exchange
from corsage.app.outcome import Outcome, by_cause, merge_replies
from corsage.app.roster import Roster
from corsage.app.seeding import generator
from corsage.app.wire import Arrays, Task, decode, encode, encode_task, payload
from corsage.models.build import build_network
from corsage.models.network import Network
from corsage.strategies.results import evaluated, final_result, round_row, weighted_metrics
from corsage.strategies.state import State

TRAINED = ("num-examples",)  # metrics a user that a reply must have
EVALUATED = ("num-examples", "correct", "loss")
LAST = 10  # the paper reports the mean accuracy of the last ten rounds


def part(network: Network, name: str) -> slice:
    """Where an array called body, head or model lies in a network's flat vector."""
    return {"body": network.body, "head": network.head, "model": network.whole}[name]


class Result(FlowerResult):
    """Flower's result, and Corsage's summaries: one a row of the final table."""

    summaries: list[dict[str, Any]]


class Strategy(FlowerStrategy):
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
    """

    name: ClassVar[str] = ""

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        experiment: str = "",
    ) -> None:
        self.config = config if isinstance(config, Config) else Config.parse(config)
        self.keys = self.config.algorithm.get(self.name)
        self.callbacks = list(callbacks)
        self.experiment = experiment or f"{self.name}-{uuid.uuid4().hex[:12]}"
        self.state_dir = ""  # where simulated users keep what is theirs; devices know themselves
        self.state = State()
        self.durable: dict[str, int] | None = None  # versions that the last checkpoint holds
        self.roster = Roster(note=self.note, question=lambda: self._task(0, [], {}))
        self._asked: dict[int, list[str]] = {}
        self._sent: tuple[Arrays, ArrayRecord] | None = None
        self._last: Outcome | None = None
        self._last_evaluation: Outcome | None = None
        self._timeout = self.config.federation.round_timeout

    # The hooks of an algorithm.

    def initial(self, network: Network) -> Arrays:
        """What the server holds before the first round."""
        raise NotImplementedError

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """Arrays that all users get, and arrays with one row for each of `users`."""
        return self.state.arrays, {}

    def template(self) -> Arrays:
        """Arrays of the shape and dtype that one user sends back."""
        return self.state.arrays

    def merge(self, outcome: Outcome) -> Arrays:
        """What the server holds after a round: by default the mean over the round's users."""
        return {**self.state.arrays, **outcome.mean}

    def choose(self, number: int, users: list[str]) -> list[str]:
        """The users of a round: max(r n, 1), uniform, without replacement."""
        count = max(int(self.config.federation.fraction_train * len(users)), 1)
        drawn = generator(self.config.run.seed, "users", number).permutation(len(users))[:count]
        return [users[i] for i in sorted(drawn)]

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """Evaluations after the last round under other options, by the name of their result."""
        return {}

    # Flower's interface.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the nodes that host the users of this round."""
        self._prepare(grid, arrays)
        users = self.choose(server_round, self.users)
        return self._messages("train", server_round, users, dict(config))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge the replies into the state; RoundFailed if too few of them are usable."""
        outcome = self._collect(list(replies), self.template(), TRAINED)
        least = self.config.federation.min_users
        if len(outcome.users) < least:
            raise RoundFailed(
                f"round {server_round}: {len(outcome.users)} usable replies, min-users={least}. "
                + "; ".join(by_cause(outcome.dropped)[:3])
            )
        self.state.arrays = self.merge(outcome)
        self.state.round = server_round
        for user in outcome.users:
            self.state.drawn[user] = self.state.drawn.get(user, 0) + 1
        self._sent = None
        return self._record(), weighted_metrics(outcome)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all nodes: every user evaluates its own model, drawn or not."""
        self._prepare(grid, arrays)
        users = self.new_users if config.get("adapt") else self.users
        return self._messages("evaluate", server_round, users, dict(config))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Merge the users' evaluations."""
        outcome = self._collect(list(replies), {}, EVALUATED)
        if not outcome.users:
            causes = "; ".join(by_cause(outcome.dropped)[:3])
            raise RoundFailed(f"round {server_round}: no user could be evaluated. {causes}")
        return weighted_metrics(outcome)

    def summary(self) -> None:
        """Log the settings."""
        settings = {**flatten(self.config.train), **(flatten(self.keys) if self.keys else {})}
        log(INFO, "%s: %s", self.name, ", ".join(f"{k}={v}" for k, v in settings.items()))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; the arguments are Flower's, and those left out come from the config.

        Returns Flower's result with `summaries`, the rows of the final table.
        """
        rounds = num_rounds or self.config.run.num_rounds
        self._timeout = timeout or self.config.federation.round_timeout
        self._prepare(grid, None)
        if initial_arrays is not None:
            self.state.arrays = self.accept(initial_arrays)
        self._call("on_start")
        self._settle()
        self.summary()
        result = Result()
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        before, begin = self.state.seconds, time.monotonic()
        while self.state.round < rounds:
            number = self.state.round + 1
            self._call("on_round_start", number)
            self._meet(grid)
            training, evaluation = self._train(grid, number, configs[0]), None
            self.state.seconds = before + time.monotonic() - begin
            if self._is_evaluated(number, rounds):
                evaluation = self._evaluate(grid, number, configs[1])
                self.state.curve.append((number, float(np.mean(evaluated(evaluation)[0]))))
                result.evaluate_metrics_clientapp[number] = weighted_metrics(evaluation)
            result.train_metrics_clientapp[number] = weighted_metrics(training)
            if evaluate_fn and (found := evaluate_fn(number, self.named_arrays())) is not None:
                result.evaluate_metrics_serverapp[number] = found
            self._call(
                "on_round_end", round_row(self.name, self.state, training, evaluation, number)
            )
        result.summaries = self._finish(grid, rounds, configs[1])
        result.arrays = self.named_arrays()
        self._call("on_end", result.summaries)
        return result

    # The steps of a round.

    def _train(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        messages = list(self.configure_train(number, self._record(), config, grid))
        replies, _ = exchange(grid, messages, self._timeout)
        self.aggregate_train(number, replies)
        assert self._last is not None
        self._count_training(self._last)
        return self._last

    def _evaluate(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        messages = list(self.configure_evaluate(number, self._record(), config, grid))
        replies, _ = exchange(grid, messages, self._timeout)
        self.aggregate_evaluate(number, replies)
        assert self._last is not None
        sent = sum(array.nbytes for array in self.send([])[0].values())
        self.state.traffic.evaluation_bytes_down += sent * len(self._last.users)
        self._last_evaluation = self._last
        return self._last

    def _finish(self, grid: Grid, rounds: int, config: ConfigRecord) -> list[dict[str, Any]]:
        """The final evaluation of all users, and those under other options."""
        evaluation = self._last_evaluation or self._evaluate(grid, rounds, config)
        results = [final_result(self.name, self.state, evaluation, rounds, LAST)]
        for name, options in self.extra_evaluations().items():
            extra = self._evaluate(grid, rounds, ConfigRecord({**config, **options}))
            results.append(final_result(name, self.state, extra, rounds, last=0))
        if self.config.new.wanted:
            results.append(self._adapt(grid, rounds, config))
        return results

    def _adapt(self, grid: Grid, rounds: int, config: ConfigRecord) -> dict[str, Any]:
        """New users adapt, in every case that the config names; the last one heads the result."""
        cases = []
        for samples, epochs in self.config.new.cases:
            options = {"adapt": True, "adapt-samples": samples, "adapt-epochs": epochs}
            outcome = self._evaluate(grid, rounds, ConfigRecord({**config, **options}))
            result = final_result(f"{self.name}+new", self.state, outcome, rounds, last=0)
            cases.append({"samples": samples, "epochs": epochs, "accuracy": result["accuracy"]})
        return {**result, "new_users": cases}

    def _settle(self) -> None:
        """The model is built for the data of the first start, also when the run is resumed."""
        state, roster = self.state, self.roster
        if state.num_classes == 0:
            state.shape, state.num_classes = roster.shape, roster.num_classes
        if state.shape != roster.shape or state.num_classes < roster.num_classes:
            raise NodeError(
                f"the nodes have samples of shape {roster.shape} in {roster.num_classes} classes, "
                f"the run began with {state.shape} and {state.num_classes}."
            )
        roster.num_classes = state.num_classes
        if self.config.new.wanted and not (self.users and self.new_users):
            known = sorted({m.cluster for m in roster.members.values()} - {""})
            keys, count = self.config.new, len(self.new_users)
            raise ConfigError(
                f"new-users={keys.new_users:g} new-cluster={keys.new_cluster}: {count} of "
                f"{len(roster.users)} users would be new; some must be, and some not. "
                f"Known clusters: {', '.join(known) or 'none'}."
            )

    def _meet(self, grid: Grid) -> None:
        """Learn which nodes came and went; if none is left, wait for one."""
        patience = self.config.federation.node_timeout
        self.roster.refresh(grid, patience)
        if not self.roster.members:
            self.roster.wait(grid, 1, patience)

    def _is_evaluated(self, number: int, rounds: int) -> bool:
        return number % self.config.run.evaluate_every == 0 or number > rounds - LAST

    def _prepare(self, grid: Grid, arrays: ArrayRecord | None) -> None:
        """Know the users, hold the first state, and take over arrays that a wrapper changed."""
        federation = self.config.federation
        if not self.roster.members:
            self.roster.wait(grid, max(federation.num_nodes, 1), federation.node_timeout)
        if not self.state.arrays and self.state.round == 0:
            self.state.arrays = self.initial(self.network)
        if arrays is not None and (self._sent is None or arrays is not self._sent[1]):
            self.state.arrays = {**self.state.arrays, **decode(arrays)}
            self._sent = None

    def _record(self) -> ArrayRecord:
        """What all users get, encoded once for training and evaluation."""
        shared = self.send([])[0]
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
        shared, messages = self._record(), []
        for node, group in self._asked.items():
            content = RecordDict({"arrays": shared, "config": self._task(number, group, options)})
            _, rows = self.send(group)
            if rows:
                content["rows"] = encode(rows)
            self.state.traffic.wire_bytes_down += sum(
                payload(record) for record in content.array_records.values()
            )
            self.state.traffic.wire_messages += 1
            messages.append(Message(content, node, kind, ttl=self._timeout, group_id=str(number)))
        return messages

    def _task(self, number: int, users: list[str], options: dict[str, Any]) -> ConfigRecord:
        versions = self.state.versions
        if self.state_dir:
            options = {**options, "state-dir": self.state_dir}
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
        for user in outcome.dropped:
            self.state.dropped[user] = self.state.dropped.get(user, 0) + 1
        for line in by_cause(outcome.dropped):
            self.note(line)
        for user in outcome.lost:
            self.state.versions.pop(user, None)
        if outcome.kept:
            self.state.versions.update(dict.fromkeys(outcome.users, self.state.round + 1))
        self.state.traffic.wire_bytes_up += outcome.wire_bytes
        self.state.traffic.wire_messages += len(replies)
        self._last = outcome
        return outcome

    def _count_training(self, outcome: Outcome) -> None:
        """Count a training round as one-user devices would exchange it."""
        asked = [user for group in self._asked.values() for user in group]
        shared, rows = self.send(asked)
        down = sum(a.nbytes for a in shared.values()) * len(asked)
        down += sum(a.nbytes for a in rows.values())
        up = sum(a.nbytes for a in self.template().values()) * len(outcome.users)
        traffic = self.state.traffic
        traffic.bytes_down += down
        traffic.bytes_up += up
        traffic.messages += (len(asked) if down else 0) + (len(outcome.users) if up else 0)

    # For the outside.

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

    def accept(self, named: ArrayRecord) -> Arrays:
        """Initial arrays: the strategy's own, or a model's state dict by parameter names."""
        arrays, network = decode(named), self.network
        own = self.initial(network)
        if set(arrays) == set(own):
            return arrays
        return {name: network.flatten(arrays, part(network, name)) for name in own}

    def named_arrays(self) -> ArrayRecord:
        """The shared arrays at the end, under the names that a Flower user expects."""
        network, named = self.network, Arrays()
        for name, array in self.state.arrays.items():
            named |= network.named(array, part(network, name))
        return encode(named)

    def note(self, text: str) -> None:
        """One line for the log and for whoever watches."""
        if not any(callback.shows_notes for callback in self.callbacks):
            log(WARNING, "%s: %s", self.name, text)
        self._call("on_note", text)

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)
