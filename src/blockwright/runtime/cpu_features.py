"""Features of processors: one row per feature.

The code generator and a target's name (`x86-64-v3+avxvnni`) use LLVM's name of a feature; Linux
lists features in /proc/cpuinfo under names of its own, and an x86 processor reports them as bits of
its CPUID instruction. A new feature is one row: targets accept it, the native target and artefacts
detect it, and LLVM may use its instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class CpuidBit(msgspec.Struct, frozen=True):
    """Where an x86 processor reports a feature: a bit of a register ("a" to "d") that the CPUID
    instruction writes for a leaf and a subleaf."""

    leaf: int
    subleaf: int
    register: str
    bit: int


class Feature(msgspec.Struct, frozen=True):
    """One feature of a processor.

    Attributes:
        name: LLVM's.
        flags: names in /proc/cpuinfo; each of them stands for the feature.
        reported: whether `blockwright doctor` lists the feature.
        cpuid: of an x86 processor, where it reports the feature.
    """

    name: str
    flags: tuple[str, ...]
    reported: bool = False
    cpuid: CpuidBit | None = None


# LLVM's name, the CPUID bit as @leaf.subleaf, register and bit (the leaf in hexadecimal), the names
# in /proc/cpuinfo where they differ, and a star if doctor reports it.
_X86 = """
cx8                 @1.0d8
cx16                @1.0c13
cmov                @1.0d15
fxsr                @1.0d24
mmx                 @1.0d23
sse                 @1.0d25
sse2                @1.0d26
sse3                @1.0c0          pni
ssse3               @1.0c9
sse4.1              @1.0c19         sse4_1
sse4.2              @1.0c20         sse4_2                  *
popcnt              @1.0c23
avx                 @1.0c28                                 *
avx2                @7.0b5                                  *
fma                 @1.0c12                                 *
f16c                @1.0c29                                 *
bmi                 @7.0b3          bmi1
bmi2                @7.0b8
lzcnt               @80000001.0c5   abm
movbe               @1.0c22
sahf                @80000001.0c0   lahf_lm
xsave               @1.0c26
xsaveopt            @d.1a0
xsavec              @d.1a1
xsaves              @d.1a3
aes                 @1.0c25
pclmul              @1.0c1          pclmulqdq
rdrnd               @1.0c30         rdrand
rdseed              @7.0b18
adx                 @7.0b19
sha                 @7.0b29         sha_ni
clflushopt          @7.0b23
clwb                @7.0b24
fsgsbase            @7.0b0
gfni                @7.0c8
vaes                @7.0c9
vpclmulqdq          @7.0c10
rdpid               @7.0c22
serialize           @7.0d14
prfchw              @80000001.0c8   3dnowprefetch
avx512f             @7.0b16                                 *
avx512dq            @7.0b17
avx512cd            @7.0b28
avx512bw            @7.0b30
avx512vl            @7.0b31
avx512ifma          @7.0b21
avx512vbmi          @7.0c1
avx512vbmi2         @7.0c6          avx512_vbmi2
avx512vnni          @7.0c11         avx512_vnni             *
avx512bitalg        @7.0c12         avx512_bitalg
avx512vpopcntdq     @7.0c14         avx512_vpopcntdq
avx512bf16          @7.1a5          avx512_bf16             *
avx512fp16          @7.0d23         avx512_fp16
avxvnni             @7.1a4          avx_vnni                *
avxifma             @7.1a23         avx_ifma
avxvnniint8         @7.1d4          avx_vnni_int8
avxneconvert        @7.1d5          avx_ne_convert
amx-tile            @7.0d24         amx_tile
amx-int8            @7.0d25         amx_int8
amx-bf16            @7.0d22         amx_bf16                *
amx-fp16            @7.1a21         amx_fp16
movdiri             @7.0c27
movdir64b           @7.0c28
"""

_AARCH64 = """
fp-armv8            fp
neon                asimd               *
dotprod             asimddp             *
fullfp16            asimdhp
fp16fml             asimdfhm
lse                 atomics
crc                 crc32
aes                 aes pmull
sha2
sha3
rdm                 asimdrdm
complxnum           fcma
jsconv              jscvt
rcpc                lrcpc
i8mm                                    *
bf16                                    *
sve                                     *
sve2
cssc                                    *
"""


def _rows(text: str) -> tuple[Feature, ...]:
    rows: list[Feature] = []
    for line in text.split("\n"):
        words = line.split()
        if words:
            name, *flags = (word for word in words if word != "*" and word[0] != "@")
            bit = next((_cpuid_bit(word) for word in words if word[0] == "@"), None)
            rows.append(Feature(name, tuple(flags) or (name,), "*" in words, bit))
    return tuple(rows)


def _cpuid_bit(text: str) -> CpuidBit:
    match = re.fullmatch(r"@([0-9a-f]+)\.(\d)([abcd])(\d+)", text)
    assert match is not None, text
    leaf, subleaf, register, bit = match.groups()
    return CpuidBit(int(leaf, 16), int(subleaf), register, int(bit))


FEATURES: dict[str, tuple[Feature, ...]] = {"x86_64": _rows(_X86), "aarch64": _rows(_AARCH64)}
"""Architecture, as in a triple → its features."""


def known_features(arch: str) -> frozenset[str]:
    """Every feature name that may follow `+` in a target's name."""
    return frozenset(feature.name for feature in FEATURES.get(arch, ()))


def reported_features(arch: str) -> list[str]:
    """The features that `blockwright doctor` lists, in the order of the table."""
    return [feature.name for feature in FEATURES.get(arch, ()) if feature.reported]


def from_flags(arch: str, flags: Iterable[str]) -> frozenset[str]:
    """The features that a kernel's flags stand for; flags without a row are dropped."""
    present = set(flags)
    table = FEATURES.get(arch, ())
    return frozenset(feature.name for feature in table if not present.isdisjoint(feature.flags))
