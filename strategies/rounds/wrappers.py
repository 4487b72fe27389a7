"""Flower's wrappers for differential privacy: what they can be put around, and what they protect.

A wrapper keeps the arrays that it was handed, clips each reply's distance from them or has a client
mod do so, and adds noise to the mean, of which it assumes that each reply has an equal part. So it
protects whoever a reply is of: that must be a user, and not a node with several. What it cannot
know of us it would get wrong in silence: that is refused here, in one line.
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import TYPE_CHECKING, Any

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from corsage.core.encoding import encode
from corsage.core.errors import ConfigError

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


def around(strategy: Strategy[Any, Any]) -> Wrapper | None:
    """The wrapper whose call this is, if it is one's: a strategy is not told who has it."""
    frame: FrameType | None = inspect.currentframe()
    for _ in range(3):  # this function, the strategy's method, whoever called that
        frame = frame and frame.f_back
        caller = frame and frame.f_locals.get("self")
        if isinstance(caller, Wrapper) and caller.strategy is strategy:
            return caller
    return None


def correct(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> None:
    """Clipping is relative to what users are really sent.

    A wrapper keeps what it was started with: a model's state dict, or what a resumed run began
    with once.
    """
    if isinstance(wrapper, ServerSide):
        wrapper.current_arrays = encode(strategy.shared())


def check(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> None:
    """ConfigError if the wrapper would protect nobody, another, or less than it says."""
    if why := wrong(wrapper, strategy):
        raise ConfigError(f"{type(wrapper).__name__}: not over strategy={strategy.name}: {why}.")


def as_sent(strategy: Strategy[Any, Any]) -> bool:
    """Whether the arrays that users get come back, all of them, to be averaged."""
    if strategy.unprotected or strategy.by_user or strategy.changes:
        return False
    return [*strategy.template()] == [*strategy.shared()] != []


def wrong(wrapper: Wrapper, strategy: Strategy[Any, Any]) -> str:
    """Why not, or nothing."""
    federation, config = strategy.federation, strategy.config
    if not as_sent(strategy):
        return "it clips a model that comes back as it was sent, and only such a one is averaged"
    if config.robust.on:
        return f"with robust={config.robust.robust} users' arrays come as rows; set robust=none"
    if config.train.weighting != "uniform":
        return f"its noise is for weighting=uniform, not {config.train.weighting}"
    hosts = [node for node, users in federation.roster.by_node(federation.users).items() if users]
    if len(hosts) < len(federation.users):
        return (
            f"{len(federation.users)} users are on {len(hosts)} nodes, and what it protects is a "
            f"node; give each user its own, in a simulation by num-nodes={len(federation.users)}"
        )
    drawn = len(strategy.choose(strategy.progress.round + 1, federation.users))
    if drawn < wrapper.num_sampled_clients:
        return (
            f"num_sampled_clients={wrapper.num_sampled_clients}, but a round has {drawn} users: "
            "its noise would be too small"
        )
    return ""
