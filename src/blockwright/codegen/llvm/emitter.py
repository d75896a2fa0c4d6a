"""Emit LLVM functions: basic blocks, branches and loops around straight-line code."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from blockwright.codegen.llvm.instruction_emitter import InstructionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.values import VOID, Value


class LoopTargets(msgspec.Struct):
    """Targets of `continue` and `break` in the loop being emitted."""

    latch: str
    exit: str


class Loop:
    """An endless loop being emitted; code in it ends an iteration with `again` or `leave`.

    Attributes: `values` are the loop-carried values.
    """

    def __init__(self, e: FunctionEmitter, initial: Sequence[Value]) -> None:
        self._e, self._head = e, e.fresh("loop")
        self._incoming = [(e.block, initial)]
        self.values = [Value(v.type, f"%{e.fresh()}") for v in initial]
        self.exit: str | None = None
        e.branch(self._head)
        e.label(self._head)

    def again(self, *values: Value) -> None:
        """Start the next iteration with new loop-carried values."""
        if not self._e.terminated:
            self._incoming.append((self._e.block, values))
            self._e.branch(self._head)

    def leave(self) -> None:
        """Continue behind the loop."""
        if not self._e.terminated:
            self.exit = self.exit or self._e.fresh("exit")
            self._e.branch(self.exit)

    def phis(self) -> list[str]:
        """The instructions at the head that choose the loop-carried values."""
        columns = zip(*(values for _, values in self._incoming), strict=True)
        sources = [f"%{block}" for block, _ in self._incoming]
        return [
            f"  {own.text} = phi {own.type} "
            + ", ".join(f"[ {v.text}, {b} ]" for v, b in zip(column, sources, strict=True))
            for own, column in zip(self.values, columns, strict=True)
        ]


class FunctionEmitter(InstructionEmitter):
    """Emits one function of a module."""

    def __init__(
        self,
        module: ModuleEmitter,
        name: str,
        result: str,
        params: Sequence[tuple[str, str]],
        attributes: str = "",
        linkage: str = "",
        param_attributes: Sequence[str] = (),
    ) -> None:
        super().__init__(module)
        self.name = name
        self.params = [Value(t, f"%{n}") for t, n in params]
        marks = list(param_attributes) or [""] * len(self.params)
        listed = [
            f"{p.type} {m} {p.text}" if m else p.typed
            for p, m in zip(self.params, marks, strict=True)
        ]
        self._head = f'define {linkage} {result} @"{name}"({", ".join(listed)}) {attributes} {{'
        self.loops: list[LoopTargets] = []

    def finish(self) -> None:
        """Close the function and add it to the module."""
        lines = [self._head, "entry:", *self.entry, *self.lines, "}"]
        self.module.add_function("\n".join(lines))

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block, self.terminated = name, False

    def branch(self, target: str) -> None:
        self.line(f"br label %{target}")
        self.terminated = True

    def branch_if(
        self, condition: Value, then: str, otherwise: str, *, likely: bool | None = None
    ) -> None:
        weights = ""
        if likely is not None:
            weights = f", !prof {self.module.branch_weights(likely=likely)}"
        self.line(f"br {condition.typed}, label %{then}, label %{otherwise}{weights}")
        self.terminated = True

    def switch(self, value: Value, targets: Mapping[int, str], otherwise: str) -> None:
        """Branch to the label of the number that equals `value`, or to `otherwise`."""
        cases = " ".join(f"{value.type} {n}, label %{label}" for n, label in targets.items())
        self.line(f"switch {value.typed}, label %{otherwise} [{cases}]")
        self.terminated = True

    def ret(self, value: Value = VOID) -> None:
        self.line(f"ret {value.typed}".rstrip())
        self.terminated = True

    def phi(self, type_: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        pairs = ", ".join(f"[ {v.text}, %{b} ]" for v, b in incoming)
        return self.emit(type_, f"phi {type_} {pairs}")

    def choose(
        self,
        condition: Value,
        then: Callable[[], Value],
        otherwise: Callable[[], Value],
        likely: bool | None = None,
    ) -> Value:
        """The value of one of two branches; only the taken one executes."""
        yes, no, join = self.fresh("then"), self.fresh("else"), self.fresh("join")
        self.branch_if(condition, yes, no, likely=likely)
        self.label(yes)
        a = then()
        end_a = self.block
        self.branch(join)
        self.label(no)
        b = otherwise()
        end_b = self.block
        self.branch(join)
        self.label(join)
        return self.phi(a.type, [(a, end_a), (b, end_b)])

    def either(
        self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """Emit two branches; the first one is the likely one."""
        yes, no, join = self.fresh("likely"), self.fresh("else"), self.fresh("join")
        self.branch_if(condition, yes, no, likely=True)
        for name, run in ((yes, then), (no, otherwise)):
            self.label(name)
            run()
            self.branch(join)
        self.label(join)

    @contextmanager
    def guarded(self, condition: Value, *, likely: bool | None = None) -> Generator[None]:
        """Emit code that executes only if `condition` holds."""
        body, join = self.fresh("do"), self.fresh("od")
        self.branch_if(condition, body, join, likely=likely)
        self.label(body)
        yield
        self.branch(join)
        self.label(join)

    @contextmanager
    def loop(self, *initial: Value) -> Generator[Loop]:
        """Emit a loop with loop-carried values; see `Loop`."""
        loop = Loop(self, initial)
        place = len(self.lines)
        yield loop
        self.lines[place:place] = loop.phis()
        if loop.exit is not None:
            self.label(loop.exit)

    @contextmanager
    def counted(
        self, low: Value, high: Value, *, nonempty: bool, unroll: int | None = None
    ) -> Generator[Value]:
        """Emit a loop over [low, high), tested at the bottom; yields the induction variable."""
        head, latch, done = self.fresh("loop"), self.fresh("latch"), self.fresh("done")
        before = self.block
        if nonempty:
            self.branch(head)
        else:
            self.branch_if(self.compare("slt", low, high), head, done)
        self.label(head)
        index = Value(low.type, f"%{self.fresh('i')}")
        after = Value(low.type, f"{index.text}.next")
        self.line(
            f"{index.text} = phi {low.type} [ {low.text}, %{before} ], [ {after.text}, %{latch} ]"
        )
        self.loops.append(LoopTargets(latch, done))
        yield index
        self.loops.pop()
        self.branch(latch)
        self.label(latch)
        self.line(f"{after.text} = add nsw {low.type} {index.text}, 1")
        again = self.compare("slt", after, high)
        mark = self.module.loop_metadata(unroll=unroll)
        self.line(f"br {again.typed}, label %{head}, label %{done}, !llvm.loop {mark}")
        self.terminated = True
        self.label(done)
