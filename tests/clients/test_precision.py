"""Numbers to predict reach convex methods with all digits that the data have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage import load, simulate
from corsage.app.command import run as command
from corsage.core.configuration.config import Config
from corsage.datasets.dealing.federated import simulated
from tests.support.federations import federate

TIES = {"known_gamma": 0, "known_lambda": 0, "known_missing": "all"}
KEYS: dict[str, dict[str, Any]] = {
    "exact-local": {},
    "mixed-model": TIES,
    "local-clusters": {"convex_report": False, "local_clusters_number": 3},
}
"""What every user finds for itself."""


def rmse(folder: Path, name: str, inputs: list[float], labels: list[float], **more: Any) -> float:
    """The error of a method on twelve samples of each of three users."""
    path = folder / "table.csv"
    users = np.repeat(["a", "b", "c"], 12)
    lines = (f"{x!r},{u},{y!r}\n" for x, u, y in zip(inputs, users, labels, strict=True))
    path.write_text("x,user,label\n" + "".join(lines))
    found = simulate(
        name, progress=False, num_rounds=1, dataset="csv", data_file=str(path), labels="numbers",
        partition="natural", num_users=0, model="linear", cache_dir=str(folder / "cache"),
        **{"scale": "none", **KEYS[name], **more},
    )  # fmt: skip
    return found[name].score.mean


@pytest.mark.parametrize("name", KEYS)
def test_times_do_not_round_away(name: str, tmp_path: Path) -> None:
    """float32 rounds a time stamp to 128 seconds."""
    x = np.random.default_rng(0).normal(size=36)
    times = 1.7e9 + 1000 * np.repeat(np.arange(3), 12) + 40 * x
    assert rmse(tmp_path, name, x.tolist(), times.tolist()) < 0.01
    assert rmse(tmp_path, name, x.tolist(), times.tolist(), precision="float32") > 1


def test_inputs_have_all_digits_too(tmp_path: Path) -> None:
    """float32 rounds this input to a ten thousandth of how much it varies."""
    z = np.random.default_rng(0).normal(size=36)
    inputs, labels = 10 + 0.01 * z, 100 * z
    assert rmse(tmp_path, "exact-local", inputs.tolist(), labels.tolist()) < 1e-5


def test_torch_models_stay_single() -> None:
    """By design: so are their parameters."""
    strategy, _, _ = federate("fedavg")
    assert all(array.dtype == np.float32 for array in strategy.shared().values())


@pytest.mark.parametrize("file", ["csv", "npz"])
def test_inputs_beside_classes_too(file: str, tmp_path: Path) -> None:
    """The minimiser of a logistic loss is Newton's own on the very same numbers."""
    rng = np.random.default_rng(0)
    x, users = rng.normal(size=(150, 2)), np.repeat(["a", "b", "c"], 50)
    y = (x @ [1.0, -2.0] + rng.logistic(size=150) > 0).astype(int)
    path = tmp_path / f"table.{file}"
    if file == "npz":
        np.savez(path, x=x, label=y, user=users)
    else:
        rows = zip(x.tolist(), users, y, strict=True)
        lines = (f"{a!r},{b!r},{user},{label}\n" for (a, b), user, label in rows)
        path.write_text("x0,x1,user,label\n" + "".join(lines))
    words = [
        "strategy=exact-local", "num-rounds=40", f"dataset={file}", f"data-file={path}",
        "partition=natural", "num-users=0", "model=linear", "loss=logistic", "ridge=0.1",
        "scale=none", "mixed-tolerance=1e-12", "mixed-intervals=never", "known-missing=all",
        f"cache-dir={tmp_path}/cache", f"run-dir={tmp_path}/runs",
    ]  # fmt: skip
    assert command(words) == 0
    run = load(next((tmp_path / "runs").iterdir()))
    keys = Config.parse(run.config)
    data = simulated(keys.data, keys.federation.num_users, keys.run.seed)
    for user in "abc":
        own, theta = data[user], run["exact-local"].user(user).coefficients
        w, b = np.array([theta["x0"], theta["x1"]]), theta["intercept"]
        residual = 1 / (1 + np.exp(-own.x_train @ w - b)) - own.y_train
        slope = residual @ own.x_train + 0.1 * w
        assert np.abs(slope).max() < 1e-9 and abs(residual.sum()) < 1e-9
