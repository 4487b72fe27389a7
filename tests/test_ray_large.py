"""A model of 11.2 million parameters on two of Ray's workers: bit by bit as in this process.

pytest -m slow tests/test_ray_large.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from corsage.app.command import run
from tests.support.killing import run_folder

WORDS = (
    *("strategy=fedavg", "model=corsage.benchmarks.large:resnet18", "num-nodes=2", "num-users=4"),
    *("num-rounds=2", "local-steps=2", "fraction-train=1.0", "fine-tune-epochs=0"),
)


def found(folder: Path, engine: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the numbers of a run."""
    folder.mkdir()
    assert run([*WORDS, f"engine={engine}", f"run-dir={folder}/runs"], "") == 0
    own = run_folder(folder) / "fedavg"
    numbers = json.loads((own / "result.json").read_text())["results"][0]
    return load_file(own / "model.safetensors"), {k: numbers[k] for k in ("per_user", "loss")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_of_45_mb_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # Flower changes it
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"CPU": 2}))
    (one, own), (other, theirs) = (found(tmp_path / name, name) for name in ("local", "ray"))
    assert own == theirs and one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert sum(array.size for array in one.values()) > 11_000_000
