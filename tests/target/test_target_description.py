"""What a target says of its machine: units, memory, levels, costs, and the table of all that."""

from __future__ import annotations

import pytest

from blockwright.ir import dtype_of
from blockwright.runtime.cpu_features import known_features
from blockwright.support import TargetError
from blockwright.target import Target, target_names
from blockwright.target.isa import AARCH64_VECTORS, X86_VECTORS
from blockwright.target.units import cpu_units


def units(name: str) -> dict[str, tuple[int, int, int]]:
    return {u.name: (u.m, u.n, u.k) for u in Target(name).compute_units}


def test_units_follow_the_features() -> None:
    assert units("x86-64") == {}
    assert units("x86-64-v3")["vfmadd231ps"] == (1, 8, 1)
    assert units("x86-64-v4")["vfmadd231ps"] == (1, 16, 1)
    assert "vdpbf16ps" not in units("x86-64-v4")
    assert units("x86-64-v4+avx512bf16")["vdpbf16ps"] == (1, 16, 2)
    assert units("x86-64-v3+avxvnni")["{vex} vpdpbusd"] == (1, 8, 4)
    assert "{vex} vpdpbusd" not in units("x86-64-v4+avx512vnni")
    amx = units("x86-64-v4+amx-tile+amx-int8+amx-bf16")
    assert (amx["tdpbusd"], amx["tdpbf16ps"]) == ((16, 16, 64), (16, 16, 32))
    assert units("aarch64+dotprod")["sdot"] == (1, 4, 4)
    assert units("aarch64+i8mm")["smmla"] == (2, 2, 8)
    assert "wgmma.m64n256k16.f16" in units("cuda-sm_90a")
    assert "wgmma.m64n256k16.f16" not in units("cuda-sm_80")


def test_rates_are_those_of_one_core() -> None:
    """FMA of two 256-bit pipes and of one 512-bit pipe: 16 multiply-adds; bfloat16 twice that."""
    for name in ("x86-64-v3", "x86-64-v4"):
        (fma,) = (u for u in Target(name).compute_units if u.name == "vfmadd231ps")
        assert fma.multiply_adds_per_cycle == 16
    (bf16,) = (u for u in Target("x86-64-v4+avx512bf16").compute_units if u.name == "vdpbf16ps")
    assert bf16.multiply_adds_per_cycle == 32


@pytest.mark.parametrize(
    ("name", "tera"),
    [("cuda-sm_80", 312), ("cuda-sm_90a", 989), ("cuda-sm_100a", 2250), ("cuda-sm_120a", 210)],
)
def test_tensor_cores_reach_the_peak_of_the_data_sheet(name: str, tera: float) -> None:
    """Dense bfloat16 with float32 accumulation, 10^12 operations per second."""
    target = Target(name)
    assert target.gpu is not None
    rate = max(u.multiply_adds_per_cycle for u in target.compute_units if u.a == "bfloat16")
    found = 2 * rate * target.gpu.count * target.gpu.clock_hz / 1e12
    assert found == pytest.approx(tera, rel=0.02)


def test_features_of_rows_exist() -> None:
    for arch, rows in (("x86_64", X86_VECTORS), ("aarch64", AARCH64_VECTORS)):
        known = known_features(arch)
        assert set().union(*(row.requires for row in rows)) <= known
        every = cpu_units(arch, known, 512 if arch == "x86_64" else 128, 1)
        assert set().union(*(unit.requires for unit in every)) <= known
        for unit in every:
            assert all(dtype_of(name) for name in (unit.a, unit.b, unit.accumulator))


@pytest.mark.parametrize("name", target_names())
def test_memory_gets_larger_and_slower_outwards(name: str) -> None:
    spaces = Target(name).memory_spaces
    sizes = [space.size for space in spaces[1:] if space.size]  # GPUs: many registers
    assert sizes == sorted(sizes)
    waits = [space.latency for space in spaces]
    assert waits == sorted(waits)
    rates = [space.bandwidth for space in spaces if space.bandwidth]
    assert rates == sorted(rates, reverse=True)
    assert spaces[0].scope == "local"
    assert spaces[-1].scope == "global"


@pytest.mark.parametrize("name", target_names())
def test_the_table_shows_everything(name: str) -> None:
    target = Target(name)
    table = target.describe()
    for unit in target.compute_units:
        assert unit.name in table
        assert unit.source in table
    for space in target.memory_spaces:
        assert f"\n  {space.name} " in table
    for scope in target.execution_scopes:
        assert scope.name in table


def test_a_gpu_has_no_core_and_a_processor_no_multiprocessors() -> None:
    assert Target("x86-64-v3").gpu is None
    assert Target("cuda-sm_80").isa is None
    with pytest.raises(TargetError) as caught:
        _ = Target("cuda-sm_80").core
    assert caught.value.code == "BW654"


def test_devices_are_counted_from_zero() -> None:
    assert Target("cuda-sm_80").device == 0
    second = Target("cuda-sm_80", device=1)
    assert second.device == 1
    assert second != Target("cuda-sm_80")
    for wrong in (-1, "1", 0.5):
        with pytest.raises(TargetError) as caught:
            Target("cuda-sm_80", device=wrong)  # pyright: ignore
        assert caught.value.code == "BW653"


def test_masks_are_free_where_the_instruction_set_has_them() -> None:
    assert Target("x86-64-v4").cheap_predication
    assert Target("x86-64-v3+avx512f+avx512vl").cheap_predication
    assert not Target("x86-64-v3").cheap_predication
    assert not Target("aarch64").cheap_predication
