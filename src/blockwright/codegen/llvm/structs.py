"""C structs with named fields, and global variables: offsets follow from the field types.

A layout is described once, as a `StructType`. A `Record` is a struct in memory, whose fields are
loaded and stored by name; a `Global` is a variable that a module defines when its code uses it.
"""

from __future__ import annotations

import msgspec

from blockwright.codegen.llvm.instruction_emitter import InstructionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.values import Value, int_const, nbytes_of


class Field(msgspec.Struct, frozen=True):
    """One field of a struct: its name, its LLVM type or struct, and what it holds."""

    name: str
    type: str | StructType
    about: str = ""


class StructType(msgspec.Struct, frozen=True):
    """The layout of a C struct: each field is aligned to its own size.

    Attributes:
        fields: in order of their addresses.
        align: alignment in bytes; by default that of a pointer. The size is a multiple of it.
    """

    fields: tuple[Field, ...]
    align: int = 8

    @property
    def size(self) -> int:
        """The size in bytes, including padding."""
        end = max(self.offset(f.name) + _size(f.type) for f in self.fields)
        return _round_up(end, self.align)

    def offset(self, name: str) -> int:
        """The offset of a field in bytes."""
        end = 0
        for field in self.fields:
            start = _round_up(end, _align(field.type))
            if field.name == name:
                return start
            end = start + _size(field.type)
        raise KeyError(name)

    def align_of(self, name: str) -> int:
        """The alignment of a field's address."""
        offset = self.offset(name)
        return min(offset & -offset or self.align, self.align)

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)

    def allocate(self, e: InstructionEmitter) -> Record:
        """An uninitialized struct in the stack frame."""
        return Record(e, self, e.stack(self.size, self.align))

    def at(self, e: InstructionEmitter, address: Value) -> Record:
        """The struct at an address."""
        return Record(e, self, address)


class Record(msgspec.Struct, frozen=True):
    """A struct in memory."""

    e: InstructionEmitter
    struct: StructType
    address: Value

    def place(self, name: str) -> Value:
        """The address of a field."""
        return self.e.offset(self.address, self.struct.offset(name))

    def inner(self, name: str) -> Record:
        """A field that is a struct."""
        struct = self.struct.field(name).type
        assert isinstance(struct, StructType)
        return Record(self.e, struct, self.place(name))

    def load(self, name: str, *, order: str = "", type_: str = "") -> Value:
        """Load a field, atomically with an `order`; `type_` replaces the declared type."""
        type_, align = type_ or self._declared(name), self.struct.align_of(name)
        return self.e.load(type_, self.place(name), align, order=order)

    def store(self, name: str, value: Value | int, *, order: str = "") -> None:
        """Store a field, atomically with an `order`; the type of a `Value` replaces the declared
        type."""
        stored = int_const(value, self._declared(name)) if isinstance(value, int) else value
        self.e.store(stored, self.place(name), self.struct.align_of(name), order=order)

    def _declared(self, name: str) -> str:
        type_ = self.struct.field(name).type
        assert isinstance(type_, str)
        return type_


class Global(msgspec.Struct, frozen=True):
    """A global variable that is private to a module.

    Attributes:
        type: LLVM type, or struct.
        count: number of consecutive elements.
        initial: value of a variable that is not a struct; structs are zero.
        align: alignment in bytes; by default that of the type.
    """

    name: str
    type: str | StructType
    count: int = 1
    initial: int | str = "zeroinitializer"
    align: int = 0

    def address(self, module: ModuleEmitter) -> Value:
        """The address of the variable, which the module defines once."""
        type_ = f"[{_size(self.type)} x i8]" if isinstance(self.type, StructType) else self.type
        type_ = type_ if self.count == 1 else f"[{self.count} x {type_}]"
        align = self.align or _align(self.type)
        symbol = f"@{self.name}"
        module.add_global_once(
            symbol, f"{symbol} = internal global {type_} {self.initial}, align {align}"
        )
        return Value("ptr", symbol)

    def record(self, e: InstructionEmitter, index: Value | None = None) -> Record:
        """The struct that the variable holds, or the element with the given index."""
        assert isinstance(self.type, StructType)
        address = self.address(e.module)
        if index is not None:
            address = e.offset(address, index, self.type.size)
        return Record(e, self.type, address)

    def load(self, e: InstructionEmitter, *, order: str = "") -> Value:
        """Load a variable that is not a struct, atomically with an `order`."""
        assert isinstance(self.type, str)
        return e.load(self.type, self.address(e.module), _align(self.type), order=order)

    def store(self, e: InstructionEmitter, value: Value | int, *, order: str = "") -> None:
        """Store a variable that is not a struct, atomically with an `order`."""
        assert isinstance(self.type, str)
        stored = int_const(value, self.type) if isinstance(value, int) else value
        e.store(stored, self.address(e.module), _align(self.type), order=order)


def _size(type_: str | StructType) -> int:
    return type_.size if isinstance(type_, StructType) else nbytes_of(type_)


def _align(type_: str | StructType) -> int:
    return type_.align if isinstance(type_, StructType) else nbytes_of(type_)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
