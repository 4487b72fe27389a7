"""Work that asks and waits, as a script: answers, errors from both sides, and no thread left."""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corsage.core.errors import RoundFailed
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.asking import Ask, in_turns
from corsage.strategies.rounds.turns import Script


@pytest.fixture(autouse=True)
def no_thread_survives() -> Iterator[None]:
    before = threading.active_count()
    yield
    gc.collect()
    assert threading.active_count() == before


def exchange(turn: Any) -> Script[Replies]:
    """A question of one turn."""
    replies = yield turn
    return replies


def reply(turn: Any) -> Replies:
    """The users' answer to a turn."""
    return Replies(users=[f"to {turn}"])


def played(script: Script[Any], answer: Callable[[Any], Any] = reply) -> Any:
    """Play a script to its end."""
    try:
        turn = next(script)
        while True:
            turn = script.send(answer(turn))
    except StopIteration as end:
        return end.value


def test_every_question_is_a_turn_and_its_replies_come_back() -> None:
    def work(ask: Ask) -> list[str]:
        return [ask(exchange(number)).users[0] for number in range(1000)]

    assert played(in_turns(work)) == [f"to {number}" for number in range(1000)]


def test_work_that_asks_nothing_is_a_script_without_turns() -> None:
    assert played(in_turns(lambda ask: 7), answer=pytest.fail) == 7


def test_a_question_may_have_several_turns_or_none_and_come_to_anything() -> None:
    def both() -> Script[str]:
        first = yield "a"  # type: ignore[misc]
        second = yield "b"  # type: ignore[misc]
        return first.users[0] + second.users[0]

    def known() -> Script[int]:
        yield from ()
        return 3

    assert played(in_turns(lambda ask: (ask(both()), ask(known())))) == ("to ato b", 3)


def test_work_within_work() -> None:
    def inner(ask: Ask) -> str:
        return str(ask(exchange("inner")).users[0])

    assert played(in_turns(lambda ask: ask(in_turns(inner)) + "!")) == "to inner!"


def test_it_works_only_between_the_turns() -> None:
    """While the script waits for replies the work stands still, and nothing begins by itself."""
    steps: list[str] = []

    def work(ask: Ask) -> None:
        for name in "ab":
            steps.append(name)
            ask(exchange(name))

    script = in_turns(work)
    assert steps == []
    assert [next(script), list(steps)] == ["a", ["a"]]
    assert [script.send(Replies()), list(steps)] == ["b", ["a", "b"]]
    script.close()


def test_what_the_work_raises_is_raised_by_the_script() -> None:
    def work(ask: Ask) -> None:
        ask(exchange(1))
        raise ValueError("singular")

    with pytest.raises(ValueError, match="singular"):
        played(in_turns(work))


@pytest.mark.parametrize("error", [RoundFailed("no reply"), KeyboardInterrupt()])
def test_an_exception_from_outside_ends_the_work_where_it_asks(error: BaseException) -> None:
    """Whatever it catches, and whatever it still wants to ask."""
    ended: list[str] = []

    def work(ask: Ask) -> None:
        try:
            ask(exchange(1))
        except Exception:
            ended.append("caught")
        finally:
            ended.append("ended")
            ask(exchange("once more"))

    script = in_turns(work)
    next(script)
    with pytest.raises(type(error)):
        script.throw(error)
    assert ended == ["ended"]


def test_a_question_that_fails_ends_the_work() -> None:
    def strict(turn: int) -> Script[Replies]:
        replies = yield turn  # type: ignore[misc]
        raise RoundFailed(f"all must answer {turn}")
        return replies

    with pytest.raises(RoundFailed, match="all must answer 1"):
        played(in_turns(lambda ask: ask(strict(1))))


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_a_script_that_is_left_in_the_middle_leaves_no_thread(how: str) -> None:
    script = in_turns(lambda ask: [ask(exchange(number)) for number in range(3)])
    next(script)
    assert threading.active_count() > 1
    if how == "closed":
        script.close()
        assert not any(thread.name == "in_turns" for thread in threading.enumerate())
    del script  # the fixture looks whether its thread is gone


def test_a_script_that_is_never_begun_has_no_thread() -> None:
    script = in_turns(lambda ask: None)
    assert not any(thread.name == "in_turns" for thread in threading.enumerate())
    script.close()


def test_settings_of_the_thread_that_plays_it_hold_for_the_work() -> None:
    word = contextvars.ContextVar("word", default="")
    word.set("mine")
    assert played(in_turns(lambda ask: word.get())) == "mine"
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        played(in_turns(lambda ask: np.ones(1) / np.zeros(1)))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_work_computes_the_same_bits_with_as_many_threads(threads: int) -> None:
    a = torch.randn(200, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def work(ask: Ask) -> Any:
        big = (a @ a).exp().sum(), torch.linalg.eigvalsh(a @ a.T), a.flatten().cumsum(0).sum()
        return torch.get_num_threads(), *big

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inside, outside = played(in_turns(work)), work(played)
    finally:
        torch.set_num_threads(before)
    assert inside[0] == outside[0] == threads
    for one, other in zip(inside[1:], outside[1:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux says how many threads")
def test_the_work_brings_no_threads_of_libraries_with_it() -> None:
    """MKL takes all cores in a thread that was never told how many it may have."""
    a = torch.ones(600, 600, dtype=torch.float64)

    def work(ask: Ask) -> int:
        a @ a
        return len(list(Path("/proc/self/task").iterdir()))

    assert torch.get_num_threads() == 1
    assert min(played(in_turns(work)) for _ in range(3)) <= work(played) + 1
