"""Read loop nests from scheduled tensor programs.

Block iterators are replaced by their bindings and views by regions of their source. A loop whose
variable is divided somewhere becomes one loop per digit:

    for task in T.parallel(32):        loop of 4 (parallel), loop of 8 (parallel)
        A[task // 8, task % 8]    →    A moves by rows with the first, by elements with the second

Intermediate buffers have the size that lowering will give them: the region accessed within the
loops that all accesses share. Their rows are then close together.

Loops annotated `loop_partition` are split where a condition on them changes. Values selected by
such a condition are then computed without the selection, as often as it holds; so are values
computed only for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.cost.form import StridedIndex, add, form_of, scale
from blockwright.cost.nest import AccessNode, BufferNode, Kind, LoopNode, StatementNode, steps
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.target import Target

_OPERATIONS = {
    "exp": 14, "exp_ftz": 11, "exp2": 12, "exp10": 16, "expm1": 20, "log": 18, "log2": 18,
    "log10": 18, "log1p": 22, "sqrt": 6, "rsqrt": 8, "sin": 25, "cos": 25, "tan": 35, "tanh": 19,
    "erf": 22, "erfc": 60, "erfcx": 50, "erfinv": 90, "lgamma": 100, "digamma": 90, "i0": 90,
    "i0e": 80, "i1": 90, "i1e": 80, "sigmoid": 20, "pow": 40, "fmod": 20, "atan2": 40,
    "likely": 0, "if_then_else": 1,
    "reinterpret": 0, "as_index": 0, "checked_index": 0, "checked_divisor": 0, "prefetch": 1,
    "vector_reduce_add": 6, "vector_reduce_max": 6, "vector_reduce_min": 6,
}  # fmt: skip
"""Vector instructions per builtin operation; others count as one."""
_CALLS = frozenset({"call_extern", "call_packed", "call_global", "call_pure_extern", "call_object"})
_ROUNDING = 1e-6  # tolerance when rounding a number of tasks down
_KINDS: dict[ir.ForKind, Kind] = {
    ir.ForKind.PARALLEL: "parallel",
    ir.ForKind.UNROLLED: "unrolled",
    ir.ForKind.VECTORIZED: "lanes",
}


class _Place(msgspec.Struct):
    """An access before the layout of its buffer is known: one form per dimension."""

    access: AccessNode
    buffer: ir.Buffer
    forms: list[StridedIndex]
    loops: tuple[LoopNode, ...]


class Reader:
    """Reads one program.

    Attributes:
        notes: properties that the program does not determine, and the assumptions made instead.
    """

    def __init__(self, func: ir.PrimFunc, target: Target, sizes: Mapping[str, int]) -> None:
        self.notes: list[str] = []
        self._target = target
        self._known: dict[ir.Var, StridedIndex] = {}
        self._views: dict[ir.Buffer, tuple[ir.Buffer, list[StridedIndex]]] = {}
        self._storages: dict[ir.Buffer, BufferNode] = {}
        self._places: list[_Place] = []
        self._loops: list[LoopNode] = []
        self._lanes: dict[int, LoopNode] = {}
        self._cut: set[LoopNode] = set()
        self._needed: dict[StatementNode, float] = {}
        self._divisors = _divisors(func)
        self._parameters = set(func.buffers)
        for var in [v for b in func.buffers for d in b.shape for v in ir.free_vars(d)]:
            if var not in self._known:
                self._known[var] = StridedIndex(self._size(var, sizes))
        for var in func.params:
            if not var.dtype.is_handle and var not in self._known:
                self._known[var] = StridedIndex(self._size(var, sizes))
        self.body = self._statement(func.body)
        self._lay_out()

    def _size(self, var: ir.Var, sizes: Mapping[str, int]) -> int:
        if var.name not in sizes:
            self.notes.append(f"{var.name} is assumed to be 128: no size was given")
        return sizes.get(var.name, 128)

    def _statement(self, stmt: ir.Stmt) -> list[LoopNode | StatementNode]:
        if isinstance(stmt, ir.For):
            return self._for(stmt)
        if isinstance(stmt, ir.BlockRealize):
            return self._realize(stmt)
        if isinstance(stmt, ir.SeqStmt):
            return [node for child in stmt.seq for node in self._statement(child)]
        if isinstance(stmt, ir.BufferStore):
            return [self._store(stmt)]
        if isinstance(stmt, ir.Evaluate):
            return [self._step([stmt.value], stmt.value)]
        if isinstance(stmt, ir.IfThenElse):
            return self._choice(stmt)
        if isinstance(stmt, ir.LetStmt):
            self._known[stmt.var] = form_of(stmt.value, self._known)
            return self._statement(stmt.body)
        if isinstance(stmt, ir.DeclBuffer):
            self.notes.append(f"buffer {stmt.buffer.name} is assumed to have its own memory")
        if isinstance(stmt, ir.While):
            self.notes.append("a while loop is assumed to run once")
        if isinstance(stmt, ir.AttrStmt | ir.Allocate | ir.DeclBuffer | ir.While):
            return self._statement(stmt.body)
        return []

    def _choice(self, stmt: ir.IfThenElse) -> list[LoopNode | StatementNode]:
        """Both branches, each as often as its condition holds; always if that is unknown."""
        share = self._share(stmt.condition)
        holds, fails = (1.0, 1.0) if share is None else (share, 1 - share)
        nodes: list[LoopNode | StatementNode] = []
        for side, often in ((stmt.then_case, holds), (stmt.else_case, fails)):
            if side is None or not often:
                continue
            result = self._statement(side)
            share = self._of_busiest(often, stmt.condition)
            for step, _ in steps(result):
                step.share *= share
            nodes += result
        return nodes

    def _for(self, stmt: ir.For) -> list[LoopNode | StatementNode]:
        first = form_of(stmt.min, self._known)
        extent = max(0.0, form_of(stmt.extent, self._known).middle())
        if extent <= 1:
            self._known[stmt.loop_var] = first
            return self._statement(stmt.body) if extent else []
        kind = _KINDS.get(stmt.kind, "serial")
        if kind == "parallel" and any(loop.kind == "parallel" for loop in self._loops):
            kind = "serial"
        digits = self._digits(stmt.loop_var, extent, kind)
        value, scaled = first, 1
        for loop, size in reversed(digits):
            value = add(value, StridedIndex(0, {loop: scaled}))
            scaled *= size
        self._known[stmt.loop_var] = value
        chain = [loop for loop, _ in digits]
        self._loops += chain
        if stmt.annotations.get(LOOP_PARTITION):
            self._cut.update(chain)
        body = self._statement(stmt.body)
        if stmt.annotations.get(LOOP_PARTITION):
            self._leave_out(body)
        del self._loops[-len(chain) :]
        return around(chain, body)

    def _leave_out(self, body: list[LoopNode | StatementNode]) -> None:
        """Lower the share of statements whose register results only partially run ones read."""
        inside = [step for step, _ in steps(body)]
        readers: dict[BufferNode, list[StatementNode]] = {}
        for step in inside:
            stored = {access.storage for access in step.accesses if access.stored}
            for access in step.accesses:
                if access.storage.registers and access.storage not in stored:
                    readers.setdefault(access.storage, []).append(step)
        for step in inside:
            result = next((a.storage for a in step.accesses if a.stored), None)
            if result in readers and step not in self._needed:
                share = max(self._needed.get(reader, 1.0) for reader in readers[result])
                if share < 1:
                    self._needed[step] = share
                    step.share *= share

    def _digits(self, var: ir.Var, extent: float, kind: Kind) -> list[tuple[LoopNode, int]]:
        """Loops that together count an extent, outermost first, each with its radix."""
        sizes, step = list[int](), 1
        for divisor in sorted(self._divisors.get(var, ())):
            if step < divisor < extent and divisor % step == 0:
                sizes.insert(0, divisor // step)
                step = divisor
        sizes.insert(0, math.ceil(extent / step))
        loops = [LoopNode(size if k else extent / step, kind) for k, size in enumerate(sizes)]
        if kind == "parallel":
            share_out(loops, self._target.num_threads, math.ceil(extent))
        return list(zip(loops, sizes, strict=True))

    def _realize(self, stmt: ir.BlockRealize) -> list[LoopNode | StatementNode]:
        block = stmt.block
        reduced: set[LoopNode] = set()
        for it, value in zip(block.iter_vars, stmt.iter_values, strict=True):
            form = form_of(value, self._known)
            self._known[it.var] = form
            if it.iter_type is not ir.IterType.SPATIAL:
                reduced |= form.steps.keys()
        for view in block.match_buffers:
            corner = [form_of(r.min, self._known) for r in view.source.region]
            self._views[view.buffer] = (view.source.buffer, corner)
        nodes: list[LoopNode | StatementNode] = []
        if block.init is not None:
            nodes = self._statement(block.init)
            share = 1 / math.prod(loop.count for loop in reduced)
            for step, _ in steps(nodes):
                step.share = share
        nodes += self._statement(block.body)
        share = self._of_busiest(self._holds(stmt.predicate), stmt.predicate)
        if share < 1:
            for step, _ in steps(nodes):
                step.share *= share
        return nodes

    def _holds(self, condition: ir.Expr) -> float:
        """Fraction of iterations in which a condition holds; 1 if unknown."""
        share = self._share(condition)
        return 1.0 if share is None else share

    def _share(self, condition: ir.Expr) -> float | None:
        """Fraction of the iterations of all threads in which a condition holds; None if unknown.

        The difference of its sides is assumed to be uniformly distributed in its range.
        """
        if isinstance(condition, ir.And):
            return self._holds(condition.a) * self._holds(condition.b)
        if isinstance(condition, ir.GT | ir.GE):
            kind = ir.LT if isinstance(condition, ir.GT) else ir.LE
            return self._share(kind(condition.b, condition.a))
        if not isinstance(condition, ir.LT | ir.LE):
            return None
        a, b = (form_of(side, self._known) for side in (condition.a, condition.b))
        gap = add(a, b, -1)
        if gap.scattered:
            return None
        low, high = _range_in_all_threads(gap)
        fewer = isinstance(condition, ir.LT)
        return min(1.0, max(0.0, (1 - fewer - low) / (high - low + 1)))

    def _of_busiest(self, share: float, condition: ir.Expr) -> float:
        """Fraction of the busiest thread's iterations in which a condition holds.

        Threads take a new task whenever they finish one, so tasks in which the condition seldom
        holds free their thread for others. Work is therefore counted in whole tasks and a
        remainder, shared evenly by the threads.
        """
        parallel = [loop for loop in self._loops if loop.whole]
        forms = [form_of(var, self._known) for var in ir.free_vars(condition)]
        if not any(loop in form.steps for form in forms for loop in parallel):
            return share
        tasks = share * math.prod(loop.whole for loop in parallel)
        whole, threads = math.floor(tasks + _ROUNDING), self._target.num_threads
        last = max(0.0, tasks - whole) if whole % threads == 0 else 1.0
        largest = whole // threads + last
        return min(1.0, largest / math.prod(loop.count for loop in parallel))

    def _store(self, stmt: ir.BufferStore) -> StatementNode:
        value, share = self._chosen(stmt.value, stmt)
        step = self._step([value, *stmt.indices], value, stmt)
        if share < 1:
            step.share = self._needed[step] = share
        loads = ir.collect(value, ir.BufferLoad)
        own = [load for load in loads if load.buffer is stmt.buffer]
        step.chained = any(
            all(ir.structural_equal(a, b) for a, b in zip(load.indices, stmt.indices, strict=True))
            for load in own
        )
        return step

    def _chosen(self, value: ir.Expr, store: ir.BufferStore) -> tuple[ir.Expr, float]:
        """The value stored after loop partitioning, and how often it is stored.

        If a condition on a partitioned loop selects between a computed value and a constant, alone
        or as the update of an element, only the computed value remains.
        """
        if isinstance(value, ir.Select):
            share = self._cut_share(value.condition)
            if share is not None and _is_constant(value.false_value) and share > 0:
                return value.true_value, share
            if share is not None and _is_constant(value.true_value) and share < 1:
                return value.false_value, 1 - share
        if isinstance(value, ir.Add | ir.Max | ir.Min):
            for own, update in ((value.a, value.b), (value.b, value.a)):
                if (
                    isinstance(own, ir.BufferLoad)
                    and own.buffer is store.buffer
                    and isinstance(update, ir.Select)
                ):
                    chosen, share = self._chosen(update, store)
                    return value.replace(a=own, b=chosen), share
        return value, 1.0

    def _cut_share(self, condition: ir.Expr) -> float | None:
        """How often a condition on partitioned loops holds; None for other conditions."""
        if isinstance(condition, ir.And):
            both = [self._cut_share(side) for side in (condition.a, condition.b)]
            return None if None in both else math.prod(one for one in both if one is not None)
        if not isinstance(condition, ir.LT | ir.LE | ir.GT | ir.GE):
            return None
        sides = [form_of(side, self._known) for side in (condition.a, condition.b)]
        if not any(loop in self._cut for form in sides for loop in form.steps):
            return None
        return self._share(condition)

    def _step(
        self, roots: Sequence[ir.Expr], value: ir.Expr, store: ir.BufferStore | None = None
    ) -> StatementNode:
        accesses: list[AccessNode] = []
        if store is not None:
            accesses.append(self._access(store.buffer, store.indices, stored=True))
        loads = dict.fromkeys(load for root in roots for load in ir.collect(root, ir.BufferLoad))
        accesses += [self._access(load.buffer, load.indices) for load in loads]
        lanes = value.dtype.lanes
        operations = self._operations(value)
        if lanes > 1:
            vectors = math.ceil(lanes * value.dtype.nbytes * 8 / self._target.vector_bits)
            operations *= vectors
        return StatementNode(tuple(accesses), operations, width=max(1, value.dtype.nbytes))

    def _access(
        self, buffer: ir.Buffer, indices: Sequence[ir.Expr], stored: bool = False
    ) -> AccessNode:
        forms = [form_of(i, self._known) for i in indices]
        lanes = indices[-1] if indices and isinstance(indices[-1], ir.Ramp) else None
        if lanes is not None:
            forms[-1] = add(forms[-1], self._ramp(lanes))
        while buffer in self._views:
            buffer, corner = self._views[buffer]
            missing = len(corner) - len(forms)
            inner = [add(a, b) for a, b in zip(corner[missing:], forms, strict=False)]
            forms = corner[:missing] + inner
        place = _Place(
            AccessNode(self._storage(buffer), {}, max(1, buffer.dtype.nbytes), 0.0, stored),
            buffer,
            forms,
            tuple(self._loops),
        )
        self._places.append(place)
        return place.access

    def _ramp(self, index: ir.Ramp) -> StridedIndex:
        step = form_of(index.stride, self._known)
        lanes = self._lanes.setdefault(index.lanes, LoopNode(index.lanes, "lanes"))
        return scale(StridedIndex(0, {lanes: 1}), step.base)

    def _storage(self, buffer: ir.Buffer) -> BufferNode:
        if buffer not in self._storages:
            self._storages[buffer] = BufferNode(buffer.name, 0, buffer.scope == "local")
        return self._storages[buffer]

    def _operations(self, value: ir.Expr) -> float:
        """Instructions of an expression; indices and constants cost nothing."""
        if isinstance(value, ir.Add | ir.Sub) and self._target.fma and value.dtype.is_float:
            for product, other in ((value.b, value.a), (value.a, value.b)):
                if isinstance(product, ir.Mul):
                    parts = (product.a, product.b, other)
                    return 1 + sum(map(self._operations, parts))
        if isinstance(value, ir.BufferLoad | ir.Var | ir.IntImm | ir.FloatImm):
            return 0
        if isinstance(value, ir.Call):
            if value.op in _CALLS:
                self.notes.append("the work of a called function is not counted")
            args = value.args[1:] if value.op == "if_then_else" else value.args
            return _OPERATIONS.get(value.op, 1) + sum(map(self._operations, args))
        divides = isinstance(value, ir.Div | ir.FloorDiv | ir.FloorMod | ir.Mod)
        own = self._target.core.division_issue if divides else 1
        if isinstance(value, ir.Broadcast | ir.Ramp):
            own = 0
        children = (c for c in value.children() if isinstance(c, ir.Expr))
        return own + sum(map(self._operations, children))

    def _lay_out(self) -> None:
        """Compute the addresses of all accesses, once the size of each buffer is known."""
        by_buffer: dict[ir.Buffer, list[_Place]] = {}
        for place in self._places:
            by_buffer.setdefault(place.buffer, []).append(place)
        for buffer, places in by_buffer.items():
            outside: set[LoopNode] = set()
            if buffer not in self._parameters:
                outside = set(places[0].loops).intersection(*(p.loops for p in places))
            for place in places:
                place.forms = [_without(form, outside) for form in place.forms]
            shape = [form_of(d, self._known).middle() for d in buffer.shape]
            if outside:
                shape = [_span([p.forms[k] for p in places], d) for k, d in enumerate(shape)]
            self._storages[buffer].size = max(1, math.prod(shape)) * max(1, buffer.dtype.nbytes)
            for place in places:
                self._address(place, shape)

    def _address(self, place: _Place, shape: list[float]) -> None:
        total, step = StridedIndex(), float(place.access.width)
        strides: list[float] = []
        if place.buffer.strides:
            given = [form_of(s, self._known).middle() for s in place.buffer.strides]
            strides = [s * place.access.width for s in given]
        else:
            for size in reversed(shape):
                strides.insert(0, step)
                step *= size
        for form, stride in zip(place.forms, strides, strict=True):
            total = add(total, scale(form, stride))
        place.access.moves, place.access.base = total.steps, total.base
        place.access.scattered = total.scattered
        if total.scattered:
            self.notes.append(f"accesses of {place.buffer.name} are assumed to be random")


def share_out(loops: Sequence[LoopNode], threads: int, tasks: int = 0) -> None:
    """Assign the busiest thread its share of a parallel loop, outermost digits first.

    A fractional count ends with a partial iteration, which is a task like the others. `tasks`
    overrides the number of tasks if it is smaller than the product of the rounded counts.
    """
    total = math.prod(loop.count for loop in loops)
    tasks = tasks or math.prod(math.ceil(loop.count) for loop in loops)
    loops[0].tasks = tasks
    left = min(total, math.ceil(tasks / threads)) / total
    for loop in loops:
        loop.whole = loop.count
        count = max(1.0, loop.count * left)
        left *= loop.count / count
        loop.divided = count < loop.count
        loop.count = count


def around(
    loops: Sequence[LoopNode], body: list[LoopNode | StatementNode]
) -> list[LoopNode | StatementNode]:
    """Wrap a body in loops, the first one outermost."""
    for loop in reversed(loops):
        loop.body = body
        body = [loop]
    return body


def _is_constant(value: ir.Expr) -> bool:
    return not any(isinstance(n, ir.BufferLoad) for n in ir.walk(value))


def _range_in_all_threads(form: StridedIndex) -> tuple[float, float]:
    """Smallest and largest value over all threads."""
    reach = [step * (max(loop.count, loop.whole) - 1) for loop, step in form.steps.items()]
    return form.base + sum(min(0.0, r) for r in reach), form.base + sum(max(0.0, r) for r in reach)


def _without(form: StridedIndex, loops: set[LoopNode]) -> StridedIndex:
    if form.scattered or not loops:
        return form
    return StridedIndex(form.base, {k: s for k, s in form.steps.items() if k not in loops})


def _span(forms: list[StridedIndex], limit: float) -> float:
    """Number of elements accessed along a dimension."""
    if any(form.scattered for form in forms):
        return limit
    return min(limit, max(f.high() for f in forms) - min(f.low() for f in forms) + 1)


def _divisors(func: ir.PrimFunc) -> dict[ir.Var, set[int]]:
    """Constants by which each loop variable is divided, directly or through block iterators."""
    result: dict[ir.Var, set[int]] = {}
    for node in ir.collect(func.body, ir.BinaryOp):
        by = ir.const_int(node.b) if isinstance(node, ir.FloorDiv | ir.FloorMod) else None
        if by is not None and by > 1:
            for var in ir.free_vars(node.a):
                result.setdefault(var, set()).add(by)
    for realize in reversed(ir.collect(func.body, ir.BlockRealize)):
        for it, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if it.var in result:
                for var in ir.free_vars(value):
                    result.setdefault(var, set()).update(result[it.var])
    return result


__all__ = ["Reader", "around", "share_out"]
