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

from corsage.app.output.usage import command, read_options
from corsage.core.errors import ConfigError, CorsageError, NodeError
from corsage.core.files import write_atomically

USAGE = """\
usage: corsage register SERVER_FOLDER [--superlink here]

Lets in the devices whose public keys are in SERVER_FOLDER/keys and whose names are in let-in.txt
there, and shuts out all others that were let in (a lost laptop). Run it at the server, with the
FLWR_HOME of the SuperLink (`server/corsage.sh` sets it).
"""
REGISTER_OPTIONS = {"superlink": "here"}
LIST = "registered.json"
LET_IN = "let-in.txt"
"""Beside the keys, the names of those that count: what is copied over a folder removes nothing."""


def register(folder: Path, superlink: str, home: Path) -> Iterator[str]:
    """Make the SuperLink's list that of the folder; a line a change."""
    wanted = let_in(folder)
    if not wanted:
        raise ConfigError(f"{folder / 'keys'}: no public keys; make them with `corsage deploy`.")
    path = home / LIST
    known = nodes(superlink)  # a SuperLink whose database is gone knows nobody
    there = {name: e for name, e in read(path, bool(known)).items() if e["node"] in known}
    for node in sorted(known - {entry["node"] for entry in there.values()}):
        flwr("unregister", node, superlink)  # a stranger's: this list has all that it let in
        yield f"node {node}: was not let in from here, shut out"
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


def let_in(folder: Path) -> dict[str, str]:
    """The devices that shall be let in, by their names, and their public keys."""
    found = {
        path.stem: path.read_text("utf-8", "replace").strip() for path in folder.glob("keys/*.pub")
    }
    names = folder / "keys" / LET_IN
    if not names.exists():
        return found
    return {name: found[name] for name in names.read_text("utf-8").split() if name in found}


def read(path: Path, needed: bool) -> dict[str, dict[str, str]]:
    """The devices that were let in: name, node and key.

    It is needed if the SuperLink knows any node: it tells nobody which key a node has, and takes no
    key again that it has once shut out.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        return {name: {word: e[word] for word in ("node", "key")} for name, e in content.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if not needed:
            return {}
        raise NodeError(
            f"{path}: cannot be read ({error}), and the SuperLink does not tell whose its nodes "
            "are: put a copy back, or stop the SuperLink, remove superlink.db and register anew."
        ) from error


def nodes(superlink: str) -> set[str]:
    """The ids of the nodes that the SuperLink lets in."""
    said = called("list", superlink)
    try:
        found = json.loads(said[said.index("{") :])["nodes"]
        return {n["node-id"] for n in found if n["status"] not in ("unregistered", "deleted")}
    except (ValueError, KeyError, TypeError) as error:
        raise NodeError(f"flwr supernode list: {' '.join(said.split())[-300:]}") from error


def flwr(verb: str, what: str, superlink: str) -> str:
    """Let a key in, or shut a node out; returns the node's id."""
    said = called(verb, what, superlink)
    found = re.search(r'"node-id":\s*"?(\d+)', said)
    if not found:
        raise NodeError(f"flwr supernode {verb} {what}: {' '.join(said.split())[-300:]}")
    return found[1]


def called(*words: str) -> str:
    """The output of a command of Flower's."""
    command = ["flwr", "supernode", *words, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise NodeError(f"{' '.join(command[:-2])}: {said[-300:]}")
    return done.stdout


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    options, (folder, *_) = read_options(words, REGISTER_OPTIONS)
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    for line in register(Path(folder), options["superlink"], home):
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
