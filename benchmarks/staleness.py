"""One cluster 20 times slower than the others: what it costs to wait for it, and not to.

Five clusters are on a node each. A node takes its time for a walk, by sleeping in a mod of the
client app, and one of them 20 times as long. Wall time is that of training, to the last answer,
beside the same run in which nobody is slow: with `known-staleness` 0, where a global step waits for
all, and 20. On threads of this process, on Ray, and on three SuperNodes of a deployment on the
loopback, where messages take seconds by themselves. Beside it stand distances to the exact
minimiser, which is mixed-model's under the same strengths: after equal time, and at the end of long
runs with centres of several ages, on the squared and on the logistic loss.

    python -m corsage.benchmarks staleness
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from corsage.app import engines
from corsage.app.client_app import app as usual_app
from corsage.app.client_app import make_client_app
from corsage.app.deployment.bundle import ROOT
from corsage.app.results.rowfile import RowFile
from corsage.benchmarks.measure import Measure
from corsage.core.arrays import Floats
from corsage.core.config import Config
from corsage.core.errors import ConfigError
from corsage.experiments.runner import say

SLOW, STALENESS, TARGET = 20.0, 20, 1.3
CLUSTERS = 5
DATA: dict[str, dict[str, Any]] = {
    "squared": {
        "dataset": "hierarchical",
        "loss": "squared",
        "num-clusters": CLUSTERS,
        "users-per-cluster": 4,
        "num-features": 3,
        "samples-per-user": 20,
    },
    "logistic": {
        "dataset": "ellipses",
        "loss": "logistic",
        "users-per-cluster": 4,
        "ridge": 0.1,
    },
}
TIES: dict[str, Any] = {
    "model": "linear",
    "partition": "natural",
    "num-users": 0,
    "known-gamma": 1.5,
    "known-lambda": 2.0,
}
RARELY: dict[str, Any] = {"evaluate-every": 10**6, "checkpoint-every": 50}
AGES = (0, 1, 5, 20)
PARTS = 150
"""Rounds in which the cluster that is away most takes part, in a run to convergence."""
DEVICE_ROUNDS, DEVICE_WAITING, DEVICE_WALK = 24, 2, 3.0
DEVICE_DATA: dict[str, Any] = {
    **DATA["squared"],
    "partition": "natural",
    "num-users": 0,
    "num-clusters": 3,
    "users-per-cluster": 1,
}


@dataclass(frozen=True)
class Engine:
    """Where runs are, how long a walk takes there, and for how many rounds.

    Parameters
    ----------
    name : as it is printed.
    keys : of the engine.
    seconds : a walk of a cluster that is not slow.
    rounds : of a run, and of one that waits for the slow cluster in every round.
    """

    name: str
    keys: dict[str, Any]
    seconds: float
    rounds: int
    waiting: int


ENGINES = (
    Engine("threads", {"engine": "threads"}, 0.1, 100, 10),
    Engine("Ray", {"engine": "ray", "node-cpus": 0.4}, 0.5, 40, 4),
)


class Sleeper:
    """A mod of a client app: a walk takes its time, that of the first node so many times as long.

    Parameters
    ----------
    seconds, times : how long; how many times.
    """

    def __init__(self, seconds: float, times: float) -> None:
        self.seconds, self.times = seconds, times

    def __call__(self, message: Message, context: Context, call: ClientAppCallable) -> Message:
        """Sleep, then work."""
        first = context.node_config.get("partition-id", context.node_config.get("user")) in (0, "0")
        if message.metadata.message_type == "train":
            time.sleep(self.seconds * (self.times if first else 1.0))
        return call(message, context)


@dataclass(frozen=True)
class Found:
    """What a run came to: seconds of training, its rounds, and all users' models (n, d)."""

    seconds: float
    rounds: int
    models: Floats

    def far(self, best: Found) -> float:
        """The distance from the minimiser, as a share of its size."""
        return float(np.linalg.norm(self.models - best.models) / np.linalg.norm(best.models))


def run() -> Iterator[Measure]:
    """Wall time on each engine, and distances."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing stays running
    with tempfile.TemporaryDirectory(prefix="staleness") as scratch:
        place = Path(scratch)
        best = {loss: simulated(place / f"best-{loss}", "mixed-model", loss) for loss in DATA}
        for engine in ENGINES:
            yield from times_on(engine, place, best["squared"])
        yield from on_devices(place)
        for name in ("async-l2gd", "async-al2sgd"):
            for loss in DATA:
                yield from converged(place, name, loss, best[loss])


def times_on(engine: Engine, place: Path, best: Found) -> Iterator[Measure]:
    """Nobody slow, one cluster slow and waited for, and not."""

    def one(times: float, staleness: int, rounds: int) -> Found:
        say(f"{engine.name}: {times:g} times slower, staleness {staleness}")
        folder = place / f"{engine.name}-{times}-{staleness}-{rounds}"
        app = make_client_app(mods=[Sleeper(engine.seconds, times)])
        keys = {**engine.keys, "num-nodes": CLUSTERS, "known-staleness": staleness}
        keys |= {"num-rounds": rounds, **RARELY}
        return simulated(folder, "async-al2sgd", "squared", app, **keys)

    usual = one(1.0, 0, engine.rounds)
    waits = one(SLOW, 0, engine.waiting)
    goes = one(SLOW, STALENESS, engine.rounds)
    yield from compared(engine.name, usual, waits, goes)
    in_time = one(SLOW, 0, max(int(goes.seconds / (waits.seconds / waits.rounds)), 1))
    yield Measure(
        f"{engine.name}: from the minimiser, in equal time",
        goes.far(best) / in_time.far(best),
        1.0,
        "of waiting",
        f"{goes.seconds:.0f} s: {goes.far(best):.2g} in {goes.rounds} rounds, waiting "
        f"{in_time.far(best):.2g} in {in_time.rounds}; nobody slow {usual.far(best):.2g}",
    )


def compared(name: str, usual: Found, waits: Found, goes: Found) -> Iterator[Measure]:
    """A round's seconds where one cluster is slow, in those of a round where none is."""
    one = usual.seconds / usual.rounds
    told = f"a round {one:.2f} s where nobody is slow, {usual.rounds} rounds"
    yield Measure(
        f"{name}: one cluster 20 times slower, staleness {STALENESS}",
        goes.seconds / goes.rounds / one,
        TARGET,
        "times as long",
        told,
    )
    yield Measure(
        f"{name}: the same, staleness 0",
        waits.seconds / waits.rounds / one,
        SLOW,
        "times as long",
        told,
    )


def simulated(
    folder: Path, name: str, loss: str, app: ClientApp | None = None, **keys: Any
) -> Found:
    """A run in a folder of its own."""
    config = Config.parse({"strategy": name, **DATA[loss], **TIES, **keys})
    given = mock.patch.object(engines, "client_app", app or usual_app)
    with given, mock.patch("sys.stdout", sys.stderr):
        engines.simulate(config, folder)
    return found_in(folder, name)


def found_in(folder: Path, name: str) -> Found:
    """What a run folder says."""
    (result,) = json.loads((folder / name / "result.json").read_text(encoding="utf-8"))["results"]
    file = RowFile(folder / name / "models" / f"{name}.safetensors")
    users = sorted(result["per_user"])
    models = np.stack([vector(file, user) for user in users])
    return Found(training(folder, name), int(result["rounds"]), models)


def training(folder: Path, name: str) -> float:
    """Seconds from each round's global step to the last answer that it waited for.

    The last rounds are evaluated one by one, which is not what is measured.
    """
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    told = [row["timeline"] for row in rows if "timeline" in row]
    ends = [(row["at"], [end for _, end in row["work"].values()]) for row in told]
    return float(sum(max(done) - at for at, done in ends if done))


def vector(file: RowFile, user: str) -> Floats:
    """A user's model."""
    parts = file.own(user)
    return np.concatenate([np.asarray(parts[n], np.float64).ravel() for n in sorted(parts)])


# On devices.


def on_devices(place: Path) -> Iterator[Measure]:
    """Three SuperNodes with a cluster each; the first has a process that takes its time."""
    one: dict[float, dict[int, Found]] = {}
    for times in (1.0, SLOW):
        with fleet(place / f"devices-{times:g}", times) as (devices, project):
            for staleness in (0, STALENESS) if times > 1 else (0,):
                say(f"SuperNodes: {times:g} times slower, staleness {staleness}")
                rounds = DEVICE_WAITING if times > 1 and not staleness else DEVICE_ROUNDS
                found = deployed(devices, project, staleness, rounds)
                one.setdefault(times, {})[staleness] = found
    yield from compared("SuperNodes", one[1.0][0], one[SLOW][0], one[SLOW][STALENESS])


@contextmanager
def fleet(folder: Path, times: float) -> Iterator[tuple[Any, Path]]:
    """SuperLink and SuperNodes on the loopback, and the app that they run."""
    if not (ROOT / "tests" / "support" / "fleet.py").is_file():
        raise ConfigError("staleness: needs a checkout, with its tests.")
    sys.path.insert(0, str(ROOT))
    folder.mkdir()
    words = {user: f"labels='numbers' cluster='{user}'" for user in ("0", "1", "2")}
    devices = import_module("tests.support.fleet").Fleet(folder, words)
    devices.environment["WALK"] = f"{DEVICE_WALK} {DEVICE_WALK * times}"
    try:
        devices.start(" ".join(f"{key}={value}" for key, value in DEVICE_DATA.items()))
        yield devices, slow_project(folder / "project")
    finally:
        devices.stop()


def slow_project(folder: Path) -> Path:
    """This checkout, with a client app that takes its time."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
    shutil.copy(ROOT / "benchmarks" / "slow_app.py", folder / "slow_app.py")
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(r'(?m)^clientapp = ".*"$', 'clientapp = "slow_app:client"', text)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def deployed(devices: Any, project: Path, staleness: int, rounds: int) -> Found:
    """A run of them."""
    keys = {"strategy": "async-al2sgd", **DEVICE_DATA, **TIES, **RARELY, "num-nodes": 3}
    keys |= {"known-staleness": staleness, "num-rounds": rounds, "patience": 30.0}
    text = " ".join(f"{key}={value!r}" for key, value in keys.items())
    name = f"run{sum(name.startswith('run') for name in devices.processes)}"
    devices.spawn(name, f'flwr run {project} here --stream --run-config "{text}"')
    folder = devices.finish(name)
    (result,) = json.loads((folder / "async-al2sgd" / "result.json").read_text())["results"]
    seconds = training(folder, "async-al2sgd")
    return Found(seconds, int(result["rounds"]), np.empty((0, 0)))


# Where long runs come to.


def converged(place: Path, name: str, loss: str, best: Found) -> Iterator[Measure]:
    """A cluster that takes part in every so manieth round alone, in runs of equal work of it."""
    for age in AGES:
        say(f"{name}, {loss}: {age} rounds old")
        rounds = PARTS * (age + 1)
        played = schedule(place / f"played-{name}-{loss}-{age}", name, age, rounds)
        keys: dict[str, Any] = {}
        keys |= {"known-staleness": age, "known-schedule": played} if age else {}
        keys |= {"num-rounds": rounds, **RARELY, "checkpoint-every": 10**6}
        found = simulated(place / f"{name}-{loss}-{age}", name, loss, **keys)
        target = 1e-6 if name == "async-al2sgd" else 1.0
        yield Measure(
            f"{name}, {loss}, {age} rounds old: from the minimiser",
            found.far(best),
            target,
            "of its size",
            f"{rounds} rounds, a cluster takes part in every {age + 1}th",
        )


def schedule(folder: Path, name: str, age: int, rounds: int) -> str:
    """A run folder in which the first cluster was at work for `age` rounds at a time."""
    (folder / name).mkdir(parents=True)
    rows = []
    for number in range(1, rounds + 1):
        old = (number - 1) % (age + 1)
        rows.append({"round": number, "timeline": {"stale": {"0": old} if old else {}}})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / name / "metrics.jsonl").write_text(text, encoding="utf-8")
    return str(folder)
