"""On which path a run's models are trained: chosen once, and sent to all nodes with the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corsage.core.paths import CHOICES, LAYERS

if TYPE_CHECKING:
    from corsage.strategies.rounds.federation import Federation


def settle(federation: Federation) -> None:
    """Choose the path where nobody has: an earlier strategy of the run, or the key.

    What was measured is said in a line; a built-in model whose kernels are known needs none.
    """
    from corsage.networks.build import choose_path
    from corsage.networks.zoo import ZOO

    progress, model = federation.progress, federation.config.model
    if federation.training_path in CHOICES:
        progress.training_path = federation.training_path
        return
    agreed, seed = federation.agreed, federation.config.run.seed
    facts = agreed.shape, agreed.num_classes, seed, federation.train
    choice = choose_path(model, *facts, federation.config.data.cache_dir)
    progress.training_path = choice.name
    if choice.why and not (choice.name == LAYERS and model.model in ZOO):
        federation.note(f"training-path={choice.name}: {choice.why}")
