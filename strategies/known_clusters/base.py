"""The base of the methods for known clusters (Lyu et al. 2022): who is in which, and how pulled.

All users take part: (2.1) is a sum over all of them. Strengths gamma_i and lambda_j are numbers, a
JSON file, or `auto`: estimated in one exchange of sums (see variances.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from corsage.app.cohorts import MEMBERS, Cohort, check_clusters, cohorts_of
from corsage.core.arrays import Arrays
from corsage.core.config import Config
from corsage.core.errors import ConfigError, NodeError
from corsage.core.replies import Outcome, name_users, reading_order
from corsage.core.wire import encode
from corsage.networks.criterion import criterion_of
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.strategies.known_clusters.conversation import Answer, Request, Talk, Talks
from corsage.strategies.known_clusters.strengths import (
    AUTO,
    ClusterKeys,
    check_covers,
    own,
    read_strengths,
)
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.roster import Member


class Clustered(Talks):
    """Users in known clusters as cohorts; the algorithm says what a round's talks are."""

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        experiment: str = "",
    ) -> None:
        super().__init__(config, callbacks, experiment)
        self._seen: tuple[Any, ...] = ()
        self._cohorts: list[Cohort] = []
        self._hierarchy: Hierarchy | None = None

    # What an algorithm overrides.

    def talks(self, number: int) -> dict[str, Talk]:
        """The conversations of a round, one a cluster."""
        raise NotImplementedError

    def shown(self, cohort: Cohort) -> Arrays:
        """What a cohort is told for an evaluation: one row of each array."""
        raise NotImplementedError

    def told(self, cohort: Cohort) -> dict[str, Any]:
        """The options of a cohort's evaluation."""
        return {}

    def settle(self, number: int, outcome: Outcome) -> None:
        """The server's own step at the end of a round."""

    # The users.

    @property
    def cohorts(self) -> list[Cohort]:
        """The cohorts that train now; made anew when nodes come or go."""
        members = self.roster.members
        seen = (id(self.state), frozenset(self.roster.nodes), len(members), self._alone())
        if seen != self._seen:
            self._seen, self._hierarchy = seen, None
            self._check(self.roster.users)
            self._know(dict.fromkeys(self.cluster_of(members[user]) for user in self.users))
            self._cohorts = self._grouped(self.users)
        return self._cohorts

    @property
    def clusters(self) -> list[str]:
        """Names of the known clusters; a cluster's place in it is its number."""
        return list(self.state.scalars.get("clusters", []))

    def cohorts_by_cluster(self) -> dict[str, list[Cohort]]:
        """The cohorts of each cluster that has users now."""
        groups: dict[str, list[Cohort]] = {}
        for cohort in self.cohorts:
            groups.setdefault(cohort.cluster, []).append(cohort)
        return groups

    def _know(self, names: Mapping[str, None]) -> None:
        """Number the clusters; those that come later get the next numbers."""
        known = self.clusters
        new = sorted(set(names) - {*known, ""}, key=reading_order)
        self.state.scalars["clusters"] = known + new

    def _alone(self) -> frozenset[str]:
        """Clusters whose users differ in gamma: their models are told apart at the server."""
        return frozenset(self.state.scalars.get("uneven", []))

    def cluster_of(self, member: Member) -> str:
        """The cluster of a user; those that have no known one share `known-missing`."""
        return member.cluster or self.cluster_keys.known_missing

    def _check(self, users: list[str]) -> None:
        """Refuse users without a cluster; those that come later are left out."""
        members = self.roster.members
        missing = [user for user in users if not self.cluster_of(members[user])]
        if self.state.round == 0:
            check_clusters(users, missing)
        elif missing:
            self.note(f"{name_users(missing)} left out: no known cluster")

    def _grouped(self, users: list[str]) -> list[Cohort]:
        """Users as cohorts."""
        members = self.roster.members
        known = [user for user in users if self.cluster_of(members[user])]
        return cohorts_of(members, known, self.cluster_of, self._alone())

    @property
    def cluster_keys(self) -> ClusterKeys:
        """The keys that all methods for known clusters share."""
        assert isinstance(self.keys, ClusterKeys)
        return self.keys

    # The strengths.

    @property
    def convex(self) -> bool:
        """Whether the model is linear with one output: losses with known curvature."""
        criterion = criterion_of(self.config.model, self.roster.num_classes)
        return self.config.model.model == "linear" and criterion.name != "cross-entropy"

    @property
    def hierarchy(self) -> Hierarchy:
        """(2.1)'s clusters, gamma_i and alpha_j of the users that train now, cohort by cohort."""
        cohorts = self.cohorts
        if self._hierarchy is None:
            number = {name: j for j, name in enumerate(self.here)}
            cluster = np.repeat(
                [number[cohort.cluster] for cohort in cohorts], [len(c.users) for c in cohorts]
            )
            gamma = np.concatenate([self.gammas(cohort) for cohort in cohorts])
            totals = np.bincount(cluster, gamma, len(number))
            lam: dict[str, float] = self.state.scalars["lambda"]
            alpha = alpha_of(np.array([own(lam, name) for name in self.here]), totals)
            self._hierarchy = Hierarchy(cluster, gamma, alpha)
        return self._hierarchy

    @property
    def here(self) -> list[str]:
        """The clusters that have users now, in the order of their numbers."""
        found = {cohort.cluster for cohort in self.cohorts}
        return [name for name in self.clusters if name in found]

    def gammas(self, cohort: Cohort) -> NDArray[np.float64]:
        """gamma_i of a cohort's users; those of later comers are the mean, if nothing is known."""
        gamma: dict[str, float] = self.state.scalars["gamma"]
        users: dict[str, float] = self.state.scalars.get("gammas", {})
        typical = own(gamma or users, cohort.cluster)
        if cohort.cluster in gamma or not users:
            return np.full(len(cohort.users), typical)
        return np.array([users.get(user, typical) for user in cohort.users])

    def typical_gamma(self, cohort: Cohort) -> float:
        """One gamma for all of a cohort."""
        return float(self.gammas(cohort).mean())

    # Rounds and evaluations.

    def open(self, grid: Grid) -> None:
        """Settle the strengths, and whether a cluster's users differ in theirs."""
        if "gamma" in self.state.scalars:
            return
        keys, scalars = self.cluster_keys, self.state.scalars
        if AUTO in (keys.known_gamma, keys.known_lambda):
            self.estimate(grid)
        for what, text in (("gamma", keys.known_gamma), ("lambda", keys.known_lambda)):
            if text != AUTO:
                scalars[what] = read_strengths(f"known-{what}", text)
        check_covers(f"known-lambda={keys.known_lambda}", scalars["lambda"], self.here)
        self.tell_apart()

    def estimate(self, grid: Grid) -> None:
        """gamma and lambda from the users' sums."""
        raise NotImplementedError

    def tell_apart(self) -> None:
        """Note the clusters whose users differ in gamma: each of these is a cohort of its own."""
        self._by_user()
        groups = self.cohorts_by_cluster()
        ends = {n: [self.gammas(c) for c in group] for n, group in groups.items()}
        uneven = [n for n, own in ends.items() if len(np.unique(np.concatenate(own))) > 1]
        if uneven:
            self.state.scalars["uneven"] = uneven

    def _by_user(self) -> None:
        """Whether the names in the file of gamma are users or clusters, which may be the same."""
        scalars, text = self.state.scalars, self.cluster_keys.known_gamma
        found: dict[str, float] = scalars["gamma"]
        cohorts, every = self.cohorts, set(self.users) <= set(found)
        if "" in found:
            return
        scalars["gamma"] = {} if every else {n: found[n] for n in self.clusters if n in found}
        scalars["gammas"] = {n: v for n, v in found.items() if n not in scalars["gamma"]}
        for cohort in cohorts:
            missing = [user for user in cohort.users if user not in scalars["gammas"]]
            if missing and cohort.cluster not in scalars["gamma"]:
                raise ConfigError(
                    f"known-gamma={text}: it has neither cluster {cohort.cluster} nor its user "
                    f"{missing[0]}: add one of them."
                )

    def ask_all(self, grid: Grid, request: Request) -> list[Answer]:
        """One exchange with all cohorts; their answers."""
        heard: list[Answer] = []

        def talk(group: list[Cohort]) -> Talk:
            heard.extend((yield [replace(request, cohort=cohort) for cohort in group]))

        groups = self.cohorts_by_cluster()
        outcome = self.converse(grid, {name: talk(group) for name, group in groups.items()})
        self.check_heard(self.state.round, outcome)
        return heard

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """Nothing goes to everybody."""
        return {}, {}

    def _train(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        """One round: the conversations of all clusters, then the server's own step."""
        self._prepare(grid, None)
        if not self.cohorts:
            raise NodeError(f"round {number}: no users are connected.")
        outcome = self.converse(grid, self.talks(number))
        self.check_heard(number, outcome)
        self.settle(number, outcome)
        self.merged(number, outcome)
        return outcome

    def merged(self, number: int, outcome: Outcome) -> None:
        """The round is done."""
        self.state.round = number
        self._sent, self._last = None, outcome

    def _evaluate(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        trained = [c for c in self.cohorts if c.name in self.state.versions]
        self.state.drawn |= {user: number for cohort in trained for user in cohort.users}
        return super()._evaluate(grid, number, config)

    def _messages(
        self, kind: str, number: int, users: list[str], options: dict[str, Any]
    ) -> list[Message]:
        """Evaluation: one message for each node, and an answer for each user."""
        if kind == "train":
            raise NotImplementedError(
                f"{self.name}: a round is a conversation of several exchanges; call start()."
            )
        if not users:
            raise NodeError(f"round {number}: no users are connected.")
        new = bool(options.get("adapt"))
        cohorts = self._grouped(users) if new else self.cohorts
        groups: dict[int, list[Cohort]] = {}
        for cohort in cohorts:
            groups.setdefault(cohort.node, []).append(cohort)
        self._asked = {
            node: [user for cohort in group for user in cohort.users]
            for node, group in groups.items()
        }
        nothing, messages, self._down = encode({}), [], 0
        for node, group in groups.items():
            each = [self.shown(cohort) for cohort in group]
            self._down += sum(
                a.nbytes * len(cohort.users)
                for cohort, rows in zip(group, each, strict=True)
                for a in rows.values()
            )
            rows = {name: np.stack([row[name] for row in each]) for name in each[0]}
            unknown = {
                c.name: list(c.users) for c in group if new or not self.state.versions.get(c.name)
            }
            more: dict[str, Any] = {MEMBERS: json.dumps(unknown)} if unknown else {}
            more["cohort-options"] = [json.dumps(self.told(cohort)) for cohort in group]
            task = self._task(number, [c.name for c in group], {**options, **more})
            messages.append(self._letter(kind, node, nothing, rows, task))
        return messages
