"""A method of one's own in the bench: `strategies/NAME.py`, and beside it `clients/NAME.py`.

They are the two files of docs/adding.md, wherever they lie.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import corsage.clients
import corsage.strategies
from corsage.app.bench.protocol import digest
from corsage.core.errors import ConfigError
from corsage.core.registry import ALGORITHMS, Algorithm

OWN_FILES: set[str] = set()
"""The files of methods of one's own in this process."""


def registered(file: str) -> str:
    """Make a method known by the file of its strategy; its name. Without a file there is none."""
    if not file:
        return ""
    path = Path(file).expanduser().resolve()
    client = client_of(path)
    for one in (path, client):
        if one.suffix != ".py" or not one.is_file():
            raise ConfigError(f"--mine {file}: {one} is not there; a method is strategies/NAME.py "
                              "and clients/NAME.py, as docs/adding.md says.")  # fmt: skip
    name = path.stem.replace("_", "-")
    entry = Algorithm(class_of(path))
    if str(path) not in OWN_FILES and (name in ALGORITHMS or module_there(path.stem)):
        raise ConfigError(f"--mine {file}: {name} is a name of Corsage's; call yours otherwise.")
    OWN_FILES.add(str(path))
    ALGORITHMS[name] = entry
    for package, folder in ((corsage.strategies, path.parent), (corsage.clients, client.parent)):
        if str(folder) not in package.__path__:
            package.__path__.append(str(folder))
    return name


def module_there(stem: str) -> bool:
    """Tell whether a file of Corsage's would be found in the place of one's own."""
    return any(find_spec(f"corsage.{floor}.{stem}") for floor in ("strategies", "clients"))


def mark_of(file: str) -> dict[str, str]:
    """The mark of the two files of one's own, on which a line's numbers depend; {} of none."""
    if not file:
        return {}
    path = Path(file)
    texts = [one.read_text(encoding="utf-8") for one in (path, client_of(path))]
    return {"mine": digest(texts)}


def client_of(path: Path) -> Path:
    """The file of a method's client, by that of its strategy."""
    return path.parent.parent / "clients" / path.name


def class_of(path: Path) -> str:
    """The name of the strategy in a file: the class that is named as the file."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"--mine {path}:{error.lineno}: {error.msg}.") from error
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    wanted = path.stem.replace("_", "").lower()
    found = [name for name in names if name.lower() == wanted]
    if not found:
        raise ConfigError(f"--mine {path}: no class named as the file; there are: {names}.")
    return found[0]
