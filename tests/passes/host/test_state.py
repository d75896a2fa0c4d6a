"""State of graph modules: parameters that an attribute declares, and the executable keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw

COUNTER = """
@I.ir_module
class Module:
    I.module_attrs({"state": {"total": R.const([1.0, 2.0], "float32")}})

    @T.prim_func
    def add(total: T.Buffer((2,), "float32"), x: T.Buffer((2,), "float32")):
        for i in range(2):
            with T.block("total"):
                v = T.axis.spatial(2, i)
                total[v] = total[v] + x[v]

    @R.function
    def main(x: R.Tensor((2,), "float32"), sum: R.Tensor((2,), "float32")):
        R.func_attr({"state": {"sum": "total"}})
        new = R.call_tir_inplace(cls.add, (sum, x), inplace_indices=[0],
                                 out_sinfo=[R.Tensor((2,), "float32")])
        return new

    @R.function
    def twice(sum: R.Tensor((2,), "float32"), calls: R.Tensor((), "int64")):
        R.func_attr({"state": {"sum": "total", "calls": "calls"}})
        return R.add(sum, sum), R.add(calls, calls)
"""


def test_functions_share_state_and_results_are_copies(tmp_path: Path) -> None:
    module = bw.from_source(COUNTER)
    exe = bw.compile(module)
    exe.save(tmp_path / "counter.bwx")
    assert [len(f.parameters) for f in exe.metadata.functions] == [1, 0]
    for each in (exe, bw.load(tmp_path / "counter.bwx")):
        assert list(each.state) == ["total", "calls"]
        x, total = np.ones(2, "f4"), np.array([1, 2], "f4")
        made = [each(x) for _ in range(3)]
        expected = [bw.interpret(module, x, total) for _ in range(3)]
        np.testing.assert_array_equal(made[2], expected[2])
        np.testing.assert_array_equal(made[0], [2, 3])
        each.state["calls"][()] = 4
        sums, calls = each["twice"]()
        np.testing.assert_array_equal(sums, [8, 10])
        assert calls == 8
        with pytest.raises(bw.ArgumentError, match="updated in place and overlaps") as caught:
            each(each.state["total"])
        assert caught.value.code == "BW706"


def test_programs_with_state_can_be_printed_and_read() -> None:
    module = bw.from_source(COUNTER)
    text = module.script()
    values = {"total": np.array([1, 2], "f4")}
    again = bw.from_source(text, constants=values) if "I.constant" in text else bw.from_source(text)
    assert bw.compile(again).state["total"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("given", "wanted", "text"),
    [
        ('{"sum": "total"}})\n        new', '"sum"})\n        new', "must map parameters"),
        ('{"sum": "total"}})\n        new', '{"x": "total"}})\n        new', "last parameters"),
        ('{"sum": "total"}})\n        new', '{"s": "total"}})\n        new', "last parameters"),
        ('"calls": "calls"', '"calls": "total"', "each another variable"),
        ('{"state": {"total": R', '{"state": {"sum": R', "no variable of a function"),
        ("R.const([1.0, 2.0]", "R.const([1.0]", "initial value"),
        ('{"state": {"total": R.const([1.0, 2.0], "float32")}}', '{"state": 1}', "map variables"),
        ('twice(sum: R.Tensor((2,)', 'twice(sum: R.Tensor((3,)', r"float32\[2\], but float32\[3\]"),
        ('twice(sum: R.Tensor((2,)', 'twice(sum: R.Tensor(("n",)', "sizes that are numbers"),
        ("@R.function\n    def twice", "@R.function(private=True)\n    def twice", "private"),
    ],
)  # fmt: skip
def test_declarations_that_do_not_fit_are_refused(given: str, wanted: str, text: str) -> None:
    assert given in COUNTER
    with pytest.raises(bw.ValidationError, match=text) as caught:
        bw.compile(bw.from_source(COUNTER.replace(given, wanted)))
    assert caught.value.code == "BW252"


def test_modules_of_one_state_agree_on_its_value() -> None:
    one = bw.from_source(COUNTER)
    other = one.replace(attrs={"state": {"total": np.array([1, 2], "f4")}})
    exe = bw.compile({"one": one, "other": other})
    x: Any = np.ones(2, "f4")
    exe["one"](x)
    np.testing.assert_array_equal(exe["other"](x), [3, 4])
    wrong = one.replace(attrs={"state": {"total": np.array([1, 3], "f4")}})
    with pytest.raises(bw.ValidationError, match="different initial values") as caught:
        bw.compile({"one": one, "other": wrong})
    assert caught.value.code == "BW252"


def test_code_for_several_targets_has_one_state(tmp_path: Path) -> None:
    exe = bw.compile(bw.from_source(COUNTER), target=["x86-64-v2", "native"])
    exe.save(tmp_path / "several.bwx")
    for each in (exe, bw.load(tmp_path / "several.bwx", target="x86-64-v2")):
        each(np.ones(2, "f4"))
        assert each.state["total"].tolist() == [2, 3]
