"""Levels and baselines of instruction sets, as sets of features.

The features themselves are rows of `blockwright.runtime.cpu_features`.
"""

from __future__ import annotations

_V1 = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

X86_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4,
}  # fmt: skip
"""The levels of the System V ABI supplement."""

AARCH64_BASE = ("fp-armv8", "neon")
