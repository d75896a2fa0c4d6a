"""Devices of values: annotations, the devices of a module, copies; in the interpreter too."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph.devices import declared_devices
from blockwright.support import BlockwrightError
from blockwright.target.host import host_arch

CPUS = '[I.vdevice("llvm"), I.vdevice("llvm")]'
X = 'x: R.Tensor((4,), "float32", vdevice="cpu:0"), y: R.Tensor((4,), "float32", vdevice="cpu:1")'


def module(body: str, params: str = X, devices: str = CPUS, more: str = "") -> ir.IRModule:
    main = f"@R.function\ndef main({params}):\n{textwrap.indent(body, '    ')}\n"
    head = f'I.module_global_infos({{"vdevice": {devices}}})\n' if devices else ""
    text = textwrap.indent(head + textwrap.dedent(more) + "\n" + main, "    ")
    return bw.from_source(f"@I.ir_module\nclass M:\n{text}\n")


def code(use: Any, *given: Any) -> str:
    """The code of the error that a use of a module raises; "" if it raises none."""
    try:
        use(*given)
    except BlockwrightError as error:
        return error.code
    return ""


def checked(*given: Any, **named: Any) -> str:
    return code(bw.validate, module(*given, **named))


# ------------------------------------------------------------------------------------ text
def test_devices_print_and_parse() -> None:
    built = module(
        "z = R.to_vdevice(x, 'cpu:1')\nreturn R.hint_on_device(R.add(y, z), R.device(1, 1))",
        devices='[I.vdevice("llvm"), I.vdevice({"kind": "x86-64-v3"}, 2), I.vdevice("cuda")]',
    )
    text = built.script()
    assert '[I.vdevice("llvm"), I.vdevice("x86-64-v3", 2, "global"), I.vdevice("cuda")]' in text
    assert 'y: R.Tensor((4,), "float32", device="cpu:1")' in text
    assert 'z = R.to_vdevice(x, dst_vdevice="cpu:1")' in text
    assert 'R.hint_on_device(lv, device="cpu:1")' in text or 'device="cpu:1")' in text
    ir.assert_structural_equal(bw.from_source(text), built)
    assert [*declared_devices(built)] == ["cpu", "cpu:1", "cuda"]


@pytest.mark.parametrize("spelled", ["cpu", "cpu:0", "llvm", "llvm:0:global", "cpu:0:global"])
def test_spellings_of_one_device(spelled: str) -> None:
    built = module("return x", f'x: R.Tensor((4,), "float32", vdevice="{spelled}")')
    assert built["main"].params[0].info.device == "cpu"


@pytest.mark.parametrize(("device", "why"), [
    ("cpu:2", "declares no device"),
    ("cuda", "declares no device"),
    ("tpu", "unknown device"),
    ("cpu:x", "unknown device"),
    ("cpu:1:shared", "memory space global, not shared"),
])  # fmt: skip
def test_devices_that_the_module_does_not_have(device: str, why: str) -> None:
    tensor = f'R.Tensor((4,), "float32", vdevice="{device}")'
    uses = [
        ("return x", f"x: {tensor}"),
        (f"return R.to_vdevice(x, '{device}')", X),
        (f"return R.hint_on_device(x, '{device}')", X),
    ]
    for body, params in uses:
        with pytest.raises(BlockwrightError, match=why) as caught:
            bw.validate(module(body, params))
        assert caught.value.code == "BW258"


@pytest.mark.parametrize("devices", ['[I.vdevice("pdp-11")]', '[I.vdevice("llvm", "first")]'])
def test_declarations_that_are_none(devices: str) -> None:
    assert code(module, "return x", X, devices) == "BW107"
    wrong = module("return x", X).replace(attrs={"vdevice": [{"target": 3}]})
    assert code(bw.validate, wrong) == "BW252"
    assert "'target': 3" in wrong.script() or '"target": 3' in wrong.script()


# ------------------------------------------------------------------------------- deduction
def test_operators_compute_on_one_device() -> None:
    assert checked("return R.add(x, y)") == "BW401"
    assert checked("return R.add(R.to_vdevice(x, 'cpu:1'), y)") == ""
    assert checked("return R.add(x, R.const([1.0, 2, 3, 4], 'float32'))") == ""


def test_results_are_where_any_operand_is() -> None:
    host = 'h: R.Tensor((4,), "float32")'
    built = module("z = R.add(h, y)\nreturn R.sum(z)", f"{host}, {X}")
    normal = bw.default_pipeline().until("normalize")(built)["main"]
    assert [b.var.info.device for b in normal.bindings] == ["cpu:1", "cpu:1"]


def test_annotations_do_not_move_values() -> None:
    assert checked('z: R.Tensor((4,), "float32", vdevice="cpu:1") = R.exp(x)\nreturn z') != ""
    assert checked('z: R.Tensor((4,), "float32", vdevice="cpu:0") = R.exp(x)\nreturn z') == ""
    assert (
        checked('z = R.match_cast(x, R.Tensor((4,), "float32", vdevice="cpu:1"))\nreturn z') != ""
    )


# -------------------------------------------------------------------------------- the GPU
GPU = """
@T.prim_func
def twice(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    for tx in T.thread_binding(4, thread="threadIdx.x"):
        with T.block("B"):
            v = T.axis.spatial(4, tx)
            B[v] = A[v] * T.float32(2)
"""
ON_GPU = """
g = R.to_vdevice(x, "cuda:0")
t = R.call_tir(cls.twice, (g,), out_sinfo=R.Tensor((4,), "float32", vdevice="cuda:0"))
return R.add(R.to_vdevice(t, "cpu:0"), x)
"""
MACHINE = '[I.vdevice("llvm"), I.vdevice("cuda-sm_90")]'
HOST_X = 'x: R.Tensor((4,), "float32", vdevice="cpu:0")'


def test_programs_of_the_gpu_run_in_the_interpreter() -> None:
    built = module(ON_GPU.strip(), HOST_X, MACHINE, GPU)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(bw.interpret(built, x), 3 * x)
    mixed = ON_GPU.replace("cls.twice, (g,)", "cls.twice, (x,)").strip()
    assert code(bw.interpret, module(mixed, HOST_X, MACHINE, GPU), x) == "BW401"


def test_code_for_the_gpu_cannot_be_generated() -> None:
    with pytest.raises(BlockwrightError, match="t is on cuda, and no code") as caught:
        bw.compile(module(ON_GPU.strip(), HOST_X, MACHINE, GPU))
    assert caught.value.code == "BW602"
    assert "bw.interpret" in (caught.value.help or "")


# --------------------------------------------------------------------------- compiled code
def compiled(body: str, params: str, devices: str) -> tuple[bw.CompiledModel, ir.IRModule]:
    built = module(body, params, devices)
    return bw.compile(built, target="native"), built


@pytest.mark.skipif(host_arch() != "x86_64", reason="levels of x86-64")
def test_programs_are_compiled_for_their_devices() -> None:
    best = "x86-64-v4" if bw.Target("x86-64-v4").is_host else "x86-64-v2"
    body = """
a = R.exp(x)
b = R.hint_on_device(a, "cpu:1")
c = R.sum(R.exp(b), axes=0)
return c, R.exp(R.to_vdevice(c, "cpu:0"))
"""
    params = 'x: R.Tensor(("n", 4096), "float32", vdevice="cpu:0")'
    devices = f'[I.vdevice("x86-64-v2"), I.vdevice("{best}")]'
    exe, built = compiled(body.strip(), params, devices)
    x = np.random.default_rng(0).random((3, 4096), np.float32)
    for found, wanted in zip(exe(x), bw.interpret(built, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    targets = {u.name: u.target.name for u in exe.library.compiled.units}
    assert targets.pop("main") == "native"
    assert sorted(targets.values()) == ["x86-64-v2", "x86-64-v2", best] or best == "x86-64-v2"
    if best == "x86-64-v4":
        texts = {targets[name]: exe.library.source("asm", name) for name in targets}
        assert "zmm" in texts[best]
        assert "zmm" not in texts["x86-64-v2"]
        assert "ymm" not in texts["x86-64-v2"]
    assert bw.Target(best).feature_set <= set(exe.metadata.features)


def test_copies_between_cpus_are_the_values_themselves() -> None:
    exe, _ = compiled("return R.exp(R.to_vdevice(x, 'cpu:1'))", HOST_X, CPUS)
    called = exe.stages["share_memory"].script()
    assert "to_vdevice" in exe.stages["fuse_tir"].script()
    assert "to_vdevice" not in called
    assert called.count("call_tir") == 1
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(exe(x), np.exp(x), rtol=1e-6)
    alone, _ = compiled("return R.to_vdevice(x, 'cpu:1')", HOST_X, CPUS)
    result = alone(x)
    np.testing.assert_array_equal(result, x)
    assert not np.shares_memory(result, x)


def test_updates_of_a_copy_leave_the_value_alone() -> None:
    program = """
@T.prim_func
def clear(A: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("A"):
            v = T.axis.spatial(4, i)
            A[v] = T.float32(0)
"""
    body = """
a = R.exp(x)
b = R.to_vdevice(a, "cpu:1")
c = R.call_tir_inplace(cls.clear, (b,), inplace_indices=[0],
                       out_sinfo=[R.Tensor((4,), "float32", vdevice="cpu:1")])
return R.add(a, x), c
"""
    built = module(body.strip(), HOST_X, CPUS, program)
    x = np.arange(4, dtype=np.float32)
    for found, wanted in zip(bw.compile(built)(x), bw.interpret(built, x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_modules_without_devices_are_left_alone() -> None:
    built = module("return R.exp(x)", 'x: R.Tensor((4,), "float32")', devices="")
    exe = bw.compile(built)
    names = [run.name for run in exe.context.runs if run.before is run.after]
    assert {"realize_devices", "place_programs", "share_memory"} <= set(names)
