"""Checks of the calls between the tensor programs of a module.

A call passes what `calling_convention` lists: the memory of each buffer, the scalars, and the
symbolic sizes. Nothing is converted: a number has the type of its parameter, and memory holds
elements of the callee's type, at least as many as its shape has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockwright import ir
from blockwright.analysis import symbol_facts
from blockwright.analysis.access.memory_span import (
    MemorySpan,
    byte_position,
    laid_out_buffers,
    memory_span,
    view_start,
)
from blockwright.analysis.calling_convention import CallingConvention, calling_convention
from blockwright.analysis.canonical.memory import may_overlap
from blockwright.analysis.canonical.pointers import address, memories, named_pointers
from blockwright.arith import Analyzer
from blockwright.graph.buffer_uses import uses_of_buffers
from blockwright.graph.passed_values import passed_memory, range_conditions
from blockwright.ir.attributes import IS_HOST
from blockwright.support import Diagnostic

_calls: ir.Rare[ir.Call] = ir.Rare(ir.Call)
_declarations: ir.Rare[ir.DeclBuffer] = ir.Rare(ir.DeclBuffer)


def program_calls(func: ir.PrimFunc) -> list[ir.Call]:
    """The calls of functions of the module in a tensor program, in order."""
    return [call for call in _calls.of(func.body) if call.op == "call_global"]


def callee_name(call: ir.Call) -> str | None:
    """The name of the called function; None for a malformed call."""
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ir.StringImm) else None


def called_programs(func: ir.PrimFunc, functions: Mapping[str, ir.Node]) -> list[str]:
    """Names of the tensor programs of the module that a tensor program calls."""
    names = dict.fromkeys(map(callee_name, program_calls(func)))
    return [n for n in names if n is not None and isinstance(functions.get(n), ir.PrimFunc)]


def call_problems(module: ir.IRModule, names: Sequence[str] | None = None) -> list[Diagnostic]:
    """All wrong calls in the tensor programs of a module, or in those of the given names."""
    chosen = module.functions if names is None else names
    programs = {n: f for n in chosen if isinstance(f := module.functions.get(n), ir.PrimFunc)}
    problems = [p for func in programs.values() for p in _problems(func, module.functions)]
    recursion = recursion_problem(programs)
    return problems if recursion is None else [*problems, recursion]


def reachable_programs(module: ir.IRModule, entry: str) -> list[str]:
    """The tensor programs that a run of the program `entry` may execute."""
    found, waiting = dict[str, None](), [entry]
    while waiting:
        name = waiting.pop()
        func = module.functions.get(name)
        if name not in found and isinstance(func, ir.PrimFunc):
            found[name] = None
            waiting += called_programs(func, module.functions)
    return list(found)


def recursion_problem(functions: Mapping[str, ir.PrimFunc]) -> Diagnostic | None:
    """BW621 for tensor programs that call themselves; host programs count their depth."""
    done: set[str] = set()

    def visit(name: str, active: tuple[str, ...]) -> Diagnostic | None:
        if name in active:
            cycle = (*active[active.index(name) :], name)
            if all(functions[each].attrs.get(IS_HOST) for each in cycle):
                return None
            text = f"recursive calls between functions: {' → '.join(cycle)}"
            return Diagnostic("BW621", text, None, "tensor programs cannot recurse")
        if name not in done:
            for callee in called_programs(functions[name], functions):
                problem = visit(callee, (*active, name))
                if problem is not None:
                    return problem
            done.add(name)
        return None

    return next((p for name in functions if (p := visit(name, ())) is not None), None)


def _problems(func: ir.PrimFunc, functions: Mapping[str, ir.Node]) -> Iterator[Diagnostic]:
    calls = program_calls(func)
    if not calls:
        return
    checker, skipped = _CallChecker(func), _skipped_calls(func)
    for call in calls:
        name = callee_name(call)
        callee = None if name is None else functions.get(name)
        if isinstance(callee, ir.PrimFunc):
            runs = call not in skipped
            for message, help in (
                *checker.problems(callee, call.args[1:], runs),
                *(checker.overlaps(callee, call.args[1:], functions) if runs else ()),
            ):
                text = f"{func.name}: call of {name}: {message}"
                yield Diagnostic("BW260", text, call.span or func.span, help)
            continue
        known = ", ".join(sorted(n for n, f in functions.items() if isinstance(f, ir.PrimFunc)))
        yield Diagnostic(
            "BW616",
            f"{func.name}: call of {name!r}, which is not a tensor program of the module",
            call.span or func.span,
            f"tensor programs of the module: {known}",
        )


def _skipped_calls(func: ir.PrimFunc) -> set[ir.Call]:
    """The calls that constant conditions and loops without iterations exclude.

    A loop over an axis without elements has such calls; their addresses need not be right.
    """
    dead: list[ir.Stmt | None] = []
    for node in ir.collect(func.body, ir.Stmt):
        if isinstance(node, ir.For):
            extent = ir.const_int(node.extent)
            dead += [node.body] if extent is not None and extent <= 0 else []
        elif isinstance(node, ir.IfThenElse):
            flag = ir.const_int(node.condition)
            dead += [] if flag is None else [node.else_case if flag else node.then_case]
    return {call for part in dead if part is not None for call in _calls.of(part)}


def written_by(
    func: ir.PrimFunc,
    functions: Mapping[str, ir.Node],
    active: frozenset[ir.PrimFunc] = frozenset(),
) -> set[ir.Buffer]:
    """Parameter buffers that a program writes by its statements, by the signatures of its blocks,
    or by programs that it calls; `active` are those that call it."""
    active |= {func}
    result = set(uses_of_buffers(func).written)
    named = named_pointers(func)
    for call in program_calls(func):
        callee = functions.get(callee_name(call) or "")
        if not isinstance(callee, ir.PrimFunc) or callee in active:
            continue
        written = written_by(callee, functions, active)
        buffers = [buffer for _, buffer in calling_convention(callee).buffers]
        for buffer, pointer in zip(buffers, call.args[1:], strict=False):
            if buffer in written:
                result.update(m for m in memories(pointer, named) if isinstance(m, ir.Buffer))
    return result & set(func.buffers)


class _CallChecker:
    """Compares the arguments of the calls in one function with what the callees take."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.named = named_pointers(func)
        self.mapped = dict(func.buffer_map)
        self.laid_out = laid_out_buffers(func)
        declared = () if func.attrs.get(IS_HOST) else _declarations.of(func.body)
        starts = {node.buffer: view_start(node) for node in declared}
        self.starts = {view: start for view, start in starts.items() if start is not None}
        self._facts: Analyzer | None = None

    def problems(
        self, callee: ir.PrimFunc, args: Sequence[ir.Expr], runs: bool
    ) -> Iterator[tuple[str, str | None]]:
        """Messages about the arguments, with remedies.

        Values and sizes are compared only if the call `runs`.
        """
        convention = calling_convention(callee)
        numbers = (*convention.scalars, *convention.symbols)
        count = len(convention.buffers) + len(numbers)
        order = f"pass {_order(convention)}"
        if len(args) != count:
            yield f"it takes {count} argument{'s' * (count != 1)}, got {len(args)}", order
            return
        pointers, values = args[: -len(numbers) or None], args[count - len(numbers) :]
        symbols = set(convention.symbols)
        kinds = [a.dtype.is_handle and not isinstance(a, ir.StringImm) for a in args]
        wanted = [True] * len(pointers) + [var.type.is_handle for var in numbers]
        wrong = next((k for k in range(count) if kinds[k] is not wanted[k]), None)
        if wrong is not None:
            what = "the address of a buffer" if wanted[wrong] else "a number"
            yield f"argument {wrong} is {_kind(args[wrong])}, not {what}", order
            return
        for var, value in zip(numbers, values, strict=True):
            if value.dtype is not var.type:
                yield (
                    f"{var.name} is {var.type}, and its value is {value.dtype}",
                    f'convert it: T.Cast("{var.type}", …)',
                )
                continue
            if var.type.is_int and runs:
                problem = self._out_of_range(callee, var, value, var in symbols)
                if problem is not None:
                    yield problem
        sizes = dict(zip(numbers, values, strict=True))
        for (_, buffer), pointer in zip(convention.buffers, pointers, strict=True):
            problem = self._memory_problem(buffer, pointer, sizes, runs)
            if problem is not None:
                yield problem

    def _memory_problem(
        self, buffer: ir.Buffer, pointer: ir.Expr, sizes: dict[ir.Var, ir.Expr], runs: bool
    ) -> tuple[str, str] | None:
        """Why the memory behind a pointer does not hold a buffer of the callee."""
        if isinstance(pointer, ir.Var) and pointer in self.mapped:
            own = self.mapped[pointer].name
            return f"{pointer.name} is the argument {own}, not its memory", f"pass {own}.data"
        apart = () if self.func.attrs.get(IS_HOST) else memories(pointer, self.named)
        for memory in apart:  # host programs pass parts of one arena of bytes
            if isinstance(memory, ir.Buffer) and memory.dtype.element is not buffer.dtype.element:
                return (
                    f"{buffer.name} holds {buffer.dtype}, and {memory.name} holds {memory.dtype}",
                    f"declare a view of that type: T.decl_buffer(shape, "
                    f'"{buffer.dtype}", data={memory.name}.data)',
                )
        return self._outside(buffer, pointer, sizes) if runs else None

    def overlaps(
        self, callee: ir.PrimFunc, args: Sequence[ir.Expr], functions: Mapping[str, ir.Node]
    ) -> Iterator[tuple[str, str]]:
        """Pairs of buffers that a call provably passes overlapping memory, one of them written."""
        convention = calling_convention(callee)
        numbers = (*convention.scalars, *convention.symbols)
        buffers = [buffer for _, buffer in convention.buffers]
        if len(args) != len(buffers) + len(numbers) or may_overlap(callee):
            return
        if self.func.attrs.get(IS_HOST):
            return  # memory planning decides which arguments share memory
        sizes = dict(zip(numbers, args[len(buffers) :], strict=True))
        known: list[tuple[ir.Buffer, ir.Buffer, MemorySpan]] = []
        for buffer, pointer in zip(buffers, args, strict=False):
            found = self._span(buffer, pointer, sizes)
            if found is None:
                continue
            memory, span = found
            for other, place, before in known:
                if place is not memory or not self._meet(span, before):
                    continue
                if not {buffer, other}.isdisjoint(written_by(callee, functions)):
                    yield (
                        f"{other.name} and {buffer.name} overlap in the memory of "
                        f"{memory.name}, and one of them is written",
                        f'pass separate memory, or declare "tir.noalias": False in {callee.name}',
                    )
            known.append((buffer, memory, span))

    def _span(
        self, buffer: ir.Buffer, pointer: ir.Expr, sizes: Mapping[ir.Var, ir.Expr]
    ) -> tuple[ir.Buffer, MemorySpan] | None:
        """The buffer without a source that a callee's buffer lies in, and the bytes that it takes
        there; None if they are not known, or may be none."""
        place, part = address(pointer), memory_span(buffer, sizes)
        start = None if place is None else byte_position(place)
        if place is None or part is None or start is None:
            return None
        memory = place.buffer
        while memory in self.starts:
            memory, before = self.starts[memory]
            start = ir.add(before, start)
        low, high = ir.add(start, part.low), ir.add(start, part.high)
        extents = (*part.extents, *(ir.substitute(n, dict(sizes)) for n in buffer.shape))
        if not all(self._proves(ir.compare(ir.GT, n, 0)) for n in extents):
            return None
        return memory, MemorySpan(low, high, ())

    def _meet(self, a: MemorySpan, b: MemorySpan) -> bool:
        ends = ir.compare(ir.LT, a.low, b.high), ir.compare(ir.LT, b.low, a.high)
        return all(map(self._proves, ends))

    def _outside(
        self, buffer: ir.Buffer, pointer: ir.Expr, sizes: Mapping[ir.Var, ir.Expr]
    ) -> tuple[str, str] | None:
        """Why a buffer of the callee provably leaves the buffer that a pointer points into."""
        found = passed_memory(self.laid_out, buffer, pointer, sizes)
        if found is None:
            return None
        if self._proves(ir.compare(ir.LT, found.start, 0)):
            return (
                f"{buffer.name} begins before {found.memory.name}",
                "pass the address of an element",
            )
        never_empty = all(self._proves(ir.compare(ir.GT, n, 0)) for n in found.extents)
        if never_empty and self._proves(ir.logical_not(found.ends)):
            return (
                f"{buffer.name} is larger than {found.memory.name}"
                + " from there on" * (not ir.is_const_int(found.start, 0)),
                "pass memory of at least that size, or smaller sizes",
            )
        if self._proves(ir.logical_not(found.begins)):
            return f"{buffer.name} begins before {found.memory.name}", "correct its strides"
        return None

    def _out_of_range(
        self, callee: ir.PrimFunc, var: ir.Var, value: ir.Expr, size: bool
    ) -> tuple[str, str] | None:
        """Why a number is provably outside the range that the callee declares."""
        for condition, words in range_conditions(callee, var, value, size):
            if self._proves(ir.logical_not(condition)):
                return f"{var.name} is {words}, and its value is not", "pass a number in range"
        return None

    def _proves(self, condition: ir.Expr) -> bool:
        if self._facts is None:
            self._facts = symbol_facts(self.func)
        return self._facts.prove(condition)


def _kind(value: ir.Expr) -> str:
    if isinstance(value, ir.StringImm):
        return "a text"
    return "an address" if value.dtype.is_handle else f"a {value.dtype}"


def _order(convention: CallingConvention) -> str:
    """What a caller passes, in order."""
    parts = [f"the address of {buffer.name}" for _, buffer in convention.buffers]
    numbers = (*convention.scalars, *convention.symbols)
    parts += [f"{'the address ' * v.type.is_handle}{v.name}: {v.type}" for v in numbers]
    return ", ".join(parts) or "nothing"
