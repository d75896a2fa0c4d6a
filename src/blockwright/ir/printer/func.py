"""Printer of tensor programs (`@T.prim_func`)."""

from __future__ import annotations

from typing import Any

from blockwright.ir.attributes import IS_PRIVATE
from blockwright.ir.buffer import Buffer
from blockwright.ir.dtype import INT32
from blockwright.ir.expr import Expr, Var
from blockwright.ir.function import PrimFunc
from blockwright.ir.node import Node
from blockwright.ir.printer.expr import quote
from blockwright.ir.printer.stmt import StmtPrinter, is_true
from blockwright.ir.printer.writer import identifier
from blockwright.ir.stmt import Block, BlockRealize
from blockwright.ir.visit import collect, walk


def buffer_exprs(buffer: Buffer) -> tuple[Expr, ...]:
    """All expressions in the shape, strides and offset of a buffer."""
    offset = () if buffer.offset is None else (buffer.offset,)
    return (*buffer.shape, *buffer.strides, *offset)


class FuncPrinter(StmtPrinter):
    """Prints functions of the tensor level."""

    def prim_func(self, func: PrimFunc, key: str | None = None) -> None:
        """Print a function; `key` is its name in the enclosing module, if any."""
        name, attrs = self._name_and_attrs(func.attrs, key)
        private = attrs.pop(IS_PRIVATE, None) is True
        if not private and IS_PRIVATE in func.attrs:
            attrs[IS_PRIVATE] = func.attrs[IS_PRIVATE]
        start = self.out.position
        with self.names.scope():
            matched: list[tuple[Var, Buffer]] = []
            params = ", ".join(self._params(func, matched))
            self.out.line(self.marked(func, f"def {name}({params}):"))
            with self.out.indent():
                if attrs:
                    self.out.line(f"T.func_attr({self.value(attrs)})")
                for handle, buffer in matched:
                    self.declare_free(buffer)
                    args = self.buffer_args(buffer)
                    spelled = self.names.define(buffer, buffer.name)
                    self.out.line(f"{spelled} = T.match_buffer({self.var(handle)}, {args})")
                if isinstance(func.body, BlockRealize) and is_implicit_root(func.body):
                    self.block_interior(func.body.block)
                else:
                    self.body(func.body)
        index_dtype = self.out.settle(start)
        options = ["private=True"] if private else []
        options += self.name_option(name, key)
        options += [] if index_dtype is INT32 else [f'index_dtype="{index_dtype}"']
        called = f"({', '.join(options)})" if options else ""
        self.out.insert(start, f"@T.prim_func{called}")

    def _name_and_attrs(self, attrs: dict[str, Any], key: str | None) -> tuple[str, dict[str, Any]]:
        """The printed function name, and the attributes that the name does not imply."""
        rest = dict(attrs)
        symbol = rest.pop("global_symbol", None)
        name = key if key is not None else symbol if isinstance(symbol, str) else "main"
        spelled = self.defined_name(name)
        if symbol is None or symbol != (spelled if key is None else key):
            rest = {"global_symbol": symbol, **rest}
        return spelled, rest

    def defined_name(self, name: str) -> str:
        """The name of a function in its `def` line."""
        return self.members.get(name) or identifier(name, "func")

    def name_option(self, spelled: str, key: str | None) -> list[str]:
        """The option of the decorator that states a name in the module that is no name in Python,
        or has another meaning in the text of a program."""
        return [f"name={quote(key)}"] if key is not None and key != spelled else []

    def _params(self, func: PrimFunc, matched: list[tuple[Var, Buffer]]) -> list[str]:
        """Parameter texts; buffers that need a `T.match_buffer` line are appended to `matched`."""
        buffers = dict(func.buffer_map)
        scalars = {p for p in func.params if p not in buffers}
        for scalar in func.params:
            if scalar in scalars:
                self.names.define(scalar, scalar.name)
        out: list[str] = []
        handles = _mentioned(func.body, set(buffers))
        for param in func.params:
            buffer = buffers.get(param)
            if buffer is None:
                out.append(f"{self.var(param)}: T.{param.type}")
            elif param not in handles and self._is_short(param, buffer, scalars):
                args = self.buffer_args(buffer)
                out.append(f"{self.names.define(buffer, buffer.name)}: T.Buffer({args})")
            else:
                out.append(f"{self.names.define(param, param.name)}: T.handle")
        matched += [pair for pair in func.buffer_map if not self.names.known(pair[1])]
        return out

    def _is_short(self, handle: Var, buffer: Buffer, scalars: set[Var]) -> bool:
        """Whether `A: T.Buffer(…)` suffices: default handle name, only parameters in the shape."""
        if handle.name not in (buffer.name, f"{buffer.name}_handle"):
            return False
        symbols = {v for e in buffer_exprs(buffer) for v in collect(e, Var)}
        return symbols <= scalars


def _mentioned(root: Node, wanted: set[Var]) -> set[Var]:
    """The variables in `wanted` that occur; shared nodes, such as buffers, are visited once."""
    result: set[Var] = set()
    seen: set[int] = set()
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Var):
            if node in wanted:
                result.add(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.extend(node.children())
    return result


def is_implicit_root(realize: BlockRealize) -> bool:
    """Whether the parser would add this root block implicitly, so that it can be omitted."""
    block = realize.block
    empty = not (block.iter_vars or block.reads or block.writes or block.annotations)
    plain = block.init is None and not block.match_buffers and not block.exec_scope
    needed = bool(block.alloc_buffers) or any(isinstance(n, Block) for n in walk(block.body))
    inner = block.body
    alone = (
        isinstance(inner, BlockRealize) and not inner.block.iter_vars and not block.alloc_buffers
    )
    return (
        block.name == "root"
        and is_true(realize.predicate)
        and empty
        and plain
        and needed
        and not (alone and isinstance(inner, BlockRealize) and inner.block.name == "root")
    )
