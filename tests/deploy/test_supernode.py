"""A SuperNode ends when it is cut off: what supervises it starts it again."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.supercore.fab import Fab

from corsage.app.deployment import supernode
from corsage.app.deployment.supernode import BEAT, Bundles, Calls, answers, watch

GIVES_UP = """
import sys, threading, time, types
stub = types.ModuleType("flower_supernode")
def flower_supernode():
    assert sys.argv[1:] == ["--superlink", "localhost:1"]
    threading.Thread(target=time.sleep, args=(60,)).start()  # as its HTTP server does
stub.flower_supernode = flower_supernode
sys.modules["flwr.supernode.cli.flower_supernode"] = stub
from corsage.app.deployment.supernode import run
run(["--superlink", "localhost:1"])
"""


SHUT_OUT = """\
    import httpx
    raise httpx.HTTPStatusError("", request=None, response=httpx.Response(401))
stub"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (GIVES_UP, "Flower has given the connection up"),
        (GIVES_UP.replace("stub.", f"{SHUT_OUT}."), "key in"),
    ],
)
def test_the_process_ends_where_flower_gives_up(code: str, why: str, tmp_path: Path) -> None:
    """Whatever thread is left, with a line; the file for supervisors has it, too."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and why in line
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "failed" and status["line"] in line


class Left(Exception):
    """In the place of the end of this process."""


def test_who_is_cut_off_ends_if_the_server_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of heartbeats, too, while other calls succeed; not while the network is gone."""

    def leave(why: str) -> None:
        raise Left(why)

    def there() -> bool:
        lines.append(json.loads((tmp_path / "status.json").read_text())["line"])
        return len(lines) == 3

    lines: list[str] = []
    monkeypatch.setattr(supernode, "leave", leave)
    monkeypatch.setattr(supernode, "LOOK_SECONDS", 0.01)
    now = time.monotonic()
    for calls, line in ((Calls(), "not connected yet"), (Calls({False: now}), "connected")):
        looks = iter([0])
        with pytest.raises(StopIteration):
            watch(calls, there, tmp_path, lambda looks=looks: next(looks))
        assert json.loads((tmp_path / "status.json").read_text())["line"] == line
    calls = Calls({True: now - supernode.CUT_OFF - 1, False: now})
    with pytest.raises(Left, match="cut off: no call has succeeded for 91 s"):
        watch(calls, there, tmp_path)
    assert lines == ["not connected: calls fail"] * 3
    with pytest.raises(Left):  # a disk that is full changes nothing
        watch(calls, lambda: True, tmp_path / "absent")


def test_a_slow_upload_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that takes minutes on a thin line; but a call that stands still is one."""
    calls = Calls({True: time.monotonic(), False: time.monotonic() - 100})
    request = httpx.Request("POST", "https://a/v1/fleet/push-object")
    for seconds, silence in ((supernode.STANDS_STILL - 5, 100), (supernode.STANDS_STILL + 5, 0)):
        calls.under_way[request] = time.monotonic() - seconds
        assert calls.silence() == pytest.approx(silence, abs=1)
    monkeypatch.setattr(httpx.Client, "send", lambda *_: calls.under_way[request])
    calls.listen()
    with httpx.Client() as client, pytest.raises(AttributeError):  # what it was told has failed
        client.send(request)
    assert not calls.under_way


@pytest.mark.parametrize(("path", "code", "heard"), [(BEAT, 200, True), ("/x", 200, False)])
def test_calls_are_heard(
    monkeypatch: pytest.MonkeyPatch, path: str, code: int, heard: bool
) -> None:
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)  # to be put back
    calls = Calls({True: 0.0, False: 0.0})
    calls.listen()
    codes = [503, code]
    with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(codes.pop()))) as one:
        assert one.get(f"https://a{path}").status_code == code
        assert (calls.last[True] > 0, calls.last[False] > 0) == (heard, not heard)
        calls.last.update({True: 0.0, False: 0.0})
        assert one.get(f"https://a{path}").status_code == 503
        assert set(calls.last.values()) == {0.0}
    assert not answers(["--superlink", "localhost:1", "--root-certificates", "/absent"])


def test_what_is_left_of_an_installation_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Flower itself it would be the app, for good; one that goes on, or is whole, stays."""
    from flwr.supernode import start_client_internal as flower

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(flower, "_verify_fab", lambda fab, trusted: fab.content in trusted)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bundle:
        for name in ("pyproject.toml", "networks/one.py", ".info/CONTENT"):
            bundle.writestr(name, name)
    fab = Fab("", archive.getvalue(), {})
    folder = tmp_path / "apps" / f"a.b.1.{hashlib.sha256(fab.content).hexdigest()[:8]}"
    (folder / "networks").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("pypro")  # the disk was full
    bundles = Bundles()
    bundles.listen()
    assert not flower._verify_fab(fab, {}) and not bundles.files
    believed: dict[Any, str] = {fab.content: ""}
    assert flower._verify_fab(fab, believed) and folder.exists()
    monkeypatch.setattr(supernode, "INSTALLS", -1.0)
    bundles.sweep()
    assert not folder.exists() and "is not whole" in capsys.readouterr().err
    with zipfile.ZipFile(archive) as bundle:
        bundle.extractall(folder)
    bundles.sweep()
    assert folder.exists() and not bundles.files and not capsys.readouterr().err
