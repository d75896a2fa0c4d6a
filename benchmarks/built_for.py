"""What a comparison is built for: this machine, or the instructions of an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blockwright.target import Target

NATIVE = "native"
"""All that this machine offers; what users get who ask for nothing."""

_LIMITS: Mapping[str, Mapping[str, str]] = {
    "x86-64-v3": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}


def limits(name: str) -> Mapping[str, str]:
    """Environment variables by which peers use no more instructions than a target has.

    PyTorch with its compiler, oneDNN and MKL listen; TVM is told the target; ONNX Runtime and the
    matrix products of OpenVINO take what they find.
    """
    return _LIMITS.get(name, {})


def built_for(name: str, threads: int | None = None) -> Target:
    """The target of a name, with the caches of this machine, on which its code is timed."""
    import blockwright as bw

    return bw.Target(name, num_threads=threads, caches=bw.Target(NATIVE).caches)
