"""One run of a study, in a process of its own: `python -m corsage.app.cell FOLDER`.

Its keys come on standard input, as a line of JSON; when that input ends, whoever started it is
gone, and so goes this process. The run can be finished then, as any other.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from corsage.app.output.usage import exit_code
from corsage.core.clock import COMMAND_START, LOADED
from corsage.core.configuration.config import Config

LEFT_ALONE = 3
"""The exit code of a process whose study is gone."""


def main() -> int:
    """Do the run; its exit code is that of any run."""
    COMMAND_START.set(LOADED)
    values = json.loads(sys.stdin.readline())
    threading.Thread(target=leave_with_parent, daemon=True).start()
    return exit_code(partial(play, Path(sys.argv[1]), values))


def leave_with_parent() -> None:
    """End the process when nobody is at the other end of its input any more."""
    sys.stdin.read()
    os._exit(LEFT_ALONE)


def play(folder: Path, values: dict[str, Any]) -> None:
    """Begin the run in its folder, or finish the one that is there."""
    from corsage.app.engines import simulate
    from corsage.app.run.resuming import begun, read_config

    logging.getLogger("flwr").setLevel(logging.ERROR)
    if (folder / "config.json").exists() or begun(folder):
        stored = read_config(folder)["config"]
        simulate(Config.parse({**stored, **values, "resume": str(folder)}))
    else:
        simulate(Config.parse(values), at=folder)


if __name__ == "__main__":
    sys.exit(main())
