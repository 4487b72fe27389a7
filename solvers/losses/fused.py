"""Gradient steps of linear models of few parameters, with one pass over the samples a step.

The kernel is written in LLVM's instructions and compiled in this process, for the processor at
hand, by llvmlite: the optional extra `fast`. Users of like sizes lie side by side in a block, one
in each lane of the vectors, and a block takes all its steps before the next one is looked at: its
models and gradients stay in registers, its samples in the first cache, and no array of intermediate
results is written. What is missing in a block are rows of zeros, which add nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_double, c_float, c_int64, c_void_p
from math import factorial
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numpy.typing import NDArray

VECTOR_BYTES = 128
"""Bytes in a vector: two of the widest registers, whose work overlaps."""
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.42860682030941723212e-6
"""1/ln 2, and ln 2 in two parts: a whole number times the high one is exact."""
SERIES = tuple(1 / factorial(k) for k in range(13, -1, -1))
"""Taylor's of exp: on |r| <= ln(2)/2 what is left out is below the rounding error."""
WHOLE = ir.IntType(64)
Vectors = list[Any]


def lanes(dtype: np.dtype[Any]) -> int:
    """Users in a block."""
    return VECTOR_BYTES // dtype.itemsize


class Writer:
    """Writes the instructions of a function, a vector of numbers at a time.

    Parameters
    ----------
    function : to be written.
    single : whether numbers have single precision.
    """

    def __init__(self, function: ir.Function, single: bool) -> None:
        self.to = ir.IRBuilder(function.append_basic_block())
        self.single, self.lanes = single, VECTOR_BYTES // (4 if single else 8)
        self.number = ir.FloatType() if single else ir.DoubleType()
        self.vector = ir.VectorType(self.number, self.lanes)
        self.bits = ir.VectorType(ir.IntType(32 if single else 64), self.lanes)
        name = f"llvm.fmuladd.v{self.lanes}f{32 if single else 64}"
        like = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fma = ir.Function(function.module, like, name)

    def repeated(
        self, count: Any, start: Vectors, body: Callable[[Any, Vectors], Vectors]
    ) -> Vectors:
        """The values after `body(number, values)`, so many times, from `start` on."""
        to, before = self.to, self.to.block
        head, inside, after = (to.append_basic_block() for _ in range(3))
        to.branch(head)
        to.position_at_end(head)
        first = [ir.Constant(WHOLE, 0), *start]
        now = [to.phi(value.type) for value in first]
        to.cbranch(to.icmp_signed("<", now[0], count), inside, after)
        to.position_at_end(inside)
        then = [to.add(now[0], ir.Constant(WHOLE, 1)), *body(now[0], now[1:])]
        for phi, old, new in zip(now, first, then, strict=True):
            phi.add_incoming(old, before)
            phi.add_incoming(new, to.block)
        to.branch(head)
        to.position_at_end(after)
        return now[1:]

    def constant(self, value: float) -> Any:
        """The same number in all lanes, rounded as it will be used."""
        own = float(np.float32(value)) if self.single else value
        return ir.Constant(self.vector, [ir.Constant(self.number, own)] * self.lanes)

    def everywhere(self, number: Any) -> Any:
        """A number that the function is given, in all lanes."""
        none = ir.Constant(self.vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), None)
        first = self.to.insert_element(none, number, ir.Constant(ir.IntType(32), 0))
        return self.to.shuffle_vector(first, none, zeros)

    def at(self, base: Any, index: Any, kind: Any = None) -> Any:
        """The address of entry `index` of an array: of vectors, if not of another kind."""
        return self.to.gep(base, [index], source_etype=kind or self.vector)

    def read(self, base: Any, index: Any, kind: Any = None) -> Any:
        """Entry `index` of an array."""
        size = 8 if kind is WHOLE else 4 if self.single else 8
        return self.to.load(self.at(base, index, kind), typ=kind or self.vector, align=size)

    def several(self, base: Any, place: Any, d: int) -> Vectors:
        """The d vectors that belong to a place."""
        first = self.to.mul(place, ir.Constant(WHOLE, d))
        return [self.read(base, self.to.add(first, ir.Constant(WHOLE, q))) for q in range(d)]

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, in one instruction where there is one."""
        return self.to.call(self._fma, [a, b, c])

    def clipped(self, value: Any, low: Any, high: Any) -> Any:
        """Between two bounds; what is not a number stays that."""
        value = self.to.select(self.to.fcmp_ordered(">", value, high), high, value)
        return self.to.select(self.to.fcmp_ordered("<", value, low), low, value)

    def sigmoid(self, u: Any) -> Any:
        """1/(1 + exp(-u)), to rounding: exp(v) = 2^n exp(r) with n whole and |r| <= ln(2)/2.

        A number as large as `shift` has no digits behind the point, and n in its last bits.
        """
        to, mantissa, bias = self.to, 23 if self.single else 52, 127 if self.single else 1023
        far = 87.0 if self.single else 708.0
        v = to.fneg(self.clipped(u, self.constant(-far), self.constant(far)))
        shift = self.constant(1.5 * 2**mantissa + bias)
        shifted = self.fma(v, self.constant(LOG2E), shift)
        n = to.fsub(shifted, shift)
        r = self.fma(n, self.constant(-LN2_LOW), self.fma(n, self.constant(-LN2_HIGH), v))
        p, *others = map(self.constant, SERIES[6 if self.single else 0 :])
        for coefficient in others:
            p = self.fma(p, r, coefficient)
        up = ir.Constant(self.bits, [ir.Constant(self.bits.element, mantissa)] * self.lanes)
        power = to.bitcast(to.shl(to.bitcast(shifted, self.bits), up), self.vector)
        one = self.constant(1)
        return to.fdiv(one, self.fma(p, power, one))

    def slope(self, loss: str, score: Any, label: Any, delta: Any) -> Any:
        """phi' of the scores <row, theta>; rows are -l a if labels l are classes."""
        to, zero, one = self.to, self.constant(0), self.constant(1)
        if loss == "logistic":
            return self.sigmoid(score)
        if loss == "squared-hinge":
            above = to.fadd(score, one)
            above = to.select(to.fcmp_ordered("<", above, zero), zero, above)
            return to.fadd(above, above)
        return self.clipped(to.fsub(score, label), to.fneg(delta), delta)


CLASS_LOSSES = ("logistic", "squared-hinge")
RESIDUAL_LOSSES = ("squared", "huber")
"""The losses that there are kernels of; residuals are cut at delta."""


def written(module: ir.Module, loss: str, d: int, single: bool) -> None:
    """The function `descend`: k steps of all users, in the place of theta.

    Block b has the rows from starts[b] to before starts[b + 1]. Vectors are entries of all arrays:
    rows (rows, d), labels (rows,), theta (blocks, d), share (blocks,).
    """
    number: ir.Type = ir.FloatType() if single else ir.DoubleType()
    pointers, own = [ir.PointerType()] * 6, [WHOLE, WHOLE, number, number]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), pointers + own), "descend")
    rows, labels, starts, theta, share, ridge, blocks, k, step, delta = function.args
    write = Writer(function, single)
    to, step, delta = write.to, write.everywhere(step), write.everywhere(delta)
    numbers = [write.read(ridge, ir.Constant(WHOLE, q), number) for q in range(d)]
    ridges = [write.everywhere(one) for one in numbers]

    def block(b: Any, _: Vectors) -> Vectors:
        begin, weight = write.read(starts, b, WHOLE), write.read(share, b)
        end = write.read(starts, to.add(b, ir.Constant(WHOLE, 1)), WHOLE)

        def stepped(_: Any, model: Vectors) -> Vectors:
            def added(j: Any, gradient: Vectors) -> Vectors:
                place, score = to.add(begin, j), write.constant(0)
                row = write.several(rows, place, d)
                for entry, own in zip(row, model, strict=True):
                    score = write.fma(entry, own, score)
                label = write.read(labels, place) if loss in RESIDUAL_LOSSES else None
                slope = write.slope(loss, score, label, delta)
                return [write.fma(x, slope, g) for x, g in zip(row, gradient, strict=True)]

            zeros = [write.constant(0)] * d
            sums = write.repeated(to.sub(end, begin), zeros, added)
            after = []
            for t, g, own in zip(model, sums, ridges, strict=True):
                move = write.fma(own, t, to.fmul(weight, g))
                after.append(to.fsub(t, to.fmul(step, move)))
            return after

        found = write.repeated(k, write.several(theta, b, d), stepped)
        first = to.mul(b, ir.Constant(WHOLE, d))
        for q, value in enumerate(found):
            place = to.add(first, ir.Constant(WHOLE, q))
            to.store(value, write.at(theta, place), align=4 if single else 8)
        return []

    write.repeated(blocks, [], block)
    to.ret_void()


class Kernel:
    """A function `descend`, compiled."""

    def __init__(self, loss: str, d: int, single: bool) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        module = ir.Module()
        written(module, loss, d, single)
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        features = binding.get_host_cpu_features().flatten()
        target = binding.Target.from_default_triple()
        machine = target.create_target_machine(
            cpu=binding.get_host_cpu_name(), features=features, opt=3
        )
        self._engine = binding.create_mcjit_compiler(parsed, machine)  # which owns the code
        self._engine.finalize_object()
        real = c_float if single else c_double
        kind = CFUNCTYPE(None, *[c_void_p] * 6, c_int64, c_int64, real, real)
        self._run = kind(self._engine.get_function_address("descend"))

    def __call__(
        self, arrays: Sequence[NDArray[Any]], blocks: int, k: int, step: float, delta: float
    ) -> None:
        """Work on the arrays of `written`; other threads go on meanwhile."""
        self._run(*(array.ctypes.data for array in arrays), blocks, k, step, delta)
