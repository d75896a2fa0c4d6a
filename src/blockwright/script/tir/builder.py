"""The IR builder core: a stack of frames into which statements are emitted.

The parser drives it. Python functions called from a script may emit as well; their statements are
inserted at the call. Frames are context managers; entering one returns the variables it defines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar, cast

from blockwright import ir
from blockwright.analysis import block_access_regions, with_one_box_per_buffer
from blockwright.analysis.access.gathers import with_whole_gathers
from blockwright.analysis.access.value_regions import with_value_regions
from blockwright.ir import (
    Block,
    BlockRealize,
    Buffer,
    BufferRegion,
    Expr,
    For,
    ForKind,
    IterType,
    IterVar,
    MatchBufferRegion,
    PrimFunc,
    Range,
    Stmt,
    Var,
)
from blockwright.ir.annotations import with_current_keys
from blockwright.ir.attributes import IS_PRIVATE
from blockwright.ir.dtype import INT32, DType
from blockwright.script.tir.loop_domains import (
    kind_of_added,
    loop_name,
    outer_buffers,
    uses_beside,
    widest,
)
from blockwright.support import ScriptError, Span

Wrap = Callable[[Stmt], Stmt]
FrameT = TypeVar("FrameT", bound="StatementFrame")


def misplaced(what: str, where: str) -> ScriptError:
    return ScriptError(f"{what} is misplaced", code="BW108", help=f"it belongs {where}")


class Builder:
    """State of a function under construction; `Builder.current()` is this thread's active one."""

    _local = threading.local()

    def __init__(self) -> None:
        self.frames: list[StatementFrame] = []
        self.hints: list[str] = []
        self.fresh: set[Var] = set()
        self.broadcasting: set[Buffer] = set()  # buffers with buffer_type "auto"
        self.threads: dict[Var, str] = {}  # variables of T.env_thread → thread tag
        # Named pointer → (substituted address or None, expression of the reachable addresses).
        self.pointers: dict[Var, tuple[Expr | None, Expr]] = {}
        self.span: Span | None = None
        self.failed = False
        self.result: PrimFunc | None = None  # the last finished function

    @classmethod
    def current(cls, what: str = "this") -> Builder:
        result: list[Builder] = getattr(cls._local, "stack", [])
        if not result:
            raise misplaced(what, "inside a function that is being parsed")
        return result[-1]

    @classmethod
    def active(cls) -> Builder | None:
        result: list[Builder] = getattr(cls._local, "stack", [])
        return result[-1] if result else None

    @classmethod
    def index_dtype(cls) -> DType:
        """The type of Python integers in index positions of the current function."""
        builder = cls.active()
        func = builder.frames[0] if builder is not None and builder.frames else None
        return func.index_dtype if isinstance(func, FuncFrame) else INT32

    def __enter__(self) -> Self:
        result: list[Builder] = getattr(self._local, "stack", [])
        result.append(self)
        self._local.stack = result
        return self

    def __exit__(self, *_: object) -> None:
        self._local.stack.pop()

    def take_name(self, default: str) -> str:
        """The name of the next definition, from the assignment in the script."""
        return self.hints.pop(0) if self.hints else default

    def define(self, var: Var) -> Var:
        """Register a fresh variable: an assignment names it and does not create a let."""
        self.fresh.add(var)
        return var

    def place(self, buffer: Buffer, position: int, index: Expr) -> Expr:
        """The index of an access; dimensions of extent 1 of an "auto" buffer broadcast."""
        if buffer not in self.broadcasting:
            return index
        extent = buffer.shape[position]
        size, zero = ir.const_int(extent), ir.const(0, index.dtype)
        if size is not None:
            return zero if size == 1 else index
        alone = ir.EQ(extent, ir.const(1, extent.dtype))
        lanes = index.dtype.lanes
        return ir.Select(ir.Broadcast(alone, lanes) if lanes > 1 else alone, zero, index)

    def emit(self, item: Stmt | ScopedStatement) -> None:
        if not self.frames:
            raise misplaced("a statement", "inside a function that is being parsed")
        self.frames[-1].items.append(item)

    def frame(self, kind: type[FrameT], what: str, where: str) -> FrameT:
        """The innermost frame, which must be an instance of `kind`."""
        if self.frames and isinstance(self.frames[-1], kind):
            return self.frames[-1]
        raise misplaced(what, where)


class ScopedStatement:
    """A statement whose scope is the rest of its statement list."""

    def __init__(self, wrap: Wrap) -> None:
        self.wrap = wrap


def fold(items: Iterable[Stmt | ScopedStatement]) -> Stmt:
    """Combine the statements of a frame; each scoped statement wraps all that follow."""
    tail: list[Stmt] = []
    for item in reversed(list(items)):
        if isinstance(item, ScopedStatement):
            tail = [item.wrap(ir.seq(reversed(tail)))]
        else:
            tail.append(item)
    return ir.seq(reversed(tail))


class StatementFrame:
    """A statement list under construction."""

    def __init__(self) -> None:
        self.items: list[Stmt | ScopedStatement] = []
        self.span: Span | None = None

    def __enter__(self) -> Any:
        builder = Builder.current()
        self.span = builder.span
        builder.frames.append(self)
        return self.entered(builder)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        builder = Builder.current()
        builder.frames.pop()
        if kind is None:
            self.finished(builder)

    def entered(self, builder: Builder) -> Any:
        return None

    def finished(self, builder: Builder) -> None:
        raise NotImplementedError

    def body(self) -> Stmt:
        return fold(self.items)


class FrameOf(StatementFrame):
    """A frame that passes its body to a function on exit."""

    def __init__(self, done: Callable[[Stmt], None]) -> None:
        super().__init__()
        self._done = done

    def finished(self, builder: Builder) -> None:
        self._done(self.body())


class ScopeFrame(StatementFrame):
    """A scoped statement, used by `with` or for the rest of the statement list."""

    def __init__(self, make: Callable[[str], tuple[Any, Wrap]], default: str) -> None:
        super().__init__()
        self._make, self._default = make, default
        self._wrap: Wrap | None = None

    def entered(self, builder: Builder) -> Any:
        value, self._wrap = self._make(builder.take_name(self._default))
        return value

    def finished(self, builder: Builder) -> None:
        assert self._wrap is not None
        builder.emit(self._wrap(self.body()))

    def rest(self, name: str | None = None) -> Any:
        """Open the scope for the rest of the enclosing list; return the defined value."""
        value, wrap = self._make(name or self._default)
        Builder.current().emit(ScopedStatement(wrap))
        return value


def frozen(value: Any) -> Any:
    """Convert an annotation to its IR form: lists, at any depth, become tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(v) for v in cast("list[Any]", value))
    if isinstance(value, dict):
        return {k: frozen(v) for k, v in cast("dict[str, Any]", value).items()}
    return value


class LoopSpec:
    """One loop of a nest before its variable is created."""

    def __init__(
        self,
        low: Expr,
        extent: Expr,
        kind: ForKind,
        thread: str = "",
        annotations: Mapping[str, Any] | None = None,
        index: Callable[[Var], Expr] | None = None,
        start: tuple[Var, Expr] | None = None,
    ) -> None:
        self.low, self.extent, self.kind, self.thread = low, extent, kind, thread
        self.start = start  # a name that stands for a value while the loop runs
        given: Any = annotations
        if given is not None and not isinstance(given, Mapping):
            raise ScriptError(
                f"annotations of a loop are a dict, not {annotations!r}",
                code="BW107",
                help='write annotations={"name": value}',
            )
        self.annotations = frozen(with_current_keys(annotations or {}))
        self.index = index  # loop variable → the script's index, for loops with a step


class LoopNest(StatementFrame):
    """One or more nested loops."""

    def __init__(self, specs: list[LoopSpec], grid: bool = False) -> None:
        super().__init__()
        self.specs, self.grid = specs, grid
        self.vars: list[Var] = []
        self.indices: list[Expr] = []

    def entered(self, builder: Builder) -> Any:
        names = [builder.take_name(f"i{k}") for k in range(len(self.specs))]
        self.vars = [
            builder.define(Var(name, spec.extent.dtype, span=self.span))
            for name, spec in zip(names, self.specs, strict=True)
        ]
        pairs = zip(self.vars, self.specs, strict=True)
        self.indices = [spec.index(var) if spec.index else var for var, spec in pairs]
        return self.indices if self.grid and len(self.vars) != 1 else self.indices[0]

    def finished(self, builder: Builder) -> None:
        body = self.body()
        for var, spec in zip(reversed(self.vars), reversed(self.specs), strict=True):
            thread = thread_axis(spec.thread, spec.low, spec.extent) if spec.thread else None
            body = For(
                var,
                spec.low,
                spec.extent,
                spec.kind,
                body,
                thread,
                spec.annotations,
                span=self.span,
            )
            if spec.start is not None:
                body = ir.LetStmt(*spec.start, body, span=self.span)
        builder.emit(body)


def thread_axis(tag: str, low: Expr, extent: Expr) -> IterVar:
    """The thread axis of a loop bound to `tag`."""
    return IterVar(Var(tag, extent.dtype), Range(low, extent), IterType.SPATIAL, tag)


class StorageFrame(StatementFrame):
    """A frame in which buffers can be allocated: a block or a function."""

    def __init__(self) -> None:
        super().__init__()
        self.alloc_buffers: list[Buffer] = []


class InitFrame(StatementFrame):
    def __init__(self, block: BlockFrame) -> None:
        super().__init__()
        self._block = block

    def finished(self, builder: Builder) -> None:
        self._block.init = self.body()


class BlockFrame(StorageFrame):
    """A block under construction."""

    def __init__(self, name: str, domains: list[tuple[Range, IterType]], exec_scope: str) -> None:
        super().__init__()
        self.name, self.domains, self.exec_scope = name, domains, exec_scope
        self.iter_vars: list[IterVar] = []
        self.values: list[Expr | None] = []
        self.predicate: Expr | None = None
        self.reads: tuple[BufferRegion, ...] | None = None
        self.writes: tuple[BufferRegion, ...] | None = None
        self.annotations: dict[str, Any] = {}
        self.match_buffers: list[MatchBufferRegion] = []
        self.init: Stmt | None = None
        self._added = 0  # number of implicit iterators for loop variables

    def entered(self, builder: Builder) -> Any:
        names = [builder.take_name(f"v{k}") for k in range(len(self.domains))]
        for name, (domain, kind) in zip(names, self.domains, strict=True):
            self.axis(builder, name, domain, kind, None)
        result = [axis.var for axis in self.iter_vars]
        return result[0] if len(result) == 1 else result

    def axis(
        self, builder: Builder, name: str, domain: Range, kind: IterType, value: Expr | None
    ) -> Var:
        var = builder.define(Var(name, domain.extent.dtype, span=builder.span))
        self.iter_vars.append(IterVar(var, domain, kind, span=builder.span))
        self.values.append(value)
        return var

    def finished(self, builder: Builder) -> None:
        block = Block(
            self.name,
            tuple(self.iter_vars),
            self.reads or (),
            self.writes or (),
            self.body(),
            self.init,
            tuple(self.alloc_buffers),
            tuple(self.match_buffers),
            self.annotations,
            self.exec_scope,
            span=self.span,
        )
        known = builder.pointers
        block = ir.substitute(block, {p: out for p, (out, _) in known.items() if out is not None})
        block = self._with_loops_bound(block, builder)
        if (self.reads is None or self.writes is None) and not builder.failed:
            reached = {p: reached for p, (_, reached) in known.items()}
            reads, writes = block_access_regions(ir.substitute(block, reached))
            block = block.replace(
                reads=reads if self.reads is None else self.reads,
                writes=writes if self.writes is None else self.writes,
            )
        block = with_one_box_per_buffer(with_whole_gathers(block))
        builder.emit(self._realize(block))

    def _with_loops_bound(self, block: Block, builder: Builder) -> Block:
        """Replace uses of enclosing loop variables in a block by iterators.

        TVM programs may use loop variables inside blocks. Here blocks access enclosing loops only
        through their iterators, so that schedule primitives can rely on the bindings. An iterator
        that is bound to the variable replaces it; otherwise one is added (`kind_of_added`). In a
        block that declares iterators, a loop variable is an error (BW212), unless the function is
        not checked.
        """
        func = builder.frames[0]
        if self.iter_vars and isinstance(func, FuncFrame) and func.checked:
            return block
        loops: dict[Var, Range] = {}
        strided: set[Expr] = set()  # indices of loops with a step
        for frame in builder.frames:
            if isinstance(frame, BlockFrame):
                loops = {}
            elif isinstance(frame, LoopNest):
                loops.update(
                    zip(frame.vars, (Range(s.low, s.extent) for s in frame.specs), strict=True)
                )
                strided.update(i for i in frame.indices if not isinstance(i, Var))
        inside = block.replace(iter_vars=())  # domains do not depend on loops
        if not ir.uses_var(inside, set(loops)):
            return block
        pairs = [
            (value, axis.var)
            for value, axis in zip(self.values, self.iter_vars, strict=True)
            if value is not None and value.dtype is axis.var.type
        ]
        # Buffers from outside are kept, even if their offset or shape uses a loop variable.
        kept: dict[ir.Node, ir.Node] = {buffer: buffer for buffer in outer_buffers(inside)}
        indices: dict[ir.Node, Var] = {value: var for value, var in pairs if value in strided}
        inside = ir.substitute(inside, {**kept, **indices})
        known = {value: var for value, var in pairs if isinstance(value, Var) and value in loops}
        for var in loops:
            if var not in known and uses_beside(inside, var, kept):
                known[var] = Var(f"v{var.name}", var.type, span=var.span)
                domain = widest(loops[var], loops)
                kind = kind_of_added(block, var)
                self.iter_vars.append(IterVar(known[var], domain, kind, span=self.span))
                self.values.append(var)
                self._added += 1
        return ir.substitute(inside, {**kept, **known}).replace(iter_vars=tuple(self.iter_vars))

    def _realize(self, block: Block) -> Stmt:
        predicate = ir.const(True, "bool") if self.predicate is None else self.predicate
        bound = [v for v in self.values if v is not None]
        if len(bound) == len(self.values):
            return BlockRealize(tuple(bound), predicate, block, span=self.span)
        stated = self.values[: len(self.values) - self._added]
        if any(v is not None for v in stated):
            free = [
                a.var.name for a, v in zip(self.iter_vars, self.values, strict=True) if v is None
            ]
            raise ScriptError(
                f"block {self.name!r} binds only some of its iterators",
                code="BW108",
                help=f"also bind {', '.join(free)}, or bind none "
                "to get a loop nest over the whole domain",
            )
        axes = self.iter_vars[: len(stated)]
        loops = [Var(loop_name(a.var.name), a.var.type) for a in axes]
        stmt: Stmt = BlockRealize((*loops, *bound), predicate, block, span=self.span)
        for var, axis in zip(reversed(loops), reversed(axes), strict=True):
            stmt = For(var, axis.dom.min, axis.dom.extent, ForKind.SERIAL, stmt, span=self.span)
        return stmt


class FuncFrame(StorageFrame):
    """A function under construction; if it is not `checked`, blocks with iterators may also use
    loop variables."""

    def __init__(
        self, name: str, private: bool, index_dtype: DType = INT32, checked: bool = True
    ) -> None:
        super().__init__()
        self.name = name
        self.private = private
        self.checked = checked
        self.index_dtype = index_dtype
        self.params: list[Var] = []
        self.buffer_map: dict[Var, Buffer] = {}
        self.attrs: dict[str, Any] | None = None
        self.result: PrimFunc | None = None

    def finished(self, builder: Builder) -> None:
        attrs = dict(self.attrs or {})
        if attrs.get("global_symbol", self.name) is None:
            del attrs["global_symbol"]
        else:
            attrs.setdefault("global_symbol", self.name)
        if self.private:
            attrs[IS_PRIVATE] = True
        pairs = tuple((p, self.buffer_map[p]) for p in self.params if p in self.buffer_map)
        func = PrimFunc(tuple(self.params), pairs, self._rooted(self.body()), attrs, span=self.span)
        self.result = func if builder.failed else with_value_regions(func)
        builder.result = self.result

    def _rooted(self, body: Stmt) -> Stmt:
        """Add the root block if the program has blocks or allocations but no root."""
        allocated = tuple(self.alloc_buffers)
        if isinstance(body, BlockRealize) and not allocated:
            inner = body.block
            if inner.name == "root" and not inner.iter_vars:
                return body
        if not allocated and not ir.blocks(body):
            return body
        root = Block("root", (), (), (), body, alloc_buffers=allocated)
        return BlockRealize((), ir.const(True, "bool"), root)
