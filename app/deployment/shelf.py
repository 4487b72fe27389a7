"""The shelf of signed apps: `corsage deploy` lays them there, the gate hands them out.

Flower takes a signature from nobody but the hub that it downloads apps from, so the gate answers in
the hub's place, on the loopback, with the signed bundles of a folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.deployment.keys import load, public_line
from corsage.core.errors import ConfigError
from corsage.core.files import write_atomically

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

DAYS_OF_AN_APP = 365


def key_id(public: bytes) -> str:
    """The name of a signer's key in lists of trusted ones."""
    return "fpk_" + hashlib.sha256(b" ".join(public.split()[:2])).hexdigest()[:32]


def trusted(public: bytes) -> str:
    """The list of trusted signers, for `--trusted-entities`.

    An empty one would mean that everything may run: it cannot be made here.
    """
    return f"{key_id(public)}: '{public.decode().strip()}'\n"


def app_of(project: Path) -> tuple[str, str]:
    """The app's name for `flwr run`, and its version."""
    if not (project / "pyproject.toml").is_file():
        raise ConfigError(f"{project}: no checkout, there is no pyproject.toml in it.")
    content = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    publisher = content["tool"]["flwr"]["app"]["publisher"]
    return f"@{publisher}/{content['project']['name']}", str(content["project"]["version"])


def build(project: Path, until: int, keys: Sequence[str]) -> bytes:
    """The bundle of a checkout, as `flwr run` makes it; what is said of the signature is in it."""
    import tomli_w
    from flwr.cli.build import build_fab_from_files
    from flwr.cli.utils import collect_files

    content = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    said: dict[str, Any] = {"signed-until": until, **({"run-keys": list(keys)} if keys else {})}
    content["tool"]["corsage"] = said
    files: dict[str, bytes | Path] = dict(collect_files(project.resolve()))
    files["pyproject.toml"] = tomli_w.dumps(content).encode()
    return build_fab_from_files(files)[0]


def sign(content: bytes, signer: Path, moment: int) -> dict[str, Any]:
    """The signature that SuperNodes check: whose, when, and of which bytes."""
    message = moment.to_bytes(8, "big") + hashlib.sha256(content).digest()
    signature = base64.urlsafe_b64encode(load(signer).sign(message)).rstrip(b"=")
    return {
        "public_key_id": key_id(public_line(signer)),
        "signature": signature.decode(),
        "signed_at": moment,
    }


def put_on_shelf(
    project: Path, signer: Path, shelf: Path, days: int = DAYS_OF_AN_APP, keys: Sequence[str] = ()
) -> str:
    """Sign the bundle of a checkout and lay it where the gate finds it; how it is called.

    It is good for so many days, and for runs that set no keys but these, if any are named.
    """
    now = int(time.time())
    (app, version), content = app_of(project), build(project, now + days * 86400, keys)
    stem = f"{app.removeprefix('@').replace('/', '.')}.{version}"
    entry = {
        "app_id": app,
        "app_version": version,
        "fab": f"{stem}.fab",
        "verifications": [sign(content, signer, now)],
    }
    write_atomically(shelf / f"{stem}.fab", content)
    write_atomically(shelf / f"{stem}.json", json.dumps(entry, indent=2))
    return f"{app}=={version}"


def shelf(folder: Path, address: str) -> Starlette:
    """The hub's two answers: which bundle an app is, with its signatures; and the bundle."""
    from starlette.applications import Starlette
    from starlette.responses import FileResponse, JSONResponse
    from starlette.routing import Route

    async def fetch(request: Request) -> Response:
        wanted = await request.json()
        entry = find(read_shelf(folder), wanted.get("app_id"), wanted.get("app_version"))
        if entry is None:
            return JSONResponse({"detail": "not on the shelf"}, 404)
        url = f"http://{address}/apps/{entry['fab']}"
        return JSONResponse({"fab_url": url, "verifications": entry["verifications"]})

    async def bundle(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in {entry["fab"] for entry in read_shelf(folder)}:
            return JSONResponse({"detail": "not on the shelf"}, 404)
        return FileResponse(folder / name)

    return Starlette(
        routes=[
            Route("/hub/fetch-fab", fetch, methods=["POST"]),
            Route("/apps/{name}", bundle, methods=["GET"]),
        ]
    )


def find(entries: list[dict[str, Any]], app: str, version: str | None) -> dict[str, Any] | None:
    """The bundle that is meant; without a version the newest."""
    found = [e for e in entries if e["app_id"] == app and version in (None, e["app_version"])]
    return max(found, key=lambda e: [int(n) for n in e["app_version"].split(".")], default=None)


def read_shelf(folder: Path) -> list[dict[str, Any]]:
    """The signed bundles of a folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
