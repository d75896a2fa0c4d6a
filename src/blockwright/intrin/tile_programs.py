"""Parts of the programs that register tiles share: their functions and the product they mean."""

from __future__ import annotations

from blockwright import ir


def index(value: int) -> ir.Expr:
    """A constant index."""
    return ir.const(value, "int64")


def contiguous(name: str, kind: str, shape: tuple[int, ...], scope: str = "global") -> ir.Buffer:
    """A buffer that must be contiguous where an intrinsic is used."""
    strides, step = list[ir.Expr](), 1
    for extent in reversed(shape):
        strides.insert(0, index(step))
        step *= extent
    return ir.Buffer(
        name,
        ir.dtype_of(kind),
        tuple(map(index, shape)),
        scope=scope,
        strides=tuple(strides),
        offset_factor=1,
    )


def whole_index(buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
    """Indices of all elements in their order in memory, as vectors."""
    extents = [ir.const_int(extent) or 0 for extent in buffer.shape]
    count = 1
    for extent in extents:
        count *= extent
    rest: ir.Expr = ir.Ramp(index(0), index(1), count)
    result: list[ir.Expr] = []
    for extent in reversed(extents[1:]):
        size = ir.Broadcast(index(extent), count)
        result.insert(0, ir.FloorMod(rest, size))
        rest = ir.FloorDiv(rest, size)
    return (rest, *result)


def tile_function(
    name: str, buffers: list[ir.Buffer], body: ir.Stmt, *, updates: bool = True
) -> ir.PrimFunc:
    """A function whose root block reads the first buffers and writes the last.

    Arguments: `updates` says whether it reads the last one too.
    """
    *read, written = buffers
    reads = tuple(ir.full_region(x) for x in ([written] if updates else []) + read)
    root = ir.Block("root", (), reads, (ir.full_region(written),), body)
    handles = [ir.var(f"{x.name}_handle", "handle") for x in buffers]
    return ir.PrimFunc(
        tuple(handles),
        tuple(zip(handles, buffers, strict=True)),
        ir.BlockRealize((), ir.const(True, "bool"), root),
        {"global_symbol": name},
    )


def product_meaning(
    buffers: list[ir.Buffer], depth: int, *, b_by_column: bool, groups: int = 1
) -> ir.PrimFunc:
    """The program `C[i, j] += A[i, k] * B[k, j]` in the type of C, for all of C and `depth` of k.

    With `b_by_column`, the element of B is `B[j, k]`; with several groups of k, g, the factors are
    `A[i, g, k]` and `B[g, j, k]`.
    """
    a, b, c = buffers
    rows, columns = c.shape
    kinds = [
        ("i", rows, ir.IterType.SPATIAL),
        ("j", columns, ir.IterType.SPATIAL),
        *([("g", index(groups), ir.IterType.REDUCE)] if groups > 1 else []),
        ("k", index(depth), ir.IterType.REDUCE),
    ]
    iters = [
        ir.IterVar(ir.var(f"v{n}", "int64"), ir.Range(index(0), extent), kind)
        for n, extent, kind in kinds
    ]
    i, j, *group, k = (it.var for it in iters)
    of_b = (*group, j, k) if b_by_column else (k, j)
    places = ((c, (i, j)), (a, (i, *group, k)), (b, of_b))
    total, x, y = (ir.cast_to(ir.load(v, *at), c.dtype) for v, at in places)
    store = ir.BufferStore(c, total + x * y, (i, j))
    reads = tuple(ir.point_region(v, at) for v, at in places)
    block = ir.Block("update", tuple(iters), reads, (ir.point_region(c, (i, j)),), store)
    loops = [ir.var(n, "int64") for n, _, _ in kinds]
    stmt: ir.Stmt = ir.BlockRealize(tuple(loops), ir.const(True, "bool"), block)
    for var, (_, extent, _) in reversed(list(zip(loops, kinds, strict=True))):
        stmt = ir.For(var, index(0), extent, ir.ForKind.SERIAL, stmt)
    return tile_function("meaning", buffers, stmt)
