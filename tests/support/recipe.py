"""A site of thirty devices, as `corsage deploy` makes it from a table."""

from __future__ import annotations

from pathlib import Path

from corsage.app.command import run
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
