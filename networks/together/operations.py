"""Rules for torch's functions and methods on values of several users at once, by their names.

What has no rule is done by torch.vmap: so are axes, slices, concatenations, layer norms and
embeddings, whose models take at most 1.2 times as long by it. All of a model by torch.func takes
1.3 to 2.1 times as long (`python -m corsage.benchmarks paths`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.networks.together import layer_rules as layers
from corsage.networks.together.slots import Slot
from corsage.networks.together.users import Rule, Untraceable, Users, elementwise, mapped

ELEMENTWISE = frozenset(
    (
        *("relu", "relu6", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "celu", "mish"),
        *("leaky_relu", "softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid"),
        *("logsigmoid", "log_sigmoid", "tanhshrink", "softshrink", "hardshrink", "threshold"),
        *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "abs", "neg", "square", "sin", "cos"),
        *("erf", "sign", "floor", "round", "reciprocal", "clamp", "clamp_min", "clamp_max", "pow"),
        *("rpow", "add", "radd", "sub", "rsub", "subtract", "mul", "rmul", "multiply", "div"),
        *("divide", "truediv", "rtruediv", "true_divide", "maximum", "minimum", "where", "lerp"),
        *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "invert", "logical_not"),
        *("logical_and", "logical_or", "float", "double", "long", "int", "type_as", "to"),
        "nan_to_num",
    )
)
"""Functions of each entry by itself."""


def apply(function: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A function of torch's, or a method, on values of several users."""
    name = name.strip("_") if name.startswith("__") else name
    if name.endswith("_") and name not in RULES:
        return written(args[0], apply(plain_of(function, name), name[:-1], args, kwargs))
    if kwargs.pop("inplace", False):
        return written(args[0], apply(function, name, args, kwargs))
    if name in ELEMENTWISE:
        return elementwise(function, args, kwargs)
    rule = RULES.get(name)
    found = NotImplemented if rule is None else rule(*args, **kwargs)
    return mapped(function, args, kwargs) if found is NotImplemented else found


def plain_of(function: Any, name: str) -> Any:
    """The function that gives a new tensor, for one that writes into its first."""
    for home in (Tensor, torch, F):
        if found := getattr(home, name[:-1], None):
            return found
    raise Untraceable(f"{name} writes into a tensor")


def written(target: Users, value: Users) -> Users:
    """A value in the place of another one's."""
    if isinstance(target, Slot) or not isinstance(target, Users):
        raise Untraceable("its forward writes into a parameter or a constant")
    target.joint, target.image = value.joint, value.image
    return target


RULES: dict[str, Rule] = {
    "linear": layers.linear,
    **{f"conv{axes}d": layers.convolution(axes) for axes in (1, 2, 3)},
    "group_norm": layers.group_norm,
    **dict.fromkeys(("embedding", "embedding_bag"), layers.embedding),
    **dict.fromkeys(("dropout", "alpha_dropout", "feature_alpha_dropout"), layers.dropout),
    **{f"dropout{axes}d": layers.dropout for axes in (1, 2, 3)},
    "batch_norm": layers.batch_norm,
    "scaled_dot_product_attention": layers.attention,
    "multi_head_attention_forward": layers.multi_head_attention,
    **{
        f"{kind}{axes}d": layers.of_image(axes)(getattr(F, f"{kind}{axes}d"))
        for kind in ("max_pool", "avg_pool", "adaptive_avg_pool")
        for axes in (1, 2)
    },
    "t": attrgetter("T"),
    **dict.fromkeys(("view", "reshape"), layers.reshape),
    **dict.fromkeys(("view_as", "reshape_as"), layers.reshaped_as),
    **dict.fromkeys(("matmul", "bmm"), layers.matmul),
    **dict.fromkeys(("contiguous", "requires_grad_"), layers.same),
    "clone": layers.clone,
}
"""By name: torch, torch.nn.functional and tensors agree on what it means."""
