"""TVMScript compatibility: aliases, node constructors, and unsupported names with replacements.

`REPLACED` maps every TVMScript name without equivalent in this dialect to a replacement; accessing
such a name raises an error with that text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.ir import Buffer, DType, Expr, IterType, IterVar, Range, Var, dtype_of
from blockwright.script.core import items_of, sequence_of
from blockwright.script.tir.expressions import And, Or, builtin, vector_load
from blockwright.script.tir.values import call_type, index_types, number_types, to_expr
from blockwright.support import ScriptError


class ReplacedName(ScriptError, AttributeError):
    """Access to a TVMScript name that this dialect does not support (BW115)."""


_FLAT = "index a buffer: A[i] and A[i] = x"
_ABI = "the build generates the calling convention; write T.call_packed(name, …)"
_STAGE = "it belongs to tensor expressions; write a block, or use blockwright.script.te"
REPLACED: dict[str, str] = {
    "load": _FLAT, "store": _FLAT, "Load": _FLAT, "Store": _FLAT,
    "realize": "write B = T.alloc_buffer(shape, dtype)",
    "ProducerLoad": _STAGE, "Reduce": _STAGE, "CommReducer": "write T.comm_reducer(f, identity)",
    "preflattened_buffer": "write the shape once, in T.match_buffer or T.Buffer",
    "buffer_var": 'memory is named by a buffer: write A = T.allocate(shape, "float32")',
    "index_map": "maps are arguments of schedule steps: sch.transform_layout(block, buffer, f)",
    "call_kernel": "a program calls programs of its module: cls.kernel(…)",
    "isnullptr": "a buffer parameter is never null; pass a flag as a scalar parameter",
    "CallEffectKind": "effects are facts of the operation table, blockwright.ir.OPS",
    "func_ret": "a program writes its results into buffers that are parameters",
    "void": "a call without a result has the type int32; leave the type out",
    "Tuple": "a program has no tuples; pass the values one by one",
    "tvm_tuple": "a program has no tuples; pass the values one by one",
    "lookup_param": "constants are module constants: T.constant_data(name), or parameters",
    **dict.fromkeys(
        ("tvm_stack_alloca", "tvm_stack_make_shape", "tvm_stack_make_array", "tvm_struct_get",
         "tvm_struct_set", "tvm_check_return", "tvm_throw_last_error", "call_cpacked",
         "call_packed_lowered", "call_cpacked_lowered", "tvm_call_cpacked",
         "tvm_call_packed_lowered", "tvm_call_cpacked_lowered", "anylist_getitem",
         "anylist_resetitem", "anylist_setitem_call_packed", "anylist_setitem_call_cpacked"),
        _ABI,
    ),
    "TVMBackendAllocWorkspace": "write A = T.allocate(shape, dtype); it ends with its scope",
    "TVMBackendFreeWorkspace": "an allocation ends with its scope",
    "thread_return": "write `return` in serial code, or guard the statements with `if`",
    "handle_add_byte_offset": "write T.address_of(A[i, j])",
    "float8_e4m3": "its type here is T.float8_e4m3fn",
    **dict.fromkeys(
        ("float8_e3m4", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn"),
        "floats of 8 bits are e4m3fn, e5m2 (also fnuz) and e8m0fnu; keep other codes in T.uint8",
    ),
}  # fmt: skip


def replaced(name: str) -> ReplacedName:
    """The error for a name in `REPLACED`."""
    return ReplacedName(f"T.{name} is not part of this dialect", code="BW115", help=REPLACED[name])


# ------------------------------------------------------------------------------------ constructors
def _comparison(name: str, cls: type[ir.CompareOp]) -> Callable[[Any, Any], Expr]:
    def apply(a: Any, b: Any) -> Expr:
        return cls(*ir.match_types(*number_types((a, b)), stated=True))

    apply.__name__ = apply.__qualname__ = name
    return apply


EQ, NE = _comparison("EQ", ir.EQ), _comparison("NE", ir.NE)
LT, LE = _comparison("LT", ir.LT), _comparison("LE", ir.LE)
GT, GE = _comparison("GT", ir.GT), _comparison("GE", ir.GE)


def all(*conditions: Any) -> Expr:
    """Conjunction of the conditions."""
    return And(*conditions)


def any(*conditions: Any) -> Expr:
    """Disjunction of the conditions."""
    return Or(*conditions)


def IntImm(dtype: str | DType, value: int) -> Expr:
    return ir.const(int(value), dtype)


def FloatImm(dtype: str | DType, value: float) -> Expr:
    return ir.const(float(value), dtype)


def BufferLoad(buffer: Buffer, indices: Sequence[Any]) -> Expr:
    return vector_load(buffer, items_of(indices))


def Call(dtype: str | DType, op: str, args: Sequence[Any]) -> Expr:
    """A builtin operation by name, with a list of arguments."""
    return ir.Call(op.removeprefix("tir."), tuple(map(to_expr, args)), call_type(dtype))


def Range_(begin: Any, end: Any = None) -> Range:
    """`T.Range(begin, end)`, or `T.Range(extent)`."""
    low, high = index_types((0, begin) if end is None else (begin, end))
    return Range(low, ir.sub(high, low))


_ITER_KINDS = {
    "DataPar": IterType.SPATIAL,
    "ThreadIndex": IterType.SPATIAL,
    "CommReduce": IterType.REDUCE,
    "Ordered": IterType.SCAN,
    "Opaque": IterType.OPAQUE,
}


class OpenAxis:
    """A thread axis without domain; the enclosing `T.attr` supplies the extent."""

    def __init__(self, var: Var, kind: IterType, tag: str) -> None:
        self.var, self.kind, self.tag = var, kind, tag

    def over(self, key: str, value: Any) -> IterVar:
        """The axis with the extent given as the value of an attribute."""
        if key not in ("thread_extent", "virtual_thread"):
            raise ScriptError(
                f"the axis {self.var.name} has no domain",
                code="BW107",
                help='write T.iter_var(v, (0, n), …), or "thread_extent" as the key of T.attr',
            )
        extent = to_expr(value, self.var.type)
        return IterVar(self.var, Range(ir.const(0, extent.dtype), extent), self.kind, self.tag)


def iter_var(
    var: Var, dom: Any, iter_type: str = "DataPar", thread_tag: str = ""
) -> IterVar | OpenAxis:
    """A thread axis or iterator, the node of `T.attr`, which supplies the extent for `dom` None."""
    if iter_type not in _ITER_KINDS:
        raise ScriptError(
            f"{iter_type!r} is not a kind of iterator",
            code="BW106",
            help=f"one of {', '.join(_ITER_KINDS)}",
        )
    if dom is None:
        return OpenAxis(var, _ITER_KINDS[iter_type], thread_tag)
    pair = sequence_of(dom)
    domain = dom if isinstance(dom, Range) else Range_(*(pair if pair is not None else [dom]))
    return IterVar(var, domain, _ITER_KINDS[iter_type], thread_tag)


# ------------------------------------------------------------------------------ pointers to memory
def type_annotation(dtype: str | DType) -> DType:
    """The element type argument of `T.tvm_access_ptr`."""
    return dtype_of(dtype)


def first_element(buffer: Buffer) -> Expr:
    """The address of the first element of a buffer."""
    zeros = [ir.const(0, extent.dtype) for extent in buffer.shape]
    return ir.call("address_of", ir.BufferLoad(buffer, tuple(zeros)), dtype="handle")


def origin(buffer: Buffer) -> Expr:
    """`A.data`: the base address, to which `A.elem_offset` is added; the last stride must be 1."""
    first = first_element(buffer)
    if not isinstance(buffer.offset, Var) or not buffer.shape:
        return first
    place = first.args[0] if isinstance(first, ir.Call) else None
    assert isinstance(place, ir.BufferLoad)
    back = ir.sub(ir.const(0, buffer.offset.dtype), buffer.offset)
    moved = place.replace(indices=(*place.indices[:-1], back))
    return ir.call("address_of", moved, dtype="handle")


def access_ptr(
    buffer: Buffer,
    access_mask: Any = "r",
    ptr_type: Any = "handle",
    content_lanes: int = 1,
    offset: Any = 0,
    extent: Any = None,
) -> Expr:
    """`A.access_ptr("r", offset=…)`: the address of the element at a linear offset."""
    return tvm_access_ptr(buffer.dtype, first_element(buffer), offset, extent, access_mask)


def tvm_access_ptr(
    kind: Any, data: Any, offset: Any, extent: Any = None, rw_mask: Any = 1, dtype: Any = "handle"
) -> Expr:
    """The address `offset` elements after `data`.

    `extent` and `rw_mask` are ignored: `T.reads` and `T.writes` declare the accesses. `dtype` is
    the result type, which older programs write; it must be a handle.
    """
    if not dtype_of(dtype).is_handle:
        raise ScriptError(
            f"T.tvm_access_ptr returns an address, not {dtype}",
            code="BW107",
            help='omit dtype, or write dtype="handle"',
        )
    moved = to_expr(offset)
    if ir.is_const_int(moved, 0):
        return data
    place = data.args[0] if isinstance(data, ir.Call) and data.op == "address_of" else None
    if not isinstance(place, ir.BufferLoad) or not place.indices:
        raise ScriptError(
            "this pointer accepts no offset", code="BW107", help="write T.address_of(A[i, j])"
        )
    return data.replace(args=(place.replace(indices=_moved(place, moved)),))


def _moved(place: ir.BufferLoad, offset: Expr) -> tuple[Expr, ...]:
    """The indices of the element at a linear memory offset from another one."""
    buffer, indices = place.buffer, place.indices
    if len(indices) == 1 and set(map(ir.const_int, buffer.strides)) <= {1}:
        return (ir.add(indices[0], offset),)
    if buffer.strides:
        raise ScriptError(
            f"a linear offset into {buffer.name}, which has strides, is ambiguous",
            code="BW107",
            help="write T.address_of(A[i, j])",
        )
    position = indices[0]
    for index, extent in zip(indices[1:], buffer.shape[1:], strict=True):
        position = ir.add(ir.mul(position, extent), index)
    position, digits = ir.add(position, offset), list[Expr]()
    for extent in buffer.shape[:0:-1]:
        digits.insert(0, ir.floormod(position, extent))
        position = ir.floordiv(position, extent)
    return (position, *digits)


# --------------------------------------------------------------------------------------- targets
def target(config: Any, host: Any = None) -> Any:
    """A target as an attribute value: `{"target": T.target("llvm")}`, or a mapping with "kind".

    It is kept as written. `bw.build(program, target)` determines the target, and rejects a program
    whose attribute names another kind of device.
    """
    result: dict[str, Any] = {}
    if isinstance(config, dict):
        result.update(cast("dict[str, Any]", config))
    elif isinstance(config, str) and config.split():
        if host is None:
            return config
        result["kind"] = config
    if not isinstance(result.get("kind"), str):
        raise ScriptError(
            "a target is a name, or a mapping with the entry 'kind'",
            code="BW107",
            help='write T.target("llvm") or T.target({"kind": "cuda"})',
        )
    if host is not None:
        result["host"] = target(host)
    return result


# Attributes of buffers in scripts that differ from the attributes of `ir.Buffer`.
FACTS: dict[str, Callable[[Buffer], Any]] = {
    "scope": lambda buffer: lambda: buffer.scope,
}

# ---------------------------------------------------------------------------------------- aliases
fabs = builtin("abs")
tvm_call_packed = builtin("call_packed")
__all__ = [
    "EQ",
    "GE",
    "GT",
    "LE",
    "LT",
    "NE",
    "BufferLoad",
    "Call",
    "FloatImm",
    "IntImm",
    "all",
    "any",
    "fabs",
    "iter_var",
    "target",
    "tvm_access_ptr",
    "tvm_call_packed",
    "type_annotation",
]  # fmt: skip
