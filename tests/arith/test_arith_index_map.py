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
    with pytest.raises(IterMapError, match="not a multiple"):
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


MAPS = {
    "tile": lambda i, j: (i // 4, i % 4, j),
    "tile inside out": lambda i, j: (i % 4, i // 4, j),
    "shift": lambda i, j: (i + 3, j + 1),
    "tile with a shift": lambda i, j: ((i + 2) // 4, (i + 2) % 4, j),
    "reverse": lambda i, j: (9 - i, j),
    "swap": lambda i, j: (j, i),
    "fuse": lambda i, j: (i * 10 + j,),
    "fuse and tile": lambda i, j: ((i * 10 + j) // 4, (i * 10 + j) % 4),
    "split the other": lambda i, j: (j // 3, i, j % 3),
    "constants": lambda i, j: (i, const(7), j, const(0)),
}
SIZES: tuple[Expr, ...] = (
    const(1), const(2), const(5), N, ir.minimum(N, 1), ir.minimum(N, 2), ir.minimum(N - 3, 1),
    N % 2, N // 9, N % 3 + 1,
)  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_inverse_shape_and_padding_agree_at_every_size(name: str) -> None:
    """Also where a size is one element or none, whose index is a constant to the analyzer."""
    known = Analyzer()
    known.bind_bounds(N, low=0, high=9)
    index_map, inverted = IndexMap((I0, J), MAPS[name](I0, J)), 0

    def value(expr: Expr, at: dict[ir.Var, int]) -> int:
        number = Analyzer().simplify(ir.substitute(expr, {v: const(n) for v, n in at.items()}))
        assert isinstance(number, ir.IntImm)
        return number.value

    for shape in itertools.product(SIZES, SIZES):
        try:
            inverse, padding = index_map.non_surjective_inverse(shape, known)
        except IterMapError:
            continue
        inverted += 1
        box = index_map.map_shape(shape, known)
        for n in (0, 1, 3, 4, 9):
            points = itertools.product(*(range(value(s, {N: n})) for s in shape))
            want = {
                tuple(value(e, {I0: i, J: j}) for e in index_map.final): (i, j) for i, j in points
            }
            if len(want) > 30:
                continue
            back: dict[tuple[int, ...], tuple[int, ...]] = {}
            for place in itertools.product(*(range(value(s, {N: n})) for s in box)):
                at = {**dict(zip(inverse.initial, place, strict=True)), N: n}
                if not value(padding, at):
                    back[place] = tuple(value(e, at) for e in inverse.final)
            assert back == want, (texts(shape), n)
    assert inverted > 10


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
