"""Give the results of branches symbols where the branches return different sizes.

    if c:                                 if c:
        y = R.exp(x)     # (n,)               r = (pad(R.exp(x), n + m), sizes(n))
    else:                             →   else:
        y = z            # (m,)               r = (pad(z, n + m), sizes(m))
                                          s = match_cast(tensor_to_shape(r[1]), R.Shape((k,)))
                                          y = part(r[0], (k,))

Here `n + m` stands for the larger one. Both branches then return values of the same sizes. Where a
size has no limit outside of the branches, each branch returns a copy of its tensor as an object
instead, with the sizes (`passes.tensor_objects`); so does one where the other branch returns an
object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from blockwright import ir
from blockwright.graph.relate import joined
from blockwright.passes.emit_sizes import Emitter
from blockwright.passes.tensor_objects import (
    object_of,
    size_tensor,
    sized_object,
    tensor_of_object,
)
from blockwright.script.compute import Program

Finish = Callable[[ir.GraphExpr], ir.GraphExpr]


class Branch(msgspec.Struct):
    """A branch with its bindings, to which more may be added."""

    body: ir.SeqExpr
    bindings: list[ir.Binding]
    result: ir.GraphExpr

    def sequence(self) -> ir.SeqExpr:
        """The branch as an expression."""
        plain = all(block.dataflow for block in self.body.blocks)
        block = ir.BindingBlock(tuple(self.bindings), dataflow=plain)
        return ir.SeqExpr((block,) if self.bindings else (), self.result)


def merged(
    emitter: Emitter,
    condition: ir.GraphExpr,
    then: Branch,
    other: Branch,
    var: ir.GraphVar | None,
) -> ir.GraphVar:
    """Emit an `if`, and give its result symbols for sizes that the branches disagree on."""
    then.result, other.result, finish = _merged(
        emitter, (then, then.result), (other, other.result), "" if var is None else var.name
    )
    value = ir.If(condition, then.sequence(), other.sequence())
    if finish is None:
        return emitter.emit(value, "branch", var)
    chosen = emitter.emit(value, "branch")
    return emitter.emit(finish(chosen), "branch", var)


_At = tuple[Branch, ir.GraphExpr]
"""A value in a branch."""


def _merged(
    emitter: Emitter, one: _At, two: _At, name: str
) -> tuple[ir.GraphExpr, ir.GraphExpr, Finish | None]:
    """The values to return instead, and what makes the wanted one of the chosen one."""
    a, b = (emitter.info(value) for _, value in (one, two))
    if (
        isinstance(a, ir.TupleInfo)
        and isinstance(b, ir.TupleInfo)
        and len(a.fields) == len(b.fields)
    ):
        return _merged_tuple(emitter, one, two, len(a.fields), name)
    if isinstance(a, ir.ObjectInfo) != isinstance(b, ir.ObjectInfo):
        return _object(emitter, one), _object(emitter, two), None
    if not isinstance(a, ir.TensorInfo) or not isinstance(b, ir.TensorInfo):
        return one[1], two[1], None
    if a.shape is None or b.shape is None or a.rank != b.rank or a.dtype is not b.dtype:
        return one[1], two[1], None
    both = joined(a, b, emitter.deduced.analyzer)
    inside = [v for dim in a.shape for v in ir.free_vars(dim) if v not in emitter.deduced.scope]
    if isinstance(both, ir.TensorInfo) and both.shape is not None and not inside:
        return one[1], two[1], None
    names = [f"{name or 'size'}_{axis}" for axis in range(a.rank)]
    whole = [_larger(emitter, p, q) for p, q in zip(a.shape, b.shape, strict=True)]
    limits = tuple(size for size in whole if size is not None)
    if len(limits) < len(whole):
        first, second = (_sized_object(emitter, at) for at in (one, two))
        return first, second, lambda chosen: tensor_of_object(emitter, chosen, a, names)
    values = [_padded(emitter, at, limits) for at in (one, two)]

    def finish(chosen: ir.GraphExpr) -> ir.GraphExpr:
        symbols = list(map(emitter.symbol, names))
        emitter.sizes(emitter.field(chosen, 1, "sizes"), limits, symbols)
        padded = emitter.field(chosen, 0, "padded")
        return emitter.part(padded, ir.TensorInfo(tuple(symbols), a.dtype, device=a.device))

    return values[0], values[1], finish


def _merged_tuple(
    emitter: Emitter, one: _At, two: _At, count: int, name: str
) -> tuple[ir.GraphExpr, ir.GraphExpr, Finish | None]:
    fields = [_field(emitter, one, k) for k in range(count)]
    others = [_field(emitter, two, k) for k in range(count)]
    results = [
        _merged(emitter, (one[0], f), (two[0], g), f"{name}_{k}")
        for k, (f, g) in enumerate(zip(fields, others, strict=True))
    ]
    finishes = [finish for _, _, finish in results]
    if all(finish is None for finish in finishes):
        return one[1], two[1], None

    def finish(chosen: ir.GraphExpr) -> ir.GraphExpr:
        parts = [emitter.field(chosen, k, f"field{k}") for k in range(count)]
        pairs = zip(finishes, parts, strict=True)
        return ir.TupleExpr(tuple(p if do is None else do(p) for do, p in pairs))

    first, second = (tuple(values) for values in zip(*((a, b) for a, b, _ in results), strict=True))
    return ir.TupleExpr(first), ir.TupleExpr(second), finish


def _field(emitter: Emitter, at: _At, index: int) -> ir.GraphExpr:
    with emitter.inside(at[0].bindings):
        return emitter.field(at[1], index, f"field{index}")


def _object(emitter: Emitter, at: _At) -> ir.GraphExpr:
    """A value as an object; tensors are copied."""
    branch, value = at
    with emitter.inside(branch.bindings):
        info = emitter.info(value)
        return value if isinstance(info, ir.ObjectInfo) else object_of(emitter, value)


def _sized_object(emitter: Emitter, at: _At) -> ir.GraphExpr:
    branch, value = at
    with emitter.inside(branch.bindings):
        return sized_object(emitter, value)


def _larger(emitter: Emitter, a: ir.Expr, b: ir.Expr) -> ir.Expr | None:
    """A size that neither of two sizes exceeds, in symbols that are known outside of branches."""
    ends = [_outside(emitter, size) for size in (a, b)]
    if ends[0] is None or ends[1] is None:
        return None
    return emitter.deduced.analyzer.simplify(ir.maximum(*ends))


def _outside(emitter: Emitter, size: ir.Expr) -> ir.Expr | None:
    """A size in symbols that are known outside of branches, or its limit in these."""
    scope = emitter.deduced.scope
    if all(v in scope for v in ir.free_vars(size)):
        return size
    limit = emitter.limits.largest(size)
    return limit if limit is not None and all(v in scope for v in ir.free_vars(limit)) else None


def _padded(emitter: Emitter, at: _At, whole: Sequence[ir.Expr]) -> ir.GraphExpr:
    """A tuple of a value that is padded to the larger sizes, and its own sizes."""
    branch, value = at
    with emitter.inside(branch.bindings):
        info = emitter.info(value)
        assert isinstance(info, ir.TensorInfo)
        assert info.shape is not None
        program = _pad_program(info, whole)
        padded = emitter.call("pad", program, [value], [info.replace(shape=tuple(whole))], "padded")
        return ir.TupleExpr((padded, size_tensor(emitter, info.shape)))


def _pad_program(info: ir.TensorInfo, whole: Sequence[ir.Expr]) -> ir.PrimFunc:
    """The program that writes zeros after the elements of a tensor."""
    assert info.shape is not None
    assert info.dtype is not None
    program, zero = Program("pad"), ir.const(0, info.dtype)
    source, shape = program.param("source", info.shape, info.dtype), info.shape

    def element(*indices: ir.Expr) -> ir.Expr:
        pairs = zip(indices, shape, strict=True)
        there = ir.all_of([ir.compare(ir.LT, i, size) for i, size in pairs])
        return ir.if_then_else(there, source[indices], zero)

    return program.finish([program.compute("out", tuple(whole), element)])
