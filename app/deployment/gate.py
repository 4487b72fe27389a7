"""The gate: all that devices see of the server.

Flower's SuperLink has one port for everything: what devices need (its Fleet API), what the `flwr`
command needs (its Control API, which has no authentication in Flower's free distribution) and what
its own processes need (its Runtime API). So the SuperLink listens on the loopback, and the gate
passes on to it, from the devices' network, the calls of the Fleet API that a device's key has
signed, and nothing else. It also serves the shelf of signed apps.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from corsage.app.deployment.calls import gate
from corsage.app.deployment.shelf import shelf
from corsage.app.output.usage import command, number, read_options
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import write_atomically

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from corsage.app.deployment.callers import Callers
    from corsage.app.deployment.crowd import Crowd

USAGE = """\
usage: corsage gate SERVER_FOLDER [--host 0.0.0.0] [--port 8443] [--superlink 127.0.0.1:8000]
                    [--shelf-port 8001] [--megabytes 64] [--newcomers 64] [--status FILE]

Passes the calls of devices, and no others, on to the SuperLink of this machine; and hands the
SuperLink the signed app. SERVER_FOLDER was made by `corsage deploy`.

  --megabytes   what a device may be sending at once; all together, eight times that
  --newcomers   connections that one address may open at once before a device's key has signed a
                call on them; more where many devices come from one address
  --status      a file in which a supervisor reads who is there
"""
GATE_OPTIONS = {
    "host": "0.0.0.0",
    "port": "8443",
    "superlink": "127.0.0.1:8000",
    "shelf-port": "8001",
    "megabytes": "64",
    "newcomers": "64",
    "status": "",
}
IDLE_SECONDS = 75
"""Seconds for which a device may keep a connection without a call."""
BACKLOG, OPEN_FILES = 4096, 1 << 16
"""Connections that wait for the gate, and open files that it asks the system for."""
TELL_SECONDS, THERE = 5.0, 90.0
"""Seconds between two looks at who is there, and since a call of whom that is said."""


def serve(folder: Path, options: dict[str, str]) -> None:
    """Both applications, until the process is asked to end."""
    import uvicorn

    from corsage.app.deployment.crowd import Crowd, Door, Room

    shelf_port, room = number(options, "shelf-port"), Room(number(options, "newcomers"))
    most = number(options, "megabytes", 2**12) << 20
    listener = listening(options["host"], number(options, "port"))
    crowd = Crowd(Room(room.each, min(room.strangers, open_files() // 4)))
    for address in addresses_in(options["status"]):
        crowd.befriend(address)
    app = gate(options["superlink"], folder, most, crowd)
    apps = shelf(folder / "apps", f"127.0.0.1:{shelf_port}")
    shelves = uvicorn.Server(uvicorn.Config(apps, log_level="warning"))
    own = [listening("127.0.0.1", shelf_port)]
    Thread(target=shelves.run, args=[own], daemon=True).start()
    if options["status"]:
        watch = (Path(options["status"]), crowd, app.state.gate.callers)
        Thread(target=tell, args=watch, daemon=True).start()
    Door(config(app, folder), crowd).run([listener])


def config(app: Starlette, folder: Path) -> Any:
    """The server's settings."""
    import uvicorn

    return uvicorn.Config(
        app,
        ssl_certfile=str(folder / "server.crt"),
        ssl_keyfile=str(folder / "server.key"),
        log_level="error",  # a line for each bad call would fill the disk
        server_header=False,
        proxy_headers=False,  # else a caller on this machine says from where he comes
        http="h11",  # which bounds what is before the body; the other one keeps whatever comes
        ws="none",
        lifespan="off",
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=3,
    )


def listening(host: str, port: int) -> socket.socket:
    """The socket of the gate."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"port {port} of {host}: cannot be had ({error}).") from error


def open_files() -> int:
    """Have as many files open as the system allows, up to what is needed; how many that is."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def tell(path: Path, crowd: Crowd, callers: Callers) -> None:
    """Keep a file for whoever watches the server: who is there, who is not, who was turned away."""
    while True:
        with contextlib.suppress(OSError):  # the disk may have room again
            write_atomically(path, json.dumps(status(crowd, callers), indent=2) + "\n")
        time.sleep(TELL_SECONDS)


def addresses_in(file: str) -> list[str]:
    """Read the addresses of devices when the gate last ran: no crowd is to keep these out."""
    try:
        return [str(address) for address in json.loads(Path(file).read_text())["addresses"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def status(crowd: Crowd, callers: Callers) -> dict[str, Any]:
    """A word on each device."""
    now, seen = time.time(), dict(callers.seen)
    away = [name for name in callers.names if now - seen.get(name, 0.0) > THERE]
    line = f"{len(callers.names) - len(away)} of {len(callers.names)} devices are there"
    return {
        "line": line + f"; away: {', '.join(away)}" * bool(away),
        "at": moment(now),
        "last-calls": {name: moment(at) for name, at in sorted(seen.items())},
        "addresses": sorted(crowd.friends),
        "connections": {"of-devices": sum(map(len, list(crowd.devices.values())))},
        "turned-away": {"at-once": crowd.refused, "later": crowd.ended},
    }


def moment(at: float) -> str:
    """A time, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    options, (folder, *rest) = read_options(words, GATE_OPTIONS)
    if rest:
        raise ConfigError(f"{rest[0]}: one folder is enough.")
    check_folder(Path(folder))
    serve(Path(folder), options)


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not one of `corsage deploy`."""
    for name in ("ca.crt", "server.crt", "server.key", "apps", "keys"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder / name}: is not there; make it with `corsage deploy`.")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
