"""A library of one's own: registered, called, loaded, missing, of another version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.codegen.link.link import LinkOptions, link
from blockwright.codegen.llvm import binding as llvm
from blockwright.graph.pattern import call_library, is_const, is_op, wildcard
from blockwright.passes.library import (
    LIBRARIES,
    Library,
    LibraryPattern,
    SharedLibrary,
    c_function,
    register_library,
)
from blockwright.runtime import shared_libraries
from blockwright.support import ArtefactError, OptionError

# int scale(DLTensor *x, DLTensor *y, double factor): y = x * factor for float32; 7 for a negative
# factor. const char *version(void).
SOURCE = """
target triple = "{triple}"
@text = constant [13 x i8] c"scaler {version}.0\\00"
define ptr @version() {{ ret ptr @text }}
define i32 @scale(ptr %x, ptr %y, double %factor) {{
entry:
  %bad = fcmp olt double %factor, 0.0
  br i1 %bad, label %fail, label %start
fail:
  ret i32 7
start:
  %f = fptrunc double %factor to float
  %a = load ptr, ptr %x
  %b = load ptr, ptr %y
  %shapes = getelementptr i8, ptr %x, i64 24
  %shape = load ptr, ptr %shapes
  %n = load i64, ptr %shape
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %from = getelementptr float, ptr %a, i64 %i
  %to = getelementptr float, ptr %b, i64 %i
  %v = load float, ptr %from
  %w = fmul float %v, %f
  store float %w, ptr %to
  %next = add i64 %i, 1
  br label %head
done:
  ret i32 0
}}
"""


def write_library(path: Path, version: str) -> None:
    target = bw.Target("native")
    text = SOURCE.format(triple=target.triple, version=version)
    cpu = llvm.cpu_name(target)
    image = llvm.compile_object(text, target.triple, cpu, target.features, "O2", "scaler")
    options = LinkOptions(exports=("scale", "version"), needed=("libc.so.6",))
    path.write_bytes(link([("scaler", image)], options).tobytes())


@pytest.fixture
def scaler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The file of a registered library with one function, version 1.2."""
    path = tmp_path / "libscaler.so"
    write_library(path, "1.2")
    monkeypatch.setattr(shared_libraries, "_opened", {})
    x, factor = wildcard(), is_const()

    def replace(match: Any) -> ir.GraphExpr:
        value = float(match[factor].data)
        return call_library("scaler.scale", [match[x]], match.root.info, factor=value)

    product = is_op("multiply")(x.has_rank(1).has_dtype("float32"), factor.has_rank(0))
    register_library(
        Library(
            SharedLibrary("scaler", str(path), version="1", version_function="version"),
            {"scale": c_function("scale")},
            (LibraryPattern("multiply", product, replace),),
        )
    )
    yield path
    del LIBRARIES["scaler"]


def model(factor: float) -> ir.GraphFunction:
    return bw.from_source(f"""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    return R.exp(R.multiply(x, R.const({factor}, "float32")))
""")


X = np.linspace(0, 1, 9, dtype=np.float32)
OPTIONS = {"libraries": ["scaler"]}


def test_a_registered_library_computes_its_part(scaler: Path) -> None:
    exe = bw.compile(model(3.0), options=OPTIONS)
    assert 'R.call_dps_library("scaler.scale", (x,)' in exe.show("libraries")
    assert "factor=3.0" in exe.show("libraries")
    np.testing.assert_allclose(exe(X), np.exp(3 * X), rtol=1e-6)
    np.testing.assert_allclose(exe(X[:0]), X[:0])
    assert "call_dps_library" not in bw.compile(model(3.0)).show("programs")


def test_a_status_other_than_0_fails_the_call(scaler: Path) -> None:
    exe = bw.compile(model(-3.0), options=OPTIONS)
    with pytest.raises(bw.BlockwrightError, match=r"BW725.*scaler.scale failed with the status 7"):
        exe(X)


def test_a_missing_library_or_function_is_named_at_load(
    scaler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "model.bwx"
    moved = scaler.rename(tmp_path / "elsewhere.so")  # the linker knows files that it has loaded
    with pytest.raises(ArtefactError, match="BW808"):
        bw.compile(model(2.0), options=OPTIONS)
    shared_libraries.open_libraries([LIBRARIES["scaler"].shared], {"scaler": str(moved)})
    bw.compile(model(2.0), options=OPTIONS).save(saved)
    np.testing.assert_allclose(bw.load(saved)(X), np.exp(2 * X), rtol=1e-6)
    monkeypatch.setattr(shared_libraries, "_opened", {})
    with pytest.raises(ArtefactError, match="the library scaler cannot be loaded") as caught:
        bw.load(saved)
    assert caught.value.code == "BW808"
    found = bw.load(saved, libraries={"scaler": str(moved)})
    np.testing.assert_allclose(found(X), np.exp(2 * X), rtol=1e-6)
    monkeypatch.setattr(shared_libraries, "_opened", {})
    with pytest.raises(ArtefactError, match=r"BW808.*has no function version"):
        bw.load(saved, libraries={"scaler": "libm.so.6"})


def test_another_version_is_refused(
    scaler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "model.bwx"
    bw.compile(model(2.0), options=OPTIONS).save(saved)
    newer = tmp_path / "newer.so"
    write_library(newer, "2.0")
    monkeypatch.setattr(shared_libraries, "_opened", {})
    with pytest.raises(ArtefactError, match=r"has version 2\.0\.0, the code was") as e:
        bw.load(saved, libraries={"scaler": str(newer)})
    assert e.value.code == "BW809"


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_libraries, "_opened", {})
    absent = SharedLibrary("absent", "lib.so", "blockwright-no-such-package")
    with pytest.raises(ArtefactError, match="is not installed") as caught:
        shared_libraries.open_libraries([absent])
    assert caught.value.code == "BW808"
    assert "pip install blockwright-no-such-package" in str(caught.value)


def test_an_artefact_without_its_library_says_so(scaler: Path, tmp_path: Path) -> None:
    """Loaded by plain `tvm_ffi`, nobody opens the library."""
    saved = tmp_path / "model.so"
    bw.compile(model(2.0), options=OPTIONS).save(saved)
    code = (
        "import sys\nsys.modules['torch'] = None  # tvm_ffi imports it if it can\n"
        "import numpy as np, tvm_ffi\n"
        f"main = tvm_ffi.load_module({str(saved)!r})['main']\n"
        "x = tvm_ffi.from_dlpack(np.ones(3, 'float32'))\n"
        "try:\n    main(x)\nexcept RuntimeError as error:\n    print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "BW724: the library scaler with the function scale is not loaded" in out.stdout


def test_names_of_libraries(scaler: Path) -> None:
    taken = Library(SharedLibrary("scaler", "x.so"), {})
    with pytest.raises(OptionError, match="there is a library scaler already") as caught:
        register_library(taken)
    assert caught.value.code == "BW932"
    with pytest.raises(OptionError, match="BW932"):
        register_library(Library(SharedLibrary("a.b", "x.so"), {}))
