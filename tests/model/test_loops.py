"""Loops over the first axis of tensors, and functions that call themselves last."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.passes.host.instrument_host import instrument_host, timed_calls

Array = np.ndarray[Any, Any]


Recurrent = bw.from_source(
    """
@I.ir_module
class Module:
    @R.function
    def main(
        h: R.Tensor((3,), "float32"),
        xs: R.Tensor(("n", 4), "float32"),
        w: R.Tensor((3, 4), "float32"),
    ):
        n = T.int64()
        looped = R.scan(cls.step, h, xs, w, carried=1, over=1)
        back = R.scan(cls.step, looped[0], xs, w, carried=1, over=1, reverse=True)
        return (looped[0], looped[1], back[0], back[1])

    @R.function(private=True)
    def step(
        h: R.Tensor((3,), "float32"), x: R.Tensor((4,), "float32"), w: R.Tensor((3, 4), "float32")
    ):
        new = R.tanh(R.add(R.matmul(w, x), R.multiply(h, R.const(0.5, "float32"))))
        return (new, R.sum(new, axis=[0], keepdims=True))
"""
)
"""A state, updated with each element; outputs of another size than the state."""


def recurrent(h: Array, xs: Array, w: Array, reverse: bool = False) -> tuple[Array, Array]:
    ys = np.zeros((len(xs), 1), "float32")
    for at in reversed(range(len(xs))) if reverse else range(len(xs)):
        h = np.tanh(w @ xs[at] + h * np.float32(0.5))
        ys[at] = h.sum()
    return h, ys


def test_states_are_carried_and_outputs_are_stacked() -> None:
    rng = np.random.default_rng(0)
    exe = bw.compile(Recurrent)
    for n in (0, 1, 2, 7, 1501):
        h, xs, w = (rng.standard_normal(s).astype("float32") for s in ((3,), (n, 4), (3, 4)))
        forward = recurrent(h, xs, w)
        wanted = (*forward, *recurrent(forward[0], xs, w, reverse=True))
        found = [exe(h, xs, w)]
        if n < 10:
            found += [bw.interpret(m, h, xs, w) for m in (Recurrent, exe.stages["plan_storage"])]
            outs = [np.zeros_like(right) for right in wanted]
            bw.interpret(exe.lowered, h, xs, w, *outs)
            found.append(outs)
        for each in found:
            for ours, right in zip(each, wanted, strict=True):
                np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)


Mapped = bw.from_source(
    """
@I.ir_module
class Module:
    @R.function
    def main(xs: R.Tensor(("n", 4, 5), "float32"), ys: R.Tensor(("n", 5, 3), "float32")):
        n = T.int64()
        mapped = R.scan(cls.product, xs, ys, over=2)
        return mapped[0]

    @R.function(private=True)
    def product(x: R.Tensor((4, 5), "float32"), y: R.Tensor((5, 3), "float32")):
        return R.matmul(x, y)
"""
)
"""A loop that carries nothing."""


def test_a_loop_without_state() -> None:
    rng = np.random.default_rng(0)
    exe = bw.compile(Mapped)
    for n in (0, 1, 3):
        xs, ys = (rng.standard_normal((n, *s)).astype("float32") for s in ((4, 5), (5, 3)))
        np.testing.assert_allclose(exe(xs, ys), xs @ ys, rtol=1e-5, atol=1e-6)


Collatz = bw.from_source(
    """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((), "int64"), step: R.Tensor((), "int64")):
        return (cls.upward(x, step), cls.downward(x, step))

    @R.function(private=True)
    def upward(x: R.Tensor((), "int64"), step: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        doubled = R.add(x, x)
        more = R.less(doubled, R.const(100000, "int64"))
        if more:
            y = cls.upward(R.add(R.minimum(doubled, R.add(x, step)), R.const(0, "int64")), step)
        else:
            y = R.subtract(doubled, x)
        return y

    @R.function(private=True)
    def downward(x: R.Tensor((), "int64"), step: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        less = R.less(x, R.const(-70000, "int64"))
        if less:
            y = R.negative(x)
        else:
            y = cls.downward(R.subtract(x, step), step)
        return y
"""
)
"""Calls itself in the branch of a true or of a false condition, with values around it."""


def test_functions_that_call_themselves_last_take_no_stack() -> None:
    exe = bw.compile(Collatz)
    assert {"upward_step", "downward_step"} <= exe.stages["plan_storage"].functions.keys()
    for x, step in ((1, 90), (50000, 70), (60000, 7), (3, 200)):
        up, down = x, x
        while 2 * up < 100000:
            up = min(2 * up, up + step)
        while down >= -70000:
            down -= step
        found = exe(np.array(x), np.array(step))
        assert [int(v) for v in found] == [up, -down]


Fibonacci = bw.from_source(
    """
@I.ir_module
class Module:
    @R.function
    def main(n: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
        small = R.less(n, R.const(2, "int64"))
        if small:
            y = R.add(n, R.const(0, "int64"))
        else:
            a = cls.main(R.subtract(n, R.const(1, "int64")))
            y = R.add(a, cls.main(R.subtract(n, R.const(2, "int64"))))
        return y
"""
)
"""Two calls of itself: not a loop."""


Halves = bw.from_source(
    """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "int64")) -> R.Tensor((), "int64"):
        n = T.int64()
        done = R.less(R.sum(x, keepdims=False), R.const(10, "int64"))
        if done:
            y = R.sum(x, keepdims=False)
        else:
            y = cls.main(R.slice(x, axis=0, begin=1, end=n))
        return y
"""
)
"""Calls itself last with a smaller tensor: not a loop."""


def test_other_recursion_stays() -> None:
    assert int(bw.compile(Fibonacci)(np.array(12))) == 144
    x = np.array([5, 4, 0, 7, 8])
    assert int(bw.compile(Halves)(x)) == 8


def test_the_memory_of_a_loop_does_not_depend_on_its_steps() -> None:
    """The second state and the elements in place: 3 numbers for each of two loops, and results."""
    exe = bw.compile(Recurrent)
    h, w = np.zeros(3, "float32"), np.zeros((3, 4), "float32")
    for n in (10, 1000):
        xs = np.zeros((n, 4), "float32")
        results = 2 * (h.nbytes + n * 4)
        assert exe.measure_memory(h, xs, w) == exe.memory_plan.activation_bytes(h, xs, w)
        assert exe.measure_memory(h, xs, w) <= results + 2 * 64


def test_a_profile_times_a_loop_as_a_whole() -> None:
    host = bw.compile(Recurrent).lowered["main"]
    called = [str(getattr(call.args[0], "value", "")) for call in timed_calls(host)]
    assert called.count("step") == 4  # in each loop: the pairs, and the odd one
    timed = instrument_host(host)
    readings = bw.ir.collect(timed.body, bw.ir.BufferStore)
    loops = [
        s for f in bw.ir.collect(timed.body, bw.ir.For) for s in bw.ir.collect(f, bw.ir.BufferStore)
    ]
    assert len({str(store.indices) for store in readings}) == len(called) + 1
    assert not loops


def test_loops_that_do_not_fit_are_refused() -> None:
    def module(step: Any, carried: Any = 1, over: Any = 1) -> Any:
        h, xs = (bw.ir.GraphVar(n, info=i) for n, i in (("h", VECTOR), ("xs", ROWS)))
        call = bw.ir.GraphCall(
            bw.ir.OpRef("scan"),
            (bw.ir.GlobalVar("step"), h, xs),
            {"carried": carried, "over": over},
        )
        y = bw.ir.GraphVar("y")
        block = bw.ir.BindingBlock((bw.ir.VarBinding(y, call),))
        main = bw.ir.GraphFunction(
            (h, xs), bw.ir.SeqExpr((block,), y), None, {"global_symbol": "main"}
        )
        return bw.ir.IRModule({"main": main, "step": step})

    VECTOR, ROWS = Recurrent["main"].params[0].info, Recurrent["main"].params[1].info

    steps: Any = bw.from_source(
        """
@I.ir_module
class Module:
    @R.function
    def shorter(h: R.Tensor((3,), "float32"), x: R.Tensor((4,), "float32")):
        return R.slice(x, axis=0, begin=0, end=2)

    @R.function
    def alone(h: R.Tensor((3,), "float32")):
        return h

    @R.function
    def fits(h: R.Tensor((3,), "float32"), x: R.Tensor((4,), "float32")):
        return R.add(h, R.sum(x, keepdims=False))
"""
    )
    shorter, alone, fits = (steps[name] for name in ("shorter", "alone", "fits"))

    assert bw.compile(module(fits)) is not None
    for bad, code, text in (
        (module(shorter), "BW401", "returns the carried values first|carries"),
        (module(alone), "BW403", "takes 1 values, got 2"),
        (module(fits, over=0), "BW401", "carried=1, over=0"),
        (module(fits, carried=3), "BW401", "carried=3"),
        (module(fits, carried=True), "BW401", "carried=True"),
        (module(fits, carried=0, over=2), "BW40[123]", "fits|scan"),
    ):
        with pytest.raises(bw.BlockwrightError, match=text) as caught:
            bw.compile(bad)
        assert re.fullmatch(code, caught.value.code)
