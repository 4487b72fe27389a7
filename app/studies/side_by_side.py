"""The strategies of one comparison at the same time, on all cores, by processes that stay.

What they write is what they write one after the other: each has a folder of its own in the run's,
and no draw depends on when it is made. Whoever began them says which ones are done, and concludes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corsage.app.run.run_folder import AnyStrategy, RunFolder
from corsage.app.studies.workers import IN_WORKER, Ended, Job, play, workers
from corsage.core import errors
from corsage.core.configuration.config import Config
from corsage.core.errors import FOR_ALL, CorsageError
from corsage.datasets.dealing.federated import simulated

STEPS_WORTH = 50_000
"""Gradient steps of users, in all strategies together, from which on processes are started: it
costs 2 CPU seconds each, and so many steps of a small model take 5."""
LOOK = 0.2
"""Seconds between looks at what processes say."""


def played(run: RunFolder, strategies: Mapping[str, AnyStrategy]) -> bool:
    """Play strategies at the same time, if that is of use; tell whether it was done."""
    count = at_once(run.config, strategies) if run.simulated and len(strategies) > 1 else 1
    if count < 2:
        return False
    print(f"{len(strategies)} strategies, {count} at a time", file=sys.stderr, flush=True)
    own = [str(run.folder), run.run, run.config.flat(), run.fresh, run.text]
    jobs = [
        Job(name, [name, *own], run.folder / f"{name}.log", function="beside", order=(place,))
        for place, name in enumerate(strategies)
    ]
    attempts, begun = run.attempts, time.monotonic()
    attempts.first = begun
    with followed([job.log for job in jobs]):
        play(jobs, count, lambda ended: note(run, ended))
    attempts.seconds = {f"strategies {count} at a time": time.monotonic() - begun}
    attempts.errors = {one: attempts.errors[one] for one in strategies if one in attempts.errors}
    return True


def at_once(config: Config, strategies: Mapping[str, AnyStrategy]) -> int:
    """The number of strategies at the same time: as many as there are cores, if it pays.

    `study-workers` says it otherwise. A worker itself starts no others.
    """
    asked = config.run.study_workers
    if config.run.engine != "local" or config.run.log_to or IN_WORKER in os.environ:
        return 1
    if not asked and steps(config, strategies.values()) < STEPS_WORTH:
        return 1
    return workers(asked, config.train.torch_threads, len(strategies))


def steps(config: Config, strategies: Any) -> float:
    """The gradient steps of users in all strategies, as far as keys and data say."""
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    epochs = sum(one.epochs(config.train, one.keys) or 1.0 for one in strategies)
    share = config.federation.share(len(data.users))
    batches = float(data.train_sizes.sum()) / max(config.train.batch_size, 1)
    return config.run.num_rounds * epochs * share * batches


def note(run: RunFolder, ended: Ended) -> None:
    """Take down how a strategy ended; what would end all of them ends the run."""
    name = ended.job.name
    if ended.code:
        run.attempts.errors[name] = CorsageError(ended.line)
        run.attempts.write_down(name, run.attempts.errors[name])
        return
    kind, why = ended.answer
    if not why:
        return
    error: CorsageError = getattr(errors, kind)(why)
    if isinstance(error, FOR_ALL):
        raise error
    run.attempts.errors[name] = error


@contextmanager
def followed(logs: Sequence[Path]) -> Iterator[None]:
    """While it lasts, show what is written to files, by whole lines."""
    over = threading.Event()
    thread = threading.Thread(target=follow, args=(logs, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for log in logs:
            log.unlink(missing_ok=True)


def follow(logs: Sequence[Path], over: threading.Event) -> None:
    """Show lines as they come, and when it is over what is left."""
    seen = dict.fromkeys(logs, 0)
    last = False
    while not last:
        last = over.wait(LOOK)
        for log in (log for log in logs if log.exists()):
            text = log.read_bytes()[seen[log] :]
            whole = text if last else text[: text.rfind(b"\n") + 1]
            seen[log] += len(whole)
            print(whole.decode(errors="replace"), end="", file=sys.stderr, flush=True)
