"""Instruction-set tables: kernel flag names, feature names of the code generator, levels.

A feature is named as the code generator names it ("avx512f"); the kernel's spelling in
/proc/cpuinfo differs for some ("pni" is SSE3).
"""

from __future__ import annotations

from collections.abc import Iterable

# One feature per entry, `kernel=feature` where the two spellings differ.
_X86 = """
cx8 cx16 cmov fxsr mmx sse sse2 pni=sse3 ssse3 sse4_1=sse4.1 sse4_2=sse4.2 popcnt avx avx2 fma
f16c bmi1=bmi bmi2 abm=lzcnt movbe lahf_lm=sahf xsave xsaveopt xsavec xsaves aes pclmulqdq=pclmul
rdrand=rdrnd rdseed adx sha_ni=sha clflushopt clwb fsgsbase gfni vaes vpclmulqdq rdpid serialize
3dnowprefetch=prfchw avx512f avx512dq avx512cd avx512bw avx512vl avx512ifma avx512vbmi
avx512_vbmi2=avx512vbmi2 avx512_vnni=avx512vnni avx512_bitalg=avx512bitalg
avx512_vpopcntdq=avx512vpopcntdq avx512_bf16=avx512bf16 avx512_fp16=avx512fp16
avx_vnni=avxvnni avx_ifma=avxifma avx_vnni_int8=avxvnniint8 avx_ne_convert=avxneconvert
amx_tile=amx-tile amx_int8=amx-int8 amx_bf16=amx-bf16 amx_fp16=amx-fp16 movdiri movdir64b
"""
_AARCH64 = """
fp=fp-armv8 asimd=neon asimddp=dotprod asimdhp=fullfp16 asimdfhm=fp16fml atomics=lse crc32=crc
aes pmull=aes sha2 sha3 asimdrdm=rdm fcma=complxnum jscvt=jsconv lrcpc=rcpc i8mm bf16 sve sve2
"""


def _table(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split())
    return {flag: feature or flag for flag, _, feature in pairs}


X86_FLAGS = _table(_X86)
AARCH64_FLAGS = _table(_AARCH64)

_V1 = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

X86_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
}  # fmt: skip
"""The levels of the System V ABI supplement."""

AARCH64_BASE = ("fp-armv8", "neon")


def known_features(arch: str) -> frozenset[str]:
    """Every feature name that may follow `+` in a target's name."""
    table = {"x86_64": X86_FLAGS, "aarch64": AARCH64_FLAGS}.get(arch, {})
    return frozenset(table.values())


def from_flags(arch: str, flags: Iterable[str]) -> frozenset[str]:
    """The features a kernel's flag list stands for; flags we have no use for are dropped."""
    table = {"x86_64": X86_FLAGS, "aarch64": AARCH64_FLAGS}.get(arch, {})
    return frozenset(table[flag] for flag in flags if flag in table)
