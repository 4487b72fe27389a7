"""What a hostile user says of its losses, or sums that cannot be: it is dropped and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.attack import client_of, lying, times
from corsage.core.messages.encoding import encode
from corsage.strategies.known_clusters.coins.impossible import semidefinite
from tests.support.federations import federate
from tests.support.known_users import HIERARCHICAL


class Lying(LocalGrid):
    """The second of four nodes lies: one of its numbers, or of its rows, is another.

    Parameters
    ----------
    name, value : which one, and what it says instead.
    """

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(app, 4)
        self.name, self.value = name, value

    def _work(self, message: Message) -> Message:
        reply = super()._work(message)
        if self._contexts[message.metadata.dst_node_id].node_id == 1 and reply.has_content():
            self.lie(reply.content)
        return reply

    def lie(self, content: RecordDict) -> None:
        """Change what is there."""
        metrics: Any = content.get("metrics", {})
        if self.name in metrics:
            metrics[self.name] = [self.value] * len(metrics[self.name])
        rows: Any = content.get("rows", {})
        if self.name in rows:
            old = rows[self.name].numpy()
            new = np.full_like(old, self.value)
            rows[self.name] = encode({"new": new})["new"]
            assert isinstance(rows[self.name], Array)


SHORT: dict[str, Any] = {"num_rounds": 2, "evaluate_every": 1, "num_clusters": 2}


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
@pytest.mark.parametrize("value", [1e9, 1e139])
def test_one_loss_that_is_too_steep(name: str, value: float) -> None:
    strategy, _, notes = federate(name, grid=Lying("smoothness", value), **SHORT)
    assert strategy.progress.round == 2
    (line,) = [note for note in notes.notes if "smoothness" in note]
    assert "takes no part" in line
    honest, _, _ = federate(name, nodes=4, **SHORT)
    others = set(honest.progress.trained) - set(strategy.state.clusters.refused)
    assert strategy.progress.trained == others and others
    assert 1 / 3 < strategy.state.settings.p0 / honest.state.settings.p0 < 3


@pytest.mark.parametrize(("name", "array"), [("async-l2gd", "mean"), ("async-al2sgd", "y")])
@pytest.mark.parametrize("value", [1e7, 1e10, 1e18, -1e100])
def test_a_model_that_is_far_out_in_the_first_round(name: str, array: str, value: float) -> None:
    """Nobody has a reach yet, so nothing was too far: then the others were found to be so."""
    strategy, result, _ = federate(name, grid=Lying(array, value), **SHORT)
    assert strategy.progress.round == 2
    assert np.isfinite([summary.score.mean for summary in result.summaries]).all()


@pytest.mark.parametrize("value", [-1.0, 1e9])
@pytest.mark.parametrize("name", ["mixed-model", "single-cluster"])
def test_sums_that_cannot_be(name: str, value: float) -> None:
    strategy, _, notes = federate(name, grid=Lying("sums", value), **SHORT)
    assert strategy.progress.round == 2
    assert any("its sums cannot be" in note for note in notes.notes)


@pytest.mark.parametrize(
    ("name", "value"), [("p", -1.0), ("records", 1e9), ("users", 0.0), ("yy", -1.0), ("trace", -1)]
)
def test_sums_of_a_likelihood_that_cannot_be(name: str, value: float) -> None:
    keys = {"known_gamma": "auto", "known_lambda": "auto", "mixed_variances": "summed"}
    auto = {**HIERARCHICAL, **keys}
    strategy, _, notes = federate("mixed-model", grid=Lying(name, value), **{**SHORT, **auto})
    assert strategy.progress.round >= 1
    assert any("its sums cannot be" in note for note in notes.notes)


def test_what_is_semidefinite() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-150, 1e-8, 1.0, 1e100):
        tall = rng.normal(size=(9, 3))
        assert semidefinite(scale * tall @ tall.T)  # of rank 3
        assert not semidefinite(scale * (tall @ tall.T - 0.1 * np.eye(9)))
    assert semidefinite(np.zeros((3, 3)))
    assert not semidefinite(np.array([[1.0, 1e200], [1e200, 1.0]]))


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_models_far_from_all_others_do_not_reach_the_centre(name: str) -> None:
    keys: dict[str, Any] = {"num_rounds": 3, "users_per_cluster": 5, "evaluate_every": 1000}
    honest, usual, _ = federate(name, 15, **keys)
    assert not honest.state.aside
    wide = np.random.default_rng(0)
    for lie in (lambda _, true, came: 1e3 * wide.normal(size=true.shape), times(1e4)):
        with lying(client_of(name), {"3"}, lie):
            strategy, result, notes = federate(name, 15, **keys)
        assert strategy.state.aside == ["3"] and "user 3" in str(strategy.findings())
        assert any("user 3 is set aside" in note for note in notes.notes)
        own, were = (dict(found[name].per_user) for found in (result, usual))
        assert "3" in own
        assert np.mean([own[u] for u in own if u != "3"]) > np.mean([*were.values()]) - 0.02
