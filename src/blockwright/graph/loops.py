"""Loops as graph operators: over the first axis of tensors, and while a condition holds.

    R.scan(cls.step, h, xs, w, carried=1, over=1)

carries `h` through calls of `step` for each element of `xs`; `w` is the same in every call:

    for i in range(n):                       # the first dimension of xs
        h, y = step(h, xs[i], w)
        ys[i] = y
    (h, ys)                                  # the result

With `reverse=True` it begins at the last element. `ys` has the order of `xs` either way.

    R.while_loop(cls.holds, cls.step, x, w, carried=1)

calls `x = step(x, w)` as long as `holds(x, w)` is true, or with `until=True` until it is; the
result is `(x,)`. The passes make it of functions that call themselves last (see
`passes.host.tail_calls`). With `memory=True`, which passes set, a loop has further results: memory
for a second set of carried values (see `passes.host.loop_memory`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.relate import implied, info_text
from blockwright.graph.unify import SymbolBinding
from blockwright.support import GraphError

LOOPS = frozenset({"scan", "while_loop"})
"""Names of the operators."""
MAX_STEPS = 1 << 22
"""Steps of a `while_loop`; more are an error, so that endless loops end."""
_FUNCTIONS = {"scan": 1, "while_loop": 2}


class Loop(msgspec.Struct, frozen=True, eq=False):
    """The parts of a call of a loop operator.

    Attributes:
        functions: names of the functions that it calls.
        carried, over, others: its operands; only a `scan` has operands `over`.
        reverse: whether a `scan` begins at the last element.
        until: whether a `while_loop` goes on if the condition is false.
        memory: whether it has further results, as memory for a second set of carried values.
    """

    functions: tuple[str, ...]
    carried: tuple[ir.GraphExpr, ...]
    over: tuple[ir.GraphExpr, ...]
    others: tuple[ir.GraphExpr, ...]
    reverse: bool
    until: bool
    memory: bool

    @property
    def step(self) -> str:
        return self.functions[-1]

    @property
    def endless(self) -> str:
        """The message of a `while_loop` that takes too many steps."""
        name = self.functions[0].removesuffix("_holds")
        return f"BW723: {name} calls itself more than {MAX_STEPS} times"


def is_loop(value: ir.Node | None) -> bool:
    """Whether an expression is a call of one of the operators."""
    op = value.op if isinstance(value, ir.GraphCall) else None
    return isinstance(op, ir.OpRef) and op.name in LOOPS


def loop_parts(call: ir.GraphCall) -> Loop:
    """The parts of a call. Raises: GraphError BW401, BW415 for operands that it cannot have."""
    assert isinstance(call.op, ir.OpRef)
    name, first = call.op.name, _FUNCTIONS[call.op.name]
    functions = call.args[:first]
    if len(functions) < first or not all(isinstance(f, ir.GlobalVar) for f in functions):
        raise GraphError(
            f"{name}: the first {'argument is' if first == 1 else 'arguments are'} not functions "
            "of the module",
            code="BW415",
            help=f"write R.{name}(cls.step, …) with a function of the module",
        )
    args = call.args[first:]
    carried, over = (_count(call, name, key, len(args)) for key in ("carried", "over"))
    known = {"carried", "memory", *(("over", "reverse") if name == "scan" else ("until",))}
    if call.attrs.keys() - known or (name == "scan" and not over) or carried + over > len(args):
        raise GraphError(
            f"{name} of {len(args)} values with {_said(call)}",
            code="BW401",
            help="pass carried, the number of values that the step changes, and over, the number "
            "of tensors whose elements it takes, at least 1"
            if name == "scan"
            else "pass carried, the number of values that the step changes",
        )
    names = tuple(f.name for f in functions if isinstance(f, ir.GlobalVar))
    return Loop(
        names,
        args[:carried],
        args[carried : carried + over],
        args[carried + over :],
        bool(call.attrs.get("reverse", False)),
        bool(call.attrs.get("until", False)),
        bool(call.attrs.get("memory", False)),
    )


def _said(call: ir.GraphCall) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in call.attrs.items()) or "no attributes"


def _count(call: ir.GraphCall, name: str, key: str, most: int) -> int:
    value = call.attrs.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise GraphError(
            f"{name}: {key}={value!r} is not a number of its {most} values",
            code="BW401",
            help="pass the number of values of this kind",
        )
    return value


def deduce_loop(
    call: ir.GraphCall,
    callees: Sequence[ir.Info | None],
    infos: Sequence[ir.Info],
    analyzer: Analyzer,
) -> ir.Info:
    """The annotation of the result.

    Arguments: `callees` are the signatures of the functions, `infos` the annotations of the other
        arguments.
    Raises: GraphError BW401, BW403, BW415 for functions or operands that do not fit.
    """
    parts = loop_parts(call)
    name = call.op.name if isinstance(call.op, ir.OpRef) else ""
    carried, over = len(parts.carried), len(parts.over)
    for position, info in enumerate(infos[:carried]):
        _require_carried(name, position, info)
    for position, info in enumerate(infos[carried + over :]):
        _require_flat(name, carried + over + position, info)
    elements: list[ir.Info] = []
    length: ir.Expr | None = None
    for info in infos[carried : carried + over]:
        first, element = _element(name, info)
        if length is not None and not analyzer.prove_equal(length, first):
            raise GraphError(
                f"{name}: the tensors that it runs over have {length!r} and {first!r} elements",
                code="BW401",
                help="cut them to one length",
            )
        length = first if length is None else length
        elements.append(element)
    given = [*infos[:carried], *elements, *infos[carried + over :]]
    results = [
        _result(name, called, callee, given, analyzer)
        for called, callee in zip(parts.functions, callees, strict=True)
    ]
    fields = results[-1].fields if isinstance(results[-1], ir.TupleInfo) else (results[-1],)
    if name == "while_loop" and not _is_flag(results[0]):
        raise GraphError(
            f"while_loop: {parts.functions[0]} returns {results[0]!r}",
            code="BW401",
            help='return a tensor R.Tensor((), "bool")',
        )
    for position, stated in enumerate(infos[:carried]):
        found = fields[position] if position < len(fields) else None
        if found is None or not implied(stated, found, analyzer):
            raise GraphError(
                f"{name}: {parts.step} takes {stated!r} as value {position} that it carries, and "
                f"returns {found!r}",
                code="BW401",
                help="return the carried values first, in their order, types and sizes",
            )
    rows = [_row(name, f) for f in fields[carried:]]
    if name == "while_loop" and rows:
        raise GraphError(
            f"while_loop: {parts.step} returns {len(fields)} values for {carried}",
            code="BW401",
            help="return the carried values only",
        )
    stacked = [
        ir.TensorInfo((length, *(r.shape or ())), r.dtype, device=r.device)
        for r in rows
        if length is not None
    ]
    memory = memory_infos(name, infos[:carried]) if call.attrs.get("memory") else []
    return ir.TupleInfo((*infos[:carried], *stacked, *memory))


def _require_carried(name: str, position: int, info: ir.Info) -> None:
    """Raise unless a value can be carried, in memory of its own: GraphError BW401."""
    if not isinstance(info, ir.TensorInfo) or info.dtype is None:
        raise GraphError(
            f"{name}: carries tensors of a known type; value {position} is {info_text(info)}",
            code="BW401",
            help="carry the fields of a tuple one by one, and numbers as tensors",
        )


def _require_flat(name: str, position: int, info: ir.Info) -> None:
    """Raise for a tuple, whose fields have to be passed: GraphError BW401."""
    if isinstance(info, ir.TupleInfo):
        raise GraphError(
            f"{name}: value {position} is {info_text(info)}, a tuple",
            code="BW401",
            help="pass its fields one by one",
        )


def memory_infos(name: str, carried: Sequence[ir.Info]) -> list[ir.Info]:
    """The further results of a loop with memory: other carried values, and a condition."""
    condition = ir.TensorInfo((), ir.dtype_of("bool"))
    return [*carried, condition] if name == "while_loop" else [*carried]


def _is_flag(info: ir.Info) -> bool:
    return (
        isinstance(info, ir.TensorInfo) and info.shape == () and info.dtype is ir.dtype_of("bool")
    )


def _result(
    name: str, called: str, callee: ir.Info | None, given: Sequence[ir.Info], analyzer: Analyzer
) -> ir.Info:
    """What one of the functions returns in a call with these arguments."""
    if not isinstance(callee, ir.CallableInfo) or callee.params is None:
        raise GraphError(
            f"{name}: {called} is not a graph function of the module",
            code="BW415",
            help="pass a function of the module with annotated parameters",
        )
    if not callee.pure:
        raise GraphError(
            f"{name}: {called} has effects", code="BW415", help="use a function without effects"
        )
    if len(callee.params) != len(given):
        raise GraphError(
            f"{name}: {called} takes {len(callee.params)} values, got {len(given)}", code="BW403"
        )
    binding = SymbolBinding(analyzer, called)
    for param, info in zip(callee.params, given, strict=True):
        binding.match(param, info)
    return binding.result(callee.ret)


def _element(name: str, info: ir.Info) -> tuple[ir.Expr, ir.TensorInfo]:
    """The length of a tensor that a loop runs over, and the annotation of an element."""
    if not isinstance(info, ir.TensorInfo) or not info.shape or _is_packed(info):
        raise GraphError(
            f"{name}: runs over the first axis of tensors, not of {info!r}",
            code="BW401",
            help="pass a tensor with an axis of known size, and elements of whole bytes",
        )
    first, *rest = info.shape
    return first, ir.TensorInfo(tuple(rest), info.dtype, device=info.device)


def _row(name: str, info: ir.Info) -> ir.TensorInfo:
    if not isinstance(info, ir.TensorInfo) or info.shape is None or _is_packed(info):
        raise GraphError(
            f"{name}: stacks tensors, not {info!r}",
            code="BW401",
            help="return tensors of known sizes, and of elements of whole bytes",
        )
    return info


def _is_packed(info: ir.TensorInfo) -> bool:
    return info.dtype is None or (info.dtype.bits % 8 != 0 and not info.dtype.is_bool)
