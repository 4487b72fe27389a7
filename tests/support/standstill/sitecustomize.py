"""Lets a process stand still just before it writes a certain file, until it is killed there.

Python loads this module by itself when it starts with this folder on its path, before anything of
ours. What to wait for is in an environment variable, see `tests.support.killing.Point`; processes
that the process starts inherit both. It needs nothing of the program but the names of its files.

Other variables make a process less patient, see `tests.support.fleet`: how long it sleeps at most
between two looks for something, and how often a SuperNode says that it is there.
"""

import json
import os
import re
import sqlite3
import sys
import time
from pathlib import Path

POINT = json.loads(os.environ.get("STAND_STILL", "{}"))
SLEEP, BEAT = os.environ.get("SLEEP_AT_MOST"), os.environ.get("HEARTBEAT_INTERVAL")
looking, seen = False, 0


def written(event: str, arguments: tuple[object, ...]) -> str:
    """The file that is about to be written or put in its place, if that is what happens."""
    if event == "statement":  # of an open database: as if it were a file in it
        return "/".join(map(str, arguments))
    if event == "os.rename":
        return str(arguments[1])
    if event == "open" and isinstance(arguments[0], str) and set(str(arguments[1])) & set("wxa"):
        return arguments[0]
    return ""


def look(event: str, arguments: tuple[object, ...]) -> None:
    """Stand still if this is the point: the rounds so far are done, and so many files written."""
    global looking, seen  # noqa: PLW0603 - a hook is a function
    if event not in ("open", "os.rename", "statement") or looking:
        return
    looking = True
    try:
        path = written(event, arguments)
        if re.search(POINT["file"], path) and rounds(Path(path)) >= POINT["rounds"]:
            seen += 1
            if seen > POINT["after"]:
                stand_still(Path(POINT["flag"]))
    finally:
        looking = False


def rounds(file: Path) -> int:
    """Lines of metrics so far in the run folder that a file lies in; on a device there are none."""
    found = [folder for folder in file.parents if (folder / "config.json").exists()]
    return sum(
        path.read_text().count("\n") for folder in found for path in folder.glob("*/metrics.jsonl")
    )


def stand_still(flag: Path) -> None:
    """Say so, once in a folder, and wait to be killed, or until something stands in the flag."""
    if flag.exists():
        return
    parent = os.getppid()
    flag.touch()
    while not flag.exists() or not flag.stat().st_size:
        if os.getppid() != parent:
            os._exit(1)  # who started this is gone
        time.sleep(0.02)


def connect(path: object, *arguments: object, **named: object) -> sqlite3.Connection:
    """A connection whose statements are looked at before they are executed."""
    connection = plain(path, *arguments, **named)
    connection.set_trace_callback(lambda text: look("statement", (path, text[:60])))
    return connection


if POINT:
    sys.addaudithook(look)
    plain, sqlite3.connect = sqlite3.connect, connect

if SLEEP:
    whole, longest = time.sleep, float(SLEEP)
    time.sleep = lambda seconds: whole(min(seconds, longest))
if BEAT and any(word.endswith("/flower-supernode") for word in sys.orig_argv):
    from flwr.common import constant

    usual, constant.HEARTBEAT_DEFAULT_INTERVAL = constant.HEARTBEAT_DEFAULT_INTERVAL, int(BEAT)
    from flwr.supercore.corestate import in_memory_corestate

    in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL = usual  # to start a message's process
