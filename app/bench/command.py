"""The commands `corsage bench` and `corsage verify`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corsage.app.bench.jobs import versions
from corsage.app.bench.journal import BenchFolder, newest, read_lines
from corsage.app.bench.protocol import Json, Protocol, name_of
from corsage.app.bench.rows import Results
from corsage.app.bench.running import Bench, available
from corsage.app.bench.sets import QUICK_SETS, SETS, chosen, methods
from corsage.app.output.usage import command
from corsage.core.configuration.command_line import read_words
from corsage.core.errors import ConfigError, CorsageError, DataError
from corsage.core.seeding import generator, some_of

BENCH = """\
usage: corsage bench [--plan] [--quick] [--only METHOD@SET,...] [--mine FILE]
                     [data-dir=DIR] [run-dir=DIR] [study-workers=N]
       corsage bench --resume [FOLDER] [--only METHOD@SET,...] [--mine FILE] [data-dir=DIR]
       corsage bench --show FOLDER | FILE.jsonl[.xz]

  Tunes every method on every data set alike (8 trials, judged on validation data), trains the best
  with five seeds, and tests it once. Without an option it is the whole of it, a night's work.

  --plan         say what would be run, and estimate its CPU time and duration
  --quick        small sets that come with Corsage, 3 trials and 2 seeds: some minutes
  --only WORDS   METHOD@SET, METHOD or @SET, several with commas: FedRep@watch,@school
  --mine FILE    a method of your own, strategies/NAME.py with clients/NAME.py beside it
  --resume       go on with the newest bench in run-dir, or with the one in FOLDER; what --only or
                 --mine names is added to it
  --show PLACE   the tables of what is done, of a folder or of its results.jsonl
  data-dir=DIR   where publishers' files are; a set whose file is not there is left out
  study-workers=N  runs at the same time; by itself as many as there are cores
"""
VERIFY = """\
usage: corsage verify CELL [FOLDER | FILE.jsonl[.xz]] [data-dir=DIR] [engine=ray] [num-nodes=N]

  Runs a cell of a bench again, and compares to the last digit.

  CELL    fedrep@moons:t3 (a trial), fedrep@moons:t3:s0 (a seed of the test), or fedrep@moons: all
          that was tested; a number: so many cells at random
  FOLDER  of the bench; without one the newest in run-dir
"""
QUICK_PROTOCOL = Protocol(trials=3, seeds=2)
DATA_PLACES = ("data-dir", "cache-dir")
"""Keys that say where files of data are."""
BENCH_OPTIONS = ("--plan", "--quick", "--only", "--mine", "--resume", "--show")


@command(BENCH)
def bench(words: list[str]) -> None:
    """`corsage bench`: the whole table, a part of it, or what is left of one."""
    options, keys = split(words)
    if "--show" in options:
        if len(options) > 1 or keys:
            raise ConfigError("bench: --show takes a place, and nothing else.")
        show(Path(options["--show"]).expanduser())
        return
    parent = Path(str(keys.get("run-dir", "runs"))).expanduser()
    if "--resume" in options:
        if {*options} - {"--resume", "--only", "--mine"}:
            what = "--only or --mine adds to it"
            raise ConfigError(f"bench: --resume goes on with what was begun, or {what}.")
        place = Path(options["--resume"]).expanduser() if options["--resume"] else newest(parent)
        folder = resumed(place, options, data_places(keys))
        perform(folder, int(keys.get("study-workers", 0)))
        return
    plan = planned(options, data_places(keys))
    if "--plan" in options:
        from corsage.app.bench.estimate import estimate

        estimate(plan, int(keys.get("study-workers", 0)))
        return
    perform(BenchFolder.begin(parent, plan), int(keys.get("study-workers", 0)))


def resumed(place: Path, options: Mapping[str, str], where: Mapping[str, Any]) -> BenchFolder:
    """An earlier bench, with what is added to it, its files where they are now."""
    folder = BenchFolder.there(place)
    file = file_of(options)
    own = mine_of(file or folder.mine)
    folder.check_versions(versions("" if file else folder.mine))
    if file:
        folder.adopt(own, file, versions(file))
    words = options.get("--only", own if file else "")
    if words or where:
        found = here(folder.plan["sets"], where)[0]
        folder.plan = {**folder.plan, "sets": {**folder.plan["sets"], **found}}
        if words:
            folder.include(chosen(words.split(","), found, methods()))
    return folder


def here(sets: Mapping[str, Any], where: Mapping[str, Any]) -> tuple[dict[str, Any], Json]:
    """The sets that can be run, and why others cannot, which is also said."""
    found, gone = available(sets, where)
    for name, why in gone.items():
        print(f"{name} is left out: {why}", file=sys.stderr)
    return found, gone


def show(place: Path) -> None:
    """Show the tables of a bench, which may be at work, or of a file of results."""
    from corsage.app.bench import table

    lines, costs = read_lines(place)
    if not lines:
        raise CorsageError(f"{place}: no run of it is done yet.")
    table.show(Results.of(lines, costs))


def data_places(keys: Mapping[str, Any]) -> dict[str, str]:
    """The keys that say where files of data are, from wherever it is gone on with."""
    return {k: str(Path(str(keys[k])).expanduser().resolve()) for k in DATA_PLACES if k in keys}


def split(words: list[str]) -> tuple[dict[str, str], Mapping[str, Any]]:
    """The options, and the keys."""
    options: dict[str, str] = {}
    plain, rest = [], [*words]
    while rest:
        name, sign, value = rest.pop(0).partition("=")
        if not name.startswith("--"):
            plain.append(name + sign + value)
            continue
        if name not in BENCH_OPTIONS:
            raise ConfigError(f"bench: {name}: unknown. See corsage bench --help.")
        if name not in ("--plan", "--quick") and not value and rest and "=" not in rest[0]:
            value = "" if rest[0].startswith("--") else rest.pop(0)
        if name in ("--only", "--mine", "--show") and not value:
            raise ConfigError(f"bench: {name}: needs a value.")
        options[name] = value
    for one in plain:
        if one.partition("=")[0] not in ("run-dir", "study-workers", *DATA_PLACES):
            raise ConfigError(
                f"bench: {one}: of keys it takes run-dir, study-workers, {', '.join(DATA_PLACES)}."
            )
    return options, read_words(plain)


def file_of(options: Mapping[str, str]) -> str:
    """The file of a method of one's own, from wherever the bench is gone on with."""
    return str(Path(options["--mine"]).expanduser().resolve()) if "--mine" in options else ""


def mine_of(file: str) -> str:
    """The name of a method of one's own."""
    from corsage.app.bench.mine import registered

    return registered(file)


def planned(options: Mapping[str, str], where: Mapping[str, Any]) -> Json:
    """All that is to be run; sets whose files are not here are left out by name."""
    quick = "--quick" in options
    file = file_of(options)
    own, sets = mine_of(file), QUICK_SETS if quick else SETS
    pairs = chosen(options["--only"].split(",") if "--only" in options else (), sets, methods())
    if own and "--only" not in options:
        references = {"constant", "local", "fedavg", own}
        pairs = [pair for pair in pairs if pair[0] in references]
    some = {name: sets[name] for name in dict.fromkeys(place for _, place in pairs)}
    found, gone = here(some, where)
    pairs = [pair for pair in pairs if pair[1] not in gone]
    if not pairs:
        raise ConfigError("bench: no data set of it is here.")
    return {
        "protocol": asdict(QUICK_PROTOCOL if quick else Protocol()),
        "sets": found,
        "pairs": [list(pair) for pair in pairs],
        "absent": gone,
        "mine": file,
        "versions": versions(file),
    }


def perform(folder: BenchFolder, at_once: int) -> None:
    """Run what is left, and show the table."""
    from corsage.app.bench.table import conclude

    with folder:
        work = Bench(folder)
        print(f"Bench of {work.whole} runs: {folder.folder}", file=sys.stderr, flush=True)
        try:
            work.run(at_once)
        except BaseException:
            print(f"It can be finished: corsage bench --resume {folder.folder}", file=sys.stderr)
            raise
        folder.conclude()
        conclude(folder)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = used.ru_utime + used.ru_stime
    if work.cpu:
        start = max(whole - work.cpu, 0.0)
        print(
            f"CPU: {work.cpu:.1f} s of runs, {start:.1f} s of starting processes "
            f"({100 * start / max(whole, 1e-9):.1f}%)", file=sys.stderr,
        )  # fmt: skip
    if work.lost:
        raise CorsageError(
            f"{len(work.lost)} runs were ended from outside: {', '.join(work.lost[:3])}. "
            f"corsage bench --resume {folder.folder} tries them again."
        )


@command(VERIFY, needs_words=True)
def verify(words: list[str]) -> None:
    """`corsage verify CELL`: a cell once more, compared to the last digit."""
    from corsage.app.bench.again import differences

    plain = [word for word in words if "=" not in word]
    if len(plain) not in (1, 2):
        raise ConfigError("verify: takes a cell, and a folder or file. See corsage verify --help.")
    keys = read_words([word for word in words if "=" in word])
    wanted, place = plain[0], Path(plain[1]).expanduser() if len(plain) > 1 else None
    source = place or newest(Path(str(keys.pop("run-dir", "runs"))).expanduser())
    where = data_places(keys)
    keys = {key: value for key, value in keys.items() if key not in DATA_PLACES}
    folder = BenchFolder.there(source) if source.is_dir() else None
    mine, sets = (folder.mine, folder.plan["sets"]) if folder else ("", {})
    mine_of(mine)
    lines = {name_of(line): line for line in read_lines(source)[0]}
    if wanted.isdigit():
        picked = some_of(generator(0, "verify"), len(lines), min(int(wanted), len(lines)))
        some = {[*lines][place]: [*lines.values()][place] for place in picked}
    else:
        some = {name: line for name, line in lines.items() if matches(name, line, wanted)}
    if not some:
        raise ConfigError(f"verify {wanted}: no such cell in {source}; it has {listed(lines)}.")
    wrong = 0
    for name, line in some.items():
        known = data_places(sets.get(line["place"], {}))
        found = differences(line, keys, mine, placed(line, where) if where else known)
        wrong += bool(found)
        print(f"{name}: {'the same to the last digit' if not found else '; '.join(found[:3])}")
    if wrong:
        raise CorsageError(f"{wrong} of {len(some)} cells are not the same.")


def placed(line: Mapping[str, Any], where: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of where the files of a line are, as the bench itself finds them."""
    from corsage.app.bench.again import places

    found, gone = available({line["place"]: places(line["config"])}, where)
    if gone:
        raise DataError(gone[line["place"]])
    return data_places(found[line["place"]])


def matches(name: str, line: Mapping[str, Any], wanted: str) -> bool:
    """Tell whether a cell is meant; a row names what was tested."""
    method, _, rest = wanted.partition("@")
    asked = f"{method.partition('+')[0].lower()}@{rest}"
    return name == asked or (line["seed"] is not None and name.partition(":")[0] == asked)


def listed(names: Mapping[str, Any]) -> str:
    """Some of the cells."""
    return ", ".join([*names][:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")
