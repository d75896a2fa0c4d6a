"""The memory of one call, as the compiler planned it; sizes are expressions over the symbols."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from blockwright.runtime.artefact import ExportedFunction
from blockwright.runtime.sizes import bind_symbols, evaluate_size
from blockwright.support import ArtefactError

_ALIGNMENT = 64


class PlacedValue(msgspec.Struct, frozen=True, array_like=True):
    """A value that takes memory in a call.

    Attributes:
        size: bytes of its elements.
        offset: bytes from the start of the arena, or of the memory of the value `inside`.
        inside: the result in whose memory it is, its own name for a result; "" for the arena.
        first, last: steps of the call that write it and that read it last; a step is a binding of
            the compiled graph function.
        result: whether it is a result, whose memory the caller keeps.
    """

    name: str
    size: int | str
    offset: int | str
    inside: str
    first: int
    last: int
    result: bool


class MemoryUse(msgspec.Struct, frozen=True):
    """Bytes that the values of one call take, results included, with different allocators.

    Attributes:
        planned: as planned: the arena and the results. Here, too, scratch memory of kernels is not
            counted.
        live: every value is allocated when it is computed and freed after its last use, and the
            system reuses freed memory without loss: the peak of the sizes of living values. Without
            a plan that overwrites operands, no allocator needs less.
        pooled: the same, but a freed block is only reused for a value of the same size, as pools of
            run-time systems do that know no sizes in advance.
        unshared: every value is allocated, and none reuses the memory of another.
    """

    planned: int
    live: int
    pooled: int
    unshared: int


class MemoryPlan(msgspec.Struct, frozen=True):
    """The memory of one call, known at compile time.

    Attributes:
        packed_weight_bytes: bytes of the constants in the artefact, as packed for the kernels.
        arena: bytes of the arena of one call, an expression over the symbols.
        unshared: the same if values did not share memory.
        peak: bytes of a call on one thread: the arena, results, and scratch memory that kernels
            keep to themselves.
        task: bytes of scratch memory that each further thread adds at most.
        upper_bound: bytes that the peak never exceeds; None if a symbol in it has no upper bound.
        values: the values of a call in order, with their places and live ranges.
        largest: sizes known only at run time → their largest values, with which the plan counts;
            None for a size without a limit.
    """

    packed_weight_bytes: int
    arena: int | str
    unshared: int | str
    peak: int | str = 0
    task: int | str = 0
    upper_bound: int | None = None
    values: tuple[PlacedValue, ...] = ()
    largest: dict[str, int | str | None] = {}
    signature: ExportedFunction | None = None

    def activation_bytes(self, *inputs: Any, threads: int = 1) -> int:
        """Bytes of a call with inputs of these shapes; an upper bound for several threads, and if
        sizes are known only at run time.

        Raises: ArtefactError BW835 if one of these sizes has no limit.
        """
        symbols = self._symbols(inputs)
        peak, task = (evaluate_size(s, symbols) for s in (self.peak, self.task))
        return peak + (threads - 1) * task

    def use(self, *inputs: Any) -> MemoryUse:
        """The bytes of a call with inputs of these shapes, compared with other allocators."""
        symbols = self._symbols(inputs)
        sizes, spans = self._values(symbols)
        steps = {first for first, _ in spans}
        live = max((_alive(sizes, spans, step) for step in steps), default=0)
        pool = _pooled(sizes, spans)
        pooled = sum(size * count for size, count in pool.items())
        return MemoryUse(self._planned(symbols), live, pooled, sum(sizes))

    def pool(self, *inputs: Any) -> Counter[int]:
        """Size → number of blocks that a pool of blocks for values of the same size takes."""
        return _pooled(*self._values(self._symbols(inputs)))

    def _values(self, symbols: Mapping[str, int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Sizes and live ranges of the values; results live until the end."""
        end = max((v.last for v in self.values), default=0) + 1
        sizes = [_aligned(evaluate_size(value.size, symbols)) for value in self.values]
        return sizes, [(v.first, end if v.result else v.last) for v in self.values]

    def _symbols(self, inputs: tuple[Any, ...]) -> dict[str, int]:
        assert self.signature is not None
        declared = [p.shape for p in self.signature.parameters]
        shapes = [(d, tuple(x.shape)) for d, x in zip(declared, inputs, strict=False)]
        symbols = bind_symbols(shapes)
        for name, most in self.largest.items():
            if most is None:
                raise ArtefactError(
                    f"the memory of a call depends on {name}, which is known only at run time",
                    code="BW835",
                    help="measure_memory measures a call; torch._check(n <= 1000) at export, or "
                    "tir_var_upper_bound, sets a limit",
                )
            symbols[name] = evaluate_size(most, symbols)
        return symbols

    def _planned(self, symbols: Mapping[str, int]) -> int:
        assert self.signature is not None
        total = evaluate_size(self.arena, symbols)
        for result in self.signature.results:
            size = _item_size(result.dtype)
            for dim in result.shape:
                size *= evaluate_size(dim, symbols)
            total += size
        return total


def _alive(sizes: list[int], spans: list[tuple[int, int]], step: int) -> int:
    return sum(s for s, (first, last) in zip(sizes, spans, strict=True) if first <= step <= last)


def _pooled(sizes: list[int], spans: list[tuple[int, int]]) -> Counter[int]:
    """Blocks by size of a pool that reuses them for values of the same size only."""
    free, total = Counter[int](), Counter[int]()
    for step in sorted({step for span in spans for step in span}):
        for size, (first, _) in zip(sizes, spans, strict=True):
            if first == step and free[size]:
                free[size] -= 1
            elif first == step:
                total[size] += 1
        free.update(s for s, (_, last) in zip(sizes, spans, strict=True) if last == step)
    return total


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _item_size(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits) // 8) if digits and "_" not in dtype else 1
