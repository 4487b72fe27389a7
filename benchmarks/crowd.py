"""Rounds of a deployment at whose gate a crowd stands, beside those without one.

The shipped deployment runs on the loopback, and what ends is started again after ten seconds, as
systemd does it. In one long run, rounds without a crowd take turns with rounds in which one
(`chaos.crowd`) opens its connections: where this process may make a network namespace from a
hundred addresses in there, else from those of the loopback. After each, and after the gate is
killed, all devices must be back by themselves. It needs a checkout, with its tests.
"""

from __future__ import annotations

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

from corsage.app.deployment.gate import moment
from corsage.app.deployment.shelf import app_of
from corsage.app.deployment.site import APP_FOLDER
from corsage.benchmarks.chaos.crowd import KINDS
from corsage.benchmarks.device_round import own
from corsage.benchmarks.measure import Measure
from corsage.core.errors import ConfigError

USERS, ROUNDS = ("0", "1", "2"), 3
KEYS = (
    "strategy='fedavg' num-nodes=3 num-rounds=1000 fraction-train=1.0 min-users=3 evaluate-every=1 "
    "registered-keys=true fine-tune-epochs=0 node-timeout=120.0"
)
COUNT, KILLED = 10_000, "gate killed"
"""Connections of each kind, as fast as it takes for them to come within the rounds."""
WORSE, BACK = 1.2, 60.0
RESTART = 10.0
"""Seconds before what has ended is started again, as in the units of `deploy/`."""
HOST, INSIDE = "10.213.97.1", "10.213.97.%d"
RUN = 'site/server/flwr.sh run {app} here --stream --run-config "{keys}"'


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
                if name == "run" or process.poll() is None or self.over.wait(RESTART):
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
        site = kept.site
        site.spawn("run", RUN.format(app="==".join(app_of(APP_FOLDER)), keys=KEYS))
        before = seconds(site)
        for kind in [*KINDS, KILLED]:
            restarts, gate = kept.restarts, site.processes["gate"].pid
            spent = own(gate)
            with crowded(site, crowd, kind, COUNT / ((ROUNDS + 1) * before)) as ended:
                found = seconds(site)
            spent = 1e3 * (own(gate) - spent) / COUNT
            away, after = back(site), seconds(site)
            quiet, before = (before + after) / 2, after
            words = f"{found:.2f} s a round, {quiet:.2f} before and after; {ended[0]}; "
            words += f"{spent:.2f} CPU ms of the gate a connection; " * (kind != KILLED)
            words += f"{kept.restarts - restarts} processes started again; {crowd.words}"
            if kind != KILLED:
                yield Measure(f"{kind}: a round", found / quiet, WORSE, "times", words)
            yield Measure(f"{kind}: until all are back", away, BACK, "s", words)


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
def crowded(site: Any, crowd: Crowd, kind: str, pace: float) -> Iterator[list[str]]:
    """A crowd of a kind meanwhile; how it fared."""
    ended: list[str] = []
    if kind == KILLED:
        site.processes["gate"].kill()
        yield ended
        ended.append("kill -9")
        return
    words = [crowd.host, str(site.gate), kind, str(COUNT), str(pace), *crowd.addresses]
    module = "corsage.benchmarks.chaos.crowd"
    command = [*crowd.before, "nice", sys.executable, "-m", module, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield ended
        ended.append(process.communicate(timeout=300)[0].strip())
        if ended[0].endswith(f": {COUNT} let be"):
            line = f"crowd: no connection to {crowd.host}, {crowd.words}, has met the gate. "
            raise ConfigError(line + "Look at `ip link`: of a killed crowd a link c... stays.")
    except subprocess.TimeoutExpired:  # it has cost what it could; the others still come
        ended.append(f"{kind}: not all of {COUNT} connections in 300 s more")
    finally:
        process.kill()


def seconds(site: Any) -> float:
    """Seconds a round, in the mean, of the next rounds that begin after now."""
    first = len(rounds(site)) + 1
    site.until(lambda: len(rounds(site)) > first + ROUNDS, "run")
    ends = rounds(site)
    return (ends[first + ROUNDS] - ends[first]) / ROUNDS


def rounds(site: Any) -> list[float]:
    """When each round of the run has ended."""
    lines = [
        line
        for path in site.folder.glob("site/server/state/runs/*/fedavg/metrics.jsonl")
        for line in path.read_text().split("\n")[:-1]
    ]
    return [float(json.loads(line)["seconds"]) for line in lines]


def back(site: Any) -> float:
    """Seconds until all devices have called again, as the gate's file for supervisors tells."""
    path, began = site.folder / "site/server/state/gate/status.json", time.time()
    while time.time() < began + 5 * BACK:
        last = json.loads(path.read_text())["last-calls"]
        if all(last.get(user, "") > moment(began) for user in USERS):
            break
        time.sleep(0.5)
    return time.time() - began
