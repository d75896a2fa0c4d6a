"""What is known while one LLVM function is being written."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from blockwright.codegen.llvm.emitter import FunctionEmitter, ModuleEmitter
from blockwright.codegen.llvm.integers import multiple_of
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Buffer, BufferStore, Expr, Sorts, Var
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.nontemporal_unaligned import Shifted

MAX_STACK_BYTES = 64 * 1024
"""Fixed-size memory of one function beyond this comes from the scratch list."""


class Memory(msgspec.Struct, frozen=True):
    """Where element 0 of a buffer is, what its address is surely a multiple of, and the buffer
    whose memory it belongs to (None: unknown); different known roots never overlap."""

    pointer: Value
    align: int
    root: Buffer | None


class Options(msgspec.Struct, frozen=True):
    """Numerical freedoms of a function.

    Attributes:
        contract: products and sums may be fused.
        nnan: values are never NaN, so that min and max need one instruction.
        noalias: buffer parameters do not overlap.
        vector_bits: the widest vectors the function uses.
    """

    contract: bool = True
    nnan: bool = False
    noalias: bool = True
    vector_bits: int = 0


class Ahead(msgspec.Struct):
    """Loads or stores whose lines are fetched for a later value of a loop variable.

    Attributes:
        loaded: what is loaded now anyway.
        fetched: places of lines that are fetched already.
    """

    var: Var
    distance: int
    loaded: frozenset[tuple[Buffer, str, int]] = frozenset()
    fetched: set[tuple[Buffer, str, int]] = msgspec.field(
        default_factory=set[tuple[Buffer, str, int]]
    )


class SharedAhead(msgspec.Struct):
    """Loads that a loop repeats, which are fetched for a later iteration of the loop around it.

    Attributes:
        var, distance: of the loop around.
        loop, count: the loop that fetches a share in each of its iterations, and how many it has.
        lengths: iterations of the loops inside of it, where known.
        fetched: what is fetched already, by the innermost loop.
    """

    var: Var
    distance: int
    loop: Var
    count: Expr
    lengths: dict[Var, int]
    fetched: set[tuple[Buffer, Var]] = msgspec.field(default_factory=set[tuple[Buffer, Var]])


@dataclasses.dataclass
class FunctionContext:
    """State of the function being written; a parallel loop's body gets its own.

    Attributes:
        variables, buffers: what is in scope; nonnegative: variables known to be >= 0.
        sorts: tells indices, whose arithmetic does not overflow, from values.
        cleanups: code that every way out must run, innermost last.
        loop_depths: how many cleanups there were when each open loop began.
        callees: symbol of each function of the program, by name.
        parallel_count: numbers the bodies of parallel loops.
        poll: in a host program, where it keeps the time of the next look for signals.
        streamed: buffers whose lines are written past the caches (`codegen.streams`).
        shifted: stores whose vectors are moved to lines (`codegen.streams_shifted`).
        loops: variables of the loops around; ahead, shared: what loads fetch for later
            iterations; written: what stores do.
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
    streamed: frozenset[Buffer] = frozenset()
    shifted: Mapping[BufferStore, Shifted] = dataclasses.field(
        default_factory=dict[BufferStore, "Shifted"]
    )
    loops: list[Var] = dataclasses.field(default_factory=list[Var])
    ahead: Ahead | None = None
    shared: SharedAhead | None = None
    written: Ahead | None = None

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
        """What the address of an access is surely a multiple of."""
        step = 0 if index is None else multiple_of(index) * nbytes
        return math.gcd(memory.align, step) if step else memory.align

    def run_cleanups(self, down_to: int = 0) -> None:
        """Emits pending cleanups, innermost first, without forgetting them."""
        for cleanup in reversed(self.cleanups[down_to:]):
            cleanup()

    def leave(self, code: Value) -> None:
        """Returns from the function with a status."""
        self.run_cleanups()
        self.e.ret(code)

    def check(self, status: Value) -> None:
        """Leaves with `status` when it is not 0."""
        failed = self.e.compare("ne", status, int_const(0, "i32"))
        with self.e.guarded(failed, likely=False):
            self.leave(status)
