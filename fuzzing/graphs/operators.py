"""Operators of random graph functions: each draws its operands and states its meaning in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing.graphs.drawer import TYPES, Drawer
from fuzzing.graphs.operands import added, draws, joint, replaced, with_axes
from fuzzing.graphs.program import Array, Inexact, Rejected, Run, Value

# ------------------------------------------------------------------------------------ elementwise
_NUMPY: dict[str, Any] = {"subtract": np.subtract, "floor_divide": np.floor_divide}


def _meaning(op: str) -> Any:
    return _NUMPY.get(op) or getattr(np, op)


@draws(4)
def binary(d: Drawer) -> None:
    a = d.pick()
    if a is None:
        return
    b = d.pick(lambda v: v.dtype == a.dtype and joint(a.dims, v.dims) is not None)
    if b is None:
        return
    bits = ["bitwise_and", "bitwise_or", "bitwise_xor"]
    if a.dtype == "bool":
        ops = ["logical_and", "logical_or", "logical_xor", *bits]
    else:
        ops = ["add", "subtract", "multiply", "maximum", "minimum"] + ([] if a.is_float else bits)
    op = d.chance.choice(ops)
    dims = joint(a.dims, b.dims)
    assert dims is not None
    d.bind(
        dims,
        a.dtype,
        f"R.{op}({a.name}, {b.name})",
        lambda r: _meaning(op)(r[a.name], r[b.name]).astype(a.dtype),
    )


@draws()
def with_number(d: Drawer) -> None:
    a = d.pick(lambda v: v.dtype != "bool")
    if a is None:
        return
    ops = ["add", "subtract", "multiply", "maximum", "minimum"]
    op = d.chance.choice(ops + ([] if a.is_float else ["floor_divide", "remainder"]))
    number = d.chance.choice((1, 2, 3, -3, 7, 0, -1, 100, 127))
    number = abs(number) if a.dtype.startswith("u") else number
    division = op in ("floor_divide", "remainder")
    number = number or (3 if division else 0)
    right = division or d.chance.random() < 0.5
    constant = np.array(number).astype(a.dtype)

    def compute(r: Run) -> Any:
        pair = (r[a.name], constant) if right else (constant, r[a.name])
        return _meaning(op)(*pair).astype(a.dtype)

    side = "right" if right else "left"
    d.bind(a.dims, a.dtype, f'R.{op}({a.name}, scalar={number}, scalar_side="{side}")', compute)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "negative": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
}


@draws()
def unary(d: Drawer) -> None:
    a = d.pick()
    if a is None:
        return
    if a.dtype == "bool":
        d.bind(a.dims, "bool", f"R.logical_not({a.name})", lambda r: ~r[a.name])
        return
    op = "square" if a.dtype.startswith("u") else d.chance.choice(list(_UNARY))
    d.bind(a.dims, a.dtype, f"R.{op}({a.name})", lambda r: _UNARY[op](r[a.name]).astype(a.dtype))


@draws()
def compare(d: Drawer) -> None:
    a = d.pick(lambda v: v.dtype != "bool")
    if a is None:
        return
    b = d.pick(lambda v: v.dtype == a.dtype and joint(a.dims, v.dims) is not None)
    if b is None:
        return
    op = d.chance.choice(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
    dims = joint(a.dims, b.dims)
    assert dims is not None
    text = f"R.{op}({a.name}, {b.name})"
    d.bind(dims, "bool", text, lambda r: getattr(np, op)(r[a.name], r[b.name]))


@draws()
def where(d: Drawer) -> None:
    a = d.pick()
    if a is None:
        return
    c = d.pick(lambda v: v.dtype == "bool" and joint(a.dims, v.dims) is not None)
    dims = None if c is None else joint(a.dims, c.dims)
    b = d.pick(lambda v: v.dtype == a.dtype and joint(dims, v.dims) is not None)
    if c is None or b is None:
        return
    dims = joint(dims, b.dims)
    assert dims is not None
    d.bind(
        dims,
        a.dtype,
        f"R.where({c.name}, {a.name}, {b.name})",
        lambda r: np.choose(r[c.name], [r[b.name], r[a.name]]),
    )


@draws()
def cast(d: Drawer) -> None:
    a = d.pick()
    if a is None:
        return
    dtype = d.chance.choice(TYPES)
    if a.is_float and not dtype.startswith("float") and dtype not in ("bool", "int32", "int64"):
        return  # may not fit
    if (
        dtype.startswith("float")
        and not a.is_float
        and a.dtype not in ("bool", "int8", "uint8", "int16")
    ):
        return  # may be inexact
    d.bind(
        a.dims,
        dtype,
        f'R.astype({a.name}, dtype="{dtype}")',
        lambda r: r[a.name].astype(dtype),
    )


# ------------------------------------------------------------------------------------- reductions
def _nonempty(array: Array, axes: tuple[int, ...]) -> Array:
    """The array, if the axes have elements: NumPy has no maximum of none."""
    if any(array.shape[axis] == 0 for axis in axes):
        raise Inexact
    return array


@draws(2)
def reduce(d: Drawer) -> None:
    a = with_axes(d)
    if a is None:
        return
    total = a.dtype in ("int32", "int64") or a.is_float
    op = d.chance.choice(("max", "min", "sum") if total else ("max", "min"))
    if a.dtype in ("int32", "int64") and d.chance.random() < 0.2:
        op = "prod"
    if a.dtype == "bool":
        op = d.chance.choice(("any", "all"))
    axes = tuple(sorted(d.chance.sample(range(len(a.dims)), d.chance.randint(1, len(a.dims)))))
    keep = d.chance.random() < 0.4
    options: Any = {"dtype": a.dtype} if op in ("sum", "prod") else {}
    dims = ["1" if k in axes else x for k, x in enumerate(a.dims) if keep or k not in axes]
    written = [d.chance.choice((k, k - len(a.dims))) for k in axes]
    d.bind(
        dims,
        a.dtype,
        f"R.{op}({a.name}, axes={written}, keepdims={keep})",
        lambda r: np.asarray(
            getattr(np, op)(_nonempty(r[a.name], axes), axis=axes, keepdims=keep, **options)
        ),
    )


@draws()
def position(d: Drawer) -> None:
    a = with_axes(d, lambda v: v.dtype != "bool")
    if a is None:
        return
    op = d.chance.choice(("argmax", "argmin"))
    axis, written = d.axis(a)
    dims = [x for k, x in enumerate(a.dims) if k != axis]
    text = f"R.{op}({a.name}, axis={written})"
    d.bind(
        dims,
        "int64",
        text,
        lambda r: np.asarray(getattr(np, op)(_nonempty(r[a.name], (axis,)), axis=axis)),
    )


@draws()
def running_sum(d: Drawer) -> None:
    a = with_axes(d, lambda v: v.dtype in ("int32", "int64"))
    if a is None:
        return
    axis, written = d.axis(a)
    text = f"R.cumsum({a.name}, axis={written})"
    d.bind(a.dims, a.dtype, text, lambda r: np.cumsum(r[a.name], axis, dtype=a.dtype))


@draws(2)
def product(d: Drawer) -> None:
    a = with_axes(d, lambda v: v.dtype in ("int32", "float32"))
    if a is None:
        return
    b = with_axes(
        d,
        lambda v: (
            v.dtype == a.dtype
            and v.dims[-2 if len(v.dims) > 1 else 0] == a.dims[-1]
            and joint(a.dims[:-2], v.dims[:-2]) is not None
        ),
    )
    if b is None:
        return
    batch = joint(a.dims[:-2], b.dims[:-2])
    assert batch is not None
    dims = [*batch, *a.dims[-2:-1], *(b.dims[-1:] if len(b.dims) > 1 else ())]

    def compute(r: Run) -> Any:
        wide = np.matmul(r[a.name].astype("int64"), r[b.name].astype("int64"))
        if a.is_float:  # partial sums are exact too
            sizes = np.matmul(abs(r[a.name].astype("int64")), abs(r[b.name].astype("int64")))
            return np.where(sizes < 1 << 22, wide, 1 << 40).astype(a.dtype)
        return np.asarray(wide.astype(a.dtype))

    d.bind(dims, a.dtype, f"R.matmul({a.name}, {b.name})", compute)


# ---------------------------------------------------------------------------------------- calls
def _matrix(d: Drawer) -> Value | None:
    return d.pick(lambda v: v.dtype == "int32" and len(v.dims) == 2)


@draws()
def call_turned(d: Drawer) -> None:
    a = _matrix(d)
    if a is None:
        return
    info = Value("", a.dims[::-1], "int32").info

    def compute(r: Run) -> Any:
        x = r[a.name][::-1].T
        return x * np.int32(3) + np.arange(len(x), dtype="int32")[:, None]

    text = f"R.call_tir(cls.turned, ({a.name},), out_sinfo={info})"
    d.bind(a.dims[::-1], "int32", text, compute)


@draws()
def call_running(d: Drawer) -> None:
    a = _matrix(d)
    if a is None:
        return
    text = f"R.call_tir(cls.running, ({a.name},), out_sinfo={Value('', a.dims, 'int32').info})"
    d.bind(a.dims, "int32", text, lambda r: np.cumsum(r[a.name], 1, dtype="int32"))


@draws()
def call_extended(d: Drawer) -> None:
    a = _matrix(d)
    if a is None:
        return
    rows, columns = a.dims
    one, two = (Value("", x, "int32") for x in ((rows,), (rows, added(columns, 1))))
    number = d.chance.choice(("n", "m", "n * m", "7", "n - m"))

    def compute(r: Run) -> Any:
        x = r[a.name]
        z = np.concatenate([x, np.full((len(x), 1), r.size(number), "int32")], 1)
        return (x * z[:, 1:]).sum(1, dtype="int32"), z

    pair = d.name()
    text = (
        f"{pair} = R.call_tir(cls.extended, ({a.name},), out_sinfo=[{one.info}, {two.info}], "
        f"tir_vars=R.shape([{number}]))"
    )
    if d.define(pair, text, compute):
        d.bind(one.dims, "int32", f"{pair}[0]", lambda r: r[pair][0])
        d.bind(two.dims, "int32", f"{pair}[1]", lambda r: r[pair][1])


@draws()
def nested_tuple(d: Drawer) -> None:
    a, b = d.pick(), d.pick()
    if a is None:
        return
    if b is None:
        return
    pair = d.name()
    d.define(
        pair,
        f"{pair} = ({a.name}, ({b.name}, {a.name}))",
        lambda r: (r[a.name], (r[b.name], r[a.name])),
    )
    d.bind(b.dims, b.dtype, f"{pair}[1][0]", lambda r: r[pair][1][0])


@draws()
def checked_cast(d: Drawer) -> None:
    """A dimension gets a new symbol, or the number that it is in the first call."""
    a = with_axes(d)
    if a is None:
        return
    axis = d.chance.randrange(len(a.dims))
    number, name = d.run.size(a.dims[axis]), d.name()
    fixed = d.chance.random() < 0.5
    dim = str(number) if fixed else d.symbol(name, number)

    def compute(r: Run) -> Any:
        size = r[a.name].shape[axis]
        if fixed and size != number:
            raise Rejected
        if not fixed:
            r.sizes[dim] = size
        return r[a.name]

    value = Value(name, tuple(replaced(a, axis, dim)), a.dtype)
    declared = "" if fixed else f"{dim} = T.int64()\n"
    if d.define(name, f"{declared}{name} = R.match_cast({a.name}, {value.info})", compute):
        d.add(value)


@draws()
def filled(d: Drawer) -> None:
    dims = [d.chance.choice(("n", "m", "2", "n + 1", "4")) for _ in range(d.chance.randint(1, 2))]
    dtype, number = d.chance.choice(("int32", "float32", "uint8")), d.chance.randint(0, 9)
    text = f'R.full(R.shape([{", ".join(dims)}]), fill_value={number}, dtype="{dtype}")'
    d.bind(dims, dtype, text, lambda r: np.full(r.shape(dims), number, dtype))


@draws()
def constant(d: Drawer) -> None:
    dtype = d.chance.choice(TYPES)
    dims = [d.chance.choice("1234") for _ in range(d.chance.randint(0, 2))]
    array = d.array(tuple(map(int, dims)), dtype)
    d.bind(dims, dtype, f'R.const({array.tolist()}, "{dtype}")', lambda r: array)
