"""Those who are not let in, against the shipped deployment: real processes on the loopback.

What an outsider has is the address and the public certificate; what a hostile server has is the
whole of the server's folder. It takes a minute or so:

    pytest -m slow tests/deploy/test_outsider.py
"""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corsage.app.deployment.calls import CALLS, FLEET
from corsage.app.deployment.keys import device_key, signer_key
from corsage.app.deployment.shelf import put_on_shelf, sign
from corsage.app.run.status import read_status
from corsage.app.run.wait import started
from tests.support.fleet import free_ports
from tests.support.ports import on_loopback, sockets
from tests.support.site import DEVICE, KEYS, PIPED, REGISTER, RUN, USERS, WAIT, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PROJECT = """\
[project]
name = "app"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "evil"
[tool.flwr.app.components]
serverapp = "mine:server"
clientapp = "mine:client"
"""
APP = """\
import json, os
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

(Path({markers!r}) / str(os.getpid())).write_text("imported")
client = ClientApp()
server = ServerApp()

@client.query()
def query(message, context):
    (Path({markers!r}) / "device").write_text(str(context.node_config))
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(messages))
    said = [reply.error.reason if reply.has_error() else "obeyed" for reply in replies]
    (Path({markers!r}) / "replies").write_text(json.dumps(said))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
def markers(tmp_path: Path) -> Path:
    folder = tmp_path / "markers"
    folder.mkdir()
    return folder


@pytest.fixture
def evil(tmp_path: Path, markers: Path) -> Path:
    """An app that leaves a marker wherever it is loaded."""
    app = tmp_path / "evil"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "mine.py").write_text(APP.format(markers=str(markers)))
    return app


class Outsider:
    """Whoever reaches the gate and has the public certificate; nothing else of the site."""

    def __init__(self, site: Site, home: Path, port: int) -> None:
        self.site, self.home = site, home
        home.mkdir()
        (home / "ca.crt").write_bytes((site.folder / "site" / "server" / "ca.crt").read_bytes())
        address = f"localhost:{port}"
        certificates = f'root-certificates = "{home / "ca.crt"}"'
        (home / "config.toml").write_text(
            f'[superlink.gate]\naddress = "{address}"\n{certificates}'
        )
        self.environment = {**site.environment, "FLWR_HOME": str(home)}

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.site.call(["flwr", *words], self.environment)


@pytest.fixture
def outsider(site: Site, tmp_path: Path) -> Outsider:
    return Outsider(site, tmp_path / "outsider", site.gate)


def nodes(site: Site) -> list[dict[str, str]]:
    """The list of the SuperLink, as the operator sees it."""
    said = site.ask("site/server/flwr.sh supernode list here --format json").stdout
    found: list[dict[str, str]] = json.loads(said[said.index("{") :])["nodes"]
    return found


def test_no_outsider_registers_lists_or_runs(
    site: Site, outsider: Outsider, evil: Path, markers: Path
) -> None:
    before = {node["node-id"] for node in nodes(site)}
    (outsider.home / "evil.pub").write_bytes(device_key(outsider.home / "evil"))
    attempts = [
        ("supernode", "register", str(outsider.home / "evil.pub"), "gate"),
        ("supernode", "list", "gate"),
        ("run", str(evil), "gate"),
        ("ls", "gate"),
    ]
    for words in attempts:
        done = outsider.flwr(*words, "--format", "json")
        assert done.returncode != 0 or '"success": false' in done.stdout, (words, done.stdout)
        assert not any(node in done.stdout for node in before)
    assert {node["node-id"] for node in nodes(site)} == before
    assert not list(markers.iterdir())
    inside = Outsider(site, outsider.home / "inside", site.superlink)  # without the gate, he would
    listed = inside.flwr("supernode", "list", "gate", "--format", "json").stdout
    assert all(node in listed for node in before)


def test_no_outsider_is_a_user(site: Site, outsider: Outsider) -> None:
    """With a key of its own, a SuperNode that says it is user 0 is refused, again and again."""
    device_key(outsider.home / "evil")
    folder = site.folder / "site" / "devices" / "0"
    (port,) = free_ports(1)
    command = (
        f"flower-supernode --superlink localhost:{site.gate} --port {port} "
        f"--root-certificates {folder / 'ca.crt'} "
        f"--auth-supernode-private-key {outsider.home / 'evil'} "
        "--node-config \"user='0' data='/dev/null'\""
    )
    seen = site.log("superlink").count("activate-node")
    site.spawn("evil", command, outsider.environment)
    site.until(lambda: site.processes["evil"].poll() is not None, "superlink", "gate")
    assert site.log("superlink").count("activate-node") == seen  # the gate has not passed it on
    assert "SuperNode ID" not in site.log("evil")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/list-nodes",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/pull-messages/../../control/list-nodes",
        "//v1/control/list-nodes",
        "/V1/fleet/get-fab",
        "/docs",
        "/openapi.json",
        "/hub/fetch-fab",
        "/",
    ],
)
def test_the_gate_has_no_other_path(site: Site, outsider: Outsider, path: str) -> None:
    trust = ssl.create_default_context(cafile=str(outsider.home / "ca.crt"))
    with httpx.Client(verify=trust, trust_env=False) as client:
        for method in ("GET", "POST", "PUT"):
            url = httpx.URL(f"https://localhost:{site.gate}").copy_with(raw_path=path.encode())
            assert client.request(method, url).status_code == 404
        url = f"https://localhost:{site.gate}{FLEET}"
        for call in sorted(CALLS)[: 10 * (path == "/")]:  # nor anything without a device's key
            assert client.post(url + call).status_code == 401


def test_nobody_else_listens_to_the_network(site: Site) -> None:
    """Of the server's ports only the gate's is for others; the rest is on the loopback."""
    for port in (site.superlink, site.shelf, *site.devices):
        addresses = [address for address, number in sockets().values() if number == port]
        assert addresses and all(map(on_loopback, addresses))


def test_an_app_that_is_not_signed_starts_on_no_device(
    site: Site, evil: Path, markers: Path
) -> None:
    """Not even by the hand of whoever has the server: there it runs, on devices it does not."""
    said = site.ask(f"site/server/flwr.sh run {evil} here --format json").stdout
    site.ask(f"site/server/corsage.sh wait {started(said)} here")
    assert json.loads((markers / "replies").read_text()) == ["The FAB could not be verified."] * 2
    assert not (markers / "device").exists()
    assert len(list(markers.glob("[0-9]*"))) == 1  # the ServerApp's own process


def test_nor_does_one_that_somebody_else_signed(
    site: Site, evil: Path, markers: Path, tmp_path: Path
) -> None:
    """With the server's shelf in hand, another key, or the right key's name on another bundle."""
    signer_key(tmp_path / "other.key")
    shelf = site.folder / "site" / "server" / "apps"
    real = json.loads((shelf / "corsage.corsage.0.1.0.json").read_text())["verifications"][0]
    put_on_shelf(evil, tmp_path / "other.key", shelf)
    entry = shelf / "evil.app.1.0.0.json"
    stolen = sign((shelf / "evil.app.1.0.0.fab").read_bytes(), tmp_path / "other.key", 1)
    content = json.loads(entry.read_text())
    content["verifications"] += [real, {**stolen, "public_key_id": real["public_key_id"]}]
    entry.write_text(json.dumps(content))
    site.ask(PIPED.replace("@corsage/corsage==0.1.0", "@evil/app==1.0.0"))
    assert json.loads((markers / "replies").read_text()) == ["The FAB could not be verified."] * 2
    assert not (markers / "device").exists()


def test_nor_does_one_that_was_changed_after_it_was_signed(
    site: Site, evil: Path, markers: Path, tmp_path: Path
) -> None:
    """The signature is the right key's, of what the bundle was before."""
    signer_key(tmp_path / "other.key")
    shelf, signer = (site.folder / "site" / name for name in ("server/apps", "secret/signer.key"))
    code = (evil / "mine.py").read_text()
    (evil / "mine.py").write_text(f"{code}# harmless\n")
    put_on_shelf(evil, tmp_path / "other.key", shelf)
    entry = shelf / "evil.app.1.0.0.json"
    right = sign((shelf / "evil.app.1.0.0.fab").read_bytes(), signer, 365)
    (evil / "mine.py").write_text(code)
    put_on_shelf(evil, tmp_path / "other.key", shelf)
    content = json.loads(entry.read_text())
    entry.write_text(json.dumps({**content, "verifications": [right]}))
    site.ask(PIPED.replace("@corsage/corsage==0.1.0", "@evil/app==1.0.0"))
    assert json.loads((markers / "replies").read_text()) == ["The FAB could not be verified."] * 2
    assert not (markers / "device").exists()
    for user in USERS:
        assert "Traceback" not in site.log(user) and "FAB verification failed" in site.log(user)


def test_a_signed_app_runs_and_a_run_that_fails_is_one_line(site: Site) -> None:
    done = site.ask(RUN.format(keys=KEYS))
    (folder,) = (site.folder / "site" / "server" / "state" / "runs").iterdir()
    assert "Run folder: " in done.stdout
    assert read_status(folder).state == "finished"
    site.ask(WAIT.format(name=folder.name))
    for user in USERS:
        assert "Sent successfully" in site.log(user)

    unusable = site.ask(RUN.format(keys=f"{KEYS} head='absent'"))
    assert "Traceback" not in unusable.stdout and "corsage: head=absent" in unusable.stdout
    assert [*folder.parent.iterdir()] == [folder]  # it is known before there is a folder

    failed = site.ask(RUN.format(keys=f"{KEYS} lr=1e30"))
    assert "Traceback" not in failed.stdout
    (line,) = [line for line in failed.stdout.splitlines() if "corsage: " in line]
    (other,) = {*folder.parent.iterdir()} - {folder}
    status = read_status(other)
    assert status.state == "failed" and status.line in line
    waited = site.ask(WAIT.format(name=other.name), code=1)
    assert waited.stderr == f"corsage: {status.line}\n"
    waited = site.ask(f"site/server/corsage.sh wait {status.flower_run} here", code=1)
    assert waited.stderr == f"corsage: {status.line}\n"


def test_a_lost_device_is_shut_out(site: Site) -> None:
    """Without its line in the table; last, since it does not come back."""
    site.make(USERS[:1])
    said = site.ask(REGISTER).stdout
    assert said == "1: shut out\n"
    site.until(lambda: site.processes["1"].poll() is not None, "superlink", "0")
    laptop = site.folder / "site" / "devices" / "1"  # it still has its key
    (laptop / "device.key.shut-out").rename(laptop / "device.key")
    site.spawn("again", DEVICE.format(user="1"))
    site.until(lambda: site.processes["again"].poll() is not None, "superlink", "0")
    assert "SuperNode ID" not in site.log("again")
