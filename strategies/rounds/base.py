"""The base of every strategy: rounds of training and evaluation, as Flower starts them.

What an algorithm overrides is in hooks.py, what goes to the nodes and back in courier.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore import log

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError, NodeError, RoundFailed
from corsage.core.keys import flatten
from corsage.core.replies import Outcome, by_cause
from corsage.core.wire import decode, encode
from corsage.networks.network import Network
from corsage.strategies.rounds.courier import Courier
from corsage.strategies.rounds.exchange import exchange
from corsage.strategies.rounds.results import evaluated, final_result, round_row, weighted_metrics
from corsage.strategies.rounds.roster import fitting, labels

TRAINED = ("num-examples",)  # metrics a user that a reply must have
LAST = 10  # the paper reports the mean accuracy of the last ten rounds
PARTS = ("body", "head", "model")  # arrays of these names are parts of the model


def part(network: Network, name: str) -> slice:
    """Where an array called body, head or model lies in a network's flat vector."""
    return {"body": network.body, "head": network.head, "model": network.whole}[name]


class Result(FlowerResult):
    """Flower's result, and Corsage's summaries: one a row of the final table."""

    summaries: list[dict[str, Any]]


class Strategy(Courier, FlowerStrategy):
    """Base of Corsage's strategies, for Flower's message API; see Courier for its parameters."""

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
        needed = ("num-examples", self.measure.counted, "loss")
        outcome = self._collect(list(replies), {}, needed)
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
        self.open(grid)
        rounds = self.length(rounds)
        result = Result()
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        before, begin = self.state.seconds, time.monotonic()
        while not self.is_over(rounds):
            number = self.state.round + 1
            self._call("on_round_start", number)
            self._meet(grid)
            training, evaluation = self._train(grid, number, configs[0]), None
            self.state.seconds = before + time.monotonic() - begin
            if self._is_evaluated(number, rounds):
                evaluation = self._evaluate(grid, number, configs[1])
                values, _ = evaluated(evaluation, self.measure)
                self.state.curve.append((number, float(np.mean(values))))
                result.evaluate_metrics_clientapp[number] = weighted_metrics(evaluation)
            result.train_metrics_clientapp[number] = weighted_metrics(training)
            if evaluate_fn and (found := evaluate_fn(number, self.named_arrays())) is not None:
                result.evaluate_metrics_serverapp[number] = found
            row = round_row(self.name, self.state, training, evaluation, self.measure)
            self._call("on_round_end", row)
        result.summaries = self._finish(grid, configs[1])
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
        self.state.traffic.evaluation_bytes_down += self._down
        self._last_evaluation = self._last
        return self._last

    def _finish(self, grid: Grid, config: ConfigRecord) -> list[dict[str, Any]]:
        """The final evaluation of all users, and those under other options."""
        rounds, measure = self.state.round, self.measure
        evaluation = self._last_evaluation or self._evaluate(grid, rounds, config)
        results = [final_result(self.name, self.state, evaluation, measure, LAST)]
        if findings := self.findings():
            results[0]["findings"] = findings
        for name, options in self.extra_evaluations().items():
            extra = self._evaluate(grid, rounds, ConfigRecord({**config, **options}))
            results.append(final_result(name, self.state, extra, measure, last=0))
        if self.config.new.wanted:
            results.append(self._adapt(grid, rounds, config))
        return results

    def _adapt(self, grid: Grid, rounds: int, config: ConfigRecord) -> dict[str, Any]:
        """New users adapt, in every case that the config names; the last one heads the result."""
        cases = []
        for samples, epochs in self.config.new.cases:
            options = {"adapt": True, "adapt-samples": samples, "adapt-epochs": epochs}
            outcome = self._evaluate(grid, rounds, ConfigRecord({**config, **options}))
            result = final_result(f"{self.name}+new", self.state, outcome, self.measure, last=0)
            name = self.measure.name
            cases.append({"samples": samples, "epochs": epochs, name: result[name]})
        return {**result, "new_users": cases}

    def _settle(self) -> None:
        """The model is built for the data of the first start, also when the run is resumed."""
        state, roster = self.state, self.roster
        if not state.shape:  # nothing is built yet
            state.shape, state.num_classes = roster.shape, roster.num_classes
        fits = fitting(roster.num_classes, state.num_classes)
        if state.shape != roster.shape or not fits:
            raise NodeError(
                f"the nodes have samples of shape {roster.shape} with {labels(roster.num_classes)},"
                f" the run began with {state.shape} and {labels(state.num_classes)}."
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
        due = number % self.config.run.evaluate_every == 0 or number > rounds - LAST
        return due or self.is_over(rounds)

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

    def accept(self, named: ArrayRecord) -> Arrays:
        """Initial arrays: the strategy's own, or a model's state dict by parameter names."""
        arrays, network = decode(named), self.network
        own = self.initial(network)
        if set(arrays) == set(own):
            return arrays
        model = {n: network.flatten(arrays, part(network, n)) for n in own if n in PARTS}
        return {**own, **model}

    def named_arrays(self) -> ArrayRecord:
        """The shared arrays at the end, under the names that a Flower user expects."""
        network, named = self.network, Arrays()
        for name, array in self.state.arrays.items():
            if name in PARTS:
                named |= network.named(array, part(network, name))
        return encode(named)
