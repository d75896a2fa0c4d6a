"""A small typed emitter of LLVM text: values carry their types; one method per instruction kind.

Text is far cheaper to create than a tree of instruction objects, and LLVM parses it fast. It is
private to code generation. A `FunctionEmitter` appends to the current block; fixed-size stack
memory is allocated in the entry block, where LLVM can promote it to registers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec

from blockwright.codegen.llvm.values import (
    Value,
    element_of,
    int_const,
    lanes_of,
    suffix,
    vector,
)
from blockwright.target import Target


class LoopTargets(msgspec.Struct):
    """Targets of `continue` and `break` in the loop being emitted."""

    latch: str
    exit: str


class ModuleEmitter:
    """One LLVM module: declarations, constants, functions and metadata in order of request."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._strings: dict[bytes, str] = {}
        self._functions: list[str] = []
        self._metadata: list[str] = []
        self._attributes: dict[str, int] = {}
        self._nodes: dict[str, str] = {}

    def declare(self, name: str, result: str, params: str, attributes: str = "nonlazybind") -> None:
        """Declare an external function once."""
        if name not in self._declarations:
            self._declarations[name] = f"declare {result} @{name}({params}) {attributes}"

    def declare_intrinsic(self, name: str, result: str, params: str) -> None:
        self.declare(name, result, params, "")

    def external_data(self, symbol: str) -> None:
        """Declare a constant that the linker provides."""
        self._declarations.setdefault(symbol, f'@"{symbol}" = external constant i8, align 64')

    def add_global_once(self, name: str, text: str) -> None:
        """Add a global definition once, under its name."""
        self._declarations.setdefault(name, text)

    def string(self, text: str) -> Value:
        """A pointer to a null-terminated string; equal strings are shared."""
        data = text.encode() + b"\0"
        name = self._strings.get(data)
        if name is None:
            name = self._strings[data] = f"@.str.{len(self._strings)}"
            plain = "".join(
                chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data
            )
            self._globals.append(
                f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{plain}", align 1'
            )
        return Value("ptr", name)

    def loop_metadata(self, *, unroll: int | None) -> str:
        """A distinct loop node that disables LLVM's vectorizer, and its unroller unless `unroll`
        is given."""
        number = len(self._metadata)
        first = "llvm.loop.unroll.disable" if unroll is None else "llvm.loop.unroll.count"
        count = "" if unroll is None else f", i32 {unroll}"
        self._metadata += [
            f"!{number} = distinct !{{!{number}, !{number + 1}, !{number + 2}}}",
            f'!{number + 1} = !{{!"{first}"{count}}}',
            f'!{number + 2} = !{{!"llvm.loop.vectorize.enable", i1 false}}',
        ]
        return f"!{number}"

    def branch_weights(self, *, likely: bool) -> str:
        """Branch weights of a very likely or very unlikely branch."""
        text = (
            '!{!"branch_weights", i32 2000, i32 1}'
            if likely
            else ('!{!"branch_weights", i32 1, i32 2000}')
        )
        return self._node(text)

    def nontemporal(self) -> str:
        """The metadata node of non-temporal accesses."""
        return self._node("!{i32 1}")

    def _node(self, text: str) -> str:
        """The metadata node with the contents `text`."""
        if text not in self._nodes:
            self._nodes[text] = f"!{len(self._metadata)}"
            self._metadata.append(f"{self._nodes[text]} = {text}")
        return self._nodes[text]

    def attributes(self, text: str) -> str:
        """The attribute group with the contents `text`."""
        number = self._attributes.setdefault(text, len(self._attributes))
        return f"#{number}"

    def add_function(self, text: str) -> None:
        self._functions.append(text)

    def render(self) -> str:
        groups = [f"attributes #{n} = {{ {t} }}" for t, n in self._attributes.items()]
        parts = [
            f'target triple = "{self.target.triple}"',
            *self._globals,
            *self._declarations.values(),
            *self._functions,
            *groups,
            *self._metadata,
        ]
        return "\n".join(parts) + "\n"


class FunctionEmitter:
    """Emits the instructions of one function. `terminated`: the current block is closed."""

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
        self.module, self.name = module, name
        self.params = [Value(t, f"%{n}") for t, n in params]
        marks = list(param_attributes) or [""] * len(self.params)
        listed = [
            f"{p.type} {m} {p.text}" if m else p.typed
            for p, m in zip(self.params, marks, strict=True)
        ]
        self._head = f'define {linkage} {result} @"{name}"({", ".join(listed)}) {attributes} {{'
        self._entry: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self.block = "entry"
        self.terminated = False
        self.loops: list[LoopTargets] = []

    # ---------------------------------------------------------------- text
    def fresh(self, hint: str = "") -> str:
        self._count += 1
        return f"{hint}{self._count}" if hint else f"v{self._count}"

    def line(self, text: str) -> None:
        if not self.terminated:
            self._lines.append(f"  {text}")

    def emit(self, type_: str, text: str) -> Value:
        """Emit an instruction with a result."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return Value(type_, name)

    def finish(self) -> None:
        """Close the function and add it to the module."""
        lines = [self._head, "entry:", *self._entry, *self._lines, "}"]
        self.module.add_function("\n".join(lines))

    # ---------------------------------------------------------------- control
    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
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

    def ret(self, value: Value) -> None:
        self.line(f"ret {value.typed}")
        self.terminated = True

    def phi(self, type_: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        pairs = ", ".join(f"[ {v.text}, %{b} ]" for v, b in incoming)
        return self.emit(type_, f"phi {type_} {pairs}")

    def choose(
        self, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value]
    ) -> Value:
        """The value of one of two branches; only the taken one executes."""
        yes, no, join = self.fresh("then"), self.fresh("else"), self.fresh("join")
        self.branch_if(condition, yes, no)
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

    def empty_registers(self) -> None:
        """Force values out of vector registers here, until their next use.

        LLVM may keep a value that is live across a loop in a register that the loop needs, and
        spill an accumulator in each iteration instead. An empty inline assembly statement that
        clobbers all vector registers prevents that.
        """
        target = self.module.target
        name = {"x86_64": "xmm", "aarch64": "v"}.get(target.arch)
        if name:
            every = ",".join(f"~{{{name}{k}}}" for k in range(target.vector_registers))
            self.line(f'call void asm sideeffect "", "{every}"()')

    # ---------------------------------------------------------------- arithmetic
    def binary(self, op: str, a: Value, b: Value, flags: str = "") -> Value:
        return self.emit(a.type, f"{op} {flags + ' ' if flags else ''}{a.typed}, {b.text}")

    def fneg(self, a: Value) -> Value:
        return self.emit(a.type, f"fneg {a.typed}")

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        element = element_of(a.type)
        op = "fcmp" if element in ("float", "double", "half") else "icmp"
        return self.emit(vector("i1", lanes_of(a.type)), f"{op} {predicate} {a.typed}, {b.text}")

    def negated(self, condition: Value) -> Value:
        return self.binary("xor", condition, int_const(1, condition.type))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(a.type, f"select {condition.typed}, {a.typed}, {b.typed}")

    def convert(self, op: str, value: Value, type_: str) -> Value:
        return value if value.type == type_ else self.emit(type_, f"{op} {value.typed} to {type_}")

    def bitcast(self, value: Value, type_: str) -> Value:
        return self.convert("bitcast", value, type_)

    def intrinsic(self, name: str, result: str, *args: Value, flags: str = "") -> Value:
        """Call `llvm.<name>` with fast-math flags; `name` includes the overload suffixes."""
        full = f"llvm.{name}"
        self.module.declare_intrinsic(full, result, ", ".join(a.type for a in args))
        call = f"call {flags} {result}" if flags else f"call {result}"
        return self.emit(result, f"{call} @{full}({', '.join(a.typed for a in args)})")

    def overloaded(self, name: str, *args: Value, flags: str = "") -> Value:
        """Call an intrinsic whose result type and only overload is the first argument's type."""
        full = f"{name}.{suffix(args[0].type)}"
        return self.intrinsic(full, args[0].type, *args, flags=flags)

    def call(self, result: str, name: str, *args: Value, variadic: str = "") -> Value:
        """Call a C function; `variadic` holds the types of its fixed parameters."""
        types = f"{variadic}, ..." if variadic else ", ".join(a.type for a in args)
        self.module.declare(name, result, types)
        called = f"{result} ({types})" if variadic else result
        listed = ", ".join(a.typed for a in args)
        if result == "void":
            self.line(f"call void @{name}({listed})")
            return Value("void", "")
        return self.emit(result, f"call {called} @{name}({listed})")

    def call_local(self, result: str, name: str, *args: Value) -> Value:
        """Call a function defined in this module."""
        return self.emit(result, f'call {result} @"{name}"({", ".join(a.typed for a in args)})')

    # ---------------------------------------------------------------- vectors
    def splat(self, value: Value, lanes: int) -> Value:
        if lanes == 1:
            return value
        if value.text[0] not in "%@":  # a constant
            return Value(vector(value.type, lanes), f"splat ({value.typed})")
        type_ = vector(value.type, lanes)
        one = self.emit(type_, f"insertelement {type_} poison, {value.typed}, i64 0")
        return self.emit(
            type_,
            f"shufflevector {one.typed}, {type_} poison, <{lanes} x i32> zeroinitializer",
        )

    def extract(self, value: Value, lane: int | Value) -> Value:
        if lanes_of(value.type) == 1:
            return value
        index = f"i64 {lane}" if isinstance(lane, int) else lane.typed
        return self.emit(element_of(value.type), f"extractelement {value.typed}, {index}")

    def insert(self, into: Value, value: Value, lane: int) -> Value:
        if lanes_of(into.type) == 1:
            return value
        return self.emit(into.type, f"insertelement {into.typed}, {value.typed}, i64 {lane}")

    def shuffle(self, a: Value, b: Value, indices: Sequence[int]) -> Value:
        if len(indices) == 1:
            count = lanes_of(a.type)
            return self.extract(a if indices[0] < count else b, indices[0] % count)
        picks = ", ".join(f"i32 {i}" for i in indices)
        mask = f"<{len(indices)} x i32> <{picks}>"
        return self.emit(
            vector(element_of(a.type), len(indices)),
            f"shufflevector {a.typed}, {b.typed}, {mask}",
        )

    def per_lane(self, function: Callable[..., Value], *args: Value) -> Value:
        """Apply a scalar function to each lane."""
        lanes = lanes_of(args[0].type)
        if lanes == 1:
            return function(*args)
        result: Value | None = None
        for lane in range(lanes):
            one = function(*(self.extract(a, lane) for a in args))
            start = result or Value(vector(one.type, lanes), "poison")
            result = self.insert(start, one, lane)
        assert result is not None
        return result

    # ---------------------------------------------------------------- memory
    def stack(self, nbytes: int, align: int = 64) -> Value:
        """Fixed-size stack memory, allocated in the entry block."""
        name = f"%{self.fresh('m')}"
        self._entry.append(f"  {name} = alloca [{nbytes} x i8], align {align}")
        return Value("ptr", name)

    def offset(self, pointer: Value, index: Value | int, nbytes: int = 1) -> Value:
        """`pointer` advanced by `index` units of `nbytes`."""
        if isinstance(index, int):
            if index == 0:
                return pointer
            index = int_const(index * nbytes)
            nbytes = 1
        lanes = lanes_of(index.type)
        return self.emit(
            vector("ptr", lanes),
            f"getelementptr inbounds [{nbytes} x i8], {pointer.typed}, {index.typed}",
        )

    def load(self, type_: str, pointer: Value, align: int) -> Value:
        return self.emit(type_, f"load {type_}, {pointer.typed}, align {align}")

    def prefetch(self, pointer: Value, index: Value, nbytes: int) -> None:
        """Prefetch a line into the second-level cache; its address may be unmapped."""
        at = self.emit("ptr", f"getelementptr [{nbytes} x i8], {pointer.typed}, {index.typed}")
        self.module.declare_intrinsic("llvm.prefetch.p0", "void", "ptr, i32, i32, i32")
        self.line(f"call void @llvm.prefetch.p0({at.typed}, i32 0, i32 2, i32 1)")

    def store(self, value: Value, pointer: Value, align: int, *, nontemporal: bool = False) -> None:
        mark = f", !nontemporal {self.module.nontemporal()}" if nontemporal else ""
        self.line(f"store {value.typed}, {pointer.typed}, align {align}{mark}")
