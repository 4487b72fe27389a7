"""Each thing that attaches can be taken out: the rest is what it was, and says what is gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import corsage

ROOT = Path(corsage.__path__[0])
FLOORS = ("app", "clients", "core", "datasets", "networks", "solvers", "strategies")
FIRST = "strategy=fedrep,fedavg,local classes-per-user=3"
"""The first comparison of the README's tour, without what attaches to it."""


@dataclass(frozen=True)
class Lift:
    """Something that is taken out.

    Parameters
    ----------
    files : folders and files of it.
    asks : a command that needs it; without users trained together each is trained alone.
    named : a file of it that the command's one line names.
    runs : algorithms of which it is no part, and whose contract must hold.
    """

    files: tuple[str, ...]
    asks: str
    named: str
    runs: str


def family(name: str) -> tuple[str, ...]:
    """The folders of a family."""
    return tuple(f"{floor}/{name}" for floor in ("strategies", "clients", "solvers"))


LIFTS = {
    "data with natural users": Lift(
        ("datasets/natural", "networks/sequences.py"),
        "dataset=heart",
        "datasets/natural",
        "fedavg",
    ),
    "known clusters": Lift(
        family("known_clusters"),
        "strategy=mixed-model",
        "strategies/known_clusters",
        "convex-clustering",
    ),
    "convex clustering": Lift(
        family("convex_clustering"),
        "strategy=convex-clustering",
        "strategies/convex_clustering",
        "mixed-model",
    ),
    "fedrep-exact": Lift(
        (
            "clients/fedrep/fedrep_exact.py",
            "strategies/fedrep/fedrep_exact.py",
            "strategies/fedrep/exact_sums.py",
            "strategies/fedrep/softmax_centres.py",
            "networks/exact",
        ),
        "strategy=fedrep-exact",
        "strategies/fedrep/fedrep_exact",
        "fedrep-convex",
    ),
    "heads at the end": Lift(
        (
            "clients/fedrep/end_heads.py",
            "strategies/fedrep/heads_at_end.py",
            "networks/exact/closed_heads.py",
        ),
        "strategy=fedavg end-heads=auto num-rounds=1",
        "strategies/fedrep/heads_at_end",
        "fedper",
    ),
    "answer": Lift(("app/answer",), "fit", "app/answer", "ditto"),
    "combined": Lift(
        (
            "clients/parts/combined.py",
            *(f"clients/{n}.py" for n in ("knn_per", "fedem", "gpfl")),
            *(f"strategies/{n}.py" for n in ("knn_per", "fedem", "gpfl")),
        ),
        "strategy=knn-per",
        "strategies/knn_per",
        "fedavg",
    ),
    "studies": Lift(
        ("app/studies", "app/study.py"), "strategy=local seed=0,1", "app/studies", "ditto"
    ),
    "tracking": Lift(("app/tracking",), "strategy=local log-to=csv", "app/tracking", "apfl"),
    "devices": Lift(
        ("app/deployment", "app/nodes/resident", "strategies/devices"),
        "gate",
        "app/deployment",
        "ifca",
    ),
    "report": Lift(("app/report",), "report NOWHERE", "app/report", "scaffold"),
    "same data": Lift(("strategies/rounds/same_data.py",), "", "", "local"),
    "pairs": Lift(("clients/parts/outcomes.py", "core/pairs/sums.py"), "", "", "ditto"),
    "families": Lift(
        ("core/families.py",),
        "strategy=local dataset=hierarchical model=linear loss=poisson",
        "core/families",
        "pfedme",
    ),
    "baseline": Lift(("clients/parts/baseline.py",), "", "", "fedbabu"),
    "wishes of training": Lift(
        (
            "networks/augment.py",
            "networks/training_objective.py",
            "networks/cut.py",
            "core/robust.py",
        ),
        "strategy=fedavg robust=median num-rounds=1",
        "core/robust",
        "fedper",
    ),
    "an app's own": Lift(
        (
            "app/nodes/own.py",
            "app/output/round_lines.py",
            "clients/parts/own_steps.py",
            "networks/own_models.py",
        ),
        "strategy=local model=own.py:Net num-rounds=1",
        "networks/own_models",
        "lg-fedavg",
    ),
    "Flower's own loop": Lift(
        ("strategies/rounds/outside.py", "strategies/rounds/wrappers.py"), "", "", "fedamp"
    ),
    "likelihood": Lift(
        (
            *(
                f"strategies/known_clusters/likelihood_{n}.py"
                for n in ("rounds", "search", "outcome")
            ),
            "clients/known_clusters/likelihood.py",
            "solvers/known_clusters/generalised",
        ),
        "strategy=mixed-model dataset=hierarchical loss=poisson",
        "strategies/known_clusters/likelihood_rounds",
        "exact-cluster",
    ),
    "groups": Lift(
        (
            *(f"{room}/known_clusters/found_groups.py" for room in ("strategies", "clients")),
            *(f"solvers/known_clusters/variances/{n}.py" for n in ("found_groups", "mixtures")),
        ),
        "strategy=mixed-model dataset=hierarchical mixed-grouping=found",
        "strategies/known_clusters/found_groups",
        "exact-cluster",
    ),
    "together": Lift(("networks/together",), "", "", "apfl"),
}


def without(files: tuple[str, ...], place: Path) -> Path:
    """A copy of the checkout that lacks some files."""
    unread = shutil.ignore_patterns("__pycache__", "*.png", "*.gz")
    for floor in (*FLOORS, "tests"):
        shutil.copytree(ROOT / floor, place / floor, ignore=unread)
    for file in ("corsage.py", "run_simulation.py", "pyproject.toml", "py.typed"):
        shutil.copy(ROOT / file, place)
    for file in files:
        gone = place / file
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    return place


def called(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What Python does in a copy."""
    env = os.environ | {"PYTHONPATH": str(place)}
    call = [sys.executable, *words]
    return subprocess.run(call, cwd=place, env=env, capture_output=True, text=True, check=False)


def first_numbers(place: Path, runs: Path) -> list[dict[str, Any]]:
    """The rows of the first command, but for their seconds and the hash of their data."""
    runs.mkdir()
    where = f"run-dir={runs}", "--json", str(runs / "found.json")
    done = called(place, "run_simulation.py", *FIRST.split(), *where)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads((runs / "found.json").read_text())["results"]
    return [{k: value for k, value in row.items() if k not in ("seconds", "data")} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The numbers with nothing taken out."""
    return first_numbers(ROOT, tmp_path_factory.mktemp("whole") / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("name", LIFTS)
def test_the_rest_is_what_it_was(name: str, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    lift = LIFTS[name]
    place = without(lift.files, tmp_path / "copy")
    rows = first_numbers(place, tmp_path / "runs")
    if name == "pairs":
        known = {"outcomes", "hurt"}
        assert all(row["hurt"] and "outcomes" not in row for row in rows[1:])
        rows, whole = (
            [{k: v for k, v in r.items() if k not in known} for r in t] for t in (rows, whole)
        )
    if name == "baseline":  # nothing says what a guess would score
        assert not any(row.pop("baseline") for row in rows)
        whole = [{k: v for k, v in row.items() if k != "baseline"} for row in whole]
    if name != "together":
        assert rows == whole
    for row, same in zip(rows, whole, strict=True):  # sums of users alone are rounded otherwise
        assert row["per_user"] == same["per_user"]
        assert row["loss"] == pytest.approx(same["loss"], abs=1e-4)

    if lift.asks:
        asked = called(place, "run_simulation.py", *lift.asks.split())
        line, code = asked.stderr.splitlines()[-1], asked.returncode
        assert code == 2 and lift.named in line and "is not in this installation" in line
        assert "Traceback" not in asked.stderr
    for topic in ((), ("keys",)):
        helped = called(place, "run_simulation.py", "--help", *topic)
        assert helped.returncode == 0, helped.stderr

    own = "number_of_nodes", "resumed_from", "every_user_is_evaluated"
    chosen = f"({' or '.join(own)}) and ({lift.runs} or fedavg)"
    quiet = "-n0", "-q", "-p", "no:cacheprovider"
    done = called(place, "-m", "pytest", *quiet, "tests/strategies/test_contract.py", "-k", chosen)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
