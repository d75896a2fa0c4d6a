"""Deduce the annotation of an expression from the annotations of its operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.devices import devices_in, on_device
from blockwright.graph.loads import LOADS, deduce_load
from blockwright.graph.loops import LOOPS, deduce_loop
from blockwright.graph.relate import contradicts, implied, info_text
from blockwright.graph.tir_calls import deduce_tir_call
from blockwright.graph.unify import SymbolBinding
from blockwright.ops.attribute_kinds import check_attribute
from blockwright.ops.implementation import ATTRIBUTE, check_implementation
from blockwright.ops.row import REQUIRED, OpContext, OpRow, SizeCondition
from blockwright.ops.table import OPERATORS
from blockwright.support import BlockwrightError, GraphError
from blockwright.support.former_names import replacement_of_attribute

# Graph-level operators whose result annotation is stated by the call.
STATED = frozenset(
    {"call_tir", "call_tir_inplace", "call_dps_library", "call_packed", "call_pure_packed",
     "invoke_closure", "make_closure"}
)  # fmt: skip
_TIR_CALLS = ("call_tir", "call_tir_inplace")
_ANY_RESULT = ("call_packed", "call_pure_packed", "invoke_closure")


def function_info(function: ir.GraphFunction) -> ir.CallableInfo:
    """The annotation of a function used as a value."""
    params = tuple(p.info or ir.ObjectInfo() for p in function.params)
    ret = function.ret_info or function.body.info or ir.ObjectInfo()
    return ir.CallableInfo(params, ret, function.pure)


def deduce_call(
    call: ir.GraphCall,
    analyzer: Analyzer,
    module: ir.IRModule | None = None,
    infos: Sequence[ir.Info] | None = None,
    callee: ir.CallableInfo | None = None,
    outer: Iterable[ir.Var] = (),
) -> ir.Info:
    """Deduce the result annotation of a call; raises GraphError if the call is invalid.

    Args:
        infos: annotations of the arguments; by default those attached to the arguments.
        callee: the signature of the callee, if the caller knows a more precise one.
        outer: symbols of the enclosing functions, which a local function shares with its caller.
    """
    outer = frozenset(outer)
    if isinstance(call.op, ir.OpRef):
        device = _one_device(call, infos)
        if call.op.name == "invoke_closure":
            return _invoked(call, analyzer, infos, outer)
        result = _operator(call, call.op.name, analyzer, module, infos, outer)
        return result if call.op.name in STATED else on_device(result, device)
    if isinstance(call.op, ir.ExternFunc):
        return _stated(call)
    name = getattr(call.op, "name", "function")
    callee = callee or _callee(call.op, module)
    if callee is None:
        return _stated(call) if call.out_info else ir.ObjectInfo()
    shared = () if isinstance(call.op, ir.GlobalVar) else outer
    binding = SymbolBinding(analyzer, name, shared, outer)
    if callee.params is not None:
        if len(callee.params) != len(call.args):
            raise GraphError(
                f"{name} takes {len(callee.params)} arguments, got {len(call.args)}", code="BW403"
            )
        given = [a.info for a in call.args] if infos is None else infos
        for param, info in zip(callee.params, given, strict=True):
            binding.match(param, info)
    return binding.result(callee.ret)


def _one_device(call: ir.GraphCall, infos: Sequence[ir.Info | None] | None) -> str:
    """The device of the tensor operands and stated results; "" if none is known.

    Raises: GraphError BW401 if there are several.
    """
    known = [a.info for a in call.args] if infos is None else infos
    name = call.op.name if isinstance(call.op, ir.OpRef) else "the function"
    stated = () if name in _ANY_RESULT else call.out_info
    result = devices_in([*known, *stated])
    if len(result) > 1:
        raise GraphError(
            f"{name}: its arguments are on different devices: {', '.join(result)}",
            code="BW401",
            help=f'copy one of them: R.to_vdevice(x, "{result[0]}")',
        )
    return result[0] if result else ""


def _callee(op: ir.GraphExpr, module: ir.IRModule | None) -> ir.CallableInfo | None:
    if isinstance(op, ir.GlobalVar) and module is not None:
        if op.name not in module:
            raise GraphError(f"no function {op.name!r} in the module", code="BW415")
        target = module[op.name]
        if isinstance(target, ir.GraphFunction):
            return function_info(target)
        raise GraphError(
            f"{op.name} is a tensor program, not a graph function",
            code="BW415",
            help=f"write R.call_tir(cls.{op.name}, (…), out_sinfo=…)",
        )
    if isinstance(op.info, ir.CallableInfo):
        return op.info
    if isinstance(op, ir.GraphFunction):
        return function_info(op)
    return None


def _stated(call: ir.GraphCall) -> ir.Info:
    if not call.out_info:
        raise GraphError(
            "the call does not state its result annotation",
            code="BW404",
            help="pass out_sinfo=R.Tensor(...)",
        )
    return call.out_info[0] if len(call.out_info) == 1 else ir.TupleInfo(call.out_info)


def _allocated(call: ir.GraphCall, name: str) -> ir.Info:
    """The stated results, for which the caller allocates memory.

    Raises: GraphError BW407 for one that is not a tensor of known shape and type.
    """
    result = _stated(call)
    for info in call.out_info:
        if not isinstance(info, ir.TensorInfo) or info.shape is None or info.dtype is None:
            raise GraphError(
                f"{name}: out_sinfo is {info_text(info)}, for which no memory can be allocated",
                code="BW407",
                help='state shape and type: out_sinfo=R.Tensor((n, 4), "float32")',
            )
    return result


def _operator(
    call: ir.GraphCall,
    name: str,
    analyzer: Analyzer,
    module: ir.IRModule | None,
    infos: Sequence[ir.Info] | None,
    outer: frozenset[ir.Var],
) -> ir.Info:
    if name in _TIR_CALLS and module is not None:
        known = _argument_infos(call.args[1:]) if infos is None else infos[1:]
        return deduce_tir_call(call, (ir.ObjectInfo(), *known), module, analyzer)
    if name == "make_closure":
        return _closure(call, analyzer, module, infos, outer)
    if name in LOOPS:
        return _loop(call, analyzer, module, infos)
    if name in _ANY_RESULT and not call.out_info:
        return ir.ObjectInfo()
    if name in STATED:
        return _allocated(call, name) if name == "call_dps_library" else _stated(call)
    infos = _argument_infos(call.args) if infos is None else infos
    if name == "shape_of":
        if len(infos) != 1 or not isinstance(infos[0], ir.TensorInfo):
            raise GraphError("shape_of takes one tensor", code="BW401")
        info = infos[0]
        return ir.ShapeInfo(info.shape, -1 if info.shape is not None else info.rank)
    if name in LOADS:
        return deduce_load(name, infos)
    row = OPERATORS.get(name)
    if row is None:
        raise GraphError(
            f"unknown operator {name!r}",
            code="BW405",
            help="operators are rows of blockwright.ops.table",
        )
    return _of_row(row, call, infos, OpContext(name, analyzer, infos))


def size_conditions(
    call: ir.GraphCall, analyzer: Analyzer, infos: Sequence[ir.Info] | None = None
) -> list[SizeCondition]:
    """What an operator requires of the sizes of its operands and does not prove.

    Args:
        infos: annotations of the operands, if these have none.
    """
    row = OPERATORS.get(call.op.name) if isinstance(call.op, ir.OpRef) else None
    if row is None or not row.conditional:
        return []
    infos = _argument_infos(call.args) if infos is None else infos
    ctx = OpContext(row.name, analyzer, infos)
    _of_row(row, call, infos, ctx)
    return ctx.unproved


def _of_row(row: OpRow, call: ir.GraphCall, infos: Sequence[ir.Info], ctx: OpContext) -> ir.Info:
    name = row.name
    _check_arguments(row, call, infos)
    attrs = {**row.attrs, **call.attrs}
    try:
        result = row.deduce(ctx, infos, attrs)
        check_implementation(row, ctx, [i for i in infos if isinstance(i, ir.TensorInfo)], attrs)
        return result
    except BlockwrightError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        # Attributes are arbitrary Python values; one of the wrong kind may fail in any rule.
        given = ", ".join(f"{k}={v!r}" for k, v in call.attrs.items()) or "no attributes"
        raise GraphError(
            f"{name}: does not take these arguments with {given}: {error}", code="BW401"
        ) from error


def _check_arguments(row: OpRow, call: ir.GraphCall, infos: Sequence[ir.Info]) -> None:
    """Check the number of arguments, and the names and kinds of attributes."""
    smallest = sum(not name.endswith(("?", "*")) for name in row.args)
    largest = None if any(name.endswith("*") for name in row.args) else len(row.args)
    if len(infos) < smallest or (largest is not None and len(infos) > largest):
        raise GraphError(
            f"{row.name}: takes ({', '.join(row.args)}), got {len(infos)} arguments", code="BW401"
        )
    known = [*row.attrs, *([ATTRIBUTE] if row.implementations else [])]
    for name, value in call.attrs.items():
        if name not in known:
            raise GraphError(
                f"{row.name}: has no attribute {name!r}",
                code="BW401",
                help=replacement_of_attribute(row.name, name, value)
                or f"its attributes: {', '.join(known) or 'none'}",
            )
        if name != ATTRIBUTE:  # which `check_implementation` checks
            check_attribute(row, name, value)
    for name, default in row.attrs.items():
        if default is REQUIRED and name not in call.attrs:
            raise GraphError(f"{row.name}: needs the attribute {name!r}", code="BW401")


def _loop(
    call: ir.GraphCall,
    analyzer: Analyzer,
    module: ir.IRModule | None,
    infos: Sequence[ir.Info] | None,
) -> ir.Info:
    named = [a for a in call.args if isinstance(a, ir.GlobalVar)]
    callees = infos[: len(named)] if infos is not None else [_callee(a, module) for a in named]
    given = infos[len(named) :] if infos is not None else _argument_infos(call.args[len(named) :])
    return deduce_loop(call, callees, given, analyzer)


def _closure(
    call: ir.GraphCall,
    analyzer: Analyzer,
    module: ir.IRModule | None,
    infos: Sequence[ir.Info] | None,
    outer: frozenset[ir.Var],
) -> ir.Info:
    """The signature of a function without its last parameters, which the captured values give."""
    callee = infos[0] if infos is not None else _callee(call.args[0], module)
    whole = infos[1] if infos is not None else call.args[1].info
    if not isinstance(callee, ir.CallableInfo) or callee.params is None:
        return ir.ObjectInfo()
    given = whole.fields if isinstance(whole, ir.TupleInfo) else ()
    count = len(callee.params) - len(given)
    if count < 0:
        raise GraphError(
            f"make_closure: {len(given)} values for a function of {len(callee.params)} parameters",
            code="BW403",
        )
    name = getattr(call.args[0], "name", "function")
    binding = SymbolBinding(analyzer, name, scope=outer)
    for param, info in zip(callee.params[count:], given, strict=True):
        binding.match(param, info)
    own = ir.CallableInfo(callee.params[:count], callee.ret, callee.pure)
    return binding.result(own)


def _invoked(
    call: ir.GraphCall,
    analyzer: Analyzer,
    infos: Sequence[ir.Info] | None,
    outer: frozenset[ir.Var],
) -> ir.Info:
    """The result of a function value: what its signature implies, or what the call states.

    What the call states and the signature does not imply is checked when the function has returned.

    Raises: GraphError: BW403 wrong number of arguments, BW408 the function never returns a value
        that the call states.
    """
    callee, whole = _argument_infos(call.args) if infos is None else infos
    known = call.out_info[0] if len(call.out_info) == 1 else ir.TupleInfo(call.out_info)
    stated = known if call.out_info else ir.ObjectInfo()
    if not isinstance(callee, ir.CallableInfo):
        return stated
    given = whole.fields if isinstance(whole, ir.TupleInfo) else (whole,)
    if callee.params is not None:
        if len(callee.params) != len(given):
            raise GraphError(
                f"the function takes {len(callee.params)} arguments, got {len(given)}", code="BW403"
            )
        values = [info for info in given if not isinstance(info, ir.CallableInfo)]
        scope = (*outer, *(v for info in values for v in ir.collect(info, ir.Var)))
        binding = SymbolBinding(analyzer, "invoke_closure", scope, outer)
        for param, info in zip(callee.params, given, strict=True):
            binding.match(param, info)
        found = binding.result(callee.ret)
    else:
        found = callee.ret
    if implied(stated, found, analyzer):
        return found
    if contradicts(stated, found, analyzer):
        raise GraphError(
            f"invoke_closure: the call states {info_text(stated)}, but the function returns "
            f"{info_text(found)}",
            code="BW408",
            help="correct sinfo_args, or leave it out: the signature of the function is known",
        )
    return stated


def _argument_infos(args: Sequence[ir.GraphExpr]) -> Sequence[ir.Info]:
    out: list[ir.Info] = []
    for position, arg in enumerate(args):
        if arg.info is None:
            raise GraphError(f"argument {position} has no annotation yet", code="BW406")
        out.append(arg.info)
    return out
