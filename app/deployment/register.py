"""`corsage register`: the SuperLink's list of devices is made that of the table.

Run at the server, since the SuperLink listens to nobody else. A list of what was registered is kept
beside the SuperLink's own data: Flower tells nobody which key a node has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from corsage.app.command import complain
from corsage.app.deployment.options import read_options
from corsage.core.errors import ConfigError, CorsageError, NodeError
from corsage.core.files import write_atomically

USAGE = """\
usage: corsage register SERVER_FOLDER [--superlink here]

Lets in the devices whose public keys are in SERVER_FOLDER/keys, and shuts out those that were let
in before and are not there any more (a lost laptop). Run it at the server, with the FLWR_HOME of
the SuperLink (`server/flwr.sh` sets it).
"""
DEFAULTS = {"superlink": "here"}
LIST = "registered.json"


def register(folder: Path, superlink: str, home: Path) -> Iterator[str]:
    """Make the SuperLink's list that of the folder; a line a change."""
    wanted = {path.stem: path.read_text("ascii").strip() for path in folder.glob("keys/*.pub")}
    if not wanted:
        raise ConfigError(f"{folder / 'keys'}: no public keys; make them with `corsage deploy`.")
    path = home / LIST
    there: dict[str, dict[str, str]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for name, entry in sorted(there.items()):
        if wanted.get(name) != entry["key"]:
            flwr("unregister", entry["node"], superlink)
            del there[name]
            write_atomically(path, json.dumps(there, indent=2))
            yield f"{name}: shut out"
    for name in sorted(wanted.keys() - there.keys()):
        node = flwr("register", str(folder / "keys" / f"{name}.pub"), superlink)
        there[name] = {"node": node, "key": wanted[name]}
        write_atomically(path, json.dumps(there, indent=2))
        yield f"{name}: let in, as node {node}"


def flwr(verb: str, what: str, superlink: str) -> str:
    """Flower's own command; returns the node's id."""
    command = ["flwr", "supernode", verb, what, superlink, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r'"node-id":\s*"?(\d+)', done.stdout)
    if done.returncode or not found:
        said = " ".join((done.stderr or done.stdout).split())
        raise NodeError(f"{' '.join(command[:4])}: {said[-300:]}")
    return found[1]


def run(words: list[str]) -> int:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    if not words or {"-h", "--help"} & set(words):
        print(USAGE, end="")
        return 0 if words else 2
    try:
        options, (folder, *_) = read_options(words, DEFAULTS)
        home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
        for line in register(Path(folder), options["superlink"], home):
            print(line, flush=True)
    except CorsageError as error:
        return complain(error, 2)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
