"""The Ray engine gives the numbers of the local one, and ends as it should when all fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from corsage.app.command import run

WORDS = ["num-users=50", "num-rounds=5", "fraction-train=0.3", "evaluate-every=5", "hidden=16"]


def results(folder: Path, *words: str) -> tuple[Path, dict[str, dict[str, object]]]:
    assert run([*WORDS, *words, f"run-dir={folder}", "--json", f"{folder}.json"], "") == 0
    summary = json.loads(Path(f"{folder}.json").read_text())
    return next(folder.iterdir()), {r["strategy"]: r for r in summary["results"]}


def test_ray_and_local_agree_on_one_three_and_fifty_nodes(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    folder, local = results(tmp_path / "local", "num-nodes=1")
    for engine, nodes in (("local", 50), ("ray", 3)):
        place = tmp_path / f"{engine}{nodes}"
        place.mkdir()
        other_folder, other = results(place, f"engine={engine}", f"num-nodes={nodes}")
        for name, result in local.items():
            assert other[name]["per_user"] == result["per_user"]
            assert other[name]["loss"] == pytest.approx(result["loss"], abs=1e-5)
            for key in ("bytes_up", "bytes_down", "messages", "never_drawn", "curve"):
                assert other[name][key] == result[key]
        for name in ("fedrep", "fedavg"):
            mine = load_file(folder / name / "model.safetensors")
            theirs = load_file(other_folder / name / "model.safetensors")
            for key, array in mine.items():
                assert np.allclose(array, theirs[key], rtol=0, atol=1e-5)


def test_errors_on_ray_reach_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["engine=ray", "num-nodes=2", "model=mlp", "head=absent", f"run-dir={tmp_path}"]
    assert run([*WORDS, *words], "") == 1
    assert "absent" in capsys.readouterr().err
