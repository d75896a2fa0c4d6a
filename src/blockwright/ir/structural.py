"""Structural equality and structural hash of programs, up to renaming of bound variables.

Closed programs compare up to alpha-equivalence. Free variables compare by identity or, with
`map_free_vars`, by a consistent one-to-one mapping. Names of variables and buffers and source spans
are ignored; names of blocks and functions are compared. Graph values compare by their definition
and by the declared annotations of variables. Iterative, so deep trees do not overflow the stack.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from blockwright.ir import expr as E
from blockwright.ir.attributes import BOUND_ATTRS
from blockwright.ir.buffer import Buffer, IterVar, MatchBufferRegion
from blockwright.ir.dtype import DType
from blockwright.ir.expr import Expr, Var
from blockwright.ir.function import PrimFunc
from blockwright.ir.graph import (
    CallableInfo,
    GraphExpr,
    GraphFunction,
    GraphVar,
    MatchCast,
    VarBinding,
    parameter_symbols,
    symbolic_vars,
)
from blockwright.ir.node import Held, Node
from blockwright.ir.reducer import CommReducer
from blockwright.ir.stmt import Block, For, LetStmt
from blockwright.ir.visit import collect
from blockwright.support import IRError

_Pair = tuple[Held, Held, str]
"""Two values to compare and the path from the root to them."""


class _Mismatch(Exception):
    def __init__(self, path: str, left: Any, right: Any) -> None:
        super().__init__(path)
        self.path, self.left, self.right = path, left, right


class _Matcher:
    """Correspondence between the definitions of both programs, checked in both directions."""

    def __init__(self, map_free_vars: bool) -> None:
        self.map_free = map_free_vars
        self.forward: dict[Node, Node] = {}
        self.backward: dict[Node, Node] = {}

    def bind(self, a: Node, b: Node) -> None:
        self.forward[a], self.backward[b] = b, a

    def same(self, a: Any, b: Any) -> None:
        stack: list[_Pair] = [(a, b, "")]
        while stack:
            x, y, path = stack.pop()
            if isinstance(x, Node) and isinstance(y, Node):
                pending = self._nodes(x, y, path)
                stack.extend(reversed(pending))
            elif isinstance(x, tuple) and isinstance(y, tuple):
                stack.extend(_items(x, y, path))
            elif isinstance(x, dict) and isinstance(y, dict):
                stack.extend(_entries(x, y, path))
            elif not _same_leaf(x, y):
                raise _Mismatch(path, x, y)

    def _nodes(self, x: Node, y: Node, path: str) -> list[_Pair]:
        if type(x) is not type(y):
            raise _Mismatch(path, x, y)
        if isinstance(x, GraphVar):
            assert isinstance(y, GraphVar)
            if x is y:
                return []
            if self.forward.get(x) is not y or self.backward.get(y) is not x:
                raise _Mismatch(path, x, y)
            return []
        if isinstance(x, (Var, Buffer)):
            known = x in self.forward or y in self.backward
            if known:
                if self.forward.get(x) is not y or self.backward.get(y) is not x:
                    raise _Mismatch(path, x, y)
                return []
            if isinstance(x, Var):
                assert isinstance(y, Var)
                if x is y:
                    return []
                if not self.map_free or x.type is not y.type:
                    raise _Mismatch(path, x, y)
                self.bind(x, y)
                return []
            self.bind(x, y)
        out: list[_Pair] = []
        for p, q in _definitions(x, y):
            if isinstance(p, Var) and (p.type is not q.type or _bounds(x, p) != _bounds(y, q)):
                raise _Mismatch(path, p, q)
            if isinstance(x, CallableInfo) and (p in self.forward or q in self.backward):
                continue  # symbols are local to the type unless an enclosing function defines them
            self.bind(p, q)
            if isinstance(p, GraphVar):
                out.append((p.info, q.info, f"{path}.{p.name}.info"))
        for name in _field_order(type(x)):
            out.append((getattr(x, name), getattr(y, name), f"{path}.{name}"))
        return out


def _items(x: tuple[Held, ...], y: tuple[Held, ...], path: str) -> list[_Pair]:
    """Pairs of items to compare, in reverse, so that the stack pops the first pair first."""
    if len(x) != len(y):
        raise _Mismatch(path, x, y)
    return [(x[i], y[i], f"{path}[{i}]") for i in reversed(range(len(x)))]


def _entries(x: dict[Any, Held], y: dict[Any, Held], path: str) -> list[_Pair]:
    if x.keys() != y.keys():
        raise _Mismatch(path, x, y)
    return [(x[k], y[k], f"{path}[{k!r}]") for k in x]


@cache
def _field_order(kind: type[Node]) -> tuple[str, ...]:
    """Fields to compare, definitions before uses."""
    names = tuple(n for n in kind.__struct_fields__ if n != "span")
    if issubclass(kind, GraphExpr):  # annotations of values follow from their parts
        return tuple(n for n in names if n != "info")
    if issubclass(kind, Buffer):
        return tuple(n for n in names if n != "name")
    if issubclass(kind, Block):
        first = ("iter_vars", "alloc_buffers", "match_buffers")
        return first + tuple(n for n in names if n not in first)
    return names


def _graph_definitions(x: Node, y: Any) -> list[tuple[Any, Any]]:
    """Graph values and dimension symbols that `x` and `y` define."""
    if isinstance(x, GraphFunction):
        if len(x.params) != len(y.params):
            raise _Mismatch(".params", x, y)
        pairs: list[tuple[Any, Any]] = []
        for p, q in zip(x.params, y.params, strict=True):
            pairs += zip(parameter_symbols(p.info), parameter_symbols(q.info), strict=False)
        return [*pairs, *zip(x.params, y.params, strict=True)]
    if isinstance(x, MatchCast):
        symbols = zip(symbolic_vars(x.pattern), symbolic_vars(y.pattern), strict=False)
        return [*symbols, (x.var, y.var)]
    return [(x.var, y.var)] if isinstance(x, VarBinding) else []


def _definitions(x: Node, y: Any) -> list[tuple[Any, Any]]:
    """Variables that `x` and `y` define, in matching order."""
    if isinstance(x, (GraphFunction, MatchCast, VarBinding)):
        return _graph_definitions(x, y)
    if isinstance(x, CallableInfo):
        infos = zip(x.params or (), y.params or (), strict=False)
        return [s for p, q in infos for s in zip(symbolic_vars(p), symbolic_vars(q), strict=False)]
    if isinstance(x, For):
        return [(x.loop_var, y.loop_var)]
    if isinstance(x, IterVar):
        return [(x.var, y.var)]
    if isinstance(x, (LetStmt, E.Let)):
        return [(x.var, y.var)]
    if isinstance(x, CommReducer):
        return [*zip(x.lhs, y.lhs, strict=False), *zip(x.rhs, y.rhs, strict=False)]
    if isinstance(x, PrimFunc):
        if len(x.params) != len(y.params) or len(x.buffer_map) != len(y.buffer_map):
            raise _Mismatch(".params", x, y)
        pairs = list(zip(x.params, y.params, strict=True))
        for (_, p), (_, q) in zip(x.buffer_map, y.buffer_map, strict=True):
            pairs += zip(_layout_vars(p), _layout_vars(q), strict=False)
        return pairs
    if isinstance(x, MatchBufferRegion):
        return _shape_vars(x.buffer, y.buffer)
    return []


def _bounds(function: Node, symbol: Var) -> list[Any]:
    """Bounds that a function declares for a symbol; its attributes refer to symbols by name."""
    if not isinstance(function, (PrimFunc, GraphFunction)):
        return []
    attrs = function.attrs
    return [attrs.get(key, {}).get(symbol.name) for key in BOUND_ATTRS]


def _layout(buffer: Buffer) -> tuple[Expr, ...]:
    offset = () if buffer.offset is None else (buffer.offset,)
    return (*buffer.shape, *buffer.strides, *offset)


def _layout_vars(buffer: Buffer) -> list[Var]:
    """Variables that a parameter defines, also inside a dimension such as `n * 4`."""
    return [v for part in _layout(buffer) for v in collect(part, Var)]


def _shape_vars(p: Buffer, q: Buffer) -> list[tuple[Var, Var]]:
    """Variables that a view binds by its shape, strides and offset."""
    return [
        (a, b)
        for a, b in zip(_layout(p), _layout(q), strict=False)
        if isinstance(a, Var) and isinstance(b, Var)
    ]


def _same_leaf(x: Held, y: Held) -> bool:
    if isinstance(x, float) and isinstance(y, float):
        both_nan = math.isnan(x) and math.isnan(y)
        return both_nan or (x == y and math.copysign(1, x) == math.copysign(1, y))
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(structural_equal, x, y))
    return type(x) is type(y) and bool(x == y)


def structural_equal(a: Any, b: Any, *, map_free_vars: bool = False) -> bool:
    """Whether two programs are equal up to names of bound variables and source spans."""
    if a is b:
        return True
    try:
        _Matcher(map_free_vars).same(a, b)
    except _Mismatch:
        return False
    return True


def assert_structural_equal(a: Any, b: Any, *, map_free_vars: bool = False) -> None:
    """Raise BW242 with the location of the first difference if two programs differ."""
    try:
        _Matcher(map_free_vars).same(a, b)
    except _Mismatch as found:
        raise IRError(
            f"programs differ at `{found.path or 'root'}`:\n  left:  {found.left!r}\n"
            f"  right: {found.right!r}\nleft program:\n{a!r}\nright program:\n{b!r}",
            code="BW242",
        ) from None


class Programs:
    """Tensor programs by name, with lookup of an equal program, ignoring name and visibility.

    Lookup first compares the types and shapes of the parameters, then structural hashes, so a
    module with many programs of the same shapes takes time linear in their number. Only programs
    with equal hashes are compared.
    """

    def __init__(self) -> None:
        self._known: dict[str, PrimFunc] = {}
        self._groups: dict[tuple[object, ...], _Alike] = {}

    def add(self, name: str, func: PrimFunc) -> None:
        """Add a program, or replace the one with the same name."""
        self._known[name] = func
        self._groups.setdefault(_signature(func), _Alike()).names[name] = None

    def equal_to(self, func: PrimFunc) -> str | None:
        """Name of the first added program that equals `func`; None if there is none."""
        group = self._groups.get(_signature(func))
        if group is None:
            return None
        bare = _anonymous(func)
        for name in group.candidates(bare, self._known):
            if structural_equal(_anonymous(self._known[name]), bare):
                return name
        return None


class _Alike:
    """Names of programs with one signature; hashed lazily, on the first lookup among several."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._hashed: dict[int, dict[str, None]] = {}

    def candidates(self, func: PrimFunc, known: dict[str, PrimFunc]) -> Iterable[str]:
        if len(self.names) == 1 and not self._hashed:
            return self.names
        for name in self.names:
            self._hashed.setdefault(structural_hash(_anonymous(known[name])), {})[name] = None
        self.names = {}
        return self._hashed.get(structural_hash(func), ())


def _signature(func: PrimFunc) -> tuple[object, ...]:
    """A cheap key for lookup: types and constant extents of the parameter buffers."""
    return tuple(
        (buffer.dtype, *(e.value if isinstance(e, E.IntImm) else None for e in buffer.shape))
        for buffer in func.buffers
    )


_NAMES = ("global_symbol", "tir.is_private")


def _anonymous(func: PrimFunc) -> PrimFunc:
    return func.replace(attrs={k: v for k, v in func.attrs.items() if k not in _NAMES})


def structural_hash(root: Any) -> int:
    """A hash that is equal for structurally equal closed programs; stable across processes."""
    numbers: dict[Node, int] = {}
    count = 0
    tokens: list[Any] = []
    stack: list[Held] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, (Var, GraphVar)) or (isinstance(item, Buffer) and item in numbers):
            fresh = item not in numbers
            if fresh:
                numbers[item] = count = count + 1
            tokens.append((type(item).__name__, numbers[item]))
            if fresh and isinstance(item, GraphVar):
                stack.append(item.info)
            elif fresh and not isinstance(item, GraphVar):
                tokens.append(str(item.dtype))
            continue
        if isinstance(item, Node):
            if isinstance(item, Buffer):
                numbers[item] = count = count + 1
            for var in _bound_by(item):  # renumbered: copies of a body may share variables
                numbers[var] = count = count + 1
                tokens.append(str(var.type))
            tokens.append(type(item).__name__)
            stack.extend(getattr(item, name) for name in reversed(_field_order(type(item))))
        elif isinstance(item, (tuple, list)):
            tokens.append(("seq", len(item)))
            stack.extend(reversed(item))
        elif isinstance(item, dict):
            tokens.append(("map", tuple(sorted(map(str, item)))))
            stack.extend(item[k] for k in sorted(item, key=str, reverse=True))
        else:
            tokens.append(_leaf_token(item))
    return _digest(tokens)


def _bound_by(node: Node) -> tuple[Var, ...]:
    """Variables that a loop, iterator, let or reducer defines."""
    if isinstance(node, For):
        return (node.loop_var,)
    if isinstance(node, (IterVar, LetStmt, E.Let)):
        return (node.var,)
    return (*node.lhs, *node.rhs) if isinstance(node, CommReducer) else ()


def _leaf_token(item: Held) -> Any:
    if isinstance(item, float):
        return repr(item)
    if isinstance(item, np.ndarray):
        return (str(item.dtype), item.shape, item.tobytes())
    if isinstance(item, DType):
        return item.name
    return str(item)


def _digest(tokens: list[Any]) -> int:
    text = "\0".join(map(repr, tokens)) + "\0"
    digest = hashlib.blake2b(text.encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)
