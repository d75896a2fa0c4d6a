"""The names that programs import exist, and importing the package stays cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

import blockwright as bw

NAMES = """BlockwrightError Executable Schedule ScheduleError Target TensorIntrin ValidationError
build compile from_source interpret ir load script set_num_threads testing tir validate
verify""".split()
LATER = ["tune"]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(bw, name) is not None
    assert name in dir(bw)


@pytest.mark.parametrize("name", LATER)
def test_what_does_not_exist_yet_is_absent(name: str) -> None:
    assert not hasattr(bw, name)


def test_every_exported_name_resolves() -> None:
    for name in dir(bw):
        getattr(bw, name)


def test_the_classic_address_of_the_schedule() -> None:
    assert bw.tir.Schedule is bw.Schedule


def test_the_dialects_are_imported_as_in_the_classics() -> None:
    from blockwright.script import ir as I
    from blockwright.script import relax as R
    from blockwright.script import tir as T

    assert callable(T.prim_func)
    assert callable(R.function)
    assert callable(I.ir_module)


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import blockwright, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "tvm_ffi", "llvmlite", "numpy"} & set(done.stdout.split())
