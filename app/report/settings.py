"""How a run was made: all its keys, and the command that makes it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from corsage.core.configuration.known_keys import known_keys
from corsage.core.keys import Value
from corsage.core.measures import DASH

NOT_AGAIN = ("resume", "run-dir")
"""Keys that say where a run was kept, not what it was."""


def grouped(config: Mapping[str, Value]) -> dict[str, dict[str, tuple[Value, bool]]]:
    """Group titles, their keys, and each key's value and whether it was changed."""
    groups: dict[str, dict[str, tuple[Value, bool]]] = {}
    rest = dict(config)
    for name, key in known_keys().items():
        if name in rest:
            value = rest.pop(name)
            groups.setdefault(key.title, {})[name] = (value, value != key.default)
    if rest:
        groups["Other"] = {name: (value, True) for name, value in rest.items()}
    return groups


def word(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def settings(config: Mapping[str, Value]) -> str:
    """The keys that were changed from their defaults, and behind a fold all of them."""
    groups = grouped(config)
    changed = [
        f'<tr class="set"><td>{escape(name)}</td><td>{escape(word(value)) or DASH}</td></tr>'
        for group in groups.values()
        for name, (value, set_) in group.items()
        if set_
    ]
    return (
        '<p class="soft">Keys that were changed from their defaults:</p>\n'
        f'<div class="keys"><section><table>{"".join(changed)}</table></section></div>\n'
        f"<details><summary>All {len(config)} keys</summary>\n"
        f'<div class="keys">{keys(config)}</div></details>'
    )


def keys(config: Mapping[str, Value]) -> str:
    """The resolved configuration, a small table a group; what was changed is bold."""
    sections = []
    for title, group in grouped(config).items():
        lines = []
        for name, (value, changed) in group.items():
            mark = ' class="set"' if changed else ""
            shown = escape(word(value)) or DASH
            lines.append(f"<tr{mark}><td>{escape(name)}</td><td>{shown}</td></tr>")
        sections.append(
            f"<section><h3>{escape(title)}</h3><table>{''.join(lines)}</table></section>"
        )
    return "\n".join(sections)


def command(config: Mapping[str, Value]) -> str:
    """The command that does the same run again: what is not its default, and the seed always."""
    changed = {n: v for g in grouped(config).values() for n, (v, set_) in g.items() if set_}
    if "seed" in config:
        changed["seed"] = config["seed"]
    words = [shlex.quote(f"{n}={word(v)}") for n, v in changed.items() if n not in NOT_AGAIN]
    return " ".join(["python run_simulation.py", *words])
