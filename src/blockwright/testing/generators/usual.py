"""Stages whose blocks store one element per iteration, as operators do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from blockwright import ir
from blockwright.script.compute import Tensor, comm_reducer
from blockwright.testing.generators.integers import INTEGERS, Integers, large_index
from blockwright.testing.generators.maker import INT64, Maker


class Usual(Maker):
    """One method per kind of stage; it returns the tensor that the stage computes."""

    def _unary(self) -> Tensor:
        x = self.pick()
        fn = self.chance.choice(_UNARY)
        return self.compute(x.shape, lambda *i: fn(x[i]))

    def _binary(self) -> Tensor:
        """Combine two tensors of one shape: an earlier one and another, or a new input."""
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
            self.name("r"),
            shape,
            [x.shape[axis]],
            lambda *i: x[(*i[:axis], i[spatial], *i[axis:spatial])],
            combiner,
        )

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
        """Sum a window along the last axis of a padded tensor; the shape is unchanged."""
        x = self.pick(rank=1)
        width = self.chance.choice((2, 3))
        shape: list[ir.Expr] = [*x.shape[:-1], ir.add(x.shape[-1], width - 1)]

        def padding(*i: ir.Expr) -> ir.Expr:
            inside = ir.compare(ir.LT, i[-1], x.shape[-1])
            return ir.if_then_else(inside, x[i], ir.const(0, x.dtype))

        padded = self.compute(shape, padding)
        spatial = len(x.shape)
        return self.program.reduce(
            self.name("w"),
            x.shape,
            [width],
            lambda *i: padded[(*i[: spatial - 1], ir.add(i[spatial - 1], i[spatial]))],
        )

    def _transpose(self) -> Tensor:
        x = self.pick(rank=2)
        order = list(range(len(x.shape)))
        self.chance.shuffle(order)
        back = [order.index(k) for k in range(len(order))]
        return self.compute([x.shape[k] for k in order], lambda *i: x[tuple(i[k] for k in back)])

    def _gather(self) -> Tensor:
        x = self.pick(rank=1)
        count = self.size()
        if ir.collect(x.shape[0], ir.FloorDiv):  # may be 0: then gather no rows
            count = x.shape[0]
        rows = self.param([count], "int64")
        return self.compute([count, *x.shape[1:]], lambda *i: x[(rows[i[0]], *i[1:])])

    def _matmul(self) -> Tensor:
        x = self.pick(rank=2)
        inner = x.shape[-1]
        w = self.param([inner, self.size()])
        lead = len(x.shape) - 1
        return self.program.reduce(
            self.name("mm"),
            [*x.shape[:-1], w.shape[1]],
            [inner],
            lambda *i: ir.mul(x[(*i[:lead], i[lead + 1])], w[i[lead + 1], i[lead]]),
        )

    def _narrow(self) -> Tensor:
        """A matrix product of narrow elements, accumulated in a wider type.

        Sums of integers wrap around, and only a few of their bits are added to the tensor.
        """
        x = self.pick(rank=1)
        kinds = self.chance.choice((("int8", "uint8"), ("int8", "int16"), INTEGERS, _HALVES))
        whole = kinds is not _HALVES
        rows, inner, columns = x.shape[0], self.size(), x.shape[-1]
        a = self.param([rows, inner], self.chance.choice(kinds))
        b = self.param([inner, columns], self.chance.choice(kinds))
        dtype = ir.dtype_of(self.chance.choice(("int32", "int32", "int64")) if whole else x.dtype)

        def term(i: ir.Expr, j: ir.Expr, k: ir.Expr) -> ir.Expr:
            return ir.mul(ir.cast_to(a[i, k], dtype), ir.cast_to(b[k, j], dtype))

        product = self.program.reduce(
            self.name("narrow"), [rows, columns], [inner], term, dtype=dtype
        )
        self.unused.append(product)

        def joined(*i: ir.Expr) -> ir.Expr:
            value: ir.Expr = product[i[0], i[-1]]
            if whole:
                value = ir.cast_to(ir.call("bitwise_and", value, ir.const(3, dtype)), x.dtype)
            return ir.add(ir.mul(x[i], 0.5), value)

        return self.compute(x.shape, joined)

    def _conv(self) -> Tensor:
        """A strided convolution along the last axis; the axis before it holds the channels."""
        x = self.pick(rank=2)
        stride, taps = self.chance.choice((1, 2)), self.chance.choice((1, 2, 3))
        *lead, channels, width = x.shape

        def padding(*i: ir.Expr) -> ir.Expr:
            inside = ir.compare(ir.LT, i[-1], width)
            return ir.if_then_else(inside, x[i], ir.const(0, x.dtype))

        padded = self.compute([*lead, channels, ir.add(ir.mul(width, stride), taps)], padding)
        weight = self.param([self.size(), channels, ir.const(taps, INT64)])
        n = len(lead)

        def term(*i: ir.Expr) -> ir.Expr:
            out, at, channel, tap = i[n:]
            window = ir.add(ir.mul(at, stride), tap)
            return ir.mul(padded[(*i[:n], channel, window)], weight[out, channel, tap])

        shape = [*lead, weight.shape[0], width]
        return self.program.reduce(self.name("conv"), shape, [channels, taps], term)

    def _centre(self) -> Tensor:
        """Subtract from each row its maximum or minimum."""
        x = self.pick(rank=1)
        rows = len(x.shape) - 1
        combiner = self.chance.choice(("max", "min"))
        statistic = self.program.reduce(
            self.name("s"), x.shape[:-1], [x.shape[-1]], lambda *i: x[i], combiner
        )
        return self.compute(x.shape, lambda *i: ir.sub(x[i], statistic[i[:rows]]))

    def _extreme(self) -> Tensor:
        """Argmax or argmin of the rows of an input: a reduction of (value, position) pairs.

        Rows of an input, because rounding of computed values could change the position.
        """
        shape = [self.size() for _ in range(self.chance.choice((1, 2)))]
        x = self.param([*shape, self.size()])
        self.use(x)
        names = (self.name("e"), self.name("at"))
        value, place = self.program.reduce_tuple(
            names,
            shape,
            x.shape[-1:],
            lambda *i: (x[i], i[-1]),
            self.chance.choice(("argmax", "argmin")),
            (x.dtype, "int64"),
        )
        self.unused.append(place)
        return value

    def _moments(self) -> Tensor:
        """Sum and sum of squares along the last axis, with a custom reducer."""
        x = self.pick(rank=1)
        names = (self.name("m1"), self.name("m2"))
        first, second = self.program.reduce_tuple(
            names, x.shape[:-1], x.shape[-1:], lambda *i: (x[i], ir.mul(x[i], x[i])), _PAIR_SUM
        )
        self.made(first)
        return second

    def _epilogue(self) -> Tensor:
        """A reduction, then an elementwise operation: adding a bias, or a bound such as ReLU."""
        total = self._reduce()
        bias = self.param(list(total.shape))
        self.use(bias)
        fn = self.chance.choice((ir.add, ir.maximum, ir.minimum))
        return self.compute(total.shape, lambda *i: fn(total[i], bias[i]))

    def _integers(self) -> Tensor:
        """Integer arithmetic that reaches the limits of its types and wraps around.

        A few bits of the results are added to the tensor.
        """
        x = self.pick(rank=1)
        types = [self.chance.choice(INTEGERS) for _ in range(2)]
        given = [self.param(list(x.shape), name) for name in types]
        dtype = ir.dtype_of(self.chance.choice(types))
        state, depth = self.chance.getrandbits(32), self.chance.randint(1, 3)

        def body(*i: ir.Expr) -> ir.Expr:
            leaves = [t[i] for t in given]
            leaves.append(ir.add(leaves[0], ir.cast_to(i[-1], leaves[0].dtype)))
            return Integers(random.Random(state), leaves).value(dtype, depth)

        result = self.compute(x.shape, body)
        self.unused.append(result)

        def joined(*i: ir.Expr) -> ir.Expr:
            bits = ir.call("bitwise_and", result[i], ir.const(3, dtype))
            return ir.add(ir.mul(x[i], 0.5), ir.cast_to(bits, x.dtype))

        return self.compute(x.shape, joined)

    def _large(self) -> Tensor:
        """Gather with indices whose computation exceeds 32 bits in between."""
        x = self.pick(rank=1)
        state = self.chance.getrandbits(32)

        def body(*i: ir.Expr) -> ir.Expr:
            chance, length = random.Random(state), ir.cast_to(x.shape[-1], "int32")
            place = ir.floormod(large_index(chance, ir.cast_to(i[-1], "int32")), length)
            return ir.add(x[i], ir.mul(x[(*i[:-1], ir.cast_to(place, i[-1].dtype))], 0.5))

        return self.compute(x.shape, body)

    def _where(self) -> Tensor:
        x = self.pick(rank=1)

        def body(*i: ir.Expr) -> ir.Expr:
            even = ir.compare(ir.EQ, ir.floormod(i[-1], 2), 0)
            return ir.if_then_else(even, x[i], ir.mul(x[i], 0.5))

        return self.compute(x.shape, body)

    def _mirror(self) -> Tensor:
        """Reverse one axis; sometimes subtract the result from the tensor."""
        x = self.pick(rank=1)
        axis = self.chance.randrange(len(x.shape))
        both = self.chance.random() < 0.5

        def body(*i: ir.Expr) -> ir.Expr:
            at = ir.sub(ir.sub(x.shape[axis], 1), i[axis])
            turned = x[(*i[:axis], at, *i[axis + 1 :])]
            return ir.sub(x[i], ir.mul(turned, 0.5)) if both else turned

        return self.compute(x.shape, body)

    def _windows(self) -> Tensor:
        """Two window sums in sequence; the second reads the result of the first."""
        x = self.pick(rank=1)
        *lead, length = x.shape
        widths = self.chance.choice(((2, 3), (3, 2), (3, 3)))
        margin = sum(widths) - 2

        def padding(*i: ir.Expr) -> ir.Expr:
            inside = ir.compare(ir.LT, i[-1], length)
            return ir.if_then_else(inside, x[i], ir.const(0, x.dtype))

        result = self.compute([*lead, ir.add(length, margin)], padding)
        for width in widths:
            margin -= width - 1
            result = self._window(result, [*lead, ir.add(length, margin)], width)
        return result

    def _window(self, x: Tensor, shape: list[ir.Expr], width: int) -> Tensor:
        def body(*i: ir.Expr) -> ir.Expr:
            total = x[i]
            for k in range(1, width):
                total = ir.add(total, x[(*i[:-1], ir.add(i[-1], k))])
            return ir.mul(total, 1 / width)

        return self.compute(shape, body)

    def _concat(self) -> Tensor:
        """Concatenate two tensors along an axis: a buffer with two writers."""
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

    def _border(self) -> Tensor:
        """Write zeros everywhere, then a tensor inside: two writers in order."""
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
_HALVES = ("bfloat16", "float16")
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
