"""Compare the numbers of two checkouts, or write down those of one.

python -m corsage.benchmarks numbers --record FILE
    writes what the checkout that this command belongs to gives (or the one of --checkout)
python -m corsage.benchmarks numbers --against FILE_OR_CHECKOUT
    runs it and compares: a line for each run, and 1 as exit code if any numbers differ
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from corsage.benchmarks.numbers.cases import CASES, Case
from corsage.benchmarks.numbers.compare import BESIDE, NUMBERS, differences
from corsage.benchmarks.numbers.files import write_files
from corsage.benchmarks.numbers.runs import Checkout, Record, record, versions

OWN = Path(__file__).resolve().parents[2]
"""The checkout that this file lies in."""


def main(words: list[str]) -> int:
    """Record, compare, or both; 0, or 1 if numbers differ."""
    options = read_options(words)
    cases = wanted(options.only, options.engines.split(","))
    found = records(options.checkout, cases)
    if options.record:
        content = {"versions": versions(), "runs": found}
        options.record.write_text(json.dumps(content), encoding="utf-8")
    if not options.against:
        return 0
    against = options.against
    return report(read(against) if against.is_file() else records(against, cases), found)


def read_options(words: list[str]) -> argparse.Namespace:
    """The options, checked before anything runs."""
    found = parser()
    options = found.parse_args(words)
    if not options.record and not options.against:
        found.error("nothing to do: give --record or --against.")
    against = options.against
    folders = [options.checkout, *([against] if against and not against.is_file() else [])]
    for folder in folders:
        if not (folder / "run_simulation.py").is_file():
            found.error(f"{folder}: no checkout of Corsage, and no file of recorded numbers.")
    return options


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        "python -m corsage.benchmarks numbers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--against", type=Path, metavar="FILE_OR_CHECKOUT", help="what to compare with")
    add("--record", type=Path, metavar="FILE", help="write the numbers there")
    add("--checkout", type=Path, default=OWN, metavar="FOLDER", help="run this code")
    add("--only", default="", metavar="WORD", help="runs with this in their name or keys")
    add("--engines", default="local,ray", help="runs on these engines")
    return found


def wanted(only: str, engines: list[str]) -> list[Case]:
    """The cases with a word in their name, their strategies or keys, on these engines."""
    return [
        case
        for case in CASES
        if case.engine in engines and only in f"{case.name} {' '.join(case.words(Path(), False))}"
    ]


def records(root: Path, cases: Iterable[Case]) -> dict[str, Record]:
    """What a checkout gives for each case."""
    checkout, found = Checkout.at(root.resolve()), {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_files(data)
        for case in cases:
            print(f"{root.resolve().name}: {case.name} ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as place:
                found[case.name] = record(checkout, case, data, Path(place))
    return found


def read(path: Path) -> dict[str, Record]:
    """What was written down; said if it was under other versions of numpy and torch."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["versions"] != versions():
        print(f"{path}: recorded with {content['versions']}, this is {versions()}", file=sys.stderr)
    runs: dict[str, Record] = content["runs"]
    return runs


def report(old: dict[str, Record], new: dict[str, Record]) -> int:
    """Print a line a run, and below it what differs first; 1 if any numbers differ."""
    differ = 0
    for name, given in new.items():
        places = differences(old[name], given) if name in old else {"results": "not recorded"}
        wrong = [part for part in NUMBERS if part in places]
        differ += bool(wrong)
        failed = f" (both failed: {given['error']})" if "error" in given and not wrong else ""
        print(f"{name:36}{'DIFFERS' if wrong else 'equal'}{failed}")
        for part in (*wrong, *(part for part in BESIDE if part in places)):
            print(f"    {part}{' (beside)' if part in BESIDE else ''}: {places[part]}")
    print(f"{len(new)} runs, {differ} with other numbers.")
    return int(differ > 0)
