"""Mathematics that asks in the middle of its work and waits for the answers, as a script.

A solver that calls its losses deep inside cannot yield from there. So it works in a thread of its
own, which stands still whenever the script does: never do both run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from corsage.strategies.rounds.turns import Script

T = TypeVar("T")
Ask = Callable[[Script[Any]], Any]
"""Plays a script of questions and returns what came of it."""


class Abandoned(BaseException):
    """Ends work that waits for answers which will not come."""


class Desk:
    """Where work leaves its questions, as scripts, and waits for the answers."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[Script[Any] | None] = SimpleQueue()  # None: there are no more
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._closed = False

    def ask(self, question: Script[Any]) -> Any:
        """For the work: what came of a question."""
        if not self._closed:
            self.questions.put(question)
            answer = self._answers.get()
        if self._closed:
            raise Abandoned
        return answer

    def answer(self, found: Any) -> None:
        """Let the work go on."""
        self._answers.put(found)

    def close(self) -> None:
        """No answer will come any more: work that waits for one is ended, or does not ask again."""
        self._closed = True
        self._answers.put(None)


def in_turns(work: Callable[[Ask], T]) -> Script[T]:
    """`work(ask)` as a script: its questions are played here, and their answers handed back.

    What the work raises is raised here. If the script is closed, or a question fails, the work is
    ended where it asks; in any case its thread is over when the script is.
    """
    import torch

    desk, result = Desk(), Future[T]()

    def run() -> None:
        torch.set_num_threads(torch.get_num_threads())  # OpenMP counts in each thread on its own
        try:
            result.set_result(work(desk.ask))
        except BaseException as error:  # also those that end a process: they belong to the script
            result.set_exception(error)
        finally:
            desk.questions.put(None)

    thread = Thread(target=copy_context().run, args=(run,), name="in_turns", daemon=True)
    thread.start()
    try:
        while (question := desk.questions.get()) is not None:
            desk.answer((yield from question))
    finally:
        desk.close()
        thread.join()
    return result.result()
