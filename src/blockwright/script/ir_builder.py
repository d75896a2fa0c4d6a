"""`IRBuilder`: build a tensor program imperatively, with the frames of the `T` dialect.

    with IRBuilder() as ib:
        with T.prim_func():
            T.func_name("scale")
            A = T.arg("A", T.Buffer((16,), "float32"))
            with T.grid(16) as i:
                with T.block("A"):
                    vi = ib.name("vi", T.axis.spatial(16, i))
                    T.buffer_store(A, A[vi] * 2.0, [vi])
    func = ib.get()

The result equals the parsed script, except that operators on expressions fold constants, as in the
`ir` package; the parser keeps expressions as written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self, TypeVar

from blockwright import ir
from blockwright.ir import Buffer, PrimFunc, Var
from blockwright.script.tir.builder import Builder
from blockwright.support import ScriptError

ValueT = TypeVar("ValueT")


class IRBuilder:
    """Collects the statements that frames of the `T` dialect emit inside `with`."""

    def __init__(self) -> None:
        self._builder = Builder()
        self._names: dict[Var | Buffer, str] = {}

    def __enter__(self) -> Self:
        self._builder.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._builder.__exit__(*error)

    def name(self, name: str, value: ValueT) -> ValueT:
        """Name a variable or buffer, as an assignment in a script does, and return it."""
        if not isinstance(value, (Var, Buffer)):
            raise ScriptError(
                f"{name!r}: only variables and buffers have names",
                code="BW107",
                help="T.LetStmt binds an expression to a variable",
            )
        self._names[value] = name
        return value

    def name_many(self, names: Sequence[str], values: Sequence[ValueT]) -> list[ValueT]:
        """Name several variables or buffers."""
        return [self.name(n, v) for n, v in zip(names, values, strict=True)]

    def get(self) -> PrimFunc:
        """The finished function."""
        if self._builder.frames:
            raise ScriptError(
                "a frame is still open",
                code="BW108",
                help="call get() after the `with` statements have ended",
            )
        if self._builder.result is None:
            raise ScriptError(
                "no function was built", code="BW108", help="emit inside `with T.prim_func():`"
            )
        return _Named(self._names)(self._builder.result)


class _Named(ir.Mutator):
    """Renames variables and buffers at their definitions and uses."""

    def __init__(self, names: Mapping[Var | Buffer, str]) -> None:
        super().__init__()
        self._names = names

    def rewrite_Var(self, node: Var) -> Var:
        name = self._names.get(node)
        return node if name is None else node.replace(name=name)

    def rewrite_Buffer(self, node: Buffer) -> Buffer:
        result = self.descend(node)
        name = self._names.get(node)
        return result if name is None else result.replace(name=name)
