"""Features of processors: one row per feature.

The code generator and a target's name (`x86-64-v3+avxvnni`) use LLVM's name of a feature; Linux
lists features in /proc/cpuinfo under names of its own. A new feature is one row: targets accept it,
the native target and artefacts detect it, and LLVM may use its instructions.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Feature(msgspec.Struct, frozen=True):
    """One feature of a processor.

    Attributes:
        name: LLVM's.
        flags: names in /proc/cpuinfo; each of them stands for the feature.
        reported: whether `blockwright doctor` lists the feature.
    """

    name: str
    flags: tuple[str, ...]
    reported: bool = False


# LLVM's name, the names in /proc/cpuinfo where they differ, and a star if doctor reports it.
_X86 = """
cx8
cx16
cmov
fxsr
mmx
sse
sse2
sse3                pni
ssse3
sse4.1              sse4_1
sse4.2              sse4_2              *
popcnt
avx                                     *
avx2                                    *
fma                                     *
f16c                                    *
bmi                 bmi1
bmi2
lzcnt               abm
movbe
sahf                lahf_lm
xsave
xsaveopt
xsavec
xsaves
aes
pclmul              pclmulqdq
rdrnd               rdrand
rdseed
adx
sha                 sha_ni
clflushopt
clwb
fsgsbase
gfni
vaes
vpclmulqdq
rdpid
serialize
prfchw              3dnowprefetch
avx512f                                 *
avx512dq
avx512cd
avx512bw
avx512vl
avx512ifma
avx512vbmi
avx512vbmi2         avx512_vbmi2
avx512vnni          avx512_vnni         *
avx512bitalg        avx512_bitalg
avx512vpopcntdq     avx512_vpopcntdq
avx512bf16          avx512_bf16         *
avx512fp16          avx512_fp16
avxvnni             avx_vnni            *
avxifma             avx_ifma
avxvnniint8         avx_vnni_int8
avxneconvert        avx_ne_convert
amx-tile            amx_tile
amx-int8            amx_int8
amx-bf16            amx_bf16            *
amx-fp16            amx_fp16
movdiri
movdir64b
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
            name, *flags = (word for word in words if word != "*")
            rows.append(Feature(name, tuple(flags) or (name,), "*" in words))
    return tuple(rows)


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
