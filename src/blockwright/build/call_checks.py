"""Checks of calls between tensor programs, inserted before they are lowered.

Before::

    Module.f(T.address_of(A[k]), n - 3)

After, in a build with `sanitize=["bounds"]` (other builds check the ranges of numbers only)::

    assert n - 3 >= 0, "BW708: call of f: n is %d, …"
    assert k * 4 >= 0, "BW713: call of f: X leaves A"
    assert k * 4 + (n - 3) * 4 <= 32, "BW713: call of f: X leaves A"
    Module.f(T.address_of(A[k]), n - 3)

Host programs are written by the compiler and not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockwright import ir
from blockwright.analysis import symbol_facts
from blockwright.analysis.access.memory_span import laid_out_buffers
from blockwright.analysis.access.stable_values import is_pure
from blockwright.analysis.calling_convention import CallingConvention, calling_convention
from blockwright.analysis.canonical.pointers import fold_pointers
from blockwright.graph.passed_values import passed_memory, range_conditions
from blockwright.graph.program_calls import callee_name, program_calls
from blockwright.ir.attributes import IS_HOST


def with_call_checks(
    func: ir.PrimFunc, functions: Mapping[str, ir.Node], bounds: bool
) -> ir.PrimFunc:
    """A tensor program that checks what it passes to the others of its module.

    Args:
        func: a program whose calls are well-formed (see `call_problems`).
        functions: the functions of the module; bounds: whether memory is checked too.
    """
    if func.attrs.get(IS_HOST) or not program_calls(func):
        return func
    facts = symbol_facts(func)
    plain = fold_pointers(func)
    laid_out = laid_out_buffers(plain)

    def checked(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.Evaluate):
            return None
        call = node.value
        if not isinstance(call, ir.Call) or call.op != "call_global":
            return None
        name = callee_name(call)
        callee = None if name is None else functions.get(name)
        if not isinstance(callee, ir.PrimFunc):
            return None
        convention = calling_convention(callee)
        names, call = _with_named_operands(call)
        found = list(_ranges(callee, convention, call.args[1:]))
        if bounds:
            found += _memories(laid_out, callee.name, convention, call.args[1:])
        unknown = [check for check in found if not facts.prove(check.condition)]
        if not unknown:
            return None
        result = ir.seq([*unknown, ir.Evaluate(call, span=node.span)])
        for var, value in reversed(names):
            result = ir.LetStmt(var, value, result)
        return result

    body = ir.rewrite_bottom_up(plain.body, checked)
    return func if body is plain.body else ir.with_fixed_sorts(plain).replace(body=body)


def _with_named_operands(
    call: ir.Call,
) -> tuple[list[tuple[ir.Var, ir.Expr]], ir.Call]:
    """Names for the operands of a call if one has an effect, which checks must not repeat.

    Returns the names with their values in order, and the call with the names.
    """
    if all(map(is_pure, call.args)):
        return [], call
    names: list[tuple[ir.Var, ir.Expr]] = []

    def named(value: ir.Expr) -> ir.Expr:
        if isinstance(value, (ir.Var, ir.IntImm, ir.FloatImm, ir.StringImm)):
            return value
        if isinstance(value, ir.Call) and value.op == "address_of":
            return value.replace(args=tuple(map(named, value.args)))
        if isinstance(value, ir.BufferLoad) and value in elements:
            return value.replace(indices=tuple(map(named, value.indices)))
        names.append((ir.Var("operand", value.dtype), value))
        return names[-1][0]

    elements = {
        arg.args[0] for arg in call.args if isinstance(arg, ir.Call) and arg.op == "address_of"
    }
    return names, call.replace(args=tuple(map(named, call.args)))


def _ranges(
    callee: ir.PrimFunc, convention: CallingConvention, args: Sequence[ir.Expr]
) -> Iterator[ir.AssertStmt]:
    """Checks that sizes are not negative, and that all numbers are in their declared ranges."""
    numbers = (*convention.scalars, *convention.symbols)
    symbols = set(convention.symbols)
    for var, value in zip(numbers, args[len(convention.buffers) :], strict=True):
        if not var.type.is_int:
            continue
        for condition, words in range_conditions(callee, var, value, var in symbols):
            text = f"BW708: call of {callee.name}: {var.name} is %d, expected {words}"
            yield ir.AssertStmt(condition, f"{text}\nhelp: pass a number in range", (value,))


def _memories(
    laid_out: set[ir.Buffer], name: str, convention: CallingConvention, args: Sequence[ir.Expr]
) -> Iterator[ir.AssertStmt]:
    """Checks that buffers of the callee lie inside the buffers whose addresses are passed."""
    numbers = (*convention.scalars, *convention.symbols)
    sizes = dict(zip(numbers, args[len(convention.buffers) :], strict=True))
    for (_, buffer), pointer in zip(convention.buffers, args, strict=False):
        found = passed_memory(laid_out, buffer, pointer, sizes)
        if found is None:
            continue
        empty = [ir.compare(ir.EQ, extent, 0) for extent in found.extents]
        text = f"BW713: call of {name}: {buffer.name} leaves {found.memory.name}"
        for condition in (found.begins, found.ends):
            for each in empty:
                condition = ir.logical_or(each, condition)
            yield ir.AssertStmt(condition, text)
