"""What `corsage deploy` makes, and what `corsage register` lets in, without starting any of it."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from flwr.common.config import parse_config_args
from flwr.supercore.fab import Fab

from corsage.app.command import run
from corsage.app.deployment import register
from corsage.app.deployment.keys import signer_key
from corsage.app.deployment.shelf import trusted
from corsage.core.errors import NodeError
from tests.support.fleet import free_ports
from tests.support.recipe import DEPLOY, THIRTY, deploy


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

    # The SuperNode's own module, of a database and a server: nobody else here needs it.
    from flwr.supernode.start_client_internal import _verify_fab

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
    (free,) = free_ports(1)
    gate = ["gate", str(tmp_path / "site" / "server"), "--port", str(free)]
    for option in ("port", "shelf-port", "megabytes"):
        assert run([*gate, f"--{option}", "abc"], "") == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    with socket.create_server(("127.0.0.1", 0)) as other:  # without its shelf no run could start
        port = other.getsockname()[1]
        assert run([*gate, "--shelf-port", str(port)], "") == 2
    assert f"port {port} of 127.0.0.1: cannot be had" in capsys.readouterr().err


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
