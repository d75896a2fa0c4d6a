"""Vector instruction sets: register file, masking and store forms, one row per instruction set."""

from __future__ import annotations

import functools

import msgspec

GATHER_STRIDE = 4
"""Largest stride, in elements, at which a vector is fetched by as many contiguous loads and by
shuffles. Gathers of larger strides cost one load per lane; measured on AVX2 and AVX-512 servers."""


class VectorISA(msgspec.Struct, frozen=True):
    """The vector instructions of a CPU target.

    Attributes:
        name: of the instruction set.
        bits: width of a register.
        registers: architectural vector registers.
        masked_memory: whether loads and stores with a lane mask exist.
        masked_store_cycles: cycles that a mask adds to a store; 0 where predication is free.
        nontemporal: widths in bits of non-temporal stores.
        requires: features that a target must have.
        source: where the figures come from.
    """

    name: str
    bits: int
    registers: int
    masked_memory: bool
    masked_store_cycles: float
    nontemporal: tuple[int, ...]
    requires: frozenset[str]
    source: str


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_FREE_MASKS = frozenset({"avx512f", "avx512vl"})

X86_VECTORS: tuple[VectorISA, ...] = (
    VectorISA(
        name="AVX-512",
        bits=512,
        registers=32,
        masked_memory=True,
        masked_store_cycles=0,
        nontemporal=(128, 256, 512),
        # Without the byte, word and narrow-vector extensions, masked loads and integer lanes are
        # scalarized, and AVX2 is the better choice.
        requires=_AVX512,
        source="Intel 64 and IA-32 Architectures Software Developer's Manual",
    ),
    VectorISA(
        name="AVX2 with AVX-512 masks",
        bits=256,
        registers=16,
        masked_memory=True,
        masked_store_cycles=0,
        nontemporal=(128, 256),
        requires=frozenset({"avx", *_FREE_MASKS}),
        source="Intel 64 and IA-32 Architectures Software Developer's Manual",
    ),
    VectorISA(
        name="AVX",
        bits=256,
        registers=16,
        masked_memory=True,
        masked_store_cycles=12,
        nontemporal=(128, 256),
        requires=frozenset({"avx"}),
        source="Agner Fog, Instruction tables: vmaskmovps stores, AMD cores (12 to 40 cycles)",
    ),
    VectorISA(
        name="SSE2",
        bits=128,
        registers=16,
        masked_memory=False,
        masked_store_cycles=12,
        nontemporal=(128,),
        requires=frozenset({"sse2"}),
        source="Intel 64 and IA-32 Architectures Software Developer's Manual",
    ),
)

AARCH64_VECTORS: tuple[VectorISA, ...] = (
    VectorISA(
        name="NEON",
        bits=128,
        registers=32,
        masked_memory=False,
        masked_store_cycles=12,
        nontemporal=(),
        requires=frozenset({"neon"}),
        source="Arm Architecture Reference Manual for A-profile",
    ),
)


@functools.cache
def vector_isa(arch: str, features: frozenset[str]) -> VectorISA:
    """The widest vector instruction set that the features allow."""
    rows = AARCH64_VECTORS if arch == "aarch64" else X86_VECTORS
    return next((row for row in rows if row.requires <= features), rows[-1])
