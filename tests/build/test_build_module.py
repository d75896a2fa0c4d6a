"""`build`: from programs to callables, their sources, constants, duplicates and timings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from blockwright import ir
from blockwright.build import Module, ObjectCache, build, compile_lowered
from blockwright.build.compile import emit_units
from blockwright.codegen.llvm.binding import compile_object
from blockwright.support import BuildError
from blockwright.target import Target

INT64, F32, HANDLE = ir.dtype_of("int64"), ir.dtype_of("float32"), ir.dtype_of("handle")


def flat_scale(name: str, factor: float, **attrs: Any) -> ir.PrimFunc:
    """y = factor * x for any length, already lowered."""
    n, i = ir.var("n", INT64), ir.var("i", INT64)
    x, y = ir.Buffer("x", F32, (n,)), ir.Buffer("y", F32, (n,))
    handles = (ir.var("x_handle", HANDLE), ir.var("y_handle", HANDLE))
    value = ir.mul(ir.BufferLoad(x, (i,)), ir.const(factor, F32))
    body = ir.For(i, ir.const(0, INT64), n, ir.ForKind.SERIAL, ir.BufferStore(y, value, (i,)))
    return ir.PrimFunc(
        handles, ((handles[0], x), (handles[1], y)), body, {"global_symbol": name, **attrs}
    )


def address(buffer: ir.Buffer) -> ir.Expr:
    zeros = tuple(ir.const(0, INT64) for _ in buffer.shape)
    return ir.Call("address_of", (ir.BufferLoad(buffer, zeros),), HANDLE)


def host(steps: list[str], constant: str | None = None) -> ir.PrimFunc:
    """main(x) -> y through the named functions, one after the other."""
    n = ir.var("n", INT64)
    x, y = ir.Buffer("x", F32, (n,)), ir.Buffer("y", F32, (n,))
    handles = (ir.var("x_handle", HANDLE), ir.var("y_handle", HANDLE))
    temps = [ir.Buffer(f"t{k}", F32, (n,)) for k in range(len(steps) - 1)]
    chain = [x, *temps, y]
    calls: list[ir.Stmt] = [
        ir.Evaluate(
            ir.Call(
                "call_global", (ir.StringImm(s), address(a), address(b), n), ir.dtype_of("int32")
            )
        )
        for s, a, b in zip(steps, chain[:-1], chain[1:], strict=True)
    ]
    body = ir.seq(calls)
    if constant is not None:
        data = ir.Buffer("data", F32, (ir.const(4, INT64),))
        i = ir.var("i", INT64)
        last = ir.add(ir.BufferLoad(y, (i,)), ir.BufferLoad(data, (ir.floormod(i, 4),)))
        more = ir.For(i, ir.const(0, INT64), n, ir.ForKind.SERIAL, ir.BufferStore(y, last, (i,)))
        source = ir.Call("constant_data", (ir.StringImm(constant),), HANDLE)
        body = ir.seq([body, ir.DeclBuffer(data, source, more)])
    for temp in reversed(temps):
        body = ir.Allocate(temp, body)
    attrs = {"global_symbol": "main", "num_outputs": 1, "tir.is_host": True}
    return ir.PrimFunc(handles, ((handles[0], x), (handles[1], y)), body, attrs)


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


def compiled(functions: list[ir.PrimFunc], cache: ObjectCache, **attrs: Any) -> Module:
    module = ir.IRModule({f.name: f for f in functions}, attrs)
    return Module(module, compile_lowered(module, Target("native"), cache=cache))


PRIVATE = {"tir.is_private": True}


def test_functions_call_each_other_and_use_constants(cache: ObjectCache) -> None:
    data = np.array([1, 2, 3, 4], np.float32)
    functions = [
        flat_scale("twice", 2.0, **PRIVATE),
        flat_scale("thrice", 3.0, **PRIVATE),
        host(["twice", "thrice", "twice"], "weights/a b"),
    ]
    module = compiled(functions, cache, constants={"weights/a b": data})
    assert module.names() == ("main",)
    x = np.arange(10, dtype=np.float32)
    assert np.array_equal(module["main"](x), x * 12 + np.resize(data, 10))


def test_equal_private_functions_are_compiled_once(cache: ObjectCache) -> None:
    functions = [
        flat_scale("a", 2.0, **PRIVATE),
        flat_scale("b", 2.0, **PRIVATE),
        flat_scale("c", 5.0, **PRIVATE),
        host(["a", "b", "c"]),
    ]
    module = compiled(functions, cache)
    assert [u.name for u in module.compiled.units] == ["a", "c", "main"]
    x = np.arange(5, dtype=np.float32)
    assert np.array_equal(module["main"](x), x * 20)


def test_names_of_the_c_library_are_free(cache: ObjectCache) -> None:
    """Functions called like C functions do not get in their way."""
    for name in ("memcpy", "expf", "main", "malloc", "snprintf"):
        module = compiled([flat_scale(name, 2.0)], cache)
        x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
        module[name](x, y)
        assert (y == 2).all()


def test_sources(cache: ObjectCache) -> None:
    module = compiled([flat_scale("f", 2.0), flat_scale("g", 3.0)], cache)
    assert 'define  i32 @"bw.f"' in module.source("llvm")
    assert "bw.g" not in module.source("llvm", "f")
    assert "__tvm_ffi_g" in module.source("asm", "g", complete=True)
    with pytest.raises(BuildError, match="no source of kind"):
        module.source("ptx")  # type: ignore[arg-type]
    with pytest.raises(BuildError, match="no function 'h'"):
        module["h"]
    assert list(module) == ["f", "g"]
    assert "f" in module
    assert "h" not in module


def test_the_library_stands_alone(cache: ObjectCache, tmp_path: Path) -> None:
    """Plain tvm_ffi loads the bytes, in a process that has never heard of this package."""
    path = tmp_path / "lib.so"
    path.write_bytes(compiled([flat_scale("f", 2.0)], cache).library_bytes)
    module = tvm_ffi.load_module(str(path))
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    module["f"](x, y)
    assert (y == 2).all()
    script = (
        "import numpy as np, tvm_ffi, sys; m = tvm_ffi.load_module(sys.argv[1]); "
        "x, y = np.ones(4, np.float32), np.zeros(4, np.float32); m['f'](x, y); "
        "assert (y == 2).all() and 'blockwright' not in sys.modules"
    )
    subprocess.run([sys.executable, "-I", "-c", script, str(path)], check=True)


def test_timing(cache: ObjectCache) -> None:
    module = compiled([flat_scale("f", 2.0)], cache)
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    timing = module.benchmark("f", x, y, repeat=3, min_time=0.001)
    assert 0 < timing.min <= timing.median < 0.01
    assert len(timing.samples) == 3


def test_wider_vectors_are_kept_where_the_target_has_them(cache: ObjectCache) -> None:
    target = Target("x86-64-v4")
    f = flat_scale("f", 2.0)
    (unit,) = emit_units(ir.IRModule({"f": f}), target)
    assert '"prefer-vector-width"="512"' in unit.text
    (unit,) = emit_units(ir.IRModule({"f": f}), Target("x86-64-v3"))
    assert "prefer-vector-width" not in unit.text


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_other_targets_compile(target: str, cache: ObjectCache) -> None:
    module = ir.IRModule({"f": flat_scale("f", 2.0)})
    result = Module(module, compile_lowered(module, Target(target), cache=cache))
    assert result.library_bytes[:4] == b"\x7fELF"
    if not Target(target).is_host:
        with pytest.raises(BuildError, match="does not run on this machine"):
            result["f"]


def test_other_processors_get_objects() -> None:
    target = Target("aarch64")
    (unit,) = emit_units(ir.IRModule({"f": flat_scale("f", 2.0)}), target)
    data = compile_object(unit.text, target.triple, target.cpu, target.features, "kernel", "f")
    assert int.from_bytes(data[18:20], "little") == 183  # the machine number of 64-bit ARM


def test_code_for_other_processors_can_be_read(cache: ObjectCache) -> None:
    module = ir.IRModule({"f": flat_scale("f", 2.0)})
    result = Module(module, compile_lowered(module, Target("aarch64"), cache=cache))
    assert "\tret\n" in result.source("asm", "f")
    with pytest.raises(BuildError, match="for aarch64") as caught:
        _ = result.library_bytes
    assert caught.value.code == "BW666"
    with pytest.raises(BuildError, match="BW604"):
        result["f"]


def test_recursion_and_bad_names_are_refused(cache: ObjectCache) -> None:
    recursive = host(["main"])
    with pytest.raises(BuildError, match="recursive calls"):
        compiled([recursive.with_attrs(**{"tir.is_host": False})], cache)
    with pytest.raises(BuildError, match="cannot be exported"):
        compiled([flat_scale("two words", 1.0)], cache)


def test_scheduled_or_not_programs_are_lowered() -> None:
    """The whole way, from blocks."""
    from blockwright.script.compute import Program

    program = Program("add_one")
    n = ir.var("n", INT64)
    x = program.param("x", (n, ir.const(5, INT64)), F32)
    out = program.compute("y", x.shape, lambda i, j: ir.add(x[i, j], 1.0))
    func = program.finish([out], {})
    module = build(func)
    data = np.arange(15, dtype=np.float32).reshape(3, 5)
    result = np.zeros_like(data)
    module["add_one"](data, result)
    assert np.array_equal(result, data + 1)


def test_nothing_is_left_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    double = build(flat_scale("double", 2.0))
    x, y = np.arange(5, dtype="float32"), np.zeros(5, "float32")
    double(x, y)
    assert y.tolist() == (2 * x).tolist()
    assert list(tmp_path.iterdir()) == []
