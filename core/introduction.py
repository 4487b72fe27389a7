"""How a node introduces itself: declared here, and checked before anything is made of it.

A device says who its users are, how many samples each has, and what a sample looks like. The
server builds the model and weighs users by these words, so each has its bounds, and a node whose
words are out of them is refused as a whole: nothing that it says is allocated, computed or kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from corsage.core.columns import NUMBER, BadColumns, TableFacts, read_facts
from corsage.core.text import line
from corsage.core.wire import FINGERPRINT, MOST_CLASSES, MOST_SIDES

MOST_USERS = 1_000_000
"""Users of one node: a simulation of all users of the largest data set is one node."""
MOST_CHARACTERS = 200
"""Characters of the id of a user, and of the name of its cluster."""
MOST_SAMPLES = 10**9
"""Training or test samples of one user."""
MOST_NUMBERS = 10**8
"""Numbers of one sample: a volume of 460 to each side."""
MOST_PARAMETERS = 10**15
"""Parameters that a device may say that it allows."""
PROOF_CHARACTERS = 64
SAMPLES = ("train", "test")
WORDS = {str: "text", int: "whole number"}


class BadIntroduction(ValueError):
    """What a node says of itself cannot be used: which field, and why."""


@dataclass(frozen=True, slots=True)
class Counts:
    """One user's numbers of samples, and its cluster if known; users that are alike share one."""

    train: int
    test: int
    cluster: str = ""


@dataclass(frozen=True)
class Introduction:
    """What a node says of itself.

    Parameters
    ----------
    shape, num_classes : of a sample; no classes: labels are numbers.
    users : whom it hosts.
    proof : what only this device can say in this run; none: it has nowhere to keep a secret.
    table : what it says of the columns of its table, if it has one: `shape` is then of raw cells.
    frozen : the fingerprint of what nobody trains of the model for such samples, as this node has
        it; none: it has nothing of the kind, or cannot say it yet.
    most : the most parameters that a model may have there (`max-parameters`); 0: it does not say.
    """

    shape: tuple[int, ...]
    num_classes: int
    users: Mapping[str, Counts]
    proof: str = ""
    table: TableFacts | None = None
    frozen: str = ""
    most: int = 0


def read_introduction(content: RecordDict) -> Introduction:
    """An introduction whose every field is of its type and in its range, or BadIntroduction."""
    config = _record(content, "config", ConfigRecord)
    metrics = _record(content, "metrics", MetricRecord)
    users = _list(config, "users", str, MOST_USERS, optional=True)
    _names("users", users)
    if len(set(users)) != len(users):
        twice, _ = Counter(users).most_common(1)[0]
        raise BadIntroduction(f"users: {line(twice)} is named twice")
    clusters = _list(config, "clusters", str, MOST_USERS, optional=True) or [""] * len(users)
    train, test = (_list(metrics, name, int, MOST_USERS, optional=True) for name in SAMPLES)
    for name, column in {"clusters": clusters, "train": train, "test": test}.items():
        if len(column) != len(users):
            raise BadIntroduction(f"{name}: {len(column)} values of {len(users)} users")
    columns = list(zip(train, test, clusters, strict=True))
    kinds = {own: Counts(*own) for own in dict.fromkeys(columns)}
    for counts in kinds:
        _check_counts(users, columns, counts)
    return Introduction(
        shape=_shape(config, bool(users)),
        num_classes=_whole("num-classes", config.get("num-classes"), 0, MOST_CLASSES),
        users={user: kinds[own] for user, own in zip(users, columns, strict=True)},
        proof=_proof(config),
        table=_table(config, sum(train)),
        frozen=_frozen(config),
        most=_whole("max-parameters", config.get("max-parameters", 0), 0, MOST_PARAMETERS),
    )


def _record(content: RecordDict, name: str, kind: type[Any]) -> Any:
    if name not in content:
        raise BadIntroduction(f"{name}: it is missing")
    if not isinstance(content[name], kind):
        raise BadIntroduction(f"{name}: it is no {kind.__name__}")
    return content[name]


def _list(
    record: Mapping[str, Any], name: str, kind: type[Any], most: int, optional: bool = False
) -> list[Any]:
    """A list of at most so many values of one type; an empty one may be left out."""
    values = record.get(name, [] if optional else None)
    if not isinstance(values, list):
        raise BadIntroduction(f"{name}: it is no list")
    if len(values) > most:
        raise BadIntroduction(f"{name}: {len(values)} entries, the most are {most}")
    if set(map(type, values)) - {kind}:  # a truth value is no number here
        value = next(value for value in values if type(value) is not kind)
        raise BadIntroduction(f"{name}: {line(repr(value), 60)} is no {WORDS[kind]}")
    return values


def _check_counts(users: list[str], columns: list[tuple[int, int, str]], own: Any) -> None:
    """Refuse numbers and names that are out of their bounds, and say of whom they are."""
    train, test, cluster = own
    fine = all(0 <= count <= MOST_SAMPLES for count in (train, test))
    if fine and len(cluster) <= MOST_CHARACTERS and (not cluster or _is_plain(cluster)):
        return
    user = line(users[columns.index(own)])
    _name(f"user {user}: clusters", cluster, empty=True)
    for name, count in zip(SAMPLES, (train, test), strict=True):
        _whole(f"user {user}: {name}", count, 0, MOST_SAMPLES)


def _names(field: str, texts: list[str]) -> None:
    """Refuse ids of which one cannot be used; a million good ones are looked at in one go."""
    if max(map(len, texts), default=0) > MOST_CHARACTERS or not all(map(_is_plain, texts)):
        for text in texts:
            _name(field, text)


def _is_plain(text: str) -> bool:
    """Whether a name is neither empty nor has characters that cannot be printed."""
    return text.isprintable() and bool(text.strip())


def _name(field: str, text: str, empty: bool = False) -> None:
    """Refuse an id or a name that is empty, too long, or not to be printed as it is."""
    if not text.strip() and not (empty and not text):
        raise BadIntroduction(f"{field}: an id is empty")
    if len(text) > MOST_CHARACTERS:
        raise BadIntroduction(
            f"{field}: {line(text, 30)} has {len(text)} characters, the most are {MOST_CHARACTERS}"
        )
    if not text.isprintable():
        raise BadIntroduction(f"{field}: {line(text, 60)} has characters that cannot be printed")


def _whole(field: str, value: object, low: int, high: int) -> int:
    """A whole number in its range."""
    if type(value) is not int:
        raise BadIntroduction(f"{field}: {line(repr(value), 60)} is no whole number")
    if not low <= value <= high:
        raise BadIntroduction(f"{field}: {value} is not from {low} to {high}")
    return value


def _shape(config: ConfigRecord, needed: bool) -> tuple[int, ...]:
    """The shape of a sample, which a node without users may leave out; a table may have none."""
    sides = _list(config, "input-shape", int, MOST_SIDES, optional=not needed)
    if needed and not sides:
        raise BadIntroduction("input-shape: it is empty")
    for side in sides:
        _whole("input-shape", side, int(len(sides) > 1), MOST_NUMBERS)
    if math.prod(sides) > MOST_NUMBERS:
        raise BadIntroduction(
            f"input-shape: {tuple(sides)} are more than {MOST_NUMBERS} numbers a sample"
        )
    return tuple(sides)


def _proof(config: ConfigRecord) -> str:
    proof = config.get("proof", "")
    if not isinstance(proof, str) or len(proof) > PROOF_CHARACTERS:
        raise BadIntroduction(f"proof: it is no text of at most {PROOF_CHARACTERS} characters")
    return proof


def other_frozen(own: str, wanted: str) -> str:
    """What to say of a node whose frozen part is another than the server's."""
    here, there = (word[:8] or "none" for word in (own, wanted))
    return (
        f"its frozen part is not the server's (fingerprint {here}, there {there}): the same model, "
        "seed and files of weights make the same"
    )


def too_large(parameters: int, most: int) -> str:
    """What to say of a node that does not allow a model of so many parameters."""
    return (
        f"the model has {parameters:,} parameters, {4e-6 * parameters:,.0f} MB a message, and the "
        f"node allows {most:,}: raise max-parameters in its node config, or take a smaller model"
    )


def too_many(parameters: int, users: int, most: int, space: int) -> str:
    """What to say of a node that does not allow as many models as it has users."""
    size = f"{users:,} models of {parameters:,} parameters, {4e-6 * parameters * users:,.0f} MB"
    return (
        f"{size} for its users, are more than the node allows ({space} times "
        f"max-parameters={most:,}): raise max-parameters in its node config, let it host fewer "
        "users, or take a smaller model"
    )


def _frozen(config: ConfigRecord) -> str:
    found = config.get("frozen", "")
    if (
        not isinstance(found, str)
        or len(found) > FINGERPRINT
        or set(found) - set("0123456789abcdef")
    ):
        raise BadIntroduction("frozen: it is no fingerprint")
    return found


def _table(config: ConfigRecord, rows: int) -> TableFacts | None:
    """What is said of the columns, which must be as many as a sample has."""
    if "table" not in config:
        return None
    try:
        found = read_facts(config["table"], rows)
    except BadColumns as why:
        raise BadIntroduction(f"table: {why}") from None
    if config.get("input-shape", []) not in ([], [len(found.columns)]):
        raise BadIntroduction(f"table: {len(found.columns)} columns, and other samples")
    if (found.label.kind == NUMBER) != (config["num-classes"] == 0):
        raise BadIntroduction("table: its labels are of another kind than num-classes says")
    return found
