"""A round on devices: wall-clock, and CPU on a device beyond what Flower's own process takes.

The shipped deployment runs on the loopback: SuperLink, gate, and three SuperNodes with keys and a
signed app, started by its own scripts. Two apps are on the shelf: Corsage's, and one that does
nothing (`bare_app`) in a bundle of the same size. Everything that was started ends with this
process, also when it is interrupted. It needs a checkout, with its tests.
"""

from __future__ import annotations

import json
import os
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

import numpy as np

from corsage.app import engines
from corsage.app.deployment.shelf import put_on_shelf
from corsage.app.deployment.site import APP_FOLDER
from corsage.benchmarks.measure import Measure
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, CorsageError

USERS, ROUNDS = ("0", "1", "2"), 10
MESSAGES = ROUNDS + 2
"""Those of a run to each device: who it is, the rounds, the last evaluation."""
SECONDS, CPU = 5.0, 0.3
KEYS = {
    "strategy": "fedrep",
    "num-nodes": 3,
    "num-rounds": ROUNDS,
    "fraction-train": 1.0,
    "evaluate-every": 1,
    "fine-tune-epochs": 0,
    "node-timeout": 300.0,
}
TICKS = os.sysconf("SC_CLK_TCK")
BARE = "bare"
NEW = {
    "name": BARE,
    "version": "0.0.1",
    "serverapp": "bare_app:server",
    "clientapp": "bare_app:client",
}
"""What `pyproject.toml` says of the app that does nothing."""


@dataclass(frozen=True)
class Spent:
    """What a run took: seconds, and CPU seconds of all devices by kind of process."""

    seconds: float
    messages: float
    workers: float


def run() -> Iterator[Measure]:
    """Both apps on the same devices, and the same run in this process."""
    signal.signal(signal.SIGTERM, stopped)
    with tempfile.TemporaryDirectory(prefix="rounds") as scratch, deployed(Path(scratch)) as site:
        idle = resting(site)
        print("a run that does nothing, then FedRep ...", file=sys.stderr, flush=True)
        bare = spent(site, f"@corsage/{BARE}==0.0.1", {"num-nodes": 3, "num-rounds": MESSAGES})
        ours = spent(site, app_name(), KEYS)
        folder = next((site.folder / "site/server/state/runs").iterdir())
        lines = (folder / "fedrep/metrics.jsonl").read_text().splitlines()
        ends = [json.loads(line)["seconds"] for line in lines]
        far = difference(folder, simulation(Path(scratch)))
    total = len(USERS) * MESSAGES
    own, beyond = bare.messages / total, (ours.messages + ours.workers - bare.messages) / total
    words = (
        f"CPU s a message: Flower's own process {own:.2f}, Corsage's {ours.messages / total:.2f} "
        f"and its worker {ours.workers / total:.2f}; a device without a run {idle:.3f} of a core"
    )
    whole = f"with the start of the run and introductions {ours.seconds / ROUNDS:.1f} s a round"
    clock = (ends[-1] - ends[0]) / (ROUNDS - 1)
    yield Measure("a round: wall-clock", clock, SECONDS, "s", whole)
    yield Measure("a message: CPU beyond Flower's own", beyond, CPU, "s", words)
    yield Measure("numbers beside those in process", far, 1e-5, "apart")


def stopped(*_: object) -> None:
    """Stop, once: a second signal must not end the stopping of what was started."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


@contextmanager
def deployed(scratch: Path) -> Iterator[Any]:
    """The deployment, running; it is stopped by the ids of its processes."""
    if not (APP_FOLDER / "tests" / "support" / "site.py").is_file():
        raise ConfigError("device-round: needs a checkout, with its tests.")
    sys.path.insert(0, str(APP_FOLDER))
    site = import_module("tests.support.site").Site(scratch, USERS)
    try:
        site.start()
        secret, shelf = scratch / "site/secret/signer.key", scratch / "site/server/apps"
        put_on_shelf(bare_project(scratch / BARE), secret, shelf)
        yield site
    finally:
        site.stop()


def bare_project(folder: Path) -> Path:
    """This checkout, with apps that do nothing in the place of its own."""
    shutil.copytree(APP_FOLDER, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
    shutil.copy(APP_FOLDER / "benchmarks" / "bare_app.py", folder / "bare_app.py")
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(
        r'(?m)^(name|version) = ".*"$', lambda m: f'{m[1]} = "{NEW[m[1]]}"', text, count=2
    )
    for part in ("serverapp", "clientapp"):
        text = re.sub(rf'(?m)^{part} = ".*"$', f'{part} = "bare_app:{part[:6]}"', text)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def app_name() -> str:
    """Corsage's own app, as `corsage deploy` signed it."""
    from corsage.app.deployment.shelf import app_of

    return "==".join(app_of(APP_FOLDER))


def spent(site: Any, app: str, keys: dict[str, Any]) -> Spent:
    """One run to its end, and what it took."""
    messages, workers = of_messages(site), of_workers(site)
    text = " ".join(f"{name}={spelled(value)}" for name, value in keys.items())
    started = time.monotonic()
    found = site.ask(f'site/server/flwr.sh run {app} here --stream --run-config "{text}"')
    if "ERROR" in found.stdout + found.stderr:
        raise CorsageError(f"{app} failed: {(found.stdout + found.stderr)[-3000:]}")
    seconds = time.monotonic() - started
    time.sleep(1.0)  # the last processes end
    return Spent(seconds, of_messages(site) - messages, of_workers(site) - workers)


def spelled(value: Any) -> str:
    """A value as TOML has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def resting(site: Any, seconds: float = 5.0) -> float:
    """The share of a core that a device takes without a run: its polls."""
    before = of_nodes(site)
    time.sleep(seconds)
    return (of_nodes(site) - before) / seconds / len(USERS)


# Processes, as the system counts their time.


def of_nodes(site: Any) -> float:
    """CPU seconds of SuperNodes and executors themselves."""
    return sum(own(pid) for pid in members(site) if kind(pid) in ("supernode", "superexec"))


def of_messages(site: Any) -> float:
    """CPU seconds of the processes that Flower started for messages, ended or not."""
    pids = members(site)
    ended = sum(of_children(pid) for pid in pids if kind(pid) == "superexec")
    return ended + sum(own(pid) + of_children(pid) for pid in pids if kind(pid) == "clientapp")


def of_workers(site: Any) -> float:
    """CPU seconds of the resident workers."""
    return sum(own(pid) for pid in members(site) if kind(pid) == "worker")


def members(site: Any) -> list[int]:
    """The processes of all devices: each SuperNode leads a group of its own."""
    groups = {site.processes[user].pid for user in USERS}
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if group(pid) in groups]


def kind(pid: int) -> str:
    """What a process is, by its command; one that has ended was a message's."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""
    names = {"supernode": "\0supernode\0", "superexec": "flower-superexec"}
    names |= {"worker": "corsage.app.nodes.resident"}
    return next((name for name, word in names.items() if word in command), "clientapp")


def stat(pid: int) -> list[str]:
    """The fields of a process after its name; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def group(pid: int) -> int:
    return int(fields[2]) if (fields := stat(pid)) else 0


def own(pid: int) -> float:
    """CPU seconds of a process."""
    return sum(map(int, stat(pid)[11:13])) / TICKS


def of_children(pid: int) -> float:
    """CPU seconds of the children that a process has seen end."""
    return sum(map(int, stat(pid)[13:15])) / TICKS


# The same in this process.


def simulation(scratch: Path) -> Path:
    """The run folder of a simulation of the same users."""
    keys = {**KEYS, "num-users": len(USERS), "run-dir": str(scratch / "simulated")}
    return engines.simulate(Config.parse(keys))


def result(folder: Path) -> dict[str, Any]:
    """The result in a run folder."""
    found: dict[str, Any] = json.loads((folder / "fedrep/result.json").read_text())["results"][0]
    return found


def difference(one: Path, other: Path) -> float:
    """How far the numbers of two runs are apart: each user's, the curve's, the loss."""
    first, second = result(one), result(other)
    pairs = zip(figures(first), figures(second), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def figures(found: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The numbers of a result: the curve, the loss, and each user's."""
    users = [found["per_user"][user] for user in USERS]
    return [np.asarray(part, float) for part in (found["curve"], [*found["loss"].values()], users)]
