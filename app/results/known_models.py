"""Models of one's own, by name: which of them may be imported when a run is read again.

A run folder names its model, `net:Net`, and who loads a user's model imports that from the working
directory, too: a folder from elsewhere would run what lies beside it. So what is imported is
Corsage's own, a torch module's class that the program has imported itself, what this account has
trained as a model before (the same file, or one beside which there is no other code than there),
or what is allowed by name (`models=net:Net`). At a terminal a question is asked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path
from typing import Any

from corsage.core.configuration.held_objects import is_name
from corsage.core.errors import Refused
from corsage.core.files import cache_root, parsed, private_folder, write_atomically

KNOWN_FILE = "own-models.json"
MOST_KNOWN = 1000
"""Sources that are remembered."""
MOST_FILES = 2000
"""Files and folders beside a model, of which a copy elsewhere is known."""
_ALLOWED: set[str] = set()


def allow(models: Iterable[str]) -> None:
    """Let models be imported by this process, by their names."""
    _ALLOWED.update(models)


def note_model(model: str) -> None:
    """Remember that this account trains a model of its own, where it can be remembered."""
    mark = source_of(model) if is_own(model) else []
    known = known_sources()
    if not mark or mark in known:
        return
    root = cache_root("")
    with suppress(OSError):
        private_folder(root)
        text = json.dumps([*known, mark][-MOST_KNOWN:])
        write_atomically(root / KNOWN_FILE, text)
        (root / KNOWN_FILE).chmod(0o600)


def check_model(model: str) -> None:
    """Refuse to import a model that may be anybody's."""
    if not is_own(model) or model in _ALLOWED or is_module(model):
        return
    mark = source_of(model)
    for name, path, content in known_sources():
        if mark and name == model and path == mark[1]:
            return
        if mark and name == model and content == mark[2] != "":
            sys.pycache_prefix = str(cache_root("") / "compiled")  # not what lies there compiled
            return
    if not mark and (paths := [path for name, path, _ in known_sources() if name == model]):
        raise Refused(
            f"model={model}: its module is not found from here; it was trained as {paths[-1]}: "
            "work in its folder, or have that on PYTHONPATH."
        )
    where = mark[1] if mark else "a module that is not found"
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused(
            f"model={model}: the run names code of its own ({where}), which was not trained here "
            f"before; read it, and allow it by models={model}."
        )
    print(f"The run's model is {model}, code of {where}. Run it? [y/N] ", end="", file=sys.stderr)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused(f"model={model}: not run.")
    allow([model])


def check_rule(combination: Mapping[str, Any] | None) -> None:
    """Refuse to import a rule of several models that may be anybody's."""
    if combination and not combination["rule"].startswith("corsage."):
        check_model(combination["rule"])


def is_own(model: str) -> bool:
    """Tell whether a model is named by what is imported for it."""
    return ":" in model and not is_name(model)


def is_module(model: str) -> bool:
    """Tell whether a name is that of a torch module's class that is imported already."""
    module, _, name = model.partition(":")
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and any(one.__name__ == "Module" for one in found.__mro__)


def known_sources() -> list[list[str]]:
    """Models that were trained here: names, files, and hashes of their content."""
    with suppress(OSError, ValueError):
        found = parsed((cache_root("") / KNOWN_FILE).read_text(encoding="utf-8"))
        return [one for one in found if isinstance(one, list) and [*map(type, one)] == [str] * 3]
    return []


def source_of(model: str) -> list[str]:
    """A model's name, file and the hash of all code that it may import from its own folder.

    Nothing of it is imported; [] if there is no such file.
    """
    path, name = [*sys.path, str(Path.cwd())], ""
    with suppress(OSError, ValueError, ImportError):
        for part in model.partition(":")[0].split("."):
            name = f"{name}.{part}".lstrip(".")
            spec = PathFinder.find_spec(name, path)
            if spec is None:
                return []
            path = [*(spec.submodule_search_locations or [])]
        if spec is not None and spec.origin:
            source = Path(spec.origin).absolute()  # where a link lies, its neighbours do
            depth = name.count(".") + (source.stem == "__init__")
            return [model, str(source), code_in(source.parents[depth])]
    return []


def code_in(root: Path) -> str:
    """The hash of all that can be imported from a folder; empty if it is too much."""
    mark, room, endings = sha256(), MOST_FILES, tuple(all_suffixes())
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(f for f in folders if f.isidentifier() and f != "__pycache__")
        if (room := room - len(folders) - len(names)) < 0:
            return ""
        for path in (Path(folder, name) for name in sorted(names) if name.endswith(endings)):
            if not path.is_file():
                return ""
            content = sha256(path.read_bytes()).hexdigest()
            mark.update(f"{path.relative_to(root)}\0{content}\n".encode())
    return mark.hexdigest()
