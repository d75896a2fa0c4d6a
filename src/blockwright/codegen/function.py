"""Generate LLVM modules from lowered tensor programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from blockwright.analysis.calling_convention import (
    calling_convention,
    entry_inputs,
    tensor_results,
)
from blockwright.analysis.canonical.pointers import memories, named_pointers
from blockwright.codegen.abi.entry import emit_entry
from blockwright.codegen.llvm import scratch_plan
from blockwright.codegen.llvm.binding import Pipeline
from blockwright.codegen.llvm.context import FunctionContext, Memory, Options
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.ffi import SYMBOL_PREFIX
from blockwright.codegen.llvm.function_attributes import function_attributes
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.parallel import emit_parallel
from blockwright.codegen.llvm.stmt import StmtEmitter
from blockwright.codegen.llvm.types import define_rounding_to_half, value_type
from blockwright.codegen.llvm.values import int_const
from blockwright.graph.program_calls import called_programs, recursion_problem
from blockwright.ir import (
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    DeclBuffer,
    Expr,
    IRModule,
    PrimFunc,
    Rare,
    Sorts,
    StringImm,
    Var,
    is_atomic,
    value_variables,
)
from blockwright.ir.attributes import (
    FP_CONTRACT,
    IN_PLACE,
    IS_CLOSURE,
    IS_HOST,
    IS_PRIVATE,
    NNAN,
    NOALIAS,
    WORKSPACES,
)
from blockwright.support import BuildError
from blockwright.support.stack import deep
from blockwright.target import Target

_VERY_LARGE = 2_000_000
"""Size of a module's text in characters from which only the short list of passes is run, because
the full pipeline takes seconds for each such module. The short list omits loop-invariant code
motion of loads, among others, which can halve the speed, so kernels of strategies should be
smaller."""


class FunctionCode(msgspec.Struct, frozen=True):
    """LLVM text of one function of a program.

    Attributes:
        name: function name; target: what it is compiled for.
        symbol: symbol of its code; entry: exported symbol, if any.
        text: the LLVM module; pipeline: its optimization pipeline.
        parameters: argument names of the entry; written: positions of the arguments it writes.
        results: names of the results that it allocates or is given memory for.
        scalars: element types of the parameters that are scalars, by position.
        strided: positions of the arguments whose parameters declare strides.
    """

    name: str
    target: Target
    symbol: str
    entry: str | None
    text: str
    pipeline: Pipeline
    parameters: tuple[str, ...]
    written: tuple[int, ...]
    results: tuple[str, ...] = ()
    scalars: dict[int, str] = {}
    strided: tuple[int, ...] = ()


def symbol_of(name: str) -> str:
    """The symbol of a function's code; the prefix avoids clashes with the C library."""
    return f"bw.{name}"


def options_of(func: PrimFunc, target: Target) -> Options:
    """Floating-point and aliasing options from the function's attributes."""
    contract = func.attrs.get(FP_CONTRACT, "on")
    if contract not in ("on", "off"):
        raise BuildError(f"tir.fp_contract is {contract!r}", code="BW620", help='use "on" or "off"')
    return Options(
        contract=contract == "on",
        nnan=bool(func.attrs.get(NNAN, False)),
        noalias=bool(func.attrs.get(NOALIAS, True)),
        vector_bits=target.vector_bits,
    )


@deep
def emit_function(
    func: PrimFunc,
    name: str,
    target: Target,
    *,
    callees: Mapping[str, str] | None = None,
    written: Sequence[int] = (),
) -> FunctionCode:
    """Emit the LLVM module of one function and, unless it is private, its entry.

    Arguments: `callees` maps names of functions that it may call to their symbols; `written` holds
    the positions of the buffer parameters that it writes.
    """
    module = ModuleEmitter(target)
    convention = calling_convention(func)
    options = options_of(func, target)
    symbol = symbol_of(name)
    module.reserve(symbol)  # a recursive function calls itself
    noalias = "noalias" if options.noalias else ""
    numbers = (*convention.scalars, *convention.symbols)
    passed = ["ptr"] * len(convention.buffers) + [value_type(v.dtype) for v in numbers]
    shared: dict[str, int] = func.attrs.get(IN_PLACE, {})
    joined = {*map(int, shared), *shared.values()}
    marks = ["" if k in joined else noalias for k in range(len(convention.buffers))]
    marks += [""] * len(numbers)
    params = [(type_, f"a{i}") for i, type_ in enumerate(passed)]
    attributes = function_attributes(module, options)
    e = FunctionEmitter(module, symbol, "i32", params, attributes, "", marks)
    context = FunctionContext(e, options, Sorts(value_variables(func)), callees=callees or {})
    own = len(convention.buffers) - int(func.attrs.get(WORKSPACES, 0))
    for place, ((_, buffer), value) in enumerate(zip(convention.buffers, e.params, strict=False)):
        align = buffer.dtype.nbytes if place < own else scratch_plan.ALIGNMENT
        root = convention.buffers[shared.get(str(place), place)][1]
        context.buffers[buffer] = Memory(value, align, root)
    variables = e.params[len(convention.buffers) :]
    for var, value in zip(numbers, variables, strict=True):
        context.variables[var] = value
    context.nonnegative.update(v for v in convention.symbols if v.dtype.is_int)
    if func.attrs.get(IS_HOST):
        context.poll = e.stack(8, 8)
        e.store(int_const(0), context.poll, 8)
    StmtEmitter(context, emit_parallel).function_body(func.body)
    e.finish()
    define_rounding_to_half(module)
    entry = None if func.attrs.get(IS_PRIVATE, False) else SYMBOL_PREFIX + name
    if entry is not None or func.attrs.get(IS_CLOSURE):
        emit_entry(module, func, name, symbol, written)
    outputs, inputs = dict(tensor_results(func)), entry_inputs(func)
    place = {p: i for i, (p, _) in enumerate(convention.buffers)}
    positions = tuple(i for i, p in enumerate(inputs) if place.get(p, -1) in written)
    text = module.render()
    pipeline: Pipeline = "kernel" if len(text) > _VERY_LARGE else "host"
    parameters, results = (
        tuple(p.name.removesuffix("_handle") for p in params) for params in (inputs, outputs)
    )
    scalars = {i: p.dtype.name for i, p in enumerate(inputs) if p not in place}
    mapped = dict(convention.buffers)
    strided = tuple(i for i, p in enumerate(inputs) if p in mapped and mapped[p].strides)
    return FunctionCode(
        name,
        target,
        symbol,
        entry,
        text,
        pipeline,
        parameters,
        positions,
        results,
        scalars,
        strided,
    )


_effects: Rare[Call | DeclBuffer | BufferStore] = Rare(Call, DeclBuffer, BufferStore)


def written_parameters(module: IRModule) -> dict[str, frozenset[int]]:
    """Positions of the buffer parameters that each function writes, directly or through callees.

    Host programs may be recursive, so the sets grow until none changes.
    """
    functions = {n: f for n, f in module.functions.items() if isinstance(f, PrimFunc)}
    _check_recursion(functions)
    known: dict[str, frozenset[int]] = dict.fromkeys(functions, frozenset())
    waiting = list(functions)
    callers: dict[str, list[str]] = {}
    for name, func in functions.items():
        for callee in called_programs(func, functions):
            callers.setdefault(callee, []).append(name)
    while waiting:
        name = waiting.pop()
        result = _written(functions[name], known, functions)
        if result != known[name]:
            known[name] = result
            waiting += callers.get(name, ())
    return known


def _check_recursion(functions: Mapping[str, PrimFunc]) -> None:
    problem = recursion_problem(functions)
    if problem is not None:
        raise BuildError.collect([problem])


def _written(
    func: PrimFunc,
    known: Mapping[str, frozenset[int]],
    functions: Mapping[str, PrimFunc],
) -> frozenset[int]:
    root: dict[Buffer | Var, int] = {
        b: i for i, (_, b) in enumerate(calling_convention(func).buffers)
    }
    out: set[int] = set()
    named = named_pointers(func)

    def touch(place: Expr) -> None:
        reached = [place.buffer] if isinstance(place, BufferLoad) else memories(place, named)
        out.update(root[memory] for memory in reached if memory in root)

    for node in _effects.of(func.body):
        if isinstance(node, DeclBuffer):
            for memory in memories(node.source, named):
                if memory in root:
                    root[node.buffer] = root[memory]
        elif isinstance(node, BufferStore) and node.buffer in root:
            out.add(root[node.buffer])
        elif is_atomic(node):
            touch(node.args[0])
        elif isinstance(node, Call) and node.op in ("call_extern", "call_packed", "load_object"):
            for arg in node.args:
                touch(arg)
        elif isinstance(node, Call) and node.op == "call_global":
            callee = node.args[0]
            if isinstance(callee, StringImm) and callee.value in functions:
                for position in known[callee.value]:
                    touch(node.args[1 + position])
    return frozenset(out)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]*\Z")


def check_name(name: str) -> None:
    """Raise BW622 for a name that cannot be a symbol."""
    if not _NAME.match(name):
        raise BuildError(
            f"function name {name!r} cannot be exported",
            code="BW622",
            help="use letters, digits, underscores and dots",
        )
