"""FoldConstants: evaluate calls of tensor programs on constants at compile time, natively.

Before::

    @R.function
    def main(x: R.Tensor((2,), "float32")):
        w = R.call_tir(cls.twice, (R.const([1.0, 2.0], "float32"),), R.Tensor((2,), "float32"))
        y = R.add(x, w)
        return y

    @T.prim_func(private=True)
    def twice(x: T.Buffer((2,), "float32"), y: T.Buffer((2,), "float32")):
        for i in range(2):
            with T.block("y"):
                v = T.axis.spatial(2, i)
                y[v] = x[v] + x[v]

After::

    @R.function
    def main(x: R.Tensor((2,), "float32")):
        y = R.add(x, R.const([2.0, 4.0], "float32", name="w"))
        return y

The programs are compiled by the same code generator as all others, so folding cannot change a
result. If the target's code does not run here, this machine evaluates them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockwright import ir
from blockwright.analysis.sole_blocks import acts_outside
from blockwright.build import build
from blockwright.graph import constant
from blockwright.graph.program_calls import reachable_programs
from blockwright.ir.attributes import IS_LIBRARY, IS_PRIVATE
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.fusion.fuse_tir import drop_unused
from blockwright.passes.rewrite import (
    Replace,
    flat_function,
    graph_functions,
    tir_args,
    tir_callee,
    tir_symbols,
)
from blockwright.runtime import constants
from blockwright.support import BlockwrightError
from blockwright.target import Target

_MAX_BYTES = 1 << 28  # larger results are not folded (a big `full`, for example), unless they are
_MOST_TIMES = 2  # at most this many times as large as their constants (packed weights are)


def _static_shape(info: ir.Info | None) -> tuple[int, ...] | None:
    if not isinstance(info, ir.TensorInfo) or info.shape is None:
        return None
    dims = [ir.const_int(d) for d in info.shape]
    return None if any(d is None for d in dims) else tuple(d for d in dims if d is not None)


@graph_pass
def fold_constants(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Evaluate call_tir bindings whose arguments are all constants."""
    wanted: dict[str, ir.Node] = {}
    acting = {name for name in module.functions if _acts(module, name)}
    for _, function in graph_functions(module):
        for binding in _foldable(function, acting):
            name = tir_callee(binding.value)
            assert name is not None
            func = module[name]
            wanted[name] = func.replace(attrs={**func.attrs, IS_PRIVATE: False})
    if not wanted:
        return module
    machine = ctx.target if ctx.target.is_host else Target("native")
    called = {n: module[n] for name in wanted for n in reachable_programs(module, name)}
    library = build(ir.IRModule(called | wanted), machine, compile_cache=ctx.compile_cache)
    functions = dict(module.functions)
    folder = _Folder(wanted, library, acting)
    for name, function in graph_functions(module):
        functions[name] = folder.fold(function)
    return module.replace(functions=drop_unused(functions))


def _acts(module: ir.IRModule, name: str) -> bool:
    """Whether a tensor program must run in every call: it calls foreign functions, or prints."""
    programs = (module[called] for called in reachable_programs(module, name))
    return any(acts_outside(f.body) for f in programs if not f.attrs.get(IS_LIBRARY))


def _foldable(function: ir.GraphFunction, acting: Container[str]) -> list[ir.VarBinding]:
    """Bindings that can be evaluated, in order; results of earlier ones count as constants.

    `acting`: tensor programs that must run in every call.
    """
    known: set[ir.GraphExpr] = set()
    result: list[ir.VarBinding] = []
    for binding in function.bindings:
        name = tir_callee(binding.value) if isinstance(binding, ir.VarBinding) else None
        if not isinstance(binding, ir.VarBinding) or name is None or name in acting:
            continue
        args = tir_args(binding.value)
        shape = _static_shape(binding.var.info)
        if shape is None or tir_symbols(binding.value):
            continue
        info = binding.var.tensor_info
        size = int(np.prod(shape, dtype=np.int64)) * (info.dtype.nbytes if info.dtype else 8)
        largest = max(_MAX_BYTES, _MOST_TIMES * sum(_constant_bytes(a) for a in args))
        if size <= largest and all(isinstance(a, ir.Constant) or a in known for a in args):
            known.add(binding.var)
            result.append(binding)
    return result


def _constant_bytes(value: ir.GraphExpr) -> int:
    shape = _static_shape(value.info)
    if shape is None or not isinstance(value.info, ir.TensorInfo) or value.info.dtype is None:
        return 0
    return int(np.prod(shape, dtype=np.int64)) * value.info.dtype.nbytes


class _Folder:
    """Evaluates calls; equal calls on the same data share one result, in all functions."""

    def __init__(
        self, programs: Mapping[str, ir.Node], library: Any, acting: Container[str]
    ) -> None:
        self.library, self.acting = library, acting
        self.results: dict[tuple[Any, ...], ir.Constant] = {}
        self.same: dict[str, str] = {}  # program → the first that equals it
        known = ir.Programs()
        for name, func in programs.items():
            assert isinstance(func, ir.PrimFunc)
            twin = known.equal_to(func)
            self.same[name] = twin or name
            if twin is None:
                known.add(name, func)

    def fold(self, function: ir.GraphFunction) -> ir.GraphFunction:
        values: dict[ir.Node, ir.Node] = {}
        foldable = set(_foldable(function, self.acting))
        bindings: list[ir.Binding] = []
        replace = Replace(values)
        for binding in function.bindings:
            if isinstance(binding, ir.VarBinding) and binding in foldable:
                result = self._result(binding, [values.get(a, a) for a in tir_args(binding.value)])
                if result is not None:
                    values[binding.var] = result
                    continue
            bindings.append(binding.map_children(replace))
        result = replace(function.body.body)
        return flat_function(function, bindings, result)

    def _result(self, binding: ir.VarBinding, args: list[ir.Node]) -> ir.Constant | None:
        """The value of a call; None if it fails, so that the compiled call reports the error."""
        name = str(tir_callee(binding.value))
        arrays = [a.data for a in args if isinstance(a, ir.Constant)]
        if len(arrays) != len(args):
            return None
        key = (self.same[name], *map(data_key, arrays))
        if key not in self.results:
            with suppress(BlockwrightError):
                self.results[key] = _evaluate(binding, arrays, self.library[name])
        return self.results.get(key)


def data_key(array: NDArray[Any]) -> tuple[Any, ...]:
    """Identifies the elements that an array refers to, while it exists."""
    return array.ctypes.data, array.dtype.str, array.dtype.name, array.shape, array.strides


def _evaluate(binding: ir.VarBinding, arrays: list[NDArray[Any]], run: Any) -> ir.Constant:
    info = binding.var.tensor_info
    shape = _static_shape(info)
    assert shape is not None
    assert info.dtype is not None
    out = constants.empty(shape, info.dtype.numpy())
    run(*arrays, out)
    constants.seal(out)
    return constant(out, binding.var.name)
