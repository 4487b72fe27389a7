"""The gate before the SuperLink, and the shelf of its apps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from starlette.applications import Starlette

from corsage.app.deployment import callers, holding
from corsage.app.deployment.callers import is_own, node_of
from corsage.app.deployment.calls import CALLS, FLEET, gate
from corsage.app.deployment.keys import device_key
from corsage.app.deployment.shelf import shelf
from tests.support.recipe import deploy, signed


def ask(app: Starlette, method: str, path: str, **words: Any) -> httpx.Response:
    """An application's answer; the gate's to a device that is let in."""
    key = getattr(app.state, "key", None)
    own = httpx.Headers(words.pop("headers", None))
    words["headers"] = [*(signed(key) if key else {}).items(), *own.raw]

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            return await client.request(method, path, **words)

    return asyncio.run(asked())


async def streamed() -> AsyncIterator[bytes]:
    """An answer that comes in two pieces."""
    yield b"ans"
    yield b"wer"


@pytest.fixture
def passed() -> list[httpx.Request]:
    return []


@pytest.fixture
def door(tmp_path: Path, passed: list[httpx.Request]) -> Starlette:
    """The gate before a SuperLink that answers everything."""

    async def superlink(request: httpx.Request) -> httpx.Response:
        await request.aread()
        passed.append(request)
        return httpx.Response(201, headers={"x-own": "1"}, content=streamed())

    return made(tmp_path, superlink)


def made(tmp_path: Path, superlink: Any) -> Starlette:
    """The gate of a site before such a SuperLink, and the key of one of its devices."""
    assert deploy(tmp_path) == 0
    site = tmp_path / "site"
    app = gate("127.0.0.1:1", site / "server", 1000, via=httpx.MockTransport(superlink))
    app.state.key = site / "devices" / "shop-0" / "device.key"
    return app


def test_the_gate_passes_on_what_devices_say(door: Starlette, passed: list[httpx.Request]) -> None:
    for call in sorted(CALLS - {"push-messages"}):
        answer = ask(door, "POST", FLEET + call, content=b"body", headers={"flwr-x": "s"})
        assert (answer.status_code, answer.content) == (201, b"answer")
        assert answer.headers["x-own"] == "1"
        assert passed[-1].url == f"https://127.0.0.1:1{FLEET}{call}"
        assert passed[-1].content == b"body" and passed[-1].headers["flwr-x"] == "s"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", f"{FLEET}register-node"),
        ("POST", f"{FLEET}unregister-node"),
        ("POST", f"{FLEET}get-fab/"),
        ("POST", f"{FLEET}get-fab?x=1"),
        ("POST", f"{FLEET}%2e%2e/control/start-run"),
        ("POST", f"{FLEET}get-fab%0a"),
        ("GET", f"{FLEET}get-fab"),
        ("GET", "/docs"),
    ],
)
def test_the_gate_passes_on_nothing_else(
    door: Starlette, passed: list[httpx.Request], method: str, path: str
) -> None:
    assert ask(door, method, path).status_code == 404
    assert not passed


def pushed(node: int, *sources: int) -> bytes:
    """A device's call with replies of these nodes."""
    replies = [MessageProto(metadata=Metadata(src_node_id=source)) for source in sources]
    call = PushMessagesRequest(node=Node(node_id=node), messages_list=replies)
    return call.SerializeToString()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (pushed(7, 7), 201),
        (pushed(7, 8), 403),
        (pushed(7, 7, 8), 403),
        (pushed(0, 8), 403),
        (b"no message", 403),
    ],
)
def test_nobody_replies_in_anothers_name(
    door: Starlette, passed: list[httpx.Request], content: bytes, code: int
) -> None:
    answer = ask(door, "POST", f"{FLEET}push-messages", content=content)
    assert answer.status_code == code
    assert [request.content for request in passed] == ([content] if code == 201 else [])


class Link:
    """A SuperLink that has a message for a device when it is asked often enough."""

    def __init__(self, looks: int) -> None:
        self.looks, self.asked = looks, 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        if request.url.path.endswith("push-messages"):
            return httpx.Response(200, content=whole(PushMessagesResponse()))
        self.asked += 1
        found = [MessageProto(metadata=Metadata(run_id=1))] * (self.asked >= self.looks)
        return httpx.Response(200, content=whole(PullMessagesResponse(messages_list=found)))


async def whole(message: Any) -> AsyncIterator[bytes]:
    """An answer's bytes as they come."""
    yield message.SerializeToString()


@pytest.mark.parametrize(("hold", "asked", "found"), [(20.0, 3, 1), (0.0, 1, 0)])
def test_a_device_in_a_run_is_answered_when_there_is_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: float, asked: int, found: int
) -> None:
    """Its call is kept until then, or until its time is up; others pass at once."""
    monkeypatch.setattr(holding, "HOLD", hold)
    monkeypatch.setattr(holding, "HOLD_PAUSE", 0.0)
    link = Link(4)
    app = made(tmp_path, link)
    call = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()
    for path in ("pull-messages", "push-messages"):
        content = pushed(7, 7) if path == "push-messages" else call
        assert ask(app, "POST", FLEET + path, content=content).status_code == 200
    assert link.asked == 1
    answer = ask(app, "POST", f"{FLEET}pull-messages", content=call)
    assert link.asked == 1 + asked
    assert len(PullMessagesResponse.FromString(answer.content).messages_list) == found
    other = PullMessagesRequest(node=Node(node_id=8)).SerializeToString()
    ask(app, "POST", f"{FLEET}pull-messages", content=other)
    assert link.asked == 2 + asked


def test_the_gate_passes_on_no_other_headers(door: Starlette, passed: list[httpx.Request]) -> None:
    """Nor does it stumble over letters that no header has, or over thousands of headers."""
    odd = [(b"x-odd", "ä".encode()), (b"content-encoding", b"gzip"), (b"flwr-x", b"t")]
    assert ask(door, "POST", f"{FLEET}get-run", content=b"body", headers=odd).status_code == 201
    assert passed[0].headers["flwr-x"] == "t"
    assert not {"x-odd", "content-encoding"} & passed[0].headers.keys()
    many = [(b"flwr-%d" % number, b"") for number in range(200)]
    assert ask(door, "POST", f"{FLEET}get-run", headers=many).status_code == 413
    both = {"content-length": "4", "transfer-encoding": "chunked"}
    assert ask(door, "POST", f"{FLEET}get-run", content=b"body", headers=both).status_code == 413
    assert len(passed) == 1


def test_who_is_not_let_in_is_not_listened_to(
    door: Starlette, passed: list[httpx.Request], tmp_path: Path
) -> None:
    """Whatever is wrong with the signature, and from the moment on when a device is shut out."""
    key, own = door.state.key, tmp_path / "own"
    device_key(own)
    door.state.key = None
    right = signed(key)
    stolen = {**signed(own), "flwr-public-key": right["flwr-public-key"]}
    wrong = [{}, signed(own), stolen, signed(key, 306), signed(key, -6), {"flwr-signature": "s"}]
    wrong += [{**right, "flwr-timestamp": moment} for moment in ("", "2026-01-01", "9" * 40)]

    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("read")
        yield b""

    for headers in wrong:
        words = {"headers": {**headers, "content-length": "4"}, "content": unread()}
        answer = ask(door, "POST", f"{FLEET}push-object", **words)
        assert (answer.status_code, answer.headers["connection"]) == (401, "close")
    assert ask(door, "POST", f"{FLEET}get-run", headers=right).status_code == 201
    (tmp_path / "site" / "server" / "keys" / "let-in.txt").write_text("shop-1\n")
    door.state.gate.callers.look()
    assert ask(door, "POST", f"{FLEET}get-run", headers=signed(key)).status_code == 401
    assert len(passed) == 1


def test_a_key_that_goes_while_they_are_read_ends_nothing(
    door: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when `corsage deploy` writes: the keys that were known count until the next look."""
    assert ask(door, "POST", f"{FLEET}get-run").status_code == 201
    monkeypatch.setattr(callers, "KEYS_SECONDS", 0.0)
    monkeypatch.setattr(callers, "stamp_of", lambda folder: (folder / "gone").stat())
    assert ask(door, "POST", f"{FLEET}get-run").status_code == 201


def test_what_is_nested_is_not_parsed() -> None:
    """Half a million empty messages cost the gate nothing; what it reads is what Flower reads."""
    replies = b"".join(pushed(0, source) for source in (7, 8))
    both = PushMessagesRequest(node=Node(node_id=7)).SerializeToString() + replies
    assert node_of(both) == PushMessagesRequest.FromString(both).node.node_id == 7
    assert not is_own(both) and is_own(pushed(7, 7, 7))
    bomb = b"\x12\x00" * 500_000
    started = time.process_time()
    assert not is_own(bomb) and node_of(bomb) == 0
    assert not is_own(pushed(7, 7) + b"\x13" + b"\x14") and not is_own(b"\x12\x7f")
    assert time.process_time() - started < 0.1


async def long() -> AsyncIterator[bytes]:
    """More than the gate lets through, in two pieces."""
    yield b"x" * 600
    yield b"x" * 600


@pytest.mark.parametrize("call", ["push-object", "push-messages"])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_gate_cuts_what_is_too_long(
    door: Starlette, passed: list[httpx.Request], chunked: bool, call: str
) -> None:
    """Whether its length is said or not; of one that is not said nothing is read, so that nobody
    has the gate count bytes one by one."""
    content = long() if chunked else b"x" * 1200
    assert ask(door, "POST", FLEET + call, content=content).status_code == 413
    assert not passed


def test_the_shelf_is_what_flower_asks_of_its_hub(tmp_path: Path) -> None:
    assert deploy(tmp_path) == 0
    folder = tmp_path / "site" / "server" / "apps"
    hub = shelf(folder, "127.0.0.1:1")
    for version in ("1.2.0", None):
        wanted = {"app_id": "@mine/app", "app_version": version, "flwr_version": "1.41.0"}
        found = ask(hub, "POST", "/hub/fetch-fab", json=wanted).json()
        assert found["fab_url"] == "http://127.0.0.1:1/apps/mine.app.1.2.0.fab"
        assert set(found["verifications"][0]) == {"public_key_id", "signature", "signed_at"}
    name = "mine.app.1.2.0.fab"
    assert ask(hub, "GET", f"/apps/{name}").content == (folder / name).read_bytes()
    assert ask(hub, "POST", "/hub/fetch-fab", json={"app_id": "@evil/app"}).status_code == 404
    for name in ("mine.app.1.2.0.json", "..%2fserver.key", "%2e%2e/server.key"):
        assert ask(hub, "GET", f"/apps/{name}").status_code == 404
