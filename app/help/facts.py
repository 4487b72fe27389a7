"""Facts that `--help NAME` adds: what an algorithm sends, keeps and costs, and when to take it.

The table of docs/strategies.md is written from it by `python -m corsage.app.keys --write`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """One algorithm as a user weighs it against others.

    Parameters
    ----------
    sent : what goes down and up in a round.
    kept : what stays at the user, and what at the server.
    cost : bytes a round and user.
    take : when to take it.
    line : what it is, where its file is of another algorithm.
    on : keys of data that it is for, where it is not for the digits.
    beside : what to run it beside.
    """

    sent: str
    kept: str
    cost: str
    take: str
    line: str = ""
    on: str = ""
    beside: str = "local"

    def trial(self, name: str) -> str:
        """A command that tries it."""
        return " ".join(["corsage run", f"strategy={name},{self.beside}", *self.on.split()])


GROUPED = {"on": "dataset=hierarchical model=linear", "beside": "exact-local"}
ELLIPSES = "dataset=ellipses model=linear"
AS_MIXED = "as mixed-model", "as mixed-model", "the same"
# fmt: off
FACTS: dict[str, Facts] = {
    "fedrep": Facts("body / body", "head / body", "2 bodies",
        "inputs alike, labels that differ between users"),
    "fedrep-convex": Facts("body, two heads / body, head",
        "nothing / body, a row and a head a user", "2 bodies, 3 heads",
        "as fedrep, where users form groups that nobody tells you of"),
    "fedrep-known": Facts("body, two heads / body, head", "nothing / body, all heads",
        "2 bodies, 3 heads", "as fedrep, where the groups of users are known", on="dataset=moons"),
    "fedrep-exact": Facts("body, head / a matrix of features by features",
        "nothing / body, a head a cluster, whose it is", "2 bodies, a matrix a user",
        "few exchanges: heads in closed form over a body that is not trained, or seldom"),
    "fedper": Facts("body / body", "head / body", "2 bodies", "as fedrep, body and head at once"),
    "fedbabu": Facts("body / body", "nothing / body", "2 bodies",
        "a body for users who come later"),
    "lg-fedavg": Facts("head / head", "body / head", "2 heads",
        "inputs that differ between users, labels alike"),
    "ditto": Facts("model / model", "a model v / model", "2 models",
        "users that differ in everything"),
    "fedrod": Facts("model / model", "a head / model", "2",
        "one model that is fair to all classes, and one for each user's own classes"),
    "mr-mtl": Facts("mean / model", "a model w / mean", "2", "as ditto, for half of the work"),
    "fedala": Facts("model / model", "a head, a weight a number of it / model", "2",
        "users who want some of the common head, and each another part of it"),
    "feddbe": Facts("model, a mean of features / model", "a shift of features / model, that mean",
        "2", "as fedavg, where users' inputs differ: a number a feature is all that is personal"),
    "apfl": Facts("model / model", "a model v, its share alpha / model", "2",
        "users of whom some differ much and others little"),
    "pfedme": Facts("model / model", "a model theta / model", "2", "as ditto, more work a round"),
    "perfedavg": Facts("model / model", "nothing / model", "2",
        "new users with few samples, who adapt in a step"),
    "l2gd": Facts("mean / change of x", "a model x / mean, coins", "2",
        "few messages, all users at hand"),
    "fedmtl": Facts("centre / model", "a model w / all w, their relations", "2",
        "few users, related in pairs"),
    "fedamp": Facts("a message u / model", "a model w / all w", "2",
        "few users, related in pairs, the liker the nearer"),
    "fedfomo": Facts("M models of others / model, what they were worth", "two models / all of them",
        "M + 1", "few users, some of whom help each other, and nobody knows who"),
    "fedproto": Facts("prototypes / prototypes", "a model / prototypes", "a point a class, twice",
        "few bytes; users with few classes each, and models that nobody is to see"),
    "fedpac": Facts("body, prototypes, a head / the same, class means",
        "nothing / body, prototypes, all heads", "2 bodies, 2 heads, 4 points a class",
        "as fedrep, where some users have the same classes"),
    "gpfl": Facts("body, points, valve / the same", "head / body, points, valve",
        "2 bodies, 4 F (F + 3), 2 points a class",
        "as fedper, with a body that tells classes apart for all"),
    "ifca": Facts("K models / 1 model", "nothing / K models, who chose which", "K + 1",
        "groups that nobody tells you of, if you know how many"),
    "fedem": Facts("K models / K models", "K weights / K models", "2 K",
        "users who are mixtures of a few kinds"),
    "cfl": Facts("its cluster's model / model", "nothing / cluster models, last updates", "2",
        "groups that nobody tells you of, nor how many"),
    "fedavg": Facts("model / model", "nothing / model", "2",
        "always, as what to beat: its row fedavg+ft too"),
    "knn-per": Facts("model / model", "nothing, till it predicts a memory of features / model", "2",
        "as fedavg, with a vote of each user's nearest samples, and nothing to train for it"),
    "fedprox": Facts("model / model", "nothing / model", "2",
        "as fedavg, where users drift far in a round"),
    "feddyn": Facts("model / model", "a gradient / model, a mean of gradients", "2",
        "as scaffold, for half of the bytes"),
    "fedlc": Facts("model / model", "nothing / model", "2",
        "one model for users of whom each has many samples of some classes and few of others"),
    "moon": Facts("model / model", "the model that it sent last / model", "2",
        "as fedprox, where features drift, of users who take part often"),
    "fedbn": Facts("model / model", "layers that normalise / model", "2",
        "a model with BatchNorm, and inputs that differ between users"),
    "scaffold": Facts("model, variate / both", "a variate / model, variate", "4",
        "one model for users that pull it apart"),
    "local": Facts("nothing", "a model / nothing", "0", "always, as what to beat",
        beside="fedavg"),
    "async-l2gd": Facts("a map, a step count / model", "a model theta / cluster centres, coins",
        "2 a round trip", "known groups, and any network", **GROUPED),
    "async-al2sgd": Facts("means / z and y", "z, y, anchor / means of these, coins",
        "4 a round trip", "known groups, a linear model, few messages", **GROUPED),
    "mixed-model": Facts("centre, covariance / sums A, b, y'y (given strengths: P, q)",
        "a model theta / centres, strengths", "d(d+1)/2 + d + 1 up",
        "a table and known groups, or a mixed model in mind", **GROUPED),
    "random-intercepts": Facts(*AS_MIXED, "users who differ in level alone: `1 | cluster/user`",
        "Each user's own intercept, and slopes that all share.", **GROUPED),
    "single-cluster": Facts(*AS_MIXED, "users around one centre, without groups", **GROUPED),
    "exact-cluster": Facts(*AS_MIXED, "a baseline", "One exact linear model a known cluster.",
        **GROUPED),
    "exact-global": Facts(*AS_MIXED, "a baseline", "One exact linear model for all.", **GROUPED),
    "exact-local": Facts(*AS_MIXED, "a baseline",
        "Each user's exact linear model of its own data alone.", on=GROUPED["on"],
        beside="exact-global"),
    "convex-clustering": Facts("a point / model", "nothing / all models, duals", "2",
        "linear models, and groups that nobody tells you of; take its row +refit", on=ELLIPSES),
    "local-clusters": Facts("nothing / model", "nothing / all models", "1, once",
        "a baseline of clusters", on=ELLIPSES),
}
# fmt: on
