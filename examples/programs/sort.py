"""Sorting by a bitonic network, assembled from fragments in Python.

The network is a Python loop: `comparators` yields its stages, and each stage becomes one loop of
the program. The comparison is a function too, so that ascending, descending and NaN-aware orders
differ only in that fragment.
"""

from collections.abc import Iterator

from blockwright import ir
from blockwright.script import tir as T


def comparators(size: int) -> Iterator[tuple[int, int]]:
    """Yield the stages (block, distance) of a bitonic network for a power of two."""
    block = 2
    while block <= size:
        distance = block // 2
        while distance:
            yield block, distance
            distance //= 2
        block *= 2


def before(key_a, id_a, key_b, id_b, descending: bool) -> ir.Expr:
    """Whether element a comes before b: by key, NaN last, equal keys in their original order."""
    smaller = key_b < key_a if descending else key_a < key_b
    a_nan, b_nan = T.bool(False), T.bool(False)
    if key_a.dtype.is_float:
        a_nan, b_nan = T.isnan(key_a), T.isnan(key_b)
    larger = key_a < key_b if descending else key_b < key_a
    tied = ~(smaller | larger | a_nan | b_nan) | (a_nan & b_nan)
    return smaller | (b_nan & ~a_nan) | (tied & (id_a < id_b))


def last_key(dtype: ir.DType, descending: bool) -> ir.Expr:
    """A key that no other key comes after; ties are broken by position, so padding stays last."""
    if dtype.is_float:
        return T.FloatImm(dtype, float("nan"))
    return T.min_value(dtype) if descending else T.max_value(dtype)


def sort_in_place(keys: ir.Buffer, ids: ir.Buffer, size: int, descending: bool) -> None:
    """Emit the network that sorts the first `size` (a power of two) elements with their ids."""
    for block, distance in comparators(size):
        with T.serial(size // 2) as pair:
            low = pair // distance * (2 * distance) + pair % distance
            high = low + distance
            up = T.EQ(low // block % 2, 0)
            in_order = before(keys[low], ids[low], keys[high], ids[high], descending)
            with T.LetStmt(T.NE(in_order, up)) as swap:
                T.If(swap, lambda low=low, high=high: exchange(keys, ids, low, high))


def exchange(keys: ir.Buffer, ids: ir.Buffer, low: ir.Expr, high: ir.Expr) -> None:
    """Emit the exchange of two elements."""
    with T.LetStmt(keys[low]) as key, T.LetStmt(ids[low]) as number:
        T.buffer_store(keys, keys[high], [low])
        T.buffer_store(ids, ids[high], [low])
        T.buffer_store(keys, key, [high])
        T.buffer_store(ids, number, [high])


def power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def argsort(
    rows: int,
    size: int,
    *,
    top: int | None = None,
    dtype: str = "float32",
    descending: bool = False,
) -> ir.PrimFunc:
    """A program (X, values, positions) that sorts each row of X, or finds its first `top` elements.

    Args:
        rows, size: shape of X.
        top: number of elements to return per row; all by default.
        dtype: type of the keys.
        descending: largest first. NaN comes last either way; equal keys keep their order.
    """
    count = size if top is None else top
    padded = power_of_two(size)
    kind = ir.dtype_of(dtype)

    @T.prim_func
    def argsort(
        X: T.Buffer((rows, size), dtype),
        values: T.Buffer((rows, count), dtype),
        positions: T.Buffer((rows, count), "int32"),
    ):
        for row in T.parallel(rows):
            with T.block("sort"):
                vr = T.axis.spatial(rows, row)
                T.reads(X[vr, 0:size])
                T.writes(values[vr, 0:count], positions[vr, 0:count])
                keys = T.alloc_buffer((padded,), dtype)
                ids = T.alloc_buffer((padded,), "int32")
                for i in range(padded):
                    keys[i] = T.if_then_else(i < size, X[vr, i], last_key(kind, descending))
                    ids[i] = i
                sort_in_place(keys, ids, padded, descending)
                for i in range(count):
                    values[vr, i] = keys[i]
                    positions[vr, i] = ids[i]

    return argsort
