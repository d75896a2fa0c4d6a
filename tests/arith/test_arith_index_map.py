"""Index maps: application, shapes, inverses, padding."""

from __future__ import annotations

import itertools

import pytest

from blockwright import ir
from blockwright.arith import Analyzer, IndexMap, IterMapError, inverse_map
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range

I0, J, K, N, M, X, Y = (ir.var(c, "int64") for c in "ijknmxy")


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def texts(exprs: tuple[Expr, ...]) -> list[str]:
    return [expr_text(e) for e in exprs]


TILED = IndexMap.from_func(lambda i, j: (i // 4, j, i % 4), 2)


def test_application_and_shape() -> None:
    assert texts(TILED.apply([X * 4 + 1, Y])) == ["x", "y", "1"]
    assert texts(TILED.map_shape([const(16), const(8)])) == ["4", "8", "4"]
    assert texts(TILED.map_shape([N, M])) == ["(n + 3) // 4", "m", "4"]


def test_inverse_of_a_tiling() -> None:
    inverse = TILED.inverse([const(16), const(8)])
    assert texts(inverse.final) == ["(ax0 * 4) + ax2", "ax1"]
    back = inverse.apply(TILED.apply([X, Y]))
    assert texts(back) == ["x", "y"]


def test_inverse_needs_divisible_extents() -> None:
    with pytest.raises(IterMapError, match="no multiple"):
        TILED.inverse([const(14), const(8)])
    with pytest.raises(IterMapError, match="not used"):
        IndexMap.from_func(lambda i, j: (i,), 2).inverse([const(4), const(4)])


def test_padding_predicate_of_a_partial_tile() -> None:
    inverse, padding = TILED.non_surjective_inverse([const(14), const(8)])
    assert texts(inverse.final) == ["(ax0 * 4) + ax2", "ax1"]
    assert expr_text(padding) == "13 < ((ax0 * 4) + ax2)"
    _, none = TILED.non_surjective_inverse([const(16), const(8)])
    assert expr_text(none) == "False"


def test_padding_with_symbolic_extents_and_shifts() -> None:
    _, padding = TILED.non_surjective_inverse([N, M])
    assert expr_text(padding) == "n <= ((ax0 * 4) + ax2)"
    shifted = IndexMap.from_func(lambda i: ((i + 2) // 4, (i + 2) % 4), 1)
    inverse, padding = shifted.non_surjective_inverse([const(14)])
    assert texts(inverse.final) == ["((ax0 * 4) + ax1) - 2"]
    assert expr_text(padding) == "((ax0 * 4) + ax1) < 2"


@pytest.mark.parametrize(
    ("index_map", "shape"),
    [
        (TILED, (14, 3)),
        (IndexMap.from_func(lambda i, j: ((i * 8 + j) // 16, (i * 8 + j) % 16), 2), (6, 8)),
        (IndexMap.from_func(lambda i, j: (j // 3, i // 2, i % 2, j % 3), 2), (5, 7)),
        (IndexMap.from_func(lambda i: (i // 8, i // 2 % 4, i % 2), 1), (19,)),
        (IndexMap.from_func(lambda i, j: (i + 3, j), 2), (4, 2)),
    ],
)
def test_every_element_goes_and_comes_back(index_map: IndexMap, shape: tuple[int, ...]) -> None:
    sizes = [const(s) for s in shape]
    inverse, padding = index_map.non_surjective_inverse(sizes)
    known = Analyzer()
    reached: set[tuple[int, ...]] = set()
    for point in itertools.product(*(range(s) for s in shape)):
        place = index_map.apply([const(p) for p in point], known)
        values = tuple(e.value for e in place if isinstance(e, ir.IntImm))
        assert len(values) == len(place)
        reached.add(values)
        back = inverse.apply(place, known)
        assert tuple(e.value for e in back if isinstance(e, ir.IntImm)) == point
    box = [e.value for e in index_map.map_shape(sizes) if isinstance(e, ir.IntImm)]
    for place in itertools.product(*(range(s) for s in box)):
        mapping = dict(zip(inverse.initial, (const(p) for p in place), strict=True))
        empty = known.simplify(ir.substitute(padding, mapping))
        assert isinstance(empty, ir.IntImm)
        assert bool(empty.value) == (place not in reached)


def test_loops_in_terms_of_bindings() -> None:
    sizes = {I0: (0, 3), J: (0, 14), K: (2, 5)}
    iters = {v: Range(const(a), const(b)) for v, (a, b) in sizes.items()}
    solved = inverse_map([I0 * 14 + J, K], iters, [X, Y], Analyzer())
    assert {v.name: expr_text(e) for v, e in solved.items()} == {
        "i": "x // 14",
        "j": "x % 14",
        "k": "y",
    }


def test_loops_of_a_symbolic_fusion() -> None:
    iters = {I0: Range(const(0), M), J: Range(const(0), N)}
    solved = inverse_map([I0 * N + J], iters, [X], Analyzer())
    assert [expr_text(e) for e in solved.values()] == ["x // n", "x % n"]


def test_int32_maps_keep_their_type() -> None:
    narrow = IndexMap.from_func(lambda i: (i // 4, i % 4), 1, dtype=ir.dtype_of("int32"))
    inverse = narrow.inverse([ir.const(16, "int32")])
    assert all(e.dtype.name == "int32" for e in inverse.final)
    assert [e.dtype.name for e in narrow.apply([ir.var("q", "int32")])] == ["int32", "int32"]
