"""Tasks, which go over the wire to a node, declared here; arrays are in encoding.py.

A message from the server has the records `config` (the task), `arrays` (what all users get) and,
if the algorithm sends any, `rows` (one row a user, in the order of the task's users). A reply has
`arrays` (a mean over the node's users) or `rows`, `metrics`, and `config` (who did what, in which
exchange); what it must be is declared in schema.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord

from corsage.core.configuration.key_groups import DataKeys, ModelKeys, TrainKeys
from corsage.core.errors import ConfigError, Refused
from corsage.core.keys import Keys, NoKeys, flatten, kebab, names, read
from corsage.core.messages.fields import (
    BELIEVING,
    EMPTY_VALUES,
    LARGEST_WHOLE,
    Doubt,
    Flag,
    Json,
    JsonTables,
    Kind,
    Listed,
    OneOf,
    Real,
    Table,
    Text,
    Whole,
    columns_of,
    put,
    said,
    shown,
    take,
)
from corsage.core.messages.limits import Limits
from corsage.core.registry import ALGORITHMS, attached, data_keys, device_keys, keys_class

if TYPE_CHECKING:
    from corsage.core.tables.preparation import Preparation

COHORT_MEMBERS = "members"
"""The array that names the users of a cohort in its state."""
MOST_MEMBERS_TEXT = 2**28
"""Characters of the names of a node's users: of millions, in a simulation."""
ROWS_BY_USER = "by-user"
"""The option with which a node sends one row a user also of arrays that are averaged."""
ENDS_THE_RUN, ENDS_THE_STRATEGY = 1010, 1011
"""Codes of error replies with which a simulated node ends the run, since it cannot keep its users'
states, or the strategy, whose states are damaged. A device has no such say.
"""
ROW_OPTION, DELIVER_OPTION, ROOM_OPTION, OUTCOMES = "row", "deliver", "room", "outcomes"
"""Options of evaluations: of which row of the table, whether it is the one that the table shows,
and then how many bytes each user's model may take in the run folder, and how many sums of its test
samples (core/pairs.py) each user reports.
"""
END_HEAD = "end-head"
"""The head in closed form that a message after the last round is of."""
FINGERPRINT = 32
"""Characters of the fingerprint of what of the model nobody trains."""
MOST_MODEL_CLASSES, MOST_SIDES = 100_000, 8
MOST_SAMPLE_NUMBERS = 10**8
"""Numbers of one sample: a volume of 460 to each side."""
LONGEST_VALUE = 1000
"""Characters of a key's value, but for lists of columns."""
FILE_KEYS = (
    *("label-column", "labels", "feature-columns", "drop-columns", "category-columns"),
    *("scale", "missing", "test-fraction", "validation", "max-train-samples"),
)
"""The keys by which a run may say how a device reads its file."""


@dataclass(frozen=True)
class AlgorithmName(OneOf):
    """An algorithm; on a device one that its owner takes part in."""

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> str:
        """Or Refused where the owner does not want it."""
        found = super().__call__(name, value, limits)
        if limits and limits.strategies and found not in limits.strategies:
            allowed = ",".join(limits.strategies)
            raise Refused(f"strategy={found} is not one of this device's (strategies={allowed})")
        return found


@dataclass(frozen=True)
class Group(Kind):
    """A group of keys, in the one table of all keys; others of the table are of other groups.

    Parameters
    ----------
    of : which group, out of what was said before.
    only : the keys that a device takes; none: all of them.
    """

    of: Callable[[Mapping[str, Any]], type[Keys]]
    only: tuple[str, ...] = ()
    converts = wide = True

    def columns(self, name: str) -> Mapping[str, Kind]:
        """One table for all groups."""
        return {name: Table()}

    def put(self, record: dict[str, Any], name: str, value: Any) -> None:
        """Beside the other groups'."""
        record.setdefault(name, {}).update(flatten(value))

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> Keys:
        """The group's own keys, each typed and within its bounds."""
        keys, group = Table()(name, value[name]), self.of(value)
        if not limits:
            return read(group, keys)
        own = {n: keys[n] for n in self.only or names(group) if n in keys}
        for key, plain in own.items():
            check_value(key, plain)
        try:
            found = read(group, own)
        except ConfigError as error:
            raise Refused(str(error)) from None
        for f in fields(found):  # type: ignore[arg-type]
            if limit := f.metadata["limit"]:
                limits.check(limit, kebab(f.name), getattr(found, f.name))
        return found


def check_value(name: str, value: Any) -> None:
    """Refuse what no key can be, before anything is made of it."""
    if type(value) not in (bool, int, float, str):
        raise Refused(f"{name}={shown(value)}: not a value")
    if type(value) is str and len(value) > LONGEST_VALUE and name not in FILE_KEYS:
        raise Refused(
            f"{name}: a text of {len(value)} characters, at most {LONGEST_VALUE} are read"
        )
    if type(value) is int and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        raise Refused(f"{name}: a huge number")


@dataclass(frozen=True)
class Prepared(Kind):
    """The preparation that was agreed on for the columns of tables."""

    converts = True

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> Preparation | None:
        """Column by column; nothing may be agreed on."""
        if value is None:
            return None
        tables = attached("tables")
        try:
            agreed: Preparation = tables.Preparation.read(value)
            return agreed
        except tables.BadColumns as why:
            raise Refused(f"{name}: {why}") from None

    def put(self, record: dict[str, Any], name: str, value: Preparation) -> None:
        """As JSON can hold it."""
        record[name] = value.json()


@dataclass(frozen=True)
class Sides(Kind):
    """The shape of a sample, not of too many numbers; that of a row may be of no cells."""

    converts = True

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> tuple[int, ...]:
        """As arrays have it."""
        one = type(value) is list and len(value) == 1
        sides = tuple(Listed(Whole(0 if one else 1, MOST_SAMPLE_NUMBERS), MOST_SIDES)(name, value))
        if math.prod(sides) > MOST_SAMPLE_NUMBERS:
            raise Refused(f"{name}: {sides} are more than {MOST_SAMPLE_NUMBERS} numbers a sample")
        return sides

    def put(self, record: dict[str, Any], name: str, value: tuple[int, ...]) -> None:
        """As records have it; without sides only in settings."""
        record[name] = list(value)


@dataclass(frozen=True)
class Settings:
    """All that a node has to know of a run, which stays the same; on the wire it is one JSON text.

    Flower passes a run's config to nodes in deployments only, and there not that of the run that
    is resumed. `data` says what a simulated node deals, `device_data` how a device reads a file of
    its own. `preparation` is what the federation agreed on for the columns of its tables, if they
    are any.
    """

    algorithm: str = said(AlgorithmName(tuple(ALGORITHMS)), at="settings")
    experiment: str = said(Text(200), at="settings")
    seed: int = said(Whole(), at="settings")
    shape: tuple[int, ...] = said(Sides(), name="input-shape", at="settings")
    num_classes: int = said(Whole(high=MOST_MODEL_CLASSES), at="settings")
    num_users: int = said(Whole(), 0, at="settings", device=False)
    device_data: DataKeys = said(
        Group(lambda record: device_keys(), FILE_KEYS), DataKeys(), name="keys", at="settings",
        needed=True,
    )  # fmt: skip
    data: DataKeys = said(
        Group(lambda record: data_keys(read(DataKeys, record["keys"]).dataset)), DataKeys(),
        name="keys", at="settings", device=False,
    )  # fmt: skip
    train: TrainKeys = said(
        Group(lambda record: TrainKeys), TrainKeys(), name="keys", at="settings"
    )
    model: ModelKeys = said(
        Group(lambda record: ModelKeys), ModelKeys(), name="keys", at="settings"
    )
    keys: Keys = said(
        Group(lambda record: keys_class(record["algorithm"])), NoKeys(), name="keys", at="settings"
    )
    preparation: Preparation | None = said(Prepared(), None, at="settings")


@dataclass(frozen=True)
class Task(Settings):
    """A node's task: for whom, in which round, by which algorithm, with which settings.

    Parameters
    ----------
    round, exchange : which; replies repeat the exchange, so that none is taken for another's.
    frozen : the fingerprint of what of the model nobody trains; empty: there is nothing of it.
    sole : no other node is asked, so a mean may come in the precision of what it is of.
    users : for whom, or for which cohorts.
    versions : for each user the round in which its personal state was last merged by the server, 0
        if never.
    keep : for each user the versions that the server's checkpoints hold, one a checkpoint, in one
        flat list (0: none; the same one may come several times). A node starts from the one and
        forgets none of them, so a round that the server never finished leaves no trace, and the
        server may go back to any of its checkpoints.
    weights : what each user weighs in a mean by samples, if not what its samples say: none may
        have more than `max-share`.
    state_dir : where simulated users keep what is theirs, on one machine or on `many_machines`; a
        device knows itself.
    cohort_options : what else is said to each cohort.
    members : the users of the cohorts that the node does not know yet.
    former : the cohorts that had these users before, whose states are theirs.
    options : what the algorithm says besides: its client declares that (`Takes`).
    """

    round: int = said(Whole(), 0, needed=True)
    exchange: str = said(Text(100), "")
    frozen: str = said(Text(FINGERPRINT), "")
    sole: bool = said(Flag(), False, spare=True)
    users: list[str] = said(Listed(Text(400)), list)
    versions: list[int] = said(Listed(Whole()), list)
    keep: list[int] = said(Listed(Whole()), list)
    weights: list[float] = said(Listed(Real(0, LARGEST_WHOLE)), list)
    state_dir: str = said(Text(), "", device=False)
    many_machines: bool = said(Flag(), False, device=False)
    cohort_options: list[dict[str, Any]] = said(JsonTables(), list)
    members: dict[str, list[str]] = said(
        Json(Table(others=Listed(Text(400), least=1)), MOST_MEMBERS_TEXT), dict
    )
    former: list[str] = said(Listed(Text(400)), list)
    options: Mapping[str, Any] = field(default_factory=dict)

    def kept(self, place: int) -> list[int]:
        """The versions that the server's checkpoints hold of one user."""
        each = len(self.keep) // len(self.users)
        return self.keep[each * place : each * (place + 1)]


SETTINGS = [f.name for f in fields(Settings)]


def encode_task(task: Task) -> ConfigRecord:
    """A task as a config record."""
    own = {"settings": _settings_text(*(getattr(task, name) for name in SETTINGS)), **put(task)}
    if both := own.keys() & task.options.keys():
        raise ConfigError(f"{min(both)}: an option of the name of a field of tasks.")
    options = {name: value for name, value in task.options.items() if value not in EMPTY_VALUES}
    return ConfigRecord({**own, **options})


@lru_cache(maxsize=64)
def _settings_text(*values: Any) -> str:
    return json.dumps(put(Settings(*values), at="settings"))


def decode_task(record: ConfigRecord, doubt: Doubt = BELIEVING) -> Task:
    """The task of a message; what is no field of tasks is for the algorithm's client to judge."""
    if "settings" not in record:
        raise Refused("settings: it is missing")
    words: Any = record["settings"]
    settings = _read_settings(words, doubt) if doubt.doubts else _believed_settings(words)
    own = take(Task, record, doubt, more=True)
    names = record.keys() - columns_of(Task) - {"settings"}
    options = {name: record[name] for name in record if name in names}
    return Task(**{**vars(settings), **own, "options": options})


def _read_settings(words: Any, doubt: Doubt) -> Settings:
    """Read the JSON text."""
    return Settings(**take(Settings, Json(Table())("settings", words), doubt, "settings"))


_believed_settings = lru_cache(maxsize=64)(partial(_read_settings, doubt=BELIEVING))
