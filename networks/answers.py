"""What a model's forward returns, as the one tensor that is meant.

Models of transformers return an object or a dictionary with `logits` in it, others a tuple whose
first tensor is the output (the rest are auxiliary outputs, hidden states, attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from corsage.core.errors import ModelError
from corsage.networks.users import Users


def output_of(answer: Any) -> Tensor:
    """The output: the tensor itself, its `logits`, or the first of several; ModelError if none."""
    if isinstance(answer, Tensor | Users):
        return cast(Tensor, answer)
    found = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
    if found is None and isinstance(answer, tuple | list) and answer:
        found = answer[0]
    if not isinstance(found, Tensor | Users):
        kind = type(answer).__name__
        raise ModelError(
            f"forward returns a {kind}: neither a tensor, nor one in `logits`, nor as the first "
            "of several; return the logits alone."
        )
    return cast(Tensor, found)
