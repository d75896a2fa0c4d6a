"""Targets of a comparison: this machine, or the instruction set of an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockwright.target import Target

NATIVE = "native"
"""The default target: every instruction set of this machine."""

_LIMITS: Mapping[str, Mapping[str, str]] = {
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}


def limits(name: str) -> Mapping[str, str]:
    """Environment variables that limit peers to the instructions of a target.

    PyTorch with its compiler, oneDNN and MKL read them; TVM gets the target as an option; ONNX
    Runtime and the matrix products of OpenVINO use what they detect.
    """
    return _LIMITS.get(name, {})


def built_for(name: str, threads: int | None = None) -> Target:
    """The named target with the caches of this machine, on which its code is timed."""
    import blockwright as bw

    return bw.Target(name, num_threads=threads, caches=bw.Target(NATIVE).caches)
