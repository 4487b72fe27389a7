"""The strengths gamma_i and lambda_j of (2.3), as keys say them: numbers, files, or auto."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key

AUTO = "auto"


@dataclass(frozen=True)
class ClusterKeys(Keys):
    """Keys that all methods for known clusters share."""

    title = "Known clusters"

    known_gamma: str = key(
        AUTO,
        "pull of a user to its cluster (gamma_i): a number, a JSON file of one for each cluster or "
        "user, or auto: estimated from the users' sums (linear models)",
    )
    known_lambda: str = key(
        AUTO,
        "pull of a cluster to the middle (lambda_j): a number (0: none, inf: one cluster), a JSON "
        "file of one for each cluster, or auto",
    )
    known_refine: int = key(
        0, "auto, squared loss: exchanges more, each with a finer grid of variances", low=0
    )
    known_missing: str = key(
        "", "cluster for the users that have no known one; empty: they are refused"
    )


def own(values: Mapping[str, float], name: str) -> float:
    """The value of a cluster, or the one of all; a cluster that comes later has the mean."""
    known = values.get(name, values.get(""))
    return float(np.mean(list(values.values())) if known is None else known)


def check_covers(key: str, values: Mapping[str, float], clusters: Sequence[str]) -> None:
    """Refuse values that leave out a cluster; `key` is the key as it was given."""
    if missing := [name for name in clusters if not {"", name} & set(values)]:
        raise ConfigError(f"{key}: it does not have cluster {missing[0]}: add it.")


def read_strengths(name: str, text: str) -> dict[str, float]:
    """A number for all, under the empty name, or what a JSON file says of each."""
    try:
        found = {"": float(text)}
    except ValueError:
        path = Path(text).expanduser()
        try:
            found = {str(k): float(v) for k, v in json.loads(path.read_text("utf-8")).items()}
        except FileNotFoundError:
            raise ConfigError(f"{name}={text}: not a number, not auto, and no such file.") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f'{name}={text}: not a JSON file of numbers by name, {{"name": 1.0}} ({error}).'
            ) from error
    bad = [(k, v) for k, v in found.items() if not v >= 0]
    if bad:
        raise ConfigError(f"{name}={text}: {bad[0][1]:g} is not possible: it must be at least 0.")
    return found
