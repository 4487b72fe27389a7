"""A process that stays, and does one job after the other: `python -m corsage.app.cell`.

Each job is a line of JSON on standard input, its answer one on standard output; what a job prints
goes into a file of its own. When that input ends, whoever started the process is gone, and so goes
this one: a run that it was at work on can be finished then, as any other.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from corsage.app.output.usage import exit_code
from corsage.core.clock import COMMAND_START, LOADED
from corsage.core.configuration.config import Config
from corsage.core.errors import FOR_ALL, UNUSABLE, CorsageError, NodeError, OtherData, StorageError
from corsage.core.registry import part

LEFT_ALONE, INTERRUPTED = 3, 130
"""The exit codes of a process whose parent is gone, or that was interrupted with it."""


def main() -> int:
    """Do what comes, until nothing more does."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(waiting,), daemon=True).start()
    part("app.simulation", "a job")  # with torch, once
    gc.freeze()  # else each look for garbage goes through all modules
    begun = LOADED
    while True:
        try:
            job = json.loads(waiting.get())
        except KeyboardInterrupt:
            return INTERRUPTED
        COMMAND_START.set(begun)
        code = answered(job, answers)
        if code == INTERRUPTED:
            return code
        begun = time.monotonic()


def listen(waiting: queue.SimpleQueue[str]) -> None:
    """Take jobs in; end the process when nobody is at the other end any more."""
    for line in sys.stdin:
        waiting.put(line)
    os._exit(LEFT_ALONE)


def answered(job: dict[str, Any], answers: TextIO) -> int:
    """Do a job, and say how it ended, and in how many CPU seconds; its exit code."""
    found: list[Any] = []
    cpu = time.process_time()
    with Path(job["log"]).open("ab") as log:
        for stream, own in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.dup2(log.fileno(), own)
    work = partial(getattr(part(job["module"], "a job"), job["function"]), *job["arguments"])
    code = exit_code(lambda: found.append(work()))
    sys.stdout.flush()
    gc.collect()  # what a run leaves in circles is much
    answer = {"code": code, "answer": found[0] if found else None}
    answers.write(json.dumps({**answer, "cpu": time.process_time() - cpu}) + "\n")
    answers.flush()
    return code


def play(place: str, values: dict[str, Any]) -> None:
    """Begin the run in its folder, or finish the one that is there."""
    from corsage.app.engines import simulate
    from corsage.app.run.resuming import begun, read_config

    folder = Path(place)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if (folder / "config.json").exists() or begun(folder):
        stored = read_config(folder)["config"]
        simulate(Config.parse({**stored, **values, "resume": str(folder)}))
    else:
        simulate(Config.parse(values), at=folder)


PLAIN = (NodeError, StorageError, OtherData, *UNUSABLE, CorsageError)
"""Kinds of errors that a run tells apart."""


def beside(
    name: str, place: str, run: str, values: dict[str, Any], fresh: bool, text: str
) -> tuple[str, str]:
    """Play a strategy of a run that is another process's; the kind of its error, and why.

    Parameters
    ----------
    name, place : the strategy, and the run's folder.
    run, values, fresh, text : as that has them: its name at the nodes, keys, whether it is new, and
        what its keys' file is to say.
    """
    from corsage.app.client_app import make_client_app
    from corsage.app.local_grid import LocalGrid
    from corsage.app.output.usage import in_a_line
    from corsage.app.run.run_folder import RunFolder
    from corsage.app.run.status import RunLock
    from corsage.app.server_app import play
    from corsage.app.states.behind import together

    logging.getLogger("flwr").setLevel(logging.ERROR)
    config, folder, errors = Config.parse(values), Path(place), list[Exception]()
    own = RunFolder(folder, run, config, RunLock(folder), True, text, fresh)
    grid = LocalGrid(make_client_app(), config.federation.num_nodes)
    try:
        with together(folder):
            own.attempts.attempt(name, partial(play, own, own.strategy(name), grid))
        errors += own.attempts.errors.values()
    except FOR_ALL as error:
        errors.append(error)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # whoever began it says so
    kind = next((k for k in PLAIN for error in errors if isinstance(error, k)), CorsageError)
    return kind.__name__, in_a_line(errors[0]) if errors else ""


if __name__ == "__main__":
    sys.exit(main())
