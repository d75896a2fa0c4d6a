"""A small evaluator of tensor programs, before and after lowering, on NumPy arrays.

Every buffer is checked: an access out of bounds fails the test, and allocated memory starts as
NaN (or a large integer), so that reading what nobody wrote shows in the result.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis import define_empty_reductions
from blockwright.ir import Buffer, Expr, PrimFunc, Stmt, Var
from blockwright.ir import expr as E
from blockwright.ir import stmt as S

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b, "FloorMod": lambda a, b: a % b, "Div": lambda a, b: a / b,
    "Min": np.minimum, "Max": np.maximum, "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b, "And": np.logical_and, "Or": np.logical_or,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "sqrt": np.sqrt, "fma": lambda a, b, c: a * b + c, "isnan": np.isnan,
    "abs": np.abs, "vector_reduce_add": np.sum, "vector_reduce_max": np.max,
    "vector_reduce_min": np.min, "likely": lambda a: a,
}  # fmt: skip


class AssertionFailed(Exception):
    """The program's own assertion."""


class Break(Exception):
    """Leaves the innermost `while`."""


class Evaluator:
    def __init__(self) -> None:
        self.env: dict[Var, Any] = {}
        self.memory: dict[Buffer, np.ndarray] = {}

    def run(self, func: PrimFunc, arrays: list[np.ndarray]) -> None:
        for buffer, array in zip(func.buffers, arrays, strict=True):
            self.memory[buffer] = array
            for extent, size in zip(buffer.shape, array.shape, strict=True):
                if isinstance(extent, Var):
                    self.env[extent] = size
        self.stmt(define_empty_reductions(func).body)

    # ------------------------------------------------------------------------- expressions

    def expr(self, node: Expr) -> Any:
        match node:
            case E.IntImm() | E.FloatImm():
                return node.value
            case Var():
                return self.env[node]
            case E.BinaryOp() | E.CompareOp() | E.And() | E.Or():
                return _BINARY[type(node).__name__](self.expr(node.a), self.expr(node.b))
            case E.Not():
                return np.logical_not(self.expr(node.a))
            case E.Cast():
                return np.asarray(self.expr(node.value)).astype(node.type.numpy())[()]
            case E.Select():
                parts = (node.condition, node.true_value, node.false_value)
                return np.where(*(self.expr(part) for part in parts))[()]
            case E.Ramp():
                return self.expr(node.base) + self.expr(node.stride) * np.arange(node.lanes)
            case E.Broadcast():
                return np.full(node.lanes, self.expr(node.value))
            case E.Shuffle():
                lanes = np.concatenate([np.atleast_1d(self.expr(v)) for v in node.vectors])
                picked = lanes[list(node.indices)]
                return picked if len(picked) > 1 else picked[0]
            case E.Let():
                self.env[node.var] = self.expr(node.value)
                return self.expr(node.body)
            case E.Call(op="if_then_else"):
                taken = self.expr(node.args[0])
                return self.expr(node.args[1 if taken else 2])
            case E.Call(op="checked_index"):
                index, extent = (self.expr(arg) for arg in node.args)
                if not 0 <= index < extent:
                    raise AssertionFailed("BW708")
                return index
            case E.Call():
                return _CALLS[node.op](*(self.expr(arg) for arg in node.args))
            case E.BufferLoad():
                return self.load(node)
            case _:
                raise NotImplementedError(type(node).__name__)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...], mask: Any) -> tuple[Any, ...]:
        array = self.memory[buffer]
        values = tuple(self.expr(index) for index in indices)
        for value, size in zip(values, array.shape, strict=True):
            active = np.asarray(value) if mask is None else np.asarray(value)[mask]
            assert (active >= 0).all(), f"{buffer.name}: negative index"
            assert (active < size).all(), f"{buffer.name}: index {active} beyond {size}"
        return values

    def load(self, node: E.BufferLoad) -> Any:
        mask = None if node.predicate is None else self.expr(node.predicate)
        values = self.place(node.buffer, node.indices, mask)
        array = self.memory[node.buffer]
        if mask is None:
            return array[values]
        out = np.zeros(node.dtype.lanes, array.dtype)
        out[mask] = array[tuple(v[mask] for v in values)]
        return out

    # -------------------------------------------------------------------------- statements

    def stmt(self, node: Stmt) -> None:
        match node:
            case S.SeqStmt():
                for part in node.seq:
                    self.stmt(part)
            case S.BufferStore():
                mask = None if node.predicate is None else self.expr(node.predicate)
                places, value = self.place(node.buffer, node.indices, mask), self.expr(node.value)
                if mask is None:
                    self.memory[node.buffer][places] = value
                else:
                    kept = tuple(p[mask] for p in places)
                    self.memory[node.buffer][kept] = np.asarray(value)[mask]
            case S.For():
                low = int(self.expr(node.min))
                for i in range(low, low + int(self.expr(node.extent))):
                    self.env[node.loop_var] = i
                    self.stmt(node.body)
            case S.While():
                with contextlib.suppress(Break):
                    while self.expr(node.condition):
                        self.stmt(node.body)
            case S.IfThenElse():
                if self.expr(node.condition):
                    self.stmt(node.then_case)
                elif node.else_case is not None:
                    self.stmt(node.else_case)
            case S.AttrStmt():
                self.stmt(node.body)
            case S.LetStmt():
                self.env[node.var] = self.expr(node.value)
                self.stmt(node.body)
            case S.Allocate():
                self.memory[node.buffer] = self.fresh(node.buffer)
                self.stmt(node.body)
            case S.DeclBuffer():
                self.alias(node)
                self.stmt(node.body)
            case S.AssertStmt():
                if not self.expr(node.condition):
                    raise AssertionFailed(node.message)
            case S.BlockRealize():
                self.block(node)
            case S.Evaluate(value=E.Call(op="break")):
                raise Break
            case S.Evaluate():
                pass
            case _:
                raise NotImplementedError(type(node).__name__)

    def fresh(self, buffer: Buffer) -> np.ndarray:
        shape = tuple(int(self.expr(extent)) for extent in buffer.shape)
        return np.full(shape, math.nan if buffer.dtype.is_float else 77, buffer.dtype.numpy())

    def alias(self, node: S.DeclBuffer) -> None:
        source = node.source
        assert isinstance(source, E.Call)
        assert source.op == "address_of"
        target = source.args[0]
        assert isinstance(target, E.BufferLoad)
        flat = self.memory[target.buffer].reshape(-1)
        shape = tuple(int(self.expr(extent)) for extent in node.buffer.shape)
        assert flat.size >= math.prod(shape)
        self.memory[node.buffer] = flat.reshape(shape)

    def block(self, node: S.BlockRealize) -> None:
        block = node.block
        for iter_var, value in zip(block.iter_vars, node.iter_values, strict=True):
            self.env[iter_var.var] = self.expr(value)
        if not self.expr(node.predicate):
            return
        for buffer in block.alloc_buffers:
            self.memory[buffer] = self.fresh(buffer)
        for match in block.match_buffers:
            array = self.memory[match.source.buffer]
            view = array[
                tuple(
                    slice(self.expr(r.min), self.expr(r.min) + self.expr(r.extent))
                    for r in match.source.region
                )
            ]
            self.memory[match.buffer] = view.reshape(view.shape[view.ndim - match.buffer.ndim :])
        starts = (
            self.env[v.var] == self.expr(v.dom.min)
            for v in block.iter_vars
            if v.iter_type is ir.IterType.REDUCE
        )
        if block.init is not None and all(starts):
            self.stmt(block.init)
        self.stmt(block.body)


def _run(func: PrimFunc, *arrays: np.ndarray) -> list[np.ndarray]:
    copies = [array.copy() for array in arrays]
    with np.errstate(all="ignore"):
        Evaluator().run(func, copies)
    return copies


@pytest.fixture
def run() -> Callable[..., list[np.ndarray]]:
    """Runs a function on copies of arrays and returns the copies."""
    return _run


@pytest.fixture
def same_result() -> Callable[..., PrimFunc]:
    """Lowers a function, checks that every stage computes what the program did; returns it."""
    from blockwright.lower import check_flat, lower

    def check(func: PrimFunc, *arrays: np.ndarray, **options: Any) -> PrimFunc:
        want = _run(func, *arrays)

        def stage(name: str, before: PrimFunc, after: PrimFunc) -> None:
            if before is after:
                return
            got = _run(after, *arrays)
            for a, b in itertools.zip_longest(got, want):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"after {name}")

        lowered = lower(func, "x86-64-v4", on_pass=stage, **options)
        check_flat(lowered)
        return lowered

    return check
