"""Replace vector stores that LLVM compiles incorrectly by scalar stores.

Two workarounds. For AVX-512, LLVM (at least 22.1) folds a truncation into the following masked
store, and replaces the store by a scalar one if the mask is a constant with one active lane. It
then drops the truncation, so that the store writes as many bytes as the untruncated value had::

    call void @llvm.masked.store.v16i8.p0(<16 x i8> %t, ptr align 1 %p, <16 x i1> <i1 true, …>)

    %lane.0 = extractelement <16 x i8> %t, i64 0
    store i8 %lane.0, ptr %p, align 1

For AArch64, LLVM (at least 22.1) aborts the process when it folds a truncation of 64-bit lanes into
the store of three bytes, which therefore stores its lanes one by one::

    store <3 x i8> %t, ptr %p, align 1

Masks become constants and truncations are combined in LLVM's own passes, so this runs after them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

_NARROW = re.compile(r"llvm\.masked\.store\.v\d+i(8|16|32)\.")
_STORE = re.compile(
    r"^ *(?:tail |notail )?call void @llvm\.masked\.store\.v(?P<lanes>\d+)i(?P<bits>8|16|32)\.p0\("
    r"(?P<vector><\d+ x i\d+>) (?P<value>.+), "
    r"ptr (?P<attrs>(?:\w+(?:\(\d+\))? )*?)align (?P<align>\d+) (?P<place>.+), "
    r"<\d+ x i1> <(?P<mask>i1 (?:true|false)(?:, i1 (?:true|false))*)>\).*$",
    re.MULTILINE,
)
_THREE_BYTES = re.compile(
    r"^ *store <3 x i8> (?P<value>.+), ptr (?P<place>.+), align \d+.*$", re.MULTILINE
)
_AARCH64 = 'target triple = "aarch64'


def may_narrow(text: str) -> bool:
    """Whether LLVM text contains a store that one of the workarounds may replace."""
    return _NARROW.search(text) is not None or (_AARCH64 in text and "<3 x i8>" in text)


def with_scalar_stores(text: str) -> str:
    """Optimized LLVM text with scalar stores in place of those that LLVM would miscompile."""
    text = _STORE.sub(_replacement(), text)
    return _THREE_BYTES.sub(_lane_by_lane(), text) if _AARCH64 in text else text


def _lane_by_lane() -> Callable[[re.Match[str]], str]:
    count = 0

    def replaced(found: re.Match[str]) -> str:
        nonlocal count
        lines: list[str] = []
        for lane in range(3):
            element, place = f"%byte.lane.{count}", f"%byte.place.{count}"
            count += 1
            lines += (
                f"  {element} = extractelement <3 x i8> {found['value']}, i64 {lane}",
                f"  {place} = getelementptr i8, ptr {found['place']}, i64 {lane}",
                f"  store i8 {element}, ptr {place}, align 1",
            )
        return "\n".join(lines)

    return replaced


def _replacement() -> Callable[[re.Match[str]], str]:
    count = 0

    def replaced(found: re.Match[str]) -> str:
        nonlocal count
        lanes = [k for k, bit in enumerate(found["mask"].split(", ")) if bit == "i1 true"]
        if len(lanes) != 1:
            return found[0]
        (lane,), size = lanes, int(found["bits"]) // 8
        element, place = f"%masked.lane.{count}", f"%masked.place.{count}"
        count += 1
        align = math.gcd(int(found["align"]), lane * size)
        return (
            f"  {element} = extractelement {found['vector']} {found['value']}, i64 {lane}\n"
            f"  {place} = getelementptr i8, ptr {found['place']}, i64 {lane * size}\n"
            f"  store i{found['bits']} {element}, ptr {place}, align {align}"
        )

    return replaced
