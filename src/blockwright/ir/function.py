"""Functions of the tensor level and the module that holds functions of both levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blockwright.ir.buffer import Buffer
from blockwright.ir.dtype import BOOL, dtype_of
from blockwright.ir.expr import IntImm, Var
from blockwright.ir.node import Node
from blockwright.ir.stmt import Block, BlockRealize, Stmt
from blockwright.support import IRError


class PrimFunc(Node, frozen=True, eq=False):
    """A tensor program.

    Attributes:
        params: scalars and handles in call order.
        buffer_map: (handle parameter, buffer) pairs; symbolic shape variables that are not
            parameters are bound by the shapes of these buffers on entry.
        body: before lowering, always the `BlockRealize` of the root block.
        attrs: attributes such as "global_symbol", "tir.noalias", "compute_pattern",
            "tir_var_upper_bound" / "tir_var_lower_bound" (name of symbolic variable → int).
    """

    params: tuple[Var, ...]
    buffer_map: tuple[tuple[Var, Buffer], ...]
    body: Stmt
    attrs: dict[str, Any] = {}

    @property
    def root(self) -> Block:
        """The implicit root block; raises once lowering has removed blocks."""
        if not isinstance(self.body, BlockRealize):
            raise IRError("the function no longer has a root block", code="BW204")
        return self.body.block

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Parameter buffers in parameter order."""
        return tuple(buffer for _, buffer in self.buffer_map)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """Output parameter buffers: the last `num_outputs` of `buffers` (an attribute, default 0).

        They are uninitialized on entry.
        """
        buffers = self.buffers
        return buffers[len(buffers) - int(self.attrs.get("num_outputs", 0)) :]

    @property
    def name(self) -> str:
        return str(self.attrs.get("global_symbol", "main"))

    def with_attrs(self, **attrs: Any) -> PrimFunc:
        """A copy with attributes set (for names with dots, pass a dict to `replace`)."""
        return self.replace(attrs={**self.attrs, **attrs})

    def script(self) -> str:
        """Program text in the `T` dialect."""
        return repr(self)

    if TYPE_CHECKING:  # installed by `ir.specialize`

        def specialize(self, mapping: Mapping[Any, Any]) -> PrimFunc: ...


def prim_func(
    body: Stmt,
    buffers: Sequence[Buffer],
    *,
    allocated: Sequence[Buffer] = (),
    scalars: Sequence[Var] = (),
    attrs: Mapping[str, Any] | None = None,
) -> PrimFunc:
    """Build a function whose parameters are `buffers` and whose root block contains `body`.

    Args:
        allocated: buffers allocated by the root block.
        scalars: scalar parameters, placed after the buffers.
    """
    root = Block("root", (), (), (), body, alloc_buffers=tuple(allocated))
    realize = BlockRealize((), IntImm(1, BOOL), root)
    handles = tuple(Var(f"{b.name}_handle", dtype_of("handle")) for b in buffers)
    pairs = tuple(zip(handles, buffers, strict=True))
    return PrimFunc((*handles, *scalars), pairs, realize, dict(attrs or {}))


class IRModule(Node, frozen=True, eq=False):
    """Named functions of both levels; they call each other by name."""

    functions: dict[str, Node]
    attrs: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        try:
            return self.functions[name]
        except KeyError:
            known = ", ".join(sorted(self.functions)) or "none"
            raise IRError(
                f"no function {name!r} in the module", code="BW205", help=f"functions: {known}"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self.functions

    def with_function(self, name: str, function: Node) -> IRModule:
        """A copy in which `name` maps to `function`."""
        return self.replace(functions={**self.functions, name: function})

    def script(self) -> str:
        """Program text of the whole module in the `I`, `T` and `R` dialects."""
        return repr(self)
