"""What a call or a parameter states that no value can be is refused, and errors say where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw


def module(*functions: str) -> Any:
    body = "\n".join(f"    {line}" for text in functions for line in text.strip().splitlines())
    return bw.from_source(f"@I.ir_module\nclass Module:\n{body}\n")


@pytest.mark.parametrize(
    "stated", ["R.Object", 'R.Tensor(ndim=2, dtype="float32")', "R.Tensor((2, 8))", "R.Shape((2,))"]
)
def test_memory_is_allocated_for_tensors_of_known_shape_and_type_only(stated: str) -> None:
    built = module(f"""
@R.function
def main(x: R.Tensor((2, 8), "float32")):
    return R.call_dps_packed("no.such", (x,), out_sinfo={stated})
""")
    for entry in (bw.validate, bw.build, bw.compile):
        with pytest.raises(bw.BlockwrightError, match="no memory can be allocated") as caught:
            entry(built)
        assert caught.value.code == "BW407"
        assert all(d.span is not None for d in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("annotation", "valid"),
    [
        ('R.Tensor(ndim=64, dtype="float32")', True),
        ('R.Tensor(ndim=65, dtype="float32")', False),
        ('R.Tensor(ndim=100000, dtype="float32")', False),
        (f'R.Tensor(({"1, " * 65}), "float32")', False),
        ("R.Shape(ndim=100000)", False),
        ('R.Tuple(R.Tensor(ndim=65, dtype="float32"), R.Object)', False),
    ],
)
def test_a_tensor_has_at_most_64_dimensions(annotation: str, valid: bool) -> None:
    built = module(f"@R.function\ndef main(x: {annotation}):\n    return x")
    if valid:
        bw.validate(built)
        return
    for entry in (bw.validate, bw.build, bw.compile):
        with pytest.raises(bw.ValidationError, match="at most 64 dimensions") as caught:
            entry(built)
        assert caught.value.code == "BW250"


def test_errors_name_private_and_local_functions() -> None:
    private = module(
        """
@R.function(private=True)
def first(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float64"):
    return R.exp(x)
""",
        """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    return cls.first(x)
""",
    )
    with pytest.raises(bw.ValidationError, match="the result of first is annotated"):
        bw.validate(private)
    local = module("""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    @R.function
    def second(v: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float16"):
        return R.exp(v)
    return second(x)
""")
    with pytest.raises(bw.ValidationError, match="the result of second is annotated") as caught:
        bw.validate(local)
    assert len(caught.value.diagnostics) == 1  # none about what follows from it


def test_a_recursive_private_function_is_named_when_it_calls_itself_too_often() -> None:
    built = module(
        """
@R.function(private=True)
def deep(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    y = R.exp(cls.deep(x))
    return y
""",
        """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    return cls.deep(x)
""",
    )
    with pytest.raises(bw.BlockwrightError, match="deep calls itself more than") as caught:
        bw.compile(built)(np.zeros(1, "float32"))
    assert caught.value.code == "BW723"


def test_the_interpreter_reports_a_negative_size() -> None:
    built = module(
        """
@T.prim_func(private=True)
def fill(y: T.handle, n: T.int64):
    Y = T.match_buffer(y, (n,), "int64")
    for i in range(n):
        with T.block("Y"):
            vi = T.axis.spatial(n, i)
            Y[vi] = T.int64(7)
""",
        """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    return R.call_tir(
        cls.fill, (), out_sinfo=R.Tensor((n - 4,), "int64"), tir_vars=R.shape([n - 4])
    )
""",
    )
    exe, seven = bw.compile(built), np.full(2, 7)

    def interpreted(x: Any) -> Any:
        return bw.interpret(built, x)

    for run in (exe, interpreted):
        np.testing.assert_array_equal(run(np.zeros(6, "float32")), seven)
        with pytest.raises(bw.BlockwrightError, match="would be -1") as caught:
            run(np.zeros(3, "float32"))
        assert caught.value.code == "BW708"
