"""Judge one mutant: rejected with a code, or compiled with correct results."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.analysis import find_violations
from blockwright.api.model import CompiledModel
from blockwright.api.validate import unknown_bounds
from blockwright.build import build
from blockwright.build.compile_cache import CompileCache
from blockwright.graph import check_graph, function_symbols, symbol_ranges
from blockwright.passes import PassContext, default_pipeline
from blockwright.script.ir import from_source
from blockwright.support import BlockwrightError
from blockwright.target import Target
from fuzzing.annotations import oracle

MOST = 6
"""Largest value drawn for a symbol."""


class MutantVerdict(msgspec.Struct, frozen=True):
    """Verdict on a mutant.

    Attributes:
        kind: "refused" or "ran" (with a code), "accepted", "wrong" or "internal".
        text: the reason, or the program as compiled.
    """

    kind: str
    text: str


def judged(module: ir.IRModule, by_text: bool = False) -> tuple[MutantVerdict, ir.IRModule]:
    """Check a mutant; return the verdict and the module checked.

    With `by_text`, that is the module parsed from the mutant's text.
    """
    try:
        if by_text and not ir.collect(module, ir.Constant):
            module = from_source(module.script())
        problems = False
        for function in module.functions.values():
            if isinstance(function, ir.PrimFunc):
                problems = problems or bool(find_violations(function))
            elif isinstance(function, ir.GraphFunction):
                check_graph(function, module)
                if unknown_bounds(function, function.name):
                    return MutantVerdict("refused", "BW2xx"), module
        if problems:
            return MutantVerdict("refused", "BW2xx"), module
    except BlockwrightError as error:
        return MutantVerdict("refused", error.code), module
    except Exception:  # noqa: BLE001  must have been a coded error
        return MutantVerdict("internal", traceback.format_exc(limit=-4)), module
    try:
        target = Target("native")
        normal = default_pipeline(target).until("normalize")(module, PassContext(target))
        return MutantVerdict("accepted", normal.script()), module
    except BlockwrightError as error:
        return MutantVerdict("refused", error.code), module
    except Exception:  # noqa: BLE001  as above
        return MutantVerdict("internal", traceback.format_exc(limit=-4)), module


def tried(module: ir.IRModule, seed: int) -> MutantVerdict:
    """Compile and call `main`; compare its results with the evaluation and the declared types."""
    rng = np.random.default_rng(seed)
    try:
        context = PassContext(Target("native"))
        context.compile_cache = CompileCache()  # most programs occur in earlier mutants
        lowered = default_pipeline(context.target)(module, context)
        library = build(lowered, compile_cache=context.compile_cache)
        compiled = CompiledModel(module, lowered, library, context)
        codes = [_called(module, compiled, rng, alike) for alike in (True, False)]
    except BlockwrightError as error:
        # A value without memory is a defect of the passes, not of the module.
        return MutantVerdict("internal" if error.code == "BW414" else "refused", error.code)
    except _Wrong as wrong:
        return MutantVerdict("wrong", str(wrong))
    except Exception:  # noqa: BLE001
        return MutantVerdict("internal", traceback.format_exc(limit=-4))
    return MutantVerdict("ran", " ".join(codes))


class _Wrong(Exception):
    """A result is wrong."""


def _called(module: ir.IRModule, native: Any, rng: np.random.Generator, alike: bool) -> str:
    """Call once; the call must be rejected exactly if the evaluation finds a failing cast."""
    function: ir.GraphFunction = module["main"]
    sizes = _sizes(function, rng, alike)
    try:
        arguments = [_argument(p.info, sizes, rng) for p in function.params]
    except oracle.Undefined:
        return "undefined"
    evaluation = oracle.Evaluation(module)
    wanted: Any = None
    fails = ""
    try:
        wanted = evaluation.run("main", copy.deepcopy(arguments))
    except oracle.CastFails as failure:
        fails = str(failure)
    except oracle.Undefined:
        return "undefined"
    except oracle.NotAsAnnotated as failure:
        raise _Wrong(f"sizes {_named(sizes)}: an annotation is not implied: {failure}") from failure
    except BlockwrightError as error:
        return error.code  # the tensor program itself is invalid
    try:
        result = native(*map(_plain, arguments))
    except BlockwrightError as error:
        if not fails:
            raise _Wrong(f"sizes {_named(sizes)}: refused: {error.message}") from error
        return error.code
    if fails:
        raise _Wrong(f"sizes {_named(sizes)}: runs although the evaluation fails: {fails}")
    _compare(result, wanted, function, evaluation)
    return "right"


def _compare(
    found: Any, wanted: Any, function: ir.GraphFunction, evaluation: oracle.Evaluation
) -> None:
    results, expected = list(_leaves(found)), list(_leaves(wanted))
    if _structure(found) != _structure(wanted):
        raise _Wrong(f"the structure is {_structure(found)}, not {_structure(wanted)}")
    for a, b in zip(results, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise _Wrong(f"{a.dtype}{a.shape} for {b.dtype}{b.shape}")
        if a.dtype.kind in "biu":
            same = bool((a == b).all())
        else:
            tolerance = 1e-4 if a.dtype.itemsize >= 4 else 3e-2
            wide = a.astype(np.float64), b.astype(np.float64)
            same = np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not same:
            raise _Wrong(f"{a.ravel()[:4]} for {b.ravel()[:4]}")
    try:
        oracle.check(function.ret_info, found, evaluation.sizes)
    except oracle.CastFails as failure:
        raise _Wrong(f"the result does not match its declared type: {failure}") from failure


def _plain(value: Any) -> Any:
    """An argument as callers pass it: a shape as a tuple of ints."""
    if isinstance(value, oracle.Shape):
        return value.values
    fields = oracle.fields_of(value)
    return value if fields is None else tuple(map(_plain, fields))


def _leaves(value: Any) -> Iterator[Any]:
    """The arrays of a result, those of nested tuples in order; functions are left out."""
    fields = oracle.fields_of(value)
    if fields is None and not callable(value) and not isinstance(value, oracle.Function):
        yield np.asarray(value)
    for field in fields or ():
        yield from _leaves(field)


def _structure(value: Any) -> str:
    """The nesting of a result's tuples, such as `((., .), .)`."""
    fields = oracle.fields_of(value)
    return "." if fields is None else f"({', '.join(map(_structure, fields))})"


def _named(sizes: oracle.Sizes) -> dict[str, int]:
    return {v.name: n for v, n in sizes.items()}


def _sizes(function: ir.GraphFunction, rng: np.random.Generator, alike: bool) -> oracle.Sizes:
    """Values of the symbols; with `alike`, equal if their ranges allow, so that casts hold."""
    symbols = function_symbols(function)
    common = int(rng.integers(1, MOST))
    sizes: oracle.Sizes = {}
    for symbol, bounds in symbol_ranges(function.attrs, symbols).items():
        low = ir.const_int(bounds.min) or 0
        high = min(MOST, low + (ir.const_int(bounds.extent) or 1) - 1)
        drawn = common if alike else int(rng.integers(1, MOST + 1))
        sizes[symbol] = max(low, min(drawn, high))
    return sizes


def _argument(info: ir.Info | None, sizes: oracle.Sizes, rng: np.random.Generator) -> Any:
    """Random values for a parameter; raises Undefined if its annotation is not complete."""
    if isinstance(info, ir.TupleInfo):
        return tuple(_argument(field, sizes, rng) for field in info.fields)
    if isinstance(info, ir.ShapeInfo) and info.values is not None:
        return oracle.Shape([oracle.number(d, sizes) for d in info.values])
    if not isinstance(info, ir.TensorInfo) or info.shape is None or info.dtype is None:
        raise oracle.Undefined("a parameter without a declared shape or type")
    shape = tuple(max(0, oracle.number(d, sizes)) for d in info.shape)
    if info.dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if info.dtype.is_int:
        return rng.integers(0, 3, shape).astype(info.dtype.numpy())
    return rng.standard_normal(shape).astype(info.dtype.numpy())
