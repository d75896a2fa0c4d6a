"""Prove small programs equal by running them on symbols: one term per element, compared by z3.

The proof by instance sets (`proof.Claim`) takes operators as uninterpreted, so it cannot show that
`(a ^ 128) - 128` is a signed byte. Here integers are bit vectors with the semantics of
docs/semantics.md, and floating-point operations are uninterpreted functions: equal terms are equal
bit by bit, in the order in which the programs add. Loops have constant extents, and all conditions
and positions are known; every access is checked as it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.intrin.hardware import PRODUCTS
from blockwright.verify.model.symbolic_values import Scalar, Symbols
from blockwright.verify.normalize.views import without_views
from blockwright.verify.prove.equality import Equality
from blockwright.verify.verdict import Unknown

z3: Any = importlib.import_module("z3")  # untyped
RESOURCES = 2_000_000
"""z3's resource limit for one element; deterministic across machines."""
MOST_VALUES = 60_000
"""Scalar operations that a program may take."""

Inputs = tuple[np.ndarray[Any, Any], ...]


def prove_unrolled(before: ir.PrimFunc, after: ir.PrimFunc) -> Inputs | None:
    """Prove that both programs leave the same bits in every parameter.

    Returns:
        None if this is proved; inputs for which integer results differ.

    Raises:
        Unknown: a program is not of the supported form, or z3 does not decide.
    """
    symbols = Symbols()
    first, second = _Run(symbols, before), _Run(symbols, after)
    equality = Equality(symbols, RESOURCES)
    for a, b in zip(first.results(), second.results(), strict=True):
        if equality.holds(a, b):
            continue
        solver = symbols.solver(RESOURCES)
        solver.add(a != b)
        answer = solver.check()
        if answer == z3.sat and not symbols.uninterpreted:
            return first.inputs(solver.model())
        if answer != z3.unsat:
            raise Unknown(
                "a result is another floating-point expression"
                if answer == z3.sat
                else "z3 does not decide within its limit"
            )
    return None


class _Run:
    """Runs a program on symbols.

    Attributes:
        memory: the term of each element; None where nothing is written.
        copies: how often each buffer was allocated; each time is memory of its own.
    """

    def __init__(self, symbols: Symbols, func: ir.PrimFunc) -> None:
        self.symbols = symbols
        self.func = without_views(func)
        self.memory: dict[ir.Buffer, np.ndarray[Any, Any]] = {}
        self.copies: dict[ir.Buffer, int] = {}
        self.values: dict[ir.Var, list[Scalar]] = {}
        self.left = MOST_VALUES
        self.loops: list[_Accesses] = []
        handles = {v for v, _ in func.buffer_map}
        if any(p not in handles for p in func.params):
            raise Unknown("a scalar parameter")
        for at, buffer in enumerate(self.func.buffers):
            self._allocate(buffer)
            cells = self.memory[buffer]
            for k in range(cells.size):
                cells.flat[k] = symbols.variable(f"p{at}_{k}", buffer.dtype)
        self._run(self.func.body)

    def results(self) -> Iterator[Any]:
        """The terms of all parameters at the end."""
        for buffer in self.func.buffers:
            yield from self.memory[buffer].flat

    def inputs(self, model: Any) -> Inputs:
        """The parameters at entry in a model of z3."""
        arrays: list[np.ndarray[Any, Any]] = []
        for at, buffer in enumerate(self.func.buffers):
            array = np.empty(self.memory[buffer].shape, buffer.dtype.numpy())
            for k in range(array.size):
                term = self.symbols.variable(f"p{at}_{k}", buffer.dtype)
                array.flat[k] = self.symbols.number(model.eval(term, True), buffer.dtype)
            arrays.append(array)
        return tuple(arrays)

    # ------------------------------------------------------------------ statements
    def _run(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.SeqStmt():
                for one in stmt.seq:
                    self._run(one)
            case ir.For():
                self._loop(stmt)
            case ir.BlockRealize():
                self._block(stmt)
            case ir.BufferStore():
                self._store(stmt)
            case ir.IfThenElse():
                if self._known(stmt.condition):
                    self._run(stmt.then_case)
                elif stmt.else_case is not None:
                    self._run(stmt.else_case)
            case ir.LetStmt():
                self.values[stmt.var] = self._value(stmt.value)
                self._run(stmt.body)
            case ir.Allocate():
                self._allocate(stmt.buffer)
                self._run(stmt.body)
            case _:
                raise Unknown(f"the statement {type(stmt).__name__}")

    def _loop(self, loop: ir.For) -> None:
        if loop.kind is ir.ForKind.THREAD_BINDING:
            raise Unknown("threads")
        first, extent = self._number(loop.min), self._number(loop.extent)
        accesses = _Accesses(loop.kind in (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED))
        self.loops.append(accesses)
        for k in range(first, first + extent):
            self.values[loop.loop_var] = [k]
            self._run(loop.body)
            accesses.end_iteration()
        self.loops.pop()

    def _block(self, realize: ir.BlockRealize) -> None:
        block = realize.block
        if block.exec_scope:
            raise Unknown("an execution scope")
        if not self._known(realize.predicate):
            return
        begins = True
        for it, value in realize.bindings:
            at, low = self._number(value), self._number(it.dom.min)
            if not low <= at < low + self._number(it.dom.extent):
                raise Unknown(f"{it.var.name} leaves its domain")
            begins = begins and (it.iter_type is not ir.IterType.REDUCE or at == low)
            self.values[it.var] = [at]
        for buffer in block.alloc_buffers:
            self._allocate(buffer)
        if block.init is not None and begins:
            self._run(block.init)
        self._run(block.body)

    def _allocate(self, buffer: ir.Buffer) -> None:
        shape = tuple(ir.const_int(n) for n in buffer.shape)
        sizes = [n for n in shape if n is not None]
        if len(sizes) != len(shape):
            raise Unknown(f"the size of {buffer.name} is a symbol")
        if np.prod(sizes, dtype=object) > MOST_VALUES:
            raise Unknown(f"more than {MOST_VALUES} elements in {buffer.name}")
        self.memory[buffer] = np.full(sizes, None, object)
        self.copies[buffer] = self.copies.get(buffer, 0) + 1

    def _store(self, store: ir.BufferStore) -> None:
        value = self._value(store.value)
        mask = [True] * len(value) if store.predicate is None else self._value(store.predicate)
        at = self._positions(store.indices, len(value))
        for place, item, taken in zip(at, value, mask, strict=True):
            if self._bool(taken):
                self._access(store.buffer, place, True)
                kept = self.symbols.term(item, store.buffer.dtype)
                self.memory[store.buffer][place] = kept

    # ------------------------------------------------------------------ memory
    def _positions(self, indices: Sequence[ir.Expr], lanes: int) -> list[tuple[int, ...]]:
        columns = [self._value(index) for index in indices]
        wide = [c * lanes if len(c) == 1 else c for c in columns]
        if any(not isinstance(k, int) or isinstance(k, bool) for c in wide for k in c):
            raise Unknown("a position that depends on data")
        return list(zip(*wide, strict=True)) if wide else [()] * lanes

    def _access(self, buffer: ir.Buffer, at: tuple[int, ...], write: bool) -> None:
        cells = self.memory.get(buffer)
        if cells is None:
            raise Unknown(f"the memory of {buffer.name} is unknown")
        if any(not 0 <= k < n for k, n in zip(at, cells.shape, strict=True)):
            raise Unknown(f"an access outside of {buffer.name}")
        for loop in self.loops:
            loop.note((buffer, self.copies[buffer], at), write)

    def _load(self, load: ir.BufferLoad) -> list[Scalar]:
        lanes = load.dtype.lanes
        mask: list[Scalar] = [True] * lanes
        if load.predicate is not None:
            mask = self._value(load.predicate)
        result: list[Scalar] = []
        for place, taken in zip(self._positions(load.indices, lanes), mask, strict=True):
            if not self._bool(taken):
                result.append(self.symbols.constant(0, load.buffer.dtype))
                continue
            self._access(load.buffer, place, False)
            value = self.memory[load.buffer][place]
            if value is None:
                raise Unknown(f"{load.buffer.name} is read before it is written")
            result.append(value)
        return result

    # ------------------------------------------------------------------ expressions
    def _number(self, expr: ir.Expr) -> int:
        (value,) = self._value(expr)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Unknown(f"{expr!r} depends on data")
        return value

    def _known(self, expr: ir.Expr) -> bool:
        (value,) = self._value(expr)
        return self._bool(value)

    @staticmethod
    def _bool(value: Scalar) -> bool:
        if not isinstance(value, bool):
            raise Unknown("a condition that depends on data")
        return value

    def _value(self, expr: ir.Expr) -> list[Scalar]:
        """The lanes of an expression."""
        self.left -= expr.dtype.lanes
        if self.left < 0:
            raise Unknown(f"more than {MOST_VALUES} operations")
        match expr:
            case ir.Var():
                if expr not in self.values:
                    raise Unknown(f"{expr.name} is unknown")
                return self.values[expr]
            case ir.BufferLoad():
                return self._load(expr)
            case ir.Ramp():
                base, stride = self._number(expr.base), self._number(expr.stride)
                return [base + k * stride for k in range(expr.lanes)]
            case ir.Broadcast():
                return self._value(expr.value) * expr.lanes
            case ir.Shuffle():
                lanes = [lane for v in expr.vectors for lane in self._value(v)]
                return [lanes[k] for k in expr.indices]
            case ir.Let():
                self.values[expr.var] = self._value(expr.value)
                return self._value(expr.body)
            case ir.Call() if expr.op == "if_then_else":
                return self._chosen(expr)
            case ir.Call() if expr.op in PRODUCTS:
                return self._value(PRODUCTS[expr.op].meaning(*expr.args))
            case _:
                return self.symbols.apply(expr, [self._value(v) for v in _operands(expr)])

    def _chosen(self, call: ir.Call) -> list[Scalar]:
        """The lazy choice: only the branch taken is evaluated."""
        condition, yes, no = call.args
        if condition.dtype.lanes != 1:
            raise Unknown("a vector of lazy choices")
        return self._value(yes if self._known(condition) else no)


def _operands(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    return tuple(child for child in expr.children() if isinstance(child, ir.Expr))


class _Accesses:
    """Elements that iterations of one loop access, to find races between them.

    Attributes:
        concurrent: whether the iterations may run at once.
    """

    def __init__(self, concurrent: bool) -> None:
        self.concurrent = concurrent
        self.before: dict[Any, bool] = {}
        self.now: dict[Any, bool] = {}

    def note(self, element: Any, write: bool) -> None:
        """Note an access. Raises: Unknown if it races with another iteration."""
        if not self.concurrent:
            return
        other = self.before.get(element)
        if other is not None and (write or other):
            raise Unknown(f"iterations of a concurrent loop share {element[0].name}")
        self.now[element] = self.now.get(element, False) or write

    def end_iteration(self) -> None:
        for element, write in self.now.items():
            self.before[element] = self.before.get(element, False) or write
        self.now.clear()
