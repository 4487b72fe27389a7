"""Clusters that take their time, by a clock: who is waited for, played again, killed, bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from flwr.app import Message
from hypothesis import HealthCheck, given
from hypothesis import settings as searched
from hypothesis import strategies as st

from corsage.app.run.recorder import Recorder
from corsage.core.errors import RoundFailed
from corsage.strategies import strategy_class
from corsage.strategies.rounds import evaluation
from corsage.strategies.rounds.judged import with_others
from tests.support.federations import Notes, settings
from tests.support.grids import At
from tests.support.known_users import (
    HIERARCHICAL,
)
from tests.support.slow_clusters import Slow, recorded, stopped

P0, P, LAM = 0.15, 0.3, 0.8
NAMES = ("async-al2sgd", "async-l2gd")

LIVE: dict[str, Any] = {**HIERARCHICAL, "num_clusters": 4, "known_gamma": 1.5, "known_lambda": LAM}
LIVE |= {"known_p0": P0, "known_p": P}


class Stop(Exception):
    """The server dies."""


class Twice(Slow):
    """Every reply comes again and again, and in the place of later ones too."""

    def __init__(self, *arguments: Any, **words: Any) -> None:
        super().__init__(*arguments, **words)
        self.old: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What is ready, and all that was ever ready of nodes that have more to do."""
        found = list(super().pull_messages(message_ids))
        self.old = [*self.old[-20:], *found]
        return [*found, *self.old]


class Kept:
    """Nodes whose users keep what they have when another server comes."""

    def __init__(self) -> None:
        self.contexts: dict[int, Any] = {}

    def taken(self, grid: Slow) -> Slow:
        """A grid of these nodes."""
        self.contexts = self.contexts or grid._contexts
        grid._contexts = self.contexts
        grid.numbers = {node: place for place, node in enumerate(self.contexts)}
        return grid


def dies(at: int) -> At:
    """The server dies at the beginning of a round."""

    def die() -> None:
        raise Stop

    return At(at, die)


def live(
    name: str,
    folder: Path,
    seconds: Callable[[int], float | None],
    *,
    rounds: int = 30,
    dying: int = 0,
    nodes: int = 4,
    devices: Kept | None = None,
    experiment: str = "",
    kind: type[Slow] = Slow,
    **keys: Any,
) -> tuple[Any, float, Notes]:
    """A run, or what is left of one, with a run folder: its table, seconds, and notes."""
    config = settings(name, **LIVE, num_rounds=rounds, checkpoint_every=4, **keys)
    callbacks: list[Any] = [Recorder(folder / name, {"run": "r"}, config)]
    callbacks += [dies(dying)] if dying else []
    with stopped() as clock:

        def speed(number: int, kind: str, before: int) -> float | None:
            return seconds(number) if kind == "train" and before else 0.01

        grid, notes = kind(clock, nodes, speed, keyed=False), Notes()
        if devices is not None:
            grid = devices.taken(grid)
        strategy = strategy_class(name)(config, [notes, *callbacks], experiment)
        result = strategy.start(grid)
    return result.json()[0], clock.now, notes


def ages(folder: Path, name: str) -> list[dict[str, int]]:
    """The clusters that were at work in each round, and how old their centres were."""
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["timeline"]["stale"] for line in lines]


NUMBERS = ("per_user", "loss", "bytes_up", "bytes_down", "messages")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nodes", [9])
def test_a_run_is_played_again_to_the_same_numbers(name: str, nodes: int, tmp_path: Path) -> None:
    """One cluster 20 times slower; again where nobody is slow, bit for bit."""
    slow, _, _ = live(
        name, tmp_path / "a", lambda n: 20.0 if n == 0 else 1.0, nodes=nodes, known_staleness=10
    )
    stale = ages(tmp_path / "a", name)
    assert max(age for row in stale for age in row.values()) == 10
    again, _, _ = live(
        name,
        tmp_path / "b",
        lambda n: 1.0,
        nodes=nodes,
        known_staleness=10,
        known_schedule=str(tmp_path / "a"),
    )
    assert ages(tmp_path / "b", name) == stale
    assert {k: slow[k] for k in NUMBERS} == {k: again[k] for k in NUMBERS}


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_died_goes_on_with_those_at_work(name: str, tmp_path: Path) -> None:
    """What was under way is asked again; the whole of it can be played again, bit for bit."""

    def speed(number: int) -> float:
        return 7.0 if number == 0 else 1.0

    keys: dict[str, Any] = {"known_staleness": 6, "nodes": 9, "experiment": "same"}
    devices = Kept()
    with pytest.raises(Stop):
        live(name, tmp_path / "a", speed, dying=17, devices=devices, **keys)
    assert ages(tmp_path / "a", name)[-1]
    whole, _, _ = live(name, tmp_path / "a", speed, devices=devices, **keys)
    stale = ages(tmp_path / "a", name)
    assert len(stale) == 30
    played = {**keys, "known_schedule": str(tmp_path / "a")}
    again, _, _ = live(name, tmp_path / "b", lambda n: 1.0, devices=Kept(), **played)
    assert {k: whole[k] for k in ("per_user", "loss")} == {
        k: again[k] for k in ("per_user", "loss")
    }


@searched(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.floats(0.1, 30.0), min_size=4, max_size=4),
    st.integers(1, 9),
    st.sampled_from(NAMES),
)
def test_no_centre_is_older_than_it_may_be(
    tmp_path_factory: pytest.TempPathFactory, speeds: list[float], staleness: int, name: str
) -> None:
    """Whatever clusters take; and who is away was there when its age says."""
    folder = tmp_path_factory.mktemp("bound")
    live(name, folder, lambda n: speeds[n], rounds=10, known_staleness=staleness)
    stale, joined = ages(folder, name), dict.fromkeys(map(str, range(4)), 1)
    for number, row in enumerate(stale, 1):
        assert all(age <= staleness for age in row.values())
        assert row == {n: number - joined[n] for n in row}
        joined |= {n: number for n in joined if n not in row}


def test_a_slow_cluster_costs_little(tmp_path: Path) -> None:
    """By the clock of the server: nobody waits for it but at the end."""

    def seconds(slow: float, staleness: int) -> float:
        folder = tmp_path / f"{slow}-{staleness}"
        speed = {0: slow}
        _, found, _ = live(
            "async-l2gd",
            folder,
            lambda n: speed.get(n, 1.0),
            rounds=60,
            known_staleness=staleness,
            evaluate_every=1000,
        )
        return found

    usual = seconds(1.0, 0)
    assert seconds(20.0, 0) > 15 * usual
    assert seconds(20.0, 20) < 1.5 * usual


def test_a_cluster_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """At the bound, after `patience`; the others go on, and its centre stays what it was."""
    Slow.patient = False
    try:
        result, _, notes = live(
            "async-l2gd", tmp_path, lambda n: None if n == 0 else 1.0, known_staleness=3, rounds=20
        )
    finally:
        Slow.patient = True
    assert any("no reply in time" in note for note in notes.notes)
    assert result["rounds"] == 20
    assert max(max(row.values(), default=0) for row in ages(tmp_path, "async-l2gd")) <= 3


def test_means_between_rounds_are_of_all_users(tmp_path: Path) -> None:
    """Who is at work is where it was: else a curve would be of other users each time."""
    folder = tmp_path / "played"
    schedule: Any = [{}, {}, {"0": 1}, {"0": 2}, {}]
    keys: dict[str, Any] = {**LIVE, "known_staleness": 3, "num_rounds": 5, "evaluate_every": 1}
    keys["known_schedule"] = recorded(folder, "async-l2gd", schedule)
    own: list[dict[str, float]] = []

    def kept(replies: Any, before: Any, users: Any) -> Any:
        found = with_others(replies, before, users)
        own.append(dict(zip(found.users, found.metrics["loss"], strict=True)))
        return found

    with mock.patch.object(evaluation, "with_others", kept), stopped() as clock:
        grid = Slow(
            clock, 4, lambda n, kind, before: 9.0 if n == 0 and before else 1.0, keyed=False
        )
        strategy_class("async-l2gd")(settings("async-l2gd", **keys), [Notes()]).start(grid)
    assert [len(row) for row in own] == [16] * 5
    still = [sum(own[0][user] == row[user] for user in own[0]) for row in own]
    assert still == [16, 4, 4, 0, 0]


def test_replies_that_come_again_change_nothing(tmp_path: Path) -> None:
    """Nor do those to messages of rounds that are over."""

    def speed(number: int) -> float:
        return 4.0 if number == 0 else 1.0

    found = [
        live("async-al2sgd", tmp_path / kind.__name__, speed, kind=kind, known_staleness=5)[0]
        for kind in (Slow, Twice)
    ]
    assert ages(tmp_path / "Slow", "async-al2sgd") == ages(tmp_path / "Twice", "async-al2sgd")
    assert {k: found[0][k] for k in NUMBERS} == {k: found[1][k] for k in NUMBERS}


def test_a_round_of_which_nobody_answers_fails(tmp_path: Path) -> None:
    """With the cause, and not for ever."""

    def speed(number: int) -> float | None:
        return None

    with pytest.raises(RoundFailed, match="no reply in time"):
        live("async-l2gd", tmp_path, speed, known_staleness=3, rounds=5)
