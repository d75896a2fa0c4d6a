"""Attributes of generated functions."""

from __future__ import annotations

from blockwright.codegen.llvm.context import Options
from blockwright.codegen.llvm.module_emitter import ModuleEmitter


def function_attributes(module: ModuleEmitter, options: Options) -> str:
    """The attribute group of a kernel. Requests vectors as wide as the program's: the tuning of
    several processors would otherwise split 512-bit operations in two."""
    parts = ["nounwind", '"frame-pointer"="none"']
    if options.vector_bits >= 512:
        parts += ['"prefer-vector-width"="512"', '"min-legal-vector-width"="512"']
    return module.attributes(" ".join(parts))
