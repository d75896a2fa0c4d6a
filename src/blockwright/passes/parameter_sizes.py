"""Symbols for the sizes of parameters of known rank and unknown shape."""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir
from blockwright.passes.rewrite import unique_name


def without_shape(info: ir.Info | None) -> bool:
    """Whether an annotation has a tensor, or a shape, of known rank and unknown sizes."""
    if isinstance(info, ir.TupleInfo):
        return any(map(without_shape, info.fields))
    if isinstance(info, ir.ShapeInfo):
        return info.values is None and info.rank >= 0
    return isinstance(info, ir.TensorInfo) and info.shape is None and info.rank >= 0


def shaped_parameters(
    function: ir.GraphFunction, symbols: set[str], *, is_value: bool
) -> dict[ir.GraphVar, ir.GraphVar]:
    """Parameter → the parameter with a known shape.

    Arguments: `symbols` are names that are taken. `is_value`: the function is also a value, whose
    annotation says that it takes all shapes; what its body asserts is then checked in the body.
    """
    known = {s.name: s for param in function.params for s in ir.parameter_symbols(param.info)}
    result: dict[ir.GraphVar, ir.GraphVar] = {}
    for param in function.params:
        result[param] = param
        if without_shape(param.info):
            info = _stated(param, function, known, is_value)
            info = info or _shaped(param.info, param.name, symbols)
            known |= {s.name: s for s in ir.parameter_symbols(info)}
            result[param] = ir.GraphVar(param.name, info=info, span=param.span)
    return result


def _shaped(info: ir.Info | None, name: str, symbols: set[str]) -> ir.Info | None:
    """An annotation with new symbols for unknown sizes."""
    if isinstance(info, ir.TupleInfo):
        fields = (_shaped(f, f"{name}_{k}", symbols) for k, f in enumerate(info.fields))
        return ir.TupleInfo(tuple(f or ir.ObjectInfo() for f in fields))
    if not isinstance(info, (ir.TensorInfo, ir.ShapeInfo)) or not without_shape(info):
        return info
    names = (unique_name(f"{name}_{axis}", symbols) for axis in range(info.rank))
    return _sized(info, tuple(ir.var(each, "int64") for each in names))


def _sized(
    info: ir.TensorInfo | ir.ShapeInfo, sizes: tuple[ir.Expr, ...]
) -> ir.TensorInfo | ir.ShapeInfo:
    """The annotation with known sizes."""
    if isinstance(info, ir.ShapeInfo):
        return ir.ShapeInfo(sizes, len(sizes))
    return ir.TensorInfo(sizes, info.dtype, device=info.device)


def _stated(
    param: ir.GraphVar, function: ir.GraphFunction, known: Mapping[str, ir.Var], is_value: bool
) -> ir.TensorInfo | ir.ShapeInfo | None:
    """The annotation of a parameter of which the function itself states the shape in a cast.

    The call then checks it. A cast of the parameter or of its `shape_of` counts, unless a symbol of
    another parameter has the name of one of its symbols: the cast may come from an inlined
    function. In a function that is a value, the cast must only name the sizes.
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
        if not isinstance(info, (ir.TensorInfo, ir.ShapeInfo)):
            continue
        if dims is not None and len(dims) == info.rank:
            found = _sized(info, dims)
            inside = {v for dim in dims for v in ir.free_vars(dim)}
            apart = all(known.get(v.name, v) is v for v in inside)
            names = {dim.name for dim in dims if isinstance(dim, ir.Var)}
            only_names = len(names) == len(dims) and names.isdisjoint(known)
            if (
                apart
                and inside <= set(ir.parameter_symbols(found))
                and (only_names or not is_value)
            ):
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
