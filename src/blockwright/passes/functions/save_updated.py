"""Save values that an inlined function overwrites in place and its caller reads afterwards.

A call is a function of values: after `a = cls.update(t)` the caller may read `t`. Once `update` is
inlined, `t` would be used after it has been overwritten. Then something else is overwritten::

    a = R.call_tir_inplace(cls.inc, (t,), …)        t_1 = R.squeeze(t, axis=())
    b = R.add(a, t)                                 a = R.call_tir_inplace(cls.inc, (t_1,), …)
                                                    b = R.add(a, t)

A parameter is overwritten under its own name, so that its caller sees it; what reads it later reads
another value. Both values are views, of which `protect_updates` copies what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from blockwright import ir
from blockwright.graph.updates import Memories, overwritten_arguments, reads
from blockwright.passes.rewrite import Replace

_Read = ir.GraphVar | ir.TupleGetItem


def save_updated(
    body: ir.SeqExpr, params: Sequence[ir.GraphVar], unused: Callable[[str], str]
) -> ir.SeqExpr:
    """A sequence that reads no value after it has been overwritten.

    Args:
        params: of the function that the sequence belongs to.
        unused: makes a name that is not taken from a similar one.
    """
    bindings = [binding for block in body.blocks for binding in block.bindings]
    if not any(overwritten_arguments(_value(binding)) for binding in bindings):
        return body
    saver = _Saver(bindings, body.body, params, unused)
    saver.run()
    return ir.SeqExpr((ir.BindingBlock(tuple(saver.done)),), saver.result)


def _value(binding: ir.Binding) -> ir.GraphExpr:
    assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
    return binding.value


def _overwritten(call: ir.GraphExpr, result: int) -> ir.GraphExpr | None:
    """What a result of a call overwrites."""
    place = overwritten_arguments(call).get(result)
    packed = call.args[1] if place is not None and isinstance(call, ir.GraphCall) else None
    return packed.fields[place] if isinstance(packed, ir.TupleExpr) and place is not None else None


def _result_count(value: ir.GraphExpr) -> int:
    return len(value.out_info) if isinstance(value, ir.GraphCall) else 0


class _Saver:
    """Rewrites one sequence.

    Attributes:
        done: the bindings so far, with those that were added; rest: those that follow.
        result: the value of the sequence.
    """

    def __init__(
        self,
        bindings: Sequence[ir.Binding],
        result: ir.GraphExpr,
        params: Sequence[ir.GraphVar],
        unused: Callable[[str], str],
    ) -> None:
        self.rest: list[ir.Binding] = [*bindings]
        self.result = result
        self.done: list[ir.Binding] = []
        self._params = {p for p in params if isinstance(p.info, ir.TensorInfo)}
        self._unused = unused
        self._memories = Memories()
        self._values: dict[ir.GraphVar, ir.GraphExpr] = {}

    def run(self) -> None:
        while self.rest:
            binding = self.rest.pop(0)
            value = _value(binding)
            for place in sorted(set(overwritten_arguments(value).values())):
                value = self._protected(value, place)
            self._emit(binding.replace(value=value))

    def _emit(self, binding: ir.Binding) -> None:
        assert isinstance(binding, (ir.VarBinding, ir.MatchCast))
        self._memories.bind(binding.var, binding.value)
        self._values[binding.var] = binding.value
        self.done.append(binding)

    def _protected(self, value: ir.GraphExpr, place: int) -> ir.GraphExpr:
        """The in-place call, rewritten so that later reads see the value before the update."""
        assert isinstance(value, ir.GraphCall)
        packed = value.args[1]
        if not isinstance(packed, ir.TupleExpr) or place >= len(packed.fields):
            return value
        target = packed.fields[place]
        memory = set(self._memories.parts(target))
        later = [_value(binding) for binding in self.rest]
        read = [r for v in (*later, self.result) for r in reads(v) if self._holds(r, memory)]
        if not read or not isinstance(target, (ir.GraphVar, ir.TupleGetItem)):
            return value
        if self._source(target) in self._params:
            self._rename({r: self._saved(r, memory) for r in dict.fromkeys(read)})
            return value
        fields = list(packed.fields)
        fields[place] = self._view(target)
        return value.replace(
            args=(value.args[0], packed.replace(fields=tuple(fields)), *value.args[2:])
        )

    def _holds(self, value: ir.GraphExpr, memory: Container[object]) -> bool:
        return any(part in memory for part in self._memories.parts(value))

    def _source(self, value: ir.GraphExpr) -> ir.GraphExpr:
        """The expression whose value this is, under whatever name."""
        known: ir.GraphExpr | None = value
        while known is not None:
            value, known = known, self._behind(known)
        return value

    def _behind(self, value: ir.GraphExpr) -> ir.GraphExpr | None:
        """The definition of a variable or field; for a result of an in-place call, its operand."""
        if isinstance(value, ir.GraphVar):
            return self._values.get(value)
        if isinstance(value, ir.TupleGetItem):
            whole = self._source(value.tuple_value)
            if isinstance(whole, ir.TupleExpr):
                return whole.fields[value.index]
            return _overwritten(whole, value.index)
        return None if _result_count(value) > 1 else _overwritten(value, 0)

    def _saved(self, value: ir.GraphExpr, memory: Container[object]) -> ir.GraphExpr:
        """The value under a name that holds none of this memory."""
        while isinstance(value, ir.TupleGetItem) and isinstance(value.tuple_value, ir.TupleExpr):
            value = value.tuple_value.fields[value.index]
        if not self._holds(value, memory):
            return value
        source = self._source(value)
        if isinstance(source, ir.GraphFunction):
            return value  # its uses stay, and are reported
        fields = source.fields if isinstance(source, ir.TupleExpr) else ()
        if _result_count(source) > 1:
            fields = [ir.TupleGetItem(value, k) for k in range(_result_count(source))]
        if not fields:
            return self._view(value)
        saved = tuple(self._saved(field, memory) for field in fields)
        return self._named(value, ir.TupleExpr(saved))

    def _view(self, value: ir.GraphExpr) -> ir.GraphVar:
        return self._named(value, ir.GraphCall(ir.OpRef("squeeze"), (value,), {"axis": ()}))

    def _named(self, like: ir.GraphExpr, value: ir.GraphExpr) -> ir.GraphVar:
        name = next((v.name for v in ir.collect(like, ir.GraphVar)), "value")
        var = ir.GraphVar(self._unused(name), info=like.info)
        self._emit(ir.VarBinding(var, value))
        return var

    def _rename(self, names: dict[ir.Node, ir.Node]) -> None:
        """Replace values in what follows."""
        replace = Replace(names)
        self.rest = [binding.replace(value=replace(_value(binding))) for binding in self.rest]
        self.result = replace(self.result)
