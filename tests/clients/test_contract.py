"""Clients of one's own that break the contract, and Flower's doors to those that keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters
from flwr.common.serde import fit_res_to_proto

import corsage.app.nodes.work
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.nodes.work import Worker
from corsage.clients.base import Client, Got, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.core.errors import ConfigError, RoundFailed
from corsage.strategies import strategy_class
from tests.support.federations import KINDS, federate, settings

Change = Callable[[Sent, int], Sent]

BAD: dict[str, tuple[Change, str]] = {
    "metric of two rows a user": (
        lambda sent, n: replace(sent, metrics={"q": np.ones(2 * n)}),
        "metric q is",
    ),
    "metric of vectors": (
        lambda sent, n: replace(sent, metrics={"q": np.ones((n, 2))}),
        "metric q is",
    ),
    "metric of all": (
        lambda sent, n: replace(sent, metrics={"q": np.float64(1)}),
        r"metric q is \(\)",
    ),
    "keep of two rows a user": (
        lambda sent, n: replace(sent, keep={"head": np.ones((2 * n, 3))}),
        "kept head is",
    ),
    "rows for a mean": (
        lambda sent, n: replace(sent, mean={}, rows=sent.mean),
        r"wrong arrays: got \[\] and rows \['model'\], expected \['model'\]",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_breaks_the_contract_is_named(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And neither kept nor merged: a metric of two rows a user would be that of others."""
    change, why = BAD[case]

    class Bad(FedAvgClient[Any]):
        personal = True

        def respond(self, got: Got) -> Sent:
            return change(super().respond(got), len(self.users))

    monkeypatch.setattr(corsage.app.nodes.work, "client_of", lambda task: Bad)
    with pytest.raises(RoundFailed, match=why):
        federate("fedavg", 3)


def test_an_evaluation_has_one_number_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad(FedAvgClient[Any]):
        def judge(self, got: Got) -> Any:
            return {name: np.stack([v, v], 1) for name, v in super().judge(got).items()}

    monkeypatch.setattr(corsage.app.nodes.work, "client_of", lambda task: Bad)
    with pytest.raises(RoundFailed, match="wrong shape: metric correct is"):
        federate("fedavg", 3)


@pytest.mark.parametrize("name", KINDS)
def test_flowers_doors_are_open(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker asks by `respond` and `judge` can be asked by `fit` and `evaluate`."""
    seen: dict[str, tuple[Client[Any], Got]] = {}
    run = Worker.run

    def watched(worker: Worker, group: list[int]) -> None:
        seen.setdefault(worker.kind, (worker.client(group), worker.got(group)))
        run(worker, group)

    monkeypatch.setattr(Worker, "run", watched)
    strategy_class(name)(settings(name, num_rounds=1)).start(LocalGrid(app, 1))
    client, got = seen["train"]
    sent, samples = client.respond(got), client.data.train_sizes
    answer = client.to_client().fit(FitIns(*parameters(got)))
    fit_res_to_proto(answer)  # as it goes over the wire
    assert len(answer.parameters.tensors) == len({**sent.mean, **sent.rows})
    assert 0 < answer.num_examples <= samples.sum()
    client, got = seen["evaluate"]
    wanted = client.judge(got)
    found = client.to_client().evaluate(EvaluateIns(*parameters(got)))
    mean = np.average(wanted["loss"], weights=wanted["num-examples"])
    assert found.loss == pytest.approx(float(mean))


def parameters(got: Got) -> tuple[Any, dict[str, Any]]:
    arrays = {**got.shared, **got.rows}
    named = {"names": ",".join(arrays), "rows": ",".join(got.rows)}
    return ndarrays_to_parameters(list(arrays.values())), {**got.options, **named}


def test_parameters_without_names_are_refused() -> None:
    strategy, _, _ = federate("fedavg", num_rounds=1)
    client = FedAvgClient.__new__(FedAvgClient)
    model = strategy.state.model
    with pytest.raises(ConfigError, match="2 parameters came, names=model"):
        client.fit([model, model], {})
