"""`corsage deploy`: from one table of devices to a folder for each machine."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from corsage.app.deployment import keys
from corsage.app.deployment.device_table import Device, read_table
from corsage.app.deployment.register import LET_IN
from corsage.app.deployment.shelf import DAYS_OF_AN_APP, app_of, put_on_shelf, trusted
from corsage.app.output.usage import command, number, read_options
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import guarded, write_atomically
from corsage.core.keys import nearest

APP_FOLDER = Path(__file__).parents[2]
USAGE = """\
usage: corsage deploy DEVICES.csv SITE_FOLDER --server NAME[,NAME or ADDRESS ...] [--port 8443]
                      [--app CHECKOUT] [--days 365] [--run-keys KEY[,KEY ...]]

Makes all that a server and its devices need, in SITE_FOLDER:

  secret/        the authority's key and the key that signs apps: keep them off the server
  server/        for the server: certificate, the devices' public keys, the signed app
  devices/NAME/  for each device: its key, whom it trusts, its node config
  compose.yaml   all of them as containers, which keep their state in state/

DEVICES.csv has a line a device: name, data, and any word of the node config. --server is the name
by which the devices reach the server. Once more, it keeps the keys that are there, makes those of
new devices, forgets those that the table no longer has (with their keys: one that comes back gets
another), and signs the app as it is now: for so many days, after which devices refuse it, and if
--run-keys names any, for runs that set no other keys than these, of what devices are told.
"""
DEPLOY_OPTIONS = {
    "server": "",
    "port": "8443",
    "app": str(APP_FOLDER),
    "days": str(DAYS_OF_AN_APP),
    "run-keys": "",
}
OF_SERVER = ("superlink.sh", "gate.sh", "flwr.sh", "corsage.sh", "run.sh", "settings.sh")
OF_DEVICE = ("device.sh",)
COMPOSE_HEAD = """\
# Made by `corsage deploy`, beside the folders server/, devices/ and state/ that it names; the data
# of a device lie in data/. Only the gate is published: the SuperLink listens on the loopback that
# it shares with the gate, so that neither the devices' network nor the machine's reaches it.
#
#   docker build -t corsage -f deploy/Dockerfile CHECKOUT
#   CORSAGE_USER=$(id -u):$(id -g) docker compose up -d
#   docker compose exec superlink /etc/corsage/corsage.sh register /etc/corsage
#   docker compose exec superlink /etc/corsage/flwr.sh run @corsage/corsage==VERSION here --stream

x-shut: &shut
  image: corsage
  user: "${CORSAGE_USER:-1000:1000}"
  restart: always
  init: true # it buries the workers of a device, which outlive the process that started them
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  environment: {HOME: /tmp, STATE_DIRECTORY: /var/lib/corsage}

services:
  superlink:
    <<: *shut
    command: [/etc/corsage/superlink.sh]
    networks: {devices: {aliases: ["SERVER"]}}
    ports: ["PORT:PORT"]
    volumes: ["./server:/etc/corsage:ro", "./state/server:/var/lib/corsage"]
  gate:
    <<: *shut
    command: [/etc/corsage/gate.sh]
    depends_on: [superlink]
    network_mode: "service:superlink"
    volumes: ["./server:/etc/corsage:ro", "./state/server/gate:/var/lib/corsage"]
    ulimits: {nofile: 65536}
"""
DEVICE = """\
  device-NAME:
    <<: *shut
    command: [/etc/corsage/device.sh]
    depends_on: [gate]
    networks: [devices]
    volumes:
      - "./devices/NAME:/etc/corsage:ro"
      - "./data/FILE:DATA:ro"
      - "./state/NAME:/var/lib/corsage"
"""


def deploy(
    table: Path, site: Path, names: list[str], port: int, app: Path, days: int, settable: list[str]
) -> Iterator[str]:
    """Make or renew the folders; a line on each thing that is done."""
    if not (APP_FOLDER / "deploy").is_dir():
        raise ConfigError("deploy: needs a checkout of Corsage, with its folder deploy/.")
    app_of(app)
    devices, secret, server = read_table(table), site / "secret", site / "server"
    secret.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys.authority(secret)
    public = keys.signer_key(secret / "signer.key")
    server.mkdir(exist_ok=True, mode=0o700)
    copy(secret / "ca.crt", server)
    names = list(dict.fromkeys([*names, "localhost", "127.0.0.1"]))
    if keys.names_of(server / "server.crt") != names:
        keys.server_certificate(server, secret, names)
        yield f"{server / 'server.crt'}: for {', '.join(names)}, valid {keys.DAYS} days"
    write_atomically(server / "gate.env", f"PORT={port}\n")
    scripts(OF_SERVER, server)
    for folder in (site / "state" / "server", site / "state" / "server" / "gate"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for device in devices:
        (site / "state" / device.name).mkdir(exist_ok=True, mode=0o700)
        folder = site / "devices" / device.name
        line = make_device(folder, device, f"{names[0]}:{port}", trusted(public))
        copy(secret / "ca.crt", folder)
        write_atomically(server / "keys" / f"{device.name}.pub", line)
    yield f"{site / 'devices'}: {len(devices)} devices"
    names_of_devices = "".join(f"{device.name}\n" for device in devices)
    write_atomically(server / "keys" / LET_IN, names_of_devices)
    for path in forgotten(server / "keys", devices):
        path.unlink()
        give_up(site / "devices" / path.stem)
        yield f"{path.stem}: no longer in the table; `corsage register` shuts it out"
    called = put_on_shelf(app, secret / "signer.key", server / "apps", days, settable)
    yield f"{server / 'apps'}: {called}, signed for {days} days" + (
        f" and runs that set {', '.join(settable)}" * bool(settable)
    )
    write_atomically(site / "compose.yaml", compose(devices, names[0], port))


def make_device(folder: Path, device: Device, server: str, signers: str) -> bytes:
    """The folder of one device; returns its public key.

    A device that makes its key itself gives `device.pub` alone.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = folder / "device.pub"
    if not own.exists() or (folder / "device.key").exists():
        write_atomically(own, keys.device_key(folder / "device.key"))
    lines = {"SERVER": server, "PORT": str(device.port), "NODE_CONFIG": device.node_config}
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in lines.items())
    write_atomically(folder / "device.env", text)
    write_atomically(folder / "trusted.yaml", signers)
    scripts(OF_DEVICE, folder)
    return own.read_bytes()


def give_up(folder: Path) -> None:
    """The key of a device that may be lost is not taken again, even if its name comes back."""
    for path in (folder / "device.key", folder / "device.pub"):
        if path.exists():
            path.replace(path.with_name(f"{path.name}.shut-out"))


def scripts(names: tuple[str, ...], folder: Path) -> None:
    """The start scripts beside what they need."""
    for name in names:
        copy(APP_FOLDER / "deploy" / name, folder)
        (folder / name).chmod(0o755)


def copy(path: Path, folder: Path) -> None:
    """A file that is the same everywhere."""
    shutil.copyfile(path, folder / path.name)


def forgotten(folder: Path, devices: list[Device]) -> list[Path]:
    """Public keys of devices that are no longer in the table."""
    known = {device.name for device in devices}
    return [path for path in sorted(folder.glob("*.pub")) if path.stem not in known]


def compose(devices: list[Device], server: str, port: int) -> str:
    """The whole file; the data of a device lie in `data/`, by the name of its file."""
    parts = [filled(COMPOSE_HEAD, {"PORT": str(port), "SERVER": server})]
    for device in devices:
        data = device.words["data"]
        file = PurePosixPath(data).name
        parts.append(filled(DEVICE, {"NAME": device.name, "FILE": file, "DATA": data}))
    return "".join([*parts, "\nnetworks: {devices: {}}\n"])


def filled(text: str, words: Mapping[str, str]) -> str:
    """A text with words in the places of their names, all at once: a word may hold a name."""
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[1]], text)


def run_keys(said: str) -> list[str]:
    """The keys that a run may set."""
    found = [name.strip() for name in said.split(",") if name.strip()]
    if said and not found:
        raise ConfigError(f"--run-keys {said}: names no key; without it runs may set all.")
    for name in found:
        if name not in defaults():
            raise ConfigError(f"--run-keys: {name}: no such key.{nearest(name, defaults())}")
    return found


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    options, plain = read_options(words, DEPLOY_OPTIONS)
    if len(plain) != 2:
        raise ConfigError("deploy: say the table of devices and the folder: see --help.")
    port = number(options, "port")
    names = [name.strip() for name in options["server"].split(",") if name.strip()]
    if not names:
        raise ConfigError("--server: say the name by which the devices reach the server.")
    if ":" in names[0] or "/" in names[0]:
        raise ConfigError(f"--server: {names[0]}: say a name alone; --port is beside it.")
    table, site = (Path(word).expanduser() for word in plain)
    app = Path(options["app"]).expanduser()
    days, settable = number(options, "days"), run_keys(options["run-keys"])
    for line in guarded(list, deploy(table, site, names, port, app, days, settable)):
        print(line)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
