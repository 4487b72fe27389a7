"""FedRep with clustered heads does what every algorithm must do: nodes, bytes, resuming, errors."""

from __future__ import annotations

from typing import Any

import pytest

from corsage.core.errors import ConfigError
from tests.support.clustered_heads import CONVEX, HEAD, KNOWN
from tests.support.federations import federate


@pytest.mark.parametrize(
    ("name", "keys", "down"), [("fedrep-convex", CONVEX, 2), ("fedrep-known", KNOWN, 2)]
)
def test_bytes_are_a_body_and_heads(name: str, keys: dict[str, Any], down: int) -> None:
    _, result, _ = federate(name, nodes=3, **keys)
    body, turns = 64 * 16 + 16, 4 * 6
    assert result.json()[0]["bytes_up"] == 4 * turns * (body + HEAD)
    assert result.json()[0]["bytes_down"] == 4 * turns * (body + down * HEAD + 1)


def test_what_cannot_work_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"users 0, 1, .* in no known cluster: set cluster-col"):
        federate("fedrep-known", **{**KNOWN, "cluster_map": ""})
    for name, key in (("fedrep-convex", "rho"), ("fedrep-known", "gamma")):
        why = rf"is 5, SGD diverges from 3 on: lower {name}-{key} or lr\."
        with pytest.raises(ConfigError, match=why):
            federate(name, lr=0.05, **{f"{name}-{key}".replace("-", "_"): 100.0})
