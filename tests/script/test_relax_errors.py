"""Mistakes in graph functions: every one is a coded error with its line."""

from __future__ import annotations

import pytest

import blockwright as bw

VECTOR = 'x: R.Tensor((4,), "float32")'


def parse(body: str, params: str = VECTOR) -> object:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return bw.from_source(f"@R.function\ndef main({params}):\n{lines}\n")


def code_and_line(body: str, params: str = VECTOR) -> tuple[str, int]:
    with pytest.raises(bw.ScriptError) as caught:
        parse(body, params)
    span = caught.value.diagnostics[0].span
    assert span is not None
    return caught.value.code, span.line


@pytest.mark.parametrize(
    ("info", "code"),
    [
        ('R.Tensor(dtype="float32", ndim=-2)', "BW107"),
        ('R.Tensor(dtype="float32", ndim=1.5)', "BW107"),
        ('R.Tensor(dtype="float32", ndim="2")', "BW107"),
        ('R.Tensor(dtype="float32", ndim=True)', "BW107"),
        ('R.Tensor((4, 4), "float32", ndim=3)', "BW107"),
        ("R.Shape([2, 3], ndim=3)", "BW107"),
        ("R.Shape(ndim=-3)", "BW107"),
        ('R.Tensor((4.0,), "float32")', "BW107"),
        ('R.Tensor(("4.5",), "float32")', "BW107"),
        ('R.Tensor((True,), "float32")', "BW107"),
        ('R.Tensor(("True",), "float32")', "BW107"),
        ('R.Tensor(("n +",), "float32")', "BW107"),
        ('R.Tensor(("",), "float32")', "BW107"),
        ('R.Tensor(("n < 2", "n"), "float32")', "BW107"),
        ('R.Tensor(("n / 2", "n"), "float32")', "BW107"),
        ('R.Tensor(("len(n)", "n"), "float32")', "BW106"),
        ('R.Tensor((None,), "float32")', "BW107"),
        ('R.Tensor((2**70,), "float32")', "BW107"),
        ('R.Tensor((4,), "float3")', "BW107"),
        ('R.Tensor((4,), "float128")', "BW107"),
        ('R.Tensor((4,), "bfloat32")', "BW107"),
        ('R.Tensor((4,), "real")', "BW107"),
        ('"foo bar"', "BW101"),
        ("3", "BW112"),
    ],
)
def test_annotations_of_parameters(info: str, code: str) -> None:
    assert code_and_line("return x", f"x: {info}") == (code, 2)


@pytest.mark.parametrize(
    ("body", "code", "line"),
    [
        ("R.output(y)\n    R.output(z)\nreturn z", "BW111", 7),
        ("R.output(y)\n    w = R.exp(z)\nreturn y", "BW108", 7),
        ("R.output(y)\n    y = R.exp(z)\nreturn y", "BW108", 7),
        ("R.output(q)\nreturn x", "BW102", 6),
        ("R.output(x)\nreturn x", "BW102", 6),
        ("R.output(R.add(y, y))\nreturn x", "BW106", 6),
        ('R.output("y")\nreturn x', "BW106", 6),
        ("R.output(z)\nreturn y", "BW102", 7),
    ],
)
def test_outputs_of_dataflow_blocks(body: str, code: str, line: int) -> None:
    head = "with R.dataflow():\n    y = R.add(x, x)\n    z = R.exp(y)\n    "
    assert code_and_line(head + body) == (code, line)


def test_a_name_of_a_dataflow_block_does_not_uncover_an_earlier_one() -> None:
    body = (
        "y = R.exp(x)\nwith R.dataflow():\n    y = R.add(x, x)\n    z = R.exp(y)\n"
        "    R.output(z)\nreturn y"
    )
    assert code_and_line(body) == ("BW102", 8)
    parse(body.replace("return y", "y = R.exp(z)\nreturn y"))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("y = R.add(x, x)", "BW103"),
        ("return q", "BW102"),
        ("y = R.add(z, x)\nz = R.exp(x)\nreturn y", "BW102"),
        ("y = R.add(y, x)\nreturn y", "BW102"),
        ("return None", "BW107"),
    ],
)
def test_uses_and_results(body: str, code: str) -> None:
    assert code_and_line(body)[0] == code


def test_parameters_have_different_names() -> None:
    assert code_and_line("return x", f"{VECTOR}, {VECTOR}") == ("BW111", 2)


@pytest.mark.parametrize("params", [
    'x: R.Tensor(("x",), "float32")',
    'x: R.Tensor(("n", "2 * x"), "float32")',
    'y: R.Tensor(("x",), "float32"), x: R.Tensor((4,), "float32")',
    'y: R.Shape(["y"])',
    'y: R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("y",), "float32"))',
])  # fmt: skip
def test_a_symbol_and_a_parameter_have_names_of_their_own(params: str) -> None:
    name = "y" if params.startswith("y") else "x"
    with pytest.raises(bw.ScriptError) as caught:
        bw.from_source(f"@R.function\ndef main({params}):\n    return {name}\n")
    assert "BW111" in [d.code for d in caught.value.diagnostics]
    assert caught.value.help


@pytest.mark.parametrize(
    ("body", "params", "code"),
    [
        ("n = R.get_shape_value(x, axis=1)\nreturn x", VECTOR, "BW107"),
        ("n = R.get_shape_value(x, axis=-2)\nreturn x", VECTOR, "BW107"),
        ("n = R.get_shape_value(x, axis=0.0)\nreturn x", VECTOR, "BW107"),
        ("n = R.get_shape_value(x)\nreturn x", VECTOR, "BW106"),
        ("n = R.get_shape_value(x, axis=0)\nreturn x", 'x: R.Tensor(dtype="float32")', "BW107"),
        ("return R.reshape(x, (R.get_shape_value(x, axis=0),))", VECTOR, "BW108"),
    ],
)
def test_sizes_of_axes(body: str, params: str, code: str) -> None:
    assert code_and_line(body, params)[0] == code
