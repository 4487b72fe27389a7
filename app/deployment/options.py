"""`--name value` words of the operator's commands."""

from __future__ import annotations

import re
from collections.abc import Mapping

from corsage.core.errors import ConfigError


def read_options(words: list[str], defaults: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The options, and the words that are none; at least one word must be none."""
    options, plain = dict(defaults), list[str]()
    rest = iter(words)
    for word in rest:
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            plain.append(word)
            continue
        if name not in defaults:
            raise ConfigError(f"{word}: no such option. There are: {', '.join(defaults)}.")
        options[name] = value or next(rest, "")
        if not options[name]:
            raise ConfigError(f"{word}: needs a value.")
    if not plain:
        raise ConfigError("a folder is missing: see --help.")
    return options, plain


def number(options: Mapping[str, str], name: str, most: int = 2**16 - 1) -> int:
    """An option that is a port, or another whole number from 1 on."""
    value = options[name]
    if not re.fullmatch("[0-9]{1,9}", value) or not 0 < int(value) <= most:
        raise ConfigError(f"--{name}={value}: must be a whole number from 1 to {most}.")
    return int(value)
