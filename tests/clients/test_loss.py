"""Losses of a client's own: of features, and of a user's class counts, against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.clients import client_class
from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.fedrep.fedrep import FedRepClient
from corsage.core.errors import ModelError
from corsage.core.keys import NoKeys
from corsage.core.messages.wire import Task
from corsage.core.registry import ALGORITHMS
from corsage.networks.batches import Examples, Loss
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.proximal import Pull
from corsage.strategies import strategy_class
from tests.support.federations import federate, settings
from tests.support.reference import (
    KEYS,
    Vector,
    agrees,
    chosen,
    examples,
    final,
    flat,
    fresh,
    near,
    plain_sgd,
    user_batches,
    users_data,
)

BODY, HEAD = slice(0, 64 * 16 + 16), slice(64 * 16 + 16, None)
USERS = ["0", "3", "11"]


class Tiny(Client[NoKeys]):
    """Whole models, by whatever loss there is."""

    def train(self, got: Got, data: Examples) -> Sent:
        return Sent(mean={"model": self.sgd(got.shared["model"], data)})

    def models(self, got: Got) -> Models:
        return Models(got.shared["model"])


def of_features(user: str, labels: Tensor) -> Loss:
    """The features are drawn to a place of the user's own."""

    def loss(features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        apart = (features - float(user) / 12).square().sum(dim=1)
        return F.cross_entropy(outputs, y) + 0.1 * apart.mean()

    return loss


def of_counts(user: str, labels: Tensor) -> Loss:
    """Outputs are corrected for how often the user has each class."""
    prior = torch.log1p(torch.bincount(labels, minlength=10).float())
    return lambda features, outputs, y: F.cross_entropy(outputs + prior, y)


LOSSES = pytest.mark.parametrize("own", [of_features, of_counts])


def with_loss(base: type[Client[Any]], own: Any) -> type[Client[Any]]:
    """A client with that loss."""

    class Own(base):  # type: ignore[misc, valid-type]
        """What an algorithm of one's own overrides."""

        def loss(self, got: Got, user: str, labels: Tensor) -> Loss:
            found: Loss = own(user, labels)
            return found

    return Own


def client_of(cls: type[Client[Any]], users: list[str], **keys: Any) -> Client[Any]:
    """A client in round 3 of the reference's job."""
    config, data = settings("fedavg", **{**KEYS, **keys}), users_data()
    task = Task("tiny", "", 0, data.shape, 10, round=3, train=config.train, model=config.model)
    network = build_network(config.model, data.shape, 10, 0)
    return cls(task, users, data, network, [{} for _ in users])


def by_hand(own: Any, start: Vector, user: str, purpose: str, epochs: int, **more: Any) -> Vector:
    """A user's whole model after plain SGD on its loss."""
    mine = examples(users_data(), user)
    steps = user_batches(users_data(), user, purpose, 3, epochs)
    return plain_sgd(start, mine, steps, of=own(user, mine[1]), **more)


@LOSSES
def test_whole_models_and_their_message(own: Any) -> None:
    client = client_of(with_loss(Tiny, own), USERS, local_epochs=2)
    sent = client.respond(Got({"model": flat(fresh())}))
    wanted = [by_hand(own, flat(fresh()), user, "model", 2) for user in USERS]
    assert np.allclose(sent.mean["model"], wanted, atol=1e-5)
    plain = client_of(Tiny, USERS, local_epochs=2).respond(Got({"model": flat(fresh())}))
    assert np.abs(sent.mean["model"] - plain.mean["model"]).max() > 0.01
    assert [len(examples(users_data(), user)[1]) for user in USERS] == list(
        sent.metrics["num-examples"]
    )


@LOSSES
def test_models_heads_and_bodies_under_a_pull(own: Any) -> None:
    client = client_of(with_loss(Tiny, own), USERS)
    data, start = client.train_data(Got()), flat(fresh())
    centre = start + np.float32(0.1)
    models = client.sgd(start, data, epochs=2, pull=Pull(0.7, centre))
    heads = np.stack([start[HEAD] * (1 + i) for i in range(len(USERS))])
    trained = client.sgd_heads(start[BODY], heads, data, 2, Pull(0.7, centre[HEAD]))
    bodies = client.sgd_bodies(start[BODY], heads, data, 2)
    for i, user in enumerate(USERS):
        wanted = by_hand(own, start, user, "model", 2, extra=near(0.7, centre))
        assert np.allclose(models[i], wanted, atol=1e-5)
        whole = np.concatenate([start[BODY], heads[i]])
        wanted = by_hand(own, whole, user, "head", 2, extra=near(0.7, centre), frozen=1)
        assert np.allclose(trained[i], wanted[HEAD], atol=1e-5)
        wanted = by_hand(own, whole, user, "body", 2, frozen=3)
        assert np.allclose(bodies[i], wanted[BODY], atol=1e-5)


@LOSSES
def test_a_federation_trains_on_it(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedRep with a loss of the client's own, through messages, nodes and an evaluation."""
    cls = with_loss(FedRepClient, own)
    monkeypatch.setattr("corsage.app.nodes.work.client_of", lambda task: cls)
    strategy, result, notes = federate("fedrep", nodes=3, **KEYS)
    data, (body, head) = users_data(), np.split(flat(fresh()), [BODY.stop])
    heads = dict.fromkeys(data.users, head)
    for number in range(1, 5):
        bodies = []
        for user in chosen(strategy, number):
            mine, model = examples(data, user), np.concatenate([body, heads[user]])
            of = own(user, mine[1])
            for purpose, epochs, frozen in (("head", 2, 1), ("body", 1, 3)):
                steps = user_batches(data, user, purpose, number, epochs)
                model = plain_sgd(model, mine, steps, of=of, frozen=frozen)
            bodies.append(model[BODY])
            heads[user] = model[HEAD]
        body = np.mean(bodies, axis=0)
    assert not notes.notes
    assert np.allclose(final(result), body, atol=1e-5)
    assert agrees(result, {u: np.concatenate([body, h]) for u, h in heads.items()}, data)


def test_labels_are_those_that_a_new_user_may_use() -> None:
    seen: dict[str, Tensor] = {}

    class Listens(Tiny):
        def loss(self, got: Got, user: str, labels: Tensor) -> Loss:
            seen[user] = labels
            return of_counts(user, labels)

    client = client_of(Listens, USERS)
    client.train_data(Got(options={"adapt-samples": 4}))
    assert {user: len(labels) for user, labels in seen.items()} == dict.fromkeys(USERS, 4)
    data = client.train_data(Got())
    assert all(torch.equal(seen[user], data.user(u)[1]) for u, user in enumerate(USERS))
    assert client_of(Tiny, USERS).train_data(Got()).losses is None
    assert client.test_data().losses is None


def test_a_loss_of_features_needs_a_model_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(with_loss(Tiny, of_features), USERS)
    network: Network = client.network
    monkeypatch.setattr(network, "split_exact", False)
    monkeypatch.setattr(network, "why", "it has two heads")
    with pytest.raises(ModelError, match="needs a model with a body and a head: it has two heads"):
        client.respond(Got({"model": flat(fresh())}))


def test_the_model_is_trained_as_ever_if_the_loss_is_its_own() -> None:
    """The same loss by the hook: the usual path trains users together, the hook one by one."""
    own = with_loss(Tiny, lambda user, labels: lambda features, z, y: F.cross_entropy(z, y))
    for epochs in (1, 3):
        got = Got({"model": flat(fresh())})
        one, other = (client_of(c, USERS, local_epochs=epochs).respond(got) for c in (own, Tiny))
        assert np.allclose(one.mean["model"], other.mean["model"], atol=1e-5)


def test_who_has_one_says_so_at_the_door() -> None:
    """Else keys of the model's own loss are refused in the first round."""
    for name in (name for name, one in ALGORITHMS.items() if not one.of):
        assert client_class(name).loss is Client.loss or strategy_class(name).own_loss, name


def test_new_users_adapt_by_it() -> None:
    """The base's rule: a round of so many epochs, then its model."""

    class Keeps(with_loss(Tiny, of_features)):  # type: ignore[misc]
        def train(self, got: Got, data: Examples) -> Sent:
            return Sent(keep={"own": self.sgd(got.shared["model"], data)})

        def models(self, got: Got) -> Models:
            return Models(self.remembered("own", got.shared["model"]))

    client, start = client_of(Keeps, USERS, local_epochs=1), flat(fresh())
    got = Got({"model": start}, {}, {"adapt": True, "adapt-epochs": 2})
    models = client.adapt(got, client.train_data(got), 2)
    wanted = [by_hand(of_features, start, user, "model", 2) for user in USERS]
    assert np.allclose(models.whole, wanted, atol=1e-5)
