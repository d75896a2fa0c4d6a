"""Operators of random graph functions that move elements: shapes, parts, orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzzing.graphs.drawer import Drawer
from fuzzing.graphs.operands import added, draws, replaced, scaled, with_axes
from fuzzing.graphs.program import Inexact, Run


@draws()
def reshape(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    dims, place = list(a.dims), d.chance.randrange(len(a.dims))
    if place + 1 < len(dims) and d.chance.random() < 0.5:
        dims[place : place + 2] = [f"({dims[place]}) * ({dims[place + 1]})"]
    elif dims[place].isdigit() and int(dims[place]) % 2 == 0 and int(dims[place]):
        parts = ["2", str(int(dims[place]) // 2)]
        dims[place : place + 1] = parts if d.chance.random() < 0.5 else parts[::-1]
    else:
        dims[place:place] = ["1"]
    text = f"R.reshape({a.name}, R.shape([{', '.join(dims)}]))"
    d.bind(dims, a.dtype, text, lambda r: r[a.name].reshape(r.shape(dims)))


@draws()
def permute(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    order = list(range(len(a.dims)))
    d.chance.shuffle(order)
    dims = [a.dims[k] for k in order]
    text = f"R.permute_dims({a.name}, axes={order})"
    d.bind(dims, a.dtype, text, lambda r: r[a.name].transpose(order))


@draws()
def expand(d: Drawer) -> None:
    a = d.pick(lambda v: len(v.dims) < 4)
    if a is None:
        return
    axis = d.chance.randint(0, len(a.dims))
    dims = [*a.dims[:axis], "1", *a.dims[axis:]]
    text = f"R.expand_dims({a.name}, axis={axis})"
    d.bind(dims, a.dtype, text, lambda r: np.expand_dims(r[a.name], axis))


@draws()
def squeeze(d: Drawer) -> None:
    a = d.pick(lambda v: "1" in v.dims)
    if a is None:
        return
    axis = d.chance.choice([k for k, dim in enumerate(a.dims) if dim == "1"])
    dims = [dim for k, dim in enumerate(a.dims) if k != axis]
    text = f"R.squeeze({a.name}, axis={axis})"
    d.bind(dims, a.dtype, text, lambda r: r[a.name].squeeze(axis))


@draws(2)
def concat(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    axis, written = d.axis(a)
    others = [
        v
        for v in d.values
        if v.dtype == a.dtype
        and len(v.dims) == len(a.dims)
        and all(k == axis or x == y for k, (x, y) in enumerate(zip(v.dims, a.dims, strict=True)))
    ]
    parts = [a, *(d.chance.choice(others) for _ in range(d.chance.randint(0, 2)))]
    dims = replaced(a, axis, " + ".join(f"({v.dims[axis]})" for v in parts))
    if len(parts) == 1:
        dims = list(a.dims)
    listed = "".join(f"{v.name}, " for v in parts)
    d.bind(
        dims,
        a.dtype,
        f"R.concat(({listed}), axis={written})",
        lambda r: np.concatenate([r[v.name] for v in parts], axis),
    )


@draws(2)
def split(d: Drawer) -> None:
    """A fixed axis at given positions, or a doubled symbolic one into halves."""
    a = with_axes(d)
    if a is None:
        return
    axis, written = d.axis(a)
    dim = a.dims[axis]
    if dim.isdigit():
        cuts = sorted(d.chance.sample(range(int(dim) + 1), min(2, int(dim))))
        sizes = [str(y - x) for x, y in zip([0, *cuts], [*cuts, int(dim)], strict=True)]
        source, parts = a, f"{cuts}"
    else:
        doubled = replaced(a, axis, f"({dim}) * 2")
        result = d.bind(
            doubled,
            a.dtype,
            f"R.concat(({a.name}, {a.name}), axis={written})",
            lambda r: np.concatenate([r[a.name], r[a.name]], axis),
        )
        if result is None:
            return
        source, cuts, sizes, parts = result, 2, [dim, dim], "2"
    name = d.name()
    text = f"{name} = R.split({source.name}, indices_or_sections={parts}, axis={written})"
    if not d.define(name, text, lambda r: tuple(np.split(r[source.name], cuts, axis=axis))):
        return
    for k, size in enumerate(sizes):
        if size != "0" or d.chance.random() < 0.3:
            dims = replaced(a, axis, size)
            d.bind(dims, a.dtype, f"{name}[{k}]", lambda r, k=k: r[name][k])


@draws(2)
def part(d: Drawer) -> None:
    """`R.slice` of a fixed axis with any bounds, or of a doubled symbolic one."""
    a = with_axes(d)
    if a is None:
        return
    axis, written = d.axis(a)
    dim = a.dims[axis]
    if dim.isdigit():
        size = int(dim)
        begin, end = d.chance.randint(-size - 1, size), d.chance.randint(-size - 1, size + 2)
        step = d.chance.choice((1, 1, 2, 3))
        rows = range(size)[slice(begin, end, step)]
        if rows or d.chance.random() < 0.3:
            text = f"R.slice({a.name}, axis={written}, begin={begin}, end={end}, step={step})"
            dims = replaced(a, axis, str(len(rows)))
            d.bind(dims, a.dtype, text, lambda r: np.take(r[a.name], rows, axis=axis))
        return
    doubled = d.bind(
        replaced(a, axis, f"({dim}) * 2"),
        a.dtype,
        f"R.concat(({a.name}, {a.name}), axis={written})",
        lambda r: np.concatenate([r[a.name], r[a.name]], axis),
    )
    if doubled is not None:
        text = f"R.slice({doubled.name}, axis={written}, begin=0, end=({dim}) * 2, step=2)"
        d.bind(
            a.dims,
            a.dtype,
            text,
            lambda r: np.take(r[doubled.name], range(0, 2 * r[a.name].shape[axis], 2), axis=axis),
        )


@draws()
def take(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    axis, written = d.axis(a)
    size, count = d.run.size(a.dims[axis]), d.chance.randint(1, 5)
    if not size:
        return
    fixed = a.dims[axis].isdigit()
    index: list[int] = d.numbers.integers(
        -size if fixed else 0, size if fixed else 1, count
    ).tolist()
    dims = replaced(a, axis, str(count))
    text = f'R.take({a.name}, R.const({index}, "int64"), axis={written})'
    d.bind(dims, a.dtype, text, lambda r: np.take(r[a.name], index, axis=axis))


@draws(4)
def gather(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    axis, written = d.axis(a)
    b = d.pick(
        lambda v: (
            v.dtype == "int64"
            and len(v.dims) == len(a.dims)
            and all(
                k == axis or x == y for k, (x, y) in enumerate(zip(v.dims, a.dims, strict=True))
            )
        )
    )
    if b is None:
        return

    def compute(r: Run) -> Any:
        index, size = r[b.name], r[a.name].shape[axis]
        if index.size and (index.min() < 0 or index.max() >= size):
            raise Inexact
        return np.take_along_axis(r[a.name], index, axis)

    d.bind(b.dims, a.dtype, f"R.gather({a.name}, {b.name}, axis={written})", compute)


@draws()
def flip(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    axis, written = d.axis(a)
    text = f"R.flip({a.name}, axis={written})"
    d.bind(a.dims, a.dtype, text, lambda r: np.flip(r[a.name], axis))


@draws()
def repeat(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    (axis, written), count = d.axis(a), d.chance.randint(1, 3)
    dims = replaced(a, axis, scaled(a.dims[axis], count))
    text = f"R.repeat({a.name}, repeats={count}, axis={written})"
    d.bind(dims, a.dtype, text, lambda r: np.repeat(r[a.name], count, axis))


@draws()
def broadcast(d: Drawer) -> None:
    a = d.pick(lambda v: len(v.dims) < 4)
    if a is None:
        return
    dims = [d.chance.choice("nm31") if dim == "1" else dim for dim in a.dims]
    dims = [d.chance.choice("n2m"), *dims] if not dims or d.chance.random() < 0.5 else dims
    text = f"R.broadcast_to({a.name}, R.shape([{', '.join(dims)}]))"
    d.bind(dims, a.dtype, text, lambda r: np.broadcast_to(r[a.name], r.shape(dims)))


@draws()
def pad(d: Drawer) -> None:
    a = with_axes(d, lambda v: v.dtype != "bool")
    if a is None:
        return
    width = [[d.chance.randint(0, 2), d.chance.randint(0, 2)] for _ in a.dims]
    dims = [added(dim, sum(more)) for dim, more in zip(a.dims, width, strict=True)]
    number = d.chance.choice((0, 1, 5))
    d.bind(
        dims,
        a.dtype,
        f"R.pad({a.name}, pad_width={width}, pad_value={number})",
        lambda r: np.pad(r[a.name], width, constant_values=number),
    )


@draws()
def triangle(d: Drawer) -> None:
    a = d.pick(lambda v: len(v.dims) > 1 and v.dtype != "bool")
    if a is None:
        return
    op, k = d.chance.choice(("tril", "triu")), d.chance.randint(-2, 2)
    text = f"R.{op}({a.name}, k={k})"
    d.bind(a.dims, a.dtype, text, lambda r: getattr(np, op)(r[a.name], k))


@draws()
def scatter(d: Drawer) -> None:
    a = with_axes(d, lambda v: v.is_fixed)
    if a is None:
        return
    axis, written = d.axis(a)
    size = int(a.dims[axis])
    b = d.pick(
        lambda v: (
            v.dtype == a.dtype
            and v.is_fixed
            and len(v.dims) == len(a.dims)
            and int(v.dims[axis]) <= size
            and all(
                k == axis or x == y for k, (x, y) in enumerate(zip(v.dims, a.dims, strict=True))
            )
        )
    )
    if b is None:
        return
    count = int(b.dims[axis])
    begin = d.chance.randint(0, size - count)

    def compute(r: Run) -> Any:
        result = r[a.name].copy()
        place = [slice(None)] * result.ndim
        place[axis] = slice(begin, begin + count)
        result[tuple(place)] = r[b.name]
        return result

    text = f"R.slice_scatter({a.name}, {b.name}, axis={written}, begin={begin})"
    d.bind(a.dims, a.dtype, text, compute)
