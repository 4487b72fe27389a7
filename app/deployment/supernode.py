"""A device's SuperNode, which does not outlive its connection.

Where Flower's SuperNode meets a TLS error it gives up, and its process stays, alive and offline; so
it does where its heartbeat is refused. What starts it again (`Restart=always`) cannot see that. So
the process ends here, when Flower has given up, or when calls have failed for a while of which the
network is not the cause.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.output.usage import command, complain
from corsage.app.run.status import FAILED, running
from corsage.core.errors import CorsageError

if TYPE_CHECKING:
    import httpx

USAGE = """\
usage: corsage supernode WORDS OF flower-supernode ...

A SuperNode, as `flower-supernode` starts it with these words, that ends when it is cut off from a
server that is there, so that what supervises it starts it again. In the folder where it is started,
status.json has a line on how it is connected.
"""
CUT_OFF = 90.0
"""Seconds without a heartbeat or another call that succeeded: a SuperNode sends some each 30 s."""
STANDS_STILL = 35.0
"""Seconds after which a call that goes on gets on: Flower gives up one that stands still for 30."""
LOOK_SECONDS = 5.0
"""Seconds between two looks."""
BEAT = "/v1/fleet/send-node-heartbeat"


@dataclass
class Calls:
    """The moments at which calls of this process last succeeded: heartbeats, and the others."""

    last: dict[bool, float] = field(
        default_factory=lambda: dict.fromkeys((True, False), time.monotonic())
    )
    under_way: dict[httpx.Request, float] = field(default_factory=dict)

    def listen(self) -> None:
        """Hear of each call that is made from now on."""
        import httpx

        plain = httpx.Client.send

        def send(client: httpx.Client, request: httpx.Request, **words: Any) -> httpx.Response:
            self.under_way[request] = time.monotonic()
            try:
                answer = plain(client, request, **words)
            finally:
                del self.under_way[request]
            if answer.is_success:
                self.last[request.url.path == BEAT] = time.monotonic()
            return answer

        httpx.Client.send = send  # type: ignore[method-assign,assignment]

    def silence(self) -> float:
        """Seconds since the later of them failed to come; a call that gets on slowly is none."""
        now, last = time.monotonic(), dict(self.last)
        for request, began in list(self.under_way.items()):
            if now - began > STANDS_STILL:
                last[request.url.path == BEAT] = now
        return now - min(last.values())


def watch(calls: Calls, there: Callable[[], bool], folder: Path) -> None:
    """Look at the calls now and then; end this process when it is cut off."""
    said = ""
    while True:
        silent = calls.silence()
        line = "connected" if silent < CUT_OFF / 2 else "not connected: calls fail"
        if line != said:
            with contextlib.suppress(CorsageError):  # a full disk is no reason not to look
                replace(running(), line=line).write(folder)
            said = line
        if silent > CUT_OFF and there():
            leave(f"cut off: no call has succeeded for {silent:.0f} s, and the server is there")
        time.sleep(LOOK_SECONDS)


def leave(why: str) -> None:
    """End this process now, whatever its threads wait for; its children see that it is gone."""
    complain(f"SuperNode: {why}; it ends, to be started again", 1)
    try:
        replace(running(), state=FAILED, exit_code=1, line=why).write(Path.cwd())
    finally:
        os._exit(1)


def answers(words: list[str]) -> bool:
    """True if a server with the right certificate is where a SuperNode's words say."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--superlink", default="")
    parser.add_argument("--root-certificates")
    asked = parser.parse_known_args(words)[0]
    host, _, port = asked.superlink.rpartition(":")
    try:
        trust = ssl.create_default_context(cafile=asked.root_certificates)
        with socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS) as plain:
            trust.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except (OSError, ValueError):
        return False
    return True


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Be a SuperNode, until it ends or is cut off."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    calls = Calls()
    calls.listen()
    watching = (calls, lambda: answers(words), Path.cwd())
    threading.Thread(target=watch, args=watching, daemon=True).start()
    sys.argv = ["flower-supernode", *words]
    flower_supernode()
    leave("Flower has given the connection up")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
