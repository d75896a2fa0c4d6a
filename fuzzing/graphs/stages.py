"""Compare the stages of a compilation with the original module, on the interpreters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.analysis.calling_convention import calling_convention, tensor_results
from blockwright.graph.interpreter import interpret_graph
from blockwright.interp import interpret
from blockwright.support import BlockwrightError
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.graphs.program import Array

Stages = list[tuple[str, ir.IRModule]]
REJECTED = ("BW704", "BW709", "BW708", "BW401")
"""Codes of a call for which a checked cast does not hold, a size is not in its declared range, or
an operator does not take the sizes; the interpreter deduces operators with numbers (BW401)."""


def recorder(stages: Stages) -> Callable[[str, ir.IRModule, ir.IRModule], None]:
    """An instrument that records every module that a pass changed."""

    def record(name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        if after is not before:
            stages.append((name, after))

    return record


def difference(found: Any, wanted: Any, where: str = "the result") -> str:
    """How two results differ in structure, type, shape or an element; "" if they are equal."""
    if isinstance(wanted, tuple):
        items = cast("tuple[Any, ...]", wanted)
        if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != len(items):
            return f"{where} is not a tuple of {len(items)}"
        given = cast("tuple[Any, ...]", found)
        pairs = enumerate(zip(given, items, strict=True))
        texts = (difference(f, w, f"field {k} of {where}") for k, (f, w) in pairs)
        return next(filter(None, texts), "")
    if not isinstance(wanted, np.ndarray):
        return "" if type(found) is type(wanted) and found == wanted else f"{where} is {found!r}"
    x, y = cast(Array, found), cast(Array, wanted)
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{where} is {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
    if np.array_equal(x, y):
        return ""
    place = tuple(np.argwhere(x != y)[0].tolist())
    return f"{where} at {place}: {x[place]}, expected {y[place]}"


def check_stage(
    name: str,
    module: ir.IRModule,
    arguments: Sequence[Any],
    wanted: Any,
    exact: bool = False,
    left: Sequence[Array] | None = None,
) -> Outcome:
    """Run `main` of the module after a pass; `wanted` is None if the call must be rejected.

    Arguments: `left` are the arguments after the call, if it overwrites some.
    """
    given = [_copied(a) for a in arguments]
    try:
        if isinstance(module["main"], ir.GraphFunction):
            found = interpret_graph(module, *given, exact=exact)
        else:
            found = _host(module, given, wanted)
    except BlockwrightError as error:
        if wanted is None and error.code in REJECTED:
            return Outcome("passed")
        text = f"after {name}: {error.message}"
        return Outcome("wrong", f"interpreter {error.code} after {name}", " ".join(text.split()))
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    if wanted is None:
        return Outcome("wrong", f"accepted after {name}", "a checked cast does not hold")
    text = difference(found, wanted)
    if not text and left is not None:
        text = difference(tuple(given), tuple(left), "the tuple of arguments")
    return Outcome("wrong", f"value after {name}", text) if text else Outcome("passed")


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_copied, cast("tuple[Any, ...]", value)))
    return cast(Array, value).copy() if isinstance(value, np.ndarray) else value


def _host(module: ir.IRModule, given: list[Any], wanted: tuple[Array, ...]) -> Any:
    """Run a host program, which writes its results into arrays, or allocates them."""
    main: ir.PrimFunc = module["main"]
    late = dict(calling_convention(main).late)
    handles = [handle for handle, _ in tensor_results(main)]
    pairs = zip(handles, wanted, strict=True)
    results: list[Any] = [[] if handle in late else np.full_like(w, 77) for handle, w in pairs]
    interpret(module, *given, *results)
    return tuple(cast("list[Array]", r)[0] if isinstance(r, list) else r for r in results)
