"""What programs that a graph calls do to their arguments, and the scalars that they are given."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder, constant

X = np.arange(4, dtype="float32")
BUFFERS = 'X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")'


def module(
    lines: list[str],
    params: str = BUFFERS,
    tir_vars: str = "",
    after: str = "y0",
    out: str = "(4,)",
) -> ir.IRModule:
    """A program with one block, and a graph that calls it."""
    body = "\n".join(f"                {line}" for line in lines)
    given = f", tir_vars=R.shape([{tir_vars}])" if tir_vars else ""
    return bw.from_source(f"""
@I.ir_module
class M:
    @T.prim_func(private=True)
    def f({params}):
        for i in range(4):
            with T.block("Y"):
                vi = T.axis.spatial(4, i)
{body}

    @R.function
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor(("k",), "float32")):
        k = T.int64()
        y0 = R.call_tir(cls.f, (x,), out_sinfo=R.Tensor({out}, "float32"){given})
        return {after}
""")


def refused(built: ir.IRModule) -> str:
    codes: set[str] = set()
    for entry in (bw.validate, bw.compile):
        with pytest.raises(bw.BlockwrightError) as caught:
            entry(built)
        assert caught.value.help
        codes.add(caught.value.code)
    assert len(codes) == 1
    return codes.pop()


@pytest.mark.parametrize("lines", [
    ["Y[vi] = T.atomic_add(X[vi], T.float32(1))"],
    ["Y[vi] = T.atomic_max(T.address_of(X[vi]), T.float32(1))"],
    ["T.evaluate(T.atomic_add(X[vi], T.float32(1)))", "Y[vi] = X[vi]"],
    ["T.reads(X[vi])", "T.writes(X[vi], Y[vi])", "T.evaluate(T.atomic_add(X[vi], T.float32(1)))",
     "Y[vi] = T.float32(1)"],
    ["V = T.match_buffer(X[vi], (), offset_factor=1)", "Y[vi] = T.atomic_add(V[()], T.float32(1))"],
    ["Y[vi] = X[vi]", "T.evaluate(T.call_extern('int32', 'f', X.access_ptr('w', offset=vi)))"],
    ["Y[vi] = X[vi]", "T.evaluate(T.call_extern('int32', 'f', T.address_of(X[vi])))"],
    ["Y[vi] = X[vi]", "T.evaluate(T.call_packed('f', X[vi]))", "X[vi] = T.float32(0)"],
    ["p: T.handle('float32') = X.data", "D = T.decl_buffer((4,), 'float32', data=p)",
     "D[vi] = T.float32(1)", "Y[vi] = X[vi]"],
    ["D = T.decl_buffer((4,), 'float32', data=X.data)", "E = T.decl_buffer((2, 2), data=D.data)",
     "E[0, 0] = T.float32(1)", "Y[vi] = X[vi]"],
])  # fmt: skip
def test_an_argument_is_not_written(lines: list[str]) -> None:
    assert refused(module(lines)) == "BW416"


@pytest.mark.parametrize("inside", [True, False])
def test_an_address_is_for_reading_where_a_block_says_so(inside: bool) -> None:
    call = "T.evaluate(T.call_extern('int32', 'f', T.address_of(X[0]), T.address_of(Y[0])))"
    if inside:
        lines = ["with T.block('b'):", "    T.reads(X[0:4])", "    T.writes(Y[0:4])", f"    {call}"]
    else:
        lines = [call]
    text = "\n".join(f"        {line}" for line in lines)
    built = bw.from_source(f"""
@I.ir_module
class M:
    @T.prim_func(private=True)
    def f({BUFFERS}):
{text}
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((4,), "float32"))
""")
    if inside:
        bw.validate(built)
    else:
        assert refused(built) == "BW416"


def test_a_pointer_with_a_name_leads_to_its_buffer() -> None:
    built = module(["Y[vi] = X[vi]"])
    func: ir.PrimFunc = built["f"]
    p = ir.Var("p", ir.dtype_of("handle"))
    x, y = func.buffers
    zero = (ir.const(0, "int32"),)
    view = ir.Buffer("D", x.dtype, x.shape)
    stores = ir.seq([ir.BufferStore(b, ir.const(1.0, "float32"), zero) for b in (view, y)])
    at = ir.Call("address_of", (ir.BufferLoad(x, zero),), p.dtype)
    body = ir.LetStmt(p, at, ir.DeclBuffer(view, p, stores))
    changed = func.replace(body=func.body.replace(block=func.root.replace(body=body)))
    assert refused(built.with_function("f", changed)) == "BW416"


def test_atomic_updates_of_a_result_are_writes() -> None:
    lines = ["Y[vi] = X[vi]", "T.evaluate(T.atomic_add(Y[vi], T.float32(1)))"]
    np.testing.assert_array_equal(bw.compile(module(lines))(X, X), X + 1)


class TestScalars:
    """A scalar that does not fit its parameter stops the call; it never wraps around."""

    LINES = ['Y[vi] = X[vi] + T.Cast("float32", s + {one})']

    def built(self, kind: str, value: str, after: str) -> ir.IRModule:
        params = f'X: T.Buffer((4,), "float32"), s: T.{kind}, Y: T.Buffer((4,), "float32")'
        lines = [line.format(one=f"T.{kind}(1)") for line in self.LINES]
        return module(lines, params, value, after)

    @pytest.mark.parametrize("after", ["y0", "R.negative(y0)"])
    @pytest.mark.parametrize(
        ("kind", "value", "expected"),
        [
            ("uint8", "k - 5", {3: None, 5: 0, 260: 255, 261: None}),
            ("int8", "k - 200", {3: None, 72: -128, 327: 127, 328: None}),
            ("uint64", "k - 5", {3: None, 5: 0}),
            ("int64", "k - 5", {3: -2, 9: 4}),
            ("uint16", "-1", {3: None}),
        ],
    )
    def test_values_beside_the_range(
        self, kind: str, value: str, expected: dict[int, int | None], after: str
    ) -> None:
        exe = bw.compile(self.built(kind, value, after))
        sign = -1 if "negative" in after else 1
        for size, wanted in expected.items():
            y = np.zeros(size, "float32")
            if wanted is None:
                with pytest.raises(bw.BlockwrightError) as caught:
                    exe(X, y)
                assert caught.value.code == "BW708"
            else:
                own = np.array(wanted).astype(kind)
                shown = (np.array([own]) + np.array([1]).astype(kind)).astype(kind)[0]
                np.testing.assert_array_equal(exe(X, y), sign * (X + np.float32(shown)))


class TestCastsOfTuples:
    """A tuple that is written out is cast like a value with a name."""

    BODIES = {
        "flat": ("(x, y)", 'R.Tuple(R.Tensor((k,), "float32"), R.Tensor((k,), "float32"))',
                 "R.add(z[0], z[1])"),
        "nested": ("((x, y), x)",
                   'R.Tuple(R.Tuple(R.Tensor((k,), "float32"), R.Tensor((k,), "float32")), '
                   'R.Tensor((k,), "float32"))', "R.add(z[0][0], z[0][1])"),
        "coarse": ("((R.add(x, x), y), y)",
                   'R.Tuple(R.Tuple(R.Tensor((k,), "float32"), R.Tensor), R.Object)',
                   "R.subtract(z[0][0], z[1])"),
    }  # fmt: skip

    @pytest.mark.parametrize("named", [True, False])
    @pytest.mark.parametrize("name", BODIES)
    def test_fields_are_checked_and_used(self, name: str, named: bool) -> None:
        value, pattern, result = self.BODIES[name]
        first = f"t = {value}\n    " if named else ""
        exe = bw.compile(
            bw.from_source(f"""
@R.function
def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")):
    {first}z = R.match_cast({"t" if named else value}, {pattern})
    return {result}
""")
        )
        expected = X if name == "coarse" else X + X
        np.testing.assert_array_equal(exe(X, X), expected)
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(X, X[:3].copy())
        assert caught.value.code == "BW704"


class TestConstants:
    """The order of bytes in an array is not that of the program."""

    @pytest.mark.parametrize("kind", [">f4", ">i8", ">u2", ">f2", "<f4", "bool"])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_the_values_count(self, kind: str, order: str) -> None:
        data = np.asarray(np.arange(6).reshape(2, 3) % 5, order=order).astype(kind, order=order)
        plain = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("="))
        for made in (ir.Constant(data), constant(data)):
            assert made.data.dtype.isnative
            np.testing.assert_array_equal(made.data, plain)
        text = f"""
@R.function
def main(x: R.Tensor((2, 3), "{plain.dtype.name}")):
    return x, R.constant("w")
"""
        module = bw.from_source(text, constants={"w": data})
        found = bw.compile(module)(np.zeros_like(plain))[1]
        np.testing.assert_array_equal(found, plain)

    def test_an_operand_of_the_builder(self) -> None:
        b = GraphBuilder()
        x = b.param("x", ir.TensorInfo((ir.const(4, "int64"),), ir.dtype_of("float32")))
        exe = bw.compile(b.finish("main", b.op("add", x, np.arange(4).astype(">f4"))))
        np.testing.assert_array_equal(exe(X), X + X)


class TestWithoutBlocks:
    """Programs of loops and stores alone are compiled as they are, and checked like others."""

    LOOPS = {
        "map": "for i in range(4):\n    Y[i] = X[i] + T.float32(1)",
        "vector": "Y[0:4] = X[0:4] + T.float32(1)",
        "steps": "for i in range(4):\n    Y[i] = X[i]\n    for j in range(2):\n"
                 "        Y[i] = Y[i] + T.float32(0.5)",
        "first": "for i, j in T.grid(4, 3):\n    if j == 0:\n        Y[i] = X[i] - T.float32(2)\n"
                 "    Y[i] = Y[i] + T.float32(1)",
        "while": "k = T.alloc_buffer((1,), 'int32')\nk[0] = 0\nwhile k[0] < 4:\n"
                 "    Y[k[0]] = X[k[0]] + T.float32(1)\n    k[0] = k[0] + 1",
        "break": "for i in range(9):\n    if i == 4:\n        break\n"
                 "    Y[i] = X[i] + T.float32(1)",
        "parallel": "for i in T.parallel(4):\n    Y[i] = X[i] + T.float32(1)",
    }  # fmt: skip
    UNWRITTEN = {
        "itself": "for i in range(4):\n    Y[i] = Y[i] + X[i]",
        "tail": "for i in range(3):\n    Y[i] = X[i]\nfor i in range(4):\n    Y[i] = Y[i] + X[i]",
        "later": "for i in range(3):\n    Y[i] = Y[i + 1]\nfor i in range(4):\n    Y[i] = X[i]",
        "atomic": "for i in range(4):\n    T.evaluate(T.atomic_add(Y[i], X[i]))",
        "vector": "Y[0:4] = Y[0:4] + X[0:4]",
    }  # fmt: skip

    def built(self, bodies: dict[str, str], result: str) -> ir.IRModule:
        programs: list[str] = []
        calls: list[str] = []
        for number, body in enumerate(bodies.values()):
            lines = "\n".join(f"        {line}" for line in body.splitlines())
            programs.append(
                f"    @T.prim_func(private=True)\n    def f{number}({BUFFERS}):\n{lines}"
            )
            calls.append(
                f"        y{number} = R.call_tir(cls.f{number}, (x,), "
                'out_sinfo=R.Tensor((4,), "float32"))'
            )
        values = ", ".join(result.format(f"y{number}") for number in range(len(bodies)))
        main = "    @R.function\n    def main(x: R.Tensor((4,), 'float32')):"
        text = "\n".join([*programs, main, *calls, f"        return {values},"])
        return bw.from_source(f"@I.ir_module\nclass M:\n{text}\n")

    @pytest.mark.parametrize("result", ["{}", "R.negative({})", "R.flip(R.exp({}), axis=0)"])
    def test_they_are_called_and_fused(self, result: str) -> None:
        built = self.built(self.LOOPS, result)
        bw.validate(built)
        found = bw.compile(built)(X)
        expected = {"{}": X + 1, "R.negative({})": -X - 1}.get(result, np.exp(X + 1)[::-1])
        for name, value in zip(self.LOOPS, found, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=name)

    @pytest.mark.parametrize("name", UNWRITTEN)
    def test_a_result_holds_nothing_before(self, name: str) -> None:
        assert refused(self.built({name: self.UNWRITTEN[name]}, "{}")) == "BW416"
