"""What the state is to begin with: the algorithm's own, or made of arrays from outside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from corsage.core.arrays import Arrays
from corsage.strategies.rounds.learning import check_fits
from corsage.strategies.rounds.model_arrays import check_numbers, check_whole, fitted, lean
from corsage.strategies.rounds.training_path import settle

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

S = TypeVar("S")


def first_state(strategy: Strategy[Any, S]) -> S:
    """The algorithm's own; ModelError for keys that this model has no use for."""
    job = strategy.job
    settle(job)
    network = job.network
    check_fits(strategy, network)
    if strategy.solves and job.convex:
        check_whole(strategy.name, network)
    state = lean(strategy.initial(network))
    network.vector.forget()
    return state


def taken_over(strategy: Strategy[Any, S], arrays: Arrays) -> S:
    """The state with arrays from outside: a wrapper's, or a model to begin with."""
    own = strategy.shared()
    if not arrays:
        return strategy.state
    check_numbers(strategy.name, arrays)
    if not set(arrays) <= set(own):
        return strategy.accept(arrays)
    changed = fitted(strategy.name, arrays, own)
    return cast(S, replace(cast(Any, strategy.state), **changed))
