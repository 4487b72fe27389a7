"""Owners of a model's parameters and buffers, by patterns: shared, a user's own, or frozen.

A pattern is compared with the names of parameters, buffers and modules as file names are (`*` also
takes dots); one of a module takes all that is in it. `@` before it compares it with the types of
modules, and `!` leaves out what it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from corsage.core.errors import ModelError

LISTED_NAMES = 30
"""Modules that a message names at most."""


@dataclass(frozen=True)
class Words:
    """Patterns of the keys, with commas.

    `also` is a user's own too, whatever else is.
    """

    head: str = ""
    shared: str = ""
    personal: str = ""
    frozen: str = ""
    also: str = ""


@dataclass(frozen=True)
class Owners:
    """Owners of parameters and buffers, by name.

    Parameters
    ----------
    personal : what a user's own part has, in methods that split the model.
    frozen : what nobody trains, and what no training pass moves.
    said : how messages call the user's own part.
    head : the module that is that part, if it is one; empty is the whole model.
    """

    personal: frozenset[str]
    frozen: frozenset[str]
    said: str
    head: str | None


class Names:
    """The names of a module's tensors; one that has several is known by its first."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.tensors: dict[str, Tensor] = dict(module.named_parameters())
        self.tensors.update(module.named_buffers())
        self.first = {id(tensor): name for name, tensor in self.tensors.items()}
        self.modules = dict(module.named_modules(remove_duplicate=False))
        every = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        self.every = [(name, self.first[id(tensor)]) for name, tensor in every]

    def inside(self, name: str) -> frozenset[str]:
        """All that is in a module."""
        own = self.modules[name]
        return frozenset(self.first[id(t)] for t in (*own.parameters(), *own.buffers()))

    def taken(self, key: str, words: str) -> frozenset[str]:
        """The names that patterns take; ModelError of one that names nothing."""
        found: set[str] = set()
        for word in filter(None, (part.strip() for part in words.split(","))):
            some = self.matching(key, word.removeprefix("!"))
            found = found - some if word.startswith("!") else found | some
        if not found:
            raise ModelError(f"{key}={words}: names nothing. {self.known()}")
        return frozenset(found)

    def matching(self, key: str, word: str) -> set[str]:
        """The names that one pattern takes."""
        kind = word.startswith("@")
        modules = [
            name
            for name, module in self.modules.items()
            if name and fnmatchcase(type(module).__name__ if kind else name, word.removeprefix("@"))
        ]
        within = tuple(f"{name}." for name in modules)
        found = {one for name, one in self.every if fnmatchcase(name, word)}
        found |= {one for name, one in self.every if name.startswith(within)}
        if modules and not found:
            raise ModelError(f"{key}={word}: has no parameters. {self.known()}")
        if not found:
            raise ModelError(f"{key}={word}: the model has no such module. {self.known()}")
        return found

    def known(self) -> str:
        """The modules' names and types, for messages."""
        named = [f"{n} ({type(m).__name__})" for n, m in self.modules.items() if n]
        more = f" and {len(named) - LISTED_NAMES} more" if len(named) > LISTED_NAMES else ""
        few = ", ".join(named[:LISTED_NAMES]) or f"only {type(self.module).__name__} itself"
        return f"Modules: {few}{more}."


def owners(names: Names, words: Words, still: frozenset[str], head: str | None) -> Owners:
    """The owners, with what is a user's own in any case."""
    found = as_said(names, words, still, head)
    more = names.taken("personal", words.also) - still if words.also else frozenset[str]()
    if more <= found.personal:
        return found
    said = f"{found.said} and {words.also} (batch-norm=personal)"
    return Owners(found.personal | more, still, said, None)


def as_said(names: Names, words: Words, still: frozenset[str], head: str | None) -> Owners:
    """The owners; ModelError, in one line, where the patterns cannot be meant.

    Parameters
    ----------
    still : what is not trained, by its pattern or by itself, and what no training pass moves.
    head : the module that is the head, where no pattern says it.
    """
    moving = frozenset(names.tensors) - still
    if not moving:
        said = f"frozen={words.frozen}" if words.frozen else "the model"
        raise ModelError(f"{said}: nothing is left to train. {names.known()}")
    if words.head and (words.personal or words.shared):
        raise ModelError(
            f"head={words.head}: personal and shared say already what is a user's own; leave one "
            "of them out."
        )
    if not (words.head or words.personal or words.shared):
        assert head is not None
        return found_head(names, words, still, head)
    by_key = {
        key: names.taken(key, pattern)
        for key, pattern in vars(words).items()
        if pattern and key not in ("frozen", "also")
    }
    if words.frozen:
        by_key["frozen"] = names.taken("frozen", words.frozen)
    refuse_overlaps(words, by_key)
    own = personal_of(words, by_key, moving)
    said = f"head {words.head}" if words.head else f"all but {words.shared}"
    said = f"personal {words.personal}" if words.personal else said
    return Owners(own, still, said, one_module(names, words.head, own, still))


def found_head(names: Names, words: Words, still: frozenset[str], head: str) -> Owners:
    """The head that was found by running the module."""
    own = names.inside(head) - still
    if not own:
        raise ModelError(
            f"frozen={words.frozen}: takes the whole head ({head}); say by head=NAME what else a "
            "user's own part is."
            if words.frozen
            else f"the head ({head}) is not trained; say by head=NAME what a user's own part is."
        )
    return Owners(own, still, f"head {head}", head)


def one_module(names: Names, said: str, own: frozenset[str], still: frozenset[str]) -> str | None:
    """The module that a user's own part is, but for what is not trained; None if it is not one.

    Of several it is the one that is `said`, or else the innermost.
    """
    found = [name for name in names.modules if names.inside(name) - still == own]
    if said in found:
        return said
    return found[-1] if found else None


def refuse_overlaps(words: Words, by_key: Mapping[str, frozenset[str]]) -> None:
    """ModelError if two keys name the same."""
    keys = list(by_key)
    for i, one in enumerate(keys):
        for other in keys[i + 1 :]:
            if both := by_key[one] & by_key[other]:
                raise ModelError(
                    f"{one}={getattr(words, one)} and {other}={getattr(words, other)} both name "
                    f"{few(both)}; leave it out of one of them, as {other}=...,!{min(both)} does."
                )


def personal_of(
    words: Words, by_key: Mapping[str, frozenset[str]], moving: frozenset[str]
) -> frozenset[str]:
    """A user's own part, of what is trained or moves."""
    shared, own = by_key.get("shared"), by_key.get("personal", by_key.get("head"))
    if shared is not None and own is not None and (rest := moving - shared - own):
        raise ModelError(
            f"shared={words.shared} personal={words.personal}: neither names {few(rest)}; leave "
            "one of the keys out, and it is all the rest."
        )
    if own is None:
        assert shared is not None
        own = moving - shared
    for key, part in (("shared", shared), ("personal", own), ("head", own)):
        pattern = getattr(words, key)
        if part is None or not pattern:
            continue
        if not part & moving:
            raise ModelError(f"{key}={pattern}: nothing of it is trained: {few(part)}.")
        if key != "head" and part >= moving:
            raise ModelError(f"{key}={pattern}: names everything that is trained.")
    return own & moving


def few(names: Iterable[str]) -> str:
    """The first names of some, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
