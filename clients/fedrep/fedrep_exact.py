"""FedRep with exact heads, at the users: sums of their features, and heads in closed form.

The formulas are those of networks/exact_heads.py. Users keep nothing: a head follows from the
user's data, the body, its centre and gamma, and is found again whenever it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.samples import Features
from corsage.core.arrays import Array, Floats, Floats32, Ints
from corsage.core.errors import UserError
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.fields import OneOf, Real, Whole
from corsage.networks.batches import Examples
from corsage.networks.exact import exact_heads, projection, softmax_heads
from corsage.networks.exact.exact_heads import Designs
from corsage.networks.local_training import train_models
from corsage.networks.user_scores import all_features, outputs_of_models, score
from corsage.solvers.losses.floor import of_users
from corsage.strategies.fedrep.exact_state import QUESTIONS, FedRepExactKeys

LARGEST_STRENGTH = 1e15
"""No strength is larger."""
ONE_IN, ALONE_EPOCHS = 5, 30
"""What a user has alone is judged by a fifth of its records, after so many epochs on the others."""
Answer = Callable[[Got, Examples], Sent]


class FedRepExactClient(Client[FedRepExactKeys]):
    """The users; they answer one of four questions."""

    takes = Takes(
        shared={"body": floats("B"), "centres": floats("K", "H")},
        rows={"centre": floats("H"), "shares": floats("K")},
        options={
            "ask": OneOf(tuple(QUESTIONS)),
            "gamma": Real(0, LARGEST_STRENGTH),
            "sigma2": Real(0, LARGEST_STRENGTH),
            "heat": Real(1e-3, LARGEST_STRENGTH),
            "pull": Real(0, LARGEST_STRENGTH),
            "components": Whole(1, projection.MOST_COMPONENTS),
        },
        squares=0,
    )

    def answers(self) -> Mapping[str, Answer]:
        """The questions that the server may ask, and who answers."""
        return {
            "moments": self.moments,
            "sums": self.sums,
            "calibration": self.calibration,
            "strength": self.strength,
            "softmax": self.softmax,
            "body": self.body,
        }

    def train(self, got: Got, data: Examples) -> Sent:
        """Answer what is asked."""
        asked = str(got.options.get("ask", "sums"))
        if asked not in self.answers():
            raise UserError(self.users[0], "train", f"no answer to the question {asked[:40]!r}")
        return self.answers()[asked](got, data)

    def moments(self, got: Got, data: Examples) -> Sent:
        """The mean of the inputs, and a sketch of that of their products."""
        x = self.told(data.x.flatten(1), data.y[:, None], data.sizes)
        mean, sketch = projection.moments(data.over(x), int(got.options["components"]))
        return Sent(mean={"mean": mean.astype(np.float32), "sketch": sketch.astype(np.float32)})

    def sums(self, got: Got, data: Examples) -> Sent:
        """A_i = Z'Z, b_i = Z'Y and |Y|^2."""
        of = self.designs(got, data)
        told = replace(of, z=self.told(of.z, of.y, data.sizes))
        a, b, square = exact_heads.sums(told)
        rows: dict[str, Array] = {"a": a.astype(np.float32), "b": b.astype(np.float32)}
        return Sent(rows=rows, metrics={"square": square})

    def calibration(self, got: Got, data: Examples) -> Sent:
        """The cross-entropy of records that were left out, by what scores are multiplied with.

        Then the share of them that is wrong, by these heads and by what they must be better than.
        """
        of = self.designs(got, data)
        found = exact_heads.calibration(of, self.centres(got, of), gamma(got))
        found = np.column_stack([found, self.wrong_alone(data, found[:, -1])])
        return Sent(mean={"calibration": found.astype(np.float32)})

    def wrong_alone(self, data: Examples, none: Floats) -> Floats:
        """The share of every fifth record that a user's model gets wrong which learned its others.

        `none` is of users who have too few.
        """
        last = torch.cat([torch.arange(n) % ONE_IN == ONE_IN - 1 for n in data.sizes.tolist()])
        held = data.sizes // ONE_IN
        rest = Examples(data.x[~last], data.y[~last], data.sizes - held)
        test = Examples(data.x[last], data.y[last], held)
        orders = self.orders("alone", rest, ALONE_EPOCHS)
        models = train_models(self.network, self.network.initial, rest, orders, self.settings)
        right = score(self.network.criterion, outputs_of_models(self.network, models, test), test)
        return np.where(held > 0, 1 - right.counted / np.maximum(held, 1), none)

    def strength(self, got: Got, data: Examples) -> Sent:
        """The cross-entropy of records that were held out, for each strength of the pull."""
        of, heat = self.designs(got, data), float(got.options["heat"])
        pulls = softmax_heads.PULLS * (gamma(got) / heat)
        found = softmax_heads.held_out(of, heat * self.centres(got, of), pulls)
        return Sent(mean={"strength": found.astype(np.float32)})

    def softmax(self, got: Got, data: Examples) -> Sent:
        """h_i of the multinomial loss, and how much of a record's loss it leaves at most."""
        of, pull = self.designs(got, data), float(got.options["pull"])
        of = replace(of, z=self.told(of.z, of.y, data.sizes))
        w = self.centres(got, of)
        theta = softmax_heads.heads(of, w, pull)
        rows: dict[str, Array] = {"head": exact_heads.as_rows(self.network, theta)}
        return Sent(rows=rows, metrics={"left": softmax_heads.left(of, w, pull, theta)})

    def body(self, got: Got, data: Examples) -> Sent:
        """phi_i <- SGD at (h_i, phi), as in FedRep."""
        return Sent(mean={"body": self.sgd_bodies(got.shared["body"], self.heads(got, data), data)})

    def models(self, got: Got) -> Models:
        """The body under each user's own head."""
        return self.adapt(got, self.train_data(got), 0)

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """The same for a new user: its head needs no epochs."""
        return Models(got.shared["body"], self.heads(got, data))

    def heads(self, got: Got, data: Examples) -> Floats32:
        """h_i in closed form, its scores multiplied by the heat; or of the multinomial loss."""
        of = self.designs(got, data)
        if pull := float(got.options["pull"]):
            theta = softmax_heads.heads(of, self.centres(got, of), pull)
        else:
            theta = exact_heads.heads(of, self.centres(got, of), gamma(got))
            theta = theta * float(got.options["heat"])
        return exact_heads.as_rows(self.network, theta)

    def centres(self, got: Got, of: Designs) -> Floats:
        """The point that each user's head is drawn to (n, d, C): its w_j, or the expected one."""
        if "centre" in got.rows:
            return self.thetas(got.rows["centre"])
        pull, sigma2 = float(got.options["pull"]), float(got.options["sigma2"])
        least = (
            partial(softmax_heads.least, gamma=pull)
            if pull
            else partial(exact_heads.least, gamma=gamma(got), sigma2=sigma2)
        )
        shares = np.asarray(got.rows["shares"], np.float64)
        return exact_heads.expected(of, self.thetas(got.shared["centres"]), shares, least)

    def told(self, x: Tensor, y: Tensor, sizes: Ints) -> Tensor:
        """The rows as what is sent is of them: none stands out; UserError on too few."""
        if self.floor < 2:
            return x
        for place in np.flatnonzero(sizes < self.floor):
            why = f"fewer samples than min-share={self.floor}: no sums of them are sent"
            raise UserError(self.users[int(place)], "train", why)
        inputs, labels = (part.double().cpu().numpy() for part in (x, y))
        found = of_users(inputs, labels, sizes, np.zeros(len(x), np.int64), self.floor)
        return torch.from_numpy(found.x).to(x)

    def thetas(self, rows: Array) -> Floats:
        """Flat heads as Theta."""
        return exact_heads.as_theta(self.network, np.asarray(rows, np.float32))

    def designs(self, got: Got, data: Examples) -> Designs:
        """The users' features under the body that came, and their targets.

        A body's features are needed in several exchanges: those of the last one are held.
        """
        body, net, asked = got.shared["body"], self.network, got.options.get("adapt-samples", 0)
        of = sha256(body.tobytes()).digest(), id(net), id(self.data), self.task.seed
        held = self.cache.get("features of a body", HeldFeatures).of(of)
        net.set(net.body, body)
        parts = [
            held.get((user, asked), partial(all_features, net, data.user(place)[0]))
            for place, user in enumerate(self.users)
        ]
        return exact_heads.designs(net, torch.cat(parts), data, self.task.num_classes)


def gamma(got: Got) -> float:
    """The strength of the pull of the squared loss."""
    return float(got.options["gamma"])


class HeldFeatures:
    """The features of what was asked for last; those of another body are let go."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._held = Features()

    def of(self, key: Hashable) -> Features:
        """Those under a name, which are none if another was asked for since."""
        if key != self._key:
            self._key, self._held = key, Features()
        return self._held
