"""Loops and blocks of the `T` dialect: `T.serial`, `T.grid`, `T.block`, `T.axis`, …."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis.access.stable_values import is_pure
from blockwright.ir import (
    Expr,
    ForKind,
    IterType,
    Range,
    Var,
)
from blockwright.ir.annotations import with_current_keys
from blockwright.script.core import sequence_of
from blockwright.script.tir.builder import (
    BlockFrame,
    Builder,
    InitFrame,
    LoopNest,
    LoopSpec,
    frozen,
)
from blockwright.script.tir.values import (
    NodeValue,
    extent_of,
    index_types,
    is_number,
    regions,
    to_expr,
    to_index,
)
from blockwright.support import ScriptError


# ------------------------------------------------------------------------------------------ loops
def _loop(
    kind: ForKind,
    start: Any,
    stop: Any,
    annotations: Mapping[str, Any] | None,
    thread: str = "",
    step: Any = None,
) -> LoopNest:
    begin: tuple[Var, Expr] | None = None
    stride = 1 if step is None else _constant_step(step)
    if stride != 1:
        return _strided(kind, *((0, start) if stop is None else (start, stop)), stride, annotations)
    if stop is None:
        extent = to_index(start)
        low: Expr = ir.const(0, extent.dtype)
    else:
        low, high = index_types((start, stop))
        low, begin = _named(low, high, repeated=False)
        extent = extent_of(low, high)
    if not extent.dtype.is_int:
        raise ScriptError(f"a loop over {extent.dtype} is not possible", code="BW107")
    return LoopNest([LoopSpec(low, extent, kind, thread, annotations, start=begin)])


def _named(start: Expr, stop: Expr, *, repeated: bool) -> tuple[Expr, tuple[Var, Expr] | None]:
    """The start of a loop, or a name for it and what the name stands for.

    The start is part of the extent, and with a step of the index (`repeated`). It is evaluated
    once, before the stop, whatever the stop and the body change.
    """
    effects = [not is_pure(bound) for bound in (start, stop)]
    defines = bool(ir.collect(start, ir.Let))
    loads = bool(ir.collect(start, ir.BufferLoad))
    written = not repeated and isinstance(stop, ir.Add) and ir.structural_equal(stop.a, start)
    if written and not effects[0]:  # as the printer writes a start and an extent
        return start, None
    if not (effects[0] or defines or (loads and (repeated or effects[1]))):
        return start, None
    begin = Builder.current().define(Var("start", start.dtype))
    return begin, (begin, start)


def _constant_step(step: Any) -> int:
    value = ir.const_int(step) if isinstance(step, Expr) else step
    if not is_number(value) or value == 0:
        raise ScriptError(
            "the step of a loop is a constant other than 0",
            code="BW106",
            help="loop over the count, and multiply the index: i * step",
        )
    return int(value)


def _strided(
    kind: ForKind, start: Any, stop: Any, step: int, annotations: Mapping[str, Any] | None
) -> LoopNest:
    """A loop over the number of steps; the index in the script is `start + i * step`."""
    low, high = index_types((start, stop))
    low, begin = _named(low, high, repeated=True)
    first, last = (low, high) if step > 0 else (high, low)
    span, size = extent_of(first, last), abs(step)
    if isinstance(span, ir.IntImm):
        count: Expr = ir.const(max(0, -(-span.value // size)), span.type)
    else:
        count = ir.floordiv(
            ir.add(span, ir.const(size - 1, span.dtype)), ir.const(size, span.dtype)
        )
    nest = _loop(kind, count, None, annotations)

    def index(var: Var) -> Expr:
        return ir.add(low, ir.mul(var, ir.const(step, low.dtype)))

    nest.specs[0].index, nest.specs[0].start = index, begin
    return nest


Annotations = Mapping[str, Any] | None


def serial(
    start: Any, stop: Any = None, *, annotations: Annotations = None, step: Any = None
) -> LoopNest:
    """A serial loop over [0, start) or [start, stop), with an optional constant step."""
    return _loop(ForKind.SERIAL, start, stop, annotations, step=step)


def parallel(
    start: Any, stop: Any = None, *, annotations: Annotations = None, step: Any = None
) -> LoopNest:
    """A loop whose iterations run on parallel threads."""
    return _loop(ForKind.PARALLEL, start, stop, annotations, step=step)


def vectorized(
    start: Any, stop: Any = None, *, annotations: Annotations = None, step: Any = None
) -> LoopNest:
    """A loop that is lowered to vector instructions."""
    return _loop(ForKind.VECTORIZED, start, stop, annotations, step=step)


def unroll(
    start: Any, stop: Any = None, *, annotations: Annotations = None, step: Any = None
) -> LoopNest:
    """A loop that is fully unrolled."""
    return _loop(ForKind.UNROLLED, start, stop, annotations, step=step)


def thread_binding(
    start: Any, stop: Any = None, thread: str = "", *, annotations: Mapping[str, Any] | None = None
) -> LoopNest:
    """A loop bound to a thread axis such as "threadIdx.x"."""
    if isinstance(stop, str):  # TVM's order: the axis is the second argument
        stop, thread = None, stop
    return _loop(ForKind.THREAD_BINDING, start, stop, annotations, thread)


def grid(*extents: Any) -> LoopNest:
    """Nested serial loops from zero."""
    if not extents:
        raise ScriptError("T.grid needs at least one extent", code="BW106")
    specs = [_loop(ForKind.SERIAL, e, None, None).specs[0] for e in extents]
    return LoopNest(specs, grid=True)


# ----------------------------------------------------------------------------------------- blocks
class AxisDomain:
    """An iterator domain with its kind, for the list form of `T.block`."""

    def __init__(self, domain: Range, kind: IterType) -> None:
        self.domain, self.kind = domain, kind


def _domain(spec: Any, like: Any = None) -> Range:
    """Convert `n` to [0, n) and `(a, b)` to [a, b); numbers get the type of the bound value."""
    if isinstance(spec, Range):
        return spec
    pair = sequence_of(spec)
    if pair is not None:
        if len(pair) != 2:
            raise ScriptError("a domain is an extent or a pair (begin, end)", code="BW107")
        low, high = index_types([*pair, like] if isinstance(like, Expr) else pair)[:2]
        return Range(low, extent_of(low, high))
    if is_number(spec) and isinstance(like, Expr) and like.dtype.is_int:
        extent = ir.const(spec, like.dtype)
    else:
        extent = to_index(spec)
    return Range(ir.const(0, extent.dtype), extent)


def reduce_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.REDUCE)


def scan_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.SCAN)


def opaque_axis(begin: Any, end: Any) -> AxisDomain:
    return AxisDomain(_domain((begin, end)), IterType.OPAQUE)


def range_axis(begin: Any, end: Any = None) -> AxisDomain:
    """A spatial domain: an extent, or begin and end."""
    return AxisDomain(_domain(begin if end is None else (begin, end)), IterType.SPATIAL)


def block(
    first: Any = "", name: str | None = None, *, exec_scope: str = "", no_realize: bool = False
) -> BlockFrame:
    """`T.block("C")`; or `T.block([n, T.reduce_axis(0, k)], "C") as [i, j]`.

    In the second form, and whenever no axis has a value, a loop nest over the domains is generated.
    """
    domains: list[tuple[Range, IterType]] = []
    listed = sequence_of(first)
    if listed is not None:
        for item in listed:
            axis = item if isinstance(item, AxisDomain) else range_axis(item)
            domains.append((axis.domain, axis.kind))
        first = name or ""
    elif name is not None:
        raise ScriptError("T.block takes one name", code="BW106")
    if not isinstance(first, str):
        raise ScriptError("the name of a block is a string", code="BW106")
    return BlockFrame(first, domains, exec_scope)


def current_block(what: str) -> BlockFrame:
    return Builder.current(what).frame(BlockFrame, what, "directly in a block")


def bind(axis: Var, value: Any) -> None:
    """Bind an axis of the enclosing block to a value."""
    frame = current_block("T.bind")
    for position, item in enumerate(frame.iter_vars):
        if item.var is axis:
            frame.values[position] = to_expr(value, axis.dtype if is_number(value) else None)
            return
    raise ScriptError("T.bind needs an axis of this block", code="BW107")


class _Axis:
    """`T.axis`: declares block iterators."""

    def _declare(self, kind: IterType, domain: Any, value: Any, dtype: Any) -> Var:
        builder = Builder.current("T.axis")
        frame = builder.frame(BlockFrame, "T.axis", "directly in a block")
        if dtype is not None and is_number(domain):
            domain = ir.const(domain, dtype)
        node = None if value is None or is_number(value) else to_expr(value)
        dom = _domain(domain, node)
        if is_number(value):
            node = ir.const(value, dom.extent.dtype)
        return frame.axis(builder, builder.take_name("v"), dom, kind, node)

    def spatial(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.SPATIAL, domain, value, dtype)

    def reduce(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.REDUCE, domain, value, dtype)

    def scan(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.SCAN, domain, value, dtype)

    def opaque(self, domain: Any, value: Any = None, dtype: Any = None) -> Var:
        return self._declare(IterType.OPAQUE, domain, value, dtype)

    S, R = spatial, reduce

    def remap(self, kinds: str, values: Sequence[Any], dtype: Any = None) -> Any:
        """Declare an axis per loop variable, with the loop's domain: "S" spatial, "R" reduction."""
        builder = Builder.current("T.axis.remap")
        frame = builder.frame(BlockFrame, "T.axis.remap", "directly in a block")
        if len(kinds) != len(values) or set(kinds) - {"S", "R"}:
            raise ScriptError(
                f"T.axis.remap({kinds!r}, …) needs one S or R per loop variable, "
                f"{len(values)} here",
                code="BW106",
            )
        domains = {
            var: Range(spec.low, spec.extent)
            for nest in builder.frames
            if isinstance(nest, LoopNest)
            for var, spec in zip(nest.vars, nest.specs, strict=False)
        }
        out: list[Var] = []
        for kind, value in zip(kinds, values, strict=True):
            if not isinstance(value, Var) or value not in domains:
                raise ScriptError(
                    "T.axis.remap takes variables of loops around the block",
                    code="BW107",
                    help="write T.axis.spatial(extent, value)",
                )
            moved = [v.name for v in ir.collect(domains[value], Var) if v in domains]
            if moved:
                raise ScriptError(
                    f"loop {value.name} depends on loop {moved[0]}, but the domain of an axis must "
                    "not depend on loops",
                    code="BW107",
                    help=f"write T.axis.spatial(extent, {value.name}), or reduce, with the "
                    "maximum extent of the loop",
                )
            name = builder.take_name(f"v{value.name}")
            out.append(frame.axis(builder, name, domains[value], IterType(kind), value))
        return out if len(out) != 1 else out[0]


_Axis.__module__ = __name__


def where(predicate: Any) -> None:
    """Set the predicate of the block."""
    frame = current_block("T.where")
    if frame.predicate is not None:
        raise ScriptError("a block has one T.where", code="BW111", help="join them with `and`")
    frame.predicate = to_expr(predicate)


def reads(*items: Any) -> None:
    frame = current_block("T.reads")
    if frame.reads is not None:
        raise ScriptError("a block has one T.reads", code="BW111")
    frame.reads = regions(items)


def writes(*items: Any) -> None:
    frame = current_block("T.writes")
    if frame.writes is not None:
        raise ScriptError("a block has one T.writes", code="BW111")
    frame.writes = regions(items)


def block_attr(attrs: Mapping[str, Any]) -> None:
    result: dict[str, Any] = {
        k: v.node if isinstance(v, NodeValue) else v for k, v in attrs.items()
    }
    current_block("T.block_attr").annotations.update(frozen(with_current_keys(result)))


def init() -> InitFrame:
    """The initial statement of the block's reduction."""
    frame = current_block("T.init")
    if frame.init is not None:
        raise ScriptError("a block has one T.init", code="BW111")
    return InitFrame(frame)


axis = _Axis()
__all__ = [
    "axis", "bind", "block", "block_attr", "grid", "init", "opaque_axis", "parallel",
    "range_axis", "reads", "reduce_axis", "scan_axis", "serial", "thread_binding", "unroll",
    "vectorized", "where", "writes",
]  # fmt: skip
