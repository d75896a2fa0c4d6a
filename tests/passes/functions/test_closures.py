"""Function values at run time: closures that flow through branches, recursion and callers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

F, T = np.array(False), np.array(True)
VECTOR = 'R.Tensor(("n",), "float32")'
UNARY = f"R.Callable(({VECTOR},), {VECTOR})"


def parsed(text: str) -> ir.IRModule:
    """A module; printing and parsing it again gives the same module."""
    text = text.replace("VECTOR", VECTOR).replace("UNARY", UNARY)
    module: ir.IRModule = bw.from_source(f"@I.ir_module\nclass Module:\n{text}")
    assert ir.structural_equal(bw.from_source(module.script()), module)
    return module


def both(text: str, *calls: tuple[Any, ...]) -> bw.CompiledModel:
    """Compile a module; compare calls, also of the interpreted host program, with the
    interpreter."""
    module = parsed(text)
    exe = bw.compile(module)
    for call in calls:
        wanted = flat(bw.interpret(module, *call))
        host = [np.empty_like(w) for w in wanted]
        bw.interpret(exe.lowered, *call, *host)
        for found in (flat(exe(*call)), host):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
    return exe


def flat(value: Any) -> list[Any]:
    if not isinstance(value, tuple):
        return [value]
    return [leaf for v in cast("tuple[Any, ...]", value) for leaf in flat(v)]


def same(v: Any) -> Any:
    return v


def returns(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).random(shape, dtype="f4")


CHOSEN = """
    @R.function
    def main(x: VECTOR, flag: R.Tensor((), "bool")):
        y = R.add(x, x)
        @R.function
        def plus(v: VECTOR) -> VECTOR:
            return R.add(v, y)
        @R.function
        def minus(v: VECTOR) -> VECTOR:
            return R.negative(v)
        if flag:
            f = plus
        else:
            f = minus
        return RESULT
"""


class TestChoices:
    def test_a_branch_chooses_a_function(self) -> None:
        both(CHOSEN.replace("RESULT", "f(f(x))"), (floats(3), T), (floats(3), F))

    def test_each_branch_captures_values_of_its_own(self) -> None:
        both(
            """
    @R.function(private=True)
    def twice(f: UNARY, v: VECTOR):
        return f(f(v))

    @R.function
    def main(x: VECTOR, a: R.Tensor((), "bool"), b: R.Tensor((), "bool")):
        n = T.int64()
        if a:
            w = R.concat((x, x))
            s = R.sum(w)
            if b:
                @R.function
                def scaled(v: VECTOR) -> VECTOR:
                    return R.multiply(v, s)
                g = scaled
            else:
                g = cls.double
            pair = (g, s)
        else:
            @R.function
            def sized(v: VECTOR) -> VECTOR:
                return R.add(v, R.full(R.shape([n]), fill_value=n, dtype="float32"))
            pair = (sized, R.const(1.0, "float32"))
        f = pair[0]
        return cls.twice(f, x), pair[1]

    @R.function(private=True)
    def double(v: VECTOR) -> VECTOR:
        return R.add(v, v)
""",
            *((floats(3), a, b) for a in (F, T) for b in (F, T)),
        )

    def test_a_function_of_the_module_keeps_its_own_symbols(self) -> None:
        both(
            """
    @R.function(private=True)
    def halves(x: R.Tensor(("m",), "float32"), y: R.Tensor(("k",), "float32")) -> R.Tensor(
        ("m + k",), "float32"
    ):
        return R.concat((x, y))

    @R.function(private=True)
    def swapped(x: R.Tensor(("m",), "float32"), y: R.Tensor(("k",), "float32")) -> R.Tensor(
        ("m + k",), "float32"
    ):
        return R.concat((y, x))

    @R.function
    def main(x: VECTOR, flag: R.Tensor((), "bool")):
        n = T.int64()
        if flag:
            f = cls.halves
        else:
            f = cls.swapped
        once = R.match_cast(f(x, x), R.Tensor((n + n,), "float32"))
        more = R.match_cast(f(once, x), R.Tensor((3 * n,), "float32"))
        return more
""",
            (floats(2), T),
            (floats(2), F),
        )

    def test_results_may_be_nested_tuples(self) -> None:
        both(
            """
    @R.function
    def main(x: VECTOR, flag: R.Tensor((), "bool")):
        @R.function
        def one(p: R.Tuple(VECTOR, VECTOR)) -> R.Tuple(VECTOR, R.Tuple(VECTOR, VECTOR)):
            a = p[0]
            b = p[1]
            return (a, (R.add(a, b), b))
        @R.function
        def other(p: R.Tuple(VECTOR, VECTOR)) -> R.Tuple(VECTOR, R.Tuple(VECTOR, VECTOR)):
            a = p[0]
            b = p[1]
            return (b, (R.negative(a), a))
        if flag:
            f = one
        else:
            f = other
        return f((x, R.add(x, x)))
""",
            (floats(2), T),
            (floats(2), F),
        )


class TestRecursion:
    WRAPPED = """
    @R.function(private=True)
    def loop(f: UNARY, x: VECTOR, k: R.Tensor((), "int64")) -> VECTOR:
        n = T.int64()
        done = R.equal(k, R.const(0, "int64"))
        if done:
            y = f(x)
        else:
            @R.function
            def wrapped(v: VECTOR) -> VECTOR:
                return R.add(f(v), v)
            y = cls.loop(wrapped, x, R.subtract(k, R.const(1, "int64")))
        return y

    @R.function
    def main(x: VECTOR, k: R.Tensor((), "int64")):
        return cls.loop(cls.double, x, k)

    @R.function(private=True)
    def double(v: VECTOR) -> VECTOR:
        return R.add(v, v)
"""

    def test_a_recursion_wraps_a_function_in_others(self) -> None:
        both(self.WRAPPED, *((floats(3), np.array(k)) for k in (0, 1, 20)))

    def test_a_recursion_returns_a_function(self) -> None:
        exe = both(
            """
    @R.function
    def main(x: VECTOR, k: R.Tensor((), "int64")) -> UNARY:
        n = T.int64()
        done = R.equal(k, R.const(0, "int64"))
        if done:
            @R.function
            def same(v: VECTOR) -> VECTOR:
                return v
            f = same
        else:
            g = cls.main(x, R.subtract(k, R.const(1, "int64")))
            @R.function
            def more(v: VECTOR) -> VECTOR:
                return R.add(g(v), x)
            f = more
        return f
"""
        )
        f = exe(floats(3), np.array(5))
        np.testing.assert_allclose(np.from_dlpack(f(floats(3))), 6 * floats(3), rtol=1e-6)

    ENDLESS = """
    @R.function
    def main(x: VECTOR, flag: R.Tensor((), "bool")):
        n = T.int64()
        if flag:
            f = cls.endless
        else:
            f = cls.harmless
        y = R.match_cast(CALL, R.Tensor((n,), "float32"))
        return y

    @R.function(private=True)
    def endless(f: R.Object, x: VECTOR) -> VECTOR:
        n = T.int64()
        y = R.match_cast(f(f, x), R.Tensor((n,), "float32"))
        return y

    @R.function(private=True)
    def harmless(f: R.Object, x: VECTOR) -> VECTOR:
        return x
"""

    def test_a_recursion_through_values_that_does_not_end_is_an_error(self) -> None:
        exe = bw.compile(parsed(self.ENDLESS.replace("CALL", "f(f, x)")))
        np.testing.assert_array_equal(exe(floats(2), F), floats(2))
        for _ in range(2):
            with pytest.raises(bw.BlockwrightError) as caught:
                exe(floats(2), T)
            assert caught.value.code == "BW723"
        np.testing.assert_array_equal(exe(floats(2), F), floats(2))

    def test_inlining_that_does_not_end_is_an_error(self) -> None:
        with pytest.raises(bw.GraphError) as caught:
            bw.compile(parsed(self.ENDLESS.replace("CALL", "cls.endless(cls.endless, x)")))
        assert caught.value.code == "BW423"


class TestEntries:
    def test_a_returned_closure_outlives_its_model(self, tmp_path: Any) -> None:
        exe = bw.compile(parsed(CHOSEN.replace("RESULT", "f")))
        exe.save(tmp_path / "chosen.bwx")
        x = floats(3)
        closures: list[tuple[Callable[..., Any], Any]] = []
        for model in (exe, bw.load(tmp_path / "chosen.bwx")):
            closures += [(model(x, T), 4 * x), (model(x, F), -2 * x)]
        del exe, model
        gc.collect()
        for closure, wanted in closures:
            np.testing.assert_allclose(np.from_dlpack(closure(2 * x)), wanted, rtol=1e-6)
        for wrong, code in (((floats(4),), "BW709"), ((), "BW701")):
            with pytest.raises((ValueError, TypeError), match=code):
                closures[0][0](*wrong)

    def test_closures_use_constants_after_the_model_is_dropped(self) -> None:
        weights = np.arange(1 << 18, dtype="f4")

        def made() -> Any:
            module = parsed("""
    @R.function
    def main(flag: R.Tensor((), "bool")):
        @R.function
        def add(v: R.Tensor((262144,), "float32")) -> R.Tensor((262144,), "float32"):
            return R.add(v, R.const(0, "float32"))
        return add
""")
            constant = ir.Constant(weights, "w")
            replaced = ir.rewrite_bottom_up(
                module, lambda node: constant if isinstance(node, ir.Constant) else None
            )
            return bw.compile(replaced)(T)

        closure = made()
        gc.collect()
        bw.compile(parsed(CHOSEN.replace("RESULT", "f(x)")))  # releases unused libraries
        np.testing.assert_array_equal(np.from_dlpack(closure(weights)), 2 * weights)

    @pytest.mark.parametrize("flag", [F, T])
    def test_calls_of_function_values_are_profiled(self, flag: Any) -> None:
        exe = bw.compile(parsed(CHOSEN.replace("RESULT", "f(f(x)), f")))
        calls = exe.profile(floats(3), flag, repeat=1).calls
        assert [c.kernel for c in calls].count("function value") == 2
        assert all(0 <= c.duration < 1e9 for c in calls), "also in the branch that is not taken"

    def test_the_caller_passes_functions(self) -> None:
        exe = both(
            """
    @R.function
    def main(f: UNARY, x: VECTOR):
        y = f(x)
        return R.add(y, x), f
"""
        )
        total, again = exe(same, floats(3))
        np.testing.assert_allclose(total, 2 * floats(3))
        np.testing.assert_array_equal(np.from_dlpack(again(floats(3))), floats(3))
        inner = bw.compile(parsed(CHOSEN.replace("RESULT", "f")))(floats(3), F)
        np.testing.assert_allclose(exe(inner, floats(3))[0], 0 * floats(3))

    @pytest.mark.parametrize(
        ("function", "code"),
        [
            (returns(3), "BW702"),
            (returns(np.zeros(3, "f8")), "BW703"),
            (returns(np.zeros((3, 1), "f4")), "BW704"),
            (returns(np.zeros(4, "f4")), "BW704"),
            (3, "BW702"),
        ],
    )
    def test_what_a_function_of_the_caller_returns_is_checked(
        self, function: Any, code: str
    ) -> None:
        exe = bw.compile(
            parsed("""
    @R.function
    def main(f: UNARY, x: VECTOR):
        return R.add(f(x), x)
""")
        )
        with pytest.raises(bw.ArgumentError) as caught:
            exe(function, floats(3))
        assert caught.value.code == code

    def test_an_error_in_a_function_of_the_caller_is_raised(self) -> None:
        exe = bw.compile(
            parsed("""
    @R.function
    def main(f: UNARY, x: VECTOR):
        @R.function
        def around(v: VECTOR) -> VECTOR:
            return R.add(f(v), v)
        return around
""")
        )

        def fails(v: Any) -> Any:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            exe(fails, floats(3))(floats(3))
