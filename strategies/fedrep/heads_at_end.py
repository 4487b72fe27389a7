"""Heads in closed form after the last round: rows NAME+exact, NAME+gauss, NAME+prior, NAME+auto.

Over the body that a method has trained the heads of all users follow from their records in closed
form (networks/exact/closed_heads.py): no rate, no epochs. Two exchanges find what they need:

1. sums: all users send means of z z' and y z' over their records, of which the server takes the
   mean, as of models (`weighting`); with a robust rule without users who are far from all others.
2. votes: some users say how well records are told that are left out, under each strength.

Whoever is evaluated, drawn in the rounds or not, or new, has its head from its own records. `auto`
is the head that the voters' records are told best with: no test sample has a say. Voters are users
who were drawn in no round, if there are enough of them. Of others the trained head of `prior` has
seen all records, so it is no candidate then; the body has seen them under each head alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Array, Arrays
from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies, name_users
from corsage.core.messages.schema import Schema
from corsage.core.messages.wire import END_HEAD, ROWS_BY_USER
from corsage.core.pairs.hurt import NEW_SUFFIX, REFERENCES, ROW_ALONE
from corsage.strategies.fedrep.exact_sums import MOST_NUMBERS
from corsage.strategies.fedrep.softmax_centres import voters
from corsage.strategies.rounds.algorithm import EVALUATED_AT_ONCE
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.evaluations import noted, options_of, persistently
from corsage.strategies.rounds.loop import play
from corsage.strategies.rounds.means.most import means_of_most
from corsage.strategies.rounds.means.user_rows import user_weights
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.results import Finding, NewUsers, Summary, summarised
from corsage.strategies.rounds.turns import Parcel, Question, Script, Series

if TYPE_CHECKING:
    from corsage.networks.exact.closed_heads import Strength
    from corsage.networks.network import Network

MOST_FEATURES = 4096
"""Sums of more features than that are larger than most models."""
NO_HEADS = "no heads at the end (end-heads)"
SOLVED_LOSSES = ("cross-entropy", "logistic", "squared")
FEWEST_VOTERS = 8
"""So many users that were drawn in no round vote alone: nothing has seen their records."""
Any_ = Strategy[Any, Any]


@dataclass(frozen=True)
class AtEnd:
    """All that heads follow from.

    Parameters
    ----------
    shared : what every user gets: the model or the body, and the sums.
    strengths : of each head.
    left_out : the loss and the error of each head on records that were left out, as they count, and
        the error as it is: where most users have none, that of the others does not count.
    voters : how many users that is of.
    unseen : whether these were drawn in no round.
    """

    shared: Arrays
    strengths: Mapping[str, Strength]
    left_out: Mapping[str, tuple[float, float, float]]
    voters: int
    unseen: bool

    def chosen(self) -> str:
        """The head with the least error on records that it has not seen.

        One head for all that was trained by gradients has seen those of who was drawn.
        """
        seen = {"prior"} if "model" in self.shared and not self.unseen else set()
        able = [name for name in self.left_out if name not in seen]
        return min(able, key=lambda name: self.left_out[name][1::-1])


def summaries(strategy: Any_) -> list[Summary]:
    """The rows that `end-heads` names; a line for each that there cannot be, but of no body."""
    if strategy.name in REFERENCES[ROW_ALONE]:  # who is alone is the bar, and has its own head
        return []
    wanted = [*strategy.config.train.end_heads]
    possible = heads_of(strategy)
    chosen = {head: head for head in possible if head in wanted}
    if not possible or not (chosen or "auto" in wanted):
        return []
    try:
        found: AtEnd = play(strategy, partial(at_end, heads=possible), strategy.members.exchange)
    except RoundFailed as error:
        strategy.job.note(f"{NO_HEADS}: {error}")
        return []
    if "auto" in wanted:
        chosen["auto"] = found.chosen()
        strategy.job.note(line(strategy, found))
    return [one for end, head in chosen.items() for one in rows_of(strategy, found, end, head)]


def heads_of(strategy: Any_) -> list[str]:
    """The heads that a method's users can have; why there are no others is said."""
    from corsage.networks.exact.closed_heads import CLOSED_HEADS

    criterion = strategy.job.network.criterion
    if why := unfit(strategy, plain(strategy)):
        strategy.job.note(f"{NO_HEADS}: {why}")
        return []
    if not criterion.numbers:
        return [*CLOSED_HEADS]
    if set(strategy.config.train.end_heads) - {"exact", "auto"}:
        strategy.job.note("end-heads: labels are numbers, of which there is exact alone")
    return ["exact"]


def unfit(strategy: Any_, network: Network) -> str:
    """The reason why there are no heads in closed form, or nothing."""
    from corsage.networks.exact.closed_heads import comparable

    shared, head = strategy.shared(), [*network.blocks_of(network.head)]
    divided = strategy.job.network
    sizes = {"model": divided.whole.stop, "body": divided.body.stop}
    if strategy.solves or not any(
        name in shared and shared[name].shape == (size,) for name, size in sizes.items()
    ):
        return f"{strategy.name} has no body that all users share"
    whys = {
        "the model is a head and nothing else": not network.body.stop and network.rear is network,
        f"the head must be one linear layer: {network.why}".removesuffix(": "): (
            not network.linear_head or not network.split_exact
        ),
        "users' own parts are more than a head and BatchNorm": (
            "model" not in model_of(strategy) and not comparable(divided, network)
        ),
        "the head has no bias": len(head) < 2,
        f"loss={network.criterion.name} has none": network.criterion.name not in SOLVED_LOSSES,
        f"{network.width:,} features are too many for sums, at most {MOST_FEATURES:,}": (
            network.width > MOST_FEATURES
        ),
    }
    return next((why for why, is_so in whys.items() if is_so), "")


def plain(strategy: Any_) -> Network:
    """The network as a body and a linear head."""
    from corsage.networks.exact.closed_heads import undivided

    job = strategy.job
    facts = job.agreed.shape, job.agreed.num_classes, job.config.run.seed
    return undivided(job.network, job.model, facts)


def model_of(strategy: Any_) -> Arrays:
    """The model that all users share, or the body where heads are users' own."""
    from corsage.networks.exact.closed_heads import moved

    network, shared = strategy.job.network, strategy.shared()
    if "model" not in shared and "head" not in strategy.tuned:
        return {"body": shared["body"]}
    head = network.initial[network.head]  # under which the body was trained
    whole = shared["model"] if "model" in shared else np.concatenate([shared["body"], head])
    return {"model": moved(whole, network, plain(strategy))}


# The two exchanges.


def at_end(strategy: Any_, heads: list[str]) -> Script[AtEnd]:
    """Ask for sums, then how well records are told that are left out."""
    from corsage.networks.exact.closed_heads import grid

    job, model = strategy.job, model_of(strategy)
    numbers, width = job.network.criterion.numbers, plain(strategy).width + 1
    like: Arrays = {
        "second": np.zeros(width * (width + 1) // 2, np.float32),
        "first": np.zeros((job.agreed.num_classes or 1, width), np.float32),
    }
    sums = Pooled.none(like)
    for users in clusters(strategy).values():
        replies = yield from ask(strategy, "sums", users, Parcel(model), like)
        sums.add(*averaged(strategy, replies))
    model |= sums.arrays()

    several = len(sums.means) > 1
    strengths = {head: grid(head, numbers, "model" in model, several) for head in heads}
    answered = [user for user in job.members.users if user in sums.shares]
    unseen = [user for user in answered if user not in strategy.progress.trained]
    fresh = len(unseen) >= FEWEST_VOTERS
    users = voters(strategy, "heads", job.progress.round, unseen if fresh else answered)
    own = {"share": sums.shares_of(users), **places(strategy, users)}
    ballot: Arrays = {"votes": np.zeros((2, sum(map(len, strengths.values()))), np.float32)}
    votes = yield from ask(strategy, "votes", users, Parcel(model, own), ballot)
    return counted(model, strengths, votes, fresh)


def ask(
    strategy: Any_, what: str, users: list[str], parcel: Parcel, like: Arrays
) -> Script[Replies]:
    """One exchange; sums come one a user where a robust rule is to look at them."""
    job = strategy.job
    options: dict[str, Any] = {END_HEAD: "all", "ask": what}
    each = job.config.robust.on or what == "votes"
    size = each * len(users) * sum(array.size for array in like.values())
    if size > MOST_NUMBERS:
        raise RoundFailed(
            f"{size:,} numbers of users' sums are too many to look at each under a robust rule"
        )
    if each:
        options[ROWS_BY_USER] = True
    fault = partial(doubt, job.network.criterion.numbers) if what == "votes" else None
    schema = Schema(like, tuple(like) if each else (), fault=fault)
    question = question_to(job, "train", users, parcel, schema, options)
    replies = yield question
    job.accept(job.progress.round, replies)
    job.count(question, replies)
    return replies


def doubt(numbers: bool, user: str, own: Arrays) -> str:
    """The reason why no records come to such votes, or nothing."""
    loss, error = own["votes"]
    most = np.inf if numbers else 1.0
    right = loss.min() >= -1e-3 and error.min() >= 0 and error.max() <= most + 1e-3
    return "" if right else "votes that no records come to"


@dataclass
class Pooled:
    """Means of each cluster's users, their weights, and each user's weight and cluster."""

    like: Arrays
    means: list[Arrays]
    weights: list[float]
    shares: dict[str, tuple[float, int]]

    @classmethod
    def none(cls, like: Arrays) -> Pooled:
        """Those of nobody."""
        return cls(like, [], [], {})

    def add(self, means: Arrays, weights: Mapping[str, float]) -> None:
        """Another cluster's."""
        self.shares |= {user: (weight, len(self.means)) for user, weight in weights.items()}
        self.means.append(means)
        self.weights.append(sum(weights.values()))

    def arrays(self) -> Arrays:
        """The means of all clusters, and last those of all users; of one cluster it is both."""
        found = {}
        for name in self.like:
            own = [np.asarray(one[name], np.float64) for one in self.means]
            every = [np.average(own, 0, self.weights)] if len(own) > 1 else []
            found[name] = np.stack([*own, *every]).astype(np.float32)
        return found

    def shares_of(self, users: list[str]) -> Array:
        """Each user's share in its cluster's means, and in those of all."""
        whole, own = sum(self.weights), [self.shares[user] for user in users]
        return np.array([[w / self.weights[c], w / whole] for w, c in own], np.float32)


def clusters(strategy: Any_) -> dict[str, list[str]]:
    """The users of each known cluster; all of them where some are in none."""
    members, users = strategy.members.everybody, strategy.job.members.users
    found: dict[str, list[str]] = {}
    for user in users:
        found.setdefault(members[user].cluster or "", []).append(user)
    return {"": users} if "" in found else dict(sorted(found.items()))


def places(strategy: Any_, users: list[str]) -> Arrays:
    """The place of each user's cluster among them; who is in none has all users', the last."""
    members, known = strategy.members.everybody, [*clusters(strategy)]
    last = len(known) if len(known) > 1 else 0
    own = [members[user].cluster for user in users]
    where = [known.index(name) if name in known and last else last for name in own]
    return {"place": np.array(where, np.float32)}


def averaged(strategy: Any_, replies: Replies) -> tuple[Arrays, dict[str, float]]:
    """The mean of the users' sums, and each user's weight in it; none of who is set aside."""
    job, keys, aside = strategy.job, strategy.config, list[str]()
    means = replies.mean
    if replies.rows:
        means, aside = means_of_most(keys, replies, differences(replies.rows["second"]))
    if aside:
        job.note(f"{name_users(aside)} set aside: far from all others in what features are")
    weights = user_weights(replies, keys.train.weighting, keys.federation.max_share)
    weights = weights * ~np.isin(replies.users, aside)
    return means, dict(zip(replies.users, weights.tolist(), strict=True))


def differences(second: Array) -> dict[str, float]:
    """Differences of a user's features, by the users' sums; of their products what they are."""
    d = round(np.sqrt(2 * second.shape[1] + 0.25) - 0.5)
    rows = np.asarray(second, np.float64)
    squares = rows[:, np.cumsum(np.arange(1, d + 1)) - 1].sum(1)
    means = np.square(rows[:, -d:]).sum(1)  # the last row, of the 1
    own = float(np.median(np.sqrt(np.maximum(squares - means, 0))))
    return {"first": own, "second": float(np.median(np.sqrt(np.square(rows).sum(1))))}


def counted(
    shared: Arrays, strengths: Mapping[str, list[Strength]], votes: Replies, unseen: bool
) -> AtEnd:
    """The strength of each head that has the least loss on what the voters left out."""
    from corsage.solvers.losses.held_out import bounded

    rows = np.asarray(votes.rows["votes"], np.float64)  # (voters, 2, all strengths)
    mean = np.stack([bounded(rows[:, part].T).mean(1) for part in range(2)])
    chosen, left_out, start = {}, {}, 0
    for head, own in strengths.items():
        loss, error = mean[:, start : start + len(own)]
        at = int(np.argmin(loss))
        is_so = float(rows[:, 1, start + at].mean())
        chosen[head], left_out[head] = own[at], (float(loss[at]), float(error[at]), is_so)
        start += len(own)
    return AtEnd(shared, chosen, left_out, len(votes.users), unseen)


# The rows.


def rows_of(strategy: Any_, found: AtEnd, end: str, head: str) -> list[Summary]:
    """The row of a head, and that of new users, if there are any."""
    name = f"{strategy.name}+{end}"
    more = {END_HEAD: head, **found.strengths[head]._asdict()}
    own = summarised(name, strategy, evaluated(strategy, found, name, more))
    rows, cases = [replace(own, findings=[finding(strategy, found, head)])], []
    wanted = strategy.config.new.cases if strategy.config.new.wanted else []
    # Parts of users' own they learn first, as FedBN's new users do what normalises.
    parts = plain(strategy) is not strategy.job.network or strategy.name == "fedbn"
    for number, (samples, epochs) in enumerate(wanted, 1):
        took = epochs * parts
        new = {**more, "adapt": True, "adapt-samples": samples, "adapt-epochs": took}
        late, last = f"{name}{NEW_SUFFIX}", number == len(wanted)
        one = summarised(late, strategy, evaluated(strategy, found, late, new, last))
        cases.append(NewUsers(samples, took, one.score, one.per_user))
        rows += [replace(one, new_users=cases)] * last
    return rows


def evaluated(
    strategy: Any_, found: AtEnd, row: str, more: Mapping[str, Any], deliver: bool = True
) -> Replies:
    """All users' evaluation under their own heads, drawn in the rounds or not; or new users'."""
    job, members, options = strategy.job, strategy.members, options_of(strategy, row, deliver, more)
    members.rest()
    users = members.judged(options)

    def question(group: list[str]) -> Question:
        parcel, schema = Parcel(found.shared, places(strategy, group)), job.judgement(options)
        return question_to(job, "evaluate", group, parcel, schema, options)

    def asked() -> Replies:
        groups = range(0, max(len(users), 1), EVALUATED_AT_ONCE)
        turn = Series([partial(question, users[i : i + EVALUATED_AT_ONCE]) for i in groups])
        replies = members.exchange(turn)
        return noted(strategy, options, turn.down, turn.tokens, replies)

    return persistently(strategy, asked)


def finding(strategy: Any_, found: AtEnd, head: str) -> Finding:
    """The strengths of a head, and what it said of records that were left out."""
    strength, of_numbers = found.strengths[head], strategy.job.network.criterion.numbers
    pulled = {"exact": "weight of all users' head", "gauss": "weight of all users' means"}
    rows = [("left out, of the training records", said(found, head, of_numbers))]
    if head in pulled:
        rows.append((pulled[head], f"that of {strength.pull:g} records"))
    if strength.pooled < 1:
        rows.append(("share of all users in each cluster's", f"{strength.pooled:g}"))
    if strength.weight:
        rows.append(("weight of all users' frequencies", f"that of {strength.weight:g} records"))
    return Finding(f"{head} heads", rows)


def line(strategy: Any_, found: AtEnd) -> str:
    """The head that `auto` is, and by what."""
    of_numbers = strategy.job.network.criterion.numbers
    each = ", ".join(f"{head} {said(found, head, of_numbers)}" for head in found.strengths)
    whose = "users who were never drawn" if found.unseen else "training users"
    seen = "prior" in found.strengths and "model" in found.shared and not found.unseen
    return (
        f"{strategy.name}+auto is {found.chosen()}, by records of {found.voters} {whose}, each "
        f"left out: {each}" + " (with a head that has seen them: no candidate)" * seen
    )


def said(found: AtEnd, head: str, of_numbers: bool) -> str:
    """The error on what was left out, as a reader has it."""
    error = found.left_out[head][2]
    return f"squared error {error:.4g}" if of_numbers else f"{1 - error:.1%} right"
