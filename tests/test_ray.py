"""The Ray engine gives the numbers of the local one, killed or not, and ends well when all fails.

Ray takes long to start, so many algorithms share a run, and the same run is the one that is
killed. Methods of every kind of exchange: what else differs is within a client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from corsage.app.command import run
from corsage.core.registry import ALGORITHMS
from tests.support.federations import CLUSTER_MAP, CONVEX, ELLIPSES, KINDS, SUITED
from tests.support.killing import Point, kill_at, run_folder


@dataclass(frozen=True)
class Family:
    """Algorithms that run on the same users.

    Parameters
    ----------
    names : the algorithms; those up to the last one that is killed have all rounds.
    rounds : how many.
    killed : where the run is killed: they remember at the users, and at the server too.
    keys : where they choose between parts of an algorithm, those that remember most.
    """

    names: tuple[str, ...]
    rounds: int
    killed: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The command line."""
        own = (f"strategy={','.join(self.names)}", f"num-rounds={self.rounds}")
        return [*own, *self.keys, "fraction-train=0.8", "new-users=0.2", "adapt-epochs=1"]

    def amid_round_two(self, name: str) -> Point:
        """When a worker has kept one user of that round, or the server one checkpoint more."""
        rounds = self.names.index(name) * self.rounds + 1
        kept = "users/.*/(UPDATE|INSERT INTO) states"
        return Point(f"/{name}/({kept}|checkpoint-)", rounds=rounds, after=1)


FAMILIES = (
    Family(
        (*(name for name in KINDS if name not in CONVEX), "lg-fedavg", "apfl"),
        rounds=3,
        killed=("scaffold",),
        keys=(
            *("num-users=12", "hidden=16", "head-epochs=2", "fine-tune-epochs=1"),
            *("lg-fedavg-warmup-rounds=1", "apfl-adaptive-alpha=true", "fedmtl-inner-rounds=2"),
            *("cfl-eps1=9", "cfl-eps2=0.001", "l2gd-p=0.2", f"cluster-map={CLUSTER_MAP}"),
            *("fedrep-exact-body-rounds=2", "fedrep-exact-centre=clusters"),
            "fedrep-exact-loss=multinomial",
        ),
    ),
    Family(
        tuple(name for name in ALGORITHMS if name in CONVEX),
        rounds=5,
        killed=("async-al2sgd",),
        keys=tuple(
            f"{key}={value}"
            for key, value in {
                **{k: v for name in sorted(CONVEX) for k, v in SUITED[name].items()},
                **ELLIPSES,
            }.items()
        ),
    ),
)
FOUND = (
    *("dataset=hierarchical", "loss=squared", "num-clusters=3", "users-per-cluster=12"),
    *("num-features=3", "samples-per-user=20", "cluster-variance=4", "user-variance=0.05"),
    *("model=linear", "mixed-grouping=found", "mixed-intervals=never"),
)
"""Users in three groups."""
Run = tuple[Path, dict[str, dict[str, Any]]]
EXACT = ("per_user", "bytes_up", "bytes_down", "messages", "never_drawn", "curve", "dropped")


def finished(words: list[str], folder: Path) -> Run:
    """Run in this process; its folder, and the results by strategy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # Flower changes it
        patch.setenv(*workers(2))
        assert run([*words, "--json", f"{folder}/out.json"], "") == 0
    summary = json.loads((folder / "out.json").read_text())
    return run_folder(folder), {result["strategy"]: result for result in summary["results"]}


def workers(number: int) -> tuple[str, str]:
    """What tells Ray how many cores to count on, and so how many workers to start."""
    return "RAY_OVERRIDE_RESOURCES", json.dumps({"CPU": number})


def shared(folder: Path) -> dict[str, Any]:
    """The arrays that a strategy's server has at the end; a method that sends nothing has none."""
    path = folder / "model.safetensors"
    return load_file(path) if path.exists() else {}


def on_nodes(family: Family, folder: Path) -> Run:
    """On the local engine, each user on a node of its own."""
    folder.mkdir()
    return finished([*family.words, "num-nodes=12", f"run-dir={folder}/runs"], folder)


def on_ray(family: Family, folder: Path) -> Run:
    """On three nodes of Ray, killed in the second round of some algorithms, and resumed."""
    folder.mkdir()
    words = [*family.words, "engine=ray", "num-nodes=3"]
    for name in family.killed:
        kill_at(folder, words, family.amid_round_two(name), dict([workers(1)]))
        assert not (run_folder(folder) / name / "result.json").exists()
        words = ["--resume", str(run_folder(folder))]
    return finished(words, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Run, Run]]:
    """The two runs of an algorithm's family."""

    @cache
    def of(family: Family) -> tuple[Run, Run]:
        folder = tmp_path_factory.mktemp("engines")
        return on_nodes(family, folder / "local"), on_ray(family, folder / "ray")

    return lambda name: of(next(family for family in FAMILIES if name in family.names))


@pytest.mark.parametrize(
    "name",
    [*FAMILIES[0].names, *(pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES[1].names)],
)
def test_ray_and_local_agree(name: str, runs: Callable[[str], tuple[Run, Run]]) -> None:
    """So does what the methods report beside themselves: with fine-tuning, of new users."""
    (local_folder, wanted), (ray_folder, found) = runs(name)
    assert list(found) == list(wanted)
    of_name = [result for result in wanted if result.partition("+")[0] == name]
    assert {name, f"{name}+new"} <= set(of_name)
    for result in of_name:
        assert found[result]["loss"] == pytest.approx(wanted[result]["loss"], abs=1e-5)
        for key in EXACT:
            assert found[result][key] == wanted[result][key]
    arrays, expected = (shared(folder / name) for folder in (ray_folder, local_folder))
    assert arrays.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_allclose(arrays[key], array, rtol=0, atol=1e-5, err_msg=key)


def test_groups_that_are_found_are_the_same_on_ray(tmp_path: Path) -> None:
    family = Family(("mixed-model",), rounds=1, killed=(), keys=FOUND)
    _, wanted = on_nodes(family, tmp_path / "a")
    (tmp_path / "b").mkdir()
    words = ["engine=ray", "num-nodes=3", f"run-dir={tmp_path}/b/runs"]
    folder, found = finished([*family.words, *words], tmp_path / "b")
    assert list(found) == list(wanted) == ["mixed-model", "mixed-model+new"]
    for name, row in wanted.items():
        assert found[name]["per_user"] == pytest.approx(row["per_user"], rel=1e-9)
        assert found[name].get("clusters") == row.get("clusters")
    assert len({*found["mixed-model"]["clusters"].values()}) == 3
    header = (folder / "users.csv").read_text().splitlines()[0]
    assert "p_group_3" in header


def test_errors_on_ray_reach_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv(*workers(1))
    words = ["engine=ray", "num-users=12", "num-nodes=2", "head=absent", f"run-dir={tmp_path}"]
    assert run(words, "") == 2
    assert "absent" in capsys.readouterr().err


def test_a_worker_keeps_what_its_app_has_prepared() -> None:
    """The app comes with every message, each time made anew."""
    from corsage.app.ray_worker import RayWorker

    class App:
        def __init__(self) -> None:
            self.asked = 0

        def __call__(self, message: str, context: str) -> str:
            self.asked += 1
            return f"{message} {self.asked}"

    worker: Any = RayWorker.__ray_metadata__.modified_class()  # type: ignore[attr-defined]
    replies = [worker.run(App(), message, "0", "kept")[1] for message in ("first", "second")]
    assert replies == ["first 1", "second 2"]
