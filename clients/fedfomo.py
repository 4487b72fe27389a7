"""FedFomo at the users: others' models weighed on samples kept out, and the mixture trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.clients.base import Got, Models, Sent
from corsage.clients.local import LocalClient
from corsage.core.arrays import Floats, Floats32, Ints
from corsage.core.errors import Refused
from corsage.core.messages.asked import Takes, floats
from corsage.core.seeding import generator
from corsage.networks.batches import Examples, Order
from corsage.networks.training import batches, steps_of
from corsage.networks.user_scores import score
from corsage.strategies.fedfomo import FedFomoKeys
from corsage.strategies.rounds.model_arrays import without_statistics

MOST_WORTH = 1e6  # what a model may be worth, or cost, when it is told


class FedFomoClient(LocalClient[FedFomoKeys]):
    """The users of FedFomo (Zhang et al. 2021); each is judged by the model that it has trained."""

    takes = Takes(rows={"others": floats("K", "P")})
    own_training = False

    def train(self, got: Got, data: Examples) -> Sent:
        """theta_i <- E epochs of SGD from the mixture by (4), on samples that did not weigh."""
        parts = self.parts(data)
        start, worth = self.mixed(self.others(got), parts.held)
        theta = self.sgd(start, data, orders=self.steps_on(parts.rows, data))
        told = np.zeros((len(self.users), 1 + self.keys.fedfomo_models), np.float32)
        told[:, : worth.shape[1]] = np.clip(np.nan_to_num(worth), -MOST_WORTH, MOST_WORTH)
        rows = {"model": theta, "weights": told}
        return Sent(rows=rows, keep={"model": theta, "before": start})

    def others(self, got: Got) -> Floats32:
        """The others' models (users, K, P): not more than were to come."""
        own = self.network.initial
        others = got.rows.get("others", np.zeros((len(self.users), 0, len(own)), np.float32))
        if others.shape[1] > self.keys.fedfomo_models:
            most = f"fedfomo-models={self.keys.fedfomo_models}"
            raise Refused(f"{others.shape[1]} models of others came, and {most}")
        return others

    def mixed(self, others: Floats32, held: Examples) -> tuple[Floats32, Floats]:
        """The mixtures that users go on from, and w (users, 1 + K), the own model first."""
        own = self.models(Got()).whole
        before = self.remembered("before", self.network.initial)
        candidates = np.concatenate([own[:, None], others], axis=1)
        each = [self.losses(candidates[:, k], held) for k in range(candidates.shape[1])]
        gains = self.losses(before, held)[:, None] - np.stack(each, axis=1)
        apart = without_statistics(self.network, candidates - before[:, None])
        far = np.linalg.norm(apart.astype(np.float64), axis=2)
        w = np.divide(gains, far, out=np.zeros_like(gains), where=far > 0)
        shares = np.where(np.isfinite(w) & (w > 0), w, 0.0)
        shares[:, 0] += shares.sum(1) == 0  # none is better: the user's own
        shares /= shares.sum(1, keepdims=True)
        used = np.where(shares[..., None] > 0, candidates, 0)  # a model without numbers is not
        return np.einsum("uk,ukp->up", shares, used).astype(np.float32), w

    def losses(self, models: Floats32, held: Examples) -> Floats:
        """The mean loss of each user's model (users, P) on the samples kept out."""
        outputs = Models(models).outputs(self.network, held, alone=False)
        return score(self.network.criterion, outputs, held).loss / held.sizes

    def parts(self, data: Examples) -> Parts:
        """The samples that are trained on, and those that weigh: the same in every round."""
        share, rows, held = self.keys.fedfomo_validation, list[Ints](), list[Ints]()
        for user, n in zip(self.users, data.sizes.tolist(), strict=True):
            out = min(max(round(share * n), 1), n - 1) if share else 0
            order = generator(self.task.seed, "samples kept out", user).permutation(n)
            rows.append(np.sort(order[out:]))
            held.append(np.sort(order[: out or n]))
        places = np.concatenate([own + at for own, at in zip(held, data.offsets, strict=True)])
        sizes = np.array([len(own) for own in held], np.int64)
        kept_out = Examples(data.x[places], data.y[places], sizes, units=data.units)
        return Parts(rows, kept_out)

    def steps_on(self, rows: list[Ints], data: Examples) -> list[Order]:
        """As many batches as of all samples, of some of them."""
        orders, task, size = self.orders("model", data), self.task, self.settings.batch_size
        join = self.network.batch_statistics
        for u, (user, own) in enumerate(zip(self.users, rows, strict=True)):
            if len(own) < data.sizes[u]:
                rng = generator(task.seed, "model", task.round, user)
                epochs = -(-len(orders[u]) // steps_of(len(own), size, join))
                drawn = batches(rng, len(own), epochs, size, join)[: len(orders[u])]
                orders[u] = [own[batch] for batch in drawn]
        return orders


@dataclass(frozen=True)
class Parts:
    """The numbers of the samples that each user trains on, and the samples that weigh models."""

    rows: list[Ints]
    held: Examples
