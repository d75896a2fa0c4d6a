"""Programs over rows that tests of several rules use."""

from __future__ import annotations

from blockwright import ir
from blockwright.script.compute import Program

Size = ir.Expr | int


def softmax(rows: Size, columns: Size) -> ir.PrimFunc:
    p = Program("softmax")
    x = p.param("X", (rows, columns), "float32")
    m = p.reduce("m", (rows,), (columns,), lambda i, k: x[i, k], "max")
    e = p.compute("e", (rows, columns), lambda i, k: ir.call("exp", x[i, k] - m[i]))
    s = p.reduce("s", (rows,), (columns,), lambda i, k: e[i, k])
    return p.finish([p.compute("o", (rows, columns), lambda i, k: e[i, k] / s[i])])
