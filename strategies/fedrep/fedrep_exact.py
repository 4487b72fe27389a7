"""FedRep whose heads are solved exactly: the three papers' problems in a handful of exchanges.

Over a frozen body phi the heads of FedRep (Collins et al. 2021) are a linear problem for each
user: what Lyu et al. 2022, (2.3), solve exactly. With the squared loss of every output,

    min over h, w, wbar of  sum_i 1/2 |Z_i h_i - Y_i|^2 + gamma/2 |h_i - w_j|^2
                            + sum_j lambda/2 |w_j - wbar|^2,

gamma and lambda come from the variances of the largest restricted likelihood (solvers/
known_clusters/shared_rows.py). So there is no step size, no strength and no number of epochs:

1. moments: the users' second moments set the body's first layer (networks/projection.py).
2. sums: users send Z'Z and Z'Y of their features; the server finds gamma, lambda, w_j and wbar.
3. calibration: of classes, some users send the cross-entropy of records that were left out, and
   the server finds what scores are multiplied by before the softmax.

With `fedrep-exact-loss=multinomial` two more follow, of classes (strategies/fedrep/
softmax_centres.py): some users compare strengths of the pull for the multinomial loss, and all
send their minimisers of it, from which w_j follow anew.

With `fedrep-exact-body-rounds` more rounds follow: some users take FedRep's step on the body under
their exact heads, and the heads are solved anew. A user that comes later has its head in closed
form, from the others' w_j and its own rows. Where clusters appeared and it is in none, it finds at
home how likely its rows are under each, and its head is what it is expected to be by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32, Ints
from corsage.core.errors import ConfigError, ModelError
from corsage.core.messages.replies import Replies, name_users, reading_order
from corsage.core.messages.schema import Schema
from corsage.core.messages.wire import ROWS_BY_USER
from corsage.core.seeding import generator
from corsage.strategies.fedrep.exact_state import EVERYBODY, FedRepExactKeys, FedRepExactState
from corsage.strategies.fedrep.exact_sums import (
    MOST_NUMBERS,
    check_exact,
    least,
    numbers,
    rows_of,
    sound,
)
from corsage.strategies.fedrep.pulled_heads import named_heads
from corsage.strategies.fedrep.softmax_centres import limits, refine, voters
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.most import means_of_most
from corsage.strategies.rounds.outgoing import question_to
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Parcel, Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.solvers.known_clusters.variances.shared_rows import Rows, Shared


BETTER = "train a body: strategy=fedavg with end-heads=auto, or strategy=local"


class FedRepExact(Strategy[FedRepExactKeys, FedRepExactState]):
    """The server: it holds the body phi, w_j, wbar and the variances."""

    name = "fedrep-exact"
    by_user = ("a", "b", "head", "mean", "sketch", "calibration", "strength")
    own_steps = "its heads are solved exactly"
    draws = False  # all users' sums in every round
    unprotected = "users send sums that are solved, only the body would be protected"
    no_server_step = "its heads are solved, and in its rounds of the body these come after"

    def unused(self, name: str) -> str:
        """Without rounds of the body nothing is trained."""
        return "" if self.keys.fedrep_exact_body_rounds else "its heads are solved exactly"

    def initial(self, network: Network) -> FedRepExactState:
        """phi^0; nothing is known of heads yet."""
        check_exact(network, self.keys.fedrep_exact_loss)
        zero = np.zeros_like(network.initial[network.head])
        return FedRepExactState(network.initial[network.body], zero, zero[None][:0], [])

    def shared(self) -> Arrays:
        """The body phi, for all users."""
        return {"body": self.state.body}

    def opening(self) -> Script[None]:
        """The body's first layer from the users' moments, if it is to be set so."""
        if not self.state.projected and self._projects():
            yield from self._project()

    def round(self, number: int) -> Script[Replies]:
        """From the second round on FedRep's step on the body; then the heads' problem is solved."""
        if number > 1:
            users = self.choose(number, self.members.users)
            moved = yield from self.ask("body", users, number, template={"body": self.state.body})
            self.state = replace(self.state, body=moved.mean["body"])
        return (yield from self._solve(number))

    def length(self, rounds: int) -> int:
        """One round, and those of the body."""
        return min(rounds, 1 + self.keys.fedrep_exact_body_rounds)

    def finished(self) -> bool:
        """True if all rounds of the body are done."""
        return self.progress.round > self.keys.fedrep_exact_body_rounds

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """phi, and each user's w_j; wbar where its cluster is not known.

        If clusters appeared and some of the users are in none yet, all w_j, and each user's shares
        in them: how many users each has, for those that are in none.
        """
        state, own = self.state, self._clusters(users)
        if len(state.w) > 1 and self.keys.fedrep_exact_centre == "clusters" and EVERYBODY in own:
            return Parcel({**self.shared(), "centres": state.w}, {"shares": state.shares(own)})
        row = dict(zip(state.clusters, state.w, strict=True))
        centre = [row.get(name, state.wbar) for name in own]
        return Parcel(self.shared(), {"centre": np.stack(centre)})

    def evaluation(self, options: Mapping[str, Any], users: list[str] | None = None) -> Question:
        """Users need gamma and the heat, too."""
        return super().evaluation({**options, **self.state.told()}, users)

    # The exchanges.

    def ask(
        self,
        what: str,
        users: list[str],
        number: int,
        parcel: Parcel | None = None,
        template: Arrays | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Script[Replies]:
        """One exchange with some users, of whom enough must answer."""
        size = len(users) * sum(like.size for like in (template or {}).values())
        rows = tuple(name for name in self.by_user if name in (template or {}))
        if what == "moments" and size > MOST_NUMBERS:
            self.job.note(f"{size:,} numbers of moments are too many: no liar would be seen")
            rows = ()
        told = numbers(what, self.job.network.criterion.numbers)
        schema = Schema(template or {}, rows, told)
        parcel = parcel or self.show(users, {})
        options = {**self.train_options, **self.state.told(), **(more or {}), "ask": what}
        if rows:
            options[ROWS_BY_USER] = True
        question = question_to(self.job, "train", users, parcel, schema, options, number)
        replies = yield question
        self.job.accept(number, replies)
        self.job.count(question, replies)
        return replies

    def _project(self) -> Script[None]:
        """The first exchange."""
        from corsage.networks.exact.projection import first_layer, projected, sketched, spread

        job, network = self.job, self.job.network
        layer = first_layer(network, job.built.shape)
        p = layer[0].shape[1]
        rank = min(self.keys.fedrep_exact_components, p)
        template: Arrays = {
            "mean": np.zeros(p, np.float32),
            "sketch": np.zeros((p, sketched(rank, p)), np.float32),
        }
        options = {"components": rank}
        nothing = Parcel()
        replies = yield from self.ask("moments", job.members.users, 0, nothing, template, options)
        found, aside = replies.mean, list[str]()
        if replies.rows:
            differ = spread(replies.rows["mean"], replies.rows["sketch"])
            found, aside = means_of_most(self.config, replies, differ)
        if aside:
            job.note(f"{name_users(aside)} set aside: far from all others in what inputs are")
        mean, sketch = (np.asarray(found[x], np.float64) for x in ("mean", "sketch"))
        rng = generator(self.config.run.seed, "projection")
        body = projected(layer, self.state.body, mean, sketch, rank, rng)
        self.state = replace(self.state, body=body, projected=True, aside=aside)

    def _solve(self, number: int) -> Script[Replies]:
        """Sums, variances and centres; of classes also the heat."""
        from corsage.networks.exact.exact_heads import HEATS, RIVALS, as_rows, as_theta
        from corsage.solvers.known_clusters.variances.shared_rows import fit, without

        network, users = self.job.network, self.members.users
        d, outputs = as_theta(network, self.state.wbar[None]).shape[1:]
        like: Arrays = {
            "a": np.zeros(d * (d + 1) // 2, np.float32),
            "b": np.zeros(d * outputs, np.float32),
        }
        replies = yield from self.ask("sums", users, number, Parcel(self.shared()), like)
        own = rows_of(replies, d, outputs)
        rows, answered = sound(self.name, self.job, own, replies.users, self.state.aside)
        if self.keys.fedrep_exact_centre == "clusters":
            found = self._grouped(rows, answered)
            names, _ = self.numbered(answered)
        else:
            names, cluster = self.numbered(answered)
            found = fit(rows, cluster, len(names))
        middle, w = as_rows(network, found.wbar[None])[0], as_rows(network, found.w)
        self.state = self._after(found, names, middle, w, len(answered))
        if not network.criterion.numbers:
            like = {"calibration": np.zeros(len(HEATS) + RIVALS, np.float32)}
            some = voters(self, "calibration", number, answered)
            places = np.array([answered.index(user) for user in some])
            others = without(rows, self.numbered(answered)[1], found, places)
            parcel = Parcel(self.shared(), {"centre": as_rows(network, others)})
            answers = yield from self.ask("calibration", some, number, parcel, like)
            columns = np.asarray(answers.rows["calibration"], np.float64)
            heat = float(HEATS[least(columns[:, : len(HEATS)])])
            wrong = columns[:, len(HEATS) :]
            self.state = replace(self.state, heat=heat, told_right=(1 - wrong.mean(0)).tolist())
            lead = wrong[:, 1:] - wrong[:, :1]
            if np.any(lead.mean(0) < -lead.std(0) / np.sqrt(len(lead))):  # beyond their noise
                self.job.note(
                    f"{self.name} loses: of left-out records {self.state.rivals()}; {BETTER}"
                )
        if self.keys.fedrep_exact_loss == "multinomial":
            yield from refine(self, number, dict(zip(answered, limits(rows), strict=True)))
        return replies

    def _grouped(self, rows: Rows, users: list[str]) -> Shared:
        """The clusters that appear, which the state then has, and their centres."""
        from corsage.solvers.convex_clustering.reading import proposals
        from corsage.solvers.known_clusters.variances.shared_groups import groups

        found = groups(rows, proposals)
        several = bool(found.labels.any())
        own = [str(1 + c) if several else EVERYBODY for c in found.labels.tolist()]
        self.state = replace(self.state, members=users, own=own)
        return found.shared

    def _after(
        self, found: Shared, names: list[str], middle: Floats32, w: Floats32, answered: int
    ) -> FedRepExactState:
        """The state with what was found."""
        return replace(
            self.state,
            wbar=middle,
            w=w,
            clusters=names,
            rho=found.rho,
            tau=found.tau,
            pull=0.0,
            left=0.0,
            sigma2=float(found.sigma2),
            answered=answered,
            at_boundary=found.at_boundary,
        )

    # Who is in which cluster, and what is told.

    def _projects(self) -> bool:
        """True if the first layer is set from the inputs."""
        from corsage.networks.exact.projection import first_layer

        wanted = self.keys.fedrep_exact_body
        if wanted == "initial":
            return False
        try:
            first_layer(self.job.network, self.job.built.shape)
        except ModelError as error:
            if wanted == "pca":
                raise
            self.job.note(f"the body begins as the model is made: {error}")
            return False
        return True

    def _clusters(self, users: list[str]) -> list[str]:
        """The name of each user's cluster; that of everybody where none are used."""
        members, wanted = self.members.everybody, self.keys.fedrep_exact_centre
        if wanted == "clusters":
            found = dict(zip(self.state.members, self.state.own, strict=True))
            return [found.get(user, EVERYBODY) for user in users]
        known = wanted != "one" and all(members[u].cluster for u in self.members.users)
        if wanted == "known" and not known:
            raise ConfigError(
                "fedrep-exact-centre=known: some users are in no known cluster: set cluster-column "
                "or cluster-map, or take fedrep-exact-centre=one."
            )
        return [members[user].cluster if known else EVERYBODY for user in users]

    def numbered(self, users: list[str]) -> tuple[list[str], Ints]:
        """The clusters' names, and the number of each user's."""
        own = self._clusters(users)
        names = sorted(set(own), key=reading_order)
        return names, np.array([names.index(name) for name in own])

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's known cluster, where these have centres of their own."""
        users = self.members.users
        own = dict(zip(users, self._clusters(users), strict=True))
        return own if len(self.state.clusters) > 1 else {}

    def findings(self) -> list[Finding]:
        """The variances, and what scores are multiplied by."""
        return self.state.findings()

    def named_arrays(self) -> ArrayRecord:
        """phi, and w_j by the cluster's name."""
        state = self.state
        heads = dict(zip((name or "all" for name in state.clusters), state.w, strict=True))
        return named_heads(self.job.network, state.body, heads)
