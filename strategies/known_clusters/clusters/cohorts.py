"""Users in known clusters on their nodes: cohorts, and the clusters' numbers.

A cohort is all users of one known cluster that one node hosts, as one participant: thirty thousand
users in five clusters are five participants. Its models are kept, sent for and answered for
together, and a node that hosts a whole cluster does its averaging. On a device a cohort is the
device's one user, and has its name. Users who are dealt anew find their models in what other
cohorts kept: the server knows the version of each user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from corsage.core.cache import Cache, Names
from corsage.core.errors import ConfigError, NodeError
from corsage.core.messages.replies import name_users, reading_order
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.roster import Member
from corsage.strategies.rounds.state import Progress


@dataclass(frozen=True)
class Cohort:
    """The users of one cluster that one node hosts.

    Its node is told who they are until it has kept a state of theirs `since` that exchange.
    """

    name: str
    cluster: str
    node: int
    users: tuple[str, ...]
    since: int = 0

    def version(self, versions: Mapping[str, int]) -> int:
        """The version of its users' states, which is one; 0: they have none."""
        return versions.get(self.users[0], 0)


@dataclass
class ClusterNames:
    """The known clusters, as a run remembers them.

    Parameters
    ----------
    known : every cluster that was ever there; its place is its number, and there only get more.
    apart : the clusters whose users differ in gamma: each of these users is a cohort of its own.
    refused : users of whose losses the node said what cannot be: they take no part.
    """

    known: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Present:
    """The clusters that train now.

    Parameters
    ----------
    names : those that have users now, in the order of their numbers.
    places : their numbers.
    cohorts : their users; the users of (2.1) are in this order.
    prepared : what was made for just these, and is of no use when users come or go.
    """

    names: list[str]
    places: list[int]
    cohorts: list[Cohort]
    prepared: Cache = field(default_factory=Cache)

    def need_somebody(self, number: int) -> None:
        """NodeError if there is nobody for this round."""
        if not self.cohorts:
            raise NodeError(f"round {number}: no users are connected.")

    @cached_property
    def groups(self) -> dict[str, list[Cohort]]:
        """The cohorts of each cluster."""
        found: dict[str, list[Cohort]] = {}
        for cohort in self.cohorts:
            found.setdefault(cohort.cluster, []).append(cohort)
        return found


class KnownClusters:
    """Tells who is in which cluster; looks again only when nodes came or went.

    Parameters
    ----------
    job : whose users they are.
    missing : the cluster of users that have no known one; none: they are refused.
    together : everybody is in one cluster, unless groups were found.
    all_apart : if the users of one cluster are told apart, those of all others are too.

    Attributes
    ----------
    groups : where clusters were found, each user's; who came later is in the first of them.
    """

    def __init__(
        self,
        job: Job,
        missing: str = "",
        together: bool = False,
        all_apart: bool = False,
    ) -> None:
        self.job, self.missing = job, missing
        self.together, self.all_apart = together, all_apart
        self.groups: Mapping[str, str] = {}
        self._seen: tuple[object, ...] = ()
        self._names: ClusterNames | None = None
        self._present = Present([], [], [])
        self._noted: tuple[object, dict[str, Cohort]] = (None, {})

    def cluster_of(self, user: str, member: Member) -> str:
        """The cluster of a user; none is an empty name."""
        if self.groups:
            return self.groups.get(user) or min(self.groups.values())
        return "all" if self.together else member.cluster or self.missing

    def names(self) -> dict[str, str]:
        """Each user's cluster, if there are any: one for all is none."""
        members = self.job.members.everybody
        none = self.together and not self.groups
        return {} if none else {u: self.cluster_of(u, m) for u, m in members.items()}

    def of_evaluation(self, names: ClusterNames, options: Mapping[str, Any]) -> list[Cohort]:
        """The cohorts of an evaluation: those that train, or those that come only after."""
        if options.get("adapt"):
            return self._grouped(self.job.members.new_users, names)
        return self.meet(names).cohorts

    def meet(self, names: ClusterNames) -> Present:
        """The clusters that train now; one that is new gets the next number in `names`."""
        roster = self.job.members.roster
        now = frozenset(roster.nodes), len(roster.members), self.job.members.resting
        seen = (*now, *names.apart, "", *names.refused)
        if self._names is not names or self._seen != seen:
            self.check()
            self._number(names)
            others = set(names.refused)
            users = [user for user in self.job.members.users if user not in others]
            cohorts = self._grouped(users, names)
            clusters = {cohort.cluster for cohort in cohorts}
            places = [place for place, name in enumerate(names.known) if name in clusters]
            self._present = Present([names.known[place] for place in places], places, cohorts)
            self._names, self._seen = names, (*now, *names.apart, "", *names.refused)
        return self._present

    def note_trained(self, names: ClusterNames) -> None:
        """Users that have a model of their own by now were trained."""
        progress = self.job.progress
        if self._noted[0] is not progress.trained:
            self._noted = progress.trained, {}
        noted = self._noted[1]
        for cohort in self.meet(names).cohorts:
            if cohort.name in progress.versions and noted.get(cohort.name) is not cohort:
                progress.trained.update(cohort.users)
                noted[cohort.name] = cohort  # and is not noted again, user by user, every round

    def _number(self, names: ClusterNames) -> None:
        members = self.job.members.everybody
        found = {self.cluster_of(user, members[user]) for user in self.job.members.users}
        names.known = names.known + sorted(found - {*names.known, ""}, key=reading_order)
        if self.all_apart and names.apart:
            names.apart = list(names.known)

    def check(self) -> None:
        """Refuse users without a cluster; those that come later are left out."""
        members, users = self.job.members.everybody, self.job.members.roster.users
        missing = [user for user in users if not self.cluster_of(user, members[user])]
        if self.job.progress.round == 0:
            check_clusters(users, missing)
        elif missing:
            self.job.note(f"{name_users(missing)} left out: no known cluster")

    def _grouped(self, users: list[str], names: ClusterNames) -> list[Cohort]:
        members = self.job.members.everybody
        known = [user for user in users if self.cluster_of(user, members[user])]
        progress = self.job.progress
        return cohorts_of(members, known, self.cluster_of, progress, frozenset(names.apart))


def cohorts_of(
    members: dict[str, Member],
    users: Iterable[str],
    cluster_of: Callable[[str, Member], str],
    progress: Progress,
    apart: frozenset[str] = frozenset(),
) -> list[Cohort]:
    """The users as cohorts; those of the clusters in `apart` one by one.

    Who was dropped where others went on is of another version, and so of another cohort.
    """
    groups: dict[tuple[str, int, str, int], list[str]] = {}
    for user in users:
        member = members[user]
        cluster = cluster_of(user, member)
        own = user if cluster in apart else ""
        version = progress.versions.get(user, 0)
        groups.setdefault((cluster, member.node, own, version), []).append(user)
    cohorts = [
        Cohort(cohort_name(cluster, group), cluster, node, Names(group), progress.exchange)
        for (cluster, node, *_), group in groups.items()
    ]
    return sorted(cohorts, key=lambda cohort: (cohort.cluster, cohort.name))


def in_groups(cohorts: Sequence[Cohort], most: int) -> list[list[Cohort]]:
    """Cohorts in order, in groups of at most so many users, or of one cohort; one at least."""
    groups: list[list[Cohort]] = [[]]
    size = 0
    for cohort in cohorts:
        size += len(cohort.users)
        if groups[-1] and size > most:
            groups.append([])
            size = len(cohort.users)
        groups[-1].append(cohort)
    return groups


def cohort_name(cluster: str, users: list[str]) -> str:
    """A lone user's id; else a name that changes with the users."""
    if len(users) == 1:
        return users[0]
    digest = blake2b(chr(31).join(users).encode(), digest_size=6)
    return of_several(cluster) + digest.hexdigest()


def of_several(cluster: str) -> str:
    """The beginning of the names of a cluster's cohorts of several users."""
    return f"cluster {cluster} #"


def check_clusters(users: list[str], missing: list[str]) -> None:
    """Refuse users without a known cluster."""
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ConfigError(
            f"{len(missing)} of {len(users)} users have no known cluster ({some}): set "
            "cluster-column or cluster-map (on a device, cluster=NAME in its node config), or "
            "known-missing=NAME to put them into a cluster of that name; mixed-model and fedrep "
            "need no clusters."
        )
