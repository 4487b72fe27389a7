"""Gradient steps of linear models of few parameters, with one pass over the samples a step.

With numba, the optional extra `fast`. Users of like sizes lie side by side in a chunk, which takes
all its steps before the next one is looked at: its samples stay in the cache, and no array of
intermediate results is written. What is missing in a chunk are rows of zeros, which add nothing.
exp is a polynomial of its own: the library's works on one number at a time.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

LOGISTIC, SQUARED_HINGE, RESIDUAL = range(3)
"""Losses: of classes, of rows -l a; and of numbers, whose residuals are cut at delta."""
LOG2E, HIGH, LOW = 1.4426950408889634, 0.693145751953125, 1.42860682030941723212e-6
"""1/ln 2, and ln 2 in two parts: a whole number times the high one is exact."""
SERIES = tuple(1 / factorial(k) for k in range(13, -1, -1))
"""Taylor's of exp: on |r| <= ln(2)/2 what is left out is below the rounding error."""
FAST = {"contract"}
"""Products and sums in one instruction; nothing is put in another order."""


@intrinsic
def power_of_two(context: Any, number: Any) -> Any:
    """2^n, from its bits."""
    bits, bias, whole = (23, 127, 32) if number == types.float32 else (52, 1023, 64)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(whole)
        exponent = builder.add(builder.fptosi(arguments[0], integer), integer(bias))
        return builder.bitcast(builder.shl(exponent, integer(bits)), arguments[0].type)

    return number(number), build


def sigmoid(u):
    """1/(1 + exp(-u)), in kernels only."""
    raise NotImplementedError


@overload(sigmoid, inline="always", jit_options={"fastmath": FAST})
def _sigmoid(u):
    """For numbers of one precision: its constants are written into the code."""
    single = u == types.float32
    number = np.float32 if single else np.float64
    far, one, half = number(87 if single else 708), number(1), number(0.5)
    log2e, high, low = number(LOG2E), number(HIGH), number(LOW)
    first, *others = (number(value) for value in SERIES[6 if single else 0 :])
    series = tuple(others)

    def kernel(u):
        v = min(max(-u, -far), far)
        n = np.floor(v * log2e + half)
        r = (v - n * high) - n * low
        p = first
        for value in series:
            p = p * r + value
        return one / (one + p * power_of_two(n))

    return kernel


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _add(g, row, t, labels, j, kind, delta, each):
    """A row's gradients to g."""
    d, users = len(each), t.shape[1]
    zero, one = g.dtype.type(0), g.dtype.type(1)
    if kind == LOGISTIC:
        for u in range(users):
            s = row[0, u] * t[0, u]
            for q in range(1, d):
                s += row[q, u] * t[q, u]
            s = sigmoid(s)
            for q in range(d):
                g[q, u] += row[q, u] * s
    elif kind == SQUARED_HINGE:
        for u in range(users):
            s = row[0, u] * t[0, u]
            for q in range(1, d):
                s += row[q, u] * t[q, u]
            s = max(s + one, zero)
            for q in range(d):
                g[q, u] += row[q, u] * (s + s)
    else:
        label = labels[j]
        for u in range(users):
            s = row[0, u] * t[0, u]
            for q in range(1, d):
                s += row[q, u] * t[q, u]
            s = min(max(s - label[u], -delta), delta)
            for q in range(d):
                g[q, u] += row[q, u] * s


def compiled(function):
    """The kernel, compiled once a machine; once a process where nothing can be written."""
    options = {"fastmath": FAST, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder
        return njit(**options)(function)


@compiled
def descend(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not objects
    rows, y, starts, first, theta, share, ridge, k, step, kind, delta, each
):
    """k steps of all users, in the place of theta.

    Chunk b has the users first[b], ..., first[b + 1] - 1 and the rows from starts[b] on, both
    (..., users of the chunk) when flattened: rows (rows, d, users), theta (d, users), y (rows,
    users). `each` is a tuple of d entries: their number is then known to the compiler.
    """
    d = len(each)
    for b in range(len(first) - 1):
        users = first[b + 1] - first[b]
        t = theta[d * first[b] : d * first[b + 1]].reshape(d, users)
        weight = share[first[b] : first[b + 1]]
        block = rows[d * starts[b] : d * starts[b + 1]].reshape(-1, d, users)
        labels = y[starts[b] : starts[b + 1]].reshape(-1, users)
        g = np.empty((d, users), theta.dtype)
        for _ in range(k):
            g[:] = 0
            for j in range(len(block)):
                _add(g, block[j], t, labels, j, kind, delta, each)
            for q in range(d):
                for u in range(users):
                    t[q, u] -= step * (weight[u] * g[q, u] + ridge[q] * t[q, u])
