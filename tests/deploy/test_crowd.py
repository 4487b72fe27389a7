"""A crowd at the gate: real connections of who has no key, while a device makes its calls."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import h11
import httpx
import pytest

from corsage.app.deployment import calls, crowd, keys
from corsage.app.deployment.crowd import Crowd, Door, Room
from corsage.app.deployment.gate import addresses_in, config, listening, status
from corsage.benchmarks.chaos.crowd import KINDS, attack
from tests.support.recipe import deploy, signed

ROOM = Room(each=40, strangers=16, device=3)


async def nothing() -> AsyncIterator[bytes]:
    """An answer's body, as it comes."""
    yield b""


class Gate:
    """A gate on the loopback, before a SuperLink that answers everything."""

    def __init__(self, folder: Path) -> None:
        assert deploy(folder) == 0
        self.server, devices = folder / "site" / "server", folder / "site" / "devices"
        self.keys = [devices / f"shop-{n}" / "device.key" for n in range(2)]
        self.read = 0

        async def superlink(request: httpx.Request) -> httpx.Response:
            self.read += len(await request.aread())
            return httpx.Response(200, content=nothing())

        self.crowd = Crowd(ROOM)
        self.app = calls.gate(
            "127.0.0.1:1", self.server, 1 << 20, self.crowd, httpx.MockTransport(superlink)
        )
        listener = listening("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.door = Door(config(self.app, self.server), self.crowd)
        self.thread = threading.Thread(target=self.door.run, args=([listener],))
        self.thread.start()
        self.trust = ssl.create_default_context(cafile=str(self.server / "ca.crt"))

    def call(self, key: int = 0, content: bytes = b"", client: httpx.Client | None = None) -> int:
        """A call of a device's, on a connection of its own if it has none."""
        url = f"https://127.0.0.1:{self.port}/v1/fleet/push-object"
        ask = client.post if client else self.client().post
        return ask(url, content=content, headers=signed(self.keys[key])).status_code

    def client(self) -> httpx.Client:
        return httpx.Client(verify=self.trust, trust_env=False, timeout=5)

    def speak(self, said: bytes, address: str = "127.0.0.1") -> ssl.SSLSocket:
        """A connection on which something was said."""
        plain = socket.create_connection(("127.0.0.1", self.port), 5, (address, 0))
        own = self.trust.wrap_socket(plain, server_hostname="127.0.0.1")
        own.sendall(said)
        return own


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(crowd, "PATIENCE", 1.0)
    monkeypatch.setattr(crowd, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(calls, "BODY_SECONDS", 0.5)
    made = Gate(tmp_path)
    yield made
    made.door.should_exit = made.door.force_exit = True
    made.thread.join(10)
    assert not made.thread.is_alive()


def ended(connection: socket.socket, within: float = 5.0) -> bool:
    """True if the other side ends a connection in time."""
    connection.settimeout(within)
    try:
        while connection.recv(1000):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def test_no_crowd_shuts_the_gate(gate: Gate) -> None:
    """Of any kind: a device is heard at once, those who hold connections lose them, and nothing
    of what they send is read."""
    assert gate.call() == 200
    addresses = [f"127.0.0.{n}" for n in range(2, 42)]
    for kind in KINDS:
        attacking = threading.Thread(
            target=lambda kind=kind: asyncio.run(
                attack("127.0.0.1", gate.port, kind, 120, 1e3, addresses)
            )
        )
        attacking.start()
        slowest, calls = 0.0, 0
        while attacking.is_alive() or not calls:
            began = time.monotonic()
            assert gate.call() == 200
            slowest, calls = max(slowest, time.monotonic() - began), calls + 1
            strangers = [len(v) for a, v in list(gate.crowd.newcomers.items()) if a[-2:] != ".1"]
            assert sum(strangers) <= ROOM.strangers
            time.sleep(0.1)
        attacking.join()
        assert slowest < 5, kind
    assert gate.read == 0
    assert status(gate.crowd, gate.app.state.gate.callers)["line"].startswith("1 of 30 devices")


def test_a_connection_has_seconds_until_a_device_has_signed(gate: Gate) -> None:
    """For its handshake, its first headers, and those of each later call."""
    mute = socket.create_connection(("127.0.0.1", gate.port))
    half = gate.speak(b"POST /v1/fleet/get-run HTTP/1.1\r\n")
    assert ended(mute) and ended(half)
    with gate.client() as client:
        assert gate.call(client=client) == 200
        time.sleep(1.2)
        assert [len(own) for own in gate.crowd.devices.values()] == [1]  # it may wait
        head = "".join(f"{k}: {v}\r\n" for k, v in signed(gate.keys[0]).items())
        call = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: a\r\n{head}".encode()
        done = gate.speak(call + b"Content-Length: 0\r\n\r\n")
        assert done.recv(1000).startswith(b"HTTP/1.1 200")
        done.sendall(b"POST")
        assert ended(done)
        slow = gate.speak(call + b"Content-Length: 9\r\n\r\nhalf")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408") and ended(slow)
        assert gate.call(client=client) == 200


def test_a_device_has_its_own_share(gate: Gate) -> None:
    """Of connections, and of what is being sent; another one is heard meanwhile."""
    head = "".join(f"{k}: {v}\r\n" for k, v in signed(gate.keys[0]).items())
    call = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: a\r\n{head}Content-Length: %d\r\n\r\n"
    held = [gate.speak((call % (1 << 19)).encode()) for _ in range(2)]
    time.sleep(0.2)
    assert gate.call(0, b"more") == 503
    assert gate.call(1, b"more") == 200 and gate.read == 4
    held += [gate.speak((call % 0).encode()) for _ in range(3)]
    time.sleep(0.2)
    assert len(gate.crowd.devices["shop-0"]) <= ROOM.device
    assert ended(held[0])


def test_one_address_does_not_take_the_place_of_others() -> None:
    """Neither by many at once nor, where a device has been, together with others."""
    now = [0.0]
    made = Crowd(Room(each=3, strangers=4, device=2), clock=lambda: now[0])

    def come(address: str, port: int) -> bool:
        return made.come(socket.socket(), (address, port)) is not None

    assert [come("192.0.2.1", port) for port in range(5)] == [True] * 3 + [False] * 2
    assert come("192.0.2.2", 9) and not come("192.0.2.3", 9)  # all strangers have had their share
    made.befriend("192.0.2.1")  # a device was there: its own share alone counts
    now[0] = 3.0
    assert [come("192.0.2.1", port) for port in range(5, 8)] == [True] * 3
    assert len(made.newcomers["192.0.2.1"]) == 3 and made.ended == 3  # the oldest have gone
    made.known(("192.0.2.2", 9), "shop-0")
    assert come("192.0.2.2", 10) and not come("192.0.2.4", 1)
    now[0] = 20.0
    made.sweep()
    assert not made.newcomers and len(made.devices["shop-0"]) == 1
    assert [come(f"2001:db8::{n}", 1) for n in range(4)] == [True] * 3 + [False]


def test_thousands_of_headers_are_not_parsed(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at once nor behind a call of a device's; what is behind the head is no header."""
    head = "".join(f"{k}: {v}\r\n" for k, v in signed(gate.keys[0]).items())
    call = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: a\r\n{head}".encode()
    parsed: list[int] = []
    read = h11.Connection.next_event

    def counted(self: h11.Connection) -> object:
        parsed.append(len(self.trailing_data[0]))
        return read(self)

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    lines, none = b"a:\r\n" * 5000, b"Content-Length: 0\r\n\r\n"
    for said in (call + lines, call + lines + b"\r\n", call + b"a: " + b"b" * (1 << 14)):
        with gate.speak(said) as refused:
            assert refused.recv(1000).startswith(b"HTTP/1.1 400") and ended(refused)
    assert not parsed
    with gate.speak(call + none + call + lines + none) as second:
        assert second.recv(1000).startswith(b"HTTP/1.1 200")
        assert ended(second)
    body = b"\n" * 20000
    with gate.speak(call + b"Content-Length: 20000\r\n\r\n" + body) as done:
        assert done.recv(1000).startswith(b"HTTP/1.1 200") and gate.read == len(body)


def test_one_who_comes_again_from_the_same_port_is_counted_once() -> None:
    """After a reset a port is free at once, before anybody has heard of the connection's end."""
    made = Crowd(Room(each=3, strangers=4, device=2))
    for _ in range(2):
        assert made.come(socket.socket(), ("192.0.2.1", 7))
    assert len(made.newcomers["192.0.2.1"]) == 1
    made.known(("192.0.2.1", 7), "shop-0")
    assert not made.newcomers and made.ended == 1


def test_nobody_says_from_where_he_comes(gate: Gate) -> None:
    """A header that proxies write is no address: a device that has one is known all the same."""
    with gate.client() as client:
        client.headers["x-forwarded-for"] = "192.0.2.9"
        assert gate.call(client=client) == 200
        assert list(gate.crowd.devices) == ["shop-0"]


def test_a_gate_that_starts_again_knows_where_devices_were(gate: Gate, tmp_path: Path) -> None:
    assert gate.call() == 200
    right = json.dumps(status(gate.crowd, gate.app.state.gate.callers))
    for said in (right, "", "[]", '{"addresses": 1}'):
        (tmp_path / "status.json").write_text(said)
        assert addresses_in(str(tmp_path / "status.json")) == ["127.0.0.1"] * (said is right)


def test_another_certificate_is_shown_without_a_new_start(gate: Gate) -> None:
    """From the next connection on; a half pair, or one that is damaged, changes nothing."""

    def serial() -> object:
        own = gate.speak(b"")
        found = own.getpeercert()
        own.close()
        assert found
        return found["serialNumber"]

    first = serial()
    with gate.client() as client:
        assert gate.call(client=client) == 200
        key = (gate.server / "server.key").read_text()
        for half in ("damaged", ""):
            (gate.server / "server.key").write_text(half)
            time.sleep(0.2)
            assert serial() == first
        (gate.server / "server.key").write_text(key)
        secret = gate.server.parent / "secret"
        keys.server_certificate(gate.server, secret, ["localhost", "127.0.0.1"])
        until = time.monotonic() + 5
        while serial() == first and time.monotonic() < until:
            time.sleep(0.05)
        assert serial() != first
        assert gate.call(client=client) == gate.call() == 200
