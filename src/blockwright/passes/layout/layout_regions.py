"""Regions of operators converted to another layout together, and whether conversion pays."""

from __future__ import annotations

from collections import Counter

import msgspec

from blockwright import ir
from blockwright.arith import simplify
from blockwright.graph import symbol_ranges
from blockwright.passes.layout.layout_rules import attributes

_TYPICAL = 128  # assumed value of a symbolic size


class LayoutChange(msgspec.Struct, frozen=True):
    """A layout change that remains: its value, direction, and bytes read and written."""

    name: str
    shape: tuple[ir.Expr, ...]
    into_last: bool
    moved: int

    def __str__(self) -> str:
        dims = "×".join(str(ir.const_int(d) or d) for d in self.shape)
        where = "to channels-last" if self.into_last else "from channels-last"
        return f"{self.name} ({dims}) {where}, {size_text(self.moved)}"


class Region:
    """Operators converted together, with the costs and gains of conversion.

    Attributes:
        members: results of the operators and permutations inside.
        operators: how often each operator occurs.
        changes: layout changes that remain; `moved` is their total in bytes.
        were: bytes of the model's own layout changes that the region absorbs.
        profit: gain from computing channels-last, in bytes moved.
    """

    def __init__(self) -> None:
        self.members: list[ir.GraphVar] = []
        self.operators: Counter[str] = Counter()
        self.changes: list[LayoutChange] = []
        self.were = 0
        self.profit = 0

    @property
    def moved(self) -> int:
        return sum(change.moved for change in self.changes)


def is_worth_it(region: Region) -> bool:
    """Whether the remaining layout changes cost less than conversion gains."""
    gained = region.were + region.profit
    return region.moved < gained or region.moved == gained == 0


def describe(region: Region, converted: bool) -> str:
    """Describe a region in one line for `show`."""
    counted = ", ".join(f"{n} {name}" if n > 1 else name for name, n in region.operators.items())
    left = "; ".join(map(str, region.changes if converted else ())) or "none"
    if converted:
        return f"channels-last: {counted or 'permutations'}; layout changes left: {left}"
    gained = size_text(region.were + region.profit)
    return (
        f"as written: {counted or 'permutations'}; layout changes would move "
        f"{size_text(region.moved)}, conversion gains at most {gained}"
    )


def size_text(count: int) -> str:
    """Format a number of bytes for display."""
    for unit, factor in (("MB", 1_000_000), ("kB", 1_000)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


class TypicalSizes:
    """Evaluates sizes of a function with typical values for its symbols.

    Arguments: `reorder_flops` is the figure of the target's core.
    """

    def __init__(self, function: ir.GraphFunction, reorder_flops: float) -> None:
        self.attrs, self.reorder_flops = function.attrs, reorder_flops

    def number(self, dims: tuple[ir.Expr, ...]) -> int:
        """Number of elements of a shape."""
        total: ir.Expr = ir.const(1, "int64")
        for dim in dims:
            total = ir.mul(total, dim)
        values: dict[ir.Var, ir.Expr] = {}
        for var, bounds in symbol_ranges(self.attrs, ir.free_vars(total)).items():
            low = ir.const_int(bounds.min) or 0
            high = low + (ir.const_int(bounds.extent) or 1) - 1
            values[var] = ir.const(min(max(_TYPICAL, low), high), var.dtype)
        return ir.const_int(simplify(ir.substitute(total, values))) or 0

    def bytes(self, info: ir.TensorInfo) -> int:
        """Bytes of a tensor."""
        return self.number(info.shape or ()) * (info.dtype.nbytes if info.dtype else 4)

    def profit(self, call: ir.GraphCall) -> int:
        """Gain from computing a convolution or pool channels-last, in bytes moved.

        Depthwise windows are as fast in either layout.
        """
        data, out = call.args[0].tensor_info, call.tensor_info
        if len(call.args) > 1:
            layout: str = attributes(call)["kernel_layout"]
            weight = call.args[1].tensor_info.shape or ()
            inner = dict(zip(layout, weight, strict=True))["I"]
            transposed = getattr(call.op, "name", "").endswith("_transpose")
            per_group = ir.const_int(inner)
            if transposed and per_group is not None:
                per_group //= attributes(call)["groups"]
            if per_group != 1 or attributes(call)["groups"] == 1:
                where, letter = (data, "I") if transposed else (out, "O")
                taps = tuple(d for k, d in zip(layout, weight, strict=True) if k != letter)
                flop = 2 * self.number(where.shape or ()) * self.number(taps)
                return int(flop // self.reorder_flops) + self.bytes(out)
        return 0
