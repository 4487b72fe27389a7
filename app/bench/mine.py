"""A method of one's own in the bench: `strategies/NAME.py`, and beside it `clients/NAME.py`.

They are the two files of docs/adding.md, wherever they lie.
"""

from __future__ import annotations

import ast
from pathlib import Path

import corsage.clients
import corsage.strategies
from corsage.core.errors import ConfigError
from corsage.core.registry import ALGORITHMS, Algorithm


def registered(file: str) -> str:
    """Make a method known by the file of its strategy; its name. Without a file there is none."""
    if not file:
        return ""
    path = Path(file).expanduser().resolve()
    client = path.parent.parent / "clients" / path.name
    for one in (path, client):
        if one.suffix != ".py" or not one.is_file():
            raise ConfigError(f"--mine {file}: {one} is not there; a method is strategies/NAME.py "
                              "and clients/NAME.py, as docs/adding.md says.")  # fmt: skip
    name = path.stem.replace("_", "-")
    entry = Algorithm(class_of(path))
    if ALGORITHMS.setdefault(name, entry) != entry:
        raise ConfigError(f"--mine {file}: {name} is a method of Corsage's; call yours otherwise.")
    for package, folder in ((corsage.strategies, path.parent), (corsage.clients, client.parent)):
        if str(folder) not in package.__path__:
            package.__path__.append(str(folder))
    return name


def class_of(path: Path) -> str:
    """The name of the strategy in a file: the class that says which keys it has, or the last."""
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
