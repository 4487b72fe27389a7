"""Losses at the users are the losses, with and without their held-out samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from corsage.core.losses import SQUARED_HINGE
from corsage.solvers.convex_clustering.exact import sum_of_norms
from corsage.solvers.losses.held_out import Fold
from corsage.solvers.losses.linear_losses import LinearLosses
from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from corsage.strategies.convex_clustering.remote_losses import RemoteLosses, RemoteUsers
from corsage.strategies.rounds.turns import played
from tests.support.at_hand import central
from tests.support.convex_runs import cluster


@pytest.fixture(scope="module")
def remote() -> ConvexClustering:
    strategy, _, _ = cluster(nodes=3, num_rounds=1)
    return strategy


def at_users(strategy: ConvexClustering) -> RemoteUsers:
    """The users of a federation, as mathematics asks them."""
    users, ask = strategy.state.graph.users, strategy.questions.ask
    exchange = strategy.members.exchange
    return RemoteUsers(lambda *words: played(ask(users, *words), exchange), 12, 3)


def test_losses_at_the_users_are_the_losses(remote: ConvexClustering) -> None:
    far, near = at_users(remote).losses_without(None), central()
    rng = np.random.default_rng(0)
    x, slope = (torch.from_numpy(rng.normal(size=(12, 3)) * size) for size in (1.0, 0.1))
    assert far.value(x).numpy() == pytest.approx(near.value(x).numpy())
    assert far.gradient(x).numpy() == pytest.approx(near.gradient(x).numpy())
    assert far.hessian(x).numpy() == pytest.approx(near.hessian(x).numpy())
    assert far.prox(x, 2.0).numpy() == pytest.approx(near.prox(x, 2.0).numpy())
    one, other = far.minimise(slope).numpy(), near.minimise(slope).numpy()
    assert one == pytest.approx(other, nan_ok=True)
    assert far.smoothness().numpy() == pytest.approx(near.smoothness().numpy())
    assert bool(far.coercive().all())


def test_held_out_samples_are_left_out_and_judged(remote: ConvexClustering) -> None:
    users = at_users(remote)
    fold, near = Fold("test", 1, 0.2), central()
    kept, left = [], []
    for place, user in enumerate(remote.job.members.users):
        out = place * 10 + fold.held_out(0, user, 10)
        left.append(out)
        kept.append(np.setdiff1d(np.arange(place * 10, place * 10 + 10), out))
    rows = np.concatenate(kept)
    counts = np.array([len(own) for own in kept])
    part = LinearLosses(
        near.features[rows], near.labels[rows], counts,
        loss=SQUARED_HINGE, scale="mean", ridge=0.001,
    )  # fmt: skip
    x = np.random.default_rng(1).normal(size=(12, 3))
    found = users.losses_without(fold)
    assert isinstance(found, RemoteLosses)
    assert found.value(torch.from_numpy(x)).numpy() == pytest.approx(
        part.value(torch.from_numpy(x)).numpy()
    )
    scores = near.predict(torch.from_numpy(x))
    each = SQUARED_HINGE.value(scores, near.labels).numpy()
    assert users.evaluate(x, fold) == pytest.approx([each[out].mean() for out in left])


def test_lambda_on_auto_is_the_least_held_out_loss(remote: ConvexClustering) -> None:
    strategy, _, _ = cluster(num_rounds=2, convex_lambda="auto")
    assert strategy.state.choice is not None
    chosen = strategy.state.choice.lam
    users = at_users(remote)
    fold = Fold("models", 0, 0.3)
    losses = users.losses_without(fold)

    def lost(lam: float) -> float:
        return float(np.nanmean(users.evaluate(sum_of_norms.fit(losses, lam).x, fold)))

    assert lost(chosen) < min(lost(chosen * 3), lost(chosen / 3), lost(1e-4)) + 1e-9
    assert strategy.state.choice.exchanges <= 8
    assert "found by" in str(strategy.findings())
