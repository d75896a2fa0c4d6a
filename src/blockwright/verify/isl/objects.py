"""Python classes for isl objects: sets, relations, unions of them, and dataflow analysis."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_uint, c_void_p
from typing import Any, ClassVar, Self, TypeVar

from blockwright.verify.isl.library import (
    ISL,
    Context,
    Dim,
    answering,
    declared,
    free_text,
    giving,
)

_coordinate = declared(ISL, "isl_point_get_coordinate_val", c_void_p, c_void_p, c_int, c_int)
_read = {
    kind: declared(ISL, f"isl_{kind}_read_from_str", c_void_p, c_void_p, c_char_p)
    for kind in ("set", "map")
}
_dimensions = {
    kind: declared(ISL, f"isl_{kind}_dim", c_int, c_void_p, c_int) for kind in ("set", "basic_map")
}
_dimension = declared(ISL, "isl_set_get_dim_name", c_char_p, c_void_p, c_int, c_uint)
_tuple = declared(ISL, "isl_map_get_tuple_name", c_char_p, c_void_p, c_int)
_set_tuple = declared(ISL, "isl_map_set_tuple_name", c_void_p, c_void_p, c_int, c_char_p)
_items = {
    kind: declared(ISL, f"isl_{kind}_get_at", c_void_p, c_void_p, c_int)
    for kind in ("map_list", "basic_map_list")
}


class _Object:
    """Base class of isl objects; `kind` is isl's name of the type."""

    __slots__ = ("context", "pointer")
    context: Context
    pointer: int
    kind: ClassVar[str]
    free: ClassVar[Any]
    copied: ClassVar[Any]

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__()
        if kind:
            cls.kind = kind
            cls.free = giving(f"isl_{kind}_free", 1)
            cls.copied = giving(f"isl_{kind}_copy", 1)

    def __del__(self) -> None:
        type(self).free(self.pointer)
        self.context.leave()

    def __str__(self) -> str:
        return _text(self.context, f"isl_{self.kind}_to_str", self.pointer)

    def _gives(self, kind: type[_T], name: str, *others: _Object) -> _T:
        """Call a function that consumes its operands, on copies of them."""
        return _taking(kind, f"isl_{self.kind}_{name}", self, *others)

    def _has(self, kind: type[_T], name: str) -> _T:
        """Call a getter that returns a new object."""
        name = f"isl_{self.kind}_{name}"
        return _made(kind, self.context, name, giving(name, 1)(self.pointer))

    def _counts(self, name: str, *others: _Object) -> int:
        """Call a function that returns a number or a truth value."""
        name = f"isl_{self.kind}_{name}"
        function = answering(name, 1 + len(others))
        result: int = function(self.pointer, *[o.pointer for o in others])
        if result < 0:
            raise self.context.failure(name)
        return result

    def _is(self, name: str, *others: _Object) -> bool:
        return self._counts(name, *others) > 0


_T = TypeVar("_T", bound=_Object)


def _taking(kind: type[_T], name: str, *operands: _Object) -> _T:
    """Call a function that consumes its operands, on copies of them."""
    pointer = giving(name, len(operands))(*[type(o).copied(o.pointer) for o in operands])
    return _made(kind, operands[0].context, name, pointer)


def _made(kind: type[_T], context: Context, name: str, pointer: int | None) -> _T:
    """Wrap the pointer that an isl function returned.

    Raises:
        Error: the pointer is null.
    """
    if pointer is None:
        raise context.failure(name)
    result = object.__new__(kind)
    result.context, result.pointer = context, pointer
    context.users += 1
    return result


def _text(context: Context, name: str, operand: int) -> str:
    pointer = giving(name, 1)(operand)
    if pointer is None:
        raise context.failure(name)
    text = ctypes.string_at(pointer).decode()
    free_text(pointer)
    return text


class Space(_Object, kind="space"):
    """The parameters and tuples of a set or relation."""

    __slots__ = ()

    def is_equal(self, other: Space) -> bool:
        return self._is("is_equal", other)


class Value(_Object, kind="val"):
    """An integer value."""

    __slots__ = ()


class Point(_Object, kind="point"):
    """An element of a set, with values of the parameters."""

    __slots__ = ()

    def coordinate(self, kind: Dim, position: int) -> int:
        pointer = _coordinate(self.pointer, kind, position)
        return int(str(_made(Value, self.context, "isl_point_get_coordinate_val", pointer)))


class _Relation(_Object):
    """Operations shared by sets, relations and unions of them."""

    __slots__ = ()

    def union(self, other: Self) -> Self:
        return self._gives(type(self), "union", other)

    def intersect(self, other: Self) -> Self:
        return self._gives(type(self), "intersect", other)

    def subtract(self, other: Self) -> Self:
        return self._gives(type(self), "subtract", other)

    def coalesce(self) -> Self:
        return self._gives(type(self), "coalesce")

    def params(self) -> Set:
        return self._gives(Set, "params")

    def is_empty(self) -> bool:
        return self._is("is_empty")

    def is_equal(self, other: Self) -> bool:
        return self._is("is_equal", other)

    def is_subset(self, other: Self) -> bool:
        return self._is("is_subset", other)

    def is_disjoint(self, other: Self) -> bool:
        return self._is("is_disjoint", other)


class _Plain(_Relation):
    """A set or relation in one space, parsed from isl's notation."""

    __slots__ = ()

    def __new__(cls, text: str, context: Context) -> Self:
        pointer = _read[cls.kind](context.pointer, text.encode())
        return _made(cls, context, f"isl_{cls.kind}_read_from_str", pointer)

    def lexmin(self) -> Self:
        return self._gives(type(self), "lexmin")

    def intersect_params(self, known: Set) -> Self:
        return self._gives(type(self), "intersect_params", known)

    def get_space(self) -> Space:
        return self._has(Space, "get_space")


class Set(_Plain, kind="set"):
    """A set of integer tuples."""

    __slots__ = ()

    @classmethod
    def empty(cls, space: Space) -> Set:
        """The empty set."""
        return _taking(cls, "isl_set_empty", space)

    def identity(self) -> Map:
        return self._gives(Map, "identity")

    def parameters(self) -> list[str]:
        """The names of the parameters."""
        count: int = _dimensions["set"](self.pointer, Dim.PARAM)
        return [_dimension(self.pointer, Dim.PARAM, k).decode() for k in range(count)]

    def sample_point(self) -> Point:
        return self._gives(Point, "sample_point")


class UnionSet(_Relation, kind="union_set"):
    """A union of sets in different spaces."""

    __slots__ = ()


class _Arrows(_Relation):
    """Operations shared by relations and unions of them."""

    __slots__ = ()

    def reverse(self) -> Self:
        return self._gives(type(self), "reverse")

    def apply_range(self, other: Self) -> Self:
        return self._gives(type(self), "apply_range", other)

    def range_product(self, other: Self) -> Self:
        return self._gives(type(self), "range_product", other)

    def domain_map(self) -> Self:
        """Map each pair to its first element."""
        return self._gives(type(self), "domain_map")

    def range_map(self) -> Self:
        """Map each pair to its second element."""
        return self._gives(type(self), "range_map")

    def is_injective(self) -> bool:
        return self._is("is_injective")

    def is_single_valued(self) -> bool:
        return self._is("is_single_valued")


class Map(_Plain, _Arrows, kind="map"):
    """A relation between integer tuples."""

    __slots__ = ()

    @classmethod
    def from_range(cls, values: Set) -> Map:
        """Map the zero-dimensional tuple to each element."""
        return _taking(cls, "isl_map_from_range", values)

    @classmethod
    def from_domain_and_range(cls, first: Set, second: Set) -> Map:
        """The Cartesian product: relate each element of `first` to each element of `second`."""
        return _taking(cls, "isl_map_from_domain_and_range", first, second)

    def domain(self) -> Set:
        return self._gives(Set, "domain")

    def range(self) -> Set:
        return self._gives(Set, "range")

    def wrap(self) -> Set:
        """The set of pairs."""
        return self._gives(Set, "wrap")

    def intersect_domain(self, where: Set) -> Map:
        return self._gives(Map, "intersect_domain", where)

    def intersect_range(self, where: Set) -> Map:
        return self._gives(Map, "intersect_range", where)

    def subtract_domain(self, where: Set) -> Map:
        return self._gives(Map, "subtract_domain", where)

    def subtract_range(self, where: Set) -> Map:
        return self._gives(Map, "subtract_range", where)

    def flat_range_product(self, other: Map) -> Map:
        return self._gives(Map, "flat_range_product", other)

    def lex_lt_map(self, other: Map) -> Map:
        return self._gives(Map, "lex_lt_map", other)

    def lex_ge_map(self, other: Map) -> Map:
        return self._gives(Map, "lex_ge_map", other)

    def as_formulas(self) -> Map:
        """The same function with explicit formulas, for a single-valued map."""
        return self._gives(Formulas, "as_pw_multi_aff").as_map()

    def to_union_map(self) -> UnionMap:
        return self._gives(UnionMap, "to_union_map")

    def target(self) -> str:
        """The name of the range tuples; empty if they have none."""
        result: bytes | None = _tuple(self.pointer, Dim.OUT)
        return "" if result is None else result.decode()

    def to(self, name: str) -> Map:
        """The same relation with another name of the range tuples."""
        pointer = _set_tuple(Map.copied(self.pointer), Dim.OUT, name.encode())
        return _made(Map, self.context, "isl_map_set_tuple_name", pointer)

    def divisions(self) -> list[int]:
        """The number of integer divisions in each basic map."""
        pieces = self._has(_Pieces, "get_basic_map_list")
        return [_dimensions["basic_map"](p.pointer, Dim.DIV) for p in pieces.items(_Piece)]


class UnionMap(_Arrows, kind="union_map"):
    """A union of relations in different spaces."""

    __slots__ = ()

    def domain(self) -> UnionSet:
        return self._gives(UnionSet, "domain")

    def range(self) -> UnionSet:
        return self._gives(UnionSet, "range")

    def intersect_domain(self, where: UnionSet) -> UnionMap:
        return self._gives(UnionMap, "intersect_domain", where)

    def maps(self) -> list[Map]:
        """One map for each pair of spaces."""
        return self._has(_Maps, "get_map_list").items(Map)


class Formulas(_Object, kind="pw_multi_aff"):
    """A function given by piecewise quasi-affine expressions (`isl_pw_multi_aff`)."""

    __slots__ = ()

    def as_map(self) -> Map:
        return self._gives(Map, "as_map")


class _Piece(_Object, kind="basic_map"):
    """A basic map: the part of a relation described by one conjunction."""

    __slots__ = ()


class _List(_Object):
    """A list of objects."""

    __slots__ = ()

    def items(self, kind: type[_T]) -> list[_T]:
        pointers = [_items[self.kind](self.pointer, k) for k in range(self._counts("size"))]
        return [_made(kind, self.context, f"isl_{self.kind}_get_at", p) for p in pointers]


class _Maps(_List, kind="map_list"):
    __slots__ = ()


class _Pieces(_List, kind="basic_map_list"):
    __slots__ = ()


class UnionFlow(_Object, kind="union_flow"):
    """The result of dataflow analysis."""

    __slots__ = ()

    def get_may_dependence(self) -> UnionMap:
        """Map each access of a source to the sink accesses that may see it."""
        return self._has(UnionMap, "get_may_dependence")


class UnionAccessInfo(_Object, kind="union_access_info"):
    """The input of dataflow analysis: sink, sources and schedule."""

    __slots__ = ()

    @classmethod
    def from_sink(cls, reads: UnionMap) -> UnionAccessInfo:
        return _taking(cls, "isl_union_access_info_from_sink", reads)

    def set_must_source(self, writes: UnionMap) -> UnionAccessInfo:
        return self._gives(UnionAccessInfo, "set_must_source", writes)

    def set_may_source(self, writes: UnionMap) -> UnionAccessInfo:
        return self._gives(UnionAccessInfo, "set_may_source", writes)

    def set_schedule_map(self, when: UnionMap) -> UnionAccessInfo:
        return self._gives(UnionAccessInfo, "set_schedule_map", when)

    def compute_flow(self) -> UnionFlow:
        return self._gives(UnionFlow, "compute_flow")
