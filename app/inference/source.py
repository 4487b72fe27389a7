"""Models taken from a run folder, a device's state-dir or a file of either, as a command says."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from corsage.app.results.known_models import allow
from corsage.app.results.row import NoModel, unknown_user
from corsage.app.results.rowfile import RowFile
from corsage.app.run.loaded import load
from corsage.core.errors import CheckpointError, ConfigError
from corsage.core.keys import nearest

if TYPE_CHECKING:
    from corsage.app.results.user_model import UserModel
    from corsage.core.configuration.config import Config


class Models:
    """The models of a row: users' own, and one for whoever is new.

    Parameters
    ----------
    row : of the table.
    users : whose models there are.
    config : of the run, if it is one.
    """

    def __init__(self, row: str, users: list[str], config: Config | None = None) -> None:
        self.row, self.users, self.config = row, users, config

    def user(self, name: str) -> UserModel:
        """A user's model; an error in one line if there is none."""
        raise NotImplementedError

    def new_user(self) -> UserModel:
        """The model that a new user begins with."""
        raise NoModel(f"{self.row}: a device has no model but its users' own.")


class OfRun(Models):
    """Those of a run folder."""

    def __init__(self, folder: Path, row: str) -> None:
        from corsage.app.output.answer import is_answer
        from corsage.core.configuration.config import Config

        run = load(folder)
        usual = run.recommended if is_answer(run.json()) else ""
        if not row and not usual and len({name.partition("+")[0] for name in run.rows}) == 1:
            usual, *others = run.rows
            if others:
                print(f"models of {usual}; strategy=ROW for {', '.join(others)}", file=sys.stderr)
        self._row = run[row or usual or only(run.rows, "strategy")]
        stored = Config.parse(run.config)
        super().__init__(self._row.name, self._row.users, stored)

    def user(self, name: str) -> UserModel:
        """A user's model; who was never drawn has no part of its own that was trained."""
        if name in self._row.numbers.get("untrained", ()):
            said = "was never drawn in training: its own part of the model is what all begin with"
            print(f"user {name}: {said}", file=sys.stderr)
        return self._row.user(name)

    def new_user(self) -> UserModel:
        """The model that all share."""
        return self._row.new_user()


class OfDevice(Models):
    """Those that a device keeps: of each user the newest one, of the row that is asked for."""

    def __init__(self, files: list[Path], row: str, where: Path) -> None:
        found: dict[str, RowFile] = {}
        rows: list[str] = []
        for path in newest_first(files):
            file = RowFile(path).checked()
            rows.append(file.header.row)
            if file.header.row == (row or rows[0]):
                for user in file.header.users:
                    found.setdefault(user, file)
        if not found:
            there = ", ".join(dict.fromkeys(rows)) or "none"
            raise CheckpointError(f"{where}: no model of {row or 'anybody'}. There are: {there}.")
        self._files = found
        super().__init__(row or rows[0], list(found))

    def user(self, name: str) -> UserModel:
        """A user's model."""
        from corsage.app.results.user_model import UserModel

        if name not in self._files:
            raise NoModel(unknown_user(name, self.row, self.users))
        file = self._files[name]
        return UserModel(name, file.header, file.own(name), scales=file.scales(name))


def newest_first(files: list[Path]) -> list[Path]:
    """The files that are there; the device may be at work, and take one away meanwhile."""
    times: dict[Path, int] = {}
    for path in files:
        with suppress(FileNotFoundError):
            times[path] = path.stat().st_mtime_ns
    return sorted(times, key=times.__getitem__, reverse=True)


def models_in(place: str, row: str) -> Models:
    """The models in a run folder or a device's state-dir."""
    path = Path(place).expanduser()
    if path.is_file():
        return OfDevice([path], row, path)
    if (path / "config.json").is_file():
        return OfRun(path, row)
    if not path.is_dir():
        raise ConfigError(f"{place}: there is no such folder.")
    if files := [*path.glob("*/*/model-*.safetensors")]:
        return OfDevice(files, row, path)
    raise ConfigError(f"{place}: neither a run folder nor a state-dir with a model in it.")


@dataclass(frozen=True)
class Words:
    """What the words say.

    Parameters
    ----------
    files : what stands for itself: the folder, and a file.
    keys : `strategy=` and `user=`.
    options : those with a value, such as `--out FILE`.
    flags : those without.
    """

    files: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)


def read(
    words: Collection[str], names: Collection[str], options: Collection[str], flags: Collection[str]
) -> Words:
    """The words; ConfigError on one that is none of these."""
    found, rest = Words(), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in flags:
            found.flags.add(word)
        elif name in options:
            found.options[name] = value if equals else next(rest, "")
            if not found.options[name]:
                raise ConfigError(f"{name}: say what, {name} FILE.")
        elif equals and name == "models" and name in names:
            allow(value.split(","))
        elif equals and name in names:
            found.keys[name] = value
        elif word.startswith("-"):
            raise ConfigError(f"{word}: no such option.{nearest(word, [*options, *flags])}")
        elif equals and not Path(word).exists():
            raise ConfigError(f"{name}: no such word here.{nearest(name, names)}")
        else:
            found.files.append(word)
    return found


def only(found: Mapping[str, object], what: str) -> str:
    """The only name among some; ConfigError that says which there are, if they are several."""
    if len(found) == 1:
        return next(iter(found))
    names = list(found)
    some = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise ConfigError(f"{what}=NAME: say which. There are: {some or 'none'}.")
