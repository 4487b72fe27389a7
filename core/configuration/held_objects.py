"""Objects of this process that a key can name: data in memory, a model that is an object.

Keys are texts, so that they can go into a file and over a wire. What `hold` gives has a name that
a key can have, and the name means the object as long as somebody keeps what `hold` gave. Another
process does not know it.
"""

from __future__ import annotations

import secrets
from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

OBJECT_PREFIX = "object-"


class Held:
    """An object and the name that it has meanwhile."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name, self.thing = name, thing

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy that is sent to another process is known there by the same name."""
        return revived, (self.name, self.thing)


_NAMED: WeakValueDictionary[str, Held] = WeakValueDictionary()


def hold(thing: Any) -> Held:
    """An object under a new name, though it has another one: it may have changed meanwhile, and
    what was made of it under its old name is that of before."""
    made = Held(OBJECT_PREFIX + secrets.token_hex(6), thing)
    _NAMED[made.name] = made
    return made


def revived(name: str, thing: Any) -> Held:
    """The object that another process held, under its name."""
    found = _NAMED.get(name) or Held(name, thing)
    _NAMED[name] = found
    return found


def held(name: str) -> Held | None:
    """The object of a name in this process; None if it has none here."""
    return _NAMED.get(name)


def same(one: str, other: str) -> bool:
    """Tell whether two names mean one object of this process."""
    pair = held(one), held(other)
    return pair[0] is not None and pair[1] is not None and pair[0].thing is pair[1].thing


def is_name(text: str) -> bool:
    """Tell whether a text is such a name, of this process or another one."""
    return text.startswith(OBJECT_PREFIX)


def importable(thing: Any) -> str:
    """`package.module:name` of a class or function that another process can import, or nothing."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return ""
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        return ""
    return f"{module}:{name}" if found is thing else ""
