"""A node's introduction, declared here, and checked before anything is made of it.

A device says who its users are, how many samples each has, and what a sample looks like. The
server builds the model and weighs users by these words, so each has its bounds, and a node whose
words are out of them is refused as a whole: nothing that it says is allocated, computed or kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from corsage.core.errors import Refused
from corsage.core.messages.fields import (
    LARGEST_WHOLE,
    Doubt,
    Kind,
    Listed,
    Text,
    Whole,
    put,
    record_of,
    said,
    shown,
    take,
)
from corsage.core.messages.limits import Limits
from corsage.core.messages.wire import FINGERPRINT, MOST_MODEL_CLASSES, Sides
from corsage.core.registry import attached

if TYPE_CHECKING:
    from corsage.core.tables.column_facts import TableFacts

MOST_HOSTED_USERS = 1_000_000
"""Users of one node: a simulation of all users of the largest data set is one node."""
MOST_ID_CHARACTERS = 200
"""Characters of the id of a user, and of the name of its cluster."""
MOST_SAMPLES = 10**9
"""Training or test samples of one user."""
SAMPLES = ("train", "test")
"""The numbers of an introduction; what else it says are words."""


@dataclass(frozen=True, slots=True)
class Counts:
    """One user's numbers of samples, and its cluster if known; users that are alike share one."""

    train: int
    test: int
    cluster: str = ""


def counted(
    users: Iterable[str], train: list[int], test: list[int], clusters: list[str]
) -> dict[str, Counts]:
    """Users and what is known of them; of a million there are a few kinds."""
    columns = list(zip(train, test, clusters, strict=True))
    kinds = {own: Counts(*own) for own in dict.fromkeys(columns)}
    return {user: kinds[own] for user, own in zip(users, columns, strict=True)}


@dataclass(frozen=True)
class Hosted(Kind):
    """The users of a node, in columns: their ids, clusters and numbers of samples."""

    converts = wide = True

    def columns(self, name: str) -> Mapping[str, Kind]:
        """One of each user."""
        ids = Listed(Text(MOST_ID_CHARACTERS, printable=True, id=True), MOST_HOSTED_USERS)
        clusters = Listed(Text(MOST_ID_CHARACTERS, printable=True), MOST_HOSTED_USERS)
        samples = Listed(Whole(high=MOST_SAMPLES), MOST_HOSTED_USERS)
        return {name: ids, "clusters": clusters, **dict.fromkeys(SAMPLES, samples)}

    def put(self, record: dict[str, Any], name: str, value: Mapping[str, Counts]) -> None:
        """Column by column."""
        own = value.values()
        record |= {name: list(value), "clusters": [one.cluster for one in own]}
        record |= {which: [getattr(one, which) for one in own] for which in SAMPLES}

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> dict[str, Counts]:
        """Each user once, and something of each in all columns."""
        found = {n: kind(n, value.get(n, [])) for n, kind in self.columns(name).items()}
        users = found[name]
        found["clusters"] = found["clusters"] or [""] * len(users)
        if len(set(users)) != len(users):
            twice, _ = Counter(users).most_common(1)[0]
            raise Refused(f"{name}: {shown(twice)} is named twice")
        for which, column in found.items():
            if len(column) != len(users):
                raise Refused(f"{which}: {len(column)} values of {len(users)} users")
        return counted(users, *(found[which] for which in (*SAMPLES, "clusters")))


@dataclass(frozen=True)
class Facts(Kind):
    """The facts about a table's columns, of no more rows than the node has."""

    converts = wide = True

    def __call__(self, name: str, value: Any, limits: Limits | None = None) -> TableFacts:
        """Out of JSON, each of the columns within its bounds."""
        tables = attached("tables")
        text = Text(tables.MOST_TABLE_TEXT)(name, value[name])
        try:
            facts: TableFacts = tables.read_facts(text, sum(value.get("train", [])))
            return facts
        except tables.BadColumns as why:
            raise Refused(f"{name}: {why}") from None

    def put(self, record: dict[str, Any], name: str, value: TableFacts) -> None:
        """As JSON."""
        record[name] = value.json()


@dataclass(frozen=True)
class Introduction:
    """A node's own words about itself.

    Parameters
    ----------
    users : whom it hosts.
    shape, num_classes : of a sample; no classes: labels are numbers.
    table : what it says of the columns of its table, if it has one: `shape` is then of raw cells.
    proof : what only this device can say in this run; none: it has nowhere to keep a secret.
    frozen : the fingerprint of what nobody trains of the model for such samples, as this node has
        it; none: it has nothing of the kind, or cannot say it yet.
    most : the most parameters that a model may have there (`max-parameters`); 0: it does not say.
    marks : by which each user's data are known again, in the order of the users; or none.
    """

    users: Mapping[str, Counts] = said(Hosted(), dict)
    shape: tuple[int, ...] = said(Sides(), (), name="input-shape")
    num_classes: int = said(Whole(high=MOST_MODEL_CLASSES), 0, needed=True)
    table: TableFacts | None = said(Facts(), None)
    proof: str = said(Text(64), "")
    frozen: str = said(Text(FINGERPRINT, letters="0123456789abcdef"), "")
    most: int = said(Whole(high=10**15), 0, name="max-parameters", spare=True)
    marks: list[int] = said(Listed(Whole(high=LARGEST_WHOLE), MOST_HOSTED_USERS), list)


def encode_introduction(own: Introduction) -> RecordDict:
    """An introduction as the records of a reply."""
    words = put(own)
    numbers = {name: words.pop(name, []) for name in SAMPLES}
    return RecordDict({"config": ConfigRecord(words), "metrics": MetricRecord(numbers)})


def read_introduction(content: Mapping[str, Any]) -> Introduction:
    """An introduction whose every field is of its type and in its range, or Refused."""
    words = record_of(content, "config", ConfigRecord)
    numbers = record_of(content, "metrics", MetricRecord)
    both = {**words, **{name: numbers[name] for name in SAMPLES if name in numbers}}
    found = Introduction(**take(Introduction, both, Doubt()))
    if found.marks and len(found.marks) != len(found.users):
        raise Refused(f"marks: {len(found.marks)} values of {len(found.users)} users")
    if found.users and not found.shape:
        raise Refused("input-shape: it is missing")
    if found.table and found.shape not in ((), (len(found.table.columns),)):
        raise Refused(f"table: {len(found.table.columns)} columns, and other samples")
    if found.table and found.table.of_numbers != (found.num_classes == 0):
        raise Refused("table: its labels are of another kind than num-classes says")
    return found


def other_frozen(own: str, wanted: str) -> str:
    """Say of a node that its frozen part is another than the server's."""
    here, there = (word[:8] or "none" for word in (own, wanted))
    return (
        f"its frozen part is not the server's (fingerprint {here}, there {there}): the same model, "
        "seed and files of weights make the same"
    )


def too_large(parameters: int, most: int) -> str:
    """Say of a node that it does not allow a model of so many parameters."""
    return (
        f"the model has {parameters:,} parameters, {4e-6 * parameters:,.0f} MB a message, and the "
        f"node allows {most:,}: raise max-parameters in its node config, or take a smaller model"
    )


def too_many(parameters: int, users: int, most: int, space: int) -> str:
    """Say of a node that it does not allow as many models as it has users."""
    size = f"{users:,} models of {parameters:,} parameters, {4e-6 * parameters * users:,.0f} MB"
    return (
        f"{size} for its users, are more than the node allows ({space} times "
        f"max-parameters={most:,}): raise max-parameters in its node config, let it host fewer "
        "users, or take a smaller model"
    )
