"""Tensor programs that copy a tensor, and calls of them."""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.ir.attributes import IS_PRIVATE
from blockwright.passes.legalize import with_scalar_symbols
from blockwright.passes.rewrite import call_tir
from blockwright.script.compute import Program


def copy_program(info: ir.TensorInfo) -> ir.PrimFunc:
    """A private program that copies its first buffer to its second, of known shape and type."""
    assert info.shape is not None
    assert info.dtype is not None
    program = Program("copy")
    read = program.param("source", info.shape, info.dtype)
    result = program.compute("out", info.shape, lambda *i: read[i])
    return program.finish([result], {IS_PRIVATE: True})


def copy_call(
    value: ir.GraphExpr, info: ir.TensorInfo, add: Callable[[str, ir.PrimFunc], str]
) -> ir.GraphCall:
    """A call that copies a tensor; `add` stores the program and returns its name."""
    func, symbols = with_scalar_symbols(copy_program(info))
    return call_tir(add("copy", func), [value], [info], symbols)
