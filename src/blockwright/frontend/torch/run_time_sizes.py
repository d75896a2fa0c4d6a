"""Symbols of an exported program for sizes known only at run time, such as u0.

The exporter knows their ranges (`torch._check(n <= 100)`), and asserts what the model checks about
them. Both are checked when the model runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from blockwright import ir
from blockwright.frontend.torch.operands import torch_dtype
from blockwright.graph import symbol_ranges
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

ASSERTIONS = frozenset({"aten._assert_scalar.default"})
_LEAST = -(1 << 40)  # of a number without a declared lower bound


class RunTimeSizes:
    """The sizes of one import that are known only at run time."""

    def __init__(self, importer: Importer) -> None:
        self._importer = importer
        self._declared: set[ir.Var] = set()
        self._ignored: set[str] = set()

    def declare(self, symbols: Iterable[ir.Var]) -> None:
        """Declare the ranges of symbols that no input binds."""
        imp = self._importer
        attrs, names = imp.builder.attrs, imp.symbols.names()
        for symbol in symbols:
            if symbol in self._declared or not _is_unbacked(names.get(symbol, "")):
                continue
            self._declared.add(symbol)
            low, high = imp.symbols.ends(names[symbol])
            low = _LEAST if low is None else low
            if low:
                attrs[LOWER_BOUND] = {**attrs.get(LOWER_BOUND, {}), symbol.name: low}
            if high is not None:
                attrs[UPPER_BOUND] = {**attrs.get(UPPER_BOUND, {}), symbol.name: high}
            imp.builder.analyzer.bind(symbol, symbol_ranges(attrs, [symbol])[symbol])

    def cast(self, fake: Any, value: Any) -> Any:
        """A value with the exporter's sizes, which are checked when the model runs unless they are
        proved to be those of the value.

        Arguments: `fake` is the exporter's tensor, or a list of them for several results.
        """
        if isinstance(value, list):
            parts = cast("list[Any]", value)
            return [self.cast(f, v) for f, v in zip(fake, parts, strict=True)]
        if not isinstance(value, ir.GraphVar) or not isinstance(value.info, ir.TensorInfo):
            return value
        imp, info = self._importer, value.info
        sizes = getattr(fake, "shape", ())
        late = any(map(depends_on_data, sizes))
        if not late and len(sizes) != info.rank:
            return value  # complex numbers are stored with one axis more
        shape = tuple(imp.symbols.dim(size) for size in sizes)
        self.declare(v for dim in shape for v in ir.free_vars(dim))
        prove = imp.builder.analyzer.prove_equal
        if info.shape is not None and all(
            a is b or prove(a, b) for a, b in zip(info.shape, shape, strict=False)
        ):
            return value
        pattern = ir.TensorInfo(shape, torch_dtype(fake.dtype), device=info.device)
        return imp.builder.match_cast(value, pattern, value.name)

    def ignore(self, place: Any) -> None:
        """Ignore assertions about a stride or offset that depends on data.

        It is one of the exporter's tensor; compiled code lays out values in its own way.
        """
        self._ignored.update(map(str, _symbols(place)))

    def check(self, node: Any) -> None:
        """Check an assertion of the model about sizes known only at run time."""
        condition: Any = getattr(node.args[0], "meta", {}).get("val")
        if not depends_on_data(condition):
            return  # implied by the ranges and guards of the inputs
        if not self._ignored.isdisjoint(map(str, _symbols(condition))):
            return
        imp = self._importer
        holds = imp.symbols.condition(condition)
        if imp.builder.analyzer.prove(holds):
            return
        said = str(node.args[1] if len(node.args) > 1 else condition)
        imp.builder.require(holds, f"BW719: {said}\nhelp: pass data that the model accepts")


def depends_on_data(size: Any) -> bool:
    """Whether a size or condition has a symbol that no input binds."""
    return any(_is_unbacked(str(symbol)) for symbol in _symbols(size))


def _symbols(size: Any) -> Iterable[Any]:
    """The exporter's symbols in a size or condition."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return getattr(expression, "free_symbols", ())


def _is_unbacked(name: str) -> bool:
    return name[:1] == "u" and name[1:].isdigit()
