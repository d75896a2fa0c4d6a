"""Named pointers, `p: T.handle("float32") = A.data`, substituted at each use.

The program contains the address expression at each use, so that analyses find the buffer that it
belongs to: `T.decl_buffer(shape, data=p)` becomes `T.decl_buffer(shape, data=A.data)`, and a call
with argument `p` gets the address of an element of `A`. An index that is loaded from memory is
evaluated at the pointer's definition and bound by a let.

A pointer returned by a call is not an address expression and stays a variable.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.canonical.pointers import address, may_change
from blockwright.ir import BufferLoad, Call, Expr, Stmt, Var
from blockwright.script.tir.builder import Builder, ScopeFrame, Wrap
from blockwright.script.tir.classic import first_element
from blockwright.support import ScriptError


def name_pointer(value: Expr, default: str, var: Var | None = None) -> ScopeFrame:
    """A frame that defines a pointer name, or defines the previously declared variable `var`."""

    if isinstance(value, ir.IntImm):
        raise ScriptError(
            "a pointer is an address, not a number",
            code="BW107",
            help="write A.data or T.address_of(A[i, j])",
        )

    def make(name: str) -> tuple[Expr, Wrap]:
        builder = Builder.current()
        known = builder.define(Var(name, value.dtype, span=builder.span)) if var is None else var
        span, kept = builder.span, list[tuple[Var, Expr]]()
        written = _written_out(value, name, kept)
        if written is None:
            before = {p: reached for p, (_, reached) in builder.pointers.items()}
            builder.pointers[known] = None, _reached(ir.substitute(value, before))
            return known, lambda body: ir.LetStmt(known, value, body, span=span)
        builder.pointers[known] = written, written

        def wrap(body: Stmt) -> Stmt:
            for index, read in reversed(kept):
                body = ir.LetStmt(index, read, body, span=span)
            return ir.substitute(body, {known: written})

        return written, wrap

    return ScopeFrame(make, default)


def _written_out(pointer: Expr, name: str, kept: list[tuple[Var, Expr]]) -> Expr | None:
    """The address in a form that can be evaluated at any use; `kept` receives let bindings of
    indices. None if the pointer cannot be substituted."""
    place = address(pointer)
    if not isinstance(pointer, Call) or place is None:
        return pointer if isinstance(pointer, Var) else None
    indices: list[Expr] = []
    for index in place.indices:
        if may_change(index):
            named = Var(f"{name}_{len(kept)}", index.dtype)
            kept.append((named, index))
            index = named
        indices.append(index)
    return pointer.replace(args=(place.replace(indices=tuple(indices)),))


def _reached(value: Expr) -> Expr:
    """An expression that refers to all addresses from which a pointer was computed."""
    places = [call.args[0] for call in ir.collect(value, Call) if call.op == "address_of"]
    buffers = dict.fromkeys(place.buffer for place in places if isinstance(place, BufferLoad))
    return Call("call_extern", tuple(map(first_element, buffers)), value.dtype)
