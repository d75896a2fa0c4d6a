"""Random tensor programs and arguments for them, the same for the same seed on every machine.

A program grows stage by stage: each stage computes a new tensor from those there are. What no later
stage uses becomes an output. Stages are chosen to be tame: values stay of order one and results
depend continuously on inputs, so that two correct programs agree within rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.script.compute import Element, Program, Tensor, comm_reducer
from blockwright.testing.arrays import MOST

_INT64 = ir.dtype_of("int64")
_SIZES = (1, 2, 3, 5, 7, 8, 12, 16)
_KEPT = 0.1  # how often what a later stage uses is an output too

STAGES = ("unary", "binary", "broadcast", "reduce", "stencil", "pad", "transpose", "gather",
          "matmul", "where", "conv", "centre", "extreme",
          "moments", "epilogue", "mirror", "windows", "concat",
          "border")  # fmt: skip
UNUSUAL = ("chosen", "inner", "several", "update", "scatter")
"""Stages with blocks that do more than store one element, each its own: conditions, loops, several
stores, values changed in place, places that are data."""


def random_program(
    seed: int, *, stages: int | None = None, symbolic: bool | None = None, dtype: str = "float32",
    unusual: bool = False,
) -> ir.PrimFunc:  # fmt: skip
    """A random program with the attribute "num_outputs".

    Args:
        seed: decides everything.
        stages: number of blocks, 1 to 5 when not given.
        symbolic: whether dimensions may be symbols; left to the seed when not given.
        dtype: element type of the float tensors.
        unusual: whether stages may be of the kinds in `UNUSUAL` too.
    """
    chance = random.Random(seed)
    maker = _Maker(chance, chance.random() < 0.4 if symbolic is None else symbolic, dtype, seed)
    maker.kinds += UNUSUAL if unusual else ()
    for _ in range(stages or chance.randint(1, 5)):
        maker.stage()
    return maker.finish()


class _Maker:
    def __init__(self, chance: random.Random, symbolic: bool, dtype: str, seed: int) -> None:
        self.chance = chance
        self.dtype = dtype
        self.program = Program(f"random_{seed}")
        self.symbols = [ir.Var(n, _INT64) for n in ("n", "m")] if symbolic else []
        self.tensors: list[Tensor] = []
        self.unused: list[Tensor] = []
        self.consumed: list[Tensor] = []
        self.count = 0
        self.kinds: tuple[str, ...] = STAGES
        rank = chance.choice((1, 2, 2, 2, 3))
        self.param([self.size() for _ in range(rank)])

    def size(self) -> ir.Expr:
        if self.symbols and self.chance.random() < 0.5:
            return self.chance.choice(self.symbols)
        return ir.const(self.chance.choice(_SIZES), _INT64)

    def param(self, shape: list[ir.Expr], dtype: str | None = None) -> Tensor:
        tensor = self.program.param(self.name("in"), shape, dtype or self.dtype)
        if dtype is None:
            self.tensors.append(tensor)
        return tensor

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, *, rank: int = 0) -> Tensor:
        """A tensor of at least some rank; recent ones are likelier, and count as used."""
        fitting = [t for t in self.tensors if len(t.shape) >= rank]
        tensor = self.chance.choice(fitting[-3:]) if fitting else self.param(
            [self.size() for _ in range(rank)])  # fmt: skip
        self.use(tensor)
        return tensor

    def use(self, tensor: Tensor) -> None:
        if any(t is tensor for t in self.unused):
            self.unused = [t for t in self.unused if t is not tensor]
            self.consumed.append(tensor)

    def made(self, tensor: Tensor) -> None:
        self.tensors.append(tensor)
        self.unused.append(tensor)

    def stage(self) -> None:
        kind = self.chance.choice(self.kinds)
        method: Callable[[], Tensor] = getattr(self, f"_{kind}")
        self.made(method())

    def finish(self) -> ir.PrimFunc:
        bounds = {s.name: MOST for s in self.symbols}
        kept = [t for t in self.consumed if self.chance.random() < _KEPT]
        outputs = [*self.unused, *kept]
        attrs: dict[str, Any] = {"num_outputs": len(outputs)}
        if bounds:
            attrs["tir_var_upper_bound"] = bounds
            attrs["tir_var_lower_bound"] = dict.fromkeys(bounds, 1)
        return self.program.finish(outputs, attrs)

    # ---------------------------------------------------------------------------------- stages
    def compute(self, shape: Sequence[Any], body: Callable[..., Any]) -> Tensor:
        return self.program.compute(self.name("t"), shape, body)

    def _unary(self) -> Tensor:
        x = self.pick()
        fn = self.chance.choice(_UNARY)
        return self.compute(x.shape, lambda *i: fn(x[i]))

    def _binary(self) -> Tensor:
        """Two tensors of one shape: another one made so far, or a fresh input."""
        x = self.pick()
        same = [t for t in self.tensors if t is not x and _same_shape(t.shape, x.shape)]
        y = self.chance.choice(same) if same else self.param(list(x.shape))
        self.use(y)
        fn = self.chance.choice(_BINARY)
        return self.compute(x.shape, lambda *i: fn(x[i], y[i]))

    def _broadcast(self) -> Tensor:
        x = self.pick(rank=1)
        y = self.param([x.shape[-1]])
        fn = self.chance.choice(_BINARY)
        return self.compute(x.shape, lambda *i: fn(x[i], y[i[-1]]))

    def _reduce(self) -> Tensor:
        x = self.pick(rank=1)
        axis = self.chance.randrange(len(x.shape))
        shape = [*x.shape[:axis], *x.shape[axis + 1 :]]
        combiner = self.chance.choice(("sum", "max", "min"))
        spatial = len(shape)
        return self.program.reduce(
            self.name("r"), shape, [x.shape[axis]],
            lambda *i: x[(*i[:axis], i[spatial], *i[axis:spatial])], combiner)  # fmt: skip

    def _pad(self) -> Tensor:
        x = self.pick(rank=1)
        low, high = self.chance.randint(0, 2), self.chance.randint(1, 2)
        shape: list[ir.Expr] = [*x.shape[:-1], ir.add(x.shape[-1], low + high)]

        def body(*i: ir.Expr) -> ir.Expr:
            at = ir.sub(i[-1], low)
            inside = ir.logical_and(
                ir.compare(ir.GE, i[-1], low), ir.compare(ir.LT, at, x.shape[-1])
            )
            return ir.if_then_else(inside, x[(*i[:-1], at)], ir.const(0, x.dtype))

        return self.compute(shape, body)

    def _stencil(self) -> Tensor:
        """A window sum along the last axis of a padded tensor, as wide as the tensor was."""
        x = self.pick(rank=1)
        width = self.chance.choice((2, 3))
        shape: list[ir.Expr] = [*x.shape[:-1], ir.add(x.shape[-1], width - 1)]

        def padding(*i: ir.Expr) -> ir.Expr:
            inside = ir.compare(ir.LT, i[-1], x.shape[-1])
            return ir.if_then_else(inside, x[i], ir.const(0, x.dtype))

        padded = self.compute(shape, padding)
        spatial = len(x.shape)
        return self.program.reduce(
            self.name("w"), x.shape, [width],
            lambda *i: padded[(*i[: spatial - 1], ir.add(i[spatial - 1], i[spatial]))])  # fmt: skip

    def _transpose(self) -> Tensor:
        x = self.pick(rank=2)
        order = list(range(len(x.shape)))
        self.chance.shuffle(order)
        back = [order.index(k) for k in range(len(order))]
        return self.compute([x.shape[k] for k in order], lambda *i: x[tuple(i[k] for k in back)])

    def _gather(self) -> Tensor:
        x = self.pick(rank=1)
        count = self.size()
        rows = self.param([count], "int64")
        return self.compute([count, *x.shape[1:]], lambda *i: x[(rows[i[0]], *i[1:])])

    def _matmul(self) -> Tensor:
        x = self.pick(rank=2)
        inner = x.shape[-1]
        w = self.param([inner, self.size()])
        lead = len(x.shape) - 1
        return self.program.reduce(
            self.name("mm"), [*x.shape[:-1], w.shape[1]], [inner],
            lambda *i: ir.mul(x[(*i[:lead], i[lead + 1])], w[i[lead + 1], i[lead]]))  # fmt: skip

    def _conv(self) -> Tensor:
        """A strided convolution of the last axis over the channels of the one before it."""
        x = self.pick(rank=2)
        stride, taps = self.chance.choice((1, 2)), self.chance.choice((1, 2, 3))
        *lead, channels, width = x.shape

        def padding(*i: ir.Expr) -> ir.Expr:
            inside = ir.compare(ir.LT, i[-1], width)
            return ir.if_then_else(inside, x[i], ir.const(0, x.dtype))

        padded = self.compute([*lead, channels, ir.add(ir.mul(width, stride), taps)], padding)
        weight = self.param([self.size(), channels, ir.const(taps, _INT64)])
        n = len(lead)

        def term(*i: ir.Expr) -> ir.Expr:
            out, at, channel, tap = i[n:]
            window = ir.add(ir.mul(at, stride), tap)
            return ir.mul(padded[(*i[:n], channel, window)], weight[out, channel, tap])

        shape = [*lead, weight.shape[0], width]
        return self.program.reduce(self.name("conv"), shape, [channels, taps], term)

    def _centre(self) -> Tensor:
        """Each row less a statistic of it."""
        x = self.pick(rank=1)
        rows = len(x.shape) - 1
        combiner = self.chance.choice(("max", "min"))
        statistic = self.program.reduce(
            self.name("s"), x.shape[:-1], [x.shape[-1]], lambda *i: x[i], combiner)  # fmt: skip
        return self.compute(x.shape, lambda *i: ir.sub(x[i], statistic[i[:rows]]))

    def _extreme(self) -> Tensor:
        """The largest or smallest of an input's rows with its position: a reduction of pairs.

        Of an input, because a position jumps where values that are rounded differently cross.
        """
        shape = [self.size() for _ in range(self.chance.choice((1, 2)))]
        x = self.param([*shape, self.size()])
        self.use(x)
        names = (self.name("e"), self.name("at"))
        value, place = self.program.reduce_tuple(
            names, shape, x.shape[-1:], lambda *i: (x[i], i[-1]),
            self.chance.choice(("argmax", "argmin")), (x.dtype, "int64"))  # fmt: skip
        self.unused.append(place)
        return value

    def _moments(self) -> Tensor:
        """Sum and sum of squares along the last axis, by a reducer of our own."""
        x = self.pick(rank=1)
        names = (self.name("m1"), self.name("m2"))
        first, second = self.program.reduce_tuple(
            names, x.shape[:-1], x.shape[-1:], lambda *i: (x[i], ir.mul(x[i], x[i])), _PAIR_SUM
        )
        self.made(first)
        return second

    def _epilogue(self) -> Tensor:
        """A reduction and what is combined with its result: a bias, a bound, or a ReLU."""
        total = self._reduce()
        bias = self.param(list(total.shape))
        self.use(bias)
        fn = self.chance.choice((ir.add, ir.maximum, ir.minimum))
        return self.compute(total.shape, lambda *i: fn(total[i], bias[i]))

    def _where(self) -> Tensor:
        x = self.pick(rank=1)

        def body(*i: ir.Expr) -> ir.Expr:
            even = ir.compare(ir.EQ, ir.floormod(i[-1], 2), 0)
            return ir.if_then_else(even, x[i], ir.mul(x[i], 0.5))

        return self.compute(x.shape, body)

    def _mirror(self) -> Tensor:
        """One axis backwards, at times beside what is there."""
        x = self.pick(rank=1)
        axis = self.chance.randrange(len(x.shape))
        both = self.chance.random() < 0.5

        def body(*i: ir.Expr) -> ir.Expr:
            at = ir.sub(ir.sub(x.shape[axis], 1), i[axis])
            turned = x[(*i[:axis], at, *i[axis + 1 :])]
            return ir.sub(x[i], ir.mul(turned, 0.5)) if both else turned

        return self.compute(x.shape, body)

    def _windows(self) -> Tensor:
        """Two window sums one after the other, the second over what the first one makes."""
        x = self.pick(rank=1)
        *lead, length = x.shape
        widths = self.chance.choice(((2, 3), (3, 2), (3, 3)))
        margin = sum(widths) - 2

        def padding(*i: ir.Expr) -> ir.Expr:
            inside = ir.compare(ir.LT, i[-1], length)
            return ir.if_then_else(inside, x[i], ir.const(0, x.dtype))

        made = self.compute([*lead, ir.add(length, margin)], padding)
        for width in widths:
            margin -= width - 1
            made = self._window(made, [*lead, ir.add(length, margin)], width)
        return made

    def _window(self, x: Tensor, shape: list[ir.Expr], width: int) -> Tensor:
        def body(*i: ir.Expr) -> ir.Expr:
            total = x[i]
            for k in range(1, width):
                total = ir.add(total, x[(*i[:-1], ir.add(i[-1], k))])
            return ir.mul(total, 1 / width)

        return self.compute(shape, body)

    def _concat(self) -> Tensor:
        """Two tensors behind one another along an axis: a buffer with two writers."""
        x = self.pick(rank=1)
        axis = self.chance.randrange(len(x.shape))
        shape = list(x.shape)
        shape[axis] = self.size()
        y = self.param(shape)
        start = x.shape[axis]

        def behind(*i: ir.Expr) -> list[ir.Expr]:
            return [*i[:axis], ir.add(i[axis], start), *i[axis + 1 :]]

        whole = [*shape[:axis], ir.add(start, shape[axis]), *shape[axis + 1 :]]
        joined = self.program.alloc(self.name("cat"), whole, x.dtype)

        def same(*i: ir.Expr) -> ir.Expr:
            return x[i]

        def half(*i: ir.Expr) -> ir.Expr:
            return ir.mul(y[i], 0.5)

        def before(*i: ir.Expr) -> Sequence[ir.Expr]:
            return i

        parts = [(x.shape, same, before), (shape, half, behind)]
        self.chance.shuffle(parts)
        for extents, body, place in parts:
            self.program.compute("part", extents, body, into=(joined, place))
        return joined

    def _chosen(self) -> Tensor:
        """Stores under a condition: over what is there already, or read where they happen."""
        x = self.pick(rank=1)
        kind = self.chance.choice(("even", "beyond", "mask"))
        mask = self.param(list(x.shape), "int64") if kind == "mask" else None

        def holds(*i: ir.Expr) -> ir.Expr:
            if kind == "beyond":
                return ir.compare(ir.GE, i[-1], 1)
            return ir.compare(ir.EQ, ir.floormod(i[-1] if mask is None else mask[i], 2), 0)

        framed, other = self.chance.random() < 0.5, self.chance.random() < 0.3
        made = self.program.alloc(self.name("chosen"), x.shape, x.dtype)
        if framed:
            half = ir.const(0.5, x.dtype)
            self.program.compute("frame", x.shape, lambda *i: half, into=(made, lambda *i: i))

        def body(*i: ir.Expr) -> ir.Stmt:
            store = ir.BufferStore(made.buffer, x[i], i)
            rest = ir.BufferStore(made.buffer, ir.mul(x[i], 0.5), i) if other else None
            return ir.IfThenElse(holds(*i), store, rest)

        self.program.block("choice", x.shape, body)
        return made if framed or other else self._where_made(made, holds)

    def _where_made(self, x: Tensor, holds: Callable[..., ir.Expr]) -> Tensor:
        zero = ir.const(0, x.dtype)
        return self.compute(x.shape, lambda *i: ir.if_then_else(holds(*i), x[i], zero))

    def _inner(self) -> Tensor:
        """A block that makes a row in a loop of its own: all of it, its beginning, or every second
        element."""
        x = self.pick(rank=2)
        length = x.shape[-1]
        kind = self.chance.choice(("whole", "short", "gaps"))
        made = self.program.alloc(self.name("inner"), x.shape, x.dtype)

        def body(*lead: ir.Expr) -> ir.Stmt:
            j = ir.Var("j", length.dtype)
            extent, at = length, ir.as_expr(j)
            if kind == "short":
                extent = ir.minimum(lead[-1], length)
            elif kind == "gaps":
                extent, at = ir.floordiv(ir.add(length, 1), 2), ir.mul(j, 2)
            store = ir.BufferStore(made.buffer, ir.mul(x[(*lead, at)], 0.5), (*lead, at))
            return ir.For(j, ir.const(0, length.dtype), extent, ir.ForKind.SERIAL, store)

        def holds(*i: ir.Expr) -> ir.Expr:
            if kind == "short":
                return ir.compare(ir.LT, i[-1], i[-2])
            return ir.compare(ir.EQ, ir.floormod(i[-1], 2), 0)

        self.program.block("row", x.shape[:-1], body)
        return made if kind == "whole" else self._where_made(made, holds)

    def _several(self) -> Tensor:
        """A block that makes two neighbours along the last axis in each iteration."""
        x = self.pick(rank=1)
        shape: list[ir.Expr] = [*x.shape[:-1], ir.mul(x.shape[-1], 2)]

        def body(*i: ir.Expr) -> tuple[list[tuple[ir.Var, ir.Expr]], list[Element]]:
            first = ir.mul(i[-1], 2)
            half = ir.Var("half", x.dtype)
            places = [[*i[:-1], first], [*i[:-1], ir.add(first, 1)]]
            return [(half, ir.mul(x[i], 0.5))], [(places[0], half), (places[1], ir.sub(half, 1.0))]

        return self.program.compute_several(self.name("pairs"), shape, x.shape, body, x.dtype)

    def _update(self) -> Tensor:
        """A tensor that is made, and then changed in place."""
        x = self.pick(rank=1)
        made = self.program.alloc(self.name("changed"), x.shape, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: x[i], into=(made, lambda *i: i))
        self.program.compute("change", x.shape, lambda *i: ir.add(ir.mul(made[i], 0.5), 1.0),
                             into=(made, lambda *i: i))  # fmt: skip
        return made

    def _scatter(self) -> Tensor:
        """Rows put where data says, over zeros; the last of those for one place stays."""
        x = self.pick(rank=1)
        rows = self.param([x.shape[0]], "int64")
        made = self.program.alloc(self.name("put"), x.shape, x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", x.shape, lambda *i: zero, into=(made, lambda *i: i))
        self.program.compute("put", x.shape, lambda *i: x[i],
                             into=(made, lambda *i: (rows[i[0]], *i[1:])))  # fmt: skip
        return made

    def _border(self) -> Tensor:
        """Zeros everywhere, and then a tensor inside of them: two writers in order."""
        x = self.pick(rank=1)
        low, high = self.chance.randint(0, 2), self.chance.randint(0, 2)
        shape: list[ir.Expr] = [*x.shape[:-1], ir.add(x.shape[-1], low + high)]

        def inside(*i: ir.Expr) -> list[ir.Expr]:
            return [*i[:-1], ir.add(i[-1], low)]

        framed = self.program.alloc(self.name("framed"), shape, x.dtype)
        zero = ir.const(0, x.dtype)
        self.program.compute("frame", shape, lambda *i: zero, into=(framed, lambda *i: i))
        self.program.compute("picture", x.shape, lambda *i: x[i], into=(framed, inside))
        return framed


def _add_pairs(a: ir.Expr, b: ir.Expr, c: ir.Expr, d: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    return ir.add(a, c), ir.add(b, d)


def _zeros(s: ir.DType, t: ir.DType) -> tuple[ir.Expr, ir.Expr]:
    return ir.const(0, s), ir.const(0, t)


_PAIR_SUM = comm_reducer(_add_pairs, _zeros)
_UNARY: tuple[Callable[[ir.Expr], ir.Expr], ...] = (
    lambda x: ir.call("tanh", x),
    lambda x: ir.call("sigmoid", x),
    lambda x: ir.maximum(x, ir.const(0, x.dtype)),
    lambda x: ir.add(ir.mul(x, 0.5), 1.0),
    lambda x: ir.call("abs", x),
)
_BINARY: tuple[Callable[[ir.Expr, ir.Expr], ir.Expr], ...] = (
    ir.add,
    ir.sub,
    ir.minimum,
    ir.maximum,
    lambda x, y: ir.mul(x, ir.call("tanh", y)),
)


def _same_shape(a: tuple[ir.Expr, ...], b: tuple[ir.Expr, ...]) -> bool:
    return len(a) == len(b) and all(ir.structural_equal(x, y) for x, y in zip(a, b, strict=True))
