"""Broken programs: whatever one writes in place of a part of a program, the parser and validation
take it or refuse it by a code and a place, and what they take prints and parses back."""

from __future__ import annotations

import ast
import copy
import random
import warnings

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.script.ir import from_source

PROGRAMS = [
    """
@T.prim_func
def main(a: T.handle, b: T.handle, n: T.int32):
    T.func_attr({"tir.noalias": True, "target": T.target("llvm"), "d": {"a": [1, 2]}})
    A = T.match_buffer(a, (n, 8), "float32", strides=[8, 1], align=64, offset_factor=1)
    B = T.match_buffer(b, (n,), "float32")
    for i, k in T.grid(n, 8):
        with T.block("B"):
            T.where(i * 8 + k < n * 8)
            vi, vk = T.axis.remap("SR", [i, k])
            T.reads(A[vi, vk])
            T.writes(B[vi])
            with T.init():
                B[vi] = T.min_value("float32")
            B[vi] = T.max(B[vi], T.Select(A[vi, vk] > 0.0, A[vi, vk], T.float32(0)))
""",
    """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "int32")):
    C = T.decl_buffer((4, 4), "float32", data=A.data, elem_offset=0)
    D = T.allocate_const([1, 2, 3, 4], "int32", [4])
    E = T.Buffer((4,), "int32", data=D)
    for i in T.serial(0, 4, annotations={"pragma": 1}):
        x: T.int32 = T.Cast("int32", C[i, 0]) + E[i]
        if x > 3 and x != 5:
            B[i * 4:i * 4 + 4] = T.Broadcast(x, 4) * T.ramp(0, 1, 4)
        else:
            B[i] = T.call_intrin("int32", "tir.shift_left", x, T.bitwise_and(x, 3))
        assert x >= 0, "negative"
    while B[0] > 0:
        B[0] -= T.if_then_else(B[1] > 0, 1, B[0], dtype="int32")
        T.evaluate(T.assume(B[0] < 100))
""",
    """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def f(x: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            with T.block("Y"):
                vi = T.axis.spatial(n, i)
                Y[vi] = X[vi] + T.float32(1)
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), v: R.Tensor(("n",), "float32")):
        n = T.int64()
        with R.dataflow():
            y = R.call_tir(Module.f, (v,), out_sinfo=R.Tensor((n,), "float32"))
            z = R.match_cast(y, R.Tensor((n,), "float32"))
            t = (R.reshape(z, R.shape([n, 1])), x)
            w = R.sum(R.add(t[0], t[1]), axes=[1], keepdims=False)
            R.output(w)
        return w
""",
]
PIECES = (
    "A B A[0] A[0:4] A.data n i vi x v y T R T.int32 T.exp T.block T.axis R.add R.Tensor None ... "
    "True 0 -1 1.5 2**31 2**70 'x' 'float32' 'SR' b'x' [1,2] (1,2) () {} {'a':1} T.int32(3) 1j "
    "T.float32(1) T.bool(True) T.Ramp(0,1,4) T.Broadcast(1,4) T.int32() T.grid(2,2) range(4) "
    "R.shape([4]) R.Tensor((4,),'float32') (x,v) float('nan') T.evaluate(0) T.Ramp(0,1,2**40)"
).split()  # fmt: skip
KEYWORDS = ("dtype", "scope", "axis", "strides", "align", "annotations", "elem_offset", "nonsense")


class Mutation:
    def __init__(self, text: str, rng: random.Random) -> None:
        self.tree, self.rng = ast.parse(text), rng
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice((self.replaced, self.replaced, self.call, self.statement))()

    @property
    def text(self) -> str:
        return ast.unparse(ast.fix_missing_locations(self.tree))

    def piece(self) -> ast.expr:
        return ast.parse(self.rng.choice(PIECES), mode="eval").body

    def replaced(self) -> None:
        """Another expression in place of one."""
        places: list[tuple[ast.AST, str, int | None]] = []
        for parent in ast.walk(self.tree):
            for field, value in ast.iter_fields(parent):
                if isinstance(value, ast.expr):
                    places.append((parent, field, None))
                elif isinstance(value, list) and field not in ("decorator_list", "targets"):
                    places += [
                        (parent, field, k) for k, v in enumerate(value) if isinstance(v, ast.expr)
                    ]
        parent, field, index = self.rng.choice(places)
        if index is None:
            setattr(parent, field, self.piece())
        else:
            getattr(parent, field)[index] = self.piece()

    def call(self) -> None:
        """An argument more or less."""
        call = self.rng.choice([n for n in ast.walk(self.tree) if isinstance(n, ast.Call)])
        kind = self.rng.random()
        if kind < 0.4 and call.args:
            del call.args[self.rng.randrange(len(call.args))]
        elif kind < 0.7:
            call.args.insert(self.rng.randrange(len(call.args) + 1), self.piece())
        else:
            call.keywords.append(ast.keyword(self.rng.choice(KEYWORDS), self.piece()))

    def statement(self) -> None:
        """A statement less, or once more elsewhere."""
        bodies = [n.body for n in ast.walk(self.tree) if isinstance(getattr(n, "body", None), list)]
        body = self.rng.choice(bodies[1:])
        if self.rng.random() < 0.4 and len(body) > 1:
            del body[self.rng.randrange(len(body))]
        else:
            other = copy.deepcopy(self.rng.choice(self.rng.choice(bodies[1:])))
            body.insert(self.rng.randrange(len(body) + 1), other)


@pytest.mark.parametrize("seed", range(6))
def test_broken_programs_have_coded_errors(seed: int) -> None:
    rng = random.Random(seed)
    taken = 0
    for _ in range(60):
        try:
            text = Mutation(rng.choice(PROGRAMS), rng).text
        except (SyntaxError, ValueError):
            continue  # what cannot be written cannot be read
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                program = from_source(text)
                bw.validate(program)
            except bw.BlockwrightError:
                continue
        ir.assert_structural_equal(from_source(program.script()), program)
        taken += 1
    assert taken > 3
