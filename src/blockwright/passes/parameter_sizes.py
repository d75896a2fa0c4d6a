"""Symbols for the sizes of parameters of known rank and unknown shape."""

from __future__ import annotations

from blockwright import ir
from blockwright.passes.rewrite import unique_name


def without_shape(info: ir.Info | None) -> bool:
    """Whether an annotation has a tensor of known rank and unknown shape."""
    if isinstance(info, ir.TupleInfo):
        return any(map(without_shape, info.fields))
    return isinstance(info, ir.TensorInfo) and info.shape is None and info.rank >= 0


def shaped_parameters(
    function: ir.GraphFunction, symbols: set[str]
) -> dict[ir.GraphVar, ir.GraphVar]:
    """Parameter → the parameter with a known shape; `symbols` are names that are taken."""
    return {param: _parameter(param, function, symbols) for param in function.params}


def _parameter(param: ir.GraphVar, function: ir.GraphFunction, symbols: set[str]) -> ir.GraphVar:
    if not without_shape(param.info):
        return param
    stated = _stated(param, function)
    info = _shaped(param.info, param.name, symbols) if stated is None else stated
    return ir.GraphVar(param.name, info=info, span=param.span)


def _shaped(info: ir.Info | None, name: str, symbols: set[str]) -> ir.Info | None:
    """An annotation with new symbols for unknown sizes."""
    if isinstance(info, ir.TupleInfo):
        fields = (_shaped(f, f"{name}_{k}", symbols) for k, f in enumerate(info.fields))
        return ir.TupleInfo(tuple(f or ir.ObjectInfo() for f in fields))
    if not isinstance(info, ir.TensorInfo) or not without_shape(info):
        return info
    names = (unique_name(f"{name}_{axis}", symbols) for axis in range(info.rank))
    shape = tuple(ir.var(each, "int64") for each in names)
    return ir.TensorInfo(shape, info.dtype, device=info.device)


def _stated(param: ir.GraphVar, function: ir.GraphFunction) -> ir.TensorInfo | None:
    """The annotation of a parameter of which the function itself states the shape in a cast.

    The call then checks it. A cast of the parameter or of its `shape_of` counts.
    """
    info, same = param.info, list[ir.GraphExpr]([param])
    for binding in function.bindings:
        if not isinstance(binding, (ir.VarBinding, ir.MatchCast)):
            continue
        if not any(binding.value is v for v in same) and not _is_shape_of(binding.value, param):
            continue
        if isinstance(binding, ir.VarBinding):
            same.append(binding.var)
            continue
        dims = _dims(binding.pattern)
        if isinstance(info, ir.TensorInfo) and dims is not None and len(dims) == info.rank:
            found = ir.TensorInfo(dims, info.dtype, device=info.device)
            inside = {v for dim in dims for v in ir.free_vars(dim)}
            if inside <= set(ir.parameter_symbols(found)):
                return found
    return None


def _is_shape_of(value: ir.GraphExpr, param: ir.GraphVar) -> bool:
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.OpRef):
        return False
    return value.op.name == "shape_of" and value.args[0] is param


def _dims(pattern: ir.Info) -> tuple[ir.Expr, ...] | None:
    if isinstance(pattern, ir.TensorInfo):
        return pattern.shape
    return pattern.values if isinstance(pattern, ir.ShapeInfo) else None
