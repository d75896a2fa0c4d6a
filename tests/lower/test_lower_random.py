"""Random programs compute the same before and after every pass."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from blockwright import ir
from blockwright.ir import Buffer, Expr, For, ForKind, PrimFunc, Stmt, Var
from blockwright.ir import stmt as S
from blockwright.lower import LOWERING, LowerContext
from blockwright.target import Target

Run = Callable[..., list[np.ndarray]]
SIZE = 24
I64 = ir.dtype_of("int64")


def number(value: int) -> Expr:
    return ir.const(value, I64)


class Generator:
    """Loop nests over a few buffers: tiles, guards, temporaries reused across iterations or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.params = [Buffer(name, ir.dtype_of("float32"), (number(SIZE),)) for name in "AB"]
        self.temps = [Buffer(f"t{i}", ir.dtype_of("float32"), (number(SIZE),)) for i in range(2)]
        self.counter = 0

    def index(self, loops: list[tuple[Var, int]]) -> Expr:
        """Sum of some loop variables with coefficients, inside the buffers."""
        index, room = number(0), SIZE - 1
        for var, extent in self.random.sample(loops, min(len(loops), self.random.randint(0, 3))):
            coefficient = self.random.choice([1, 1, 2, 4])
            if coefficient * (extent - 1) <= room:
                room -= coefficient * (extent - 1)
                index = ir.add(index, ir.mul(var, coefficient))
        return ir.add(index, self.random.choice([0, 0, self.random.randint(0, room)]))

    def value(self, loops: list[tuple[Var, int]]) -> Expr:
        total = ir.load(self.params[0], self.index(loops))
        for _ in range(self.random.randint(0, 2)):
            source = self.random.choice([*self.temps, self.params[1]])
            total = ir.add(total, ir.mul(ir.load(source, self.index(loops)), 0.5))
        return total

    def store(self, loops: list[tuple[Var, int]]) -> Stmt:
        target = self.random.choice([*self.temps, *self.temps, self.params[1]])
        return S.BufferStore(target, self.value(loops), (self.index(loops),))

    def guarded(self, body: Stmt, loops: list[tuple[Var, int]]) -> Stmt:
        if not loops or self.random.random() < 0.7:
            return body
        limit = number(self.random.randint(0, SIZE))
        test = self.random.choice([ir.expr.LT, ir.expr.EQ, ir.expr.GE])
        return S.IfThenElse(test(self.index(loops), limit), body)

    def statement(self, loops: list[tuple[Var, int]]) -> Stmt:
        if len(loops) >= 3 or self.random.random() < 0.35:
            return self.guarded(self.store(loops), loops)
        self.counter += 1
        var = Var(f"i{self.counter}", I64)
        extent = self.random.randint(1, 5)
        inner = [self.statement([*loops, (var, extent)]) for _ in range(self.random.randint(1, 3))]
        kind = self.random.choice([ForKind.SERIAL, ForKind.SERIAL, ForKind.UNROLLED])
        hints: dict[str, int] = {"loop_partition": True} if self.random.random() < 0.3 else {}
        if kind is ForKind.SERIAL and self.random.random() < 0.3:
            hints["tail_specialization"] = self.random.randint(1, 2)
        loop = For(var, number(0), number(extent), kind, ir.seq(inner), annotations=hints)
        return self.guarded(loop, loops)

    def function(self) -> PrimFunc:
        body = ir.seq([self.statement([]) for _ in range(self.random.randint(2, 4))])
        root = S.Block("root", (), (), (), body, alloc_buffers=tuple(self.temps))
        handles = [Var(f"p{i}", ir.dtype_of("handle")) for i in range(2)]
        realize = S.BlockRealize((), ir.const(True, "bool"), root)
        pairs = tuple(zip(handles, self.params, strict=True))
        return PrimFunc(tuple(handles), pairs, realize)


def test_random_loop_nests(run: Run, fuzz_factor: int) -> None:
    """Values that nobody wrote are free to change; all others are the same after every pass."""
    rng = np.random.default_rng(3)
    moved = 0
    for seed in range(80 * fuzz_factor):
        func = Generator(seed).function()
        arrays = [rng.standard_normal(SIZE).astype("float32") for _ in range(2)]
        want = run(func, *arrays)[1]
        defined = ~np.isnan(want)
        context = LowerContext(Target("x86-64-v3"))
        for name, pass_ in LOWERING:
            func = pass_(func, context)
            if name == "compact_buffers":
                sizes = [a.buffer.shape[0] for a in ir.collect(func.body, S.Allocate)]
                moved += sum(not ir.is_const_int(size, SIZE) for size in sizes)
            got = run(func, *arrays)[1]
            np.testing.assert_allclose(
                got[defined], want[defined], rtol=1e-5, err_msg=f"seed {seed}, after {name}"
            )
    assert moved > 10 * fuzz_factor  # the interesting case happens


def test_random_tilings_of_two_stages(run: Run, fuzz_factor: int) -> None:
    """A producer computed per tile of its consumer, with a halo, for sizes that do not divide."""
    rng = np.random.default_rng(4)
    for seed in range(30 * fuzz_factor):
        pick = random.Random(seed)
        n, tile, halo = pick.randint(3, 30), pick.choice([2, 4, 8]), pick.randint(0, 3)
        func = two_stages(tile, halo, pick)
        arrays = [rng.standard_normal(size).astype("float32") for size in (n + halo, n)]
        want = run(func, *arrays)[1]
        exact = sum(2 * arrays[0][h : h + n] for h in range(halo + 1))
        np.testing.assert_allclose(want, exact, rtol=1e-4, atol=1e-5)
        context = LowerContext(Target("x86-64-v3"))
        for name, pass_ in LOWERING:
            func = pass_(func, context)
            got = run(func, *arrays)[1]
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"seed {seed}, after {name}")
        for allocate in ir.collect(func.body, S.Allocate):
            lanes, needed = Target("x86-64-v3").lanes("float32"), tile + halo
            if allocate.buffer.scope == "local" and needed > lanes // 2:
                needed = -(-needed // lanes) * lanes  # whole vectors, which may be registers
            assert ir.const_int(allocate.buffer.shape[0]) == needed


def two_stages(tile: int, halo: int, pick: random.Random) -> PrimFunc:
    n = Var("n", I64)
    a = Buffer("A", ir.dtype_of("float32"), (ir.add(n, halo),))
    c = Buffer("C", ir.dtype_of("float32"), (n,))
    b = a.replace(name="B", scope=pick.choice(["local", "global"]))
    outer, i, j, h = (Var(name, I64) for name in ("o", "i", "j", "h"))

    def block(name: str, stmt: Callable[[Var], Stmt], bound: Expr, limit: Expr) -> Stmt:
        vi = Var("vi", I64)
        iters = (ir.IterVar(vi, ir.Range(number(0), limit)),)
        return S.BlockRealize(
            (bound,), ir.compare(ir.expr.LT, bound, limit), S.Block(name, iters, (), (), stmt(vi))
        )

    def loop(var: Var, extent: int, kinds: list[ForKind], body: Stmt) -> Stmt:
        return For(var, number(0), number(extent), pick.choice(kinds), body)

    def consume(vi: Var) -> Stmt:
        update = S.BufferStore(c, ir.add(ir.load(c, vi), ir.load(b, ir.add(vi, h))), (vi,))
        return ir.seq(
            [
                S.BufferStore(c, ir.const(0.0, "float32"), (vi,)),
                For(h, number(0), number(halo + 1), ForKind.SERIAL, update),
            ]
        )

    kinds = [ForKind.SERIAL, ForKind.UNROLLED, ForKind.VECTORIZED]
    base = ir.mul(outer, tile)
    first = block(
        "B",
        lambda v: S.BufferStore(b, ir.mul(ir.load(a, v), 2.0), (v,)),
        ir.add(base, i),
        ir.add(n, halo),
    )
    second = block("C", consume, ir.add(base, j), n)
    body = ir.seq([loop(i, tile + halo, kinds, first), loop(j, tile, kinds, second)])
    whole = For(
        outer,
        number(0),
        ir.ceildiv(n, number(tile)),
        pick.choice([ForKind.SERIAL, ForKind.PARALLEL]),
        body,
        annotations=pick.choice([{}, {"loop_partition": True}]),
    )
    root = S.Block("root", (), (), (), whole, alloc_buffers=(b,))
    handles = tuple(Var(name, ir.dtype_of("handle")) for name in "pc")
    return PrimFunc(
        handles,
        ((handles[0], a), (handles[1], c)),
        S.BlockRealize((), ir.const(True, "bool"), root),
    )
