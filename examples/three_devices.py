"""Three devices on this machine: a SuperLink, three SuperNodes with data of their own, one run.

    python examples/three_devices.py [FOLDER]

Everything is on the loopback and without keys: docs/devices.md is for machines of other people.
What this script starts it ends, whatever happens.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
USERS = ("kitchen", "hall", "garden")
KEYS = "strategy='fedrep' num-nodes=3 num-rounds=2 fraction-train=1.0 evaluate-every=2"


def main(folder: Path) -> None:
    """Deal the data, start everything, run, and show what came of it."""
    deal(folder)
    link, *ports = free_ports(1 + len(USERS))
    environment = settings(folder, link)
    with ExitStack() as stack:

        def spawn(name: str, command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(process(folder, name, command, environment))

        spawn("superlink", f"flower-superlink --insecure --host 127.0.0.1 --port {link}")
        wait(lambda: answers(link), folder / "superlink.log")
        for user, port in zip(USERS, ports, strict=True):
            own = f"data='{user}.npz' user='{user}' num-classes=10 state-dir='state-{user}'"
            at = f"--superlink 127.0.0.1:{link} --port {port}"
            spawn(user, f'flower-supernode --insecure {at} --node-config "{own}"')
        run = spawn("run", f'flwr run {ROOT} here --stream --run-config "{KEYS}"')
        wait(lambda: run.poll() is not None, folder / "run.log")
    log = plain((folder / "run.log").read_text(encoding="utf-8"))
    if not (found := re.search(r"Run folder: (\S+)", log)):
        raise SystemExit(f"the run failed; {folder}/run.log says why:\n{log[-2000:]}")
    print((folder / found[1] / "summary.json").read_text(encoding="utf-8")[:400], "...")
    print(f"\nAll of it: {folder / found[1]}")


def deal(folder: Path) -> None:
    """Each device has a file of its own: other digits, and other numbers of them."""
    x, y = load_digits(return_X_y=True)
    for number, user in enumerate(USERS):
        mine = np.flatnonzero(y % len(USERS) == number)[: 200 + 100 * number]
        np.savez(folder / f"{user}.npz", x=x[mine].astype(np.float32) / 16, y=y[mine])


def settings(folder: Path, port: int) -> dict[str, str]:
    """The environment of all processes: Flower's own folder is here, not in the home."""
    home = folder / "flwr"
    home.mkdir()
    here = f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(here, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    no = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    no["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    return {**os.environ, **no, "FLWR_HOME": str(home), "PATH": path}


@contextmanager
def process(
    folder: Path, name: str, command: str, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log; at the end it and all that it started are asked to stop, then made."""
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            shlex.split(command), cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(started.pid, sign)
                started.wait(10)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        started.wait()


def wait(done: Callable[[], bool], log: Path) -> None:
    """Until something is so; five minutes are enough on any machine."""
    until = time.monotonic() + 300
    while not done():
        if time.monotonic() > until:
            raise SystemExit(f"it takes too long; {log} says why")
        time.sleep(0.1)


def plain(text: str) -> str:
    """A log without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def free_ports(number: int) -> list[int]:
    """Ports of the loopback that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def answers(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
