"""Per-FedAvg: one model from which every user gets far in one gradient step of its own.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, NeurIPS 2020, Algorithm 1, for

    min over w of  1/n sum_i F_i(w),  F_i(w) = f_i(w - alpha nabla f_i(w)).

In each local step a user draws three independent batches D, D', D'' of its data:

    wtilde <- w - alpha nabla f_i(w, D)
    w <- w - beta (I - alpha nabla^2 f_i(w, D'')) nabla f_i(wtilde, D')

With `perfedavg-variant=exact` the Hessian's product with g = nabla f_i(wtilde, D') is autograd's,
the gradient of nabla f_i(w, D'') . g. The paper's two ways around it: FO leaves the Hessian out; HF
takes (nabla f_i(w + delta g, D'') - nabla f_i(w - delta g, D'')) / (2 delta). Where activations
have corners (ReLU, max-pooling) the gradient jumps, and over so short a way such a difference is
often jumps and rounding (docs/results.md). A step takes two gradients (FO) or four (HF); a product
by autograd counts as two, though it takes longer where users train together.

beta is `lr`; momentum and weight decay, if any, act on this step as torch's SGD does (momentum=0
weight-decay=0: the paper's). A round has as many steps as `local-epochs` have batches; each of the
three streams of batches runs through the user's data in an order of its own. The server averages
as in FedAvg. A user is evaluated after `perfedavg-adapt-steps` steps w - alpha nabla f_i(w) with
all its training data.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import EPOCH_LIMIT, Keys, key
from corsage.strategies.rounds.base import OneModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class PerFedAvgKeys(Keys):
    """Keys of Per-FedAvg."""

    title = "Per-FedAvg"

    perfedavg_variant: str = key(
        "exact",
        "what stands for the Hessian's product with a gradient. exact: autograd's; hf: a "
        "difference of two gradients, as in the paper's experiments; fo: nothing (first order)",
        choices=("exact", "hf", "fo"),
    )
    perfedavg_alpha: float = key(
        0.01, "step size of a user's own step (alpha)", tuned=(0.003, 0.3), low=0.0
    )
    perfedavg_delta: float = key(0.001, "hf: how far apart gradients are taken (delta)", low=1e-6)
    perfedavg_adapt_steps: int = key(
        1,
        "gradient steps of a user with all its data before it is evaluated",
        low=0,
        limit=EPOCH_LIMIT,
    )


class PerFedAvg(OneModel[PerFedAvgKeys, ModelState]):
    """The server of Per-FedAvg: it holds the common start w."""

    name = "perfedavg"
    tuned = ()

    @classmethod
    def epochs(cls, train: TrainKeys, keys: PerFedAvgKeys) -> float:
        """A step takes gradients on D and D', and but for fo what costs two more on D''."""
        return (2 if keys.perfedavg_variant == "fo" else 4) * train.local_epochs
