"""APFL at the users: the global model and their own learn step by step side by side.

Deng, Kamani, Mahdavi 2020, Algorithm 1 and equation (10).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.gradients import Losses, UserLosses, copy_statistics, in_groups
from corsage.networks.rules import update_rule
from corsage.strategies.apfl import APFLKeys

VECTORS = 5  # w, v, vbar, and the momentum of w and v


class APFLClient(Client[APFLKeys]):
    """The users of APFL; each keeps v_i and alpha_i."""

    takes = Takes(shared={"model": floats("P")})

    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """E epochs of steps on w_i, v_i, and perhaps one on alpha_i; w_i goes back."""
        orders = self.orders("model", data)
        self.count(map(len, orders), gradients=2)  # of the mixture, and of w
        start, (own, alphas) = got.shared["model"], self._own()

        def work(losses: UserLosses) -> tuple[Tensor, Tensor, Tensor]:
            w, v, alpha = losses.rows(start), losses.rows(own), losses.rows(alphas)
            mixture = Mixture(losses, w, v, alpha, self.network.decay, self.settings)
            for t in range(len(losses.active)):
                mixture.step(t, adapt=self.keys.apfl_adaptive_alpha and t == 0)
                if self.network.has_buffers:  # the running statistics of vbar_i are v_i's
                    copy_statistics(self.network, mixture.vbar, v)
            return w, v, alpha

        w_i, own, alphas = in_groups(self.network, data, [orders], VECTORS, work, self.settings)
        kept = {"personal": own, "alpha": alphas}
        return Sent(mean={"model": w_i}, keep=kept, metrics={"alpha": alphas[:, 0]})

    def models(self, got: Got) -> Models:
        """Each user's mixture alpha_i v_i + (1 - alpha_i) w."""
        v, alpha = self._own()
        mixture = alpha * v + (1 - alpha) * got.shared["model"]
        return Models(mixture.astype(np.float32))

    def _own(self) -> tuple[Floats32, Floats32]:
        """v_i (users, P) and alpha_i (users, 1)."""
        start = np.array([self.keys.apfl_alpha], np.float32)
        return self.remembered("personal", self.network.initial), self.remembered("alpha", start)


class Mixture:
    """w and v (users, P) and alpha (users, 1) of some users, which `step` changes in place.

    `weights` is 1 where weight decay applies.
    """

    def __init__(
        self,
        losses: Losses,
        w: Tensor,
        v: Tensor,
        alpha: Tensor,
        weights: Tensor,
        keys: TrainKeys,
    ) -> None:
        self.losses, self.w, self.v, self.alpha, self.keys = losses, w, v, alpha, keys
        self.vbar = torch.empty_like(w)
        self.sgd_w, self.sgd_v = (update_rule(theta, weights, keys) for theta in (w, v))

    def step(self, t: int, adapt: bool = False) -> None:
        """Step t of Algorithm 1; with `adapt` also (10), all from the values before the step."""
        n, beta = self.losses.active[t], self.sgd_v.beta
        w, v, alpha, m = self.w[:n], self.v[:n], self.alpha[:n], self.sgd_v.m[:n]
        torch.lerp(w, v, alpha, out=self.vbar[:n])
        if adapt:
            g = torch.empty_like(self.vbar)
            self.losses.gradient(self.vbar, t, g)
            slope = ((v - w) * g[:n]).sum(1, keepdim=True)
            m.mul_(beta).add_(alpha * g[:n])
        else:
            self.losses.gradient(self.vbar, t, self.sgd_v.m, beta, self.alpha[:, 0])
        self.losses.gradient(self.w, t, self.sgd_w.m, beta)
        self.sgd_v.step(n)
        self.sgd_w.step(n)
        if adapt:
            alpha.sub_(self.keys.lr * slope).clamp_(0.0, 1.0)
