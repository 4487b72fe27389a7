"""The words of commands about models: which folder, which row, whose model, which options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corsage.core.errors import ConfigError
from corsage.core.keys import nearest


@dataclass(frozen=True)
class Words:
    """What the words say.

    Parameters
    ----------
    files : what stands for itself: the folder, and a file.
    keys : `strategy=` and `user=`.
    options : those with a value, such as `--out FILE`.
    flags : those without.
    """

    files: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)


def read(
    words: Collection[str], names: Collection[str], options: Collection[str], flags: Collection[str]
) -> Words:
    """The words; ConfigError on one that is none of these."""
    found, rest = Words(), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in flags:
            found.flags.add(word)
        elif name in options:
            found.options[name] = value if equals else next(rest, "")
            if not found.options[name]:
                raise ConfigError(f"{name}: say what, {name} FILE.")
        elif equals and name in names:
            found.keys[name] = value
        elif word.startswith("-"):
            raise ConfigError(f"{word}: no such option.{nearest(word, [*options, *flags])}")
        elif equals and not Path(word).exists():
            raise ConfigError(f"{name}: no such word here.{nearest(name, names)}")
        else:
            found.files.append(word)
    return found


def only(found: Mapping[str, object], what: str) -> str:
    """The only name among some; ConfigError that says which there are, if they are several."""
    if len(found) == 1:
        return next(iter(found))
    names = list(found)
    some = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise ConfigError(f"{what}=NAME: say which. There are: {some or 'none'}.")
