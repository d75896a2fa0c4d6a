"""Outlining: make a part of a graph function a function of its own.

The parameters of the new function are its own ones, the values around it that it uses, and a shape
of the symbols that these do not determine:

    y = R.add(x, b); z = R.reshape(y, (n, 2))      f(x, b, sizes: R.Shape((n,)))  →  z
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from blockwright import ir
from blockwright.graph import Deduced
from blockwright.passes.rewrite import unique_name
from blockwright.support import GraphError


class Outlined(msgspec.Struct, frozen=True, eq=False):
    """A new function of the module, and the values around it that it takes as last arguments."""

    name: str
    inputs: tuple[ir.GraphExpr, ...]


class Outliner:
    """Outlines parts of one function.

    Attributes:
        infos: deduced annotations of its variables; symbols: sizes that match_cast symbols denote.
        created: the new functions by name.
    """

    def __init__(
        self,
        name: str,
        function: ir.GraphFunction,
        module: ir.IRModule,
        functions: Mapping[str, ir.Node],
    ) -> None:
        self.name, self.caller, self.functions = name, function, functions
        deduced = Deduced(function, module)
        if deduced.problems:
            raise GraphError.collect(deduced.problems)
        self.infos, self.symbols = deduced.infos, deduced.symbols
        self.created: dict[str, ir.GraphFunction] = {}

    def outlined(
        self,
        base: str,
        body: ir.SeqExpr,
        info: ir.Info | None,
        own: Sequence[ir.GraphVar] = (),
    ) -> Outlined:
        """Create a private function named after `base`.

        Arguments: `own` are its parameters besides the captured values; their symbols are its own
        unless they occur around it. `info` annotates the result.
        """
        used = [v for v in free_variables(body) if v not in own]
        captured = [self._parameter(var, position) for position, var in enumerate(used)]
        mine = [p.replace(info=self.annotation(p.info)) for p in own]
        mine = [ir.GraphVar(p.name, info=p.info) for p in mine]
        shape = self._shape_of_symbols(body, info, captured, own)
        inputs: list[ir.GraphExpr] = list(used)
        if shape is not None:
            taken = {p.name for p in (*captured, *mine)}
            label = next(n for k in count() if (n := f"sizes{k or ''}") not in taken)
            captured.append(ir.GraphVar(label, info=shape.info))
            inputs.append(shape)
        known = dict(zip((*own, *used), (*mine, *captured), strict=False))
        inside = self._bound_inside(body)  # keep their names: each call checks their ranges
        denoted = {s: size for s, size in self.symbols.items() if s not in inside}
        copied = _Copy(known, self.infos, denoted)(body)
        name = unique_name(base, {*self.functions, *self.created})
        attrs = {k: v for k, v in self.caller.attrs.items() if k.startswith("tir_var_")}
        self.created[name] = ir.GraphFunction((*mine, *captured), copied, info, attrs)
        return Outlined(name, tuple(inputs))

    def annotation(self, info: ir.Info | None) -> ir.Info | None:
        """An annotation with the sizes that match_cast symbols denote."""
        return None if info is None else ir.substitute(info, self.symbols)

    def _parameter(self, var: ir.GraphVar, position: int) -> ir.GraphVar:
        name = var.name if var.name.isidentifier() else f"p{position}"
        return ir.GraphVar(name, info=self.infos.get(var))

    def _shape_of_symbols(
        self,
        body: ir.SeqExpr,
        info: ir.Info | None,
        captured: Sequence[ir.GraphVar],
        own: Sequence[ir.GraphVar],
    ) -> ir.ShapeExpr | None:
        """The symbols that a body uses and no captured value binds, as a shape; None if there are
        none."""
        # A call inside the module binds only symbols that are a whole dimension of an argument.
        bound = {s for p in captured for s in ir.symbolic_vars(p.info)}
        visible, inside = _visible_symbols(self.caller, body), self._bound_inside(body)
        stated = [i for i in (info, *(p.info for p in (*own, *captured))) if i is not None]
        used = (*ir.collect(body, ir.Var), *(v for i in stated for v in ir.collect(i, ir.Var)))
        outer = dict.fromkeys(
            v
            for var in used
            for v in ir.free_vars(self.symbols.get(var, var))
            if var not in inside or var in self.symbols
        )
        # Others are those of function values, which calls bind.
        needed = tuple(v for v in outer if v in visible and v not in bound)
        return ir.ShapeExpr(needed, info=ir.ShapeInfo(needed)) if needed else None

    def _bound_inside(self, body: ir.SeqExpr) -> set[ir.Var]:
        """The symbols that casts of a body bind; others that they mention are checked only."""
        casts = ir.collect(body, ir.MatchCast)
        mentioned = {s for cast in casts for s in ir.symbolic_vars(cast.pattern)}
        return mentioned - _visible_symbols(self.caller, body)


def _visible_symbols(function: ir.GraphFunction, part: ir.SeqExpr) -> set[ir.Var]:
    """Symbols that are bound before a part of a function: a branch, or the body of a local one."""
    found = _symbols_before(function.body, part)
    own = {s for p in function.params for s in ir.parameter_symbols(p.info)}
    return own if found is None else own | found


def _symbols_before(body: ir.SeqExpr, part: ir.SeqExpr) -> set[ir.Var] | None:
    """Symbols that a sequence binds before a part of it; None if it is no part."""
    bound: set[ir.Var] = set()
    for block in body.blocks:
        for binding in block.bindings:
            for inner, symbols in _sequences_in(binding):
                if inner is part:  # a local function: symbols of its parameters are its own
                    return bound
                found = _symbols_before(inner, part)
                if found is not None:
                    return bound | symbols | found
            if isinstance(binding, ir.MatchCast):
                bound.update(ir.symbolic_vars(binding.pattern))
    return None


def _sequences_in(binding: ir.Binding) -> list[tuple[ir.SeqExpr, set[ir.Var]]]:
    """Sequences in a binding, each with the symbols that the parameters around it bind."""
    value = binding.value if isinstance(binding, ir.VarBinding) else None
    if isinstance(value, ir.If):
        return [(value.then_branch, set()), (value.else_branch, set())]
    if isinstance(value, ir.SeqExpr):
        return [(value, set())]
    if isinstance(value, ir.GraphFunction):
        own = {s for p in value.params for s in ir.parameter_symbols(p.info)}
        return [(value.body, own)]
    return []


def free_variables(body: ir.SeqExpr) -> list[ir.GraphVar]:
    """Variables that a sequence uses and does not bind, in order."""
    bound = {
        b.var
        for block in ir.collect(body, ir.BindingBlock)
        for b in block.bindings
        if isinstance(b, (ir.VarBinding, ir.MatchCast))
    }
    bound.update(p for f in ir.collect(body, ir.GraphFunction) for p in f.params)
    used = dict.fromkeys(ir.collect(body, ir.GraphVar))
    return [var for var in used if var not in bound]


class _Copy(ir.Mutator):
    """A body with fresh variables, annotated with what is known of them."""

    def __init__(
        self,
        known: dict[ir.GraphVar, ir.GraphVar],
        infos: dict[ir.GraphVar, ir.Info | None],
        symbols: dict[ir.Var, ir.Expr],
    ) -> None:
        super().__init__()
        self._memo |= known
        self._memo |= symbols
        self.infos = infos

    def rewrite_GraphVar(self, node: ir.GraphVar) -> Any:
        info = self.infos.get(node, node.info)
        return ir.GraphVar(node.name, info=info, span=node.span)

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node
