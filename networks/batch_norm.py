"""Layers that normalise by the batch in training and by running statistics otherwise."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from corsage.core.errors import ModelError


def layers(module: nn.Module) -> dict[str, _NormBase]:
    """BatchNorm and what is derived of it, by name."""
    found = module.named_modules()
    return {
        name: m
        for name, m in found
        if isinstance(m, _NormBase) and not isinstance(m, _InstanceNorm)
    }


def needs_two(module: nn.Module) -> bool:
    """Tell whether some layer normalises by the batch, which one sample does not have."""
    return any(not stands(m) for m in layers(module).values())


def freeze(module: nn.Module) -> None:
    """Let these layers normalise by the running statistics that they have, in training too.

    Their weights and biases learn on.
    """
    own = layers(module)
    if not own:
        raise ModelError(
            "batch-norm=frozen: the model has no layer that normalises by the batch; leave it out."
        )
    for name, m in own.items():
        if not m.track_running_stats:
            raise ModelError(f"batch-norm=frozen: {name} has no running statistics; leave it out.")
        m.eval()
        m.train = lambda mode=True, m=m: m  # type: ignore[method-assign,misc]


def stands(module: nn.Module) -> bool:
    """Tell whether a layer is one of those that `freeze` holds."""
    return "train" in vars(module)
