"""Mixed precision: products in 16 bits by torch.autocast, the model and its steps in 32.

In fp16 small gradients would vanish, so the loss is scaled up before they are taken and they are
scaled down after. As in torch.amp.GradScaler the scale begins at 2^16, is halved at a gradient that
is not finite and doubled after 2000 that are; but such a gradient is taken again instead of none:
a round may have too few steps to lose some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from corsage.core.train_keys import TrainKeys

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LARGEST, GROWTH = 2.0**16, 2000


class HalfPrecision:
    """The precision of one training: its gradients are taken by `backward`."""

    def __init__(self, keys: TrainKeys, device: torch.device) -> None:
        self.dtype, self.device = DTYPES.get(keys.mixed_precision), device
        self.scale = LARGEST if self.dtype is torch.float16 else 1.0
        self.good = 0

    def around(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def backward(self, of: Callable[..., Tensor], x: Tensor, y: Tensor, grad: Tensor) -> None:
        """Add the gradient of `of(x, y)` to `grad`, which was 0."""
        with self.around():
            loss = of(x, y)
        if self.dtype is not torch.float16:
            torch.autograd.backward(loss)
            return
        while not self.scaled(loss, grad):
            self.scale, self.good = self.scale / 2, 0
            grad.zero_()
        self.good += 1
        if self.good == GROWTH:
            self.scale, self.good = 2 * self.scale, 0

    def scaled(self, loss: Tensor, grad: Tensor) -> bool:
        """Take the gradient by way of the scaled loss; whether it is finite, or never will be."""
        torch.autograd.backward(loss * self.scale, retain_graph=True)
        grad.div_(self.scale)
        return self.scale <= 1.0 or bool(torch.isfinite(grad).all())
