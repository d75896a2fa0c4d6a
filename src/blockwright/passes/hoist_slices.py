"""HoistSlices: slice the operands of a call instead of its result.

Before::

    @R.function
    def main(x: R.Tensor(("n", 197, 8), "float32"), w: R.Tensor((4, 8), "float32")):
        n = T.int64()
        y = R.linear(x, w)
        z = R.slice(y, axis=1, end=1)
        return z

After::

    @R.function
    def main(x: R.Tensor(("n", 197, 8), "float32"), w: R.Tensor((4, 8), "float32")):
        n = T.int64()
        s = R.slice(x, axis=1, begin=None, end=1, step=1)
        z = R.linear(s, w)
        return z

A classifier that reads the first token, or a language model that reads the last one, needs one row
of its last layer. If all readers of a value take the same slice of it, the slice moves to the
operands of the call that computes the value, and from there on to theirs, up to a call that mixes
the rows (a norm over the sliced axis, keys and values of attention) or a value with other readers.
The same elements are computed, by the same operations.

Only slices that keep at most half of an axis move, and only those of floats: integer operations may
fail (a division by zero), and their errors must not depend on which rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import deduce_call, function_analyzer
from blockwright.ops.row import Attrs
from blockwright.ops.table import OPERATORS
from blockwright.passes.context import PassContext, function_pass
from blockwright.passes.rewrite import flat_function, used_vars

Shape = tuple[ir.Expr, ...]


@function_pass
def hoist_slices(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Slice the operands of calls of which only a slice is used."""
    return _Hoister(function).run()


class _Hoister:
    """Rewrites one function, from the last binding to the first.

    Attributes:
        kept: the rewritten bindings, last first.
        readers: variable → rewritten bindings that read it.
        pinned: variables that a result or a match_cast reads.
        renamed: slices that became equal to another one → that one.
    """

    def __init__(self, function: ir.GraphFunction) -> None:
        self.function = function
        self.analyzer = function_analyzer(function)
        self.kept: list[ir.Binding] = []
        self.readers: dict[ir.GraphVar, list[ir.VarBinding]] = {}
        self.pinned: set[ir.GraphVar] = set(used_vars(function.body.body))
        self.renamed: dict[ir.Node, ir.Node] = {}

    def run(self) -> ir.GraphFunction:
        changed = False
        for binding in reversed(self.function.bindings):
            hoisted = isinstance(binding, ir.VarBinding) and self._hoist(binding)
            changed = changed or hoisted
            if not hoisted:
                self._keep(binding)
        if not changed:
            return self.function
        rename = _Rename(self.renamed)
        result = rename(self.function.body.body)
        return flat_function(self.function, [rename(b) for b in reversed(self.kept)], result)

    def _keep(self, binding: ir.Binding) -> None:
        self.kept.append(binding)
        if isinstance(binding, ir.VarBinding):
            for var in dict.fromkeys(used_vars(binding.value)):
                self.readers.setdefault(var, []).append(binding)
        elif isinstance(binding, ir.MatchCast):
            self.pinned.update(used_vars(binding.value))

    def _hoist(self, binding: ir.VarBinding) -> bool:
        """Replace the slices of a value by a call on sliced operands, if it is only sliced."""
        slices = self.readers.get(binding.var, [])
        call = binding.value
        if not slices or binding.var in self.pinned or not isinstance(call, ir.GraphCall):
            return False
        first, *others = slices
        cut = _slice_of(first.value, binding.var)
        if cut is None or not all(_same(cut, _slice_of(b.value, binding.var)) for b in others):
            return False
        axis = cut.attrs["axis"]
        if not _shortens(cut, call, axis):
            return False
        axes = _operand_axes(call, axis, self.analyzer)
        if axes is None:
            return False
        gone = {id(b) for b in slices}
        self.kept = [b for b in self.kept if id(b) not in gone]
        self.renamed.update((b.var, first.var) for b in others)
        args: list[ir.GraphExpr] = []
        parts: dict[tuple[int, int], ir.VarBinding] = {}  # one slice per operand and axis
        for arg, where in zip(call.args, axes, strict=True):
            if where is None:
                args.append(_resized(arg, first.var))
                continue
            key = (id(arg), where)
            if key not in parts:
                value = _call("slice", (arg,), {**cut.attrs, "axis": where}, self.analyzer)
                var = ir.GraphVar(f"{binding.var.name}_part", dataflow=True, info=value.info)
                parts[key] = ir.VarBinding(var, value)
            args.append(parts[key].var)
        attrs = _resized_attrs(call, first.var)
        self._keep(
            ir.VarBinding(
                first.var, call.replace(args=tuple(args), attrs=attrs, info=first.var.info)
            )
        )
        for part in parts.values():
            self._keep(part)
        return True


class _Rename(ir.Mutator):
    def __init__(self, renamed: dict[ir.Node, ir.Node]) -> None:
        super().__init__()
        self._memo.update(renamed)


def _call(
    name: str, args: tuple[ir.GraphExpr, ...], attrs: dict[str, Any], analyzer: Analyzer
) -> ir.GraphCall:
    call = ir.GraphCall(ir.OpRef(name), args, attrs)
    return call.replace(info=deduce_call(call, analyzer))


def _slice_of(value: ir.GraphExpr, var: ir.GraphVar) -> ir.GraphCall | None:
    """The value as a slice of a variable, with all attributes and the axis counted from 0."""
    if not isinstance(value, ir.GraphCall) or _name(value) != "slice":
        return None
    if value.args[0] is not var or var.tensor_info.rank < 1:
        return None
    attrs = {**OPERATORS["slice"].attrs, **value.attrs}
    return value.replace(attrs={**attrs, "axis": attrs["axis"] % var.tensor_info.rank})


def _name(call: ir.GraphCall) -> str:
    return call.op.name if isinstance(call.op, ir.OpRef) else ""


def _same(cut: ir.GraphCall, other: ir.GraphCall | None) -> bool:
    return other is not None and ir.structural_equal(cut, other)


def _shape(value: ir.GraphExpr) -> Shape | None:
    return value.info.shape if isinstance(value.info, ir.TensorInfo) else None


def _shortens(cut: ir.GraphCall, call: ir.GraphCall, axis: int) -> bool:
    """Whether a slice keeps a known number of elements, at most half of those of a float tensor."""
    before, after = _shape(call), _shape(cut)
    dtype = call.tensor_info.dtype if isinstance(call.info, ir.TensorInfo) else None
    if before is None or after is None or dtype is None or not dtype.is_float:
        return False
    rest, whole = ir.const_int(after[axis]), ir.const_int(before[axis])
    return rest is not None and (whole is None or 2 * rest <= whole)


# ----------------------------------------------------------------------- which operands are sliced
Axes = list[int | None]
"""For each operand, the axis to slice, or None to leave it as it is."""


def _operand_axes(call: ir.GraphCall, axis: int, analyzer: Analyzer) -> Axes | None:
    """How a call computes a slice of its result along an axis; None if it needs whole operands."""
    row = OPERATORS.get(_name(call))
    shapes = [_shape(arg) for arg in call.args]
    if row is None or row.lower is None or not _known(call, shapes):
        return None
    attrs = {**row.attrs, **call.attrs}
    if row.name in _RULES:
        return _RULES[row.name](call, attrs, axis, analyzer)
    if row.layout == "elementwise":
        return _broadcast(call, axis, analyzer)
    if row.layout in ("axis", "concat"):
        return _beside(call, attrs["axis"], axis, every=row.layout == "concat")
    return None


def _known(call: ir.GraphCall, shapes: Sequence[Shape | None]) -> bool:
    operands = zip(call.args, shapes, strict=True)
    return _shape(call) is not None and all(
        shape is not None or isinstance(arg, ir.ShapeExpr) for arg, shape in operands
    )


def _broadcast(call: ir.GraphCall, axis: int, analyzer: Analyzer) -> Axes | None:
    """Operands of the result's size along the axis are sliced; those of size 1 are repeated."""
    result = _shape(call)
    assert result is not None
    axes: Axes = []
    for arg in call.args:
        shape = _shape(arg)
        if shape is None:
            return None
        where = axis - (len(result) - len(shape))
        if where < 0 or ir.is_const_int(shape[where], 1):
            axes.append(None)
        elif analyzer.prove_equal(shape[where], result[axis]):
            axes.append(where)
        else:
            return None
    return axes if any(where is not None for where in axes) else None


def _beside(call: ir.GraphCall, along: Any, axis: int, every: bool) -> Axes | None:
    """For operators along other axes: the first operand is sliced, or `every` one."""
    if along is None:
        return None
    rank = call.tensor_info.rank
    given = (along,) if isinstance(along, int) else tuple(along)
    if axis in {a % rank for a in given}:
        return None
    return [axis if every or position == 0 else None for position in range(len(call.args))]


def _norm(call: ir.GraphCall, attrs: Attrs, axis: int, analyzer: Analyzer) -> Axes | None:
    return _beside(call, attrs["axes"], axis, every=False)


def _linear(call: ir.GraphCall, attrs: Attrs, axis: int, analyzer: Analyzer) -> Axes | None:
    if axis == call.tensor_info.rank - 1:
        return None
    return [axis if position == 0 else None for position in range(len(call.args))]


def _matmul(call: ir.GraphCall, attrs: Attrs, axis: int, analyzer: Analyzer) -> Axes | None:
    """Rows of the product are products of rows."""
    left, right = (_shape(arg) for arg in call.args)
    rank = call.tensor_info.rank
    if left is None or right is None or len(left) != rank or len(right) < 2:
        return None
    rows = axis == rank - 2 or (len(right) == 2 and axis < rank - 1)
    return [axis, None] if rows else None


def _permute(call: ir.GraphCall, attrs: Attrs, axis: int, analyzer: Analyzer) -> Axes | None:
    rank = call.tensor_info.rank
    axes = range(rank)[::-1] if attrs["axes"] is None else attrs["axes"]
    return [axes[axis] % rank]


def _reshape(call: ir.GraphCall, attrs: Attrs, axis: int, analyzer: Analyzer) -> Axes | None:
    """The axis stays if the axes up to it, or from it on, have the same sizes."""
    before, after = _shape(call.args[0]), _shape(call)
    assert after is not None
    if before is None or len(before) <= axis:
        return None
    same = [analyzer.prove_equal(a, b) for a, b in zip(before, after, strict=False)]
    if not all(same[: axis + 1]):
        return None
    return [axis, *(None for _ in call.args[1:])]


def _attention(call: ir.GraphCall, attrs: Attrs, axis: int, analyzer: Analyzer) -> Axes | None:
    """Queries are independent of one another, unless a causal mask counts them."""
    if axis != 2 or attrs["is_causal"]:
        return None
    axes: Axes = [2, None, None]
    for mask in call.args[3:]:
        shape = _shape(mask)
        assert shape is not None
        per_query = len(shape) > 1 and not ir.is_const_int(shape[-2], 1)
        axes.append(len(shape) - 2 if per_query else None)
    return axes


Rule = Callable[[ir.GraphCall, Attrs, int, Analyzer], Axes | None]
_RULES: dict[str, Rule] = {
    "attention": _attention,
    "layer_norm": _norm,
    "linear": _linear,
    "matmul": _matmul,
    "permute_dims": _permute,
    "reshape": _reshape,
    "rms_norm": _norm,
}


def _resized(arg: ir.GraphExpr, result: ir.GraphVar) -> ir.GraphExpr:
    """The shape argument of a reshape, for the sliced result."""
    shape = _shape(result)
    if not isinstance(arg, ir.ShapeExpr) or shape is None:
        return arg
    return ir.ShapeExpr(shape, info=ir.ShapeInfo(shape))


def _resized_attrs(call: ir.GraphCall, result: ir.GraphVar) -> dict[str, Any]:
    """The attributes of a reshape to a constant shape, for the sliced result."""
    if call.attrs.get("shape") is None:
        return dict(call.attrs)
    return {**call.attrs, "shape": _shape(result)}
