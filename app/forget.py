"""`corsage forget`: a run's model as if one of its users had never been there.

The mixed model of the squared loss is a function of its users' own sums. The server has kept them
(`mixed-keep-sums`), takes out the user's and fits the others': shapes, strengths, centres and
models are those of a run without the user. The others are told their new centres in one exchange;
their sums are not asked for again. All files of the run are written anew, beside it, from nothing
but that, and then take its place in one step.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corsage.app.output.usage import command
from corsage.core.configuration.config import Config
from corsage.core.errors import CheckpointError, ConfigError
from corsage.core.files import guarded, unsealed, write_atomically
from corsage.core.tables.preparation import Preparation
from corsage.strategies.known_clusters.kept_sums import KeptSums
from corsage.strategies.known_clusters.mixed_model import MixedModel
from corsage.strategies.known_clusters.mixed_state import MixedModelState
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.ledger import Ledger

USAGE = """\
usage: corsage forget RUN_FOLDER user=NAME

  RUN_FOLDER  of a finished simulation of strategy=mixed-model, and of no other strategy, with
              known-gamma=auto, known-lambda=auto and the squared loss
  user=NAME   who is forgotten

The run becomes that of a federation which the user was never in: variances, strengths, clusters and
every model are fitted anew to the sums of the others, which the server has kept. Its files are
written anew, too; nothing of the user is left in them. The data set is not touched.
"""
WRITTEN = {
    *("config.json", "summary.json", "report.html", "status.json", "lock.json", ".lock"),
    *(
        "training-path.json",
        "users.csv",
        "clusters.csv",
        "coefficients.csv",
        "statistics.csv",
        "figures",
    ),
}
"""What a run folder holds beside the folders of its strategies."""
FORGETTING = ".forgetting-"
AT_CWD, EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux' renameat2."""


@dataclass(frozen=True)
class Memory:
    """What a run keeps of its users.

    Parameters
    ----------
    sums : each user's own.
    preparation : what their columns were made into.
    data : by which their data are known again.
    """

    sums: KeptSums
    preparation: Preparation | None
    data: Ledger


class Remembered(Callback):
    """Gives a run that begins the sums that are known already."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def on_start(self, strategy: Strategy[Any, MixedModelState]) -> None:
        """Before the first round, in which they then are not asked for."""
        memory, job = self.memory, strategy.job
        job.built.data = memory.data
        strategy.state.sums = memory.sums.prepared(memory.preparation, job.agreed.preparation)


@command(USAGE)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 for a user's mistake, 1 if it cannot be done."""
    forget(*parse(words))


def parse(words: list[str]) -> tuple[Path, str]:
    """The folder and the user; or ConfigError."""
    users = [word.partition("=")[2] for word in words if word.startswith("user=")]
    folders = [word for word in words if not word.startswith("user=")]
    if len(users) != 1 or not users[0] or len(folders) != 1 or folders[0].startswith("-"):
        raise ConfigError("forget: needs one run folder and user=NAME. See corsage forget --help.")
    return Path(folders[0]).expanduser().resolve(), users[0]


def forget(folder: Path, user: str) -> None:
    """Make a run one that the user was never in; it stays as it is if that cannot be."""
    from corsage.app.run.conclusion import failures, results, show
    from corsage.app.run.resuming import read_config
    from corsage.app.run.status import RunLock

    stored = read_config(folder)
    config = Config.parse(stored["config"])
    lock = RunLock(folder)
    lock.take()
    try:
        memory = remembered(folder, config, stored["run"], user)
        check_files(folder, config)
        with beside(folder) as place:
            replayed(place, config, memory)
            guarded(mark, place)
            guarded(exchange, folder, place)
    finally:
        lock.release()
    show(results(folder, config), folder, failures(folder, config))
    left = len(memory.sums.users)
    word = "user is" if left == 1 else "users are"
    print(f"forgotten: {user}; {left} {word} left", file=sys.stderr)


def remembered(folder: Path, config: Config, run: str, user: str) -> Memory:
    """All that the run has of others; CheckpointError, in a line, if it cannot forget."""
    from corsage.app.run.checkpoint import found, read_checkpoint
    from corsage.app.run.endings import read_result, without_result
    from corsage.app.run.resuming import identity
    from corsage.strategies.rounds.state import Built

    check_exact(folder, config)
    own = folder / MixedModel.name
    rounds = config.run.num_rounds
    if read_result(own, rounds) is None or not found(own):
        raise CheckpointError(f"{folder}: {without_result(own, rounds)}")
    if not (own / "users").is_dir():
        raise CheckpointError(
            f"{folder}: its users are devices, which hold models of their own that no command "
            "here can reach; start a new run without the one that is to be forgotten."
        )
    kind = identity(run, MixedModel.name, config.flat())
    kinds = {"built": Built, "state": MixedModelState}
    parts = read_checkpoint(found(own)[-1][1], kind, kinds)
    state, built = parts["state"], parts["built"]
    check_kept(folder, state, user)
    built.data.pop(user, None)
    agreed = Preparation.read(json.loads(built.preparation)) if built.preparation else None
    return Memory(state.sums.without(user), agreed, built.data)


def check_exact(folder: Path, config: Config) -> None:
    """Refuse strategies whose models are not a function of sums."""
    if config.new.wanted:
        raise CheckpointError(f"{folder}: has users that are new, who sent no sums.")
    others = [name for name in config.run.strategy if name != MixedModel.name]
    if others:
        raise CheckpointError(
            f"{folder}: {', '.join(others)} cannot forget: what a user's data did to the models is "
            "not known apart. Only mixed-model alone can; start a new run without the user."
        )


def check_kept(folder: Path, state: MixedModelState, user: str) -> None:
    """Refuse a run that has not the sums of each user, or not this one's."""
    sums = state.sums
    if not sums.users:
        raise CheckpointError(
            f"{folder}: the sums of each user are not kept: set mixed-keep-sums=true in a run that "
            "is to forget (known-gamma=auto, known-lambda=auto, the squared loss, at most "
            "10,000,000 numbers). Start a new run without the user."
        )
    if user not in sums.users:
        raise CheckpointError(f"{folder}: user {user}: is not among its {len(sums.users)} users.")
    if len(sums.users) == 1:
        raise CheckpointError(f"{folder}: user {user}: is its only one; delete the folder.")


def check_files(folder: Path, config: Config) -> None:
    """Refuse to lose files that are not the run's: nobody knows whom they speak of."""
    from corsage.app.run.endings import HELD_OUT

    others = {path.name for path in folder.iterdir()} - {*WRITTEN, *config.run.strategy}
    if HELD_OUT in others:
        raise CheckpointError(
            f"{folder}: was fitted to all rows, of which {HELD_OUT} has facts, the user's among "
            "them; start a new run without the user."
        )
    if others:
        raise CheckpointError(
            f"{folder}: {', '.join(sorted(others)[:3])}: not of the run; take it elsewhere, for "
            "all that is here is written anew."
        )


def replayed(place: Path, config: Config, memory: Memory) -> None:
    """The run anew, in an empty place: the sums are there, so users are told and judged."""
    from corsage.app.client_app import app
    from corsage.app.local_grid import LocalGrid
    from corsage.app.preflight import check_simulation
    from corsage.app.run.run_folder import RunFolder
    from corsage.app.run.status import watched

    keys = replace(config.run, resume="", from_round=-1, engine="local", log_to=())
    config = replace(config, run=keys)
    check_simulation(config)
    with RunFolder.open(config, 1, place) as run, watched(place), redirect_stdout(io.StringIO()):
        strategy = run.strategy(MixedModel.name)
        strategy.callbacks.append(Remembered(memory))
        strategy.start(LocalGrid(app, 1, memory.sums.users))
        run.conclude()


def mark(folder: Path) -> None:
    """Write down that the run has forgotten users, whom its data still have; not whom."""
    from corsage.app.run.resuming import FORGOTTEN_MARK, text_of

    path = folder / "config.json"
    write_atomically(path, text_of({**unsealed(path), FORGOTTEN_MARK: True}), durable=True)


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """A place of the same name beside a folder, which goes away with all that is left in it."""
    for left in folder.parent.glob(f"{FORGETTING}{folder.name}-*"):  # of one that was killed
        shutil.rmtree(left)
    parent = guarded(tempfile.mkdtemp, "", f"{FORGETTING}{folder.name}-", folder.parent)
    try:
        yield Path(parent) / folder.name
    finally:
        shutil.rmtree(parent)


def exchange(one: Path, other: Path) -> None:
    """Two folders change places: in one step where the system can, else in two renames."""
    libc = ctypes.CDLL(None, use_errno=True)
    swap = getattr(libc, "renameat2", None)
    names = [os.fsencode(path) for path in (one, other)]
    if swap and not swap(AT_CWD, names[0], AT_CWD, names[1], EXCHANGE):
        return
    old = other.with_name(f"old-{other.name}")
    one.rename(old)
    other.rename(one)
