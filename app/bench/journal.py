"""The bench on disk.

bench.json       what is run: protocol, sets with their keys, methods
journal.jsonl    a line a run that is done, in the order in which they ended, with its CPU seconds
results.jsonl    the same lines in order, without what was measured: whoever runs it again, killed
                 or not, has the same bytes
costs.jsonl      CPU seconds of each; where both are compressed (.xz), no journal is needed
table.csv, table.tex, report.html
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.bench.protocol import Json, Protocol, Work, cell, digest, name_of
from corsage.app.run.status import RunLock, new_folder
from corsage.core.errors import CheckpointError, ConfigError, OtherData
from corsage.core.files import guarded, write_atomically

if TYPE_CHECKING:
    from corsage.app.output.living import Far

PLAN, JOURNAL, RESULTS, COSTS_FILE = "bench.json", "journal.jsonl", "results.jsonl", "costs.jsonl"
SUFFIX = "bench"


class BenchFolder:
    """A bench's folder, which no other process may work on; a context manager.

    Parameters
    ----------
    folder : where it is.
    plan : what `bench.json` says.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self.lines: dict[str, Json] = {}
        self.costs: dict[str, float] = {}
        self._lock = RunLock(folder)
        self._read()

    @classmethod
    def begin(cls, parent: Path, plan: Mapping[str, Any]) -> BenchFolder:
        """A new one."""
        folder = new_folder(parent, SUFFIX)
        guarded(write_atomically, folder / PLAN, json.dumps(plan, indent=2), durable=True)
        return cls(folder, plan)

    @classmethod
    def there(cls, folder: Path) -> BenchFolder:
        """An earlier one."""
        try:
            plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
            if not {"protocol", "sets", "pairs"} <= {*plan}:
                raise ValueError("not whole")
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{folder}: no {PLAN} that can be read: no bench.") from error
        return cls(folder, plan)

    def __enter__(self) -> BenchFolder:
        self._lock.take()
        whole = self._read()  # another process may have been at work until now
        if len(whole) < len(self._raw()):
            guarded(write_atomically, self.folder / JOURNAL, whole, durable=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def protocol(self) -> Protocol:
        """Trials and seeds."""
        return Protocol(**self.plan["protocol"])

    @property
    def mine(self) -> str:
        """The file of a method of one's own."""
        return str(self.plan.get("mine", ""))

    def check_versions(self, now: Mapping[str, Any]) -> None:
        """Refuse to go on with other versions: lines of both would stand in one table."""
        was = self.plan.get("versions", now)
        others = [f"{k} {was.get(k)}, now {v}" for k, v in now.items() if was.get(k) != v]
        why = f"begun with {'; '.join(others)}. Go on with what it was begun with, or begin another"
        if now.get("mine") != was.get("mine", now.get("mine")):
            why = f"{self.mine} was changed since; --mine {self.mine} runs it anew"
        if others:
            raise CheckpointError(f"{self.folder}: {why}.")

    def _raw(self) -> bytes:
        path = self.folder / JOURNAL
        return path.read_bytes() if path.is_file() else b""

    def _read(self) -> bytes:
        """Read the lines that are done; the journal's bytes of all of them that are whole."""
        packed = self.folder / f"{RESULTS}.xz"
        lines, self.costs = read_lines(packed) if packed.is_file() else ([], {})
        self.lines = {name_of(line): line for line in lines}
        whole = []
        for text in self._raw().splitlines(keepends=True):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if text.endswith(b"\n"):
                    self._keep(json.loads(text))
                    whole.append(text)
        return b"".join(whole)

    def _keep(self, entry: Mapping[str, Any]) -> None:
        line = entry["line"]
        if entry["mark"] != digest(line):
            raise ValueError("damaged")
        name = name_of(line)
        self.lines[name], self.costs[name] = line, float(entry["cpu"])

    def add(self, line: Json, cpu: float) -> None:
        """One more, on disk before the next one begins."""
        self._check_data(line)
        entry = {"line": line, "cpu": cpu, "mark": digest(line)}
        guarded(self._write, json.dumps(entry).encode() + b"\n")
        self._keep(entry)

    def _write(self, text: bytes) -> None:
        with (self.folder / JOURNAL).open("ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _check_data(self, line: Json) -> None:
        """Refuse a line whose data are not those of the others of its set and seed."""
        place = line["place"]
        others = {o["data"] for o in self.lines.values()
                  if (o["place"], o["seed"]) == (place, line["seed"])} - {""}  # fmt: skip
        if line["data"] and others - {line["data"]}:
            raise OtherData(
                f"{place}: its data are not those with which {self.folder} was begun: put these "
                "back, or begin another bench."
            )

    def adopt(self, method: str, mine: str, versions: Json) -> None:
        """Let the bench have a method of one's own; what it has of an earlier text of it goes."""
        if self.mine not in ("", mine):
            raise ConfigError(f"--mine {mine}: this bench has {self.mine}; begin another for it.")
        before, self.plan = self.plan, {**self.plan, "mine": mine, "versions": versions}
        if versions == before["versions"]:
            return
        with self:
            lines = self._raw().splitlines(keepends=True)
            kept = [text for text in lines if json.loads(text)["line"]["method"] != method]
            guarded(write_atomically, self.folder / JOURNAL, b"".join(kept), durable=True)
            self._read()
            guarded(write_atomically, self.folder / PLAN, json.dumps(self.plan, indent=2))

    def include(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Let the bench have further methods on its sets."""
        own = [tuple(pair) for pair in self.plan["pairs"]]
        self.plan = {**self.plan, "pairs": [*dict.fromkeys([*own, *pairs])]}
        with self:
            guarded(write_atomically, self.folder / PLAN, json.dumps(self.plan, indent=2))

    def trials(self, method: str, place: str) -> list[Json]:
        """The trials of a method on a set that are done, in order."""
        names = (cell(method, place, number, None) for number in range(self.protocol.trials))
        return [self.lines[name] for name in names if name in self.lines]

    def left(self, works: Iterable[Work]) -> list[Work]:
        """Those that are not done."""
        return [work for work in works if work.name not in self.lines]

    def write_page(self, far: Far, left: float | None, seconds: float) -> None:
        """Write the page of a bench that goes on."""
        from corsage.app.bench.page import page
        from corsage.app.bench.rows import Results
        from corsage.app.report.now import Now

        results = Results.of([*self.lines.values()], {**self.costs})
        text = page(results, self, Now(far.done, far.whole, "runs", left, (), seconds))
        guarded(write_atomically, self.folder / "report.html", text)

    def conclude(self) -> None:
        """Write the lines in order."""
        names = sorted(self.lines, key=self._place)
        for file, found in ((RESULTS, self.lines), (COSTS_FILE, self.costs)):
            told = (found[n] if file == RESULTS else {"cell": n, "cpu": found[n]} for n in names)
            text = "".join(json.dumps(one) + "\n" for one in told)  # sums are in the order of users
            guarded(write_atomically, self.folder / file, text)

    def _place(self, name: str) -> tuple[Any, ...]:
        line, sets = self.lines[name], [*self.plan["sets"]]
        seed = -1 if line["seed"] is None else line["seed"]
        return sets.index(line["place"]), line["method"], seed, line["trial"]


def newest(parent: Path) -> Path:
    """The bench that was begun last."""
    found = sorted(path.parent for path in parent.glob(f"*_{SUFFIX}*/{PLAN}"))
    if not found:
        raise ConfigError(f"run-dir={parent}: there is no bench.")
    return found[-1]


def read_lines(path: Path) -> tuple[list[Json], dict[str, float]]:
    """The lines of a bench, and what each has cost: of its folder, or of a file of results.

    It may be compressed; costs are in the file beside it, if that is there.
    """
    if path.is_dir():
        folder = BenchFolder.there(path)
        return [*folder.lines.values()], folder.costs
    costs = path.with_name(path.name.replace(RESULTS, COSTS_FILE))
    spent = lines_of(costs) if costs != path and costs.is_file() else []
    lines = lines_of(path)
    if not all(isinstance(one, dict) and {"place", "rows"} <= one.keys() for one in lines):
        raise ConfigError(f"{path}: no results of a bench.")
    return lines, {one["cell"]: one["cpu"] for one in spent}


def lines_of(path: Path) -> list[Json]:
    """The lines of a file."""
    try:
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            return [json.loads(text) for text in file]
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise ConfigError(f"{path}: no results of a bench ({error}).") from error
