"""Valid modules to mutate: all kinds of calls and annotations, and imported PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from blockwright import ir
from blockwright.script.ir import from_source

_PROGRAMS = """
    @T.prim_func(private=True)
    def inc(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("Y"):
                vi = T.axis.spatial(4, i)
                Y[vi] = X[vi] + T.float32(1)

    @T.prim_func(private=True)
    def twice(x: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n, 4), "float32")
        Y = T.match_buffer(y, (n * 2, 4), "float32")
        for i, j in T.grid(n * 2, 4):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[vi // 2, vj] * T.float32(2)

    @T.prim_func(private=True)
    def moments(x: T.handle, s: T.handle, q: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        S = T.match_buffer(s, (n,), "float32")
        Q = T.match_buffer(q, (n,), "float32")
        for i, k in T.grid(n, m):
            with T.block("S"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = T.float32(0)
                S[vi] = S[vi] + X[vi, vk]
        for i, k in T.grid(n, m):
            with T.block("Q"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    Q[vi] = T.float32(0)
                Q[vi] = Q[vi] + X[vi, vk] * X[vi, vk]

    @T.prim_func(private=True)
    def filled(k: T.int64, y: T.handle):
        n = T.int64()
        Y = T.match_buffer(y, (n, 3), "int32")
        for i, j in T.grid(n, 3):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.Cast("int32", k + vi)

    @T.prim_func(private=True)
    def half(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float16")):
        for i in range(4):
            with T.block("Y"):
                vi = T.axis.spatial(4, i)
                Y[vi] = T.Cast("float16", X[vi])
"""

_MAINS = {
    "static": """
    def main(
        x: R.Tensor((4,), "float32"), y: R.Tensor((3, 4), "float32"),
    ) -> R.Tensor((3, 4), "float32"):
        a: R.Tensor((4,), "float32") = R.add(x, x)
        b: R.Tensor((3, 4), "float32") = R.multiply(y, a)
        return b
""",
    "symbolic": """
    def main(
        x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n",), "float32"),
    ) -> R.Tensor(("n * 4",), "float32"):
        n = T.int64()
        with R.dataflow():
            a: R.Tensor((n, 1), "float32") = R.expand_dims(y, axis=1)
            b: R.Tensor((n, 4), "float32") = R.add(x, a)
            c: R.Tensor((n * 4,), "float32") = R.reshape(b, R.shape([n * 4]))
            R.output(c)
        return c
""",
    "tir": """
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float16"):
        a: R.Tensor((4,), "float32") = R.call_tir(
            cls.inc, (x,), out_sinfo=R.Tensor((4,), "float32"))
        b: R.Tensor((4,), "float32") = R.exp(a)
        c = R.call_tir(cls.half, (b,), out_sinfo=R.Tensor((4,), "float16"))
        return c
""",
    "tir_symbolic": """
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n * 4", 4), "float32"):
        n = T.int64()
        a = R.call_tir(cls.twice, (x,), out_sinfo=R.Tensor((n * 2, 4), "float32"))
        b = R.call_tir(cls.twice, (a,), out_sinfo=R.Tensor((n * 4, 4), "float32"))
        return b
""",
    "tir_tuple": """
    def main(
        x: R.Tensor(("n", "m"), "float32"),
    ) -> R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n", 1), "float32")):
        n = T.int64()
        m = T.int64()
        p: R.Tuple(R.Tensor((n,), "float32"), R.Tensor((n,), "float32")) = R.call_tir(
            cls.moments, (x,), out_sinfo=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
        a = R.subtract(p[0], p[1])
        b = R.expand_dims(p[1], axis=1)
        return (a, b)
""",
    "tir_vars": """
    def main(x: R.Tensor(("n", "m"), "float32")):
        n = T.int64()
        m = T.int64()
        a = R.call_tir(cls.filled, (), out_sinfo=R.Tensor((n, 3), "int32"), tir_vars=R.shape([m]))
        b = R.astype(a, dtype="float32")
        c: R.Tensor((n,), "float32") = R.sum(b, axes=1)
        return c
""",
    "cast": """
    def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("k",), "float32")):
        n = T.int64()
        k = T.int64()
        m = T.int64()
        a = R.match_cast(x, R.Tensor((k, 4), "float32"))
        b: R.Tensor((k, 4), "float32") = R.add(a, R.expand_dims(y, axis=1))
        c = R.match_cast(b, R.Tensor((m, 4), "float32"))
        d = R.add(c, a)
        e: R.Tensor((m * 4,), "float32") = R.reshape(d, R.shape([m * 4]))
        return (d, e)
""",
    "tuples": """
    def main(x: R.Tensor((2, 6), "float32"), i: R.Tensor((3,), "int64")):
        p: R.Tuple(R.Tensor((2, 3), "float32"), R.Tensor((2, 3), "float32")) = R.split(
            x, indices_or_sections=2, axis=1)
        q = (p[1], p[0], i)
        t: R.Tensor((2, 3), "float32") = q[0]
        a = R.take(t, q[2], axis=1)
        b: R.Tensor((2, 6), "float32") = R.concat((a, p[0]), axis=1)
        return (b, R.equal(a, p[0]))
""",
    "constants": """
    def main(x: R.Tensor((3,), "int32")) -> R.Tensor((3,), "bool"):
        c: R.Tensor((3,), "int32") = R.const([1, 2, 3], "int32")
        a = R.multiply(x, c)
        b: R.Tensor((), "int32") = R.max(a)
        return R.less(a, b)
""",
    "views": """
    def main(
        x: R.Tensor((2, 3, 4), "float32"), w: R.Tensor((4, 5), "float32"),
    ) -> R.Tensor((5, 6), "float32"):
        a: R.Tensor((6, 4), "float32") = R.reshape(x, R.shape([6, 4]))
        b: R.Tensor((6, 5), "float32") = R.matmul(a, w)
        c = R.permute_dims(b, axes=[1, 0])
        d: R.Tensor((5, 6), "float32") = R.softmax(c, axis=-1)
        e = d
        return e
""",
    "shapes": """
    def main(x: R.Tensor(("a", "b"), "float32")) -> R.Tensor(("b", "a"), "float32"):
        a = T.int64()
        b = T.int64()
        s: R.Shape([a, b]) = R.shape_of(x)
        t = R.shape([b, a])
        y: R.Tensor((b, a), "float32") = R.reshape(x, t)
        z: R.Tensor((b, a), "float32") = R.broadcast_to(R.mean(y, axes=0, keepdims=True), t)
        return R.add(y, z)
""",
    "functions": """
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        @R.function
        def local(u: R.Tensor(("k",), "float32")) -> R.Tensor(("k",), "float32"):
            v: R.Tensor(("k",), "float32") = R.exp(u)
            return v
        a: R.Tensor((4,), "float32") = cls.helper(x)
        b: R.Tensor((4,), "float32") = local(a)
        return b

    @R.function(private=True)
    def helper(u: R.Tensor(("k",), "float32")) -> R.Tensor(("k",), "float32"):
        k = T.int64()
        v: R.Tensor((k,), "float32") = R.add(u, u)
        return v
""",
    "ended": """
    def main(
        x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32"), c: R.Tensor((), "bool"),
    ):
        n = T.int64()
        k = T.int64()
        m = T.int64()
        @R.function
        def local(u: R.Tensor(ndim=1, dtype="float32")) -> R.Tensor(ndim=1, dtype="float32"):
            v = R.match_cast(R.unique(u), R.Tensor((m,), "float32"))
            return v
        if c:
            a = R.match_cast(R.unique(x), R.Tensor((m,), "float32"))
        else:
            a = R.match_cast(R.unique(y), R.Tensor((m,), "float32"))
        b = R.match_cast(R.unique(y), R.Tensor((m,), "float32"))
        d: R.Tensor(ndim=1, dtype="float32") = local(x)
        e: R.Tensor(ndim=1, dtype="float32") = a
        f: R.Tensor((m,), "float32") = R.add(b, b)
        return (d, e, f)
""",
    "passed": """
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")):
        n = T.int64()
        k = T.int64()
        @R.function
        def local(u: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
            return R.add(u, x)
        @R.function
        def other(u: R.Tensor(("p",), "float32")) -> R.Tensor(("p",), "float32"):
            return R.exp(u)
        f: R.Callable((R.Tensor((n,), "float32"),), R.Tensor((n,), "float32")) = local
        g: R.Callable((R.Tensor((k,), "float32"),), R.Tensor((k,), "float32")) = other
        a: R.Tensor((n,), "float32") = cls.apply(f, x)
        b: R.Tensor((k,), "float32") = cls.apply(g, y)
        c: R.Tensor((n,), "float32") = cls.apply(other, a)
        return (b, c)

    @R.function(private=True)
    def apply(
        f: R.Callable((R.Tensor(("a",), "float32"),), R.Tensor(("a",), "float32")),
        v: R.Tensor(("a",), "float32"),
    ) -> R.Tensor(("a",), "float32"):
        return f(v)
""",
}  # fmt: skip


WRITTEN = frozenset(_MAINS)


def scripts() -> dict[str, ir.IRModule]:
    """The handwritten modules, each with the programs that it calls."""
    result: dict[str, ir.IRModule] = {}
    for name, main in _MAINS.items():
        body = main.strip("\n")
        whole = from_source(f"@I.ir_module\nclass M:\n{_PROGRAMS}\n    @R.function\n{body}\n")
        kept = {
            n: f
            for n, f in whole.functions.items()
            if isinstance(f, ir.GraphFunction) or f"cls.{n}," in body
        }
        result[name] = whole.replace(functions=kept)
    return result


@cache
def imported() -> dict[str, ir.IRModule]:
    """Modules imported from PyTorch; none if it is not installed."""
    if find_spec("torch") is None:
        return {}
    torch: Any = import_module("torch")
    from_program: Callable[..., ir.IRModule] = import_module(
        "blockwright.frontend.torch"
    ).from_exported_program
    result: dict[str, ir.IRModule] = {}
    torch.manual_seed(0)
    for name, model, args, shapes in _models(torch):
        with torch.no_grad():
            program = torch.export.export(model.eval(), args, dynamic_shapes=shapes, strict=False)
        result[name] = from_program(program, shapes, "error")
    return result


def _models(torch: Any) -> list[tuple[str, Any, tuple[Any, ...], Any]]:
    nn = torch.nn
    batch = torch.export.Dim("b", min=1, max=16)

    class Joined(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            a, b = x.chunk(2, -1)
            z = torch.cat([a * b, y], -1)
            return z.transpose(0, 1).reshape(-1), z.softmax(-1), torch.where(z > 0, z, 0.0)

    mlp = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2))
    conv = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    joined = (torch.randn(3, 8), torch.randn(3, 5))
    first = ({0: batch},)
    return [
        ("mlp", mlp, (torch.randn(3, 6),), None),
        ("mlp_dynamic", mlp, (torch.randn(3, 6),), first),
        ("conv", conv, (torch.randn(2, 2, 6, 6),), None),
        ("conv_dynamic", conv, (torch.randn(2, 2, 6, 6),), first),
        ("joined", Joined(), joined, None),
        ("joined_dynamic", Joined(), joined, ({0: batch}, {0: batch})),
    ]
