"""Graph functions that call functions: inlining, branches, recursion, tuples, several entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

F, T = np.array(False), np.array(True)


def compiled(text: str) -> bw.CompiledModel:
    """The executable of a module; printing and parsing it again gives the same module."""
    module = bw.from_source(f"@I.ir_module\nclass Module:\n{text}")
    assert ir.structural_equal(bw.from_source(module.script()), module)
    return bw.compile(module)


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).random(shape, dtype="f4")


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


class TestCalls:
    def test_global_and_local_functions_are_inlined(self) -> None:
        exe = compiled("""
    @R.function(private=True)
    def twice(y: R.Tensor(("m", 4), "float32")) -> R.Tensor(("m", 4), "float32"):
        return R.add(y, y)

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        a = cls.twice(x)
        @R.function
        def inner(v: R.Tensor(("n", 4), "float32")):
            return R.multiply(v, x)
        b = inner(a)
        return cls.twice(b)
""")
        x = floats(5, 4)
        close(exe(x), 4 * x * x)
        assert exe.names() == ("main",)

    def test_functions_as_arguments(self) -> None:
        exe = compiled("""
    @R.function(private=True)
    def again(f: R.Callable((R.Tensor(("m",), "float32"),), R.Tensor(("m",), "float32")),
              x: R.Tensor(("m",), "float32")):
        y = f(x)
        return f(y)

    @R.function(private=True)
    def double(x: R.Tensor(("m",), "float32")):
        return R.add(x, x)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        a = cls.again(cls.double, x)
        @R.function
        def negative(v: R.Tensor(("k",), "float32")):
            return R.negative(v)
        fs = (negative, cls.double)
        g = fs[0]
        return cls.again(g, a)
""")
        close(exe(floats(3)), 4 * floats(3))

    def test_a_symbol_inside_a_dimension_is_solved(self) -> None:
        exe = compiled("""
    @R.function(private=True)
    def halves(x: R.Tensor(("2 * m",), "float32")) -> R.Tensor((2, "m"), "float32"):
        m = T.int64()
        return R.reshape(x, R.shape([2, m]))

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        y = R.concat((x, x))
        return cls.halves(y)
""")
        x = floats(3)
        close(exe(x), np.stack([x, x]))

    def test_what_a_signature_states_is_checked_at_run_time(self) -> None:
        exe = compiled("""
    @R.function(private=True)
    def pair(x: R.Tensor((2,), "float32")):
        return R.add(x, x)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        y = R.match_cast(x, R.Tensor((2,), "float32"))
        return cls.pair(y)
""")
        close(exe(floats(2)), 2 * floats(2))
        with pytest.raises(bw.ArgumentError) as caught:
            exe(floats(3))
        assert caught.value.code == "BW704"

    def test_annotations_of_inlined_values_have_the_symbols_of_the_caller(self) -> None:
        exe = compiled("""
    @R.function
    def main(x: R.Tensor(("n", 4), "int32")):
        y = cls.f(x)
        return y

    @R.function(private=True)
    def f(a: R.Tensor(("p", "q"), "int32")):
        p, q = T.int64(), T.int64()
        u = cls.g(a)
        v: R.Tensor((p, q), "int32") = u[1]
        return v

    @R.function(private=True)
    def g(a: R.Tensor(("p", "q"), "int32")):
        return (a, R.add(a, a))
""")
        x = np.arange(12, dtype="i4").reshape(3, 4)
        np.testing.assert_array_equal(exe(x), 2 * x)


class TestBranches:
    def test_a_branch_runs_only_if_it_is_chosen(self) -> None:
        """A kernel of the other branch would divide by zero."""
        exe = compiled("""
    @R.function
    def main(x: R.Tensor(("n",), "int32"), d: R.Tensor((), "int32"), c: R.Tensor((), "bool")):
        if c:
            y = R.floor_divide(x, d)
        else:
            y = R.negative(x)
        return R.add(y, x)
""")
        x = np.arange(4, dtype="i4")
        np.testing.assert_array_equal(exe(x, np.array(2, "i4"), T), x // 2 + x)
        np.testing.assert_array_equal(exe(x, np.array(0, "i4"), F), 0 * x)
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(x, np.array(0, "i4"), T)
        assert caught.value.code == "BW716"

    @pytest.mark.parametrize("outer", [F, T])
    @pytest.mark.parametrize("inner", [F, T])
    def test_branches_nest_and_may_return_what_they_get(self, outer: Any, inner: Any) -> None:
        exe = compiled("""
    @R.function
    def main(x: R.Tensor(("n",), "float32"), a: R.Tensor((), "bool"), b: R.Tensor((), "bool")):
        if a:
            if b:
                u = R.negative(x)
                y = R.subtract(u, x)
            else:
                y = R.negative(x)
        else:
            y = x
        return y
""")
        x = floats(3)
        close(exe(x, outer, inner), (-2 * x if inner else -x) if outer else x)

    def test_sizes_that_no_captured_value_has_alone_are_passed(self) -> None:
        exe = compiled("""
    @R.function
    def main(x: R.Tensor(("n", 4), "int32"), c: R.Tensor((), "bool")):
        n = T.int64()
        v = R.concat((x, x), axis=0)
        if c:
            z = R.negative(v)
            w: R.Tensor((n * 2, 4), "int32") = R.negative(z)
            y = R.add(w, v)
        else:
            y = R.negative(v)
        return y
""")
        x = np.arange(12, dtype="i4").reshape(3, 4)
        twice = np.concatenate([x, x])
        np.testing.assert_array_equal(exe(x, T), 2 * twice)
        np.testing.assert_array_equal(exe(x, F), -twice)

    def test_a_condition_of_symbols(self) -> None:
        exe = compiled("""
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        if R.prim_value(n > 3):
            y = R.negative(x)
        else:
            m = n * 2
            k = R.full(R.shape([m]), fill_value=1.0, dtype="float32")
            s = R.sum(k)
            y = R.multiply(x, s)
        return y
""")
        close(exe(floats(4)), -floats(4))
        close(exe(floats(3)), 6 * floats(3))

    def test_tuples_of_results(self) -> None:
        exe = compiled("""
    @R.function
    def main(p: R.Tuple(R.Tensor(("n",), "float32"),
                        R.Tuple(R.Tensor((2, "n"), "float32"), R.Tensor((), "bool"))),
             s: R.Shape(("n",))):
        a = p[0]
        q = p[1]
        b = q[0]
        f = q[1]
        if f:
            r = (R.add(a, a), (b, a))
        else:
            r = (R.negative(a), (R.negative(b), a))
        t = R.broadcast_to(a, s)
        return r, t
""")
        a, b = floats(3), floats(2, 3)
        for flag in (F, T):
            (r0, (r1, r2)), t = exe((a, (b, flag)), (3,))
            close(r0, 2 * a if flag else -a)
            close(r1, b if flag else -b)
            close(r2, a)
            close(t, a)
        with pytest.raises(bw.ArgumentError) as caught:
            exe((a, (b, F)), (4,))
        assert caught.value.code == "BW709"

    def test_sizes_of_a_declared_result_may_be_bound_behind_a_branch(self) -> None:
        exe = compiled("""
    @R.function
    def main(x: R.Tensor((3, 4), "float32")) -> R.Tensor(("m", 4), "float32"):
        m = T.int64()
        c = R.greater(R.sum(x), R.const(0, "float32"))
        if c:
            y: R.Tensor(ndim=2, dtype="float32") = R.slice(x, axis=0, end=2)
        else:
            y: R.Tensor(ndim=2, dtype="float32") = R.slice(x, axis=0, end=1)
        z = R.match_cast(y, R.Tensor((m, 4), "float32"))
        return z
""")
        x = floats(3, 4)
        close(exe(x), x[:2])
        close(exe(-x), -x[:1])


class TestRecursion:
    TEXT = """
    @R.function
    def main(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")) -> R.Tensor(
        ("n",), "float32"
    ):
        one = R.const(1, "int64")
        stop = R.less(k, one)
        if stop:
            y = x
        else:
            h = R.add(x, x)
            j = R.subtract(k, one)
            y = cls.main(h, j)
        return y
"""

    def test_a_function_may_call_itself(self) -> None:
        exe = compiled(self.TEXT)
        for depth in (0, 1, 5, 100):
            close(exe(floats(3), np.array(depth)), floats(3) * 2.0**depth)

    def test_too_deep_a_recursion_is_an_error(self) -> None:
        exe = compiled(self.TEXT)
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(floats(3), np.array(1 << 40))
        assert caught.value.code == "BW723"
        close(exe(floats(3), np.array(1)), 2 * floats(3))

    def test_a_recursion_without_end_is_an_error(self) -> None:
        exe = compiled("""
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = cls.main(R.add(x, x))
        return y
""")
        with pytest.raises(bw.BlockwrightError) as caught:
            exe(floats(3))
        assert caught.value.code == "BW723"

    def test_functions_may_call_each_other(self) -> None:
        exe = compiled("""
    @R.function(private=True)
    def odd(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")) -> R.Tuple(
        R.Tensor(("n",), "float32"), R.Tensor((), "bool")
    ):
        zero = R.const(0, "int64")
        done = R.equal(k, zero)
        if done:
            r = (x, R.not_equal(k, zero))
        else:
            r = cls.even(R.negative(x), R.subtract(k, R.const(1, "int64")))
        return r

    @R.function
    def even(x: R.Tensor(("n",), "float32"), k: R.Tensor((), "int64")) -> R.Tuple(
        R.Tensor(("n",), "float32"), R.Tensor((), "bool")
    ):
        zero = R.const(0, "int64")
        done = R.equal(k, zero)
        if done:
            r = (x, R.equal(k, zero))
        else:
            r = cls.odd(R.negative(x), R.subtract(k, R.const(1, "int64")))
        return r
""")
        for count in range(4):
            x, flag = exe(floats(2), np.array(count))
            close(x, floats(2) * (-1) ** count)
            assert bool(flag) == (count % 2 == 0)


class TestEntries:
    TEXT = """
    @R.function
    def prefill(x: R.Tensor(("n", 8), "float32")):
        return R.negative(x)

    @R.function
    def decode(x: R.Tensor((1, 8), "float32")):
        a = R.add(x, x)
        return a, x
"""

    def test_each_public_function_can_be_called(self, tmp_path: Any) -> None:
        exe = compiled(self.TEXT)
        exe.save(tmp_path / "two.bwx")
        for each in (exe, bw.load(tmp_path / "two.bwx")):
            assert each.names() == ("prefill", "decode")
            close(each["prefill"](floats(3, 8)), -floats(3, 8))
            double, same = each["decode"](floats(1, 8))
            close(double, 2 * floats(1, 8))
            close(same, floats(1, 8))
            assert each["decode"].memory_plan.arena == 0
        assert len(exe["decode"].profile(floats(1, 8)).calls) == 2
        assert exe["decode"].estimate(floats(1, 8)) > 0

    def test_without_a_main_function_one_must_be_named(self) -> None:
        exe = compiled(self.TEXT)
        for wrong in (lambda: exe(floats(1, 8)), lambda: exe["generate"]):
            with pytest.raises(bw.ArgumentError) as caught:
                wrong()
            assert caught.value.code == "BW721"
            assert "decode" in str(caught.value)


class TestUpdates:
    TEXT = """
    @T.prim_func
    def append(cache: T.Buffer((16, 4), "float32"), x: T.Buffer((1, 4), "float32"),
               at: T.Buffer((), "int64")):
        for i in range(4):
            with T.block("a"):
                vi = T.axis.spatial(4, i)
                cache[at[()], vi] = x[0, vi]

    @R.function
    def main(cache: R.Tensor((16, 4), "float32"), x: R.Tensor((1, 4), "float32"),
             at: R.Tensor((), "int64")):
        new = R.call_tir_inplace(cls.append, (cache, x, at), inplace_indices=[0],
                                 out_sinfo=[R.Tensor((16, 4), "float32")])
        s = R.sum(new)
        return s, new
"""

    def test_a_parameter_is_updated_where_the_caller_keeps_it(self) -> None:
        exe = compiled(self.TEXT)
        cache, row = np.zeros((16, 4), "f4"), np.ones((1, 4), "f4")
        total, new = exe(cache, row, np.array(3))
        assert new is cache
        assert total == cache[3].sum() == cache.sum() == 4
        assert exe.signature.parameters[0].written
        out = np.zeros((), "f4")
        exe(cache, row, np.array(0), out=(out, None))
        assert out == 8
        with pytest.raises(bw.ArgumentError) as caught:
            exe(cache, row, np.array(0), out=(out, np.zeros((16, 4), "f4")))
        assert caught.value.code == "BW722"

    def test_memory_that_code_cannot_use_is_written_back(self) -> None:
        exe = compiled(self.TEXT)
        columns = np.asfortranarray(np.zeros((16, 4), "f4"))
        _, new = exe(columns, np.ones((1, 4), "f4"), np.array(1))
        assert new is columns
        assert columns[1].sum() == columns.sum() == 4

    def test_values_that_are_still_needed_are_copied_first(self) -> None:
        exe = compiled("""
    @T.prim_func
    def double(a: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("a"):
                vi = T.axis.spatial(8, i)
                a[vi] = a[vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        y = R.negative(x)
        v = R.reshape(y, (2, 4))
        z = R.call_tir_inplace(cls.double, (y,), inplace_indices=0,
                               out_sinfo=R.Tensor((8,), "float32"))
        k = R.const([1, 2, 3, 4, 5, 6, 7, 8], "float32")
        q = R.call_tir_inplace(cls.double, (k,), inplace_indices=0,
                               out_sinfo=R.Tensor((8,), "float32"))
        return v, z, q
""")
        for _ in range(2):  # a constant stays constant
            view, twice, constant = exe(floats(8))
            close(view, -floats(8).reshape(2, 4))
            close(twice, -2 * floats(8))
            close(constant, 2.0 * np.arange(1, 9))

    OLD = """
    @T.prim_func
    def double(a: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("a"):
                vi = T.axis.spatial(8, i)
                a[vi] = a[vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32"), flag: R.Tensor((), "bool")):
        alias = x
        both = (x, flag)
        @R.function
        def local(v: R.Tensor((8,), "float32")):
            return R.add(v, x)
        new = R.call_tir_inplace(cls.double, (x,), inplace_indices=0,
                                 out_sinfo=R.Tensor((8,), "float32"))
        {use}
        return new
"""

    @pytest.mark.parametrize(
        "use",
        [
            "y = R.negative(x)",
            "y = R.negative(alias)",
            "y = R.negative(both[0])",
            "y = local(new)",
            """if flag:
            z = x
        else:
            z = new""",
        ],
    )
    def test_an_overwritten_value_is_not_used_again(self, use: str) -> None:
        text = self.OLD.format(use=use)
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(bw.from_source(f"@I.ir_module\nclass Module:\n{text}"))
        assert caught.value.code == "BW263"

    def test_a_branch_does_not_update_a_value_of_its_caller(self) -> None:
        branch = """if flag:
            r = R.call_tir_inplace(cls.double, (new,), inplace_indices=0,
                                   out_sinfo=R.Tensor((8,), "float32"))
        else:
            r = R.negative(x_before)"""
        text = self.OLD.format(use=branch).replace("        return new", "        return r")
        text = text.replace(
            "        alias = x\n", "        alias = x\n        x_before = R.add(x, x)\n"
        )
        with pytest.raises(bw.GraphError) as caught:
            compiled(text)
        assert caught.value.code == "BW425"

    def test_the_new_value_may_be_used(self) -> None:
        close(compiled(self.OLD.format(use="y = R.negative(new)"))(floats(8), T), 2 * floats(8))
