"""Rounds of a deployment at whose gate a crowd stands, beside those without one.

The shipped deployment runs on the loopback, and what ends is started again after ten seconds, as
systemd does it. During a run each crowd (`chaos.crowd`) opens its connections: where this process
may make a network namespace from a hundred addresses in there, else from those of the loopback.
After each, all devices must be back by themselves. It needs a checkout, with its tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.deployment.gate import moment
from corsage.app.deployment.shelf import app_of
from corsage.app.deployment.site import APP_FOLDER
from corsage.app.run.status import read_status
from corsage.benchmarks.chaos.crowd import KINDS
from corsage.benchmarks.measure import Measure
from corsage.core.errors import ConfigError, CorsageError

USERS, ROUNDS = ("0", "1", "2"), 6
KEYS = (
    f"strategy='fedavg' num-nodes=3 num-rounds={ROUNDS} fraction-train=1.0 min-users=3 "
    "registered-keys=true fine-tune-epochs=0 node-timeout=120.0"
)
COUNT, PACE = 10_000, 250.0
"""Connections of each kind, and how many a second: as long as a run takes."""
WORSE, BACK = 1.2, 60.0
RESTART = 10.0
"""Seconds before what has ended is started again, as in the units of `deploy/`."""
HOST, PLACE, INSIDE = "10.213.97.1", "10.213.97.0/24", "10.213.97.%d"


@dataclass
class Crowd:
    """Where the attackers are: before each command of theirs, their addresses, whom they reach."""

    before: list[str]
    addresses: list[str]
    host: str
    words: str


@dataclass
class Kept:
    """A site of which everything is started again that ends."""

    site: Any
    restarts: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def keep(self) -> None:
        """Look, until it is over."""
        starts = import_module("tests.support.site")
        while not self.over.wait(1.0):
            for name, process in list(self.site.processes.items()):
                if process.poll() is None or self.over.wait(RESTART):
                    continue
                self.restarts += 1
                commands = {"gate": starts.GATE, "superlink": starts.SUPERLINK}
                self.site.spawn(name, commands.get(name, starts.DEVICE.format(user=name)))


def run() -> Iterator[Measure]:
    """Each crowd in turn, and a gate that is killed in one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing stays running
    with (
        tempfile.TemporaryDirectory(prefix="crowd") as scratch,
        attackers() as crowd,
        deployed(Path(scratch)) as kept,
    ):
        quiet = np.mean([seconds(kept.site) for _ in range(2)])
        for kind in [*KINDS, "gate killed"]:
            restarts = kept.restarts
            with crowded(kept.site, crowd, kind) as ended:
                found = seconds(kept.site)
            away = back(kept.site)
            words = f"{found:.2f} s a round, {quiet:.2f} without; {ended[0]}; "
            words += f"{kept.restarts - restarts} processes started again; {crowd.words}"
            yield Measure(f"{kind}: a round", float(found / quiet), WORSE, "times", words)
            yield Measure(f"{kind}: until all are back", away, BACK, "s")


@contextmanager
def deployed(scratch: Path) -> Iterator[Kept]:
    """The deployment, running and kept so."""
    if not (APP_FOLDER / "tests" / "support" / "site.py").is_file():
        raise ConfigError("crowd: needs a checkout, with its tests.")
    sys.path.insert(0, str(APP_FOLDER))
    site = import_module("tests.support.site").Site(scratch, USERS)
    site.environment["GATE_HOST"] = "0.0.0.0"
    kept = Kept(site)
    keeper = threading.Thread(target=kept.keep, daemon=True)
    try:
        site.start()
        keeper.start()
        yield kept
    finally:
        kept.over.set()
        site.stop()


@contextmanager
def attackers() -> Iterator[Crowd]:
    """A network namespace for them, if it may be made here."""
    own = [f"127.0.{n}.2" for n in range(1, 101)]
    name, link = f"crowd-{os.getpid()}", f"c{os.getpid()}"
    commands = [
        f"netns add {name}",
        f"link add {link} type veth peer name {link}i netns {name}",
        f"addr add {HOST}/24 dev {link}",
        f"link set {link} up",
        f"-n {name} link set {link}i up",
        *[f"-n {name} addr add {INSIDE % n}/24 dev {link}i" for n in range(2, 102)],
    ]
    try:
        made = bool(shutil.which("ip")) and all(ip(words) for words in commands)
        if not made:
            yield Crowd([], own, "127.0.0.1", "from a hundred addresses of the loopback")
            return
        inside = [INSIDE % n for n in range(2, 102)]
        words = "from a hundred addresses in a network namespace"
        yield Crowd(["ip", "netns", "exec", name], inside, HOST, words)
    finally:
        if shutil.which("ip"):
            ip(f"link del {link}")
            ip(f"netns del {name}")


def ip(words: str) -> bool:
    """Whether `ip` could do what the words say."""
    return not subprocess.run(["ip", *words.split()], capture_output=True, check=False).returncode


@contextmanager
def crowded(site: Any, crowd: Crowd, kind: str) -> Iterator[list[str]]:
    """A crowd of a kind meanwhile; how it fared."""
    ended: list[str] = []
    if kind == "gate killed":
        killer = threading.Timer(15.0, site.processes["gate"].kill)
        killer.start()
        try:
            yield ended
        finally:
            killer.cancel()
            ended.append("the gate was killed")
        return
    words = [crowd.host, str(site.gate), kind, str(COUNT), str(PACE), *crowd.addresses]
    module = "corsage.benchmarks.chaos.crowd"
    command = [*crowd.before, "nice", sys.executable, "-m", module, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
    finally:
        process.terminate()
        ended.append((process.communicate()[0] or "still coming").strip())


def seconds(site: Any) -> float:
    """Seconds a round of a run, in the mean."""
    runs = site.folder / "site/server/state/runs"
    before = {*runs.glob("*")}
    app = "==".join(app_of(APP_FOLDER))
    found = site.ask(f'site/server/flwr.sh run {app} here --stream --run-config "{KEYS}"')
    folder = next(iter({*runs.glob("*")} - before), None)
    if folder is None or read_status(folder).state != "finished":
        raise CorsageError(f"the run failed: {(found.stdout + found.stderr)[-3000:]}")
    lines = (folder / "fedavg/metrics.jsonl").read_text().splitlines()
    ends = [json.loads(line)["seconds"] for line in lines]
    return float(ends[-1] - ends[0]) / (ROUNDS - 1)


def back(site: Any) -> float:
    """Seconds until all devices have called again, as the gate's file for supervisors tells."""
    path, began = site.folder / "site/server/state/gate/status.json", time.time()
    while time.time() < began + 5 * BACK:
        last = json.loads(path.read_text())["last-calls"]
        if all(last.get(user, "") > moment(began) for user in USERS):
            break
        time.sleep(0.5)
    return time.time() - began
