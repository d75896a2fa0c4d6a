"""Statements become closures that run them on an environment; blocks, views and calls included."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from blockwright.interp.access import AccessCompiler
from blockwright.interp.lanes import (
    Break,
    Continue,
    Env,
    Fn,
    Loop,
    State,
    compress,
    per_lane,
    run_loop,
)
from blockwright.interp.memory import Pointer, Storage, View, compact_strides
from blockwright.interp.nest import chain_of, plan_nest
from blockwright.ir import (
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    Buffer,
    BufferStore,
    Call,
    DeclBuffer,
    Evaluate,
    Expr,
    For,
    ForKind,
    IfThenElse,
    IterType,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    SeqStmt,
    Stmt,
    StringImm,
    Var,
    While,
    is_const_int,
    walk,
)
from blockwright.ir import stmt as S
from blockwright.support import InterpretError

Run = Callable[[Env], None]
CallGlobal = Callable[[State, str, list[Any]], None]


class Return(Exception):
    """Leaves the function."""


class StmtCompiler(AccessCompiler):
    """Compiles the body of one function. `call_global` runs another function of the module."""

    _statements: ClassVar[dict[type[Stmt], str]] = {
        BufferStore: "store", For: "_for", While: "_while", LetStmt: "_let_stmt",
        AttrStmt: "_attr", IfThenElse: "_if", SeqStmt: "_seq", Evaluate: "_evaluate",
        AssertStmt: "_assert", S.Allocate: "_allocate", DeclBuffer: "_declare",
        BlockRealize: "_realize",
    }  # fmt: skip

    def __init__(self, call_global: CallGlobal) -> None:
        super().__init__()
        self.call_global = call_global

    def stmt(self, node: Stmt) -> Run:
        method = self._statements.get(type(node))
        if method is None:
            raise InterpretError(f"cannot run the statement {type(node).__name__}", code="BW757",
                                 span=node.span)  # fmt: skip
        return getattr(self, method)(node)

    # --------------------------------------------------------------------------------- control
    def _seq(self, node: SeqStmt) -> Run:
        parts = [self.stmt(part) for part in node.seq]

        def seq(env: Env) -> None:
            for part in parts:
                part(env)

        return seq

    def _for(self, node: For) -> Run:
        if node.kind is ForKind.THREAD_BINDING:
            tag = node.thread.thread_tag if node.thread is not None else "a thread axis"
            raise InterpretError(
                f"loop {node.loop_var.name} is bound to {tag}: the interpreter runs no "
                "thread-bound programs", code="BW757", span=node.span,
                help="interpret the program before its loops are bound")  # fmt: skip
        loops, inner = chain_of(node)
        headers: list[Loop] = []
        for loop in loops:
            low, extent = self.index(loop.min), self.index(loop.extent)
            slot = self.define(loop.loop_var)
            self.visible.append((loop.loop_var.name, slot))
            headers.append(Loop(loop.loop_var.name, slot, low, extent, loop.kind, _jumps(loop)))
        body = self.stmt(inner)
        run = body
        for depth in reversed(range(len(loops))):
            run = self._loop(loops[depth:], inner, headers[depth:], body, run)
        del self.visible[-len(loops) :]
        return run

    def _loop(
        self, loops: list[For], inner: Stmt, headers: list[Loop], innermost: Run, below: Run
    ) -> Run:
        """The chain from one loop on: as lanes where that is exact, else in order."""
        nest = plan_nest(self, loops, inner, headers, innermost)
        header = headers[0]

        def loop(env: Env) -> None:
            if nest is None or not env[1].vectorize or not nest.run(env):
                run_loop(env, header, below)

        return loop

    def _while(self, node: While) -> Run:
        condition, body = self.condition(node.condition), self.stmt(node.body)

        def loop(env: Env) -> None:
            while condition(env):
                try:
                    body(env)
                except Continue:
                    continue
                except Break:
                    break

        return loop

    def _if(self, node: IfThenElse) -> Run:
        condition, then = self.condition(node.condition), self.stmt(node.then_case)
        other = None if node.else_case is None else self.stmt(node.else_case)

        def branch(env: Env) -> None:
            chosen = condition(env)
            if type(chosen) is not np.ndarray:
                if chosen:
                    then(env)
                elif other is not None:
                    other(env)
                return
            if chosen.any():
                then(env if chosen.all() else compress(env, chosen))
            if other is not None and not chosen.all():
                other(compress(env, ~chosen))

        return branch

    def _let_stmt(self, node: LetStmt) -> Run:
        if node.var.dtype.is_handle:
            bound, vector = self.pointer(node.value), False
            slot = self.define(node.var)
        else:
            is_value = not (node.value.dtype.is_int and self.is_index(node.value))
            bound = self.value(node.value) if is_value else self.index(node.value)
            slot, vector = self.define(node.var, is_value), node.var.dtype.lanes > 1
        body = self.stmt(node.body)

        def let(env: Env) -> None:
            env[slot] = per_lane(env, bound(env), vector)
            body(env)

        return let

    def _attr(self, node: AttrStmt) -> Run:
        if node.key in ("thread_extent", "virtual_thread"):
            raise InterpretError("the interpreter runs no thread-bound programs", code="BW757",
                                 span=node.span)  # fmt: skip
        return self.stmt(node.body)

    def _assert(self, node: AssertStmt) -> Run:
        condition, site, text = self.condition(node.condition), self.site(node), node.message

        def check(env: Env) -> None:
            holds = np.asarray(condition(env))
            if not holds.all():
                lane = int(np.argmin(holds)) if holds.ndim else 0
                raise site.error(env, "BW753", f"assertion failed: {text}", lane)

        return check

    # ---------------------------------------------------------------------------------- memory
    def _new_buffer(self, buffer: Buffer) -> Run:
        """Fresh storage at each visit; each lane has its own."""
        shape, strides = self._layout(buffer)
        self.defined |= {v for v in (buffer.elem_offset,) if isinstance(v, Var)}
        slot = self.slot(buffer)
        dtype, size = buffer.dtype, buffer.dtype.numpy().itemsize

        def allocate(env: Env) -> None:
            sizes = tuple(max(0, fn(env)) for fn in shape)
            steps = tuple(fn(env) for fn in strides) if strides else compact_strides(sizes)
            reach = dtype.lanes
            reach *= 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
            lanes = 1 if env[0] is None else env[0]
            storage = Storage.fresh(lanes * reach * size, size, len(env[1].levels))
            env[slot] = View(storage, dtype, 0, sizes, steps)
            env[slot + 1] = 0 if env[0] is None else np.arange(lanes) * reach

        return allocate

    def _layout(self, buffer: Buffer) -> tuple[list[Fn], list[Fn]]:
        return [self.index(n) for n in buffer.shape], [self.index(s) for s in buffer.strides]

    def _allocate(self, node: S.Allocate) -> Run:
        allocate, body = self._new_buffer(node.buffer), self.stmt(node.body)

        def run(env: Env) -> None:
            allocate(env)
            body(env)

        return run

    def _declare(self, node: DeclBuffer) -> Run:
        source = self.pointer(node.source)
        bind, body = self.bind_view(node.buffer), self.stmt(node.body)

        def run(env: Env) -> None:
            bind(env, source(env))
            body(env)

        return run

    def bind_view(self, buffer: Buffer) -> Callable[[Env, Pointer], None]:
        """A closure that makes `buffer` name the memory at a pointer."""
        shape, strides = self._layout(buffer)
        offset = self._offset_of(buffer)
        slot, site = self.slot(buffer), self.site(buffer)
        element = buffer.dtype.numpy().itemsize

        def bind(env: Env, pointer: Pointer) -> None:
            sizes = tuple(fn(env) for fn in shape)
            steps = tuple(fn(env) for fn in strides) if strides else compact_strides(sizes)
            storage, start = pointer.storage, pointer.byte + offset(env) * element
            base, phase = divmod(start, element)
            view = View(storage, buffer.dtype, phase, sizes, steps)
            env[slot], env[slot + 1] = view, base
            if (base + view.reach()) * element + phase > len(storage.raw):
                raise site.error(env, "BW751", f"buffer {buffer.name} of shape {sizes} ends outside "
                                 "the memory it is declared on")  # fmt: skip
            if buffer.data_alignment > element and storage.owned and start % buffer.data_alignment:
                raise site.error(env, "BW758", f"buffer {buffer.name} starts {start} bytes into its "
                                 f"storage, not at a multiple of {buffer.data_alignment}")  # fmt: skip

        return bind

    def _offset_of(self, buffer: Buffer) -> Fn:
        """Elements between a pointer and element 0; a variable that nothing binds is 0."""
        offset = buffer.elem_offset
        if offset is None:
            return lambda env: 0
        if isinstance(offset, Var) and offset not in self.defined:
            slot = self.define(offset)

            def zero(env: Env) -> int:
                env[slot] = 0
                return 0

            return zero
        return self.index(offset)

    # ---------------------------------------------------------------------------------- blocks
    def _realize(self, node: BlockRealize) -> Run:
        block = node.block
        predicate = None if is_const_int(node.predicate, 1) else self.condition(node.predicate)
        values = [self.index(v) for v in node.iter_values]
        outer, self.block = self.block, block.name
        shown = len(self.visible)
        iters = [self._iterator(it) for it in block.iter_vars]
        body = self._block_body(block)
        del self.visible[shown:]
        self.block = outer

        def realize(env: Env) -> None:
            if predicate is not None:
                holds = predicate(env)
                if type(holds) is np.ndarray:
                    if not holds.any():
                        return
                    if not holds.all():
                        env = compress(env, holds)
                elif not holds:
                    return
            bound = [value(env) for value in values]
            for bind, value in zip(iters, bound, strict=True):
                bind(env, value)
            body(env)

        return realize

    def _iterator(self, it: IterVar) -> Callable[[Env, Any], None]:
        low, extent, site = self.index(it.dom.min), self.index(it.dom.extent), self.site(it)
        slot, name = self.define(it.var), it.var.name
        self.visible.append((name, slot))

        def bind(env: Env, value: Any) -> None:
            start, count = low(env), extent(env)
            inside = (value >= start) & (value < start + count)
            if not (inside.all() if type(inside) is np.ndarray else inside):
                lane = int(np.argmin(inside))
                raise site.error(env, "BW755", f"block iterator {name} gets a value outside its "
                                 f"domain [{start}, {start + count})", lane,
                                 "guard the block with a predicate (T.where)")  # fmt: skip
            env[slot] = value

        return bind

    def _block_body(self, block: Block) -> Run:
        steps: list[Run] = [self._new_buffer(b) for b in block.alloc_buffers]
        steps += [self._match(m) for m in block.match_buffers]
        if block.init is not None:
            steps.append(self._init(block))
        steps.append(self.stmt(block.body))
        if len(steps) == 1:
            return steps[0]

        def body(env: Env) -> None:
            for step in steps:
                step(env)

        return body

    def _init(self, block: Block) -> Run:
        """`init` where every reduction iterator is at its start."""
        assert block.init is not None
        init = self.stmt(block.init)
        starts = [(self.slot(it.var), self.index(it.dom.min)) for it in block.iter_vars
                  if it.iter_type is IterType.REDUCE]  # fmt: skip

        def run(env: Env) -> None:
            first: Any = True
            for slot, low in starts:
                first = first & (env[slot] == low(env))
            if type(first) is not np.ndarray:
                if first:
                    init(env)
            elif first.any():
                init(env if first.all() else compress(env, first))

        return run

    def _match(self, match: MatchBufferRegion) -> Run:
        """A view of a region; its symbolic shape, strides and offset are bound here."""
        view, source, site = match.buffer, match.source, self.site(match)
        origin = self._known(source.buffer)
        lows = [self.index(r.min) for r in source.region]
        counts = [self.index(r.extent) for r in source.region]
        extra = len(lows) - view.ndim
        if extra < 0:
            raise InterpretError(f"view {view.name} has more dimensions than its region of "
                                 f"{source.buffer.name}", code="BW757", span=match.span)  # fmt: skip
        bind_shape = [self._bind_or_check(n) for n in view.shape]
        bind_strides = [self._bind_or_check(s) for s in view.strides]
        bind_offset = None if view.elem_offset is None else self._bind_or_check(view.elem_offset)
        slot, name, factor = self.slot(view), view.name, view.offset_factor

        def run(env: Env) -> None:
            outer: View = env[origin]
            start: Any = 0
            sizes: list[int] = []
            for low, count, extent, stride in zip(lows, counts, outer.shape, outer.strides, strict=True):
                first, n = low(env), int(np.max(count(env)))
                if n > 0 and (np.min(first) < 0 or np.max(first) + n > extent):
                    raise site.error(env, "BW751", f"the region of view {name} leaves "
                                     f"{source.buffer.name} of shape {outer.shape}")  # fmt: skip
                start = start + first * stride
                sizes.append(n)
            steps = outer.strides[extra:]
            fits = all(n == 1 for n in sizes[:extra])
            fits = fits and all(b(env, n) for b, n in zip(bind_shape, sizes[extra:], strict=True))
            fits = fits and all(b(env, s) for b, s in zip(bind_strides, steps, strict=False))
            if not fits or not (bind_offset is None or bind_offset(env, start)):
                raise site.error(env, "BW758", f"view {name} does not fit its region of "
                                 f"{source.buffer.name}: sizes {sizes}, strides {steps}")  # fmt: skip
            if factor > 1 and np.any(np.mod(start, factor)):
                raise site.error(env, "BW758", f"view {name} starts {start} elements into "
                                 f"{source.buffer.name}, not at a multiple of {factor}")  # fmt: skip
            env[slot] = View(outer.storage, view.dtype, outer.phase, tuple(sizes[extra:]), steps)
            env[slot + 1] = env[origin + 1] + start * outer.lanes

        return run

    def _bind_or_check(self, formal: Expr) -> Callable[[Env, Any], bool]:
        """A closure that gives a free variable its value, or says whether an expression agrees."""
        if isinstance(formal, Var) and formal not in self.defined:
            slot = self.define(formal)

            def bind(env: Env, actual: Any) -> bool:
                env[slot] = actual
                return True

            return bind
        value = self.index(formal)
        return lambda env, actual: bool(np.all(value(env) == actual))

    # ----------------------------------------------------------------------------------- calls
    def _evaluate(self, node: Evaluate) -> Run:
        value = node.value
        if isinstance(value, Call) and value.op in ("address_of", "tensor"):
            return self.pointer(value)
        return self._compile(value)

    def _effect(self, expr: Call) -> Fn:
        methods: dict[str, Callable[[Call], Fn]] = {
            "call_global": self._call_global, "call_packed": self._call_packed,
            "atomic_add": self.atomic_add, "print": self._print, "address_of": self.pointer,
            "constant_data": self._constant, "tensor": self._tensor,
        }  # fmt: skip
        method = methods.get(expr.op)
        if method is not None:
            return method(expr)
        if expr.op == "prefetch":
            return lambda env: 0
        jump = {"break": Break, "continue": Continue, "ret": Return}.get(expr.op)
        if jump is None:
            return super()._effect(expr)

        def leave(env: Env) -> None:
            raise jump

        return leave

    def _argument(self, expr: Expr) -> Fn:
        if expr.dtype.is_handle and not isinstance(expr, StringImm):
            return self.pointer(expr)
        if expr.dtype.is_int and self.is_index(expr):
            return self.index(expr)
        return self.value(expr)

    def _name_of(self, expr: Call) -> str:
        if not expr.args or not isinstance(expr.args[0], StringImm):
            raise InterpretError(f"the first argument of {expr.op} must be a name", code="BW757",
                                 span=expr.span)  # fmt: skip
        return expr.args[0].value

    def _call_global(self, expr: Call) -> Fn:
        name, args = self._name_of(expr), [self._argument(a) for a in expr.args[1:]]
        run = self.call_global

        def call(env: Env) -> int:
            run(env[1], name, [a(env) for a in args])
            return 0

        return call

    def _call_packed(self, expr: Call) -> Fn:
        name, args, site = self._name_of(expr), [self._argument(a) for a in expr.args[1:]], self.site(expr)

        def call(env: Env) -> Any:
            function = env[1].packed.get(name)
            if function is None:
                raise site.error(env, "BW757", f"no Python function {name!r} is known to this run",
                                 help=f"pass packed={{{name!r}: function}} to interpret, or "
                                 "register it with interp.register_packed")  # fmt: skip
            return function(*[a(env) for a in args])

        return call

    def _constant(self, expr: Call) -> Fn:
        name, site = self._name_of(expr), self.site(expr)

        def constant(env: Env) -> Pointer:
            state: State = env[1]
            found = state.constants.get(name)
            if found is None:
                known = {} if state.module is None else state.module.attrs.get("constants", {})
                if name not in known:
                    raise site.error(env, "BW757", f"the module has no constant {name!r}")
                array = np.ascontiguousarray(known[name])
                storage = Storage(array.reshape(-1).view(np.uint8), None, array.itemsize, 0, True)
                found = state.constants[name] = Pointer(storage, 0)
            return found

        return constant

    def _tensor(self, expr: Call) -> Fn:
        """A whole buffer as a NumPy array, for Python functions; it counts as written afterwards."""
        place = expr.args[0]
        slot = self._known(getattr(place, "buffer", place))

        def tensor(env: Env) -> Any:
            view: View = env[slot]
            base, size = env[slot + 1], view.size
            if view.shadow is not None:
                view.shadow[base : base + view.reach()] = view.ones
            return np.lib.stride_tricks.as_strided(
                view.data[base:], view.shape, tuple(s * size for s in view.strides))  # fmt: skip

        return tensor

    def _print(self, expr: Call) -> Fn:
        args = [self._argument(a) for a in expr.args]

        def show(env: Env) -> int:
            texts = [_text(a(env)) for a in args]
            sys.stdout.write(" ".join(texts) + "\n")
            return 0

        return show


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"[{', '.join(_text(v) for v in value)}]"
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    return f"{float(value):.9g}" if isinstance(value, np.floating) else str(value)


def _jumps(loop: For) -> bool:
    """Whether a loop's own body may break or continue."""
    return any(isinstance(n, Call) and n.op in ("break", "continue") for n in walk(loop.body))
