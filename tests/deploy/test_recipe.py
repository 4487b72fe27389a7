"""What `deploy/` ships and `corsage deploy` makes, without starting any of it."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cryptography import x509
from flwr.common.config import parse_config_args
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.fab import Fab
from flwr.supernode.start_client_internal import _verify_fab
from starlette.applications import Starlette

from corsage.app.command import run
from corsage.app.deployment import holding, register
from corsage.app.deployment.bundle import trusted
from corsage.app.deployment.compose import compose
from corsage.app.deployment.gate import CALLS, PREFIX, gate, shelf
from corsage.app.deployment.keys import signer_key
from corsage.app.deployment.table import Device, read_table
from corsage.core.errors import NodeError
from tests.support.pages import ROOT

DEPLOY = ROOT / "deploy"
THIRTY = "name,data,num-classes\n" + "".join(f"shop-{n},/srv/{n}.csv,10\n" for n in range(30))


def app(folder: Path) -> Path:
    """The smallest app that can be bundled."""
    folder.mkdir()
    project = (
        '[project]\nname = "app"\nversion = "1.2.0"\nlicense = "Apache-2.0"\n'
        '[tool.flwr.app]\npublisher = "mine"\n[tool.flwr.app.components]\n'
        'serverapp = "mine:app"\nclientapp = "mine:app"\n'
    )
    (folder / "pyproject.toml").write_text(project)
    (folder / "mine.py").write_text("app = None\n")
    return folder


def deploy(tmp_path: Path, table: str = THIRTY, *words: str) -> int:
    (tmp_path / "devices.csv").write_text(table)
    if not (tmp_path / "app").exists():
        app(tmp_path / "app")
    places = [str(tmp_path / "devices.csv"), str(tmp_path / "site")]
    options = ["--server", "fed.example.org,192.0.2.7", "--app", str(tmp_path / "app")]
    return run(["deploy", *places, *options, *words], "")


def test_thirty_devices_from_one_table(tmp_path: Path) -> None:
    """Each has a key of its own and a node config that Flower reads as the table says it."""
    assert deploy(tmp_path) == 0
    site = tmp_path / "site"
    folders = sorted((site / "devices").iterdir())
    assert len(folders) == 30
    assert len({(folder / "device.pub").read_bytes() for folder in folders}) == 30
    command = '. ./device.env; printf \'%s\\n\' "$SERVER" "$PORT" "$NODE_CONFIG"'
    said = subprocess.run(
        ["sh", "-c", command], cwd=site / "devices" / "shop-7", capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    assert said[:2] == ["fed.example.org:8443", "9101"]
    config = {"user": "shop-7", "data": "/srv/7.csv", "num-classes": 10}
    assert parse_config_args([said[2]]) == config
    known = {path.stem: path.read_bytes() for path in (site / "server" / "keys").glob("*.pub")}
    assert known == {f.name: (f / "device.pub").read_bytes() for f in folders}
    services = yaml.safe_load((site / "compose.yaml").read_text())["services"]
    assert set(services) == {"superlink", "gate", *(f"device-{f.name}" for f in folders)}


def test_nothing_secret_is_readable_or_leaves(tmp_path: Path) -> None:
    """Private keys are their owner's; the signer's and the authority's go to no machine."""
    assert deploy(tmp_path) == 0
    site = tmp_path / "site"
    files = [path for path in site.rglob("*") if path.is_file()]
    private = [path for path in files if b"PRIVATE" in path.read_bytes()]
    assert len(private) == 30 + 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert {path.name for path in private if "secret" in path.parts} == {"ca.key", "signer.key"}
    for folder in (site / "secret", site / "server", site / "devices" / "shop-0"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_once_more_keeps_keys_and_forgets_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(tmp_path) == 0
    site = tmp_path / "site"
    before = {path: path.read_bytes() for path in site.rglob("*.key")}
    (site / "devices" / "shop-1" / "device.key").unlink()  # it makes its own
    lines = THIRTY.splitlines(keepends=True)
    assert deploy(tmp_path, "".join(lines[:-1]) + "new,/srv/new.csv,10\n") == 0
    assert "shop-29: no longer in the table" in capsys.readouterr().out
    after = {path: path.read_bytes() for path in site.rglob("*.key")}
    assert {path.parent.name for path in after.keys() - before.keys()} == {"new"}
    assert before.keys() - after.keys() == {
        site / "devices" / f"shop-{n}" / "device.key" for n in (1, 29)
    }
    assert all(after[path] == before[path] for path in after.keys() & before.keys())
    names = {path.stem for path in (site / "server" / "keys").glob("*.pub")}
    assert "new" in names and "shop-29" not in names
    lost = (site / "devices" / "shop-29" / "device.key.shut-out").read_bytes()
    assert deploy(tmp_path) == 0  # a new machine of the same name
    assert (site / "devices" / "shop-29" / "device.key").read_bytes() != lost


def test_the_gate_listens_where_the_devices_look(tmp_path: Path) -> None:
    """Without the port being said a second time."""
    assert deploy(tmp_path, THIRTY, "--port", "9443") == 0
    site, said = tmp_path / "site", tmp_path / "said"
    (tmp_path / "corsage").write_text(f'#!/bin/sh\necho "$*" > "{said}"\n')
    (tmp_path / "corsage").chmod(0o755)
    search = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if name != "GATE_PORT"}
    subprocess.run([site / "server" / "gate.sh"], env={**own, "PATH": search}, check=True)
    assert "--port 9443 " in said.read_text()
    assert ":9443\n" in (site / "devices" / "shop-0" / "device.env").read_text()


def test_the_certificate_is_for_the_servers_names(tmp_path: Path) -> None:
    assert deploy(tmp_path) == 0
    server = tmp_path / "site" / "server"
    found = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    own = ["localhost", "127.0.0.1"]
    assert [str(n.value) for n in names] == ["fed.example.org", "192.0.2.7", *own]
    ca = x509.load_pem_x509_certificate((server / "ca.crt").read_bytes())
    found.verify_directly_issued_by(ca)


def test_supernodes_believe_the_signature_and_no_other(tmp_path: Path) -> None:
    """By Flower's own check: of this bundle, by this key, with the time that was signed."""
    assert deploy(tmp_path) == 0
    site = tmp_path / "site"
    entry = json.loads((site / "server" / "apps" / "mine.app.1.2.0.json").read_text())
    content = (site / "server" / "apps" / entry["fab"]).read_bytes()
    signers = yaml.safe_load((site / "devices" / "shop-0" / "trusted.yaml").read_text())
    (said,) = entry["verifications"]

    def believed(content: bytes, **changes: Any) -> bool:
        fields = {**said, **changes}
        name = fields.pop("public_key_id")
        own = {name: json.dumps(fields), "valid_license": "Valid"}
        return bool(_verify_fab(Fab("", content, own), signers))

    assert believed(content)
    assert not believed(content + b" ")
    assert not believed(content, signed_at=said["signed_at"] + 1)
    assert not believed(content, public_key_id="fpk_other")
    other = signer_key(tmp_path / "other.key")
    assert not set(yaml.safe_load(trusted(other))) & set(signers)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("name,data\n", "has no lines"),
        ("name,data\na,/x\na,/y\n", "name=a: is there twice"),
        ("name,data,user\na,/x,u\nb,/y,u\n", "user=u: is there twice"),
        ("name,data,port\na,/x,9094\nb,/y,9094\n", "port=9094: is there twice"),
        ("name,data\n../a,/x\n", "line 2: name='../a'"),
        ("name,data\na,\n", "line 2: data: say where"),
        ("name,data\na,x/y.csv\n", "line 2: data=x/y.csv: say the whole path"),
        ("name,data\na,/x,/y\n", "line 2: has not as many columns"),
        ("name,data,port\na,/x,0\n", "port=0: is no port"),
        ("name,data,cluster\na,/x,it's\n", "has a quote"),
        ("name,data,state-dir\na,/x,/y\n", "leave it out"),
    ],
)
def test_a_wrong_table_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, said: str
) -> None:
    assert deploy(tmp_path, table) == 2
    assert not (tmp_path / "site" / "secret").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


TABLE = str(DEPLOY / "devices.csv")


@pytest.mark.parametrize(
    "words",
    [
        ["deploy", "absent.csv", "site", "--server", "x"],
        ["deploy", "absent.csv", "site"],
        ["deploy", "absent.csv"],
        ["deploy", "a", "b", "--colour", "red"],
        ["deploy", TABLE, "site", "--server", "x", "--port", "abc"],
        ["deploy", TABLE, "site", "--server", "fed.example.org:8443"],
        ["gate", "nowhere"],
        ["gate", "--port", "1"],
        ["register", "nowhere"],
    ],
)
def test_mistakes_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words, "") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_gate_with_a_wrong_port_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(tmp_path) == 0
    for option in ("port", "shelf-port", "megabytes"):
        assert run(["gate", str(tmp_path / "site" / "server"), f"--{option}", "abc"], "") == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


# What is shipped.


def test_the_shipped_compose_file_is_that_of_the_shipped_table() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert text == compose(read_table(DEPLOY / "devices.csv"), "server", 8443)
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"superlink", "gate", "device-0", "device-1", "device-2"}
    for service in services.values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "always" and service["init"]
    published = {name: service.get("ports") for name, service in services.items()}
    assert {name for name, ports in published.items() if ports} == {"superlink"}
    assert published["superlink"] == ["8443:8443"]  # the gate's: it shares the SuperLink's network
    assert services["gate"]["network_mode"] == "service:superlink"


def test_the_words_of_a_table_are_not_looked_into() -> None:
    """A file may be called as a place in the template is."""
    device = Device("NAME-PORT", 0, {"data": "/srv/FILE/DATA.csv"})
    services = yaml.safe_load(compose([device], "SERVER", 8443))["services"]
    assert services["device-NAME-PORT"]["volumes"][1] == "./data/DATA.csv:/srv/FILE/DATA.csv:ro"


UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_are_shut(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = unit["Service"]
    wanted = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes"}
    wanted |= {"ProtectHome": "yes", "Restart": "always", "User": "corsage"}
    assert {name: service[name] for name in wanted} == wanted
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"  # it tries until it is let in
    assert (DEPLOY / Path(service["ExecStart"]).name).is_file()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_the_units(path: Path) -> None:
    """But for the scripts, which are where the operator puts them."""
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if path.stem.split("@")[0] in line]
    assert [line for line in own if "is not executable" not in line] == []


@pytest.mark.parametrize("name", ["superlink.sh", "device.sh"])
def test_the_scripts_hold_the_flags_that_shut(name: str) -> None:
    text = (DEPLOY / name).read_text()
    flags = {
        "superlink.sh": ["--host 127.0.0.1", "--enable-supernode-auth", "--ssl-certfile",
                         "--disable-runtime-dependency-installation"],
        "device.sh": ["--host 127.0.0.1", "--trusted-entities", "--root-certificates",
                      "--auth-supernode-private-key"],
    }  # fmt: skip
    assert all(flag in text for flag in flags[name]) and "--insecure" not in text
    assert os.access(DEPLOY / name, os.X_OK)


# The gate and its shelf.


def ask(app: Starlette, method: str, path: str, **words: Any) -> httpx.Response:
    """An application's answer."""

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

    assert deploy(tmp_path) == 0
    ca = tmp_path / "site" / "server" / "ca.crt"
    return gate("127.0.0.1:1", ca, 1000, httpx.MockTransport(superlink))


def test_the_gate_passes_on_what_devices_say(door: Starlette, passed: list[httpx.Request]) -> None:
    for call in sorted(CALLS - {"push-messages"}):
        answer = ask(door, "POST", PREFIX + call, content=b"body", headers={"flwr-signature": "s"})
        assert (answer.status_code, answer.content) == (201, b"answer")
        assert answer.headers["x-own"] == "1"
        assert passed[-1].url == f"https://127.0.0.1:1{PREFIX}{call}"
        assert passed[-1].content == b"body" and passed[-1].headers["flwr-signature"] == "s"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", f"{PREFIX}register-node"),
        ("POST", f"{PREFIX}unregister-node"),
        ("POST", f"{PREFIX}get-fab/"),
        ("POST", f"{PREFIX}get-fab?x=1"),
        ("POST", f"{PREFIX}%2e%2e/control/start-run"),
        ("POST", f"{PREFIX}get-fab%0a"),
        ("GET", f"{PREFIX}get-fab"),
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
    answer = ask(door, "POST", f"{PREFIX}push-messages", content=content)
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
    monkeypatch.setattr(holding, "PAUSE", 0.0)
    assert deploy(tmp_path) == 0
    link, ca = Link(4), tmp_path / "site" / "server" / "ca.crt"
    app = gate("127.0.0.1:1", ca, 1000, httpx.MockTransport(link))
    call = PullMessagesRequest(node=Node(node_id=7)).SerializeToString()
    for path in ("pull-messages", "push-messages"):
        content = pushed(7, 7) if path == "push-messages" else call
        assert ask(app, "POST", PREFIX + path, content=content).status_code == 200
    assert link.asked == 1
    answer = ask(app, "POST", f"{PREFIX}pull-messages", content=call)
    assert link.asked == 1 + asked
    assert len(PullMessagesResponse.FromString(answer.content).messages_list) == found
    other = PullMessagesRequest(node=Node(node_id=8)).SerializeToString()
    ask(app, "POST", f"{PREFIX}pull-messages", content=other)
    assert link.asked == 2 + asked


def test_the_gate_passes_on_no_other_headers(door: Starlette, passed: list[httpx.Request]) -> None:
    """Nor does it stumble over letters that no header has, or over thousands of headers."""
    odd = [(b"x-odd", "ä".encode()), (b"content-encoding", b"gzip"), (b"flwr-timestamp", b"t")]
    assert ask(door, "POST", f"{PREFIX}get-run", content=b"body", headers=odd).status_code == 201
    assert passed[0].headers["flwr-timestamp"] == "t"
    assert not {"x-odd", "content-encoding"} & passed[0].headers.keys()
    many = [(b"flwr-%d" % number, b"") for number in range(200)]
    assert ask(door, "POST", f"{PREFIX}get-run", headers=many).status_code == 413
    both = {"content-length": "4", "transfer-encoding": "chunked"}
    assert ask(door, "POST", f"{PREFIX}get-run", content=b"body", headers=both).status_code == 413
    assert len(passed) == 1


async def long() -> AsyncIterator[bytes]:
    """More than the gate lets through, in two pieces."""
    yield b"x" * 600
    yield b"x" * 600


@pytest.mark.parametrize("call", ["push-object", "push-messages"])
@pytest.mark.parametrize("chunked", [True, False])
def test_the_gate_cuts_what_is_too_long(
    door: Starlette, passed: list[httpx.Request], chunked: bool, call: str
) -> None:
    """Whether its length is said or not."""
    content = long() if chunked else b"x" * 1200
    assert ask(door, "POST", PREFIX + call, content=content).status_code == 413
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


def test_registering_makes_the_list_that_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones are let in, those that are gone or have another key are shut out; once is enough."""
    calls: list[tuple[str, str]] = []
    known: set[str] = set()

    def flwr(verb: str, what: str, superlink: str) -> str:
        calls.append((verb, re.sub(r".*/", "", what)))
        if verb == "unregister":
            known.discard(what)
        else:
            known.add(str(len(calls)))
        return str(len(calls))

    monkeypatch.setattr(register, "flwr", flwr)
    monkeypatch.setattr(register, "nodes", lambda superlink: known)
    (tmp_path / "keys").mkdir()
    for name in "ab":
        (tmp_path / "keys" / f"{name}.pub").write_text(name)
    assert list(register.register(tmp_path, "here", tmp_path)) == [
        "a: let in, as node 1", "b: let in, as node 2",
    ]  # fmt: skip
    assert list(register.register(tmp_path, "here", tmp_path)) == []
    (tmp_path / "keys" / "a.pub").unlink()
    (tmp_path / "keys" / "b.pub").write_text("another")
    calls.clear()
    assert len(list(register.register(tmp_path, "here", tmp_path))) == 3
    assert calls == [("unregister", "1"), ("unregister", "2"), ("register", "b.pub")]
    known.clear()  # the SuperLink has lost its database
    assert list(register.register(tmp_path, "here", tmp_path)) == ["b: let in, as node 4"]
    known.add("stranger")
    assert list(register.register(tmp_path, "here", tmp_path)) == [
        "node stranger: was not let in from here, shut out"
    ]
    (tmp_path / "keys" / "c.pub").write_text("lost, and copied over")
    (tmp_path / "keys" / register.LET_IN).write_text("b\n")
    assert list(register.register(tmp_path, "here", tmp_path)) == []
    (tmp_path / register.LIST).write_text("damaged")  # nobody knows whose key a node has
    with pytest.raises(NodeError, match="put a copy back"):
        list(register.register(tmp_path, "here", tmp_path))
    assert known == {"4"}
    known.clear()
    assert len(list(register.register(tmp_path, "here", tmp_path))) == 1
