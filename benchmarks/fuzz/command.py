"""Hostile replies to all strategies: `python -m corsage.benchmarks fuzz [--attacks N] [--seed S]`.

One reply of a run of each strategy is changed, and goes through Flower's protobuf; the server must
drop its users and name them, or end the round in one line with the state as it was before, or go
on as if nothing was. It exits with 1 if it did anything else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corsage.benchmarks.fuzz.attacks import Attack, attacks
from corsage.benchmarks.fuzz.cost import milliseconds, peak_ratio
from corsage.benchmarks.fuzz.target import BAD, GOOD, Outcome, Target
from corsage.core.registry import ALGORITHMS
from corsage.experiments.words import Parser

SMALL: dict[str, Any] = {
    "num-users": 8,
    "num-rounds": 9,
    "fraction-train": 1.0,
    "hidden": "4",
    "head-epochs": 1,
    "fine-tune-epochs": 0,
}
KNOWN: dict[str, Any] = {
    "dataset": "ellipses",
    "partition": "natural",
    "num-users": 0,
    "users-per-cluster": 4,
    "num-clusters": 2,
    "model": "linear",
    "loss": "logistic",
    "known-gamma": 1,
    "known-lambda": 1,
    "single-cluster-lambda": 1,
}
HINGE: dict[str, Any] = {**KNOWN, "loss": "squared-hinge", "ridge": 0.001}
OWN: dict[str, dict[str, Any]] = {
    "fedrep-known": {"dataset": "ellipses", "partition": "natural", "num-users": 0,
                     "users-per-cluster": 4, "num-clusters": 2},
    "convex-clustering": {**HINGE, "convex-lambda": 0.03, "convex-certify-every": 1,
                          "convex-report": False},
    "local-clusters": HINGE,
}  # fmt: skip
KNOWN_CLUSTERS = tuple(
    name for name, a in ALGORITHMS.items() if "known_clusters" in (a.family, a.of) or a.of
)


def target(name: str) -> Target:
    """A strategy with keys that suit it."""
    own = OWN.get(name, KNOWN if name in KNOWN_CLUSTERS else {})
    return Target(name, {**SMALL, **own, "strategy": name})


def played(
    targets: Sequence[Target], number: int, seed: int
) -> Iterator[tuple[Target, Attack, Outcome]]:
    """So many attacks that change something, strategy by strategy and attack by attack."""
    every, rng, count, turn = attacks(), np.random.default_rng(seed), 0, 0
    order = [(t, a) for a in every for t in targets]
    while count < number:
        if turn % len(order) == 0:
            order = [order[i] for i in rng.permutation(len(order))]
        one, attack = order[turn % len(order)]
        turn += 1
        if (outcome := one.attacked(attack, rng)) is not None:
            count += 1
            yield one, attack, outcome


def main(words: list[str]) -> int:
    """Print what came of so many attacks; 1 if anything did that must not."""
    parser = Parser("python -m corsage.benchmarks fuzz")
    parser.add_argument("--attacks", type=int, default=20_000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which ones")
    found = parser.parse_args(words)
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong = Counter[str]()
    targets = [target(name) for name in ALGORITHMS]
    for one, attack, outcome in played(targets, found.attacks, found.seed):
        verdicts[one.name][outcome.verdict] += 1
        if outcome.bad:
            wrong[f"{one.name}: {attack.name}: {outcome.verdict}: {outcome.why}"] += 1
    show(verdicts, wrong)
    return 1 if wrong else 0


def show(verdicts: Mapping[str, Counter[str]], wrong: Counter[str]) -> None:
    """A table: a line a strategy; then what must not be, and what reading costs."""
    names = [*GOOD, *BAD]
    print(f"{'hostile replies':<18}" + "".join(f"{name:>11}" for name in names))
    total = sum(verdicts.values(), Counter[str]())
    for name, counts in [*sorted(verdicts.items()), ("all", total)]:
        print(f"{name:<18}" + "".join(f"{counts[verdict]:>11,}" for verdict in names))
    for line, times in wrong.most_common(20):
        print(f"{times} x {line}")
    ratio, which = peak_ratio()
    whole, bare = milliseconds()
    print(f"peak memory: {ratio:.2f} of a round of good replies at most ({which})")
    print(f"a message: {whole:.3f} ms to read and merge, {bare:.3f} ms to decode alone")
