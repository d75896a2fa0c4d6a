"""Emit straight-line LLVM code: values carry their types; one method per instruction kind.

Text is far cheaper to create than a tree of instruction objects, and LLVM parses it fast. It is
private to code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.values import (
    FALSE,
    VOID,
    Value,
    element_of,
    int_const,
    lanes_of,
    nbytes_of,
    suffix,
    vector,
)


class InstructionEmitter:
    """Appends instructions to the current block of a function.

    Fixed-size stack memory is allocated in the entry block, where LLVM can promote it to registers.
    `terminated`: the current block is closed.
    """

    def __init__(self, module: ModuleEmitter) -> None:
        self.module = module
        self.entry: list[str] = []
        self.lines: list[str] = []
        self._count = 0
        self.block = "entry"
        self.terminated = False

    # ---------------------------------------------------------------- text
    def fresh(self, hint: str = "") -> str:
        self._count += 1
        return f"{hint}{self._count}" if hint else f"v{self._count}"

    def line(self, text: str) -> None:
        if not self.terminated:
            self.lines.append(f"  {text}")

    def emit(self, type_: str, text: str) -> Value:
        """Emit an instruction with a result."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return Value(type_, name)

    # ---------------------------------------------------------------- arithmetic
    def binary(self, op: str, a: Value, b: Value | int, flags: str = "") -> Value:
        b = _operand(b, a.type)
        return self.emit(a.type, f"{op} {flags + ' ' if flags else ''}{a.typed}, {b.text}")

    def fneg(self, a: Value) -> Value:
        return self.emit(a.type, f"fneg {a.typed}")

    def compare(self, predicate: str, a: Value, b: Value | int) -> Value:
        b = _operand(b, a.type)
        element = element_of(a.type)
        op = "fcmp" if element in ("float", "double", "half") else "icmp"
        return self.emit(vector("i1", lanes_of(a.type)), f"{op} {predicate} {a.typed}, {b.text}")

    def negated(self, condition: Value) -> Value:
        return self.binary("xor", condition, int_const(1, condition.type))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(a.type, f"select {condition.typed}, {a.typed}, {b.typed}")

    def convert(self, op: str, value: Value, type_: str) -> Value:
        return value if value.type == type_ else self.emit(type_, f"{op} {value.typed} to {type_}")

    def member(self, value: Value, position: int, type_: str) -> Value:
        """A member of a struct in registers, such as the result of an intrinsic."""
        return self.emit(type_, f"extractvalue {value.typed}, {position}")

    def bitcast(self, value: Value, type_: str) -> Value:
        return self.convert("bitcast", value, type_)

    def intrinsic(self, name: str, result: str, *args: Value, flags: str = "") -> Value:
        """Call `llvm.<name>` with fast-math flags; `name` includes the overload suffixes."""
        full = f"llvm.{name}"
        self.module.declare_intrinsic(full, result, ", ".join(a.type for a in args))
        return self._call(result, f"@{full}", args, flags=flags)

    def overloaded(self, name: str, *args: Value, flags: str = "") -> Value:
        """Call an intrinsic whose result type and only overload is the first argument's type."""
        full = f"{name}.{suffix(args[0].type)}"
        return self.intrinsic(full, args[0].type, *args, flags=flags)

    def call(self, result: str, name: str, *args: Value, variadic: str = "") -> Value:
        """Call a C function; `variadic` holds the types of its fixed parameters."""
        types = f"{variadic}, ..." if variadic else ", ".join(a.type for a in args)
        self.module.declare(name, result, types)
        return self._call(f"{result} ({types})" if variadic else result, f"@{name}", args)

    def call_local(self, result: str, name: str, *args: Value) -> Value:
        """Call a function defined in this module."""
        return self._call(result, f'@"{name}"', args)

    def call_pointer(self, result: str, function: Value, *args: Value) -> Value:
        """Call the function at an address."""
        return self._call(result, function.text, args)

    def _call(self, type_: str, function: str, args: Sequence[Value], flags: str = "") -> Value:
        """Emit a call; `type_` is the result type, or the type of a variadic function."""
        call = f"call {flags} {type_}" if flags else f"call {type_}"
        text = f"{call} {function}({', '.join(a.typed for a in args)})"
        result = type_.partition(" (")[0]
        if result == "void":
            self.line(text)
            return VOID
        return self.emit(result, text)

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
        self.entry.append(f"  {name} = alloca [{nbytes} x i8], align {align}")
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

    def load(self, type_: str, pointer: Value, align: int, *, order: str = "") -> Value:
        """Load a value; with an `order` such as "acquire", atomically."""
        return self.emit(
            type_,
            f"load {_atomic(order)}{type_}, {pointer.typed} {order}".rstrip() + f", align {align}",
        )

    def prefetch(self, pointer: Value, index: Value, nbytes: int) -> None:
        """Prefetch a line into the second-level cache; its address may be unmapped."""
        at = self.emit("ptr", f"getelementptr [{nbytes} x i8], {pointer.typed}, {index.typed}")
        self.prefetch_line(at, write=0, locality=2)

    def prefetch_line(self, pointer: Value, *, write: int, locality: int) -> None:
        """Prefetch a line for reading (0) or writing (1), into a cache level by locality (0..3)."""
        hints = (int_const(n, "i32") for n in (write, locality, 1))  # 1: the data cache
        self.intrinsic("prefetch.p0", "void", pointer, *hints)

    def masked_load(self, type_: str, pointer: Value, align: int, mask: Value) -> Value:
        """Load the active lanes of a vector, or gather them from a vector of addresses; other
        lanes are 0."""
        kind = "gather" if lanes_of(pointer.type) > 1 else "load"
        name = f"llvm.masked.{kind}.{suffix(type_)}.{suffix(pointer.type)}"
        self.module.declare_intrinsic(name, type_, f"{pointer.type}, {mask.type}, {type_}")
        place = f"{pointer.type} align {align} {pointer.text}"
        others = f"{type_} zeroinitializer"
        return self.emit(type_, f"call {type_} @{name}({place}, {mask.typed}, {others})")

    def masked_store(self, value: Value, pointer: Value, align: int, mask: Value) -> None:
        """Store the active lanes of a vector, or scatter them to a vector of addresses."""
        kind = "scatter" if lanes_of(pointer.type) > 1 else "store"
        name = f"llvm.masked.{kind}.{suffix(value.type)}.{suffix(pointer.type)}"
        self.module.declare_intrinsic(name, "void", f"{value.type}, {pointer.type}, {mask.type}")
        place = f"{pointer.type} align {align} {pointer.text}"
        self.line(f"call void @{name}({value.typed}, {place}, {mask.typed})")

    def store(
        self,
        value: Value,
        pointer: Value,
        align: int,
        *,
        nontemporal: bool = False,
        order: str = "",
    ) -> None:
        """Store a value; with an `order` such as "release", atomically."""
        mark = f", !nontemporal {self.module.nontemporal()}" if nontemporal else ""
        place = f"{pointer.typed} {order}".rstrip()
        self.line(f"store {_atomic(order)}{value.typed}, {place}, align {align}{mark}")

    def update(self, op: str, pointer: Value, value: Value, order: str) -> Value:
        """Apply an `atomicrmw` operation such as add or xchg to memory; return the old value."""
        align = nbytes_of(value.type)
        text = f"atomicrmw {op} {pointer.typed}, {value.typed} {order}, align {align}"
        return self.emit(value.type, text)

    def compare_exchange(
        self, pointer: Value, expected: Value, new: Value, orders: str, *, weak: bool = False
    ) -> tuple[Value, Value]:
        """Replace `expected` in memory by `new` atomically.

        Arguments: `orders` are the memory orders of success and failure, such as "acquire
        monotonic"; a `weak` exchange may fail without reason. Returns the old value, and whether it
        was replaced.
        """
        pair = self.emit(
            f"{{ {new.type}, i1 }}",
            f"cmpxchg {'weak ' if weak else ''}{pointer.typed}, {expected.typed}, {new.typed} "
            f"{orders}, align {nbytes_of(new.type)}",
        )
        return self.member(pair, 0, new.type), self.member(pair, 1, "i1")

    def fill(self, pointer: Value, byte: int, nbytes: int) -> None:
        """Set `nbytes` bytes of memory to `byte`."""
        self.intrinsic(
            "memset.p0.i64", "void", pointer, int_const(byte, "i8"), int_const(nbytes), FALSE
        )

    def copy(self, to: Value, source: Value, nbytes: Value | int) -> None:
        """Copy `nbytes` bytes between memory that does not overlap."""
        size = _operand(nbytes, "i64")
        self.intrinsic("memcpy.p0.p0.i64", "void", to, source, size, FALSE)


def _operand(value: Value | int, type_: str) -> Value:
    return value if isinstance(value, Value) else int_const(value, type_)


def _atomic(order: str) -> str:
    return "atomic " if order else ""
