"""Ray on one machine, as processes: whom it listens to, and what a kill leaves of it.

pytest -m slow tests/test_ray_shut.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corsage.app import ray_engine, reaper
from tests.support.fleet import family
from tests.support.killing import kill, rounds_in, running, wait_for
from tests.support.ports import listening, on_loopback

PATIENCE = 10.0
"""Seconds after a kill in which every process is to be gone."""
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STARTER = f"import subprocess, time; subprocess.Popen({SLEEP!r}); time.sleep(600)"


def test_addresses_are_read_as_they_are() -> None:
    """The control of the test below: a socket for everybody, and one for this machine."""
    with socket.socket() as everybody, socket.socket() as here:
        everybody.bind(("0.0.0.0", 0))
        here.bind(("127.0.0.1", 0))
        for one in (everybody, here):
            one.listen()
        found = listening([os.getpid()])
        assert ("0.0.0.0", everybody.getsockname()[1]) in found
        assert ("127.0.0.1", here.getsockname()[1]) in found
    assert [on_loopback(a) for a in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == [True] * 3
    assert not any(map(on_loopback, ("0.0.0.0", "::", "192.0.2.2")))


@pytest.fixture
def main() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a grandchild that does not hear of its death."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run([{sys.executable!r}, '-c', "
         f"{STARTER!r}])"],
    )  # fmt: skip
    try:
        while len(family(process.pid)) < 3:
            time.sleep(0.01)
        yield process
    finally:
        for pid in family(process.pid)[1:]:
            os.kill(pid, 9)
        process.kill()
        process.wait()


@pytest.mark.parametrize("well", [True, False])
def test_what_a_killed_process_started_is_ended(main: subprocess.Popen[bytes], well: bool) -> None:
    """And nothing is, if the process says that all is well."""
    started = family(main.pid)[1:]
    command = [sys.executable, reaper.__file__, str(main.pid)]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watcher.stdout and watcher.stdout.read(1) == b"."
    if not well:
        main.kill()
        main.wait()
    watcher.communicate(b"." if well else b"")
    assert watcher.returncode == 0
    there = reaper.processes()
    assert [pid in there for pid in started] == [well] * len(started)
    if well:
        reaper.end({pid: there[pid][1] for pid in started})


def test_it_is_not_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the user's own is kept."""
    for name in (ray_engine.LOOPBACK, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "mine")
    ray_engine.shut()
    assert os.environ["RAY_AUTH_MODE"] == os.environ["RAY_AUTH_TOKEN"] == "mine"
    monkeypatch.delenv("RAY_AUTH_MODE")
    ray_engine.shut()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64 and os.environ["RAY_AUTH_MODE"] == "token"


def test_nobody_is_told_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray and Flower report runs to their makers by default; who wants that says so."""
    from flwr.supercore import telemetry

    monkeypatch.setattr(telemetry, "FLWR_TELEMETRY_ENABLED", "1")
    for name in ("RAY_USAGE_STATS_ENABLED", "FLWR_TELEMETRY_ENABLED"):
        monkeypatch.setenv(name, "1")
    ray_engine.quiet()
    assert telemetry.FLWR_TELEMETRY_ENABLED == os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    for name in ("RAY_USAGE_STATS_ENABLED", "FLWR_TELEMETRY_ENABLED"):
        monkeypatch.delenv(name)
    ray_engine.quiet()
    assert telemetry.FLWR_TELEMETRY_ENABLED == os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ.pop("FLWR_TELEMETRY_ENABLED") == "0"
    del os.environ["RAY_USAGE_STATS_ENABLED"]


@pytest.mark.slow
def test_ray_listens_to_this_machine_only_and_leaves_nothing(tmp_path: Path) -> None:
    """Of every process of the run; and ten seconds after a kill there is none."""
    words = ["engine=ray", "num-nodes=2", "num-users=8", "strategy=fedavg", "num-rounds=500"]
    with running(tmp_path, words, {}) as process:
        wait_for(lambda: rounds_in(tmp_path) > 0, process, tmp_path)
        started = family(process.pid)
        found = listening(started)
        assert len(found) >= 4, "Ray's processes were not found"
        assert [place for place in found if not on_loopback(place[0])] == []
        assert "RAY_AUTH_MODE=token" in Path(f"/proc/{started[1]}/environ").read_text()
        births = {pid: birth for pid, (_, birth) in reaper.processes().items() if pid in started}
        kill(process)
    until = time.monotonic() + PATIENCE
    while reaper.alive(births, reaper.processes()) and time.monotonic() < until:
        time.sleep(0.1)
    assert reaper.alive(births, reaper.processes()) == {}
