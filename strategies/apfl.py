"""APFL: each user mixes a model of its own into the global one.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020, Algorithm 1. The personal
model is vbar_i = alpha_i v_i + (1 - alpha_i) w_i, where w_i is the user's copy of the global
model. In each local step, on one batch xi,

    w_i <- w_i - eta nabla f_i(w_i; xi)
    v_i <- v_i - eta nabla_v f_i(vbar_i; xi) = v_i - eta alpha_i nabla f_i(vbar_i; xi)

both from the values before the step. The w_i are averaged as in FedAvg; v_i and alpha_i stay. With
`apfl-adaptive-alpha` every round also takes one gradient step on alpha_i, with its first batch:

    alpha_i <- alpha_i - eta <v_i - w_i, nabla f_i(vbar_i; xi)>,                      (10)

clipped to [0, 1]. eta is `lr`; momentum and weight decay, if any, act on w_i and on v_i as torch's
SGD does (momentum=0 weight-decay=0: the paper's). A user is evaluated with alpha_i v_i +
(1 - alpha_i) w, w the current global model; v_i begins as the initial model.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.counts import Number
from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import OneModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class APFLKeys(Keys):
    """Keys of APFL."""

    title = "APFL"

    apfl_alpha: float = key(
        0.5,
        "share of a user's own model in its mixture (alpha); 1: local training",
        tuned=(0.0, 1.0),
        low=0,
        high=1,
    )
    apfl_adaptive_alpha: bool = key(
        False, "each user's alpha begins there and takes a gradient step a round: true or false"
    )


class APFL(OneModel[APFLKeys, ModelState]):
    """The server of APFL: it holds the global model w."""

    name = "apfl"

    @classmethod
    def epochs(cls, train: TrainKeys, keys: APFLKeys) -> float:
        """A step takes two gradients, at w_i and at the mixture."""
        return 2 * train.local_epochs

    def numbers(self, kind: str) -> tuple[Number, ...]:
        """alpha_i after a round."""
        return (Number("alpha", low=0.0, high=1.0),) if kind == "train" else ()
