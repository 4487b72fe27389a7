"""Flower's wrappers for differential privacy: what they can be put around, and what they protect.

A wrapper keeps the arrays that it was handed, clips each reply's distance from them or has a client
mod do so, and adds noise to the mean, of which it assumes that each reply has an equal part. So it
protects whoever a reply is of: that must be a user, and not a node with several. What it cannot
know of us it would get wrong in silence: that is refused here, in one line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from corsage.core.errors import ConfigError
from corsage.core.messages.encoding import encode

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

ServerSide = (
    DifferentialPrivacyServerSideFixedClipping | DifferentialPrivacyServerSideAdaptiveClipping
)
Wrapper = (
    ServerSide
    | DifferentialPrivacyClientSideFixedClipping
    | DifferentialPrivacyClientSideAdaptiveClipping
)
PLAYED = ("configure_train", "aggregate_train")
"""The methods in which a wrapper calls the same one of what it wraps."""


def around(strategy: Strategy[Any, Any]) -> list[Wrapper]:
    """The wrappers whose call this is: a strategy is not told who has it.

    They are on the stack, of this thread or of one that waits for it, and hold the strategy, it
    may be by way of others.
    """
    mine = sys._getframe()
    others = [frame for frame in sys._current_frames().values() if frame is not mine]
    callers = {id(c): c for frame in (mine, *others) for c in _callers(frame)}
    return [c for c in callers.values() if isinstance(c, Wrapper) and _holds(c, strategy)]


def fit(strategy: Strategy[Any, Any]) -> None:
    """Before a round: wrappers that cannot be around the strategy are refused, others corrected."""
    for wrapper in around(strategy):
        check(wrapper, strategy)
        correct(wrapper, strategy)


def _callers(frame: FrameType | None) -> Iterator[object]:
    """The objects whose methods are under way, from the inside out."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_name in PLAYED:
            yield frame.f_locals.get(code.co_varnames[0])
        frame = frame.f_back


def _holds(outer: FlowerStrategy, strategy: Strategy[Any, Any]) -> bool:
    """True if a strategy is in another one, or in one that is in it."""
    inside, seen = [outer], list[FlowerStrategy]()
    while inside:
        seen.append(inside.pop())
        if seen[-1] is strategy:
            return True
        held = [part for part in vars(seen[-1]).values() if isinstance(part, FlowerStrategy)]
        inside += [part for part in held if not any(part is known for known in seen)]
    return False


def correct(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> None:
    """Clipping is relative to what users are really sent.

    A wrapper keeps what it was started with: a model's state dict, or what a resumed run began
    with once. And no more users are set aside than may be missing from what its noise is for: else
    a single bad one would end the run.
    """
    if isinstance(wrapper, ServerSide):
        wrapper.current_arrays = encode(strategy.shared())
    job, wanted = strategy.job, wrapper.num_sampled_clients
    number, users = strategy.progress.round + 1, job.members.roster.users
    enough = (n for n in range(1, len(users)) if len(strategy.choose(number, users[:n])) >= wanted)
    job.members.least = max(job.members.least, next(enough, len(users)))


def check(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> None:
    """ConfigError if the wrapper would protect nobody, another, or less than it says."""
    if why := wrong(wrapper, strategy):
        raise ConfigError(f"{type(wrapper).__name__}: not over strategy={strategy.name}: {why}.")


def as_sent(strategy: Strategy[Any, Any]) -> bool:
    """True if the arrays that users get come back, all of them, to be averaged."""
    if strategy.unprotected or strategy.by_user or strategy.changes:
        return False
    return [*strategy.template()] == [*strategy.shared()] != []


def wrong(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> str:
    """The reason why not, or nothing."""
    job, config = strategy.job, strategy.config
    if not as_sent(strategy):
        return "it clips a model that comes back as it was sent, and only such a one is averaged"
    if config.robust.on or config.train.end_heads:
        ends = "end-heads sends means of features, to which it adds no noise; leave end-heads out"
        robust = f"with robust={config.robust.robust} users' arrays come as rows; set robust=none"
        return robust if config.robust.on else ends
    if config.server.on:
        return (
            "its noise is for the users' mean, which server-optimizer="
            f"{config.server.server_optimizer} does not take as it is; set server-optimizer=none"
        )
    if config.train.weighting != "uniform":
        return f"its noise is for weighting=uniform, not {config.train.weighting}"
    hosts = [node for node, users in job.members.roster.by_node(job.members.users).items() if users]
    if len(hosts) < len(job.members.users):
        return (
            f"{len(job.members.users)} users are on {len(hosts)} nodes, and what it protects is a "
            f"node; give each user its own, in a simulation by num-nodes={len(job.members.users)}"
        )
    told = _too_large(wrapper, strategy)
    return told and f"{told}: its noise would be too small"


def _too_large(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> str:
    """The reason why one user would move the model further than the noise allows for, if so."""
    if (stride := strategy.stride()) > 1:
        return f"the server goes {stride:g} times the way to the users' mean"
    drawn = len(strategy.choose(strategy.progress.round + 1, strategy.members.users))
    if drawn < (wanted := wrapper.num_sampled_clients):
        return f"num_sampled_clients={wanted}, but a round has {drawn} users"
    return ""


def note_fewer(strategy: Strategy[Any, Any], users: int) -> None:
    """Say that the mean is of fewer users than the noise is for: each weighs more in it."""
    for wrapper in around(strategy):
        if users < (wanted := wrapper.num_sampled_clients):
            strategy.job.note(
                f"{type(wrapper).__name__}: its noise is for {wanted} users, but the mean is of "
                f"{users}: they are protected {wanted / users:.3g} times less than it says"
            )
