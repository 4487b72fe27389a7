"""A deployment on the loopback whose server script, SuperNodes and SuperLink are killed for real.

It is that of the tests, which only a checkout has: a SuperLink and three SuperNodes as
`docs/devices.md` starts them. Every round needs all three users, so that a round in which one is
killed fails, and the numbers can be compared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from corsage.benchmarks.chaos import process
from corsage.benchmarks.chaos.process import ROOT, rounds_in
from corsage.benchmarks.chaos.trial import Event
from corsage.core.errors import ConfigError

ROUNDS, USERS = 4, ("0", "1", "2")
KEYS = (
    f"strategy='fedrep,fedavg' num-rounds={ROUNDS} num-nodes=3 fraction-train=1.0 min-users=3 "
    "hidden='16' head-epochs=2 fine-tune-epochs=1 evaluate-every=2 node-timeout=300.0"
)
LONGEST = 8.0
"""Seconds for which a run goes on after the round in which it is disturbed, at most."""
TRIES = 8
"""How often a run may be resumed before it counts as lost."""


def disturbed(seed: int, times: int) -> list[Event]:
    """Runs on devices, until there are enough disturbances."""
    random, events = Random(seed), list[Event]()
    with tempfile.TemporaryDirectory(prefix="chaos") as scratch:
        fleet = fleets()(Path(scratch))
        try:
            fleet.start(f"seed={seed}")
            whole = numbers(fleet.finish(fleet.run(f"{KEYS} seed={seed}")))
            while len(events) < times:
                most = min(random.randint(1, 3), times - len(events))
                events += one_run(fleet, f"{KEYS} seed={seed}", random, most, whole)
        finally:
            fleet.stop()
    return events


def fleets() -> Callable[[Path], Any]:
    """The tests' fleet of real processes."""
    if not (ROOT / "tests" / "support" / "fleet.py").is_file():
        raise ConfigError("chaos --engine deploy: needs a checkout, with its tests.")
    sys.path.insert(0, str(ROOT))
    found: Callable[[Path], Any] = import_module("tests.support.fleet").Fleet
    return found


def one_run(
    fleet: Any, keys: str, random: Random, times: int, whole: list[dict[str, Any]]
) -> list[Event]:
    """One run, so often disturbed, and then let come to its end."""
    known, folder, events = {*runs_of(fleet)}, None, list[Event]()
    for kind in random.choices(list(DISTURBANCES), k=times):
        run = fleet.run(words(keys, folder))
        target, event = random.randint(0, 2 * ROUNDS), Event(kind)
        fleet.until(lambda run=run, target=target: late(fleet, run, known, target))
        time.sleep(random.uniform(0, LONGEST))
        DISTURBANCES[kind](fleet, random, event)
        wait_for_end(fleet, run, kind)
        folder = folder or next(iter({*runs_of(fleet)} - known), None)
        events.append(event)
    for _ in range(TRIES):
        run = fleet.run(words(keys, folder))
        fleet.until(lambda run=run: fleet.processes[run].poll() is not None)
        folder = folder or next(iter({*runs_of(fleet)} - known), None)
        if "Run folder: " in fleet.log(run) and "failed" not in last_line(fleet.log(run)):
            break
    same = bool(folder and (folder / "summary.json").exists() and numbers(folder) == whole)
    for event in events:
        event.same = same
        event.why = "" if same else fleet.log(run)[-1500:]
        print(f"{event.kind} {event.detail}: same={same} {event.why}", file=sys.stderr, flush=True)
    return events


def words(keys: str, folder: Path | None) -> str:
    """The keys of a new run, or of the same one again."""
    return f"resume='runs/{folder.name}'" if folder else keys


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The final numbers; which nodes were set aside is told beside them, and names nodes."""
    rows = process.numbers(folder)
    return [{key: value for key, value in row.items() if key != "findings"} for row in rows]


def runs_of(fleet: Any) -> list[Path]:
    """The run folders that there are."""
    return sorted((fleet.folder / "runs").glob("*"))


def last_line(log: str) -> str:
    """The end of what a run said."""
    return log.strip().splitlines()[-1] if log.strip() else ""


def late(fleet: Any, run: str, known: set[Path], target: int) -> bool:
    """Whether a run has done so many rounds, or has ended."""
    new = [folder for folder in runs_of(fleet) if folder not in known]
    done = max((rounds_in(folder) for folder in new), default=-1)
    return done >= target or fleet.processes[run].poll() is not None


def wait_for_end(fleet: Any, run: str, kind: str) -> None:
    """What shows the log of a run whose server is dead never ends; other runs end by themselves."""
    if kind == "kill a SuperNode":
        fleet.until(lambda: fleet.processes[run].poll() is not None)
    elif fleet.processes[run].poll() is None:
        fleet.kill(run)


def kill_server_script(fleet: Any, random: Random, event: Event) -> None:
    """The process in which the strategy runs; the SuperLink stays."""
    try:
        fleet.kill_server_app()
    except AssertionError:
        event.detail = "was done already"


def kill_supernode(fleet: Any, random: Random, event: Event) -> None:
    """A device falls, and is started again a little later."""
    event.detail = random.choice(USERS)
    fleet.kill(event.detail)
    time.sleep(random.uniform(0, LONGEST))
    fleet.start_node(event.detail)


def kill_superlink(fleet: Any, random: Random, event: Event) -> None:
    """The server's machine falls: all of it is started again, and the devices with it."""
    support = import_module("tests.support.fleet")
    for name in ("superlink", *USERS):
        fleet.kill(name)
    fleet.spawn("superlink", support.superlink(fleet.ports[0]))
    fleet.until(lambda: support.answers(fleet.ports[0]))
    for user in USERS:
        fleet.start_node(user)


DISTURBANCES: dict[str, Callable[[Any, Random, Event], None]] = {
    "kill the server script": kill_server_script,
    "kill a SuperNode": kill_supernode,
    "kill the SuperLink": kill_superlink,
}
