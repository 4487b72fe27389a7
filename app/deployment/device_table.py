"""The table of the devices: `devices.csv`, a line each.

A column is `name` (of the device's folder and unit), `port` (of its own, on its loopback) or any
word of the node config: `data`, `user`, `cluster`, `num-classes`, `label-column`, ...
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from corsage.core.errors import ConfigError

FIRST_PORT = 9094
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
CONFIG_TEXT = re.compile(r"[^'\"\\\x00-\x1f]*")
"""What a value may be: Flower's node config knows no escapes."""
CONFIG_NUMBER = re.compile(r"-?\d+(\.\d+)?|true|false")


@dataclass(frozen=True)
class Device:
    """One line of the table.

    Parameters
    ----------
    name : of its folder, its unit and its service.
    port : where its processes speak to each other, on its loopback.
    words : its node config, but for `state-dir`.
    """

    name: str
    port: int
    words: dict[str, str]

    @property
    def node_config(self) -> str:
        """As `flower-supernode --node-config` reads it."""
        return " ".join(f"{key}={spelled(key, value)}" for key, value in self.words.items())


def spelled(key: str, value: str) -> str:
    """A value as TOML has it; who a user is and where he belongs are always texts."""
    text = key in ("user", "cluster", "data") or not CONFIG_NUMBER.fullmatch(value)
    return f"'{value}'" if text else value


def read_table(path: Path) -> list[Device]:
    """The devices of a file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}).") from error
    if not rows:
        raise ConfigError(f"{path}: has no lines; it needs one a device, with name and data.")
    devices = [device(path, number, row) for number, row in enumerate(rows)]
    for what in ("name", "port"):
        check_distinct(path, what, [getattr(one, what) for one in devices])
    check_distinct(path, "user", [one.words["user"] for one in devices])
    return devices


def device(path: Path, number: int, row: dict[str | None, str | None]) -> Device:
    """One line; `number` counts from 0, below the heading."""
    where = f"{path}, line {number + 2}"
    if None in row or None in row.values():
        raise ConfigError(f"{where}: has not as many columns as the heading.")
    words = {str(k).strip(): str(v).strip() for k, v in row.items() if str(v).strip()}
    name, port = words.pop("name", ""), words.pop("port", str(FIRST_PORT + number))
    if not DEVICE_NAME.fullmatch(name):
        raise ConfigError(f"{where}: name={name!r}: letters, digits, '-', '_' and '.' make a name.")
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"{where}: port={port}: is no port.")
    if not words.get("data"):
        raise ConfigError(f"{where}: data: say where the file of {name} lies on it.")
    if not PurePosixPath(words["data"]).is_absolute():
        raise ConfigError(
            f"{where}: data={words['data']}: say the whole path, from / on, that it has on {name}."
        )
    if "state-dir" in words:
        raise ConfigError(f"{where}: state-dir: is where the unit keeps its state; leave it out.")
    for key, value in words.items():
        if not CONFIG_TEXT.fullmatch(value):
            raise ConfigError(f"{where}: {key}={value!r}: has a quote, a backslash or a control.")
    return Device(name, int(port), {"user": name, **words})


def check_distinct(path: Path, what: str, values: Iterable[object]) -> None:
    """Refuse two devices that share what each must have of its own."""
    seen = set[object]()
    for value in values:
        if value in seen:
            raise ConfigError(f"{path}: {what}={value}: is there twice.")
        seen.add(value)
