"""Print what a checkout looks like as a house: lines, rooms, words, and what one must know.

With `--against CHECKOUT` the numbers of another one stand beside them. `--check` compares what may
not grow with the limits in `benchmarks/house.toml`: a line for each figure beyond, exit code 1.

What is counted: Python files of the packages that are installed (tests, experiments and benchmarks
are left out). An import counts wherever it stands, unless it is for types only; what the registry
loads by name is not seen. The depth of a class includes the class itself. The files one must know
for an algorithm are those of its strategy and client, and all they import of packages other than
app, core and datasets; the row below it leaves out none. Words of a state are literal keys of
`scalars` and `arrays` in the strategies.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from corsage.benchmarks.house.limits import beyond, figures, limits
from corsage.benchmarks.house.sources import BELOW, KEYS_ASSERTED, Sources

OWN = Path(__file__).resolve().parents[2]
"""The checkout that this file lies in."""
ANY = re.compile(re.escape("dict[str, Any]"))
COMMANDS = {
    "--help": ["--help"],
    "a mistyped key": ["num-round=3"],
    "a round of local": ["strategy=local", "num-rounds=1"],
}


def main(words: list[str]) -> int:
    """Measure one or two checkouts and print them side by side."""
    options = parser().parse_args(words)
    if options.check:
        return check(options.checkout.resolve())
    roots = [root.resolve() for root in (options.against, options.checkout) if root]
    houses = [measured(root, options.times) for root in roots]
    rows = [["what", *(str(root) for root in roots)]]
    rows += [[what, *(house[what] for house in houses)] for what in houses[-1]]
    print(aligned(rows))
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        "python -m corsage.benchmarks house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--against", type=Path, metavar="CHECKOUT", help="measured beside it")
    found.add_argument("--checkout", type=Path, default=OWN, metavar="FOLDER", help="measure this")
    found.add_argument("--check", action="store_true", help="compare with the limits")
    found.add_argument("--times", type=int, default=5, help="runs of each timed command")
    return found


def check(root: Path) -> int:
    """Compare with the limits; 1 if a figure is beyond."""
    found = figures(root, probe(root)["rounds"])
    wrong = beyond(found, limits())
    for line in wrong:
        print(line)
    if not wrong:
        print(f"{len(found)} figures, none beyond its limit")
    return bool(wrong)


def aligned(rows: list[list[str]]) -> str:
    """A table as text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([word.ljust(width) for word, width in zip(r, widths, strict=True)] for r in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)


def measured(root: Path, times: int) -> dict[str, str]:
    """All numbers of a checkout."""
    sources, live = Sources(root), probe(root)
    rows = in_sources(sources) | in_classes(live)
    for name in ("fedrep", "async-al2sgd"):
        rows |= to_know(sources, name, [Path(file) for file in live["files"].get(name, [])])
    for name, seen in live["rounds"].items():
        what = f"functions / files a round of {name} passes through"
        rows[what] = f"{seen['functions']} / {seen['files']}"
    rows |= of_halves(sources, live)
    for what, arguments in COMMANDS.items():
        rows[f"CPU seconds of {what}"] = f"{seconds(root, arguments, times):.2f}"
    rows["lines of README"] = str(len((root / "README.md").read_text("utf-8").splitlines()))
    return rows


def in_sources(sources: Sources) -> dict[str, str]:
    """What the files say."""
    files, folder = sources.largest_folder()
    many, middle, high, most = sources.function_lines()
    return {
        "packages in one import cycle": knot(sources.cycle(1)),
        "folders in one import cycle": knot(sources.cycle(9)),
        "files in the largest flat folder": f"{files} ({folder})",
        "functions: median / p95 / most lines": f"{many:,}: {middle:g} / {high} / {most}",
        "dict[str, Any]": str(sources.mentions(ANY)),
        "assert isinstance(... .keys, ...)": str(sources.mentions(KEYS_ASSERTED)),
    }


def knot(names: list[str]) -> str:
    """How many are in a cycle, and which."""
    return f"{len(names)} ({', '.join(names)})" if len(names) > 1 else "none"


def in_classes(live: dict[str, Any]) -> dict[str, str]:
    """What the classes of the algorithms say."""
    (deep, deepest), (many, largest) = live["depth"], live["methods"]
    return {
        "own classes down to an algorithm, the deepest": f"{deep} ({deepest})",
        "methods on the largest strategy object": f"{many} ({largest})",
        "private methods overridden across classes": str(live["overridden"]),
    }


def to_know(sources: Sources, name: str, begin: list[Path]) -> dict[str, str]:
    """Files and lines that one must know for an algorithm."""
    rows = {}
    for kind, without in (("", BELOW), (", with core, app, datasets", ())):
        files = sources.to_know(begin, without)
        what = f"files / lines one must know for {name}{kind}"
        rows[what] = f"{len(files)} / {sources.lines(files):,}"
    return rows


def of_halves(sources: Sources, live: dict[str, Any]) -> dict[str, str]:
    """What the server's half and the users' half say; the packages are those of fedrep."""
    server, users = (Path(file).parts[0] for file in live["files"]["fedrep"])
    files = [path for path in sources.files if path.parts[0] == users]
    return {
        "string keys of state": str(sources.state_keys(server)),
        f"lines of {users}/": f"{sources.lines(files):,}",
    }


def probe(root: Path) -> dict[str, Any]:
    """What the running code says."""
    words = [sys.executable, "-P", str(Path(__file__).with_name("probe.py"))]
    process = run(root, words)
    if process.returncode:
        raise SystemExit(f"{root}: {process.stderr.strip().splitlines()[-1]}")
    for line in process.stderr.splitlines():
        if " is left out: " in line:
            print(f"{root}: {line}", file=sys.stderr)
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def seconds(root: Path, arguments: list[str], times: int) -> float:
    """CPU seconds of the command line with these words: the median of some runs."""
    found = []
    for _ in range(times):
        before = spent()
        with tempfile.TemporaryDirectory() as folder:
            more = [] if arguments == ["--help"] else [f"run-dir={folder}"]
            run(root, [sys.executable, "run_simulation.py", *arguments, *more])
        found.append(spent() - before)
    return median(found)


def spent() -> float:
    """CPU seconds of all processes that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(root: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a process with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        words, cwd=root, env=environment, capture_output=True, encoding="utf-8", check=False
    )
