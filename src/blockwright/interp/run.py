"""Entry point of the interpreter: checks arguments, binds symbols and runs functions."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from blockwright.analysis import alignments, define_empty_reductions
from blockwright.analysis.calling_convention import calling_convention
from blockwright.interp import numeric
from blockwright.interp.arguments import (
    array_argument,
    bind_symbols,
    check_ranges,
    check_shapes,
    match_arguments,
    scalar_argument,
)
from blockwright.interp.borrowed_array import BorrowedArray
from blockwright.interp.gpu.kernels import launches, with_axis_loops
from blockwright.interp.lanes import Env, Fn, Limit, Return, RunState
from blockwright.interp.memory import Pointer
from blockwright.interp.objects import Slot
from blockwright.interp.privatization import private_buffers
from blockwright.interp.report import Report
from blockwright.interp.stmt import StmtCompiler
from blockwright.interp.writes import written_buffers
from blockwright.ir import (
    Buffer,
    IRModule,
    PrimFunc,
    Var,
    collect,
    height,
    value_variables,
)
from blockwright.ir.attributes import (
    CALL_DEPTH,
    IN_PLACE,
    NOALIAS,
    OBJECT_RESULTS,
)
from blockwright.support import InterpretError
from blockwright.support.stack import deep, in_room

_DEEP = 100
"""Expression height from which a program may exceed Python's default recursion limit."""

Array = np.ndarray[Any, Any]
_packed: dict[str, Callable[..., Any]] = {}
_compiled: weakref.WeakKeyDictionary[PrimFunc, CompiledFunction] = weakref.WeakKeyDictionary()


def register_packed(name: str, function: Callable[..., Any]) -> None:
    """Register a Python function for `call_packed` in programs; tensors are passed as arrays."""
    _packed[name] = function


def registered_packed(name: str) -> Callable[..., Any] | None:
    """The Python function registered under a name; None if there is none."""
    return _packed.get(name)


class CompiledFunction:
    """A PrimFunc compiled to closures; shapes and scalars are bound at each call."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.buffers = func.buffers
        handles = {var for var, _ in func.buffer_map}
        self.scalars = [p for p in func.params if p not in handles]
        compiler = StmtCompiler(call_global)
        self.values = value_variables(func)
        for scalar in self.scalars:
            compiler.define(scalar, not scalar.dtype.is_int or scalar in self.values)
        self.symbols = shape_symbols(func, self.scalars)
        for symbol in self.symbols:
            compiler.define(symbol)
        passed = calling_convention(func).symbols
        layout = [v for v in passed if v not in set(self.symbols)]  # of strides and offsets
        for symbol in layout:
            compiler.define(symbol)
        self.offsets = {b.offset for b in self.buffers if isinstance(b.offset, Var)} & set(layout)
        self.given = [*self.scalars, *passed]
        compiler.visible = [(v.name, compiler.slot(v)) for v in self.symbols]
        self.slots = {v: compiler.slot(v) for v in self.given}
        self.shapes: list[list[Fn]] = [[compiler.index(n) for n in b.shape] for b in self.buffers]
        self.strides = {b: [compiler.index(s) for s in b.strides] for b in self.buffers}
        self.binders = [compiler.bind_view(b, param=True) for b in self.buffers]
        for handle, buffer in func.buffer_map:
            compiler.define(handle)
            self.slots[handle] = compiler.slot(handle)
            compiler.slot(buffer)
        func = define_empty_reductions(with_axis_loops(func))
        body = func.body
        compiler.launches = launches(func)
        owned = {b for n in compiler.launches.values() for own in n.owned.values() for b in own}
        compiler.on_chip = owned
        compiler.privates = {
            loop: kept
            for loop, result in private_buffers(body).items()
            if (kept := [b for b in result if b not in owned])
        }
        compiler.alignment = alignments(body)
        self.body = compiler.stmt(body)
        self.is_deep = height(body) > _DEEP
        self.count = compiler.count

    def environment(self, state: RunState, values: dict[Var, Any]) -> Env:
        env: Env = [None] * self.count
        env[1] = state
        for var in self.offsets:
            env[self.slots[var]] = 0
        for var, value in values.items():
            if var in self.slots:
                wraps = var in self.values
                env[self.slots[var]] = numeric.constant(value, var.dtype) if wraps else value
        return env

    def run(self, env: Env, pointers: Sequence[Pointer]) -> None:
        """Run the body; if it is nested deeply, on a larger stack, as a run cannot be repeated."""
        if self.is_deep:
            in_room(self._run, env, pointers)
        else:
            self._run(env, pointers)

    def _run(self, env: Env, pointers: Sequence[Pointer]) -> None:
        for (handle, _), bind, pointer in zip(
            self.func.buffer_map, self.binders, pointers, strict=True
        ):
            env[self.slots[handle]] = pointer
            bind(env, pointer)
        with np.errstate(all="ignore"):
            try:
                self.body(env)
            except Return:
                return


@deep
def program_of(func: PrimFunc) -> CompiledFunction:
    """The compiled form of a function, cached per function object."""
    result = _compiled.get(func)
    if result is None:
        result = _compiled[func] = CompiledFunction(func)
    return result


def shape_symbols(func: PrimFunc, scalars: Collection[Var]) -> list[Var]:
    """Symbolic sizes bound by shapes: plain dimensions first, in order of first occurrence."""
    result: dict[Var, None] = {}
    for buffer in func.buffers:
        result.update(dict.fromkeys(n for n in buffer.shape if isinstance(n, Var)))
    for buffer in func.buffers:
        for extent in buffer.shape:
            result.update(dict.fromkeys(collect(extent, Var)))
    given = set(scalars)
    return [v for v in result if v not in given]


# -------------------------------------------------------------------------------------- arguments
def interpret(
    program: PrimFunc | IRModule,
    *args: Any,
    entry: str = "main",
    outputs: int | Collection[str] | None = None,
    vectorize: bool = True,
    races: bool = True,
    order: str | int | None = None,
    packed: dict[str, Callable[..., Any]] | None = None,
    report: Report | None = None,
    limit: Limit | None = None,
    **scalars: Any,
) -> None:
    """Run a tensor program in place on NumPy arrays, checking every step.

    Args:
        program: a function, or a module whose function `entry` is run.
        args: one array per buffer parameter and one number per scalar parameter, in order. Scalars,
            and symbols that no shape binds, may be passed by name instead (`**scalars`). For a
            result that the program allocates, pass a list, to which the array is appended.
        outputs: parameters that are uninitialized at entry: the number of trailing buffers, or
            names. Defaults to the function's attribute "num_outputs". Other parameters count as
            initialized.
        vectorize: run independent iterations at once; False forces one instance at a time.
        races: check that iterations of parallel and vectorized loops do not race.
        order: of parallel and vectorized loops: None as written, "reverse", or a seed to shuffle.
        packed: Python functions for `call_packed`, in addition to registered ones.
        report: filled with counters of the run, such as shared memory bank conflicts.
        limit: limit on loop iterations, not counting those that run as lanes; BW757 beyond it.

    Raises InterpretError: BW701–BW709 for arguments as in a compiled call, BW751 out of bounds,
    BW752 read of an unwritten element, BW753 failed assertion, BW754 division by zero,
    BW755 iterator outside its domain, BW756 race, BW757 construct that the interpreter cannot run,
    BW758 view that does not fit its region, BW759 shift amount out of range, BW760 invalid `order`,
    BW761 race between threads of a block, BW762 barrier that not all threads reach, BW763 access to
    memory that an asynchronous copy is using, BW764 warp operation without all its lanes, BW765
    wait that never ends.
    """
    module = program if isinstance(program, IRModule) else None
    func = module[entry] if module is not None else program
    if not isinstance(func, PrimFunc):
        what = repr(entry) if module is not None else "the program"
        raise InterpretError(
            f"{what} is a {type(func).__name__}; the interpreter runs tensor programs",
            code="BW757",
            help="lower a graph function first; for a schedule, pass its .func",
        )
    if order is not None and order != "reverse" and not isinstance(order, int):
        raise InterpretError(f'order={order!r} is not None, "reverse" or a seed', code="BW760")
    compiled = program_of(func)
    state = RunState(
        module,
        vectorize=vectorize,
        races=races,
        order=order,
        packed={**_packed, **(packed or {})},
        report=report,
        limit=limit,
        call_entry=call_entry,
    )
    written = written_buffers(func, module)
    arrays, values = match_arguments(compiled, args, scalars, written)
    fresh = _output_buffers(func, outputs)
    pairs = list(zip(compiled.buffers, arrays, strict=True))
    in_place = bind_symbols(compiled, state, pairs, values)
    env = compiled.environment(state, values)
    check_shapes(compiled, pairs, env)
    if _overlapping(func, arrays, written):
        state.vectorize = False  # lanes require distinct memory
    loaned = [
        BorrowedArray(a, b.dtype, fits, b in fresh, b in written)
        for (b, a), fits in zip(pairs, in_place, strict=True)
    ]
    compiled.run(env, [loan.pointer for loan in loaned])
    for loan in loaned:
        loan.copy_back()


def _output_buffers(func: PrimFunc, outputs: int | Collection[str] | None) -> set[Buffer]:
    """Parameters that are uninitialized at entry."""
    if outputs is None:
        return set(func.outputs)
    if isinstance(outputs, int):
        return set(func.buffers[len(func.buffers) - outputs :])
    names = {b.name: b for b in func.buffers}
    unknown = [n for n in outputs if n not in names]
    if unknown:
        raise InterpretError(
            f"{func.name} has no buffer parameter {unknown[0]!r}",
            code="BW701",
            help=f"buffers: {', '.join(names)}",
        )
    return {names[n] for n in outputs}


def _overlapping(func: PrimFunc, arrays: Sequence[Array], written: set[Buffer]) -> bool:
    """Whether a written argument overlaps another; an error unless the function allows it."""
    pairs = list(zip(func.buffers, arrays, strict=True))
    result = False
    for k, (buffer, array) in enumerate(pairs):
        for other, second in pairs[k + 1 :]:
            if buffer not in written and other not in written:
                continue
            if not np.may_share_memory(array, second):
                continue
            if func.attrs.get(NOALIAS) is not False:
                raise InterpretError(
                    f"{func.name}: {buffer.name} and {other.name} overlap in memory and "
                    "one of them is written",
                    code="BW706",
                    help='pass separate arrays, or declare "tir.noalias": False',
                )
            result = True
    return result


# ---------------------------------------------------------------------------- calls in the module
def call_global(state: RunState, name: str, args: list[Any]) -> None:
    """Run another function of the module; arguments are pointers, scalars, then symbols."""
    func = state.module[name] if state.module is not None and name in state.module else None
    if not isinstance(func, PrimFunc):
        raise InterpretError(
            f"call of unknown tensor program {name!r}",
            code="BW757",
            help="interpret the module that holds it",
        )
    compiled = program_of(func)
    formals, count = compiled.given, len(compiled.buffers)
    if len(args) != count + len(formals):
        raise InterpretError(
            f"{name} takes {count} buffers and {len(formals)} numbers, the call "
            f"passes {len(args)} arguments",
            code="BW701",
        )
    values = {
        v: int(a) if v.dtype.is_int else a for v, a in zip(formals, args[count:], strict=True)
    }
    for buffer, pointer in zip(compiled.buffers, args, strict=False):
        if not isinstance(pointer, Pointer):
            raise InterpretError(
                f"{name}: {buffer.name} must be an address, not {type(pointer).__name__}",
                code="BW702",
                help="pass the addresses of all buffers first, then scalars and sizes",
            )
    check_ranges(compiled, values)
    env = compiled.environment(state, values)
    _check_apart(state, compiled, env, args)
    compiled.run(env, args[:count])


def _check_apart(
    state: RunState, compiled: CompiledFunction, env: Env, pointers: Sequence[Pointer]
) -> None:
    """Check that no argument of a call in the module overlaps one that the function writes."""
    func, known = compiled.func, list[tuple[Buffer, Pointer, int, int]]()
    if func.attrs.get(NOALIAS) is False or IN_PLACE in func.attrs:
        return
    for buffer, sizes, pointer in zip(compiled.buffers, compiled.shapes, pointers, strict=False):
        shape = [int(size(env)) for size in sizes]
        if min(shape, default=1) <= 0 or not isinstance(pointer.byte, int):
            continue
        steps = [int(step(env)) for step in compiled.strides[buffer]]
        last = [(n - 1) * step for n, step in zip(shape, steps, strict=False)]
        count = sum(last) + 1 if steps else math.prod(shape)
        end = pointer.byte + count * buffer.dtype.nbytes * buffer.dtype.lanes
        for other, place, low, high in known:
            if place.storage is not pointer.storage or low >= end or pointer.byte >= high:
                continue
            if not {buffer, other}.isdisjoint(written_buffers(func, state.module)):
                raise InterpretError(
                    f"{func.name}: {other.name} and {buffer.name} overlap in memory and "
                    "one of them is written",
                    code="BW706",
                    help=f'pass separate memory, or declare "tir.noalias": False in {func.name}',
                )
        known.append((buffer, pointer, pointer.byte, end))


def call_entry(state: RunState, name: str, args: list[Any], depth: int) -> Any:
    """Call a host program with Python values, and return its results: one, or a tuple."""
    assert state.module is not None
    func: PrimFunc = state.module[name]
    compiled, slots = program_of(func), func.attrs.get(OBJECT_RESULTS, {})
    mapped, outputs = dict(func.buffer_map), set(func.outputs)
    results: dict[Any, Any] = {v: Slot() for v in func.params if v.name in slots}
    values: dict[Var, Any] = dict(results)
    given = iter(args)
    pairs: list[tuple[Buffer, Array]] = []
    for param in func.params:
        if param.name == func.attrs.get(CALL_DEPTH):
            values[param] = depth
        elif param in mapped and mapped[param] not in outputs:
            pairs.append(
                (mapped[param], array_argument(func, mapped[param], next(given), written=False))
            )
        elif param not in mapped and param not in results:
            values[param] = scalar_argument(func, param, next(given))
    in_place = bind_symbols(compiled, state, pairs, values)
    env = compiled.environment(state, values)
    check_shapes(compiled, pairs, env)
    loans = {
        b: BorrowedArray(a, b.dtype, fits, fresh=False, written=False)
        for (b, a), fits in zip(pairs, in_place, strict=True)
    }
    for buffer, shape in zip(compiled.buffers, compiled.shapes, strict=True):
        if buffer in outputs:
            array = np.empty(tuple(n(env) for n in shape), buffer.dtype.numpy())
            loans[buffer] = BorrowedArray(array, buffer.dtype, True, fresh=True, written=True)
    compiled.run(env, [loans[b].pointer for b in compiled.buffers])
    found = [loans[b].array for b in func.outputs]
    for var, slot in sorted(results.items(), key=lambda item: slots[item[0].name]):
        found.insert(slots[var.name], slot.value)
    return found[0] if len(found) == 1 else tuple(found)
