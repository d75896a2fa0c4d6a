"""Statements of the program model: a store and the instances that run it."""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.model.instance_sets import InstanceSet
from blockwright.verify.model.positions import Taken
from blockwright.verify.model.tuples import Combination, Joint

COMBINERS: dict[type[ir.Expr], str] = {
    ir.Add: "+", ir.Mul: "*", ir.Min: "min", ir.Max: "max", ir.And: "and", ir.Or: "or",
}  # fmt: skip


class TupleUpdate(msgspec.Struct, frozen=True, eq=False):
    """The component updates of one step on a tuple."""

    step: Joint
    combination: Combination
    statements: list[Statement]


class Statement:
    """A store and the instances that run it.

    Attributes:
        frame: its instances.
        buffer: the buffer it writes.
        write: instance → element.
        combiner: the operation of an update; empty for a plain store.
        value: the stored or combined value; None for a parameter's content at entry.
        atomic: whether it is an atomic update.
        block: the enclosing block; `init` tells whether the store is in the block's init.
        taken: reads of index tables that were replaced by the stored formula.
    """

    def __init__(
        self,
        frame: InstanceSet,
        buffer: ir.Buffer,
        write: isl.Map,
        value: ir.Expr | None,
        combiner: str = "",
        atomic: bool = False,
        block: ir.Block | None = None,
        init: bool = False,
    ) -> None:
        self.frame = frame
        self.buffer = buffer
        self.write = write
        self.value = value
        self.combiner = combiner
        self.atomic = atomic
        self.block = block
        self.init = init
        self.plain: tuple[ir.Expr, ...] | None = None
        self.indices: tuple[ir.Expr, ...] = ()
        self.group: TupleUpdate | None = None
        self.taken: tuple[Taken, ...] = ()


def updated(store: ir.BufferStore, value: ir.Expr) -> tuple[str, ir.Expr]:
    """Split an update into combiner and combined value; ("", value) for any other store."""
    cls = type(value)
    combiner = COMBINERS.get(cls)
    if combiner is None:
        return "", value
    parts: list[ir.Expr] = []
    stack = [value]
    while stack:
        node = stack.pop()
        if type(node) is cls and isinstance(node, (ir.BinaryOp, ir.And, ir.Or)):
            stack += [node.b, node.a]
        else:
            parts.append(node)
    own = [k for k, part in enumerate(parts) if _is_element(part, store)]
    if len(own) != 1:
        return "", value
    del parts[own[0]]
    rest = parts[0]
    for part in parts[1:]:
        rest = cls(rest, part)  # pyright: ignore[reportCallIssue]
    return combiner, rest


def _is_element(node: ir.Expr, store: ir.BufferStore) -> bool:
    return (
        isinstance(node, ir.BufferLoad)
        and node.buffer is store.buffer
        and node.predicate is None
        and len(node.indices) == len(store.indices)
        and all(
            ir.structural_equal(ir.cast_to(mine, its.dtype), its)
            for mine, its in zip(node.indices, store.indices, strict=True)
        )
    )
