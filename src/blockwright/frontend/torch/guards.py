"""Guards of an exported program, checked at every call.

PyTorch's export traces one path through the model, that of the example inputs, and records its
assumptions about sizes as guards, in Python text. If a guard fails, the exported program may differ
from the model.

    (L['x'].size()[1] // 2) % 4 == 0          # L['flat_args'][0] for L['x'] in strict exports

The texts are written by `ShapeGuardPythonPrinter` of `torch.fx.experimental.symbolic_shapes`. They
do not cover types, ranks and constants, which every call checks anyway.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from blockwright import ir
from blockwright.analysis.reduction.reducer_laws import CannotEvaluate, evaluate
from blockwright.arith import Analyzer
from blockwright.frontend.torch.guard_arithmetic import NotCovered, truth
from blockwright.support import BlockwrightWarning

_REMEDY = (
    "export the model again with example inputs of these sizes and compile that program for them; "
    "dynamic_shapes states the sizes of a program: Dim(name, min=..., max=...), 2 * Dim"
)
_TRIED, _BEYOND = 200, 4000  # guards are tried on small sizes, and on some above the example's
_UNCHECKED = (
    "pass only inputs that fulfil them, or export without them: with contiguous example inputs, "
    "and with fixed sizes where the model branches on them"
)


@dataclasses.dataclass(frozen=True)
class Guard:
    """An assumption of the exported program about the sizes of a call.

    Attributes:
        text: the guard as PyTorch writes it, with argument names: ``x.size()[0] > 5``.
        conditions: evaluated in order; divisors are checked before they are used.
        found: the sizes that occur in the text, ``x.size()[0]``.
    """

    text: str
    conditions: tuple[ir.Expr, ...]
    found: Mapping[str, ir.Expr]

    def error(self) -> tuple[str, tuple[ir.Expr, ...]]:
        """Error message for a failing call, as a format, and the values in it."""
        result = ", ".join(f"{_escaped(name)} = %d" for name in self.found)
        text = (
            f"BW719: this program was exported for sizes where {_escaped(self.text)}, "
            f"got {result}\nhelp: {_REMEDY}"
        )
        return text, tuple(self.found.values())


def checked_guards(
    program: Any, shapes: Mapping[str, Sequence[ir.Expr]], known: Analyzer
) -> list[Guard]:
    """The guards of an exported program that calls must check.

    Guards implied by the `known` facts about sizes are left out. Warns (BW510) about guards that
    cannot be translated.

    Args:
        shapes: the dimensions of each input, by placeholder name.
    """
    sources = _sources(program)
    checked: list[Guard] = []
    unchecked: list[str] = []
    for text in getattr(program, "_guards_code", ()):
        try:
            guard = _Reader(sources, shapes).read(text)
        except (NotCovered, SyntaxError):
            unchecked.append(_readable(text, sources))
            continue
        conditions = (known.simplify(c) for c in guard.conditions)
        kept = tuple(c for c in conditions if not known.prove(c))
        if kept:
            checked.append(dataclasses.replace(guard, conditions=kept))
    if unchecked:
        message = (
            "this program was exported under conditions that are not checked when it is called: "
            + "; ".join(unchecked)
        )
        warnings.warn(BlockwrightWarning(message, code="BW510", help=_UNCHECKED), stacklevel=2)
    return checked


class Decisions:
    """What PyTorch assumes about sizes when it decomposes operators of a program.

    A decomposition may branch on a size, such as `if scale > 1`; it then holds only for sizes that
    take the same branch as those of the example. PyTorch notes this in the environment of the
    program's symbols, not in the guards of the new program.

    Args:
        program: the exported program, not decomposed yet.
    """

    def __init__(self, program: Any) -> None:
        self._environment = _environment(program)
        if self._environment is not None:
            _EXPORTED.setdefault(self._environment, len(self._environment.guards))

    def made(self) -> list[Any]:
        """Conditions on the exporter's symbols that were decided since the export.

        Symbols that the export made constant or equal to others are replaced.
        """
        if self._environment is None:
            return []
        made = self._environment.guards[_EXPORTED[self._environment] :]
        replaced = [self._environment.replace(guard.expr) for guard in made]
        return [expr for expr in replaced if str(expr) != "True"]


_EXPORTED: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Environment of symbols → number of its guards when its program was first imported."""


def _environment(program: Any) -> Any:
    """The environment of a program's symbols; None if all sizes are numbers."""
    for node in program.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if hasattr(size, "node"):
                return size.node.shape_env
    return None


def decision_error(text: str, values: Mapping[str, ir.Expr]) -> tuple[str, tuple[ir.Expr, ...]]:
    """Error message for a call that takes another branch, as a format, and the values in it."""
    got = ", ".join(f"{_escaped(name)} = %d" for name in values)
    return (
        f"BW719: this program was exported for sizes where {_escaped(text)}, got {got}\n"
        f"help: {_REMEDY}",
        tuple(values.values()),
    )


def common_factors(
    program: Any, shapes: Mapping[str, Sequence[ir.Expr]], example: Mapping[ir.Var, int]
) -> dict[ir.Var, int]:
    """Symbol → a common divisor of the values for which its guards hold, found by trial.

    The guards of `x.view(4, -1)` hold for multiples of 4. Each symbol's guards are evaluated on
    sample values, with all other symbols as in the `example` of the export.
    """
    sources = _sources(program)
    conditions: list[ir.Expr] = []
    for text in getattr(program, "_guards_code", ()):
        with suppress(NotCovered, SyntaxError):
            conditions += _Reader(sources, shapes).read(text).conditions
    result: dict[ir.Var, int] = {}
    for symbol, size in example.items():
        own = [c for c in conditions if any(v is symbol for v in ir.free_vars(c))]
        tried = {*range(1, _TRIED), *range(size, min(4 * size, size + _BEYOND) + 1)}
        values = [n for n in tried if _hold(own, {**example, symbol: n})]
        factor = math.gcd(*values)
        if factor > 1 and len(values) > 2:
            result[symbol] = factor
    return result


def _hold(conditions: Sequence[ir.Expr], values: Mapping[ir.Var, int]) -> bool:
    numbers = {symbol: np.int64(value) for symbol, value in values.items()}
    try:
        return all(bool(evaluate(condition, numbers)) for condition in conditions)
    except CannotEvaluate:
        return False


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


@dataclasses.dataclass(frozen=True)
class _Source:
    """An input: its name for the user, and its placeholder."""

    text: str
    placeholder: str


def _sources(program: Any) -> dict[str, _Source]:
    """The inputs, by the expressions that denote them in guards."""
    import torch.utils._pytree as pytree

    users = [str(name) for name in program.graph_signature.user_inputs]
    result = {f"L['flat_args'][{k}]": _Source(name, name) for k, name in enumerate(users)}
    graph = program.module_call_graph
    names: list[Any] = list(getattr(graph[0].signature, "forward_arg_names", None) or ())
    for leaf, (which, argument, *path) in enumerate(_paths(program, len(users))):
        rest = pytree.keystr(tuple(path))
        if which.idx == 0 and argument.idx >= len(names):
            continue
        name = str(names[argument.idx] if which.idx == 0 else argument.key)
        source = _Source(f"{name}{rest}", users[leaf])
        result[_normal(f"L['{name}']{rest}")] = result[f"L['flat_args'][{leaf}]"] = source
        base, _, index = name.rpartition("_")
        if which.idx == 0 and base and index.isdigit():  # *rest is (rest_0, rest_1)
            text = f"[{int(index)}]{rest}"
            more = _Source(f"{base}{text}", users[leaf])
            result.setdefault(_normal(f"L['{base}']{text}"), more)
    return result


def _paths(program: Any, count: int) -> list[tuple[Any, ...]]:
    """Where each input is in the pair of positional arguments and those by name."""
    import torch.utils._pytree as pytree

    try:
        given = getattr(program, "example_inputs", None)
        if given is None:
            given = pytree.tree_unflatten(range(count), program.call_spec.in_spec)
        found: list[Any] = pytree.tree_leaves_with_path(given)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return []  # a class that accepts tensors only
    return [path for path, _ in found] if len(found) == count else []


def _normal(text: str) -> str:
    return ast.unparse(ast.parse(text, mode="eval"))


class _Reader:
    """Translates one guard."""

    def __init__(
        self, sources: Mapping[str, _Source], shapes: Mapping[str, Sequence[ir.Expr]]
    ) -> None:
        self.sources, self.shapes = sources, shapes
        self.found: dict[str, ir.Expr] = {}
        self.divisors: list[ir.Expr] = []

    def read(self, text: str) -> Guard:
        condition = truth(ast.parse(text, mode="eval").body, self._size, self.divisors)
        return Guard(_readable(text, self.sources), (*self.divisors, condition), self.found)

    def _size(self, node: ast.expr) -> ir.Expr:
        """A size such as ``L['x'].size()[0]``."""
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=input_, attr="size"), args=[]),
                slice=ast.Constant(value=int(axis)),
            ):
                source = self.sources.get(ast.unparse(input_))
                dims = () if source is None else self.shapes.get(source.placeholder, ())
                if source is not None and axis < len(dims):
                    self.found[f"{source.text}.size()[{axis}]"] = dims[axis]
                    return dims[axis]
            case _:
                pass
        raise NotCovered


class _Renamed(ast.NodeTransformer):
    def __init__(self, sources: Mapping[str, _Source]) -> None:
        self.sources = sources

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        source = self.sources.get(ast.unparse(node))
        return self.generic_visit(node) if source is None else ast.Name(source.text)


def _readable(text: str, sources: Mapping[str, _Source]) -> str:
    """A guard with the user's names of arguments."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    return ast.unparse(_Renamed(sources).visit(tree))
