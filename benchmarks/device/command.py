"""Hostile messages to a device.

    python -m corsage.benchmarks fuzz-device [--attacks N] [--seed S] [--resident]

Exit code 0 if none of them did any harm, 1 with the first of those that did.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from corsage.benchmarks.device.attacks import attack
from corsage.benchmarks.device.messages import ALL, KINDS, honest
from corsage.benchmarks.device.target import Target, peak_memory
from corsage.experiments.words import Parser


def main(words: list[str]) -> int:
    """Send them, and print what became of it."""
    parser = Parser("python -m corsage.benchmarks fuzz-device")
    parser.add_argument("--attacks", type=int, default=10_000, metavar="N", help="how many")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which")
    parser.add_argument("--resident", action="store_true", help="through its resident worker")
    found = parser.parse_args(words)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        target = Target(Path(folder), found.resident)
        os.chdir(target.outside)  # where the planted module would be imported from
        try:
            return report(target, found.seed, found.attacks)
        finally:
            os.chdir(here)


def report(target: Target, seed: int, count: int) -> int:
    """All attacks, and a table."""
    warm_up(target)
    before, started = peak_memory(), time.process_time()
    for number in range(count):
        target.strike(attack(seed, number, str(target.outside)))
    table = Table(title=f"{count:,} hostile messages to a device, seed {seed}")
    table.add_column("")
    table.add_column("", justify="right")
    rows = {
        "refused, in one line": f"{target.refused:,}",
        "answered": f"{target.answered:,}",
        "harm": f"{len(target.wrong):,}",
        "the device still does honest work": "yes" if target.lives() else "NO",
        "longest reply": f"{target.longest:.2f} s",
        "CPU": f"{time.process_time() - started:.0f} s",
        "memory beyond that of honest work": f"{(peak_memory() - before) / 2**20:.0f} MB",
    }
    for row in rows.items():
        table.add_row(*row)
    Console().print(table)
    for what, often in Counter(target.wrong).most_common(20):
        print(f"{often} x {what}")
    return 1 if target.wrong or not target.lives() else 0


def warm_up(target: Target) -> None:
    """Honest messages of all kinds: all code is loaded, and memory is what honest work takes.

    Torch makes a folder of its own when some of its code is loaded.
    """
    for name in ALL:
        for kind in KINDS:
            for number in range(7):
                target.ask(honest(name, kind, number).message())
