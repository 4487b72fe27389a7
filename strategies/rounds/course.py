"""The course of a run: its opening and its rounds; of one that fails nothing is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from corsage.core.errors import ConfigError, RoundFailed
from corsage.core.replies import Replies
from corsage.strategies.rounds.sound import failing
from corsage.strategies.rounds.state import not_finite
from corsage.strategies.rounds.turns import Script, T

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy


def opened(strategy: Strategy[Any, Any]) -> Script[None]:
    """The opening, of which nothing is kept if it fails."""
    yield from whole(strategy, "the opening", strategy.opening())


def one_round(strategy: Strategy[Any, Any], number: int) -> Script[Replies]:
    """A round, and that it is done; of one that fails, or is left, nothing is kept."""
    replies = yield from strategy.federation.books.unless_states_are_gone(
        lambda: whole(strategy, f"round {number}", strategy.round(number))
    )
    strategy.progress.round = number
    strategy.note_trained(replies)
    return replace(replies, mean={}, rows={})  # a model more would be held for nobody


def whole(strategy: Strategy[Any, Any], what: str, script: Script[T]) -> Script[T]:
    """A script that either comes to a state whose numbers are finite, or changes nothing."""
    before, versions = strategy.snapshot(), strategy.progress.versions.copy()
    lengths, moments = dict(strategy.progress.lengths), strategy.progress.moments
    try:
        with failing(f"{strategy.name}: {what}"):
            found = yield from script
        if name := not_finite(strategy.state):
            raise RoundFailed(
                f"{strategy.name}: {what} would make {name} not finite; nothing of it is kept. "
                "If training diverges: a smaller lr."
            )
        return found
    except BaseException:
        strategy.state, now = before, strategy.progress.versions
        strategy.progress.lengths, strategy.progress.moments = lengths, moments
        strategy.progress.versions = versions.within(now)
        raise


def refuse_no_rounds(strategy: Strategy[Any, Any], rounds: int) -> None:
    """Refuse a second start that would do nothing, and give the first one's result."""
    done = strategy.progress.round
    if not done or not strategy.is_over(strategy.length(rounds)):
        return
    more = f"start(grid, num_rounds={done + rounds}) does more, and " * (not strategy.finished())
    raise ConfigError(
        f"{strategy.name}: this object has done its {done} rounds; {more}"
        f"{type(strategy).__name__}(...) makes another for a run of its own."
    )
