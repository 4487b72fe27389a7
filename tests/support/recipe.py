"""A site of thirty devices, as `corsage deploy` makes it from a table."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from corsage.app.command import run
from corsage.app.deployment.keys import load
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


def signed(key: Path, late: float = 0.0) -> dict[str, str]:
    """The headers with which a SuperNode signs a call."""
    private = load(key)
    moment = (datetime.now(UTC) - timedelta(seconds=late)).isoformat()
    return {
        "flwr-public-key": b64encode(public_key_to_bytes(private.public_key())).decode(),
        "flwr-timestamp": moment,
        "flwr-signature": b64encode(sign_message(private, moment.encode())).decode(),
    }
