"""Rules for functions of torch's on values of several users at once, where torch.vmap is slower.

The arguments are those of torch.nn.functional. NotImplemented: let torch.vmap do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from corsage.networks.together.slots import Convolution, Linear, Slot, State
from corsage.networks.together.users import (
    Rule,
    Untraceable,
    Users,
    elementwise,
    lifted,
    padded,
    users_in,
)

DRAWS_NUMBERS = "it draws random numbers in training (dropout)"
SHORTENS = "its forward writes into a parameter (max_norm)"


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """F.linear."""
    if not (isinstance(weight, Slot) and (bias is None or isinstance(bias, Slot))):
        return NotImplemented
    x = lifted(x, weight.n)
    rows = x.rows()
    flat = rows.reshape(x.n, -1, rows.shape[-1])
    token = weight.token if weight.trained or bias is None else bias.token
    out = Linear.apply(flat, token, weight, bias)  # type: ignore[no-untyped-call]
    return Users(out.view(*rows.shape[:-1], out.shape[-1]), x.n)


def convolution(axes: int) -> Rule:
    """F.conv1d, F.conv2d or F.conv3d."""

    def conv(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        slots = isinstance(weight, Slot) and (bias is None or isinstance(bias, Slot))
        if not slots or padding == "same" or x.ndim != axes + 2:
            return NotImplemented
        padding = 0 if padding == "valid" else padding
        how = tuple(sides(v, axes) for v in (stride, padding, dilation))
        token = weight.token if weight.trained or bias is None else bias.token
        given = x.wide(), token, weight, bias, groups, how
        return Users(Convolution.apply(*given), x.n, True)  # type: ignore[no-untyped-call]

    return conv


def sides(value: Any, axes: int) -> list[int]:
    """One number for all axes of an image, or one for each."""
    return [value] * axes if isinstance(value, int) else list(value)


def affine(x: Users, weight: Any, bias: Any) -> Users:
    """x * weight + bias by channels."""
    for function, p in ((torch.mul, weight), (torch.add, bias)):
        if p is not None:
            x = elementwise(function, (x, p.view(-1, *[1] * (x.ndim - 2))), {})
    return x


def group_norm(
    x: Users, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """F.group_norm: the groups of all users side by side.

    An input without a gradient is normalised apart: there torch's backward pass with channels last
    ends the process (2.13).
    """
    if not x.image:
        t = F.group_norm(x.joint.flatten(0, 1), num_groups, eps=eps).view(x.joint.shape)
        return affine(Users(t, x.n), weight, bias)
    if not x.joint.requires_grad:
        normed = Users(F.group_norm(x.joint, x.n * num_groups, eps=eps), x.n, True)
        return affine(normed, weight, bias)
    w, b = (None if p is None else lifted(p, x.n).joint.reshape(-1) for p in (weight, bias))
    return Users(F.group_norm(x.joint, x.n * num_groups, w, b, eps), x.n, True)


def embedding(
    x: Any, weight: Any, third: Any = None, max_norm: Any = None, *rest: Any, **more: Any
) -> Any:
    """F.embedding and F.embedding_bag, by torch.vmap, if they write into nothing."""
    if max_norm is not None:
        raise Untraceable(SHORTENS)
    return NotImplemented


def dropout(x: Users, p: float = 0.5, training: bool = True, *rest: Any) -> Users:
    """F.dropout, if it drops nothing."""
    if training and p:
        raise Untraceable(DRAWS_NUMBERS)
    return x


def batch_norm(
    x: Any,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Users:
    """F.batch_norm: channels of all users side by side; each has running statistics of its own."""
    n = users_in((x, mean, var, weight, bias))
    if training and any(p is not None and not isinstance(p, State) for p in (mean, var)):
        raise Untraceable("BatchNorm moves running statistics that are frozen")
    x = lifted(x, n)
    m, v, w, b = (
        None if p is None else lifted(p, n).joint.reshape(-1) for p in (mean, var, weight, bias)
    )
    found = Users(F.batch_norm(x.wide(), m, v, w, b, training, momentum, eps), n, True)
    return found if x.ndim > 2 else Users(found.rows(), n)


def attention(q: Users, k: Users, v: Users, *rest: Any, **more: Any) -> Any:
    """F.scaled_dot_product_attention: users are further samples."""
    mask = more.get("attn_mask", rest[0] if rest else None)
    if more.get("dropout_p", rest[1] if len(rest) > 1 else 0.0):
        raise Untraceable(DRAWS_NUMBERS)
    if isinstance(mask, Users) or not all(isinstance(p, Users) and p.ndim == 4 for p in (q, k, v)):
        return NotImplemented
    folded: Any = [p.rows().flatten(0, 1) for p in (q, k, v)]
    found = F.scaled_dot_product_attention(*folded, *rest, **more)
    return Users(torch.unflatten(found, 0, (q.n, -1)), q.n)


def multi_head_attention(
    query: Users, key: Users, value: Users, width: int, heads: int, *rest: Any, **more: Any
) -> Any:
    """F.multi_head_attention_forward of (steps, batch, width), as nn.MultiheadAttention calls it.

    Only what layers of transformers ask for: one projection for all three, nothing added.
    """
    given = {**dict(zip(ATTENTION, rest, strict=False)), **more}
    if any(given.get(o) not in (None, False) for o in ODD) or query.ndim != 3:
        return NotImplemented
    if given.get("training", True) and given["dropout_p"]:
        raise Untraceable(DRAWS_NUMBERS)
    parts = projected((query, key, value), given["in_proj_weight"], given["in_proj_bias"])
    q, k, v = (p.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for p in parts)
    mask, weights = given.get("attn_mask"), None
    if given.get("need_weights", True):
        scores = q.matmul(k.mT) * (width // heads) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf) if is_bool(mask) else scores + mask
        weights = scores.softmax(-1)
        found = weights.matmul(v)
        weights = weights.mean(1) if given.get("average_attn_weights", True) else weights
    else:
        causal = bool(given.get("is_causal")) and mask is None
        found = attention(q, k, v, attn_mask=mask, is_causal=causal)
    together = found.permute(2, 0, 1, 3).flatten(2)
    return linear(together, given["out_proj_weight"], given["out_proj_bias"]), weights


ATTENTION = (
    *("in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "dropout_p"),
    *("out_proj_weight", "out_proj_bias"),
)
"""Arguments of F.multi_head_attention_forward after the number of heads."""
ODD = (
    *("bias_k", "bias_v", "add_zero_attn", "key_padding_mask", "use_separate_proj_weight"),
    *("static_k", "static_v"),
)
"""Those that few models give."""


def is_bool(mask: Any) -> bool:
    """Tell whether a mask says which are left out, and not what is added."""
    return bool(mask.dtype == torch.bool)


def projected(inputs: tuple[Users, Users, Users], weight: Any, bias: Any) -> tuple[Users, ...]:
    """The heads' inputs: query, key and value times their third of the weights each."""
    query, key, value = inputs
    if query is key and key is value:
        return tuple(linear(query, weight, bias).chunk(3, -1))
    thirds = bias.chunk(3) if bias is not None else (None,) * 3
    pieces = zip(inputs, weight.chunk(3), thirds, strict=True)
    return tuple(x.matmul(w.mT) if b is None else x.matmul(w.mT) + b for x, w, b in pieces)


def of_image(axes: int) -> Callable[[Any], Rule]:
    """A function of each channel's image by itself, given as torch has it."""

    def rule(function: Any) -> Rule:
        def pool(x: Users, *args: Any, **kwargs: Any) -> Any:
            if x.ndim != axes + 2 or kwargs.get("return_indices"):
                return NotImplemented
            return Users(function(x.wide(), *args, **kwargs), x.n, True)

        return pool

    return rule


def reshape(x: Users, *shape: Any) -> Users:
    """Tensor.view and reshape."""
    form = shape[0] if isinstance(shape[0], list | tuple) else shape
    return Users(x.rows().reshape(x.n, *form), x.n)


def reshaped_as(x: Users, like: Any) -> Users:
    """Tensor.view_as and reshape_as."""
    return reshape(x, *like.shape)


def matmul(a: Any, b: Any) -> Any:
    """Matrix products."""
    n = users_in((a, b))
    a, b = lifted(a, n), lifted(b, n)
    axes = max(a.ndim, b.ndim)
    if min(a.ndim, b.ndim) < 2:
        return NotImplemented
    return Users(torch.matmul(padded(a, axes), padded(b, axes)), n)


def clone(x: Users, *args: Any, **kwargs: Any) -> Users:
    """Tensor.clone: what is written into one is not in the other."""
    return Users(x.joint, x.n, x.image)


def same(x: Users, *args: Any, **kwargs: Any) -> Users:
    """A function that changes nothing but the layout in memory, or nothing."""
    return x
