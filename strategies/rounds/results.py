"""Reports of a strategy: one row a round, and one summary a row of the final table.

Both name the users' measure: accuracy, or RMSE where labels are numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result as FlowerResult

from corsage.core.configuration.key_groups import TENTH
from corsage.core.counts import EXAMPLES
from corsage.core.distribution import Spread, spread, worst_share
from corsage.core.measures import MEASURES
from corsage.core.messages.replies import Replies
from corsage.core.messages.wire import OUTCOMES
from corsage.core.registry import attached
from corsage.core.seeding import drawn_count
from corsage.strategies.rounds.agreed import mark_of
from corsage.strategies.rounds.judged import Baseline, Judged, Scored, judged, steps_taken
from corsage.strategies.rounds.state import Progress, Traffic

if TYPE_CHECKING:
    from corsage.core.pairs.hurt import Hurt
    from corsage.strategies.rounds.base import Strategy

LAST_ROUNDS = 10  # the paper reports the mean accuracy of the last ten rounds
WHERE_KNOWN = (
    *("clusters", "known_clusters", "train_sizes", "estimates", "chosen", "untrained", "outcomes"),
    "data",
)
"""Fields of a summary that files have if there is anything in them."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """A small table of a method's own at its end: text, label and value."""

    title: str
    rows: list[tuple[str, str]]

    def json(self) -> Json:
        """As the summary's file has it."""
        return {"title": self.title, "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True)
class NewUsers:
    """New users after so many samples and epochs, and their measure."""

    samples: int
    epochs: int
    score: Spread
    per_user: dict[str, float]


@dataclass(frozen=True)
class Summary:
    """One row of the final table.

    Parameters
    ----------
    strategy : its name, with what it was evaluated under: `fedavg`, `fedavg+ft`, `fedavg+new`.
    rounds, users : how many were done, and evaluated on test samples.
    measure : what users are judged by first: `accuracy`, or `rmse`, or as `measures` says.
    score : that measure over the users that have it.
    last10 : its mean over the last ten evaluated rounds.
    loss : the mean test loss of each user, over the users.
    worst10 : the mean of the measure over the worst tenth of the users.
    traffic : what was exchanged.
    seconds : from the strategy's start until the row was there; what rows share is in each.
    never_drawn : users whose training was never merged.
    untrained : those of them whose own part of the model is what all begin with.
    dropped : how often each user's reply was not usable.
    per_user : each user's measure.
    curve : (round, mean over users) of every evaluation.
    measures : every measure that was asked for, by name; the first is `measure`.
    test_sizes : each user's test samples.
    untested : users without test samples, who are in none of these numbers.
    baseline : what one answer a user would score.
    gradient_steps : gradients that a user computed in the whole run, on average; None where the
        method's steps are not counted.
    hurt : against whom a user may be worse off (`alone`, `together`): who is, in this row.
    findings : what the method has to say.
    new_users : for rows of new users, every case that was asked for.
    clusters : each user's cluster, where the method has clusters.
    known_clusters : each user's cluster as the data have it, if they do.
    train_sizes : each user's training samples.
    estimates : of a linear model: coefficients, variances, users (docs/statistics.md).
    chosen : what keys that nobody set came to, where that is not the usual.
    data : the mark of the users' data, by which they are known again.
    outcomes : sums of users' test samples, by which rows are compared pair by pair (core/pairs.py).
    """

    strategy: str
    rounds: int
    users: int
    measure: str
    score: Spread
    last10: float
    loss: Spread
    worst10: float
    traffic: Traffic
    seconds: float
    never_drawn: int
    dropped: dict[str, int]
    per_user: dict[str, float]
    curve: list[tuple[int, float]] = field(default_factory=list)
    measures: dict[str, Scored] = field(default_factory=dict)
    test_sizes: dict[str, int] = field(default_factory=dict)
    untested: list[str] = field(default_factory=list)
    baseline: Baseline | None = None
    gradient_steps: float | None = None
    hurt: dict[str, Hurt] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    new_users: list[NewUsers] = field(default_factory=list)
    clusters: dict[str, str] = field(default_factory=dict)
    known_clusters: dict[str, str] = field(default_factory=dict)
    train_sizes: dict[str, int] = field(default_factory=dict)
    estimates: Json | None = None
    chosen: list[str] = field(default_factory=list)
    data: str = ""
    untrained: list[str] = field(default_factory=list)
    outcomes: Json = field(default_factory=dict)

    @property
    def over_samples(self) -> float:
        """The measure of all test samples together; else users' values weighted by samples."""
        own = self.measures.get(self.measure)
        sizes = [self.test_sizes.get(user, 1) for user in self.per_user]
        mean = float(np.average([*self.per_user.values()], weights=sizes))
        return mean if own is None or own.pooled is None else own.pooled

    def json(self) -> Json:
        """As the summary's file has it."""
        name, traffic = self.measure, asdict(self.traffic)
        plain: Json = {
            "strategy": self.strategy,
            "rounds": self.rounds,
            "users": self.users,
            **MEASURES[name].tag,
            name: asdict(self.score),
            f"{name}_last10": self.last10,
            "over_samples": self.over_samples,
            "loss": asdict(self.loss),
            "worst10": self.worst10,
            "bytes_up": traffic.pop("bytes_up"),
            "bytes_down": traffic.pop("bytes_down"),
            "messages": traffic.pop("messages"),
            "traffic": traffic,
            "seconds": self.seconds,
            "never_drawn": self.never_drawn,
            "dropped": self.dropped,
            "per_user": self.per_user,
            "curve": [list(point) for point in self.curve],
            "measures": {name: scored.json() for name, scored in self.measures.items()},
            "per_user_measures": {name: one.per_user for name, one in self.measures.items()},
            "test_sizes": self.test_sizes,
            "untested": self.untested,
            "baseline": asdict(self.baseline) if self.baseline else None,
            "gradient_steps": self.gradient_steps,
        }
        plain |= {what: values for what in WHERE_KNOWN if (values := getattr(self, what))}
        if self.hurt:
            plain["hurt"] = {kind: hurt.json() for kind, hurt in self.hurt.items()}
        if self.findings:
            plain["findings"] = [finding.json() for finding in self.findings]
        if self.new_users:
            each = map(asdict, self.new_users)
            plain["new_users"] = [{name: one.pop("score"), **one} for one in each]
        return plain


class Result(FlowerResult):
    """Flower's result, and Corsage's summaries: one a row of the final table."""

    summaries: list[Summary]

    def __getitem__(self, name: str) -> Summary:
        """The summary of that name: `result["fedavg+ft"]`."""
        return {summary.strategy: summary for summary in self.summaries}[name]

    def json(self) -> list[Json]:
        """The summaries as the file has them."""
        return [summary.json() for summary in self.summaries]


def round_row(strategy: Strategy[Any, Any], training: Replies, evaluation: Replies | None) -> Json:
    """One line of metrics.jsonl, of the round that the strategy is at."""
    progress, traffic = strategy.progress, strategy.job.traffic
    row: Json = {
        "strategy": strategy.name,
        "round": progress.round,
        "users": len(training.users),
        "dropped": len(training.dropped),
        "seconds": round(progress.seconds, 4),
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "messages": traffic.messages,
    }
    if "loss" in training.metrics:
        row["train_loss"] = float(training.metrics["loss"].mean())
    if evaluation is not None:
        row |= _evaluation(progress, judged(evaluation, strategy.job.measures))
    return row


def _evaluation(progress: Progress, found_of: Judged) -> Json:
    """Spread over users; those that were trained at least once and those never trained apart."""
    measure, values, there = found_of.own, found_of.first, found_of.counted
    trained = np.array([user in progress.trained for user in found_of.users])[there]
    row: Json = {
        **measure.tag,
        measure.name: asdict(spread(values)),
        "loss": asdict(spread(found_of.loss)),
        "measures": {one.name: found_of.scored(one).json() for one in found_of.measures},
    }
    for name, group in (("participants", trained), ("newcomers", ~trained)):
        if group.any():
            row[name] = {"users": int(group.sum()), measure.name: float(values[group].mean())}
    return row


def summarised(
    name: str, strategy: Strategy[Any, Any], evaluation: Replies, last: int = 0
) -> Summary:
    """One row of the final table. `last` = 0: this result stands for one evaluation only."""
    progress, result = strategy.progress, judged(evaluation, strategy.job.measures)
    measure, values, users = result.own, result.first, result.users
    tail = [value for r, value in progress.curve if r > progress.round - last] if last else []
    everyone, members = evaluation.users, strategy.members.everybody
    more = [Finding("Set aside", n)] if (n := strategy.members.set_aside()) else []
    more += attached("stopping").findings(strategy) if strategy.config.run.stop_after else []
    clusters = strategy.user_clusters(name)
    measures = {one.name: result.scored(one) for one in result.measures}
    never = [user for user in users if user not in progress.trained]
    sums = evaluation.rows.get(OUTCOMES)
    own = evaluation.users, list(measures[measure.name].per_user), sums, strategy.members.at_home
    hosted = {user: member for user in everyone if (member := members.get(user)) is not None}
    return Summary(
        strategy=name,
        rounds=progress.round,
        users=len(users),
        measure=measure.name,
        score=spread(values),
        last10=float(np.mean(tail)) if tail else float(values.mean()),
        loss=spread(result.loss),
        worst10=worst_share(values, 0.1, measure),
        traffic=Traffic(**asdict(strategy.job.traffic)),
        never_drawn=len(never),
        untrained=never if name == strategy.name and "own" in strategy.tuned else [],
        outcomes={} if sums is None else attached("pairs").packed(measure, *own),
        dropped=dict(progress.dropped),
        per_user=measures[measure.name].per_user,
        curve=list(progress.curve) if last else [],
        measures=measures,
        test_sizes=dict(zip(users, result.sizes.astype(int).tolist(), strict=True)),
        untested=result.untested,
        baseline=result.baseline(),
        gradient_steps=steps_taken(strategy, result),
        findings=[*strategy.findings(), *more] if last else [],
        estimates=strategy.estimates() if last else None,
        clusters={user: clusters[user] for user in everyone if user in clusters},
        known_clusters={user: c for user, member in hosted.items() if (c := member.cluster)},
        train_sizes={user: member.train for user, member in hosted.items()},
        chosen=chosen(strategy),
        data=mark_of(strategy.job, everyone),
        seconds=round(strategy.clock.row(name, further=not last), 3),  # last: with all of the above
    )


def chosen(strategy: Strategy[Any, Any]) -> list[str]:
    """Values of keys that nobody set, for few users or for a table; nothing where usual."""
    config, job, lines = strategy.config, strategy.job, []
    users = len(job.members.users)
    share = config.federation.share(users)
    usual = config.federation.fraction_train or share <= TENTH
    if strategy.draws and not strategy.solves and not usual:
        some = f"{drawn_count(share, users)} of {users}" if share < 1 else f"all {users}"
        lines.append(f"{some} users in each round (fraction-train)")
    if strategy.epochs(config.train, strategy.keys) is not None and job.train != config.train:
        lines.append(f"weight decay {job.train.decay:g}, for numbers (weight-decay)")
    return lines


def weighted_metrics(replies: Replies) -> MetricRecord:
    """The mean of each metric over users, as a Flower record."""
    numbers = replies.metrics
    there = numbers[EXAMPLES] > 0 if EXAMPLES in numbers else slice(None)
    means = {k: float(v[there].mean()) for k, v in numbers.items() if v[there].size}
    return MetricRecord({**means, "num-users": len(replies.users)})
