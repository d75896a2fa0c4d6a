"""Faults: places in the sources, and the code of each function with one place changed."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from blockwright import schedule
from blockwright.schedule import engine, legality, primitive, rewrite

LEFT_OUT = frozenset(
    "apply_step display explain facade fresh_copy handle history instruction interleaving record "
    "remap_handles remedies schedule session state stub trace traceback_frames "
    "try_remedies".split()
)
"""Modules of the `schedule` package that neither check nor rewrite: texts, handles, traces."""
HELPER = "__fault__"
"""Name under which mutated code accesses `faults`."""


class Mutant(msgspec.Struct, frozen=True, eq=False):
    """One fault.

    Attributes:
        key: identifies it while the surrounding code is unchanged: file, function, kind, text,
            number.
        module, function: its location; `function` is the outermost enclosing one.
        line: first line of the place.
        kind: "precondition", "range", "bindings", "init", "predicate" or "inverse".
        code: code of the function with the fault.
    """

    key: str
    module: str
    function: str
    line: int
    kind: str
    code: types.CodeType


class _Spot(msgspec.Struct, frozen=True, eq=False):
    """A node of a syntax tree, its replacement, and a description."""

    node: ast.AST
    kind: str
    what: str
    text: str


def modules() -> list[str]:
    """The modules to mutate: all primitives and their helpers."""
    result = [
        f"{package.__name__}.{m.name}"
        for package in (schedule, primitive, engine, legality, rewrite)
        for m in pkgutil.iter_modules(package.__path__)
        if not m.ispkg
        and m.name not in LEFT_OUT
        and not (package is primitive and m.name.startswith(("get_", "sample_")))
    ]
    return sorted(result)


def mutants(module: str) -> list[Mutant]:
    """The faults of one module in the order of the syntax tree."""
    path = Path(str(importlib.import_module(module).__file__))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    where = _Where(tree)
    result: list[Mutant] = []
    seen: Counter[str] = Counter()
    for spot in _spots(tree):
        function = where.function.get(spot.node)
        if function is None:
            continue  # code that runs at import
        label = (
            f"{module.removeprefix('blockwright.schedule.')}:{function}: {spot.kind}: {spot.what}"
        )
        seen[label] += 1
        key = label if seen[label] == 1 else f"{label} #{seen[label]}"
        new = ast.copy_location(ast.parse(spot.text, mode="eval").body, spot.node)
        code = where.changed(spot.node, new, str(path), function)
        line = getattr(spot.node, "lineno", 0)
        result.append(Mutant(key, module, function, line, spot.kind, code))
    return result


class _Where:
    """The functions around the nodes of a tree; compiles it with one node replaced."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.function: dict[ast.AST, str] = {}
        self._parent: dict[ast.AST, tuple[ast.AST, str, int | None]] = {}
        for statement in tree.body:
            self._note(statement, "", None)

    def _note(self, node: ast.AST, prefix: str, function: str | None) -> None:
        if isinstance(node, ast.ClassDef) and function is None:
            prefix += f"{node.name}."
        elif isinstance(node, ast.FunctionDef) and function is None:
            function = prefix + node.name
        if function is not None:
            self.function[node] = function
        for field, value in ast.iter_fields(node):
            parts = cast("list[Any]", value if isinstance(value, list) else [value])
            for k, part in enumerate(parts):
                if isinstance(part, ast.AST):
                    self._parent[part] = (node, field, k if isinstance(value, list) else None)
                    self._note(part, prefix, function)

    def changed(self, node: ast.AST, new: ast.AST, path: str, function: str) -> types.CodeType:
        """The code of the function around `node`, with `node` replaced."""
        self._put(node, new)
        try:
            code = compile(ast.fix_missing_locations(self.tree), path, "exec", dont_inherit=True)
        finally:
            self._put(node, node)
        return next(c for c in _codes(code) if c.co_qualname == function)

    def _put(self, node: ast.AST, new: ast.AST) -> None:
        parent, field, k = self._parent[node]
        if k is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[k] = new


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


# ----------------------------------------------------------------------------------------- places
def _spots(tree: ast.Module) -> Iterator[_Spot]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _precondition(node.value)
        if isinstance(node, ast.Call):
            yield from _ranges(node)
            yield from _realizes(node)
            yield from _conditions(node)
            yield from _inverses(node)


def _name(call: ast.Call) -> str:
    target = call.func
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _precondition(call: ast.Call) -> Iterator[_Spot]:
    """`state.fail(...)`, or a shared check `require_…`, as a statement."""
    name = _name(call)
    if name == "fail":
        codes = [
            k.value.value
            for k in call.keywords
            if k.arg == "code" and isinstance(k.value, ast.Constant)
        ]
        yield _Spot(call, "precondition", str(codes[0] if codes else "refusal"), "None")
    elif name.lstrip("_").startswith("require_"):
        yield _Spot(call, "precondition", name, "None")


def _off(node: ast.expr, kind: str, what: str) -> Iterator[_Spot]:
    """An expression that is one too large, and one that is one too small."""
    source = ast.unparse(node)
    for step in (1, -1):
        text = f"{HELPER}.plus({source}, {step})"
        yield _Spot(node, kind, f"{what} {step:+d}", text)


def _ranges(call: ast.Call) -> Iterator[_Spot]:
    """The start and the extent of `ir.Range`, and the bounds of loops."""
    name = _name(call)
    if name == "Range" and len(call.args) == 2:
        yield from _off(call.args[0], "range", f"start of {ast.unparse(call)}")
        yield from _off(call.args[1], "range", f"extent of {ast.unparse(call)}")
    if name == "For" and len(call.args) >= 3:
        yield from _off(call.args[2], "range", f"extent {ast.unparse(call.args[2])}")
    for keyword in call.keywords:
        if name == "replace" and keyword.arg in ("extent", "min"):
            yield from _off(keyword.value, "range", f"{keyword.arg} {ast.unparse(keyword.value)}")


def _realizes(call: ast.Call) -> Iterator[_Spot]:
    """Swap pairs of bindings; drop predicates and initial values."""
    parts = {k.arg: k.value for k in call.keywords if _name(call) == "replace"}
    if _name(call) == "BlockRealize" and len(call.args) == 3:
        parts |= {"iter_values": call.args[0], "predicate": call.args[1]}
    values = parts.get("iter_values")
    if values is not None:
        for a, b in ((0, 1), (1, 2), (0, 2)):
            text = f"{HELPER}.swapped({ast.unparse(values)}, {a}, {b})"
            yield _Spot(values, "bindings", f"{a} and {b} of {ast.unparse(values)}", text)
    predicate = parts.get("predicate")
    if predicate is not None and "True" not in ast.unparse(predicate):
        text = ast.unparse(predicate)
        yield _Spot(predicate, "predicate", text, f"{HELPER}.always({text})")
    init = parts.get("init")
    if init is not None and not isinstance(init, ast.Constant):
        yield _Spot(init, "init", ast.unparse(init), f"{HELPER}.nothing({ast.unparse(init)})")


def _conditions(call: ast.Call) -> Iterator[_Spot]:
    """Drop one side of a conjunction."""
    if _name(call) == "logical_and" and len(call.args) == 2:
        for kept, gone in ((0, 1), (1, 0)):
            text = ast.unparse(call.args[kept])
            yield _Spot(call, "predicate", f"without {ast.unparse(call.args[gone])}", text)
    elif _name(call) == "all_of" and len(call.args) == 1:
        text = f"{HELPER}.always({ast.unparse(call)})"
        yield _Spot(call, "predicate", ast.unparse(call), text)


def _inverses(call: ast.Call) -> Iterator[_Spot]:
    """The result of an inverse, off by one."""
    text = ast.unparse(call)
    name = ast.unparse(call.func)
    if name.endswith(("inverse_map", "inverse.apply")) or "inverse" in name.rsplit(".", 1)[-1]:
        yield _Spot(call, "inverse", text, f"{HELPER}.off({text})")
