"""The shipped deployment as real processes on the loopback, started by its own scripts."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.fleet import ROOT, answers, family, free_ports

USERS = ("0", "1")

# The commands of docs/devices.md, in the folder where `site` is.
EXPORT = "corsage deal data num-users=2"
DEPLOY = "corsage deploy devices.csv site --server localhost"
SUPERLINK = "site/server/superlink.sh"
GATE = "site/server/gate.sh"
REGISTER = "site/server/corsage.sh register site/server"
DEVICE = "site/devices/{user}/device.sh"
KEYS = "strategy='fedavg' num-nodes=2 num-rounds=1 fraction-train=1.0 registered-keys=true"
START = "site/server/flwr.sh run @corsage/corsage==0.1.0 here"
RUN = START + ' --stream --run-config "{keys}"'
WAIT = "site/server/corsage.sh wait site/server/state/runs/{name}"
PIPED = START + " --format json | site/server/corsage.sh wait - here"


class Site:
    """A server and its devices, in the folders that `corsage deploy` makes.

    Parameters
    ----------
    folder : where all of that is.
    users : who has a device.
    """

    def __init__(self, folder: Path, users: tuple[str, ...] = USERS) -> None:
        self.folder, self.users = folder, users
        ports = free_ports(3 + len(users))
        self.superlink, self.shelf, self.gate, *self.devices = ports
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([commands(folder), os.environ["PATH"]]),
            "SUPERLINK_PORT": str(self.superlink),
            "SHELF_PORT": str(self.shelf),
            "GATE_PORT": str(self.gate),
            "GATE_HOST": "127.0.0.1",
            "NO_COLOR": "1",
        }
        for name in ("STATE_DIRECTORY", "FLWR_HOME"):
            self.environment.pop(name, None)

    def make(self, users: tuple[str, ...] = ()) -> None:
        """`corsage deploy`, of a table with these users, or with all."""
        lines = ["name,data,num-classes,cluster,port"]
        for user in users or self.users:
            data = self.folder / "data" / f"{user}.npz"
            lines.append(f"{user},{data},10,a,{self.devices[self.users.index(user)]}")
        table = self.folder / "devices.csv"
        table.write_text("\n".join(lines) + "\n")
        self.ask(f"{DEPLOY} --port {self.gate}")

    def start(self) -> None:
        """The server, the gate, the list of devices, and the devices."""
        self.ask(EXPORT.replace("num-users=2", f"num-users={len(self.users)}"))
        self.make()
        self.spawn("superlink", SUPERLINK)
        self.spawn("gate", GATE)
        for port in (self.superlink, self.shelf, self.gate):
            self.until(lambda port=port: answers(port), "superlink", "gate")
        self.ask(REGISTER)
        for user in self.users:
            self.spawn(user, DEVICE.format(user=user))
        for user in self.users:
            self.until(lambda user=user: "SuperNode ID" in self.log(user), user)

    def spawn(self, name: str, command: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a process in a session of its own; its output is its log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask(self, command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A command of the operator's, which ends by itself."""
        done = self.call(["sh", "-c", command], self.environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def call(
        self, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def until(self, done: Callable[[], bool], *needed: str) -> None:
        """Wait until something is so, as long as what is needed is there."""
        while not done():
            for name in needed:
                ended = self.processes[name].poll() is not None
                assert not ended or done(), f"{name} has ended:\n{self.log(name)[-4000:]}"
            time.sleep(0.05)

    def stop(self) -> None:
        """End every process and what it started."""
        for process in self.processes.values():
            for pid in family(process.pid)[::-1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(10)

    def log(self, name: str) -> str:
        """What a process has said so far, without its colours."""
        text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return re.sub(r"\x1b\[[0-9;]*m", "", text)


def commands(folder: Path) -> str:
    """Where `corsage` and Flower's commands are: as installed, but those of this checkout."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    script = bin_folder / "corsage"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/run_simulation.py "$@"\n')
    script.chmod(0o755)
    return os.pathsep.join([str(bin_folder), str(Path(sys.executable).parent)])
