"""Graph passes before fusion: naming values, merging equal calls, operators to tensor programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder, check_graph

F32 = ir.dtype_of("float32")


def tensor(*shape: Any) -> ir.TensorInfo:
    dims = tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
    return ir.TensorInfo(dims, F32, len(dims))


NESTED = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    m = T.int64()
    y = R.match_cast(x, R.Tensor((m, 4), "float32"))
    z = R.add(R.exp(y), R.tanh(y))
    return (z, R.sum(z, axes=(1,)))
"""


class TestNormalize:
    def test_values_get_names_and_annotations(self, parse: Any, run: Any) -> None:
        module = run(parse(NESTED), "normalize")
        main = module["main"]
        (n,) = [s for p in main.params for s in ir.symbolic_vars(p.info)]
        for binding in main.bindings:
            value = binding.value
            assert binding.var.info is not None
            if isinstance(value, ir.GraphCall):
                assert not any(isinstance(a, ir.GraphCall) for a in value.args)
        assert all(isinstance(f, ir.GraphVar) for f in main.body.body.fields)
        shapes = [b.var.info.shape for b in main.bindings]
        assert all(shape[0] is n for shape in shapes)  # m stands for n from here on

    def test_modules_of_the_builder_are_left_alone(self, run: Any) -> None:
        b = GraphBuilder()
        x = b.param("x", tensor(ir.var("n", "int64"), 4))
        module = ir.IRModule({"main": b.finish("main", b.op("exp", x))})
        assert run(module, "normalize")["main"] is module["main"]

    def test_everything_ill_formed_is_listed(self, run: Any) -> None:
        b = GraphBuilder()
        x = b.param("x", tensor(4))
        unknown = ir.GraphVar("nowhere", info=tensor(4))
        call = ir.GraphCall(ir.OpRef("no_such_operator"), (x,), info=tensor(4))
        b.emit(call)
        function = b.finish("main", unknown)
        with pytest.raises(bw.ValidationError) as caught:
            run(ir.IRModule({"main": function}), "normalize")
        assert "no_such_operator" in str(caught.value)
        assert "nowhere" in str(caught.value)

    def test_a_constant_with_a_name_is_an_operand_like_one_without(self) -> None:
        text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    w = R.const([[1, 2, 3, 4]] * 4, "float32")
    v = w
    y = R.matmul(x, R.permute_dims(v))
    return y, w
"""
        exe = bw.compile(bw.from_source(f"@I.ir_module\nclass Module:\n{_indented(text)}"))
        main = exe.stages["fold_constants"]["main"]
        assert isinstance(main, ir.GraphFunction)
        assert len(main.bindings) == 1, "the transposed constant is folded"
        x = np.ones((3, 4), "f4")
        product, same = exe(x)
        np.testing.assert_array_equal(product, x @ np.asarray(same).T)


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.split("\n"))


class TestCleanUp:
    def test_equal_calls_are_merged_and_unused_ones_dropped(
        self, parse: Any, run: Any, callees: Any
    ) -> None:
        text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.exp(x)
    unused = R.negative(x)
    c = R.sum(a, axes=(0,))
    d = R.sum(b, axes=(0,))
    e = R.sum(b, axes=(1,))
    return (c, d, e)
"""
        module = run(parse(text), "normalize", "eliminate_common", "eliminate_dead")
        assert callees(module) == ["exp", "sum", "sum"]
        fields = module["main"].body.body.fields
        assert fields[0] is fields[1]
        assert fields[1] is not fields[2]

    def test_a_value_that_is_overwritten_stays(self, parse: Any, run: Any, callees: Any) -> None:
        text = """
@T.prim_func
def increase(x: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("x"):
            vi = T.axis.spatial(4, i)
            x[vi] = x[vi] + 1.0

@R.function
def main(x: R.Tensor((4,), "float32")):
    a = R.exp(x)
    b = R.exp(x)
    c = R.call_tir_inplace(
        cls.increase, (a,), inplace_indices=[0], out_sinfo=[R.Tensor((4,), "float32")]
    )
    d = R.exp(x)
    return c, R.add(b, d)
"""
        module = run(parse(text), "normalize", "eliminate_common", "eliminate_dead")
        assert callees(module) == ["exp", "exp", "call_tir_inplace", "add"]
        check_graph(module["main"], module)

    def test_calls_with_effects_stay(self, parse: Any, run: Any, callees: Any) -> None:
        text = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    a = R.call_dps_library("log.it", (x,), R.Tensor((4,), "float32"))
    b = R.call_dps_library("log.it", (x,), R.Tensor((4,), "float32"))
    return x
"""
        module = run(parse(text), "normalize", "eliminate_common", "eliminate_dead")
        assert callees(module) == ["call_dps_library", "call_dps_library"]

    def test_loops_whose_steps_check_sizes_stay(self) -> None:
        module = bw.from_source("""
@I.ir_module
class Module:
    @R.function(private=True)
    def step(v: R.Tensor(("m",), "int32")):
        m = T.int64()
        w = R.match_cast(v, R.Tensor((4,), "int32"))
        return w
    @R.function
    def main(x: R.Tensor(("n", "m"), "int32")):
        n = T.int64()
        m = T.int64()
        v = R.scan(cls.step, x, carried=0, over=1)
        return x
""")
        good, bad = np.ones((2, 4), "i4"), np.ones((2, 7), "i4")
        for run in (bw.compile(module), lambda x: bw.interpret(module, x)):
            np.testing.assert_array_equal(run(good), good)
            with pytest.raises(bw.BlockwrightError, match="BW704"):
                run(bad)


class TestLegalize:
    def test_equal_programs_are_stored_once(self, parse: Any, run: Any, callees: Any) -> None:
        text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor((8, 4), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.exp(a)
    c = R.exp(y)
    return (b, c)
"""
        module = run(parse(text), "normalize", "legalize")
        assert callees(module) == ["exp", "exp", "exp_1"]
        assert {n for n, f in module.functions.items() if isinstance(f, ir.PrimFunc)} == {
            "exp",
            "exp_1",
        }

    def test_programs_know_their_operator_and_the_declared_ranges(
        self, parse: Any, run: Any
    ) -> None:
        text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m",), "float32")):
    R.func_attr({"tir_var_upper_bound": {"n": 64, "m": 9}, "tir_var_lower_bound": {"n": 2}})
    n = T.int64()
    m = T.int64()
    return R.reshape(x, R.shape([4 * n]))
"""
        module = run(parse(text), "normalize", "legalize")
        func = module["reshape"]
        assert func.attrs["op"] == "reshape"
        assert func.attrs["tir.view"] is True
        assert func.attrs["tir.is_private"] is True
        assert func.attrs["tir_var_upper_bound"] == {"n": 64}
        assert func.attrs["tir_var_lower_bound"] == {"n": 2}

    def test_symbols_that_no_parameter_binds_become_scalars(
        self, parse: Any, run: Any, callees: Any
    ) -> None:
        """Where the slice begins is the size of another tensor."""
        text = """
@R.function
def main(x: R.Tensor((64,), "float32"), y: R.Tensor(("n",), "float32")):
    R.func_attr({"tir_var_upper_bound": {"n": 60}})
    n = T.int64()
    return R.slice(x, axis=0, begin=n, end=n + 4, step=1)
"""
        module = run(parse(text), "normalize", "legalize")
        func = module["slice"]
        assert [p.name for p in func.params if p not in dict(func.buffer_map)] == ["n"]
        x = np.arange(64, dtype="f4")
        exe = bw.compile(parse(text))
        for n in (0, 5, 60):
            np.testing.assert_array_equal(exe(x, np.zeros(n, "f4")), x[n : n + 4])
