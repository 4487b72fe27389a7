"""The server's own step towards the users' mean: FedOpt and FedAvgM.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021, Algorithm 2. With Delta_t the mean of what came minus x_t, which was sent,

    m_t = beta_1 m_{t-1} + (1 - beta_1) Delta_t
    v_t = v_{t-1} + Delta_t^2                                             (FedAdagrad)
    v_t = v_{t-1} - (1 - beta_2) Delta_t^2 sign(v_{t-1} - Delta_t^2)      (FedYogi)
    v_t = beta_2 v_{t-1} + (1 - beta_2) Delta_t^2                         (FedAdam)
    x_{t+1} = x_t + eta m_t / (sqrt v_t + tau)

from m = 0 and v = tau^2, without the correction of Adam's bias, as there. `momentum` is FedAvgM of
Hsu, Qi, Brown 2019: m_t = beta_1 m_{t-1} + Delta_t, x_{t+1} = x_t + eta m_t.

It takes the place of the mean in whatever the method does with it. Only what is trained has a
gradient: running statistics of the model (BatchNorm) are averaged as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Array, Bools, Floats32
from corsage.core.configuration.server_keys import ServerKeys
from corsage.core.errors import ConfigError
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.model_arrays import MODEL_PARTS, learned

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job


Moments = Mapping[str, Floats32]
FIRST_MOMENTS: Mapping[str, Callable[[ServerKeys], float]] = {
    "m": lambda keys: 0.0,
    "v": lambda keys: keys.server_tau**2,
}
"""m_0 and v_0."""


class ServerStep:
    """The step of a run, and what it has to remember: `updates.moments`.

    Parameters
    ----------
    job : whose users' mean it is.

    Attributes
    ----------
    keys : which step it is.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.keys = job, job.config.server

    def check(self, strategy: str, none: str) -> None:
        """ConfigError if a strategy has no such step."""
        name = self.keys.server_optimizer
        if none:
            raise ConfigError(f"server-optimizer={name}: not for strategy={strategy}: {none}.")

    def taken(self, replies: Replies, sent: Mapping[str, Array]) -> Replies:
        """Replies with where the server goes in the place of the mean; `sent` is where it stood."""
        if not replies.users:
            return replies
        network, names = self.job.network, [n for n in sent if n in MODEL_PARTS]
        stepped = {
            name: self.of(name, sent[name], replies.mean[name], learned(network, name))
            for name in names
        }
        return replace(replies, mean={**replies.mean, **stepped})

    def of(self, name: str, x: Floats32, mean: Floats32, trained: Bools) -> Floats32:
        """x_{t+1} of one array."""
        moments, found = step(self.keys, x, mean, self._remembered(name, x))
        self._keep(name, moments)
        return np.where(trained, found, mean)

    def of_clusters(
        self, x: Floats32, means: Floats32, labels: Sequence[int], parents: Sequence[int] = ()
    ) -> Floats32:
        """x_{t+1} of the clusters' models, one row each; a cluster of nobody stays where it is.

        `parents[i]` is the cluster that was cut when the i-th new one came, which goes on from what
        is remembered of that.
        """
        before = self._remembered("models", x, parents)
        moments, found = step(self.keys, x, means, before)
        there = np.isin(np.arange(len(x)), labels)[:, None]
        self._keep("models", {k: np.where(there, m, before[k]) for k, m in moments.items()})
        return np.where(there & learned(self.job.network, "model"), found, means)

    def _remembered(self, name: str, x: Floats32, parents: Sequence[int] = ()) -> Moments:
        """m_{t-1} and v_{t-1}, with rows for clusters that are new."""
        known, moments = self.job.updates.moments, {}
        for kind, first in FIRST_MOMENTS.items():
            rows = known.get(f"{name}.{kind}")
            if rows is None:
                rows = np.full_like(x, first(self.keys))
            if missing := len(x) - len(rows):
                rows = grown(rows, parents[-missing:])
            moments[kind] = rows
        return moments

    def _keep(self, name: str, moments: Moments) -> None:
        """In a dictionary of their own: a round that fails goes back to the one before."""
        own = {f"{name}.{kind}": value for kind, value in moments.items()}
        self.job.updates.moments = {**self.job.updates.moments, **own}


def grown(rows: Floats32, parents: Sequence[int]) -> Floats32:
    """Rows with a copy of a parent's for each new one, one after the other."""
    for parent in parents:
        rows = np.concatenate([rows, rows[[parent]]])
    return rows


def step(
    keys: ServerKeys, x: Floats32, mean: Floats32, before: Moments
) -> tuple[Moments, Floats32]:
    """m_t and v_t out of those `before`, and x_{t+1}."""
    delta, eta, tau = mean - x, np.float32(keys.eta), np.float32(keys.server_tau)
    b1, b2 = np.float32(keys.server_beta1), np.float32(keys.server_beta2)
    new = np.float32(1.0 - keys.server_beta2)
    m, square, v = before["m"], delta * delta, before["v"]
    if keys.server_optimizer == "momentum":
        m = b1 * m + delta
        return {"m": m}, x + eta * m
    m = b1 * m + (1 - b1) * delta
    if keys.server_optimizer == "adagrad":
        v = v + square
    elif keys.server_optimizer == "yogi":
        v = np.asarray(v - new * square * np.sign(v - square), np.float32)
    else:
        v = np.asarray(b2 * v + new * square, np.float32)
    if not np.isfinite(v).all():
        raise ValueError("the squares of the users' mean update are beyond single precision")
    return {"m": m, "v": v}, np.asarray(x + eta * m / (np.sqrt(v) + tau), np.float32)
