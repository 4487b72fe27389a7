"""Three devices as real processes: killed, started again, and as good as a simulation of them.

Every registered algorithm on them takes minutes, so it is not in the usual run of the tests:

    pytest -m slow tests/deploy
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load, load_file

from corsage.app import engines
from corsage.app.inference.source import models_in
from corsage.app.local_grid import LocalGrid
from corsage.app.run.loaded import load as load_run
from corsage.app.states.store import states_of
from corsage.clients import client_class
from corsage.core.configuration.config import Config
from corsage.core.registry import ALGORITHMS
from corsage.datasets.dealing.federated import on_device
from tests.support.federations import CONVEX, ELLIPSES, SUITED
from tests.support.fleet import FEDAVG, FEDREP, RESUME, USERS, Fleet, rows
from tests.support.killing import Point

# Not the defaults: a resumed run and its devices must find these keys again.
KEYS = {"seed": 3, "test-fraction": 0.3, "head-epochs": 2, "fine-tune-epochs": 0, "hidden": "16"}
KEYS["node-timeout"] = 600.0  # a busy machine takes long to start a device's processes
KEYS["patience"] = 0.0  # and a device that stands still is not slow
WORDS = " " + " ".join(f"{k}={v!r}" for k, v in KEYS.items())


class Absent(LocalGrid):
    """Nodes in this process, of which the third is not there in the second round."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Lose the messages to that node."""
        ids: list[str] = []
        for message in messages:
            config = self._contexts[message.metadata.dst_node_id].node_config
            lost = message.metadata.group_id == "2" and config["partition-id"] == 2
            ids += [""] if lost else super().push_messages([message])
        return ids


def simulated(tmp_path: Path, **keys: Any) -> Path:
    """The run folder of a simulation of the same users."""
    own = {"num-users": 3, "num-nodes": 3, "fraction-train": 1.0, "run-dir": str(tmp_path), **KEYS}
    return engines.simulate(Config.parse({**own, **{k.replace("_", "-"): keys[k] for k in keys}}))


def result(folder: Path, strategy: str) -> dict[str, Any]:
    return json.loads((folder / strategy / "result.json").read_text())["results"][0]


def assert_same(devices: Path, simulation: Path, strategy: str) -> None:
    """Same accuracy of every user, same loss, same shared arrays."""
    one, other = result(devices, strategy), result(simulation, strategy)
    assert one["per_user"] == pytest.approx(other["per_user"], abs=1e-5)
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
    np.testing.assert_allclose(one["curve"], other["curve"], rtol=0, atol=1e-5)
    assert_same_arrays(*(shared(folder / strategy) for folder in (devices, simulation)))


def shared(folder: Path) -> dict[str, Any]:
    """The arrays that a strategy's server has at the end; a method that sends nothing has none."""
    path = folder / "model.safetensors"
    return load_file(path) if path.exists() else {}


def assert_same_arrays(arrays: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-5, err_msg=name)


def assert_same_states(
    fleet: Fleet, devices: Path, simulation: Path, strategy: str, number: int
) -> None:
    """What the devices keep for themselves is what the simulated users keep."""
    run, simulated = (run_of(folder) for folder in (devices, simulation))
    for user in USERS:
        state = load(fleet.states(user, f"{strategy}-{run}")[number])
        assert_same_arrays(state, states_of(simulation, strategy, simulated).load(user, number))


def run_of(folder: Path) -> str:
    """The name of a run folder's run."""
    return str(json.loads((folder / "config.json").read_text())["run"])


def test_a_device_and_then_the_server_are_killed(fleet, tmp_path, monkeypatch):
    """The run goes on without the device, and then with it; the resumed server ends it.

    In the end all numbers are those of a simulation in which one user misses the second round.
    """
    run = fleet.run(FEDREP + WORDS + " evaluate-with-training=false")  # rounds end one by one
    fleet.stands_still("2", run)
    fleet.kill("2")
    folder = fleet.newest()
    (experiment,) = (path.name for path in (fleet.folder / "devices").glob("state-2/fedrep-*"))
    before = fleet.states("2", experiment)
    fleet.start_node("2")

    fleet.stands_still("0", run)
    fleet.until(lambda: 3 in fleet.states("2", experiment), run)
    fleet.kill_server_app()
    fleet.until(lambda: "user 2 is dropped" in fleet.log(run))  # Flower shows it some time after
    fleet.kill(run)  # the command only shows the log
    fleet.go_on("0")  # and answers to nobody
    assert [row["users"] for row in rows(folder, "fedrep")] == [3, 2]
    assert "starts anew" not in fleet.log(run)
    assert fleet.states("2", experiment)[1] == before[1]
    assert set(fleet.states("2", experiment)) == {1, 3}

    assert fleet.finish(fleet.run(RESUME.format(name=folder.name))) == folder
    assert [row["users"] for row in rows(folder, "fedrep")] == [3, 2, 3]
    assert result(folder, "fedrep")["dropped"] == {"2": 2}  # in training and in the evaluation
    monkeypatch.setattr(engines, "LocalGrid", Absent)
    simulation = simulated(tmp_path, strategy="fedrep", num_rounds=3)
    assert_same(folder, simulation, "fedrep")
    assert_same_states(fleet, folder, simulation, "fedrep", 3)


def test_same_devices_for_any_strategy(fleet, tmp_path):
    """The devices run on untouched; what they compute is what a simulation computes.

    Users that are not drawn are evaluated all the same.
    """
    keys = FEDAVG.replace("num-rounds=3", "num-rounds=1").replace("train=1.0", "train=0.4")
    processes = [fleet.processes[user].pid for user in USERS]
    folder = fleet.finish(fleet.run(keys + WORDS))
    simulation = simulated(tmp_path, strategy="fedavg", num_rounds=1, fraction_train=0.4)
    assert result(folder, "fedavg")["never_drawn"] == 2
    assert_same(folder, simulation, "fedavg")
    assert processes == [fleet.processes[user].pid for user in USERS]
    assert all(fleet.processes[user].poll() is None for user in USERS)
    run = load_run(folder)
    config = Config.parse(run.config)
    for row in run.rows.values():
        for user, reported in row.per_user.items():
            place = fleet.folder / "devices"
            own = models_in(str(place / f"state-{user}"), row.name).user(user)
            path, keys = str(place / f"{user}.npz"), config.device_data
            data = on_device(path, user, "", keys, config.run.seed)[user]
            assert np.mean(own.predict(data.x_test) == data.y_test) == reported


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_devices_are_killed_at_once(tmp_path: Path) -> None:
    """And started again: the run waits for them, and ends with an undisturbed run's numbers.

    Each is killed before it keeps its second round, so no reply of that round is there. They are
    back one after the other: without `min-users` the first would play the round alone.
    """
    keys = FEDREP + WORDS + " min-users=3"
    points = {user: Point(f"/state-{user}/fedrep-.*/2.safetensors$") for user in USERS}
    fleet = Fleet(tmp_path, points=points, hasty=USERS)
    try:
        fleet.start("seed=3")
        run = fleet.run(keys)
        for user in USERS:
            fleet.stands_still(user, run)
        for user in USERS:
            fleet.kill(user)
        fleet.until(lambda: "no node" in fleet.log(run), run)  # nobody is there, and it says so
        for user in USERS:
            fleet.start_node(user)
        folder = fleet.finish(run)
        undisturbed = fleet.finish(fleet.run(keys))
    finally:
        fleet.stop()
    assert [row["users"] for row in rows(folder, "fedrep")] == [3, 3, 3]
    one, other = result(folder, "fedrep"), result(undisturbed, "fedrep")
    assert one["per_user"] == other["per_user"] and one["loss"] == other["loss"]
    assert one["curve"] == other["curve"]
    arrays, wanted = shared(folder / "fedrep"), shared(undisturbed / "fedrep")
    assert all(np.array_equal(arrays[name], wanted[name]) for name in wanted | arrays)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_algorithm(fleet: Fleet, tmp_path: Path) -> None:
    """Those for networks, in one `flwr run` of one round each; see above for the command."""
    chosen = [name for name in ALGORITHMS if name not in CONVEX]
    names = ",".join(chosen)
    keys = FEDREP.replace("fedrep", names).replace("num-rounds=3", "num-rounds=1")
    folder = fleet.finish(fleet.run(keys + WORDS))
    clusters = tmp_path / "map.json"  # as the devices say it themselves
    clusters.write_text(json.dumps(dict.fromkeys(USERS, "a")))
    simulation = simulated(tmp_path, strategy=names, num_rounds=1, cluster_map=str(clusters))
    for name in chosen:
        assert_same(folder, simulation, name)
        if client_class(name).personal:
            assert_same_states(fleet, folder, simulation, name, 1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_exact_heads_in_clusters(fleet: Fleet, tmp_path: Path) -> None:
    """With every exchange that there is: of the multinomial loss, and of a round of the body."""
    own = {"fedrep-exact-centre": "clusters", "fedrep-exact-loss": "multinomial"}
    words = " ".join(f"{key}='{value}'" for key, value in own.items())
    keys = FEDREP.replace("fedrep", "fedrep-exact").replace("num-rounds=3", "num-rounds=2")
    text = f"{keys}{WORDS} {words} fedrep-exact-body-rounds=1"
    folder = fleet.finish(fleet.run(text))
    more = {**own, "fedrep-exact-body-rounds": 1, "strategy": "fedrep-exact", "num-rounds": 2}
    more["min-share"] = 3  # as devices have it by default
    simulation = simulated(tmp_path, **{k.replace("-", "_"): v for k, v in more.items()})
    assert_same(folder, simulation, "fedrep-exact")


CLUSTERS = {"0": "a", "1": "a", "2": "b"}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_algorithm_for_convex_losses(tmp_path: Path) -> None:
    """And known clusters, which the devices name themselves; one of them is on two devices."""
    words = {user: f"num-classes=2 cluster='{name}'" for user, name in CLUSTERS.items()}
    chosen = [name for name in ALGORITHMS if name in CONVEX]
    keys = {key: value for name in chosen for key, value in SUITED[name].items()}
    keys |= {**ELLIPSES, "users-per-cluster": 1, "samples-per-user": 30}
    keys |= {"known-p0": 0.3, "known-p": 0.3, "strategy": ",".join(chosen), "num-rounds": 1}
    (tmp_path / "fleet").mkdir()
    fleet = Fleet(tmp_path / "fleet", words)
    try:
        deal = ("dataset", "partition", "num-users", "users-per-cluster", "samples-per-user")
        fleet.start(" ".join(f"{key}={keys[key]}" for key in deal))
        text = " ".join(f"{key}={spelled(value)}" for key, value in keys.items())
        folder = fleet.finish(fleet.run(f"{text} num-nodes=3 fraction-train=1.0"))
    finally:
        fleet.stop()
    clusters = tmp_path / "map.json"
    clusters.write_text(json.dumps(CLUSTERS))
    own = {"num-nodes": 3, "fraction-train": 1.0, "run-dir": str(tmp_path / "simulation")}
    config = Config.parse({**keys, **own, "cluster-map": str(clusters)})
    simulation = engines.simulate(config)
    for name in chosen:
        assert_same(folder, simulation, name)
        if client_class(name).personal:
            assert_same_last_states(fleet, folder, simulation, name)


def spelled(value: Any) -> str:
    """A value as TOML has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def assert_same_last_states(fleet: Fleet, devices: Path, simulation: Path, strategy: str) -> None:
    """The same of the newest states: how often devices were asked is not their number."""
    run = run_of(devices)
    wanted = states_of(simulation, strategy, run_of(simulation))
    for user in USERS:
        states = fleet.states(user, f"{strategy}-{run}")
        newest = wanted.load(user, wanted.versions(user)[-1])
        assert_same_arrays(load(states[max(states)]), newest)
