"""Random graphs with hints: placement keeps results, and each operator computes on one device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph.devices import devices_in
from blockwright.passes.rewrite import called_operator, used_vars

DEVICES = ("cpu", "cpu:1", "cpu:2")
HEAD = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm")] * 3})
    @R.function
    def main(a: R.Tensor((3,), "float32"), b: R.Tensor((3,), "float32", vdevice="cpu:1")):
"""


def graph(seed: int) -> str:
    """A graph of unary and binary operators, with copies and hints where they may be."""
    draw = random.Random(seed)
    devices = {"a": "", "b": "cpu:1"}
    lines: list[str] = []
    for number in range(draw.randint(4, 12)):
        name, one = f"v{number}", draw.choice([*devices])
        kind = draw.choice(["unary", "binary", "hint", "copy", "constant"])
        device = draw.choice(DEVICES)
        if kind == "binary":
            fitting = [
                v for v, d in devices.items() if not d or not devices[one] or d == devices[one]
            ]
            other = draw.choice(fitting)
            lines.append(f"{name} = R.add({one}, {other})")
            devices[name] = devices[one] or devices[other]
        elif kind in ("hint", "copy"):
            operator = {"hint": "hint_on_device", "copy": "to_vdevice"}[kind]
            lines.append(f"{name} = R.{operator}({one}, '{device}')")
            devices[name] = device
        elif kind == "constant":
            lines.append(f"{name} = R.multiply(R.const([1, 2, 3], 'float32'), {one})")
            devices[name] = devices[one]
        else:
            lines.append(f"{name} = R.{draw.choice(['sin', 'abs', 'negative'])}({one})")
            devices[name] = devices[one]
    results = draw.sample([*devices], min(3, len(devices)))
    lines.append(f"return {', '.join(results)},")
    return HEAD + "".join(f"        {line}\n" for line in lines)


PLACED = bw.default_pipeline().until("realize_devices")
ARGUMENTS = [np.array([1, -2, 0.5], "float32"), np.array([3, 0, -7], "float32")]


def places(function: ir.GraphFunction) -> dict[ir.GraphVar, str]:
    bound = [*function.params, *(b.var for b in function.bindings if isinstance(b, ir.VarBinding))]
    return {v: "".join(devices_in([v.info])) for v in bound}


@pytest.mark.parametrize("seed", range(40))
def test_placement_of_random_graphs(seed: int) -> None:
    module = bw.from_source(graph(seed))
    placed = PLACED(module)
    for found, wanted in zip(
        bw.interpret(placed, *ARGUMENTS), bw.interpret(module, *ARGUMENTS), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
    function = placed["main"]
    where = places(function)
    for binding in function.bindings:
        operator = called_operator(binding.value)
        assert operator != "hint_on_device"
        if operator != "to_vdevice":
            assert {where[v] for v in used_vars(binding.value)} <= {where[binding.var]}
        else:
            (source,) = used_vars(binding.value)
            assert where[source] != where[binding.var] or "to_vdevice" in graph(seed)


def compiled_copies(body: str) -> list[str]:
    """Which values the compiled graph copies; its results are compared."""
    return checked_copies(HEAD + "".join(f"        {line}\n" for line in body.splitlines()))


@pytest.mark.parametrize("seed", range(40, 45))
def test_compiled_random_graphs(seed: int) -> None:
    checked_copies(graph(seed))


def checked_copies(source: str) -> list[str]:
    exe: Any = bw.compile(bw.from_source(source))
    found = exe(*ARGUMENTS)
    wanted = bw.interpret(bw.from_source(source), *ARGUMENTS)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    return exe.context.decisions.get("realize_devices", [])


def test_one_copy_for_all_consumers_on_a_device() -> None:
    copies = compiled_copies(
        "c = R.sin(b)\n"
        "d = R.exp(R.hint_on_device(c, 'cpu:2'))\n"
        "e = R.add(R.hint_on_device(c, 'cpu:2'), d)\n"
        "return d, e"
    )
    assert copies == ["main: c: copied from cpu:1 to cpu:2"]


def test_values_without_relation_to_a_device_stay_without() -> None:
    assert compiled_copies("c = R.sin(a)\nreturn c, R.exp(b)") == []


def test_a_value_is_computed_where_it_is_first_wanted() -> None:
    copies = compiled_copies(
        "c = R.sin(a)\nd = R.sin(R.hint_on_device(c, 'cpu:2'))\n"
        "e = R.cos(R.hint_on_device(c, 'cpu'))\nreturn d, e"
    )
    assert copies == [
        "main: a: copied from host to cpu:2",
        "main: c: copied from cpu:2 to cpu",
    ]
