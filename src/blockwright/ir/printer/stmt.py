"""Printer of statements in the `T` dialect.

A statement that scopes over its body (let, attribute, allocation, declared buffer) is printed
without indentation if nothing follows the body, and with `with` otherwise. Chains of them are
printed iteratively, because host programs nest hundreds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.buffer import Buffer, IterType, IterVar
from blockwright.ir.expr import Expr, IntImm, Var
from blockwright.ir.op import OPS
from blockwright.ir.printer.expr import SPECIAL_CALLS, ExprPrinter, is_literal, quote
from blockwright.ir.stmt import Block, BlockRealize, For, ForKind, Stmt
from blockwright.ir.structural import structural_equal
from blockwright.ir.visit import collect, uses_var

_LOOP_NAMES = {
    ForKind.SERIAL: "serial",
    ForKind.PARALLEL: "parallel",
    ForKind.VECTORIZED: "vectorized",
    ForKind.UNROLLED: "unroll",
}
_AXIS_NAMES = {
    IterType.SPATIAL: "spatial",
    IterType.REDUCE: "reduce",
    IterType.SCAN: "scan",
    IterType.OPAQUE: "opaque",
}
_ITER_KINDS = {
    IterType.SPATIAL: "DataPar",
    IterType.REDUCE: "CommReduce",
    IterType.SCAN: "Ordered",
    IterType.OPAQUE: "Opaque",
}
_SCOPING = (S.LetStmt, S.AttrStmt, S.Allocate, S.DeclBuffer)


def is_zero(node: Expr) -> bool:
    return isinstance(node, IntImm) and node.value == 0


def is_true(node: Expr) -> bool:
    return isinstance(node, IntImm) and node.type.is_bool and node.value == 1


def is_launch(node: Any) -> bool:
    """Whether an attribute statement is an ordinary declaration of a thread axis."""
    axis = node.node
    return (
        node.key == "thread_extent"
        and isinstance(axis, IterVar)
        and bool(axis.thread_tag)
        and axis.iter_type is IterType.SPATIAL
        and is_zero(axis.dom.min)
        and structural_equal(axis.dom.extent, node.value)
    )


class StmtPrinter(ExprPrinter):
    """Prints statements into `out`."""

    statements: ClassVar[dict[type[Stmt], Callable[[Any, Any], None]]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loops: dict[Var, For] = {}

    def block_of(self, stmt: Stmt) -> None:
        """Print an indented body in its own name scope."""
        with self.out.indent(), self.names.scope():
            self.body(stmt)

    def body(self, stmt: Stmt) -> None:
        """Print statements; the last one may scope over the rest of the list."""
        while True:
            if isinstance(stmt, S.SeqStmt):
                if not stmt.seq:
                    self.out.line("pass")
                    return
                for item in stmt.seq[:-1]:
                    self.statement(item)
                stmt = stmt.seq[-1]
            elif isinstance(stmt, _SCOPING):
                self.out.line(self.marked(stmt, self._scoping(stmt, tail=True)))
                stmt = stmt.body
            else:
                self.statement(stmt)
                return

    def statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, _SCOPING):
            with self.names.scope():
                self.out.line(self.marked(stmt, self._scoping(stmt, tail=False)))
                self.block_of(stmt.body)
        elif isinstance(stmt, S.SeqStmt):
            for item in stmt.seq:
                self.statement(item)
        else:
            method = self.statements.get(type(stmt))
            if method is None:
                self.out.line(f"<{type(stmt).__name__}>")
            else:
                method(self, stmt)

    # -------------------------------------------------------------------------- scoping statements
    def _scoping(self, stmt: Any, tail: bool) -> str:
        """Header of a scoping statement; also defines the name that it binds."""
        if isinstance(stmt, S.LetStmt):
            value = self.like(stmt.value, stmt.var.type) if tail else self.expr(stmt.value)
            name = self.names.define(stmt.var, stmt.var.name)
            if tail:
                return f"{name}: T.{stmt.var.type} = {value}"
            return f"with T.LetStmt({value}) as {name}:"
        if isinstance(stmt, S.AttrStmt):
            if is_launch(stmt):
                axis = stmt.node
                call = f"T.launch_thread({quote(axis.thread_tag)}, {self.index(stmt.value)})"
                name = self.names.define(axis.var, axis.var.name)
                return f"{name} = {call}" if tail else f"with {call} as {name}:"
            subject = self._axis(stmt.node) if isinstance(stmt.node, IterVar) else None
            subject = subject or self.value(stmt.node)
            call = f"T.attr({subject}, {quote(stmt.key)}, {self.expr(stmt.value)})"
            return call if tail else f"with {call}:"
        self.declare_free(stmt.buffer)
        args = self.buffer_args(stmt.buffer)
        if isinstance(stmt, S.Allocate):
            extra = f", annotations={self.value(stmt.annotations)}" if stmt.annotations else ""
            call = f"T.allocate({args}{extra})"
        else:
            call = f"T.decl_buffer({args}, data={self.expr(stmt.source)})"
        name = self.names.define(stmt.buffer, stmt.buffer.name)
        return f"{name} = {call}" if tail else f"with {call} as {name}:"

    def _axis(self, axis: IterVar) -> str:
        """The subject of an attribute on an axis that is described but not launched."""
        if not self.names.known(axis.var):
            name = self.names.define(axis.var, axis.var.name)
            self.out.line(f"{name} = T.{axis.var.type}()")
        tag = f", {quote(axis.thread_tag)}" if axis.thread_tag else ""
        kind = quote(_ITER_KINDS[axis.iter_type])
        domain = ", ".join(self.ends(axis.dom.min, axis.dom.extent))
        return f"T.iter_var({self.expr(axis.var)}, ({domain}), {kind}{tag})"

    def declare_free(self, buffer: Buffer) -> None:
        """Declare the symbols that the definition of a buffer mentions for the first time."""
        offset = () if buffer.offset is None else (buffer.offset,)
        for item in (*buffer.shape, *buffer.strides, *offset):
            for var in collect(item, Var):
                if not self.names.known(var):
                    name = self.names.define(var, var.name)
                    self.out.line(f"{name} = T.{var.type}()")

    # --------------------------------------------------------------------------- simple statements
    def _store(self, stmt: S.BufferStore) -> None:
        name, value = self.buffer(stmt.buffer), self.expr(stmt.value)
        scalar = all(index.dtype.lanes == 1 for index in stmt.indices)
        if scalar and is_literal(stmt.value) and stmt.value.type is stmt.buffer.dtype:
            value = self.marked(stmt.value, str(stmt.value.value))
        if stmt.predicate is not None:
            where = self.expr(stmt.predicate)
            text = f"{name}.vstore([{self.places(stmt)}], {value}, predicate={where})"
        else:
            text = f"{name}[{self.places(stmt) or '()'}] = {value}"
        self.out.line(self.marked(stmt, text))

    def _evaluate(self, stmt: S.Evaluate) -> None:
        value = stmt.value
        text = f"T.evaluate({self.expr(value)})"
        if isinstance(value, E.Call) and value.op in OPS and OPS[value.op].kind == "effect":
            word = value.op in SPECIAL_CALLS and not value.args and value.type.name == "int32"
            text = value.op if word else self.expr(value)
        self.out.line(self.marked(stmt, text))

    def _assert(self, stmt: S.AssertStmt) -> None:
        condition = self.expr(stmt.condition)
        text = f"assert {condition}, {quote(stmt.message)}"
        if stmt.values:
            values = ", ".join(self.expr(value) for value in stmt.values)
            text = f"T.Assert({condition}, {quote(stmt.message)}, {values})"
        self.out.line(self.marked(stmt, text))

    def _while(self, stmt: S.While) -> None:
        self.out.line(self.marked(stmt, f"while {self.expr(stmt.condition)}:"))
        self.block_of(stmt.body)

    def _if(self, stmt: S.IfThenElse) -> None:
        self.out.line(self.marked(stmt, f"if {self.expr(stmt.condition)}:"))
        self.block_of(stmt.then_case)
        rest = stmt.else_case
        while isinstance(rest, S.IfThenElse):
            self.out.line(self.marked(rest, f"elif {self.expr(rest.condition)}:"))
            self.block_of(rest.then_case)
            rest = rest.else_case
        if rest is not None:
            self.out.line("else:")
            self.block_of(rest)

    # --------------------------------------------------------------------------------------- loops
    def _for(self, stmt: For) -> None:
        nest = self._grid(stmt)
        if len(nest) > 1:
            header = f"T.grid({', '.join(self.index(loop.extent) for loop in nest)})"
        else:
            header = self._loop_call(stmt)
        with self.names.scope():
            names = [self.marked(n, self.names.define(n.loop_var, n.loop_var.name)) for n in nest]
            self._loops.update({loop.loop_var: loop for loop in nest})
            self.out.line(f"for {', '.join(names)} in {header}:")
            self.block_of(nest[-1].body)

    def _grid(self, stmt: For) -> list[For]:
        """The plain serial loops from `stmt` inward that can share one `T.grid`."""

        def plain(loop: For) -> bool:
            return loop.kind is ForKind.SERIAL and is_zero(loop.min) and not loop.annotations

        nest = [stmt]
        while plain(nest[-1]) and isinstance(nest[-1].body, For) and plain(nest[-1].body):
            inner = nest[-1].body
            if uses_var(inner.extent, {loop.loop_var for loop in nest}):
                break
            nest.append(inner)
        return nest

    def _loop_call(self, stmt: For) -> str:
        if is_zero(stmt.min):
            bounds = self.index(stmt.extent)
        else:
            bounds = ", ".join(self.ends(stmt.min, stmt.extent))
        if stmt.kind is ForKind.SERIAL and not stmt.annotations:
            return f"range({bounds})" if is_zero(stmt.min) else f"T.serial({bounds})"
        extra = f", annotations={self.value(stmt.annotations)}" if stmt.annotations else ""
        if stmt.kind is ForKind.THREAD_BINDING:
            tag = stmt.thread.thread_tag if stmt.thread is not None else ""
            return f"T.thread_binding({bounds}, thread={quote(tag)}{extra})"
        return f"T.{_LOOP_NAMES[stmt.kind]}({bounds}{extra})"

    # -------------------------------------------------------------------------------------- blocks
    def _realize(self, stmt: BlockRealize) -> None:
        self.print_block(stmt.block, stmt)

    def _block(self, stmt: Block) -> None:
        self.print_block(stmt, None)

    def print_block(self, block: Block, realize: BlockRealize | None) -> None:
        """Print a block: axes, signature, allocations, init and body."""
        scope = f", exec_scope={quote(block.exec_scope)}" if block.exec_scope else ""
        header = f"with T.block({quote(block.name)}{scope}):"
        guilty = realize if realize is not None and id(realize) in self.marks else block
        self.out.line(self.marked(guilty, header))
        with self.out.indent(), self.names.scope():
            values = realize.iter_values if realize is not None else (None,) * len(block.iter_vars)
            self._axes(block.iter_vars, values)
            if realize is not None and not is_true(realize.predicate):
                self.out.line(f"T.where({self.expr(realize.predicate)})")
            self.out.line(f"T.reads({', '.join(self.region(r) for r in block.reads)})")
            self.out.line(f"T.writes({', '.join(self.region(r) for r in block.writes)})")
            self.block_interior(block)

    def block_interior(self, block: Block) -> None:
        """Print the part of a block after its signature."""
        if block.annotations:
            self.out.line(f"T.block_attr({self.value(block.annotations)})")
        for buffer in block.alloc_buffers:
            self.declare_free(buffer)
            args = self.buffer_args(buffer)
            name = self.names.define(buffer, buffer.name)
            self.out.line(self.marked(buffer, f"{name} = T.alloc_buffer({args})"))
        for match in block.match_buffers:
            self.declare_free(match.buffer)
            text = self.match_region(match)
            name = self.names.define(match.buffer, match.buffer.name)
            self.out.line(self.marked(match, f"{name} = {text}"))
        if block.init is not None:
            self.out.line("with T.init():")
            self.block_of(block.init)
        self.body(block.body)

    def _is_remap(self, axis: IterVar, value: Expr | None) -> bool:
        """Whether the domain of an axis equals that of the loop whose variable it is bound to."""
        loop = self._loops.get(value) if isinstance(value, Var) else None
        return (
            loop is not None
            and axis.iter_type in (IterType.SPATIAL, IterType.REDUCE)
            and axis.var.type is loop.loop_var.type
            and structural_equal(loop.dom, axis.dom)
        )

    def _axes(self, axes: tuple[IterVar, ...], values: tuple[Expr | None, ...]) -> None:
        position = 0
        while position < len(axes):
            end = position
            while end < len(axes) and self._is_remap(axes[end], values[end]):
                end += 1
            if end - position >= 2:
                group = axes[position:end]
                kinds = "".join(axis.iter_type.value for axis in group)
                texts = ", ".join(self.expr(v) for v in values[position:end] if v is not None)
                names = ", ".join(self._axis_name(axis) for axis in group)
                self.out.line(f'{names} = T.axis.remap("{kinds}", [{texts}])')
                position = end
            else:
                axis, value = axes[position], values[position]
                args = self.axis_args(axis.dom, value)
                call = f"T.axis.{_AXIS_NAMES[axis.iter_type]}({args})"
                self.out.line(f"{self._axis_name(axis)} = {call}")
                position += 1

    def _axis_name(self, axis: IterVar) -> str:
        return self.marked(axis, self.names.define(axis.var, axis.var.name))


StmtPrinter.statements.update({
    getattr(S, name): getattr(StmtPrinter, method)
    for name, method in {
        "BufferStore": "_store", "Evaluate": "_evaluate", "AssertStmt": "_assert",
        "While": "_while", "IfThenElse": "_if", "For": "_for", "BlockRealize": "_realize",
        "Block": "_block",
    }.items()
})  # fmt: skip
