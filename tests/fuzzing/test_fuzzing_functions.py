"""Random modules of graph functions: a few fixed seeds, and faults that are put in."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from blockwright import ir
from blockwright.ops.table import OPERATORS
from blockwright.passes import PassContext, Pipeline
from fuzzing.functions import judge as judge_file
from fuzzing.functions.draw import draw
from fuzzing.functions.judge import judge
from fuzzing.functions.scope import STRUCTURES
from fuzzing.graphs.judge import as_script, reduced
from fuzzing.graphs.stages import difference


def test_random_modules_mean_what_numpy_says_at_every_stage() -> None:
    structured = [m for m in map(draw, range(20)) if "    if " in m.text()][:4]
    modules = [*structured, draw(4, steps=3)]
    found = [judge(msgspec.structs.replace(module, native=False)).what for module in modules]
    assert set(found) <= {"passed", "refused"}
    assert found[-1] == "passed"


def test_seeds_stand_for_modules() -> None:
    """Equal seeds give equal modules, and a hundred of them contain every structure."""
    texts = [draw(seed).text() for seed in range(100)]
    assert texts[:5] == [draw(seed).text() for seed in range(5)]
    named = "\n".join(texts)
    for words in (
        "        if ", "    def g", "(private=True)\n    def f", "= cls.f", "cls.apply(", "less)",
        "sizes: R.Shape", ": R.Tuple(", "return (", "R.match_cast", "R.invoke_closure", "a = f(v)",
        "R.call_tir_inplace", "tir_var_lower_bound", "reflect", "R.unique", "R.tensor_to_shape",
    ):  # fmt: skip
        assert words in named, words
    assert len(STRUCTURES) == 14


def test_a_wrong_pass_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that doubles a constant scalar, on programs that have one."""

    def wrong(module: ir.IRModule, context: PassContext) -> ir.IRModule:
        def more(node: ir.Node) -> ir.Node | None:
            if isinstance(node, ir.GraphCall) and node.attrs.get("scalar"):
                attrs = {**node.attrs, "scalar": node.attrs["scalar"] + 1}
                return node.replace(attrs=attrs)
            return None

        return ir.rewrite_bottom_up(module, more)

    pipeline = Pipeline([("Wrong", [("wrong", wrong)])])
    monkeypatch.setattr(judge_file, "default_pipeline", lambda target: pipeline)
    found = (draw(seed, steps=8) for seed in range(100))
    module = next(
        msgspec.structs.replace(m, native=False, outputs=(b.name,))
        for m in found
        for b in m.bindings
        if "scalar=" in b.text and "add" in b.text and b.name in m.tensors
    )
    verdict = judge(module)
    assert verdict.symptom == "wrong value after wrong"
    small = reduced(module, lambda m: judge(m).symptom == verdict.symptom)
    assert len(small.bindings) <= len(module.bindings)
    assert "scalar=" in as_script(small, verdict, 0)


def test_a_wrong_oracle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = next(m for m in map(draw, range(50)) if "R.concat" in m.trimmed(m.outputs).text())
    module = msgspec.structs.replace(module, native=False)
    good = OPERATORS["concat"]

    def other(*arrays: Any, axis: int) -> Any:
        return good.oracle(*arrays[::-1], axis=axis) + arrays[0].dtype.type(1)

    monkeypatch.setitem(OPERATORS, "concat", msgspec.structs.replace(good, oracle=other))
    names = [b.name for b in module.bindings if "R.concat" in b.text and b.name in module.tensors]
    module = msgspec.structs.replace(module, outputs=(*names[:1], *module.outputs))
    assert judge(module).what == "wrong" or not names


def test_differences_are_named() -> None:
    x = np.arange(3)
    assert difference((x, (x, 1)), (x, (x, 1))) == ""
    assert "field 1 of the result at (2,): 2, expected 5" in difference(
        (x, x), (x, np.array([0, 1, 5]))
    )
    assert "not int32" in difference(x, x.astype("int32"))
    assert "is not a tuple of 2" in difference((x,), (x, x))
