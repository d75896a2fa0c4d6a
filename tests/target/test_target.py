"""Targets: names, features, vector shape, errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec import structs

from blockwright.runtime.cpu_features import from_flags
from blockwright.support import TargetError
from blockwright.target import Target, target_names
from blockwright.target.host import CacheLevel, counted_on


@pytest.mark.parametrize(
    ("name", "bits", "registers", "fma"),
    [
        ("x86-64", 128, 16, False),
        ("x86-64-v2", 128, 16, False),
        ("x86-64-v3", 256, 16, True),
        ("x86-64-v4", 512, 32, True),
        ("aarch64+dotprod", 128, 32, True),
    ],
)
def test_levels_decide_the_vector_shape(name: str, bits: int, registers: int, fma: bool) -> None:
    target = Target(name)
    assert (target.vector_bits, target.vector_registers, target.fma) == (bits, registers, fma)
    assert target.lanes("float32") == bits // 32
    assert target.kind == "cpu"
    assert target.name == str(target) == name


def test_every_listed_name_makes_a_target() -> None:
    for name in target_names():
        assert Target(name).name == name


def test_native_knows_this_machine() -> None:
    target = Target("native")
    assert target.is_host
    assert target.num_threads >= 1
    assert target.cache(1).size < target.cache(2).size
    assert target.cache(9) == target.caches[-1]
    assert all(part[0] in "+-" for part in target.features.split(","))


@pytest.mark.parametrize(
    ("told", "processors", "expected"),
    [
        (32, 2, 32),  # one of several last caches of a server
        (36, 24, 36),  # a desktop
        (96, 16, 96),  # a desktop with a stacked cache
        (300, 64, 300),  # all of a socket
        (300, 16, 96),  # a quarter of one: the rest of its cache is other machines'
        (300, 1, 32),
    ],
)
def test_a_last_cache_is_counted_on_for_the_processors_one_has(
    told: int, processors: int, expected: int
) -> None:
    near = CacheLevel(level=1, size=48 << 10, ways=12, line=64, shared_by=1)
    last = CacheLevel(level=3, size=told << 20, ways=16, line=64, shared_by=processors)
    found = counted_on((near, last), processors)
    assert found == (near, structs.replace(last, size=expected << 20))
    assert counted_on((), processors) == ()


def test_targets_compare_by_content_and_are_frozen() -> None:
    assert Target("x86-64-v3") == Target("x86-64-v3")
    assert Target("x86-64-v3", num_threads=3) != Target("x86-64-v3", num_threads=2)
    assert Target(Target("x86-64-v4")) == Target("x86-64-v4")
    with pytest.raises(AttributeError):
        Target("x86-64").name = "other"  # type: ignore[misc]


def test_features_may_be_added() -> None:
    target = Target("x86-64-v3+avxvnni")
    assert target.has("avxvnni", "avx2")
    assert "+avxvnni" in target.features
    assert Target("aarch64+dotprod").has("dotprod", "neon")


def test_kernel_flags_become_feature_names() -> None:
    got = from_flags("x86_64", ["pni", "sse4_1", "avx512_vnni", "hypervisor"])
    assert got == {"sse3", "sse4.1", "avx512vnni"}


def test_gpu_scopes() -> None:
    target = Target("cuda-sm_90a")
    assert target.cpu == "sm_90a"
    dynamic = target.memory_scope("shared.dyn")
    assert dynamic is not None
    assert dynamic.max_bytes == 232448
    assert target.memory_scope("nowhere") is None
    assert not target.is_host


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"(?s)x86-64-v9.*did you mean.*targets: native") as info:
        Target("x86-64-v9")
    assert info.value.code == "BW650"
    with pytest.raises(TargetError, match="no feature 'warp9'") as info:
        Target("x86-64+warp9")
    assert info.value.code == "BW651"
    with pytest.raises(TargetError, match="at least 1"):
        Target("x86-64", num_threads=0)


def test_describing_a_machine_loads_no_code_generator() -> None:
    program = (
        "import sys; from blockwright.target import Target; Target('native'); "
        "assert not {'llvmlite', 'tvm_ffi', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
