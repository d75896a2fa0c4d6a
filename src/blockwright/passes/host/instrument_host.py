"""InstrumentHost: insert clock readings between the calls of a host program.

Before:  call_global("f", …); call_global("g", …)
After:   ticks[3] = clock(); call_global("f", …); ticks[4] = clock(); call_global("g", …); …

`ticks` becomes an additional result; the entry (`codegen.abi`) fills its first elements. Kernels
are unchanged, so all of them come from the object cache.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.codegen.abi.entry import ENTRY_READINGS, ENTRY_TICKS
from blockwright.ir.attributes import NUM_OUTPUTS

_CALLS = frozenset({"call_global", "call_packed", "call_object"})


class _Timed(ir.Mutator):
    """Inserts a clock reading after every call, and one before the first."""

    def __init__(self, ticks: ir.Buffer) -> None:
        super().__init__()
        self.ticks = ticks
        self.done = ENTRY_READINGS

    def reading(self, place: int | None = None) -> ir.Stmt:
        """Build the statement that stores the clock in an element, by default the next one."""
        clock = ir.Call("call_extern", (ir.StringImm("bw_clock"),), ir.dtype_of("int64"))
        return ir.BufferStore(self.ticks, clock, (ir.const(place or self.done, "int64"),))

    def rewrite_IfThenElse(self, node: ir.IfThenElse) -> ir.Stmt:
        """Every branch also stores the readings of the other: its calls take no time."""
        first = [] if self.done > ENTRY_READINGS else [self.reading()]
        start = self.done
        then = self(node.then_case)
        middle = self.done
        other = None if node.else_case is None else self(node.else_case)
        ours, theirs = self._skipped(start, middle), self._skipped(middle, self.done)
        if ours:
            other = ir.seq(ours if other is None else [*ours, other])
        then = ir.seq([then, *theirs])
        return ir.seq([*first, node.replace(then_case=then, else_case=other)])

    def _skipped(self, start: int, end: int) -> list[ir.Stmt]:
        """Readings of calls that are not made, those after `start` up to `end`."""
        return [self.reading(place) for place in range(start + 1, end + 1)]

    def rewrite_Evaluate(self, node: ir.Evaluate) -> ir.Stmt:
        if not isinstance(node.value, ir.Call) or node.value.op not in _CALLS:
            return node
        before = [] if self.done > ENTRY_READINGS else [self.reading()]
        self.done += 1
        return ir.seq([*before, node, self.reading()])

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        return self._as_one(node)

    def rewrite_While(self, node: ir.While) -> ir.Stmt:
        return self._as_one(node)

    def _as_one(self, loop: ir.Stmt) -> ir.Stmt:
        """A loop, which is timed as a whole."""
        if not _calls(loop):
            return loop
        before = [] if self.done > ENTRY_READINGS else [self.reading()]
        self.done += 1
        return ir.seq([*before, loop, self.reading()])


def _calls(node: ir.Node) -> list[ir.Call]:
    return [c for c in ir.collect(node, ir.Call) if c.op in _CALLS]


def timed_calls(host: ir.PrimFunc) -> list[ir.Call]:
    """The calls of a host program that are timed: the first one of a loop stands for all of it."""
    loops = [*ir.collect(host.body, ir.For), *ir.collect(host.body, ir.While)]
    later = {id(call) for loop in loops for call in _calls(loop)[1:]}
    return [call for call in _calls(host.body) if id(call) not in later]


def host_calls(host: ir.PrimFunc) -> list[ir.Call]:
    """All calls of a host program in order."""
    return _calls(host.body)


def instrument_host(host: ir.PrimFunc) -> ir.PrimFunc:
    """Add the result `ticks` to a host program: clock readings of the entry and around the calls.

    The int64 readings are those of the entry, one before the first call, and one after each call or
    loop.

    Arguments: `host`, a result of `lower_host`: its calls and loops form one sequence, in which the
        calls of a branch that is not taken take no time.
    """
    calls = timed_calls(host)
    size = ir.const(ENTRY_READINGS + 1 + len(calls), "int64")
    ticks = ir.Buffer("ticks", ir.dtype_of("int64"), (size,))
    handle = ir.Var("ticks_handle", ir.dtype_of("handle"))
    attrs = {**host.attrs, NUM_OUTPUTS: int(host.attrs[NUM_OUTPUTS]) + 1, ENTRY_TICKS: True}
    buffers = (*host.buffer_map, (handle, ticks))
    timed = _Timed(ticks)
    body = timed(host.body) if calls else ir.seq([timed.reading(), host.body])
    return ir.PrimFunc((*host.params, handle), buffers, body, attrs)
