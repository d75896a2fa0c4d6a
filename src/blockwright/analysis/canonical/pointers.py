"""Named pointers: resolution of the memory they point to, and inlining of their definitions.

Before::

    p: T.handle = T.address_of(A[0])
    D = T.decl_buffer((64,), data=p)

After::

    D = T.decl_buffer((64,), data=T.address_of(A[0]))
"""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir

_names: ir.Rare[ir.LetStmt] = ir.Rare(ir.LetStmt)


def named_pointers(func: ir.PrimFunc) -> dict[ir.Var, ir.Expr]:
    """Let-bound pointers of a function with their values, in program order."""
    return {n.var: n.value for n in _names.of(func.body) if n.var.type.is_handle}


def memories(pointer: ir.Expr, named: Mapping[ir.Var, ir.Expr]) -> list[ir.Buffer | ir.Var]:
    """Buffers that a pointer may point into, according to the addresses it is computed from.

    For a pointer passed to the program, or returned by a call, the variable itself.
    """
    result: dict[ir.Buffer | ir.Var, None] = {}
    stack: list[ir.Node] = [pointer]
    while stack:
        node = stack.pop()
        if isinstance(node, ir.Call) and node.op in ("address_of", "tensor"):
            result |= dict.fromkeys(p.buffer for p in node.args if isinstance(p, ir.BufferLoad))
        elif isinstance(node, ir.Var):
            if node.type.is_handle:
                behind = memories(named[node], named) if node in named else ()
                result |= dict.fromkeys(behind or (node,))
        elif isinstance(node, ir.Let):
            stack.append(ir.substitute(node.body, {node.var: node.value}))
        elif isinstance(node, ir.Select) or getattr(node, "op", "") == "if_then_else":
            stack.extend(node.children()[:0:-1])  # not the condition
        elif isinstance(node, ir.Call) and node.op.startswith("call_"):
            known = (memories(arg, named) for arg in node.args)
            result |= dict.fromkeys(m for each in known for m in each if isinstance(m, ir.Buffer))
        elif not isinstance(node, ir.BufferLoad):
            stack.extend(node.children()[::-1])
    return list(result)


def address(pointer: ir.Expr) -> ir.BufferLoad | None:
    """The element whose address an expression takes; None for any other expression."""
    place = pointer.args[0] if isinstance(pointer, ir.Call) and pointer.op == "address_of" else None
    return place if isinstance(place, ir.BufferLoad) else None


def may_change(index: ir.Expr) -> bool:
    """Whether an index may change although its variables do not."""
    return any(isinstance(part, (ir.BufferLoad, ir.Call)) for part in ir.walk(index))


def fold_pointers(func: ir.PrimFunc) -> ir.PrimFunc:
    """Inline the addresses bound to pointer names; see the module docstring.

    A pointer keeps its name if its index may change, and if it is returned by a call.
    """
    steady: dict[ir.Var, ir.Expr] = {}
    for var, value in named_pointers(func).items():
        pointer = ir.substitute(value, steady)
        place = address(pointer)
        fixed = place is not None and not any(map(may_change, place.indices))
        if fixed or isinstance(pointer, ir.Var):
            steady[var] = pointer
    if not steady:
        return func

    def unnamed(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.SeqStmt):
            return ir.seq(node.seq)
        return node.body if isinstance(node, ir.LetStmt) and node.var in steady else None

    return func.replace(body=ir.substitute(ir.rewrite_bottom_up(func.body, unnamed), steady))
