"""Words that were renamed: how the settings of a run are said to an old checkout and to a new one.

Results come back under the new names too; they are compared under the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping

Keys = Mapping[str, object]

STRATEGIES = {
    ("fedrep", "fedrep-heads", "convex-clustering"): "fedrep-convex",
    ("fedrep", "fedrep-heads", "known-clusters"): "fedrep-known",
}
"""A strategy that a key and its value made another one, and the name that this one has now."""
KEYS = {
    "fedrep-heads-lambda": "fedrep-convex-lambda",
    "fedrep-heads-neighbours": "fedrep-convex-neighbours",
    "fedrep-heads-rho": "fedrep-convex-rho",
    "fedrep-heads-gamma": "fedrep-known-gamma",
    "fedrep-heads-middle": "fedrep-known-lambda",
}
GONE = {"fedrep-heads": "own"}
"""Keys that are gone, and the value that said nothing."""


def is_new(declared: str) -> bool:
    """Whether a checkout has the new words, by the keys that its pyproject.toml declares."""
    return all(key in declared for key in KEYS.values())


def renamed(keys: Keys) -> dict[str, object]:
    """The same settings in the new words."""
    moved = moved_strategies(keys)
    named: dict[str, object] = {KEYS.get(key, key): value for key, value in keys.items()}
    if moved:
        own = str(keys["strategy"]).split(",")
        named["strategy"] = ",".join(moved.get(name, name) for name in own)
    makers = {key for old, key, _ in STRATEGIES if old in moved}
    return {k: v for k, v in named.items() if k not in makers and GONE.get(k) != v}


def moved_strategies(keys: Keys) -> dict[str, str]:
    """The strategies that these settings have under another name now: old name, new name."""
    found = {}
    for (old, key, value), new in STRATEGIES.items():
        if keys.get(key) == value and old in str(keys["strategy"]).split(","):
            found[old] = new
    return found


def old_row_name(keys: Keys, name: str) -> str:
    """A row's name (`fedrep-convex+new`) as it was before (`fedrep+new`)."""
    strategy, plus, kind = name.partition("+")
    olds = {new: old for old, new in moved_strategies(keys).items()}
    return olds.get(strategy, strategy) + plus + kind
