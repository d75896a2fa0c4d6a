"""The memory that a call of a compiled graph function takes: an expression, and its upper bound.

arena + results + max over calls of kernels(scratch of the call + scratch of a task)

Sizes known only at run time are counted at their largest; an expression has the symbols of those
without a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.analysis.calling_convention import calling_convention
from blockwright.arith import Analyzer
from blockwright.codegen.llvm.scratch_plan import scratch_of
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes.host.instrument_host import host_calls
from blockwright.passes.host.plan_memory import ArenaPlan
from blockwright.passes.host.size_order import exact_bytes


class CallMemory(msgspec.Struct, frozen=True, eq=False):
    """Bytes of a call, as expressions over the symbols of the host program.

    Attributes:
        peak: with one thread; task: what each further thread adds, at most.
        upper_bound: a number that the peak never exceeds; None if a symbol has no upper bound.
    """

    peak: ir.Expr
    task: ir.Expr
    upper_bound: int | None


def call_memory(
    name: str,
    outputs: Sequence[ir.Buffer],
    plans: Mapping[str, ArenaPlan],
    lowered: ir.IRModule,
    compiled: ir.IRModule,
) -> CallMemory:
    """The memory of a call of a host program.

    Recursive calls are counted once.

    Arguments: `outputs` are its results, `plans` those of all host programs by name of the graph
        function; `compiled` holds the programs of `lowered` in the form that is compiled.
    """
    host: ir.PrimFunc = lowered[name]
    analyzer = _analyzer(host)
    scratch, task = _Needs(plans, lowered, compiled).of(name)
    results: ir.Expr = ir.const(0, "int64")
    for buffer in outputs:
        need = exact_bytes(ir.TensorInfo(buffer.shape, buffer.dtype))
        results = results + _at_most(need, plans.get(name))
    peak = analyzer.simplify(results + scratch)
    symbols = {v.name for v in ir.free_vars(peak)}
    bounded = symbols <= host.attrs.get(UPPER_BOUND, {}).keys()
    bound = analyzer.const_bounds(peak)[1] if bounded else None
    return CallMemory(peak, analyzer.simplify(task), bound)


class _Needs:
    """Scratch memory of programs with all that they call: the peak, and that of a task."""

    def __init__(
        self, plans: Mapping[str, ArenaPlan], lowered: ir.IRModule, compiled: ir.IRModule
    ) -> None:
        self.plans, self.lowered, self.compiled = plans, lowered, compiled
        self.known: dict[str, tuple[ir.Expr, ir.Expr]] = {}

    def of(self, name: str) -> tuple[ir.Expr, ir.Expr]:
        if name not in self.known:
            zero = ir.const(0, "int64")
            self.known[name] = (zero, zero)  # for recursive calls
            plan = self.plans.get(name.removesuffix(".recursive"))
            peak, task = self._of(self.lowered[name], self.compiled[name])
            for more in plan.late.values() if plan is not None else ():
                peak = peak + more
            self.known[name] = _at_most(peak, plan), _at_most(task, plan)
        return self.known[name]

    def _of(self, func: ir.PrimFunc, compiled: ir.PrimFunc) -> tuple[ir.Expr, ir.Expr]:
        analyzer, own = _analyzer(func), scratch_of(compiled, set(_numbers(compiled)))
        inner: dict[ir.Expr, None] = {analyzer.simplify(own.task): None}
        tasks = dict(inner)
        for call in host_calls(func):
            callee = call.args[0].value if isinstance(call.args[0], ir.StringImm) else ""
            if call.op != "call_global" or not isinstance(self.lowered[callee], ir.PrimFunc):
                continue
            formal = _numbers(self.lowered[callee])
            given = dict(zip(formal, call.args[len(call.args) - len(formal) :], strict=True))
            peak, task = (analyzer.simplify(ir.substitute(e, given)) for e in self.of(callee))
            inner[peak] = tasks[task] = None
        return own.shared + _largest(inner, analyzer), _largest(tasks, analyzer)


def _at_most(size: ir.Expr, plan: ArenaPlan | None) -> ir.Expr:
    """A size with sizes known only at run time at their largest; itself if one has no limit."""
    most = None if plan is None else plan.sizes.largest(size)
    return size if most is None else most


def _numbers(func: ir.PrimFunc) -> tuple[ir.Var, ...]:
    convention = calling_convention(func)
    return (*convention.scalars, *convention.symbols)


def _largest(sizes: Mapping[ir.Expr, None], analyzer: Analyzer) -> ir.Expr:
    """The maximum of sizes, without those proved to be at most another one."""
    kept: list[ir.Expr] = [ir.const(0, "int64")]
    for size in sizes:
        if not any(analyzer.prove(ir.compare(ir.LE, size, other)) for other in kept):
            kept = [k for k in kept if not analyzer.prove(ir.compare(ir.LE, k, size))] + [size]
    result = kept[0]
    for size in kept[1:]:
        result = ir.maximum(result, size)
    return result


def _analyzer(host: ir.PrimFunc) -> Analyzer:
    lower, upper = host.attrs.get(LOWER_BOUND, {}), host.attrs.get(UPPER_BOUND, {})
    analyzer = Analyzer()
    for buffer in host.buffers:
        for var in (v for dim in buffer.shape for v in ir.free_vars(dim)):
            analyzer.bind_bounds(var, lower.get(var.name, 0), upper.get(var.name))
    return analyzer
