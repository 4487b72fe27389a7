"""FedRep with clustered heads does what every algorithm must do: nodes, bytes, resuming, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corsage.app.checkpoint import read_checkpoint, write_checkpoint
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from tests.support.clustered_heads import CONVEX, HEAD, KNOWN, known_clusters
from tests.support.federations import federate, same_arrays

MODES = pytest.mark.parametrize("keys", [CONVEX, {**CONVEX, "fedrep_heads_neighbours": 3}, KNOWN])


@pytest.fixture
def known(tmp_path: Path) -> dict[str, Any]:
    """The key that says which cluster a user is in."""
    return known_clusters(tmp_path)


@MODES
@pytest.mark.parametrize("nodes", [3, 12])
def test_the_number_of_nodes_changes_nothing(
    keys: dict[str, Any], nodes: int, known: dict[str, Any]
) -> None:
    more = {**keys, **known, "new_users": 0.2, "num_rounds": 6}
    _, one, _ = federate("fedrep", nodes=1, **more)
    _, many, _ = federate("fedrep", nodes=nodes, **more)
    assert len(one.json()) == 2
    for a, b in zip(one.json(), many.json(), strict=True):
        assert a["per_user"] == pytest.approx(b["per_user"], abs=1e-9)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    assert same_arrays(one.arrays, many.arrays)
    for name in ("bytes_up", "bytes_down", "messages", "findings"):
        assert one.json()[0][name] == many.json()[0][name]


@pytest.mark.parametrize(("keys", "down"), [(CONVEX, 2), (KNOWN, 2)])
def test_bytes_are_a_body_and_heads(keys: dict[str, Any], down: int, known: dict[str, Any]) -> None:
    _, result, _ = federate("fedrep", nodes=3, **keys, **known)
    body, turns = 64 * 16 + 16, 4 * 6
    assert result.json()[0]["bytes_up"] == 4 * turns * (body + HEAD)
    assert result.json()[0]["bytes_down"] == 4 * turns * (body + down * HEAD + 1)


class Checkpoints(Callback):
    """Checkpoints rounds 1 and 2 and stops in round 3; or takes round 2 over at the start."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path, self.resume = path, resume

    def on_start(self, strategy: Strategy) -> None:
        if self.resume:
            strategy.state = read_checkpoint(self.path, {"run": 1})
            assert strategy.progress.round == 2

    def on_round_end(self, strategy: Strategy, row: dict[str, object]) -> None:
        if row["round"] == 3 and not self.resume:
            raise KeyboardInterrupt
        write_checkpoint(self.path, strategy.state, {"run": 1})


@MODES
def test_a_resumed_run_ends_the_same(
    keys: dict[str, Any], known: dict[str, Any], tmp_path: Path
) -> None:
    whole, wanted, _ = federate("fedrep", num_rounds=6, **keys, **known)
    config, path, grid = whole.config, tmp_path / "checkpoint", LocalGrid(app, 3)
    with pytest.raises(KeyboardInterrupt):
        type(whole)(config, [Checkpoints(path, resume=False)], experiment="e").start(grid)
    result = type(whole)(config, [Checkpoints(path, resume=True)], experiment="e").start(grid)
    for name in ("per_user", "bytes_up", "bytes_down", "findings"):
        assert result.json()[0][name] == wanted.json()[0][name]
    assert result.json()[0]["loss"] == pytest.approx(wanted.json()[0]["loss"], abs=1e-7)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=1e-6)


def test_what_cannot_work_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"users 0, 1, .* in no known cluster: set cluster-col"):
        federate("fedrep", **KNOWN)
    with pytest.raises(ConfigError, match=r"is 5, SGD diverges from 3 on: lower fedrep-heads-rho"):
        federate("fedrep", lr=0.05, **{**CONVEX, "fedrep_heads_rho": 100.0})
