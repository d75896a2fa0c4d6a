"""The attribute `implementation` of calls: its text, its errors, and the rows it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import GraphBuilder, deduce_call
from blockwright.ops.implementation import chosen, lower_call, text_of
from blockwright.ops.row import Implementation, OpContext, Parameters
from blockwright.ops.table import OPERATORS, register, register_implementation, row
from blockwright.support import GraphError

CONV = OPERATORS["nn.conv2d"]


class Steps(Parameters, frozen=True):
    """Parameters of several types, with and without defaults."""

    order: Literal["up", "down"]
    count: int = 2
    rate: float = 0.5


def lower_steps(ctx: OpContext, infos: Any, attrs: Any, steps: Steps) -> ir.PrimFunc:
    func = lower_call(OPERATORS["relu"], OpContext("relu"), infos, {})
    return func.replace(attrs={**func.attrs, "steps": text_of("steps", steps)})


STEPS = Implementation("steps", lower_steps, "The same.", Steps)


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(OPERATORS)
    yield
    OPERATORS.clear()
    OPERATORS.update(before)


def module(attributes: str) -> ir.IRModule:
    return bw.from_source(f"""
@R.function
def main(x: R.Tensor((1, 8, 8, 4), "float32"), w: R.Tensor((3, 3, 4, 8), "float32")):
    return R.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO", {attributes})
""")


def test_a_call_names_it_in_text_that_reads_back() -> None:
    written = module('implementation="winograd(tile=4)"')
    assert 'implementation="winograd(tile=4)"' in written.script()
    ir.assert_structural_equal(bw.from_source(written.script()), written)


@pytest.mark.parametrize(
    ("attributes", "block"),
    [
        ('implementation="winograd(tile=2)"', "input_columns"),
        ('implementation=" winograd ( tile = 2 ) "', "input_columns"),
        ('implementation="default"', "padded"),
    ],
)
def test_a_call_is_computed_by_what_it_names(attributes: str, block: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 4)).astype("float32")
    w = np.random.default_rng(1).standard_normal((3, 3, 4, 8)).astype("float32")
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": None}
    wanted = CONV.oracle(x, w, **{**CONV.attrs, **layouts, "padding": 1})
    exe = bw.compile(module(attributes))
    text = repr(exe.stages["legalize"])
    assert block in text
    assert ("input_columns" in text) == ("winograd" in attributes)
    np.testing.assert_allclose(np.asarray(exe(x, w)), wanted, rtol=0, atol=1e-4)


WRONG: dict[str, str] = {
    "fft": "there is no 'fft'",
    "winograd": "winograd needs the parameter 'tile'",
    "winograd(size=4)": "winograd has no parameter 'size'",
    "winograd(tile=5)": "tile=5 is not 2|4|6",
    "winograd(tile=4.0)": "tile=4.0 is not 2|4|6",
    "winograd(tile='4')": "tile='4' is not 2|4|6",
    "winograd(tile=x)": "it must have the form",
    "winograd(4)": "it must have the form",
    "winograd(tile=2, tile=4)": "it must have the form",
    "winograd(**{})": "it must have the form",
    "default(tile=4)": "the default has no parameters",
    "(": "it must have the form",
    "": "it must have the form",
    "(" * 100_000: "it must have the form",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:20])
def test_unknown_names_and_parameters_are_errors_that_list_what_exists(text: str) -> None:
    with pytest.raises(GraphError) as caught:
        chosen(CONV, {"implementation": text})
    assert caught.value.code == "BW418"
    assert WRONG[text] in caught.value.message
    assert caught.value.help == "implementations of nn.conv2d: default, winograd(tile=2|4|6)"


def test_validation_reports_them() -> None:
    for text, code in (('"winograd"', "BW418"), ("4", "BW418"), ('"fft"', "BW418")):
        for entry in (bw.validate, bw.compile):
            with pytest.raises(bw.BlockwrightError) as caught:
                entry(module(f"implementation={text}"))
            assert caught.value.code == code
    with pytest.raises(bw.BlockwrightError, match="stride and dilation 1") as caught:
        bw.validate(module('strides=2, implementation="winograd(tile=2)"'))
    assert caught.value.code == "BW419"
    assert caught.value.help == "omit implementation= to let the compiler choose"


def test_shapes_that_are_unknown_yet_are_no_error() -> None:
    """The rule is asked again when the call is lowered, with all that it needs to know."""
    unknown = ir.TensorInfo(None, ir.dtype_of("float32"), 4)
    args = tuple(ir.GraphVar(name, info=unknown) for name in "qkv")
    attrs = {"implementation": "split_kv(block=3)"}
    deduce_call(ir.GraphCall(ir.OpRef("attention"), args, attrs), Analyzer())
    infos = [ir.TensorInfo(tuple(ir.const(n, "int64") for n in (1, 1, 8, 4)), unknown.dtype)] * 3
    called = OPERATORS["attention"]
    with pytest.raises(GraphError, match="several blocks of 3") as caught:
        lower_call(called, OpContext("attention"), infos, {**called.attrs, **attrs})
    assert caught.value.code == "BW419"


def test_other_operators_have_no_such_attribute() -> None:
    builder = GraphBuilder()
    x = builder.param("x", ir.TensorInfo((ir.const(4, "int64"),), ir.dtype_of("float32")))
    with pytest.raises(GraphError, match="has no attribute 'implementation'") as caught:
        builder.op("relu", x, implementation="default")
    assert caught.value.code == "BW401"


def test_parameters_have_types_and_defaults() -> None:
    known = msgspec.structs.replace(OPERATORS["relu"], implementations=(STEPS,))
    for text, wanted in {
        "steps(order='up')": Steps("up"),
        'steps(order="down", count=-1, rate=2)': Steps("down", -1, 2.0),
    }.items():
        choice = chosen(known, {"implementation": text})
        assert choice is not None
        assert choice.parameters == wanted
        assert chosen(known, {"implementation": str(choice)}) == choice
    for text in ("steps(order='left')", "steps(order='up', count=True)", "steps(order=up)"):
        with pytest.raises(GraphError, match=r"steps\(order='up'\|'down', count=int, rate=float\)"):
            chosen(known, {"implementation": text})


def test_implementations_are_registered_from_outside() -> None:
    register_implementation("relu", STEPS)
    builder = GraphBuilder()
    x = builder.param("x", ir.TensorInfo((ir.const(4, "int64"),), ir.dtype_of("float32")))
    y = builder.op("relu", x, implementation="steps(order='up', count=3)")
    exe = bw.compile(builder.finish("main", y))
    assert "steps(order='up', count=3, rate=0.5)" in repr(exe.stages["legalize"])
    given = np.array([-1, 2, -3, 4], "float32")
    np.testing.assert_array_equal(np.asarray(exe(given)), [0, 2, 0, 4])


def test_names_are_taken_once() -> None:
    register_implementation("relu", STEPS)
    for name in ("steps", "default"):
        with pytest.raises(GraphError) as caught:
            register_implementation("relu", msgspec.structs.replace(STEPS, name=name))
        assert caught.value.code == "BW420"
        assert "default, steps" in str(caught.value.help)
    register_implementation("relu", msgspec.structs.replace(STEPS, doc="Another."), override=True)
    assert [each.doc for each in row("relu").implementations] == ["Another."]
    with pytest.raises(GraphError, match="unknown operator"):
        register_implementation("rellu", STEPS)
    with pytest.raises(GraphError) as caught:
        register(OPERATORS["relu"])
    assert caught.value.code == "BW420"
    register(msgspec.structs.replace(OPERATORS["relu"], name="my_relu"))
    assert row("my_relu").lower is OPERATORS["relu"].lower


def test_every_implementation_explains_itself_and_has_a_sample() -> None:
    for each in OPERATORS.values():
        used = {str(sample.attrs.get("implementation")).split("(")[0] for sample in each.samples}
        for implementation in each.implementations:
            assert implementation.accuracy.endswith(".")
            assert implementation.doc.endswith(".")
            assert implementation.name in used
