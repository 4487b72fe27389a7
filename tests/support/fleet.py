"""A SuperLink and three SuperNodes on the loopback, started by the commands of docs/devices.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.killing import Point, hooked

ROOT = Path(__file__).parents[2]
PORTS = (8000, 9094, 9095, 9096)  # SuperLink and SuperNodes, as in docs/devices.md
USERS = ("0", "1", "2")

EXPORT = "python -m corsage.app.device_files devices num-users=3"
RUN = 'flwr run . here --stream --run-config "{keys}"'
FEDREP = "strategy='fedrep' num-nodes=3 num-rounds=3 fraction-train=1.0"
FEDAVG = FEDREP.replace("fedrep", "fedavg")
RESUME = "resume='runs/{name}'"
CONFIG = """\
[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


def superlink(port: int = PORTS[0]) -> str:
    """The command of the SuperLink."""
    return f"flower-superlink --insecure --host 127.0.0.1 --port {port}"


def supernode(
    user: str, ports: tuple[int, ...] = PORTS, words: str = "num-classes=10 cluster='a'"
) -> str:
    """The command of a user's SuperNode."""
    own = f"user='{user}' data='devices/{user}.npz' {words}"
    return (
        f"flower-supernode --insecure --superlink 127.0.0.1:{ports[0]} "
        f"--port {ports[1 + USERS.index(user)]} "
        f"--node-config \"{own} state-dir='devices/state-{user}'\""
    )


class Fleet:
    """The processes of a federation in one folder, where their data, states and runs lie.

    Parameters
    ----------
    folder : where all of that is.
    words : what each user's node config says of its data, if not what that page has.
    points : where processes stand still, by the name of the process that starts them.
    hasty : users whose SuperNodes are missed as soon as Flower lets them be, 20 s after their last
        sign of life and not 60; no process sleeps for longer than a second before it looks again.
    """

    def __init__(
        self,
        folder: Path,
        words: Mapping[str, str] | None = None,
        points: Mapping[str, Point] | None = None,
        hasty: Sequence[str] = (),
    ) -> None:
        self.folder, self.ports, self.words = folder, free_ports(len(PORTS)), words
        self.points, self.hasty = points or {}, hasty
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(CONFIG.format(port=self.ports[0]))
        haste = {"SLEEP_AT_MOST": "1", "PYTHONPATH": hooked()} if hasty else {}
        self.environment = (
            os.environ
            | haste
            | {
                "FLWR_HOME": str(home),
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
                "FLWR_DISABLE_UPDATE_CHECK": "1",
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            }
        )

    def start(self, keys: str) -> None:
        """Deal the data, start all processes, and wait until the SuperNodes are connected."""
        command = f"{EXPORT} {keys}".replace(" devices ", f" {self.folder / 'devices'} ")
        subprocess.run(shlex.split(command), cwd=ROOT, env=self.environment, check=True)
        self.spawn("superlink", superlink(self.ports[0]))
        self.until(lambda: answers(self.ports[0]), "superlink")
        for user in USERS:
            self.start_node(user)
        for user in USERS:
            self.until(lambda user=user: "SuperNode ID" in self.log(user), user)

    def start_node(self, user: str) -> None:
        """Start a user's SuperNode."""
        words = (self.words[user],) if self.words else ()
        self.spawn(user, supernode(user, self.ports, *words))

    def spawn(self, name: str, command: str) -> None:
        """Start a process in a session of its own; its output is appended to its log."""
        point = self.points.get(name)
        own = point.environment(self.flag(name)) if point else {}
        own |= {"HEARTBEAT_INTERVAL": "10"} if name in self.hasty else {}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env={**self.environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, keys: str) -> str:
        """Start `flwr run` in the background; returns the name of its log."""
        name = f"run{sum(name.startswith('run') for name in self.processes)}"
        self.spawn(name, RUN.format(keys=keys).replace(" . ", f" {shlex.quote(str(ROOT))} "))
        return name

    def finish(self, name: str) -> Path:
        """Wait for the end of a run; returns its run folder."""
        self.until(lambda: self.processes[name].poll() is not None)
        found = re.findall(r"Run folder: (\S+)", self.log(name))
        assert found, f"{name} failed:\n{self.log(name)}"
        return self.folder / found[-1]

    def until(self, done: Callable[[], bool], *needed: str) -> None:
        """Wait until something is so, as long as the SuperLink and what is needed are there.

        How long is the test's own time limit, which no machine reaches: on a busy one all takes
        longer.
        """
        while not done():
            for name in ("superlink", *needed):
                ended = self.processes[name].poll() is not None
                assert not ended or done(), f"{name} has ended:\n{self.log(name)[-4000:]}"
            time.sleep(0.05)

    def stands_still(self, name: str, *needed: str) -> None:
        """Wait until a process that this one has started stands still."""
        self.until(self.flag(name).exists, name, *needed)

    def go_on(self, name: str) -> None:
        """Let it."""
        self.flag(name).write_text("go on")

    def flag(self, name: str) -> Path:
        """What tells that it does."""
        return self.folder / f"{name}-stands-still"

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, at once, as a loss of power would."""
        process = self.processes[name]
        children = family(process.pid)[1:]  # some have left the group
        with contextlib.suppress(ProcessLookupError):  # the group outlives its leader
            os.killpg(process.pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)

    def kill_server_app(self) -> None:
        """Kill the process in which the strategy runs; the SuperLink stays."""
        # By its environment: it may have outlived the process that started it.
        home = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        found = [
            pid
            for pid, (_, command) in commands().items()
            if "flwr-serverapp" in command and home in environment_of(pid)
        ]
        assert found, f"no flwr-serverapp is running:\n{self.log('superlink')[-2000:]}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill everything that is still there."""
        for name, process in self.processes.items():
            if process.poll() is None or name in ("superlink", *USERS):
                self.kill(name)

    def log(self, name: str) -> str:
        """What a process has said so far, without its colours."""
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return re.sub(r"\x1b\[[0-9;]*m", "", text)

    def newest(self) -> Path | None:
        """The run folder that was made last."""
        folders = sorted((self.folder / "runs").glob("*"), key=lambda path: path.stat().st_mtime_ns)
        return folders[-1] if folders else None

    def states(self, user: str, experiment: str) -> dict[int, bytes]:
        """The versions of a user's state on its device's disk."""
        folder = self.folder / "devices" / f"state-{user}" / experiment / user
        return {int(path.stem): path.read_bytes() for path in folder.glob("[0-9]*.safetensors")}


def rows(folder: Path, strategy: str) -> list[dict[str, Any]]:
    """The rounds that a run has finished so far."""
    path = folder / strategy / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def commands() -> dict[int, tuple[int, str]]:
    """Parent and command of every process on this machine."""
    text = subprocess.run(
        ["ps", "-axwwo", "pid=,ppid=,args="], check=True, capture_output=True, text=True
    ).stdout
    fields = [line.split(None, 2) for line in text.splitlines()]
    return {int(f[0]): (int(f[1]), f[2]) for f in fields if len(f) == 3}


def environment_of(pid: int) -> bytes:
    """A process' environment; empty if it has just ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def family(pid: int) -> list[int]:
    """A process and all that it started, parents first."""
    running, found = commands(), [pid]
    for parent in found:
        found += [child for child, (owner, _) in running.items() if owner == parent]
    return found


def free_ports(number: int) -> tuple[int, ...]:
    """Ports of the loopback that nobody uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in sockets)


def answers(port: int) -> bool:
    """Whether something listens on a port of the loopback."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
