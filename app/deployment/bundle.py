"""The app as SuperNodes accept it: a bundle, and a signature made without any hub.

Flower's `flwr app review` signs what Flower's hub has published and gives the signature to the hub.
The signature itself is Ed25519 over the time and the bundle's SHA-256, so it can be made anywhere;
the gate hands both to the SuperLink, and each SuperNode checks them against its own list.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import tomllib
from pathlib import Path
from typing import Any

from corsage.app.deployment.keys import load, public_line
from corsage.core.errors import ConfigError
from corsage.core.files import write_atomically

ROOT = Path(__file__).parents[2]


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


def build(project: Path) -> bytes:
    """The bundle of a checkout, as `flwr run` makes it."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(project)


def sign(content: bytes, signer: Path, moment: int) -> dict[str, Any]:
    """What SuperNodes check: whose signature, when, and of which bytes."""
    message = moment.to_bytes(8, "big") + hashlib.sha256(content).digest()
    signature = base64.urlsafe_b64encode(load(signer).sign(message)).rstrip(b"=")
    return {
        "public_key_id": key_id(public_line(signer)),
        "signature": signature.decode(),
        "signed_at": moment,
    }


def put_on_shelf(project: Path, signer: Path, shelf: Path) -> str:
    """Sign the bundle of a checkout and lay it where the gate finds it; how it is called."""
    (app, version), content = app_of(project), build(project)
    stem = f"{app.removeprefix('@').replace('/', '.')}.{version}"
    entry = {
        "app_id": app,
        "app_version": version,
        "fab": f"{stem}.fab",
        "verifications": [sign(content, signer, int(time.time()))],
    }
    write_atomically(shelf / f"{stem}.fab", content)
    write_atomically(shelf / f"{stem}.json", json.dumps(entry, indent=2))
    return f"{app}=={version}"
