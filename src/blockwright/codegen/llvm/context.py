"""State of the code generator for the current LLVM function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.integers import multiple_of
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Buffer, BufferStore, Expr, Sorts, Var
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.nontemporal_unaligned import Shifted

MAX_STACK_BYTES = 64 * 1024
"""Limit on fixed-size stack memory of one function; larger buffers use scratch memory."""


class Memory(msgspec.Struct, frozen=True):
    """Memory of a buffer: the address of element 0, its known alignment, and the root buffer that
    it belongs to (None: unknown). Different known roots never overlap."""

    pointer: Value
    align: int
    root: Buffer | None


class Options(msgspec.Struct, frozen=True):
    """Floating-point and aliasing options of a function.

    Attributes:
        contract: products and sums may be fused.
        nnan: values are never NaN, so min and max need one instruction.
        noalias: buffer parameters do not overlap.
        vector_bits: width of the widest vectors in the function.
    """

    contract: bool = True
    nnan: bool = False
    noalias: bool = True
    vector_bits: int = 0


class Prefetch(msgspec.Struct):
    """Prefetch state: accesses whose cache lines are prefetched for a later loop iteration.

    Attributes:
        loaded: places that the current iteration loads anyway.
        fetched: places of lines that are already prefetched.
    """

    var: Var
    distance: int
    loaded: frozenset[tuple[Buffer, str, int]] = frozenset()
    fetched: set[tuple[Buffer, str, int]] = msgspec.field(
        default_factory=set[tuple[Buffer, str, int]]
    )


class SharedPrefetch(msgspec.Struct):
    """Prefetch state: loads repeated by a loop, prefetched for a later outer iteration.

    Attributes:
        var, distance: variable of the outer loop, and the prefetch distance in its iterations.
        loop, count: variable and trip count of the loop whose iterations share the prefetches.
        lengths: trip counts of the loops inside of it, where known.
        fetched: loads that are already prefetched, by the innermost loop.
    """

    var: Var
    distance: int
    loop: Var
    count: Expr
    lengths: dict[Var, int]
    fetched: set[tuple[Buffer, Var]] = msgspec.field(default_factory=set[tuple[Buffer, Var]])


@dataclasses.dataclass
class FunctionContext:
    """State of the function being emitted; the body of a parallel loop has its own.

    Attributes:
        variables, buffers: names in scope; nonnegative: variables known to be >= 0.
        sorts: distinguishes indices, whose arithmetic does not overflow, from values.
        cleanups: code to run on every exit, innermost last.
        loop_depths: number of cleanups at the start of each open loop.
        callees: symbol of each function of the program, by name.
        parallel_count: counter for naming the bodies of parallel loops.
        poll: in a host program, the address of the time of the next check for signals.
        tiles: first register of each buffer in tile registers; tiles_used: registers in use;
            tiles_held: registers whose contents no call has lost; tiles_ready: whether the function
            has configured the unit.
        streamed: buffers written with non-temporal stores (`nontemporal`).
        shifted: stores whose vectors are realigned to cache lines (`nontemporal_unaligned`).
        loops: variables of the enclosing loops; ahead, shared: prefetch state of loads;
            written: prefetch state of stores.
    """

    e: FunctionEmitter
    options: Options
    sorts: Sorts
    variables: dict[Var, Value] = dataclasses.field(default_factory=dict[Var, Value])
    nonnegative: set[Var] = dataclasses.field(default_factory=set[Var])
    buffers: dict[Buffer, Memory] = dataclasses.field(default_factory=dict[Buffer, Memory])
    cleanups: list[Callable[[], None]] = dataclasses.field(default_factory=list[Callable[[], None]])
    loop_depths: list[int] = dataclasses.field(default_factory=list[int])
    callees: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    parallel_count: list[int] = dataclasses.field(default_factory=lambda: [0])
    inside_parallel: bool = False
    poll: Value | None = None
    tiles: dict[Buffer, int] = dataclasses.field(default_factory=dict[Buffer, int])
    tiles_used: int = 0
    tiles_held: set[int] = dataclasses.field(default_factory=set[int])
    tiles_ready: bool = False
    streamed: frozenset[Buffer] = frozenset()
    shifted: Mapping[BufferStore, Shifted] = dataclasses.field(
        default_factory=dict[BufferStore, "Shifted"]
    )
    loops: list[Var] = dataclasses.field(default_factory=list[Var])
    ahead: Prefetch | None = None
    shared: SharedPrefetch | None = None
    written: Prefetch | None = None

    @property
    def module(self) -> ModuleEmitter:
        return self.e.module

    def memory(self, buffer: Buffer) -> Memory:
        try:
            return self.buffers[buffer]
        except KeyError:
            raise BuildError(
                f"buffer {buffer.name} is used outside its allocation or declaration",
                code="BW612",
                help="lower the function before building it",
            ) from None

    def variable(self, var: Var) -> Value:
        try:
            return self.variables[var]
        except KeyError:
            raise BuildError(
                f"variable {var.name} is used outside its scope",
                code="BW612",
                help="bind it by a parameter, a loop, a let, or a buffer's shape",
            ) from None

    def alignment(self, memory: Memory, index: Expr | None, nbytes: int) -> int:
        """The known alignment of the address of an access."""
        step = 0 if index is None else multiple_of(index) * nbytes
        return math.gcd(memory.align, step) if step else memory.align

    def run_cleanups(self, down_to: int = 0) -> None:
        """Emit pending cleanups, innermost first, and keep them pending."""
        for cleanup in reversed(self.cleanups[down_to:]):
            cleanup()

    def leave(self, code: Value) -> None:
        """Emit a return with a status, after all cleanups."""
        self.run_cleanups()
        self.e.ret(code)

    def check(self, status: Value) -> None:
        """Return with `status` when it is not 0."""
        failed = self.e.compare("ne", status, int_const(0, "i32"))
        with self.e.guarded(failed, likely=False):
            self.leave(status)
