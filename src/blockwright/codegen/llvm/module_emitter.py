"""An LLVM module under construction: declarations, globals, strings, functions and metadata."""

from __future__ import annotations

from blockwright.codegen.llvm.values import Value
from blockwright.target import Target


class ModuleEmitter:
    """One LLVM module: declarations, constants, functions and metadata in order of request.

    Arguments: `external` are the attributes of external functions. By default, calls load the
    address instead of going through a stub.
    """

    def __init__(self, target: Target, external: str = "nonlazybind") -> None:
        self.target, self._external = target, external
        self._names: set[str] = set()
        self._declarations: dict[str, str] = {}
        self._globals: list[str] = []
        self._strings: dict[bytes, str] = {}
        self._functions: list[str] = []
        self._metadata: list[str] = []
        self._attributes: dict[str, int] = {}
        self._nodes: dict[str, str] = {}

    def declare(self, name: str, result: str, params: str, attributes: str | None = None) -> None:
        """Declare an external function once; nothing for one that the module defines."""
        if name not in self._declarations and name.strip('"') not in self._names:
            marks = self._external if attributes is None else attributes
            self._declarations[name] = f"declare {result} @{name}({params}) {marks}"

    def declare_intrinsic(self, name: str, result: str, params: str) -> None:
        self.declare(name, result, params, "")

    def external_data(self, symbol: str) -> None:
        """Declare a constant that the linker provides."""
        self._declarations.setdefault(symbol, f'@"{symbol}" = external constant i8, align 64')

    def add_global_once(self, name: str, text: str) -> None:
        """Add a global definition once, under its name."""
        self._declarations.setdefault(name, text)

    def initializer(self, function: Value) -> None:
        """Run a function `void ()` when the library is loaded."""
        entry = "{ i32, ptr, ptr }"
        self.add_global_once(
            "llvm.global_ctors",
            f"@llvm.global_ctors = appending global [1 x {entry}] "
            f"[{entry} {{ i32 65535, {function.typed}, ptr null }}]",
        )

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

    def reserve(self, name: str) -> bool:
        """Mark a function as defined; false if it is defined already."""
        new = name not in self._names
        self._names.add(name)
        return new

    def add_function(self, text: str) -> None:
        self._functions.append(text)

    def mentions(self, *words: str) -> bool:
        """Whether the functions so far contain all these words, such as types."""
        return all(any(word in text for text in self._functions) for word in words)

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
