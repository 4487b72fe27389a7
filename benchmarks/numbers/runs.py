"""One small run of one checkout, each in a process of its own, and what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from corsage.benchmarks.numbers.cases import Case
from corsage.benchmarks.numbers.names import is_new, old_row_name

Record = dict[str, Any]
"""What a run gave, part by part; see `record`."""
STOP_AFTER = 20
"""Rounds after which a run is killed."""
LONGEST = 300.0
"""Seconds that a run may take."""


class Failed(Exception):
    """A run that ended with an error; its text is the last line of it."""


@dataclass(frozen=True)
class Checkout:
    """A folder with the code of Corsage, and whether it knows the new words."""

    root: Path
    new: bool

    @classmethod
    def at(cls, root: Path) -> Checkout:
        """The checkout in a folder."""
        return cls(root, is_new((root / "pyproject.toml").read_text(encoding="utf-8")))


def start(root: Path, words: list[str]) -> subprocess.Popen[str]:
    """Start the command line of a checkout."""
    return subprocess.Popen(
        [sys.executable, "run_simulation.py", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finished(process: subprocess.Popen[str]) -> str:
    """What a process printed, or Failed."""
    try:
        out, err = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f"not done after {LONGEST:g} s") from None
    if process.returncode:
        raise Failed((err.strip() or f"exit code {process.returncode}").splitlines()[-1])
    return out


def record(checkout: Checkout, case: Case, data: Path, folder: Path) -> Record:
    """Run a case in an empty folder: its results, rounds, arrays and bytes, or its error."""
    shared = [f"run-dir={folder}", f"cache-dir={data / 'cache'}"]
    words = [*case.words(data, checkout.new), *shared]
    try:
        results = (killed if case.killed else whole)(checkout.root, words, folder)
    except Failed as error:
        return {"error": str(error).replace(str(data), "")}
    found = emptied(case)
    for row in results:
        add_result(found, {**row, "strategy": old_row_name(case.keys, row["strategy"])})
    for path in sorted(path.parent for path in folder.glob("*/*/metrics.jsonl")):
        add_files(found, path, old_row_name(case.keys, path.name))
    return found


def emptied(case: Case) -> Record:
    """A record of nothing; of a killed run without what depends on when that was."""
    parts = ("rounds", "models", "checkpoint", "findings", "kept", "wire")
    kept = parts[:4] if case.killed else parts
    return {"results": [], **{part: {} for part in kept}}


def whole(root: Path, words: list[str], folder: Path) -> list[Record]:
    """The results of a run from its beginning to its end."""
    file = folder / "summary.json"
    finished(start(root, [*words, "--json", str(file)]))
    results: list[Record] = json.loads(file.read_text(encoding="utf-8"))["results"]
    return results


def killed(root: Path, words: list[str], folder: Path) -> list[Record]:
    """The results of a run that was killed in each of its strategies, and resumed each time."""
    names = next(word for word in words if word.startswith("strategy=")).split("=")[1].split(",")
    for name in names:
        process = start(root, words)
        while process.poll() is None and rounds_done(folder, name) < STOP_AFTER:
            time.sleep(0.002)
        process.kill()
        _, err = process.communicate()
        if process.returncode >= 0:
            last = (err.strip() or "done").splitlines()[-1]
            raise Failed(f"{name}: ended before it was killed: {last}")
        words = ["--resume", str(next(folder.iterdir()))]
    return whole(root, words, folder)


def rounds_done(folder: Path, name: str) -> int:
    """How many rounds of a strategy are in its metrics."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(f"*/{name}/metrics.jsonl"))


def rounds_of(folder: Path) -> list[Record]:
    """The rows of a strategy's metrics, without their time."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [timeless(json.loads(line)) for line in lines]


def timeless(row: Record) -> Record:
    """A row without seconds."""
    return {key: value for key, value in row.items() if key != "seconds"}


def add_result(found: Record, row: Record) -> None:
    """A row of the summary: its numbers, and apart from them its texts and bytes on the wire."""
    name, traffic = row["strategy"], row.pop("traffic", {})
    found["findings"][name] = row.pop("findings", [])
    if "wire" in found:
        found["wire"][name] = {k: v for k, v in traffic.items() if k.startswith("wire")}
    counted = {k: v for k, v in traffic.items() if not k.startswith("wire")}
    found["results"].append({**timeless(row), "traffic": counted})


def add_files(found: Record, folder: Path, name: str) -> None:
    """What a strategy wrote: its rounds, its models, its checkpoint and what its users keep."""
    found["rounds"][name] = [{**row, "strategy": name} for row in rounds_of(folder)]
    found["models"][name] = arrays_of(folder.glob("model*.safetensors"))
    found["checkpoint"][name] = arrays_of(newest(folder))
    if "kept" in found:
        found["kept"][name] = arrays_of(folder.glob("*/**/*.safetensors"))


def newest(folder: Path) -> Iterator[Path]:
    """A strategy's last checkpoint; earlier versions have only one, without a round's number."""
    yield from sorted(folder.glob("checkpoint*"))[-1:]


def arrays_of(paths: Iterator[Path]) -> list[str]:
    """The arrays in some files, each as its type, shape and a hash of its content, sorted."""
    return sorted(
        f"{array.dtype} {array.shape} {hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()}"
        for path in paths
        if path.is_file()
        for blob in blobs(path.read_bytes())
        for array in load(blob).values()
    )


def blobs(raw: bytes) -> Iterator[bytes]:
    """The safetensors in a file, whatever stands before and behind them."""
    place = raw.find(b"{", 8)
    while place >= 0:
        end = place + 1
        if size := safetensors_size(raw, place):
            end = place + size
            yield raw[place - 8 : end]
        place = raw.find(b"{", end)


def safetensors_size(raw: bytes, place: int) -> int:
    """Bytes of the safetensors whose header begins here, after its size; 0: there is none."""
    (length,) = struct.unpack("<Q", raw[place - 8 : place])
    if not 2 < length <= len(raw) - place:
        return 0
    try:
        header = json.loads(raw[place : place + length])
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except (ValueError, TypeError, KeyError):
        return 0
    return int(length + max(ends, default=0))


def versions() -> dict[str, str]:
    """What numbers may depend on beside the code."""
    import torch

    return {"numpy": np.__version__, "torch": str(torch.__version__)}
