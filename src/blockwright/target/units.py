"""Compute units: multiply-accumulate instructions, one row per instruction and shape.

A row is a description, not an implementation: tensor intrinsics name the row that they issue.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ComputeUnit(msgspec.Struct, frozen=True):
    """An instruction that adds an m × k by k × n product to an m × n accumulator.

    Attributes:
        name: of the instruction.
        m, n, k: extents of one instruction; `n` of a vector instruction is its number of
            accumulator lanes, `k` the elements that are summed into one lane.
        a, b, accumulator: element types.
        per_cycle: instructions that one core (CPU) or multiprocessor (GPU) starts per cycle.
        latency: cycles until the next instruction can use the accumulator.
        operands: places of A, B and the accumulator: "vector", "memory" (which broadcasts),
            "tile", "fragment", "descriptor", "tensor memory", or a storage scope of the target.
        source: where the figures come from.
        requires: features that a target must have.
    """

    name: str
    m: int
    n: int
    k: int
    a: str
    b: str
    accumulator: str
    per_cycle: float
    latency: int
    operands: tuple[str, str, str]
    source: str
    requires: frozenset[str] = frozenset()

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one instruction."""
        return self.m * self.n * self.k

    @property
    def multiply_adds_per_cycle(self) -> float:
        """Peak rate of one core or multiprocessor."""
        return self.multiply_adds * self.per_cycle


class _Row(msgspec.Struct, frozen=True):
    """A vector instruction for every register width that has it.

    Attributes:
        cycles: of one FMA pipe that an instruction occupies.
        cycles_beside_tiles: the same on cores with AMX, where it differs; else 0.
        widths: register widths in bits → features that this width needs.
        a_place: where A may live; x86 broadcasts a word from memory.
    """

    name: str
    k: int
    a: str
    b: str
    accumulator: str
    cycles: float
    latency: int
    widths: dict[int, frozenset[str]]
    source: str
    a_place: str = "memory"
    cycles_beside_tiles: float = 0


def _features(*names: str) -> frozenset[str]:
    return frozenset(names)


_SDM = "instruction: Intel Software Developer's Manual; "
_TABLES = _SDM + "figures: Agner Fog, Instruction tables"
_MEASURED = _SDM + "figures: measured on a core with AVX512-BF16 and AVX512-VNNI"
_FMA = {256: _features("fma"), 512: _features("fma", "avx512f")}

_X86: tuple[_Row, ...] = (
    _Row("vfmadd231ps", 1, "float32", "float32", "float32", 1, 4, _FMA, _TABLES),
    _Row("vfmadd231pd", 1, "float64", "float64", "float64", 1, 4, _FMA, _TABLES),
    _Row(
        "vfmadd231ph", 1, "float16", "float16", "float16", 1, 4,
        {256: _features("avx512fp16", "avx512vl"), 512: _features("avx512fp16")}, _TABLES,
    ),
    _Row(
        "vdpbf16ps", 2, "bfloat16", "bfloat16", "float32", 1, 6,
        {256: _features("avx512bf16", "avx512vl"), 512: _features("avx512bf16")},
        _MEASURED + "; and on one with AMX, which issues one in two cycles", cycles_beside_tiles=4,
    ),
    _Row(
        "vpdpbusd", 4, "uint8", "int8", "int32", 1, 4,
        {256: _features("avx512vnni", "avx512vl"), 512: _features("avx512vnni")}, _MEASURED,
    ),
    _Row("{vex} vpdpbusd", 4, "uint8", "int8", "int32", 1, 4, {256: _features("avxvnni")},
         _MEASURED),
    _Row(
        "vpdpwssd", 2, "int16", "int16", "int32", 1, 4,
        {256: _features("avx512vnni", "avx512vl"), 512: _features("avx512vnni")}, _MEASURED,
    ),
    _Row("{vex} vpdpwssd", 2, "int16", "int16", "int32", 1, 4, {256: _features("avxvnni")},
         _MEASURED),
    _Row("vpdpbssd", 4, "int8", "int8", "int32", 1, 4, {256: _features("avxvnniint8")}, _TABLES),
    _Row(
        "vpmaddwd, vpaddd", 2, "int16", "int16", "int32", 1.15, 1,
        {256: _features("avx2"), 512: _features("avx512bw")}, _MEASURED,
    ),
)  # fmt: skip

_NEOVERSE = "Arm Neoverse N2 and V1 Software Optimization Guides, rounded"

_AARCH64: tuple[_Row, ...] = tuple(
    _Row(name, k, a, b, accumulator, 1, latency, {128: _features(feature)}, _NEOVERSE, "vector")
    for name, k, a, b, accumulator, latency, feature in (
        ("fmla 4s", 1, "float32", "float32", "float32", 4, "neon"),
        ("fmla 2d", 1, "float64", "float64", "float64", 4, "neon"),
        ("fmla 8h", 1, "float16", "float16", "float16", 4, "fullfp16"),
        ("fmlal", 1, "float16", "float16", "float32", 5, "fp16fml"),
        ("bfdot", 2, "bfloat16", "bfloat16", "float32", 5, "bf16"),
        ("sdot", 4, "int8", "int8", "int32", 3, "dotprod"),
        ("udot", 4, "uint8", "uint8", "int32", 3, "dotprod"),
        ("usdot", 4, "uint8", "int8", "int32", 3, "i8mm"),
    )
)

_AMX = _SDM + "figures: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter AMX"


def _amx(name: str, k: int, a: str, b: str, acc: str, feature: str) -> ComputeUnit:
    """A tile instruction: 16 rows of 64 bytes; one starts every 16 cycles."""
    needs = _features("amx-tile", feature)
    return ComputeUnit(
        name, 16, 16, k, a, b, acc, 1 / 16, 52, ("tile", "tile", "tile"), _AMX, needs
    )


_AMX_UNITS: tuple[ComputeUnit, ...] = (
    _amx("tdpbf16ps", 32, "bfloat16", "bfloat16", "float32", "amx-bf16"),
    _amx("tdpfp16ps", 32, "float16", "float16", "float32", "amx-fp16"),
    _amx("tdpbssd", 64, "int8", "int8", "int32", "amx-int8"),
    _amx("tdpbsud", 64, "int8", "uint8", "int32", "amx-int8"),
    _amx("tdpbusd", 64, "uint8", "int8", "int32", "amx-int8"),
    _amx("tdpbuud", 64, "uint8", "uint8", "int32", "amx-int8"),
)


def _mmla(name: str, k: int, a: str, b: str, acc: str, feature: str) -> ComputeUnit:
    """A 2 × k by k × 2 product of two vector registers, on two pipes."""
    needs = _features(feature)
    return ComputeUnit(
        name, 2, 2, k, a, b, acc, 2, 4, ("vector", "vector", "vector"), _NEOVERSE, needs
    )


_MMLA_UNITS: tuple[ComputeUnit, ...] = (
    _mmla("smmla", 8, "int8", "int8", "int32", "i8mm"),
    _mmla("ummla", 8, "uint8", "uint8", "int32", "i8mm"),
    _mmla("usmmla", 8, "uint8", "int8", "int32", "i8mm"),
    _mmla("bfmmla", 4, "bfloat16", "bfloat16", "float32", "bf16"),
)

_BITS = {"float64": 64, "float32": 32, "int32": 32, "float16": 16}


def cpu_units(
    arch: str, features: frozenset[str], vector_bits: int, pipes: float
) -> tuple[ComputeUnit, ...]:
    """The units of a CPU core, the fastest first.

    Arguments: `pipes` is the number of FMA instructions of `vector_bits` that start per cycle.
    """
    rows, matrix = (_AARCH64, _MMLA_UNITS) if arch == "aarch64" else (_X86, _AMX_UNITS)
    units = [_vector(row, features, vector_bits, pipes) for row in rows]
    result = [unit for unit in units if unit is not None]
    result += [unit for unit in matrix if unit.requires <= features]
    return fastest_first(result)


def _vector(
    row: _Row, features: frozenset[str], vector_bits: int, pipes: float
) -> ComputeUnit | None:
    """The widest form of a vector instruction that the target has."""
    widths = [w for w, needs in row.widths.items() if w <= vector_bits and needs <= features]
    if not widths:
        return None
    bits = max(widths)
    wide = pipes * min(2, vector_bits / bits)  # narrower instructions issue to both halves
    lanes = bits // _BITS[row.accumulator]
    beside_tiles = row.cycles_beside_tiles if "amx-tile" in features else 0
    rate = wide / (beside_tiles or row.cycles)
    return ComputeUnit(
        row.name, 1, lanes, row.k, row.a, row.b, row.accumulator, rate, row.latency,
        (row.a_place, "vector", "vector"), row.source, row.widths[bits],
    )  # fmt: skip


_MMA = "NVIDIA PTX ISA; rates from the architecture white paper"


def _mma(
    name: str, shape: tuple[int, int, int], types: tuple[str, str, str], rate: int,
    operands: tuple[str, str, str], latency: int,
) -> ComputeUnit:  # fmt: skip
    """A tensor-core instruction. `rate`: multiply-adds per cycle of one multiprocessor."""
    m, n, k = shape
    per_cycle = rate / (m * n * k)
    return ComputeUnit(name, m, n, k, *types, per_cycle, latency, operands, _MMA)


_F16 = ("float16", "float16", "float32")
_BF16 = ("bfloat16", "bfloat16", "float32")
_S8 = ("int8", "int8", "int32")
_FP8 = ("float8_e4m3fn", "float8_e4m3fn", "float32")
_REGISTERS = ("fragment", "fragment", "fragment")
_SHARED = ("descriptor", "descriptor", "fragment")
_TENSOR = ("descriptor", "descriptor", "tensor memory")


def _warp_mma(f16: int, latency: int = 33) -> tuple[ComputeUnit, ...]:
    """`mma.sync` of one warp; int8 has twice the rate of float16."""
    shape, bytes_shape = (16, 8, 16), (16, 8, 32)
    return (
        _mma("mma.m16n8k16.f16", shape, _F16, f16, _REGISTERS, latency),
        _mma("mma.m16n8k16.bf16", shape, _BF16, f16, _REGISTERS, latency),
        _mma("mma.m16n8k32.s8", bytes_shape, _S8, 2 * f16, _REGISTERS, latency),
    )


_GPU: dict[int, tuple[ComputeUnit, ...]] = {
    70: (_mma("wmma.m16n16k16.f16", (16, 16, 16), _F16, 512, _REGISTERS, 33),),
    75: (_mma("mma.m16n8k8.f16", (16, 8, 8), _F16, 512, _REGISTERS, 33),),
    80: _warp_mma(1024),
    86: _warp_mma(256),
    87: _warp_mma(512),
    89: _warp_mma(256),
    90: (
        _mma("wgmma.m64n256k16.f16", (64, 256, 16), _F16, 2048, _SHARED, 128),
        _mma("wgmma.m64n256k16.bf16", (64, 256, 16), _BF16, 2048, _SHARED, 128),
        _mma("wgmma.m64n256k32.e4m3", (64, 256, 32), _FP8, 4096, _SHARED, 128),
        _mma("wgmma.m64n256k32.s8", (64, 256, 32), _S8, 4096, _SHARED, 128),
        *_warp_mma(1024),
    ),
    100: (
        _mma("tcgen05.m128n256k16.f16", (128, 256, 16), _F16, 4096, _TENSOR, 128),
        _mma("tcgen05.m128n256k16.bf16", (128, 256, 16), _BF16, 4096, _TENSOR, 128),
        _mma("tcgen05.m128n256k32.e4m3", (128, 256, 32), _FP8, 8192, _TENSOR, 128),
        *_warp_mma(1024),
    ),
    120: (
        *_warp_mma(256),
        _mma("mma.m16n8k32.e4m3", (16, 8, 32), _FP8, 512, _REGISTERS, 33),
    ),
}


def gpu_units(sm: int) -> tuple[ComputeUnit, ...]:
    """The units of one multiprocessor of a compute capability, the fastest first."""
    return fastest_first(_GPU[100 if sm == 103 else sm])


def fastest_first(units: Iterable[ComputeUnit]) -> tuple[ComputeUnit, ...]:
    """The units by peak rate, then by name."""
    return tuple(sorted(units, key=lambda unit: (-unit.multiply_adds_per_cycle, unit.name)))
