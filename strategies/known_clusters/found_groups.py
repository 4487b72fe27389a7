"""Groups that nobody told, `mixed-grouping=found`: from the sums of folds, in one exchange.

A user sends what `mixed-model` asks for with the squared loss, for each of a few folds of its rows
apart. Whether groups pay, and which, is found from these (variances/found_groups.py). If they do,
the mixture that was judged is the model: users are told its numbers, and make theirs of these and
of their own rows, new users as all others. If they do not, the rounds are those of one centre.

Two classes are labels of -1 and 1. Squares' score s of them is twice the probability of 1, less 1.
Under the logistic loss it is made log odds, as of scores that are normal in each class (Fisher's
discriminant): of labels with the mean m, and E the mixture's squared error on held-out records,

    2 s / E + log((1 + m) / (1 - m)) - 2 m / (1 - m^2),

which is the same increasing function for all users.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from corsage.core.errors import ConfigError
from corsage.core.messages.replies import Replies, name_users
from corsage.solvers.known_clusters.folds import solved
from corsage.solvers.known_clusters.variances.found_groups import (
    LEAST_USERS,
    OF_ONE_USER,
    Groups,
    Tried,
    found_groups,
    likeliest_of,
)
from corsage.solvers.known_clusters.variances.mixtures import Told
from corsage.solvers.known_clusters.variances.users_sums import Users
from corsage.strategies.known_clusters.aside import sets_aside
from corsage.strategies.known_clusters.clusters.cohorts import ClusterNames, KnownClusters
from corsage.strategies.known_clusters.coins.conversation import ask_each
from corsage.strategies.known_clusters.fold_sums import EVERYBODY_IN, asked
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.linear_summary import Component
from corsage.strategies.known_clusters.mixed_solution import MixedSolution
from corsage.strategies.known_clusters.mixed_state import ALL_COLUMNS, FoundGroups
from corsage.strategies.known_clusters.units import LATENT, Units
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

MOST_LOOKED_AT = 20_000_000
"""n d^3 beyond which mixtures take minutes: each is fitted without each fold."""
MOST_SETS = 8
"""Sets of users who are not like the others that are tried as groups."""
GROUP_NAME = "group "
BY_SQUARES = ("squared", "logistic", "squared-hinge")
"""Losses whose models are squares', or those of labels -1 and 1."""
UNLIKELY = "; fewer are likelier (BIC)"
TOO_SMALL = f"; one is of fewer than {LEAST_USERS} users"
ON_FEW = "; it hangs on few users"
NONE_PAY = "none that pay: one centre"
NOT_JUDGED = "not looked for (too few users or rows, or labels without noise): one centre"


def looked_for(solution: MixedSolution) -> Script[None]:
    """Look for groups, before the first round."""
    job, state = solution.job, solution.state
    check(solution)
    present = KnownClusters(job, together=True).meet(ClusterNames())
    if any(member.cluster for member in job.members.everybody.values()):
        job.note(
            "mixed-grouping=found: the known clusters are not used; mixed-grouping=known takes them"
        )
    sums = state.sums
    if not sums.folds:
        sums = yield from asked(solution, present)
    sums = sums.moved(dict.fromkeys(sums.users, EVERYBODY_IN))  # those that are kept know groups
    state.groups = of_sums(solution, sums)
    if state.groups.of:
        settle(solution)
    where = {user: state.groups.of.get(user, EVERYBODY_IN) for user in sums.users}
    if solution.exact:
        state.heard = sums.moved(where).worth_keeping()
        if solution.keys.mixed_keep_sums:
            state.sums = state.heard


def check(solution: MixedSolution) -> None:
    """Refuse what groups cannot be found for."""
    present = KnownClusters(solution.job, together=True).meet(ClusterNames())
    users, d = sum(len(c.users) for c in present.cohorts), solution.size
    why = solution.own_sums.untold_sums(present)
    if solution.keys.mixed_random != ALL_COLUMNS:
        why = "users differ in all coefficients there: mixed-random=all"
    elif not solution.keys.both_estimated:
        why = "groups come with strengths of their own: known-gamma=auto known-lambda=auto"
    elif solution.job.loss not in BY_SQUARES:
        why = f"groups are found by squares, not with loss={solution.job.loss}"
    elif users * d**3 > MOST_LOOKED_AT:
        why = f"{users:,} users with {d:,} coefficients are too many to fit mixtures to"
    if why:
        raise ConfigError(f"mixed-grouping=found: {why}.")


def settle(solution: MixedSolution) -> None:
    """Write the groups that were found into the state: they are its clusters, and apart."""
    state = solution.state
    state.clusters, solution.clusters.groups = ClusterNames(), state.groups.of
    solution.clusters.meet(state.clusters)
    sent = state.groups.arrays
    centres = sent["start"] + sent["scale"] * sent["middles"]
    state.w = centres[[number_of(name) for name in state.clusters.known]]
    state.model = np.exp(sent["odds"]) @ centres
    state.lam, state.covariance = np.zeros_like(state.w), np.zeros((*state.w.shape, solution.size))
    with np.errstate(divide="ignore"):
        tie = 1 / np.square(sent["root"]).sum(1)
    state.used = state.gamma = np.tile(tie, (len(state.w), 1))


def number_of(name: str) -> int:
    """The place of a group by its name."""
    return int(name.removeprefix(GROUP_NAME)) - 1


def delivered(solution: MixedSolution) -> Script[Replies]:
    """The round: users are told the groups, and keep their models."""
    present = solution.present
    yield ask_each(solution.job, present, partial(solution.shown, deliver=True), counted=True)
    solution.state.done = True
    return Replies(users=[user for cohort in present.cohorts for user in cohort.users])


# The groups.


def of_sums(solution: MixedSolution, sums: KeptSums) -> FoundGroups:
    """The groups by all users that are like the others; who is not has one as well."""
    job, d = solution.job, solution.size
    users = sums.in_order([EVERYBODY_IN], d)
    alike, found = of_alike(solution, sums, users)
    tried = [(one.groups, one.gain, one.sure, why_not(one)) for one in found.tried]
    if (mixture := found.mixture) is None:
        return FoundGroups(json.dumps({"tried": tried}))
    member = mixture.members(Told.of(users.plain(), mixture.root))
    rows = dict(zip(users.users, np.round(member, 4).tolist(), strict=True))
    of = {
        user: f"{GROUP_NAME}{place + 1}"
        for user, place in zip(users.users, member.argmax(1), strict=True)
    }
    scale, start = 1.0, np.zeros(d)
    if job.loss == "logistic":
        intercept = job.config.model.intercept
        labels = float(alike.plain().b[:, -1].sum() / alike.counts.sum()) if intercept else 0.0
        scale, start[-1] = 2 / found.error, log_odds(labels)
    sent = {
        "odds": np.log(mixture.shares), "middles": mixture.centres, "root": mixture.root,
        "noise": np.array(mixture.sigma2), "scale": np.array(scale), "start": start,
    }  # fmt: skip
    return FoundGroups(json.dumps({"tried": tried, "members": rows}), sent, of)


def of_alike(solution: MixedSolution, sums: KeptSums, users: Users) -> tuple[Users, Groups]:
    """Find who counts, and the groups by them.

    Some who are not like the others may be a group that is small and far away. If with them there
    are groups that pay, and they are one of these by themselves, they count. Liars who agree have a
    centre of their own then, and move no other.
    """
    if not (solution.exact and sets_aside(solution.job, solution.keys)):
        return users, by_folds(solution, sums, users)
    alike, aside = solution.own_sums.fit.alike(users), solution.state.aside
    for back in fellows(users, aside.named):
        more = users.at(np.isin(users.users, [*alike.users, *back]))
        found = by_folds(solution, sums, more)
        if apart(more, found, back) == back:
            aside.named = [user for user in aside.named if user not in back]
            solution.job.note(f"{name_users(sorted(back))} counted: they are a group of their own")
            return more, found
    return alike, by_folds(solution, sums, alike)


def fellows(users: Users, some: Sequence[str]) -> list[set[str]]:
    """Sets of `some` users whose own models are near each other, the largest first."""
    from scipy.cluster.hierarchy import linkage

    rows = np.flatnonzero(np.isin(users.users, some))
    if len(rows) < LEAST_USERS:
        return []
    own = users.plain()
    unit = np.sqrt(np.median(np.einsum("nii->ni", own.a), axis=0))
    sets = [{users.users[row]} for row in rows]
    for one, other, *_ in linkage(solved(own.a, own.b)[rows] * unit, "ward"):
        sets.append(sets[int(one)] | sets[int(other)])
    found = [own for own in reversed(sets) if len(own) >= LEAST_USERS]
    return found[:MOST_SETS]


def by_folds(solution: MixedSolution, sums: KeptSums, users: Users) -> Groups:
    """The groups of some users."""
    config, inside = solution.job.config, [*users.users]
    folds = [fold.of_users(inside).in_order([EVERYBODY_IN], users.d) for fold in sums.folds]
    counts = np.stack([fold.counts for fold in folds])
    drawn, parts = users.drawn(config.run.seed), [fold.plain() for fold in folds]
    return found_groups(parts, counts, drawn, config.model.intercept)


def apart(users: Users, found: Groups, some: set[str]) -> set[str]:
    """The users of groups in which nobody is but `some`."""
    if found.mixture is None:
        return set()
    labels, inside = likeliest_of(found.mixture, users.plain()), np.isin(users.users, [*some])
    own = inside & ~np.isin(labels, labels[~inside])
    return {users.users[row] for row in np.flatnonzero(own)}


def why_not(one: Tried) -> str:
    """Say why a number of groups is not taken, whatever its standard errors; empty: nothing."""
    if not one.peopled:
        return TOO_SMALL
    few = one.gain > 0 and one.sure > OF_ONE_USER and not one.shared
    return UNLIKELY if not one.likely else ON_FEW if few else ""


def log_odds(mean: float) -> float:
    """Give what scores of labels with this mean are short of log odds, but for their scale."""
    return float(np.log((1 + mean) / (1 - mean)) - 2 * mean / (1 - mean**2))


def variances(groups: FoundGroups, units: Units) -> list[Component]:
    """Of records, of users within their groups and between groups, in the units of coefficients."""
    sent, scale = groups.arrays, float(groups.arrays["scale"])
    shares, middles = np.exp(sent["odds"]), scale * sent["middles"] @ units.matrix.T
    within = float(sent["noise"]) * scale**2 * np.square(units.matrix @ sent["root"]).sum(1)
    between = shares @ np.square(middles - shares @ middles)
    noise = float(sent["noise"]) * units.label**2 if scale == 1 else LATENT  # or of log odds
    return [
        Component("residual", noise),
        *(Component(f"user: {n}", v) for n, v in units.by_name(within).items()),
        *(Component(f"cluster: {n}", v) for n, v in units.by_name(between).items()),
    ]


def findings(groups: FoundGroups, units: Units | None = None) -> list[Finding]:
    """The number of groups, and by how much less they err on held-out records than one centre."""
    told = json.loads(groups.plain or "{}")
    names = sorted({*groups.of.values()})
    sizes = [sum(own == name for own in groups.of.values()) for name in names]
    some = ", ".join(map(str, sizes))
    none = NONE_PAY if told.get("tried") else NOT_JUDGED
    rows = [("groups", f"{len(names)}, of {some} users" if names else none)]
    for count, gain, sure, why in told.get("tried", []):
        errors = f"{abs(sure):.1f} standard errors"
        if gain * sure < 0:  # of all users together it is the other way round
            errors = f"{-sure:+.1f} standard errors where no few users decide"
        apart = f"{-gain:+.1%} held-out squared error ({errors})"
        rows.append((f"{count} groups beside one centre", apart + why))
    found = [Finding("groups that were found", rows)]
    if not (names and units):
        return found
    parts = [(one.level.replace("cluster", "group"), one) for one in variances(groups, units)]
    return [*found, Finding("variances", [(what, f"{one.variance:.5g}") for what, one in parts])]


def columns(groups: FoundGroups) -> dict[str, dict[str, Any]]:
    """Columns for tables of users: how likely each is of each group."""
    members = json.loads(groups.plain)["members"]
    count = len({*groups.of.values()})
    return {
        f"p_group_{k + 1}": {user: own[k] for user, own in members.items()} for k in range(count)
    }
