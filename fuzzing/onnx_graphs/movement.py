"""Operators that move elements: shapes, slices, gathers, scatters."""

from __future__ import annotations

import numpy as np

from fuzzing.onnx_graphs.drawer import FLOATS, Drawer, Value
from fuzzing.onnx_graphs.operators import draws
from fuzzing.onnx_graphs.program import Array


@draws(3)
def transpose(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 2, empty=True)
    if x is None:
        return None
    order = d.chance.sample(range(x.rank), x.rank)
    return d.add("Transpose", [x], exact=True, perm=order if d.maybe(0.85) else None)


@draws(3)
def reshape(d: Drawer) -> Value | None:
    """Axes are merged, split by a constant, or one is -1; 0 keeps the size of an axis."""
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    sizes: list[int] = [s if x.is_fixed(a) else 0 for a, s in enumerate(x.shape)]
    place = d.chance.randrange(x.rank)
    kind = d.chance.choice(("merge", "split", "flat", "rows"))
    if kind == "flat":
        sizes = [-1]
    elif kind == "merge" and x.rank >= 2:
        place = min(place, x.rank - 2)
        sizes[place : place + 2] = [-1]
        sizes = _without_moved_zeros(x, sizes, place)
    elif kind == "split" and x.is_fixed(place) and x.shape[place] % 2 == 0:
        sizes[place : place + 1] = d.chance.choice(([2, -1], [-1, 2], [1, -1], [-1, 1]))
        sizes = _without_moved_zeros(x, sizes, place)
    else:
        sizes = [d.chance.choice((2, 3, 4, 1)), -1] if d.maybe(0.5) else [-1, 1, 1]
    return d.add("Reshape", [x, d.constant(sizes)], exact=True)


def _without_moved_zeros(x: Value, sizes: list[int], place: int) -> list[int]:
    """0 means the same place of the operand: behind `place` only numbers are right."""
    return [s if k <= place or s else -1 for k, s in enumerate(sizes)]


@draws(3)
def reshape_by_sizes(d: Drawer) -> Value | None:
    """The shape is computed: sizes of the tensor, joined with numbers."""
    x = d.pick(lambda v: v.rank >= 2)
    if x is None:
        return None
    shape = d.add("Shape", [x], exact=True)
    if shape is None:
        return None
    parts: list[Value | None] = []
    kept = d.chance.randrange(x.rank)
    for axis in range(x.rank):
        if axis == kept:
            parts.append(d.constant([-1]))
        elif d.maybe(0.5):
            parts.append(d.add("Gather", [shape, d.constant([axis])], exact=True, axis=0))
        else:
            sliced = [shape, d.constant([axis]), d.constant([axis + 1]), d.constant([0])]
            parts.append(d.add("Slice", sliced, exact=True))
    if d.maybe(0.5):
        d.chance.shuffle(parts)
    target = d.add("Concat", parts, exact=True, axis=0)
    return target and d.add("Reshape", [x, target], exact=True)


@draws(2)
def flatten(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    axis = x and d.chance.choice((None, 0, x.rank, d.axis(x)))
    return x and d.add("Flatten", [x], exact=True, axis=axis)


@draws(2)
def squeeze(d: Drawer) -> Value | None:
    x = d.pick(lambda v: 1 in v.shape)
    if x is None:
        return None
    places = [a for a, s in enumerate(x.shape) if s == 1 and x.is_fixed(a)]
    chosen = d.chance.sample(places, d.chance.randint(min(1, len(places)), len(places)))
    axes = d.constant([d.chance.choice((a, a - x.rank)) for a in chosen])
    return d.add("Squeeze", [x, axes if chosen else None], exact=True)


@draws(3)
def unsqueeze(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank <= 3, empty=True)
    if x is None:
        return None
    count = d.chance.randint(1, 2)
    rank = x.rank + count
    places = [d.chance.choice((a, a - rank)) for a in d.chance.sample(range(rank), count)]
    return d.add("Unsqueeze", [x, d.constant(places)], exact=True)


@draws(4)
def concat(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    axis = d.axis(x)
    parts = [x]
    for _ in range(d.chance.randint(0, 2)):
        other = d.pick(lambda v: v.dtype == x.dtype and v.rank == x.rank, empty=True)
        parts.append(other or x)
    d.chance.shuffle(parts)
    return d.add("Concat", parts, exact=True, axis=axis)


@draws(3)
def split(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1 and max(v.shape) >= 2)
    if x is None:
        return None
    axis = d.axis(x)
    size = x.shape[axis]
    if x.is_fixed(axis) and d.maybe(0.6):
        first = d.chance.randint(0, size)
        sizes = d.constant([first, size - first])
        return d.add("Split", [x, sizes], 2, exact=True, axis=axis)
    count = 2 if d.opset >= 18 else None
    return d.add("Split", [x], 2, exact=True, axis=axis, num_outputs=count)


@draws(5)
def slice_(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    axes = d.axes(x)
    starts: list[int] = []
    ends: list[int] = []
    steps: list[int] = []
    for axis in axes:
        size = x.smallest[axis]
        step = d.chance.choice((1, 1, 1, 2, -1, -2, 3))
        low, high = d.chance.randint(-size - 2, size), d.chance.choice((size, 2**62, -1, size + 3))
        if step > 0 or d.maybe(0.8):
            low, high = (high, low) if step < 0 else (low, high)
        starts.append(min(low, 2**62))
        ends.append(-(2**62) if step < 0 and d.maybe(0.5) else high)
        steps.append(step)
    more = [d.constant(axes), d.constant(steps)]
    if sorted(a % x.rank for a in axes) == list(range(len(axes))) == [a % x.rank for a in axes]:
        more = d.chance.choice((more, [None, more[1]]))
    return d.add("Slice", [x, d.constant(starts), d.constant(ends), *more], exact=True)


@draws(4)
def gather(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    axis = d.axis(x)
    size = x.smallest[axis]
    shape = d.chance.choice(([], [1], [3], [2, 2]))
    places = d.numbers.integers(-size, size, shape)
    dtype = d.chance.choice(("int64", "int32"))
    return d.add("Gather", [x, d.constant(places, dtype)], exact=True, axis=axis)


@draws(2)
def gather_elements(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    axis = d.axis(x)
    shape = [d.chance.randint(1, s) for s in x.smallest]
    shape[axis] = d.chance.randint(1, 4)
    places = d.numbers.integers(-x.smallest[axis], x.smallest[axis], shape)
    return d.add("GatherElements", [x, d.constant(places)], exact=True, axis=axis)


@draws(1)
def gather_nd(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    depth = d.chance.randint(1, x.rank)
    columns = [d.numbers.integers(-s, s, (3,)) for s in x.smallest[:depth]]
    places = [[int(c[k]) for c in columns] for k in range(3)]
    return d.add("GatherND", [x, d.constant(places)], exact=True)


@draws(2)
def scatter(d: Drawer) -> Value | None:
    """Without a reduction every place is written once."""
    x = d.pick(lambda v: v.rank >= 1 and v.dtype != "bool")
    if x is None:
        return None
    reduction = d.chance.choice((None, "add", "mul", "max", "min")) if d.opset >= 18 else None
    if d.maybe(0.5):
        axis = d.axis(x)
        count = d.chance.randint(1, x.smallest[axis])
        shape = [d.chance.randint(1, s) for s in x.smallest]
        shape[axis] = count
        order = d.chance.sample(range(x.smallest[axis]), count)
        places = np.broadcast_to(_along(order, axis % x.rank, x.rank), shape)
        updates = d.constant(d.array(shape, x.dtype), x.dtype)
        inputs = [x, d.constant(places), updates]
        return d.add("ScatterElements", inputs, exact=True, axis=axis, reduction=reduction)
    rows = d.chance.sample(range(x.smallest[0]), d.chance.randint(1, x.smallest[0]))
    if not all(x.is_fixed(a) for a in range(1, x.rank)):
        return None
    updates = d.constant(d.array([len(rows), *x.shape[1:]], x.dtype), x.dtype)
    places = d.constant([[row] for row in rows])
    return d.add("ScatterND", [x, places, updates], exact=True, reduction=reduction)


def _along(numbers: list[int], axis: int, rank: int) -> Array:
    return np.reshape(numbers, [-1 if a == axis else 1 for a in range(rank)])


@draws(2)
def expand(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank <= 3)
    if x is None:
        return None
    if d.maybe(0.5):
        like = d.pick(lambda v: v.rank >= 1)
        shape = like and d.add("Shape", [like], exact=True)
        return shape and d.add("Expand", [x, shape], exact=True)
    sizes = [d.chance.choice((1, 2, 3)) if s == 1 else 1 for s in x.shape]
    return d.add("Expand", [x, d.constant([*([2] if d.maybe(0.4) else []), *sizes])], exact=True)


@draws(1)
def tile(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    repeats = x and [d.chance.choice((1, 2, 3)) for _ in x.shape]
    return x and d.add("Tile", [x, d.constant(repeats)], exact=True)


@draws(3)
def pad(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    mode = d.chance.choice(("constant", "constant", "reflect", "edge", "wrap"))
    axes = d.axes(x) if d.opset >= 18 and d.maybe(0.5) else list(range(x.rank))
    low = -1 if mode == "constant" else 0
    most = [2 if mode != "reflect" else min(2, x.smallest[a] - 1) for a in axes]
    pads = [d.chance.randint(low, m) for m in [*most, *most]]
    filled = d.constant(3, x.dtype) if mode == "constant" and d.maybe(0.5) else None
    listed = d.constant(axes) if d.opset >= 18 and len(axes) < x.rank else None
    inputs = [x, d.constant(pads), filled, listed]
    return d.add("Pad", inputs, exact=True, mode=mode)


@draws(1)
def depth_and_space(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank == 4)
    if x is None:
        return None
    if d.maybe(0.5):
        return d.add("SpaceToDepth", [x], exact=True, blocksize=2)
    mode = d.chance.choice((None, "DCR", "CRD"))
    return d.add("DepthToSpace", [x], exact=True, blocksize=2, mode=mode)


@draws(1)
def triangle(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 2)
    offset = d.constant(d.chance.randint(-2, 2)) if d.maybe(0.6) else None
    return x and d.add("Trilu", [x, offset], exact=True, upper=d.chance.choice((None, 0, 1)))


@draws(1)
def one_hot(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.dtype == "int64" and v.rank <= 2)
    if x is None:
        return None
    values = d.constant(d.array((2,), "float32"), "float32")
    inputs = [x, d.constant(d.chance.randint(1, 5), x.dtype), values]
    return d.add("OneHot", inputs, exact=True, axis=d.chance.choice((None, 0, -1)))


@draws(1)
def created(d: Drawer) -> Value | None:
    """Tensors made from sizes."""
    x = d.pick(lambda v: v.rank >= 1)
    if x is None:
        return None
    kind = d.chance.choice(("range", "filled", "eye", "size"))
    if kind == "eye":
        matrix = d.pick(lambda v: v.rank == 2)
        offset = d.chance.choice((None, 1, -1))
        return matrix and d.add("EyeLike", [matrix], exact=True, dtype=d.kind("float32"), k=offset)
    if kind == "size":
        return d.add("Size", [x], exact=True)
    shape = d.add("Shape", [x], exact=True)
    if shape is None or kind == "filled":
        number = d.tensor(d.array((1,), d.chance.choice((*FLOATS, "int32", "bool"))))
        return shape and d.add("ConstantOfShape", [shape], exact=True, value=number)
    count = d.add("Gather", [shape, d.constant(d.axis(x))], exact=True)
    start, step = d.chance.choice(((0, 1), (2, 1), (-1, 2)))
    return count and d.add("Range", [d.constant(start), count, d.constant(step)], exact=True)


@draws(1)
def by_elements(d: Drawer) -> Value | None:
    """Results whose sizes the elements decide."""
    x = d.pick(lambda v: v.exact and v.rank >= 1 and (v.dtype == "bool" or v.dtype == "int64"))
    kind = d.chance.choice(("NonZero", "Compress", "Unique"))
    if x is None or kind == "NonZero":
        return x and d.add("NonZero", [x], exact=True)
    if kind == "Unique":
        return d.add("Unique", [x], [True, d.maybe(0.4), d.maybe(0.4), d.maybe(0.4)], exact=True)
    data = d.pick(lambda v: v.rank >= 1)
    choice = data and d.pick(
        lambda v: v.dtype == "bool" and v.rank == 1 and v.shape[0] <= data.shape[0]
    )
    return choice and d.add("Compress", [data, choice], exact=True, axis=0)


@draws(1)
def reverse_sequence(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 2 and v.is_fixed(1))
    if x is None:
        return None
    lengths = d.numbers.integers(1, x.smallest[0] + 1, (x.shape[1],))
    return d.add("ReverseSequence", [x, d.constant(lengths)], exact=True, batch_axis=1, time_axis=0)
