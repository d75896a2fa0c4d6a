"""What our side of a comparison is built for: this machine, or the instructions of an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockwright.target import Target

NATIVE = "native"
"""All that this machine offers; what users get who ask for nothing."""


def built_for(name: str, threads: int | None = None) -> Target:
    """The target of a name, with the caches of this machine, on which its code is timed."""
    import blockwright as bw

    return bw.Target(name, num_threads=threads, caches=bw.Target(NATIVE).caches)


def suffix(name: str) -> str:
    """What names of result files end with, so that one target's leave another's alone."""
    return "" if name == NATIVE else f"-{name}"
