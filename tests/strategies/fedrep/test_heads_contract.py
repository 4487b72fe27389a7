"""FedRep with clustered heads does what every algorithm must do: nodes, bytes, resuming, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.errors import ConfigError
from tests.support.clustered_heads import CONVEX, HEAD, KNOWN
from tests.support.federations import federate, same_arrays
from tests.support.resuming import Resume, Stop

MODES = pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("fedrep-convex", CONVEX),
        ("fedrep-convex", {**CONVEX, "fedrep_convex_neighbours": 3}),
        ("fedrep-known", KNOWN),
    ],
)


@MODES
@pytest.mark.parametrize("nodes", [3, 12])
def test_the_number_of_nodes_changes_nothing(name: str, keys: dict[str, Any], nodes: int) -> None:
    more = {**keys, "new_users": 0.2, "num_rounds": 6}
    _, one, _ = federate(name, nodes=1, **more)
    _, many, _ = federate(name, nodes=nodes, **more)
    assert len(one.json()) == 2
    for a, b in zip(one.json(), many.json(), strict=True):
        assert a["per_user"] == pytest.approx(b["per_user"], abs=1e-9)
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    assert same_arrays(one.arrays, many.arrays)
    for what in ("bytes_up", "bytes_down", "messages", "findings"):
        assert one.json()[0][what] == many.json()[0][what]


@pytest.mark.parametrize(
    ("name", "keys", "down"), [("fedrep-convex", CONVEX, 2), ("fedrep-known", KNOWN, 2)]
)
def test_bytes_are_a_body_and_heads(name: str, keys: dict[str, Any], down: int) -> None:
    _, result, _ = federate(name, nodes=3, **keys)
    body, turns = 64 * 16 + 16, 4 * 6
    assert result.json()[0]["bytes_up"] == 4 * turns * (body + HEAD)
    assert result.json()[0]["bytes_down"] == 4 * turns * (body + down * HEAD + 1)


@MODES
def test_a_resumed_run_ends_the_same(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    whole, wanted, _ = federate(name, num_rounds=6, **keys)
    config, path, grid = whole.config, tmp_path / "checkpoint", LocalGrid(app, 3)
    with pytest.raises(KeyboardInterrupt):
        type(whole)(config, [Stop(path, after=3)], experiment="e").start(grid)
    result = type(whole)(config, [Resume(path, 2)], experiment="e").start(grid)
    for what in ("per_user", "bytes_up", "bytes_down", "findings"):
        assert result.json()[0][what] == wanted.json()[0][what]
    assert result.json()[0]["loss"] == pytest.approx(wanted.json()[0]["loss"], abs=1e-7)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=1e-6)


def test_what_cannot_work_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"users 0, 1, .* in no known cluster: set cluster-col"):
        federate("fedrep-known", **{**KNOWN, "cluster_map": ""})
    for name, key in (("fedrep-convex", "rho"), ("fedrep-known", "gamma")):
        why = rf"is 5, SGD diverges from 3 on: lower {name}-{key} or lr\."
        with pytest.raises(ConfigError, match=why):
            federate(name, lr=0.05, **{f"{name}-{key}".replace("-", "_"): 100.0})
