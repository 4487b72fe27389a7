"""Runs and predictions in several threads: each has its own users' parameters all the while."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage import simulate
from corsage.core.seeding import reseed

RNG = np.random.default_rng(0)
USERS = [(RNG.random((20, 6), np.float32), RNG.integers(0, 3, 20)) for _ in range(4)]
KEYS: dict[str, Any] = {"num_rounds": 2, "progress": False, "scale": "none", "fraction_train": 1.0}


class Slow(nn.Module):
    """Lets other threads come in between its parameters and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x), 0.2, self.training)
        time.sleep(2e-4)
        return self.head(h)


def run(lr: float) -> Any:
    return simulate("local", USERS, model=Slow, lr=lr, **KEYS)["local"]


def same(ask: Callable[[Any], Any], of: list[Any], equal: Callable[[Any, Any], bool]) -> None:
    """In a pool of threads the answers are those of one."""
    wanted = [ask(one) for one in of]
    with ThreadPoolExecutor(len(of)) as pool:
        found = list(pool.map(ask, of))
    assert all(equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_predictions_in_threads_are_each_users_own() -> None:
    row = run(0.1)
    x = np.random.default_rng(1).standard_normal((30, 6))
    same(lambda model: model.outputs(x), [row.user(name) for name in row.users] * 4, torch.equal)


def test_runs_in_threads_do_not_meet() -> None:
    same(lambda lr: run(lr).user("0").state_dict()["first.weight"], [0.01, 0.1, 0.5], torch.equal)


def test_a_run_without_a_device_reaches_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed writes down Python's stack for a CUDA that is not there."""
    torch.manual_seed(5)
    wanted = torch.rand(4)
    monkeypatch.setattr(torch, "manual_seed", None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    reseed(5)
    assert torch.equal(torch.rand(4), wanted)
    reseed(5, torch.device("cpu"))
    assert torch.equal(torch.rand(4), wanted)
    run(0.1)


@pytest.mark.parametrize("device", ["cuda", "mps", None])
def test_a_device_that_is_used_is_seeded_too(
    device: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's code may use any that is there."""
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    reseed(7, torch.device(device) if device else None)
    assert seeds == [7]
