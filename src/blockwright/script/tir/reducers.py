"""Commutative reducers of the `T` dialect: declaration, and expansion of `reducer.step`."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis import builtin_name, builtin_reducer, declare_reducer, step, stores
from blockwright.ir.annotations import REDUCER
from blockwright.script.core import items_of
from blockwright.script.tir.blocks import current_block
from blockwright.script.tir.builder import Builder
from blockwright.script.tir.values import NodeValue, to_expr
from blockwright.support import ScriptError


class CommReducer(NodeValue):
    """The result of `T.comm_reducer`; `reducer.step(C[i], x)` combines a term into an element."""

    node: ir.CommReducer

    def step(self, target: Any, value: Any) -> None:
        """Emit target = combine(target, value), starting at the identity; tuples componentwise.

        This defines the block's initial value and body. A combiner that is not builtin is stored in
        the annotation "reducer" of the block.
        """
        frame = current_block("reducer.step")
        builder = Builder.current()
        targets, values = items_of(target), items_of(value)
        kinds = self.node.dtypes
        if frame.init is not None or not all(isinstance(t, ir.BufferLoad) for t in targets):
            raise ScriptError(
                "reducer.step takes elements of buffers, once in a block", code="BW107"
            )
        if not len(targets) == len(values) == len(kinds):
            raise ScriptError(
                f"the reducer has {len(kinds)} components; reducer.step got "
                f"{len(targets)} elements and {len(values)} values",
                code="BW106",
            )
        for element, kind in zip(targets, kinds, strict=True):
            if element.dtype is not kind:
                raise ScriptError(
                    f"{element.buffer.name} holds {element.dtype}, the reducer combines {kind}",
                    code="BW107",
                    help="use an identity of the buffer's type",
                )
        terms = [
            ir.cast_to(to_expr(v, k if isinstance(v, (int, float)) else None), k)
            for v, k in zip(values, kinds, strict=True)
        ]
        frame.init = stores(targets, self.node.identity)
        builder.emit(step(self.node, targets, terms).replace(span=builder.span))
        if not builtin_name(self.node):
            frame.annotations[REDUCER] = self.node


def comm_reducer(combine: Any, identity: Any) -> CommReducer:
    """`T.comm_reducer(lambda x, y: x + y, T.float32(0))`: a commutative reducer.

    If the identity is a tuple, `combine` receives all components of the left operand, then those of
    the right one (or two tuples), and returns a tuple. `T.comm_reducer("argmax", ["float32",
    "int64"])` selects a builtin reducer and the types of its components.
    """
    if isinstance(combine, str):
        return CommReducer(builtin_reducer(combine, items_of(identity)))
    nothing = [to_expr(e) for e in items_of(identity)]
    return CommReducer(declare_reducer(combine, nothing))


__all__ = ["comm_reducer"]
