"""Features of this machine's processor, by their LLVM names."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable

_KERNEL_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sahf": "lahf_lm",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "64bit": "lm",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512vnni": "avx512_vnni",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "amx-fp16": "amx_fp16",
    "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand",
    "sha": "sha_ni",
    "pclmul": "pclmulqdq",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "lse": "atomics",
    "fp-armv8": "fp",
    "crc": "crc32",
}
"""LLVM feature name → /proc/cpuinfo flag, where they differ (x86-64, then AArch64)."""


@functools.cache
def kernel_flags() -> frozenset[str]:
    """The flags the kernel reports for the first processor; empty when it reports none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def machine() -> str:
    """The architecture: "x86-64", "aarch64", or the system's own name for it."""
    name = platform.machine().lower()
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(name, name)


def has_feature(feature: str) -> bool:
    """Whether this processor (and its kernel) has an LLVM feature such as "avx2" or "dotprod"."""
    return _KERNEL_NAMES.get(feature, feature) in kernel_flags()


def missing_features(required: Iterable[str]) -> list[str]:
    """Those of `required` that this processor lacks, sorted."""
    return sorted(feature for feature in set(required) if not has_feature(feature))
