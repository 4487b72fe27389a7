"""A worker's process, and no other, runs this: `python -m corsage.app.nodes.resident.process`.

What it must know comes by its standard input, which nobody else can read.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from corsage.app.nodes.deployed import RESIDENT
from corsage.app.nodes.resident.lair import Owner
from corsage.app.nodes.resident.worker import Worker


def main() -> None:
    """Work until it is no longer wanted."""
    words = json.load(sys.stdin)
    sys.modules[RESIDENT] = sys.modules[__name__]  # under this name it is known to be a device's
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # of the SuperNode's terminal
    Worker(
        listener=socket.socket(fileno=words["handle"]),
        path=Path(words["path"]),
        place=words["place"],
        owner=Owner(*words["owner"]),
        secret=bytes.fromhex(words["secret"]),
        seconds=words["seconds"],
    ).serve()
    os._exit(0)  # whatever still runs beside is of no use to anybody


if __name__ == "__main__":
    main()
