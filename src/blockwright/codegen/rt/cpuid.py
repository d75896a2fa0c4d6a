"""Ask an x86-64 processor for its features, without the operating system's files.

Vector features also need registers that the operating system saves on a switch of threads, which
the XGETBV instruction reports. Tiles of AMX need a permission that a process requests, so they
count as absent here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import FALSE, Value, int_const
from blockwright.runtime.cpu_features import FEATURES, Feature

_FOUR = "{ i32, i32, i32, i32 }"
_EXTENDED = 0x80000000
_OSXSAVE = 1 << 27
_YMM, _ZMM = 0x6, 0xE6
"""Parts of the saved state: SSE and AVX registers; also those of AVX-512."""
_NEED_YMM = ("avx", "fma", "f16c", "vaes", "vpclmulqdq")


class Processor(msgspec.Struct, frozen=True, eq=False):
    """What a processor reports, as values of the function being emitted.

    Attributes:
        registers: (leaf, subleaf) → the four registers, zero for a leaf that the processor lacks.
        saved: the parts of the state that the operating system saves.
    """

    e: FunctionEmitter
    registers: dict[tuple[int, int], Value]
    saved: Value

    def has(self, features: Iterable[str]) -> Value:
        """Whether the processor has all of these features (LLVM's names), an `i1`."""
        e, wanted = self.e, _rows(features)
        if any(row.cpuid is None or row.name.startswith("amx") for row in wanted):
            return FALSE
        masks: dict[tuple[int, int, str], int] = {}
        for bit in (row.cpuid for row in wanted if row.cpuid is not None):
            place = (bit.leaf, bit.subleaf, bit.register)
            masks[place] = masks.get(place, 0) | 1 << bit.bit
        tests = [self._covers(self.saved, state_of(row.name for row in wanted))]
        for (leaf, subleaf, register), mask in masks.items():
            four = self.registers[leaf, subleaf]
            tests.append(self._covers(e.member(four, "abcd".index(register), "i32"), mask))
        result = tests[0]
        for test in tests[1:]:
            result = e.binary("and", result, test)
        return result

    def _covers(self, value: Value, mask: int) -> Value:
        return self.e.compare("eq", self.e.binary("and", value, mask), mask)


def state_of(features: Iterable[str]) -> int:
    """The parts of the state that must be saved for these features to be usable."""
    names = list(features)
    wide = any(name.startswith("avx512") for name in names)
    return _ZMM if wide else _YMM if any(name.startswith(_NEED_YMM) for name in names) else 0


def processor(e: FunctionEmitter, features: Iterable[str]) -> Processor:
    """Emit the questions that answer whether the processor has any of these features."""
    bits = [row.cpuid for row in _rows(features) if row.cpuid is not None]
    leaves = dict.fromkeys([(1, 0), *((bit.leaf, bit.subleaf) for bit in bits)])
    last = {base: e.member(_cpuid(e, base, 0), 0, "i32") for base in (0, _EXTENDED)}
    registers: dict[tuple[int, int], Value] = {}
    for leaf, subleaf in leaves:
        known = e.compare("uge", last[leaf & _EXTENDED], leaf)
        asked = partial(_cpuid, e, leaf, subleaf)
        registers[leaf, subleaf] = e.choose(known, asked, lambda: Value(_FOUR, "zeroinitializer"))
    flags = e.member(registers[1, 0], 2, "i32")
    has_state = e.compare("ne", e.binary("and", flags, _OSXSAVE), 0)
    saved = e.choose(has_state, lambda: _saved_state(e), lambda: int_const(0, "i32"))
    return Processor(e, registers, saved)


def _rows(features: Iterable[str]) -> list[Feature]:
    names = set(features)
    return [row for row in FEATURES["x86_64"] if row.name in names]


def _cpuid(e: FunctionEmitter, leaf: int, subleaf: int) -> Value:
    places = "={ax},={bx},={cx},={dx},{ax},{cx}"
    text = f'call {_FOUR} asm sideeffect "cpuid", "{places}"(i32 {leaf}, i32 {subleaf})'
    return e.emit(_FOUR, text)


def _saved_state(e: FunctionEmitter) -> Value:
    """The low half of the extended control register 0."""
    pair = e.emit(
        "{ i32, i32 }",
        'call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)',
    )
    return e.member(pair, 0, "i32")
