"""A device's SuperNode, which does not outlive its connection.

Where Flower's SuperNode meets a TLS error it gives up, and its process stays, alive and offline; so
it does where its heartbeat is refused. What starts it again (`Restart=always`) cannot see that. So
the process ends here, when Flower has given up, or when calls have failed for a while of which the
network is not the cause.

Flower takes an app for installed if its folder is there, for good: what a full disk, a loss of
power or a kill has left of one is removed here, so that the next message installs it anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import shutil
import socket
import ssl
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.output.usage import command, complain
from corsage.app.run.status import FAILED, running
from corsage.core.errors import CorsageError

if TYPE_CHECKING:
    import httpx
    from flwr.supercore.fab import Fab

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
SHUT_OUT = (401, 403)
REFUSED = "the server does not let this device's key in: whoever runs it adds it to its table again"
BEAT = "/v1/fleet/send-node-heartbeat"
INSTALLS = 5.0
"""Seconds without a change after which nobody installs into a folder any more."""
WRITING = threading.Lock()
"""Held by who writes the status: what a process says when it ends is the last word."""


@dataclass
class Calls:
    """The moments at which calls of this process last succeeded: heartbeats, and the others."""

    last: dict[bool, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
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
        now, last = time.monotonic(), {True: self.begun, False: self.begun, **self.last}
        for request, began in list(self.under_way.items()):
            if now - began > STANDS_STILL:
                last[request.url.path == BEAT] = now
        return now - min(last.values())


@dataclass
class Bundles:
    """The checksums of the files of bundles that are to be installed, by the bundle's hash."""

    files: dict[str, dict[str, int]] = field(default_factory=dict)

    def listen(self) -> None:
        """Hear of each bundle whose signature holds; Flower looks at it once a run."""
        from flwr.supernode import start_client_internal as flower

        plain = flower._verify_fab

        def verify(fab: Fab, trusted_entities: dict[str, str]) -> bool:
            if believed := plain(fab, trusted_entities):
                self.add(fab.content)
                self.sweep()
            return believed

        flower._verify_fab = verify

    def add(self, content: bytes) -> None:
        """Note a bundle's files; Flower's own list of them is not installed."""
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            files = {each.filename: each.CRC for each in bundle.infolist() if not each.is_dir()}
        own = {name: crc for name, crc in files.items() if not name.startswith(".info/")}
        self.files[hashlib.sha256(content).hexdigest()] = own

    def sweep(self) -> None:
        """Remove the folders of those that are not whole, and into which nobody installs now."""
        from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
        from flwr.supercore.utils import get_flwr_home

        for name, files in list(self.files.items()):
            for folder in (get_flwr_home() / APP_DIR).glob(f"*.{name[:FAB_HASH_TRUNCATION]}"):
                if all(checksum(folder / file) == crc for file, crc in files.items()):
                    self.files.pop(name, None)
                    continue
                newest = max(path.stat().st_ctime for path in (folder, *folder.rglob("*")))
                if time.time() - newest > INSTALLS:
                    complain(f"SuperNode: {folder.name} is not whole: it is installed anew", 1)
                    shutil.rmtree(folder)


def checksum(file: Path) -> int | None:
    """As it stands in a bundle; None if the file is not there."""
    return zlib.crc32(file.read_bytes()) if file.is_file() else None


def watch(
    calls: Calls, there: Callable[[], bool], folder: Path, sweep: Callable[[], object] = int
) -> None:
    """Look at the calls now and then; end this process when it is cut off."""
    said = ""
    while True:
        with contextlib.suppress(OSError):  # a file that has just gone; the next look tells
            sweep()
        silent = calls.silence()
        line = "connected" if calls.last else "not connected yet"
        line = line if silent < CUT_OFF / 2 else "not connected: calls fail"
        if line != said:
            with contextlib.suppress(CorsageError), WRITING:  # a full disk is no reason to stop
                replace(running(), line=line).write(folder)
            said = line
        if silent > CUT_OFF and there():
            leave(f"cut off: no call has succeeded for {silent:.0f} s, and the server is there")
        time.sleep(LOOK_SECONDS)


def leave(why: str) -> None:
    """End this process now, whatever its threads wait for; its children see that it is gone."""
    complain(f"SuperNode: {why}; it ends, to be started again", 1)
    WRITING.acquire()
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
    import httpx
    from flwr.supernode.cli.flower_supernode import flower_supernode

    calls, bundles = Calls(), Bundles()
    calls.listen()
    bundles.listen()
    watching = (calls, lambda: answers(words), Path.cwd(), bundles.sweep)
    threading.Thread(target=watch, args=watching, daemon=True).start()
    sys.argv = ["flower-supernode", *words]
    try:
        flower_supernode()
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in SHUT_OUT:
            raise
        leave(REFUSED)
    leave("Flower has given the connection up")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
