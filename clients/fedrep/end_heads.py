"""Heads in closed form at the end of any method that has a body, at the users.

The formulas are those of networks/exact/closed_heads.py. Users keep nothing: a head follows from a
user's records, the body, what all users' records come to, and the strengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corsage.clients import client_class
from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.fedbn import FedBNClient
from corsage.clients.fedrep.fedrep_exact import LARGEST_STRENGTH, Answer, FedRepExactClient
from corsage.core.arrays import Array, Arrays, Floats32
from corsage.core.cache import Cache
from corsage.core.errors import UserError
from corsage.core.messages.asked import ANY, Takes, floats
from corsage.core.messages.fields import OneOf, Real
from corsage.core.messages.wire import END_HEAD, Task
from corsage.datasets.user_data import FederatedData
from corsage.networks.batches import Examples
from corsage.networks.exact import closed_heads, exact_heads
from corsage.networks.exact.closed_heads import CLOSED_HEADS, POOLED, Means, Own, Strength
from corsage.networks.exact.exact_heads import Designs, as_rows, as_theta, unpacked
from corsage.networks.network import Network
from corsage.networks.user_scores import features_of_each

MOST_VOTED = 300
"""Records of a user that are left out in turn, at most."""


def client_for(task: Task) -> type[EndHeadsClient]:
    """The client of a task: what users keep is asked for where parts of a body are theirs."""
    cls = client_class(task.algorithm)
    own = task.model.batch_norm == "personal" or task.model.personal or task.model.shared
    parts = own or issubclass(cls, FedBNClient)
    return OwnPartsClient if parts and cls.personal else EndHeadsClient


class EndHeadsClient(FedRepExactClient):
    """The users: what their features come to, what they say of strengths, and their heads."""

    takes = Takes(
        shared={
            "model": floats("P"),
            "body": floats("B"),
            "second": floats(ANY, ANY),
            "first": floats(ANY, ANY, ANY),
        },
        rows={"share": floats(2), "place": floats()},
        options={
            END_HEAD: OneOf((*CLOSED_HEADS, "all")),
            "ask": OneOf(("sums", "votes")),
            **dict.fromkeys(Strength._fields, Real(0, LARGEST_STRENGTH)),
        },
        squares=0,
    )

    def __init__(
        self,
        task: Task,
        users: Sequence[str],
        data: FederatedData,
        network: Network,
        states: Sequence[Arrays],
        cache: Cache | None = None,
    ) -> None:
        super().__init__(task, users, data, network, states, cache)
        facts = tuple(task.shape), task.num_classes, task.seed
        plain = closed_heads.undivided(network, task.model, facts)
        self.divided = network  # between users and server, where more than a head is users' own
        self.cls = client_class(task.algorithm)
        if plain is not network:
            self.full, self.network = plain, plain if self.settings.augment else plain.rear
        self.bodies: list[Floats32] | None = None
        self.drawn: dict[tuple[int, float], Means] = {}

    def answers(self) -> Mapping[str, Answer]:
        """The questions that the server may ask, and who answers."""
        return {"sums": self.sums, "votes": self.votes}

    def sums(self, got: Got, data: Examples) -> Sent:
        """Means over each user's records of z z', as its lower triangle, and of y z'."""
        of = self.designs(with_body(self, got), data)
        of = replace(of, z=self.told(of.z, of.y, data.sizes))
        found = [Means.of(z, y) for z, y, _ in of.exact()]
        below = torch.tril_indices(of.z.shape[1], of.z.shape[1])
        second = torch.stack([one.second[below[0], below[1]] for one in found])
        first = torch.stack([one.first for one in found])
        return Sent(mean={"second": single(second), "first": single(first)})

    def votes(self, got: Got, data: Examples) -> Sent:
        """The loss and the error of every strength of each head, over records left out."""
        users = self.owns(got, data)
        of = self.designs(with_body(self, got), data)
        sent = replace(of, z=self.told(of.z, of.y, data.sizes))  # what the means are of
        numbers = self.network.criterion.numbers
        heads = CLOSED_HEADS[:1] if numbers else CLOSED_HEADS
        found = []
        for user, (own, (z, y, _)) in enumerate(zip(users, sent.exact(), strict=True)):
            mine, some, votes = Means.of(z, y), spread(own), []
            near, every = np.asarray(got.rows["share"][user], np.float64).tolist()
            drawn = [
                self.means(got, user, pooled).without(
                    mine, (1 - pooled) * near + pooled * every, numbers
                )
                for pooled in (POOLED if len(got.shared["second"]) > 1 else POOLED[:1])
            ]
            for name in heads:
                votes += [closed_heads.votes(name, some, others, numbers) for others in drawn]
            found.append(torch.cat(votes, 1))
        return Sent(rows={"votes": single(torch.stack(found))})

    def models(self, got: Got) -> Models:
        """The body under each user's own head."""
        return self.adapt(got, self.train_data(got), 0)

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """The same for a new user: its head needs no epochs."""
        name = str(got.options[END_HEAD])
        strength = Strength(**{n: float(got.options[n]) for n in Strength._fields})
        users = self.owns(got, data)
        found = [
            self.theta(got, name, own, self.means(got, place, strength.pooled), strength)
            for place, own in enumerate(users)
        ]
        theta = torch.stack(found).cpu().numpy()
        heads = as_rows(self.network, theta)
        if self.bodies is not None:
            return Models(np.concatenate([np.stack(self.bodies), heads], 1))
        return Models(with_body(self, got).shared["body"], heads)

    def designs(self, got: Got, data: Examples) -> Designs:
        """The users' features and targets; through their own BatchNorm, where that is theirs."""
        normed = issubclass(self.cls, FedBNClient)  # one model for all, but for what normalises
        if not normed and (self.full is self.divided or "model" in got.shared):
            return super().designs(got, data)
        parts = self.task, self.users, self.data, self.divided, self.states, self.cache
        own: Client[Any] = self.cls(*parts)
        epochs = int(got.options.get("adapt-epochs", 0))
        models = own.adapt(got, data, epochs) if epochs else own.models(got)
        each = [*models.each(len(self.users))]
        if isinstance(own, FedBNClient):
            each = [np.where(own.normalising, one, got.shared["model"]) for one in each]
        wholes = [closed_heads.moved(one, self.divided, self.full) for one in each]
        self.bodies = [one[self.network.body] for one in wholes]
        features = features_of_each(self.network, wholes, data)
        return exact_heads.designs(self.network, features, data, self.task.num_classes)

    def theta(self, got: Got, name: str, own: Own, means: Means, strength: Strength) -> Tensor:
        """A user's head (d, outputs); of one output it is the second class's less the first's."""
        found = closed_heads.head(name, own, means, strength)
        if found.ndim == 1:  # of `prior`, over the head that all users have
            shift = found if self.outputs_of() > 1 else found[1:] - found[:1]
            theta = self.common(got).clone()
            theta[-1] += shift
            return theta
        two = self.outputs_of() == 1 and found.shape[1] == 2
        return found[:, 1:] - found[:, :1] if two else found

    def owns(self, got: Got, data: Examples) -> list[Own]:
        """Each user's records, and what the head that all users have says of them."""
        of: Designs = self.designs(with_body(self, got), data)
        found = [Own(z, y, labels) for z, y, labels in of.exact()]
        if "model" not in got.shared or self.network.criterion.numbers:
            return found
        theta = self.common(got)
        return [replace(own, logits=both(own.z @ theta)) for own in found]

    def common(self, got: Got) -> Tensor:
        """The head that all users have (d, outputs)."""
        row = got.shared["model"][None, self.network.head]
        return torch.from_numpy(as_theta(self.network, row)[0]).to(self.network.device)

    def outputs_of(self) -> int:
        """Outputs of the head."""
        return self.network.criterion.outputs(self.task.num_classes)

    def means(self, got: Got, user: int, pooled: float) -> Means:
        """The sums of a user's cluster, drawn to all users', which come last."""
        place = int(got.rows["place"][user])
        if (place, pooled) not in self.drawn:
            every = self.came(got)
            self.drawn[place, pooled] = every[place].drawn(every[-1], pooled)
        return self.drawn[place, pooled]

    def came(self, got: Got) -> list[Means]:
        """Those of all clusters as they came; UserError if they are of other features."""
        second, first = got.shared["second"], got.shared["first"]
        d, classes = self.network.width + 1, self.task.num_classes or 1
        wanted = (len(second), d * (d + 1) // 2), (len(second), classes, d)
        places = got.rows["place"]
        if (second.shape, first.shape) != wanted or not np.isin(places, range(len(second))).all():
            raise UserError(self.users[0], "heads", "the sums that came are of other features")
        parts = unpacked(np.asarray(second, np.float64), d), np.asarray(first, np.float64)
        device = self.network.device
        pairs = zip(*(torch.from_numpy(part).to(device) for part in parts), strict=True)
        return [Means(*pair) for pair in pairs]


class OwnPartsClient(EndHeadsClient):
    """Users whose BatchNorm is their own."""

    personal = True


def with_body(client: EndHeadsClient, got: Got) -> Got:
    """The message, with its body by name."""
    if "model" not in got.shared:
        return got
    body = got.shared["model"][client.network.body]
    return replace(got, shared={**got.shared, "body": np.ascontiguousarray(body)})


def both(outputs: Tensor) -> Tensor:
    """Logits of classes; of one output those of two."""
    return outputs if outputs.shape[1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], 1)


def spread(own: Own) -> Own:
    """At most so many of a user's records, evenly spread."""
    if len(own.z) <= MOST_VOTED:
        return own
    some = torch.linspace(0, len(own.z) - 1, MOST_VOTED, device=own.z.device).long()
    logits = own.logits[some] if own.logits is not None else None
    return Own(own.z[some], own.y[some], own.labels[some], logits)


def single(rows: Tensor) -> Array:
    """Numbers as they are sent."""
    found: Floats32 = rows.to(torch.float32).cpu().numpy()
    return found
