"""Messages as they are declared: what a field is made of, all that read and write it know."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from flwr.app import ConfigRecord

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.bad_values import of_kind, of_message
from corsage.clients import client_class
from corsage.core.errors import ConfigError, Refused, RoundFailed
from corsage.core.messages.asked import USUAL_OPTIONS, options_of
from corsage.core.messages.fields import (
    BELIEVING,
    Doubt,
    Text,
    columns_of,
    declared,
    put,
    said,
    take,
)
from corsage.core.messages.introduction import (
    Counts,
    Introduction,
    encode_introduction,
    read_introduction,
)
from corsage.core.messages.limits import Limits
from corsage.core.messages.replies import Reply
from corsage.core.messages.wire import Settings, Task, decode_task, encode_task
from corsage.core.registry import ALGORITHMS
from corsage.core.tables.column_facts import ColumnFacts, Moments, TableFacts
from corsage.strategies import strategy_class
from tests.core.test_wire import told
from tests.support.federations import settings

FACTS = TableFacts((ColumnFacts("a", moments=Moments(2, 1.0, 1.0)),), ColumnFacts("label"))
INTRODUCTION = Introduction(
    {"ann": Counts(3, 2, "c"), "bob": Counts(4, 0)}, (1,), 0, FACTS, "proof", "0af", 7, [5, 6]
)
MESSAGES = [
    (Settings, "settings", told()),
    (Task, "config", told()),
    (Introduction, "config", INTRODUCTION),
    (Reply, "config", Reply("e", ["a"], {"b": "why"}, ["c"], True)),
]


@pytest.mark.parametrize(("message", "at", "one"), MESSAGES)
def test_every_field_is_written_read_bounded_and_attacked(message: Any, at: str, one: Any) -> None:
    """Whatever its declaration says; a field that nobody declared is on no wire."""
    own, columns = declared(message, at), columns_of(message, at)
    record = json.loads(json.dumps(put(one, at)))
    assert columns >= set(record) and len(columns - set(record)) < 2
    read = take(message, record, Doubt(), at)
    assert read == {name: getattr(one, name) for name in own}
    attacked = set()
    for column, value in of_message(message, at):
        attacked.add(column)
        with pytest.raises(Refused) as why:
            take(message, {**record, column: value}, Doubt(), at)
        assert column in str(why.value) or "causes" in str(why.value), (column, value)
    assert attacked == columns
    with pytest.raises(Refused, match="colour: unknown"):
        take(message, {**record, "colour": 1}, Doubt(), at)


def test_no_field_is_of_no_record() -> None:
    undeclared = {f.name for message, _, _ in MESSAGES for f in fields(message) if not f.metadata}
    assert undeclared == {"options", "metrics", "mean", "rows"}


@dataclass(frozen=True)
class More(Task):
    """A task with a field more: that is all that there is to say of it."""

    colour: str = said(Text(5), "")


def test_a_field_more_is_one_edit() -> None:
    record = encode_task(More(**{**vars(told()), "colour": "red"}))
    assert record["colour"] == "red"
    assert take(More, record, Doubt(Limits()), more=True)["colour"] == "red"
    options = {"colour": decode_task(record).options["colour"]}
    with pytest.raises(Refused, match="colour=red: nobody here takes such an option"):
        options_of(options, client_class("fedavg").takes, BELIEVING)
    bad = [value for column, value in of_message(More) if column == "colour"]
    assert "x" * 6 in bad and len(bad) > 3
    for value in bad:
        with pytest.raises(Refused, match="colour"):
            take(More, {**record, "colour": value}, Doubt(Limits()), more=True)


def test_an_option_has_no_name_of_a_field() -> None:
    with pytest.raises(ConfigError, match="round: an option of the name of a field"):
        encode_task(replace(told(), options={"round": 3}))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_options_are_what_clients_declare(name: str) -> None:
    """On a device each is bounded, and one that nobody declared is refused."""
    takes = client_class(name).takes
    for option, kind in {**USUAL_OPTIONS, **takes.options}.items():
        for value in of_kind(kind):
            with pytest.raises(Refused, match=option):
                options_of({option: value}, takes, Doubt(Limits()))
    for doubt in (BELIEVING, Doubt(Limits())):
        with pytest.raises(Refused, match="colour=red: nobody here takes such an option"):
            options_of({"colour": "red"}, takes, doubt)


def test_a_simulation_refuses_an_option_that_nobody_takes() -> None:
    """Also what comes through Flower's own door."""
    strategy = strategy_class("fedavg")(settings("fedavg", num_users=4), [])
    with pytest.raises(RoundFailed, match="colour=red: nobody here takes such an option"):
        strategy.start(LocalGrid(app, 1), train_config=ConfigRecord({"colour": "red"}))


def test_a_device_reads_nothing_that_is_only_for_simulations() -> None:
    record = encode_task(told())
    own = decode_task(record, Doubt(Limits()))
    assert told().state_dir and (own.state_dir, own.many_machines, own.num_users) == ("", False, 0)
    bad = {**record, "state-dir": 5, "many-machines": "x"}
    assert decode_task(ConfigRecord(bad), Doubt(Limits())) == own


def test_an_introduction_arrives_as_it_was_sent() -> None:
    content: Any = encode_introduction(INTRODUCTION)
    assert read_introduction(content) == INTRODUCTION
