"""Exact heads under the multinomial loss, and what hostile users send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

from corsage.app.client_app import app as client_app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError, RoundFailed
from corsage.core.messages.replies import Replies
from corsage.networks.exact import softmax_heads
from corsage.networks.exact.exact_heads import Designs
from corsage.networks.exact.softmax_heads import CLOSE_GAP, CURVED, Softmax, fit, metric
from corsage.solvers.known_clusters.variances.shared_rows import Rows
from corsage.strategies import strategy_class
from corsage.strategies.fedrep.exact_sums import check_exact
from corsage.strategies.fedrep.fedrep_exact import FedRepExact
from corsage.strategies.fedrep.softmax_centres import _sound, centres, limits
from tests.support.federations import CLUSTER_MAP, Notes, federate, settings

KEYS: dict[str, Any] = {
    "num_rounds": 1,
    "evaluate_every": 1,
    "fedrep_exact_loss": "multinomial",
}


def problem(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, labels and a centre."""
    rng = np.random.default_rng(seed)
    z, w = rng.normal(size=(rows, 6)), rng.normal(size=(6, 3))
    y = rng.integers(0, 3, rows)
    return torch.from_numpy(z), torch.from_numpy(y), torch.from_numpy(w)


def plain(z: torch.Tensor, y: torch.Tensor, w: torch.Tensor, gamma: float) -> torch.Tensor:
    """The minimiser by scipy."""

    def value(flat: Any) -> tuple[float, Any]:
        theta = torch.tensor(flat.reshape(w.shape), requires_grad=True)
        loss = F.cross_entropy(z @ theta, y, reduction="sum")
        loss = loss + gamma / 2 * (theta - w).square().sum()
        loss.backward()
        return float(loss), cast(Any, theta.grad).numpy().ravel()

    found = minimize(value, w.numpy().ravel(), jac=True, options={"gtol": 1e-10})
    return torch.from_numpy(found.x.reshape(w.shape))


def found(
    z: torch.Tensor, y: torch.Tensor, w: torch.Tensor, gamma: float, start: torch.Tensor
) -> torch.Tensor:
    """The fit of one user, in the test's precision."""
    one_hot = F.one_hot(y, 3).to(z).t().contiguous()
    problem = Softmax(z, one_hot, w.t().contiguous(), gamma)
    return fit(problem, metric(z, gamma), start.t().contiguous()).t()


def value(
    z: torch.Tensor, y: torch.Tensor, w: torch.Tensor, gamma: float, x: torch.Tensor
) -> float:
    return float(F.cross_entropy(z @ x, y, reduction="sum") + gamma / 2 * (x - w).square().sum())


@pytest.mark.parametrize("rows", [40, 4])
@pytest.mark.parametrize("gamma", [0.05, 5.0])
def test_heads_minimise_the_multinomial_loss(
    rows: int, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users with more rows than features, and with fewer."""
    z, y, w = problem(rows)
    wanted = plain(z, y, w, gamma)
    left = value(z, y, w, gamma, found(z, y, w, gamma, w)) - value(z, y, w, gamma, wanted)
    assert left <= CLOSE_GAP * rows
    monkeypatch.setattr(softmax_heads, "CLOSE_GAP", 1e-14)
    assert torch.allclose(found(z, y, w, gamma, w), wanted, atol=1e-5)


def test_a_step_that_goes_too_far_is_the_bounds() -> None:
    """From far away, where the loss hardly curves, Newton's step would be huge."""
    z, y, w = problem(40)
    far = w + 50 * torch.from_numpy(np.random.default_rng(1).normal(size=(6, 3)))
    one_hot = F.one_hot(y, 3).to(z).t().contiguous()
    of, x = Softmax(z, one_hot, w.t(), 1e-3), far.t().contiguous()
    scores = x @ z.t()
    told = torch.softmax(scores, 0)
    after, seen, _ = of.step(x, scores, told, -of.gradient(x, told))
    assert value(z, y, w, 1e-3, after.t()) < value(z, y, w, 1e-3, far)
    assert torch.allclose(seen, after @ z.t())
    left = value(z, y, w, 1e-3, found(z, y, w, 1e-3, far))
    assert left <= value(z, y, w, 1e-3, plain(z, y, w, 1e-3)) + CLOSE_GAP * 40


def test_the_metric_is_the_same_from_either_system() -> None:
    """g (CURVED Z'Z + gamma I)^-1 for users with more rows than features, and with fewer."""
    for rows in (40, 4):
        z, _, g = problem(rows)
        whole = CURVED * z.t() @ z + 0.7 * torch.eye(6, dtype=z.dtype)
        wanted = torch.linalg.solve(whole, g).t()
        assert torch.allclose(metric(z, 0.7)(g.t()), wanted, rtol=1e-4, atol=1e-6)


def test_held_out_records_are_not_trained_on() -> None:
    """Another label of a held-out record changes its loss, not the head; few records: no say."""
    z, y, w = problem(13)
    of = Designs(z, F.one_hot(y, 3).double(), y, [10, 3])
    gammas = np.array([0.5, 2.0])
    losses = softmax_heads.held_out(of, np.stack([w.numpy()] * 2), gammas)
    keep = [i for i in range(10) if i % 5 != 4]
    for k, gamma in enumerate(gammas):
        theta = plain(z[keep], y[keep], w, float(gamma))
        wanted = float(F.cross_entropy(z[[4, 9]] @ theta, y[[4, 9]]))
        assert losses[0, k] == pytest.approx(wanted, abs=0.02)
    assert not losses[1].any()


def test_centres_are_the_joint_minimum() -> None:
    """Against a dense solve of w_j and wbar at once; without spread of clusters they are one."""
    rng = np.random.default_rng(0)
    heads, cluster, ratio = rng.normal(size=(7, 2)), np.array([0, 0, 0, 1, 1, 2, 2]), 0.3
    system, right = np.zeros((4, 4)), np.zeros((4, 2))
    for head, j in zip(heads, cluster, strict=True):
        system[j, j] += 1
        right[j] += head
    for j in range(3):
        system[[j, 3], [j, 3]] += 1 / ratio
        system[j, 3] -= 1 / ratio
        system[3, j] -= 1 / ratio
    w, wbar = centres(heads, cluster, 3, ratio)
    assert np.allclose(np.vstack([w, wbar]), np.linalg.solve(system, right))
    w, wbar = centres(heads, cluster, 3, 0.0)
    assert np.allclose(w, heads.mean(0)) and np.allclose(wbar, heads.mean(0))


def test_a_run_in_five_exchanges() -> None:
    """Known clusters or one centre; nodes change nothing; accuracy is not that of chance."""
    for more in ({}, {"cluster_map": CLUSTER_MAP}):
        runs = [federate("fedrep-exact", **{**KEYS, **more, "nodes": nodes}) for nodes in (1, 3)]
        states = [cast(FedRepExact, strategy).state for strategy, _, _ in runs]
        assert states[0].pull > 0
        assert states[0].pull == pytest.approx(states[1].pull, rel=1e-6)
        assert np.allclose(states[0].w, states[1].w, atol=1e-4)
        assert runs[0][1].json()[0]["accuracy"]["mean"] > 0.7


def test_heads_of_no_data_are_left_out() -> None:
    """What a user can come to is bounded by its own sums; what is beyond is dropped and named."""
    z, y, w = problem(40)
    a = (z.t() @ z).numpy()[None]
    most = limits(Rows(a, np.zeros((1, 6, 3)), np.zeros(1), np.array([40.0])))[0]
    honest = plain(z, y, w, 2.0).numpy().ravel()
    hostile = honest + 100 * most / 2.0
    notes: list[str] = []
    strategy: Any = SimpleNamespace(
        state=SimpleNamespace(pull=2.0),
        show=lambda users, _: SimpleNamespace(
            rows={"centre": np.stack([w.numpy().ravel()] * len(users))}
        ),
        job=SimpleNamespace(note=notes.append),
        name="fedrep-exact",
    )
    replies = Replies(users=["0", "1"], rows={"head": np.stack([honest, hostile])})
    bounds = {"0": most, "1": most}
    heads, users = _sound(strategy, replies, bounds)
    assert users == ["0"] and np.array_equal(heads[0], honest)
    assert "1" in notes[0] and "left out" in notes[0]
    with pytest.raises(RoundFailed, match="no user"):
        _sound(strategy, Replies(users=["1"], rows={"head": hostile[None]}), bounds)


def test_numbers_have_no_multinomial_loss() -> None:
    network: Any = SimpleNamespace(
        linear_head=True, split_exact=True, criterion=SimpleNamespace(name="squared", numbers=True)
    )
    check_exact(network, "squared")
    with pytest.raises(ConfigError, match="multinomial is of classes"):
        check_exact(network, "multinomial")


@pytest.mark.parametrize("steps", [1, 500])
def test_heads_that_ran_out_of_steps_are_told_of(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log, and in the result: what is left is not below the true one."""
    monkeypatch.setattr(softmax_heads, "MOST_STEPS", steps)
    notes = Notes()
    keys = {"num_rounds": 1, "fedrep_exact_loss": "multinomial"}
    strategy = strategy_class("fedrep-exact")(settings("fedrep-exact", **keys), [notes])
    strategy.start(LocalGrid(client_app, 2))
    (found,) = strategy.findings()
    told = [note for note in notes.notes if "without a certified multinomial head" in note]
    left = float(dict(found.rows)["left of a record's loss, at most"])
    assert bool(told) == (steps == 1) == (left > CLOSE_GAP)


def test_what_is_left_bounds_the_loss_from_above() -> None:
    """Whatever the heads are."""
    z, y, w = problem(40)
    of = Designs(z, F.one_hot(y, 3).double(), y, [40])
    best = value(z, y, w, 0.5, plain(z, y, w, 0.5))
    for seed in range(5):
        theta = w + torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 3)))
        left = softmax_heads.left(of, w.numpy()[None], 0.5, theta.numpy()[None])
        assert 40 * left[0] >= value(z, y, w, 0.5, theta) - best
    theta = plain(z, y, w, 0.5)
    assert softmax_heads.left(of, w.numpy()[None], 0.5, theta.numpy()[None])[0] < 1e-12
