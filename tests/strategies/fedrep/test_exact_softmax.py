"""Exact heads under the multinomial loss, and what hostile users send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

from corsage.core.errors import ConfigError, RoundFailed
from corsage.core.replies import Replies
from corsage.networks import softmax_heads
from corsage.networks.exact_heads import Designs
from corsage.networks.softmax_heads import PULLS, fit
from corsage.solvers.known_clusters.shared_rows import Rows
from corsage.strategies.fedrep.fedrep_exact import FedRepExact, check_exact
from corsage.strategies.fedrep.softmax_centres import _sound, centres, limits
from tests.support.federations import CLUSTER_MAP, federate

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


@pytest.mark.parametrize("rows", [40, 4])
@pytest.mark.parametrize("gamma", [0.05, 5.0])
def test_heads_minimise_the_multinomial_loss(
    rows: int, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users with more rows than features, and with fewer."""
    monkeypatch.setattr(softmax_heads, "CLOSE", 1e-8)
    monkeypatch.setattr(softmax_heads, "MOST_STEPS", 5000)
    z, y, w = problem(rows)
    assert torch.allclose(fit(z, y, w, gamma, w), plain(z, y, w, gamma), atol=1e-5)


def test_each_step_is_the_majorisers_minimum() -> None:
    """(Z'Z/2 + gamma I)^-1 g from either system."""
    for rows in (40, 4):
        z, _, g = problem(rows)
        whole = z.t() @ z / 2 + 0.7 * torch.eye(6, dtype=z.dtype)
        assert torch.allclose(softmax_heads.solver(z, 0.7)(g), torch.linalg.solve(whole, g))


def test_held_out_records_are_not_trained_on() -> None:
    """Another label of a held-out record changes its loss, not the head; few records: no say."""
    z, y, w = problem(13)
    of = Designs(z, F.one_hot(y, 3).double(), y, [10, 3])
    gammas = np.array([0.5, 2.0])
    found = softmax_heads.held_out(of, np.stack([w.numpy()[None]] * 2), gammas)
    keep = [i for i in range(10) if i % 5 != 4]
    for k, gamma in enumerate(gammas):
        theta = plain(z[keep], y[keep], w, float(gamma))
        wanted = float(F.cross_entropy(z[[4, 9]] @ theta, y[[4, 9]]))
        assert found[0, k] == pytest.approx(wanted, abs=0.02)
    assert not found[1].any()


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
    honest = np.stack([plain(z, y, w, float(g)).numpy().ravel() for g in PULLS])
    hostile = honest + 100 * most / PULLS[:, None]
    notes: list[str] = []
    strategy: Any = SimpleNamespace(
        state=SimpleNamespace(heat=2.0),
        show=lambda users, _: SimpleNamespace(
            rows={"centre": np.stack([w.numpy().ravel() / 2] * len(users))}
        ),
        federation=SimpleNamespace(note=notes.append),
        name="fedrep-exact",
    )
    replies = Replies(users=["0", "1"], rows={"head": np.stack([honest, hostile])})
    bounds = {"0": most, "1": most}
    heads, users = _sound(strategy, replies, PULLS, bounds)
    assert users == ["0"] and np.array_equal(heads[0], honest)
    assert "1" in notes[0] and "left out" in notes[0]
    with pytest.raises(RoundFailed, match="no user"):
        _sound(strategy, Replies(users=["1"], rows={"head": hostile[None]}), PULLS, bounds)


def test_numbers_have_no_multinomial_loss() -> None:
    network: Any = SimpleNamespace(
        linear_head=True, split_exact=True, criterion=SimpleNamespace(name="squared", numbers=True)
    )
    check_exact(network, "squared")
    with pytest.raises(ConfigError, match="multinomial is of classes"):
        check_exact(network, "multinomial")
