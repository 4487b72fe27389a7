"""A SuperNode's resident worker as a real process: whose it is, when it ends, what that costs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from corsage.app import client_app
from corsage.app.client_app import Desk
from corsage.app.nodes.deployed import RESIDENT
from corsage.app.nodes.resident import door, talk
from corsage.app.nodes.resident.lair import Lair, Owner, code, private_place
from corsage.app.nodes.resident.talk import CLIENT, WORKER, Stranger, meet, take_question
from corsage.benchmarks.device.messages import honest
from corsage.benchmarks.device.target import Target
from tests.support.fleet import commands
from tests.support.killing import HOOK, Point

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="not Linux")


@contextmanager
def supernode() -> Iterator[Owner]:
    """A process that stands for a SuperNode: nothing of it matters but that it lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            found = Owner.of(process.pid)
            assert found is not None
            yield found
        finally:
            process.kill()


@pytest.fixture
def owner() -> Iterator[Owner]:
    with supernode() as found:
        yield found


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A device; no worker of its outlives the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield Target(tmp_path / "device")
    until(lambda: not workers())


def workers() -> set[int]:
    """The workers that this process has started."""
    running = commands().items()
    return {pid for pid, (own, text) in running if own == os.getpid() and RESIDENT in text}


def until(done: Callable[[], object]) -> None:
    """Wait; the test's own time limit says how long."""
    while not done():
        time.sleep(0.05)


def introduced(target: Target, owner: Owner) -> Any:
    """What the worker says of the device's data."""
    message = honest("fedrep", "query").message()
    reply = door.ask("query", message, target.context, owner=owner)
    assert reply is not None and not reply.has_error()
    return reply.content["metrics"]


def lair(owner: Owner) -> Lair:
    return Lair(private_place(), owner, code())


def test_each_supernode_has_one_worker_and_it_ends_with_it(target: Target) -> None:
    """It serves all messages, sees that a file has changed, and is nobody else's."""
    with supernode() as one, supernode() as other:
        before = introduced(target, one)
        (first,) = workers()
        file = target.home / "own.npz"
        found = dict(np.load(file))
        np.savez(file, **{name: array[:50] for name, array in found.items()})
        after = introduced(target, one)
        assert workers() == {first}
        assert sum(before["train"]) > sum(after["train"])
        introduced(target, other)
        (second,) = workers() - {first}
        os.kill(one.pid, signal.SIGKILL)
        until(lambda: first not in workers())
        assert introduced(target, other) == after and workers() == {second}


def test_a_worker_of_other_code_is_not_used(
    target: Target, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that was killed, nor does the old one stay beside the new."""
    introduced(target, owner)
    (old,) = workers()
    monkeypatch.setattr(door, "code", lambda: "of another bundle")
    introduced(target, owner)
    until(lambda: old not in workers())
    (new,) = workers()
    os.kill(new, signal.SIGKILL)
    introduced(target, owner)
    assert workers().isdisjoint({old, new})


def test_killed_in_the_middle_of_a_message_it_costs_nothing(
    tmp_path: Path, target: Target, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client app does the work itself: same reply, same states, as without a worker."""
    flag = tmp_path / "stands-still"
    environment = Point("/state/.*/1.safetensors$").environment(flag)
    monkeypatch.syspath_prepend(HOOK)
    monkeypatch.setenv("STAND_STILL", environment["STAND_STILL"])
    monkeypatch.setattr(client_app, "is_client", lambda: True)
    monkeypatch.setattr(os, "getppid", lambda: owner.pid)
    message = honest("fedrep", "train").message()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(Desk(None, "").answer, "train", message, target.context)
        until(flag.exists)
        assert not states(target)
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
        found = reply.result()
    alone = Target(tmp_path / "alone")
    wanted = alone.ask(honest("fedrep", "train").message())
    assert states(target) == states(alone) and len(states(target)) == 2
    assert found.content["arrays"].object_id == wanted.content["arrays"].object_id
    again = door.ask("train", honest("fedrep", "train").message(), target.context, owner=owner)
    assert again is not None and states(target) == states(alone)
    assert again.content["arrays"].object_id == wanted.content["arrays"].object_id
    assert target.context.state == alone.context.state


def states(target: Target) -> dict[str, bytes]:
    """The states on a device's disk."""
    found = target.state.rglob("*.safetensors")
    return {str(path.relative_to(target.state)): path.read_bytes() for path in found}


def test_who_does_not_know_the_secret_is_not_heard(target: Target, owner: Owner) -> None:
    """Nor are those who say nothing; what lies there is its user's alone."""
    introduced(target, owner)
    place = lair(owner)
    for path, mode in ((place.folder, 0o700), (place.socket, 0o600), (place.note, 0o600)):
        assert path.stat().st_mode & 0o777 == mode
    with pytest.raises((Stranger, EOFError)):
        door.call(place, b"another", 60.0)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(place.socket))
    (before,) = workers()
    introduced(target, owner)
    assert workers() == {before}


def test_who_says_nothing_is_not_waited_for_without_end(target: Target, owner: Owner) -> None:
    """Neither a worker that hangs, nor a client app that does."""
    place, (near, far) = lair(owner), socket.socketpair()
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(place.socket))
        hanging.listen()
        with pytest.raises(BlockingIOError):
            door.call(place, b"secret", 0.1)
    with near, talk.line_of(far, 0.1) as line, pytest.raises(BlockingIOError):
        meet(line, b"secret", WORKER, CLIENT)
    near, far = socket.socketpair()  # a question that is longer than what the system holds of it
    with far, talk.line_of(near, 0.1) as line, pytest.raises(BlockingIOError):
        line.send_bytes(bytes(1 << 24))


def test_one_that_hangs_without_work_is_replaced(
    target: Target, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for as long as a message may take: nobody else speaks to it."""
    introduced(target, owner)
    (old,) = workers()
    os.kill(old, signal.SIGSTOP)
    monkeypatch.setattr(door, "SILENCE", 0.2)
    target.context.node_config["max-seconds"] = 600.0
    introduced(target, owner)
    os.kill(old, signal.SIGCONT)
    until(lambda: old not in workers())
    assert len(workers()) == 1


def test_one_that_is_at_work_is_not_waited_for(target: Target, owner: Owner) -> None:
    """Runs overlap: a long training of one keeps no message of another one waiting."""
    introduced(target, owner)
    with door.turn(lair(owner)):
        assert asked(target, owner) is None
        assert len(workers()) == 1
    reply = asked(target, owner)
    assert reply is not None and not reply.has_error()


def test_a_folder_that_others_reach_is_not_used(target: Target, owner: Owner) -> None:
    private_place().chmod(0o755)
    assert door.ask("query", honest("fedrep", "query").message(), target.context, "", owner) is None
    assert not workers()


def test_without_work_it_ends(target: Target, owner: Owner) -> None:
    """As soon as the node config says; with 0 there is none."""
    target.context.node_config["worker-seconds"] = 0
    assert door.ask("query", honest("fedrep", "query").message(), target.context, "", owner) is None
    target.context.node_config["worker-seconds"] = 0.5
    introduced(target, owner)
    until(lambda: not workers())
    assert not list(private_place().iterdir())
    target.context.node_config["worker-seconds"] = "long"
    reply = target.ask(honest("fedrep", "query").message())
    assert reply.error.reason.startswith("device: ConfigError")


def test_a_worker_is_waited_for_as_long_as_the_device_allows(
    target: Target, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds even where its work does not look at the time."""
    monkeypatch.setattr(door, "GRACE", 0.1)
    target.context.node_config["max-seconds"] = 0.1
    with played(lair(owner), lambda line: line.poll(5.0)):
        reply = asked(target, owner)
    assert reply is not None
    assert reply.error.reason.endswith("more than this device allows (max-seconds=0.1)")


def test_half_a_reply_is_none(target: Target, owner: Owner) -> None:
    """Then the client app does the work itself, from where it was."""
    before = target.context.state
    with played(lair(owner), lambda line: line.send_bytes(b'{"error": null}')):
        assert asked(target, owner) is None
    assert target.context.state is before


def asked(target: Target, owner: Owner) -> Message | None:
    return door.ask("train", honest("fedrep", "train").message(), target.context, "", owner)


@contextmanager
def played(place: Lair, then: Callable[[Connection], object]) -> Iterator[None]:
    """Something in a worker's place that takes a question and then does something else."""
    secret = place.new_secret()

    def serve(listener: socket.socket) -> None:
        with closing(Connection(listener.accept()[0].detach())) as line:
            meet(line, secret, WORKER, CLIENT)
            take_question(line)
            then(line)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.socket))
        listener.listen()
        thread = Thread(target=serve, args=[listener])
        thread.start()
        yield
        thread.join()
