"""The one tensor that is meant in what a model's forward returns.

Models of transformers return an object or a dictionary with `logits` in it, others a tuple whose
first tensor is the output (the rest are auxiliary outputs, hidden states, attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from corsage.core.errors import ModelError


def output_of(answer: Any) -> Tensor:
    """The output: the tensor itself, its `logits`, or the first of several; ModelError if none."""
    if is_tensor(answer):
        return cast(Tensor, answer)
    found = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
    if found is None and isinstance(answer, tuple | list) and answer:
        found = answer[0]
    if not is_tensor(found):
        kind = type(answer).__name__
        raise ModelError(
            f"forward returns a {kind}: neither a tensor, nor one in `logits`, nor as the first "
            "of several; return the logits alone."
        )
    return cast(Tensor, found)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor, or stands for those of several users."""
    return hasattr(type(value), "__torch_function__")
