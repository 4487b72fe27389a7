"""`corsage clean`: remove old runs, what they left in a state-dir, or prepared data."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from corsage.app.output.usage import command
from corsage.app.run.endings import RESULT
from corsage.app.run.resuming import read_config
from corsage.app.run.status import RunLock
from corsage.app.states.state_dir import KEEP_RUNS, experiments, remove, superfluous
from corsage.core.errors import CheckpointError, ConfigError
from corsage.core.files import cache_root, guarded
from corsage.datasets.dealing.data_cache import prepared_folders

USAGE = f"""\
usage: corsage clean FOLDER [--keep N] [--unfinished] [--dry-run]

  FOLDER        of run folders (runs), a device's state-dir, or prepared data
                ({cache_root("")} unless cache-dir says another folder)
  --keep N      keep the N runs, or prepared data sets, that were used last
                ({KEEP_RUNS} unless told)
  --unfinished  remove unfinished runs, too, which could be resumed
  --dry-run     only say what would be removed

A run that a process is at work on stays, and so does whatever is not Corsage's.
"""


@dataclass(frozen=True)
class Asked:
    """What the words ask for."""

    folder: Path
    keep: int = KEEP_RUNS
    unfinished: bool = False
    dry: bool = False


@dataclass(frozen=True)
class Run:
    """A run folder: when it was used last, how much it holds, and whether all have a result."""

    folder: Path
    used: float
    size: int
    finished: bool


@command(USAGE, ConfigError)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 for a user's mistake, 1 if something cannot be removed."""
    asked = parse(words)
    found = runs(asked.folder)
    if found:
        clean_runs(asked, found)
    elif guarded(experiments, asked.folder):
        clean_states(asked)
    elif ready := guarded(prepared_folders, asked.folder):
        clean_prepared(asked, ready)
    else:
        raise ConfigError(
            f"{asked.folder}: no runs of Corsage in it, no states of users, no prepared data."
        )


def parse(words: list[str]) -> Asked:
    """The folder and options that the words say, or ConfigError."""
    folders, keep, rest = [], str(KEEP_RUNS), iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name == "--keep":
            keep = value or next(rest, "")
        elif not word.startswith("-"):
            folders.append(Path(word).expanduser())
        elif word not in ("--unfinished", "--dry-run"):
            raise ConfigError(f"clean: {word}: unknown. See corsage clean --help.")
    if not (keep.isascii() and keep.isdigit()):
        raise ConfigError(f"clean: --keep {keep}: must be a whole number from 0 on.")
    if len(folders) != 1 or not folders[0].is_dir():
        wrong = " ".join(map(str, folders)) or "nothing"
        raise ConfigError(f"clean: name one folder that is there, not {wrong}.")
    return Asked(folders[0], int(keep), "--unfinished" in words, "--dry-run" in words)


def runs(folder: Path) -> list[Run]:
    """The run folders in a folder, those used last first; all else is passed over."""
    found = [run for path in folder.iterdir() if (run := as_run(path))]
    return sorted(found, key=lambda run: (-run.used, run.folder.name))


def as_run(folder: Path) -> Run | None:
    """Age, size and state of a run folder; None if it is none."""
    if folder.is_symlink() or not (folder / "config.json").is_file():
        return None
    try:
        names = str(read_config(folder)["config"]["strategy"]).split(",")
    except (CheckpointError, KeyError, TypeError):
        return None
    infos = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
    return Run(
        folder,
        used=max(info.st_mtime for info in infos),
        size=sum(info.st_size for info in infos),
        finished=all((folder / name.strip() / RESULT).exists() for name in names),
    )


def clean_runs(asked: Asked, found: list[Run]) -> None:
    """Remove what is too old; each run is named, and why it stays or goes."""
    for place, one in enumerate(found):
        state = "finished" if one.finished else "unfinished"
        if place < asked.keep:
            why = "kept"
        elif not (one.finished or asked.unfinished):
            why = "kept: it could be resumed (--unfinished removes it)"
        else:
            why = removed_run(one.folder, asked.dry)
        say(f"{one.folder.name} ({state}, {described(one.used, one.size)})", why)


def removed_run(folder: Path, dry: bool) -> str:
    """Remove a run folder unless a process is at work on it; what has become of it.

    What makes it a run folder goes last: what is left of a removal that was killed is one, too.
    """
    lock = RunLock(folder)
    if dry and not (folder / "lock.json").exists():
        return "would be removed"
    try:
        lock.take()
    except CheckpointError:
        return f"kept: {lock.holder()} is at work on it"
    try:
        if dry:
            return "would be removed"
        for path in sorted(folder.iterdir(), key=lambda path: path.name in KEYS_OF_A_RUN):
            if path.is_dir() and not path.is_symlink():
                guarded(shutil.rmtree, path)
            elif path.name not in KEYS_OF_A_RUN:
                guarded(path.unlink)
    finally:
        lock.release()
    guarded(shutil.rmtree, folder)
    return "removed"


KEYS_OF_A_RUN = ("config.json", ".lock")


def clean_states(asked: Asked) -> None:
    """Remove the states of all runs but those used last; each experiment is named."""
    going = {one.folder for one in superfluous(asked.folder, asked.keep)}
    for one in experiments(asked.folder):
        why = "kept"
        if one.folder in going:
            why = "would be removed" if asked.dry else "removed"
            if not asked.dry:
                guarded(remove, one.folder)
        say(f"{one.folder.name} ({described(one.used, one.size)})", why)


def clean_prepared(asked: Asked, found: list[Path]) -> None:
    """Remove prepared data but those read last; they are made again when a run wants them."""
    infos = {folder: [path.stat() for path in folder.iterdir()] for folder in found}
    used = {folder: max((one.st_atime for one in infos[folder]), default=0.0) for folder in found}
    for place, folder in enumerate(sorted(found, key=lambda folder: -used[folder])):
        why = "kept"
        if place >= asked.keep:
            why = "would be removed" if asked.dry else "removed"
            if not asked.dry:
                guarded(shutil.rmtree, folder)
        say(
            f"{folder.name} ({described(used[folder], sum(i.st_size for i in infos[folder]))})", why
        )


def described(used: float, size: int) -> str:
    """When it was used last, and how much it holds."""
    days = max(0.0, time.time() - used) / 86400
    return f"used {days:.1f} days ago, {size / 1e6:.1f} MB"


def say(what: str, why: str) -> None:
    """A line."""
    print(f"{what}: {why}")
