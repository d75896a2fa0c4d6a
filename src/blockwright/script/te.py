"""Tensor expressions: TVM's `te` API, lowered to tensor programs.

    A = te.placeholder((128, 64), name="A")
    B = te.placeholder((64, 32), name="B")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((128, 32), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    func = te.create_prim_func([A, B, C])

A tensor is a declaration; `create_prim_func` generates one block per computation that the results
depend on, using the same `Program` class as operators. Schedules apply to the program, so there is
no schedule of tensors: `docs/porting-te.md` maps `te` schedule calls to schedule primitives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis import components
from blockwright.ir import Buffer, DType, Expr, PrimFunc, Range, Var
from blockwright.script.compute import AnyReducer, Program, reducer_of
from blockwright.script.compute import Tensor as Made
from blockwright.script.compute import comm_reducer as declared
from blockwright.script.core import NodeFacts, items_of, sequence_of
from blockwright.script.tir import expressions
from blockwright.script.tir.builder import Builder, FrameOf
from blockwright.script.tir.classic import all, any
from blockwright.script.tir.expressions import if_then_else, max_value, min_value, power
from blockwright.support import ScriptError

# ------------------------------------------------------------------------------------- variables
_domains: NodeFacts[Range] = NodeFacts()


def var(name: str = "n", dtype: str | DType = "int32") -> Var:
    """A symbolic size or scalar."""
    return Var(name, ir.dtype_of(dtype))


size_var = var


def const(value: float, dtype: str | DType = "int32") -> Expr:
    """A constant of the given type."""
    return ir.const(value, dtype)


def reduce_axis(dom: Any, name: str = "k") -> Var:
    """A reduction axis over [begin, end), for `te.sum` and other reducers."""
    pair = sequence_of(dom)
    if pair is None or len(pair) != 2:
        raise ScriptError(
            "a reduction axis has a domain (begin, end)",
            code="BW107",
            help="write te.reduce_axis((0, n), name)",
        )
    low, high = _dim(pair[0]), _dim(pair[1])
    axis = Var(name, high.dtype)
    _domains[axis] = Range(ir.cast_to(low, high.dtype), ir.sub(high, low))
    return axis


def _dim(value: Any) -> Expr:
    return ir.as_expr(value, ir.dtype_of("int32"))


# --------------------------------------------------------------------------------------- tensors
class Operation:
    """The producer of a tensor: a placeholder, a computation, or an extern fragment."""

    def __init__(self, name: str, tag: str = "", attrs: Mapping[str, Any] | None = None) -> None:
        self.name, self.tag, self.attrs = name, tag, dict(attrs or {})
        self.axis: list[Var] = []
        self.reduce_axis: list[Var] = []
        self.outputs: list[Tensor] = []
        self.values: list[Expr | TeReduction] = []
        self.inputs: list[Tensor] = []
        self.emit: Callable[[Sequence[Buffer], Sequence[Buffer]], Any] | None = None

    @property
    def input_tensors(self) -> list[Tensor]:
        """The tensors that this operation reads."""
        return list(self.inputs)

    def output(self, index: int) -> Tensor:
        return self.outputs[index]


class Tensor:
    """A multi-dimensional value; `A[i, j]` and `A(i, j)` denote its elements."""

    def __init__(self, buffer: Buffer, op: Operation) -> None:
        self.buffer, self.op = buffer, op
        op.outputs.append(self)

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.buffer.shape

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def ndim(self) -> int:
        return self.buffer.ndim

    def __getitem__(self, indices: Any) -> Expr:
        return self(*items_of(indices))

    def __call__(self, *indices: Any) -> Expr:
        if len(indices) != self.ndim:
            raise ScriptError(
                f"{self.name} has {self.ndim} dimensions, got {len(indices)} indices", code="BW105"
            )
        return _Element.of(self, tuple(_dim(i) for i in indices))


class _Element:
    """Builds element loads, and maps the loaded buffers back to tensors."""

    tensors: NodeFacts[Tensor] = NodeFacts()

    @classmethod
    def of(cls, tensor: Tensor, indices: tuple[Expr, ...]) -> Expr:
        cls.tensors[tensor.buffer] = tensor
        return ir.BufferLoad(tensor.buffer, indices)

    @classmethod
    def mentioned(cls, values: Iterable[Expr]) -> list[Tensor]:
        buffers = [load.buffer for v in values for load in ir.collect(v, ir.BufferLoad)]
        result = [cls.tensors.get(b) for b in dict.fromkeys(buffers)]
        return [t for t in result if t is not None]


class TeReduction:
    """`te.sum(value, axis)`: a reduction, which must be the whole body of a computation.

    It has one expression per component.
    """

    def __init__(self, combiner: AnyReducer, values: list[Expr], axes: list[Var]) -> None:
        self.combiner, self.values, self.axes = combiner, values, axes

    def _nested(self, *_: Any) -> Any:
        raise ScriptError(
            "a reduction must be the whole body of a computation",
            code="BW107",
            help="S = te.compute(shape, lambda i: te.sum(…)); then use S[i]",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _nested
    __truediv__ = __rtruediv__ = __neg__ = _nested


def _reducer(combiner: AnyReducer, name: str) -> Callable[..., Any]:
    def reduce(value: Any, axis: Any, where: Any = None) -> TeReduction:
        axes = items_of(axis)
        unknown = [a for a in axes if _domains.get(a) is None]
        if unknown or not axes:
            raise ScriptError(
                f"te.{name} runs over reduction axes",
                code="BW107",
                help="create them with te.reduce_axis((0, n), name)",
            )
        nodes = [ir.as_expr(v) for v in components(value)]
        if where is not None:
            neutral = reducer_of(combiner, [n.dtype for n in nodes]).identity
            nodes = [if_then_else(where, n, e) for n, e in zip(nodes, neutral, strict=True)]
        return TeReduction(combiner, nodes, axes)

    reduce.__name__ = reduce.__qualname__ = name
    return reduce


sum, prod = _reducer("sum", "sum"), _reducer("prod", "prod")
_max_over, _min_over = _reducer("max", "max"), _reducer("min", "min")


def comm_reducer(
    fcombine: Callable[..., Any], fidentity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Any]:
    """A user-defined reducer, used like `te.sum`; tuple reductions return a tensor per component.

        pair = te.comm_reducer(lambda x, y: (x[0] + y[0], x[1] * y[1]),
                               lambda s, t: (te.const(0, s), te.const(1, t)))
        S, P = te.compute((m,), lambda i: pair((A[i, k], B[i, k]), axis=k))

    The combiner must be commutative and associative; otherwise `bw.IRError` BW228 is raised, with a
    counterexample.
    """
    return _reducer(declared(fcombine, fidentity), name)


def max(value: Any, axis: Any = None, where: Any = None) -> Any:
    """The maximum over reduction axes; with two plain values, the larger one."""
    return _either(_max_over, ir.maximum, value, axis, where)


def min(value: Any, axis: Any = None, where: Any = None) -> Any:
    """The minimum over reduction axes; with two plain values, the smaller one."""
    return _either(_min_over, ir.minimum, value, axis, where)


def _either(over: Any, pair: Any, value: Any, axis: Any, where: Any) -> Any:
    first = next(iter(items_of(axis)), None)
    return pair(value, axis) if _domains.get(first) is None else over(value, axis, where)


# ----------------------------------------------------------------------------- tensor constructors
def placeholder(shape: Any, dtype: str | DType = "float32", name: str = "placeholder") -> Tensor:
    """An input tensor."""
    buffer = Buffer(name, ir.dtype_of(dtype), tuple(_dim(d) for d in items_of(shape)))
    return Tensor(buffer, Operation(name))


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """A tensor with element (i, j, …) = `fcompute(i, j, …)`; a tuple defines several tensors."""
    extents = tuple(_dim(d) for d in items_of(shape))
    op = Operation(name, tag, attrs)
    names = _axis_names(fcompute, len(extents))
    op.axis = [Var(n, e.dtype) for n, e in zip(names, extents, strict=True)]
    result = fcompute(*op.axis)
    several = sequence_of(result)
    op.values = [_value(v) for v in (result,) if several is None]
    op.values += [_value(v) for v in several or ()]
    bodies = [e for v in op.values for e in (v.values if isinstance(v, TeReduction) else [v])]
    tuples = [v for v in op.values if isinstance(v, TeReduction) and len(v.values) > 1]
    if tuples and len(op.values) > 1:
        raise ScriptError("a tuple reduction must be the whole body of a computation", code="BW107")
    op.inputs = _Element.mentioned(bodies)
    op.reduce_axis = [a for v in op.values if isinstance(v, TeReduction) for a in v.axes]
    single = several is None and not tuples
    tensors = [
        Tensor(Buffer(name if single else f"{name}_v{k}", b.dtype, extents), op)
        for k, b in enumerate(bodies)
    ]
    return tensors[0] if single else tensors


def _value(found: Any) -> Expr | TeReduction:
    return found if isinstance(found, TeReduction) else ir.as_expr(found)


def _axis_names(function: Callable[..., Any], count: int) -> list[str]:
    """Axis names: the parameter names of the function."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return [*names, *(f"i{k}" for k in range(len(names), count))]
        names.append(parameter.name)
    if len(names) != count:
        raise ScriptError(
            f"the function takes {len(names)} indices, the shape has {count} dimensions",
            code="BW105",
        )
    return names


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: Callable[..., Any],
    name: str = "extern",
    dtype: Any = None,
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Tensors written by a program fragment: `fcompute(ins, outs)` emits `T` statements."""
    several = sequence_of(items_of(shape)[0]) is not None
    shapes = items_of(shape) if several else [shape]
    given = items_of(dtype) if dtype is not None else [t.dtype for t in inputs][:1] * len(shapes)
    if len(given) != len(shapes):
        raise ScriptError(
            f"{len(shapes)} shapes, but {len(given)} types",
            code="BW106",
            help="pass dtype, one for each output",
        )
    op = Operation(name, tag, attrs)
    op.inputs, op.emit = list(inputs), fcompute
    for k, (dims, kind) in enumerate(zip(shapes, given, strict=True)):
        extents = tuple(_dim(d) for d in items_of(dims))
        Tensor(Buffer(f"{name}_v{k}" if several else name, ir.dtype_of(kind), extents), op)
    return op.outputs if several else op.outputs[0]


# -------------------------------------------------------------------------------------- programs
def create_prim_func(ops: Sequence[Any], name: str = "main") -> PrimFunc:
    """Build the program whose parameters are the given tensors (inputs and results) and scalars.

    Raises:
        ScriptError: BW107 if a required input is not among the parameters.
    """
    return _Writer(list(ops), name).program()


class _Writer:
    """Generates the computations that the results depend on, in one `Program`."""

    def __init__(self, params: list[Any], name: str) -> None:
        self.params, self.out = params, Program(name)
        self.made: dict[Tensor, Made] = {}

    def program(self) -> PrimFunc:
        tensors = [p for p in self.params if isinstance(p, Tensor)]
        for tensor in tensors:
            if self._is_input(tensor):
                self.made[tensor] = self.out.param(tensor.name, tensor.shape, tensor.dtype)
        results = [t for t in tensors if not self._is_input(t)]
        for operation in self._order(results):
            self._write(operation)
        for scalar in self.params:
            if isinstance(scalar, Var):
                self.out.scalar(scalar)
        func = self.out.finish([self.made[t] for t in results])
        handles = {buffer: handle for handle, buffer in func.buffer_map}
        order = [p if isinstance(p, Var) else handles[self.made[p].buffer] for p in self.params]
        pairs = dict(func.buffer_map)
        return func.replace(
            params=tuple(order), buffer_map=tuple((h, pairs[h]) for h in order if h in pairs)
        )

    def _is_input(self, tensor: Tensor) -> bool:
        return not tensor.op.values and tensor.op.emit is None

    def _order(self, results: list[Tensor]) -> list[Operation]:
        """Operations in topological order: producers first."""
        order: list[Operation] = []
        stack = [(t.op, False) for t in reversed(results)]
        while stack:
            operation, ready = stack.pop()
            if operation in order:
                continue
            if ready:
                order.append(operation)
                continue
            stack.append((operation, True))
            for tensor in reversed(operation.inputs):
                if not self._is_input(tensor):
                    stack.append((tensor.op, False))
                elif tensor not in self.made:
                    raise ScriptError(
                        f"{tensor.name} is required, but is not a parameter",
                        code="BW107",
                        help="list every placeholder in create_prim_func([…])",
                    )
        return order

    def _write(self, op: Operation) -> None:
        if op.emit is not None:
            self._extern(op)
            return
        names = [a.name for a in op.axis]
        outputs = iter(op.outputs)
        for value in op.values:
            if isinstance(value, TeReduction):
                self._reduce(op, value, [next(outputs) for _ in value.values])
                continue
            tensor = next(outputs)
            body = self._element(value, op.axis)
            self.made[tensor] = self.out.compute(
                tensor.name, tensor.shape, body, tensor.dtype, axes=names, annotations=op.attrs
            )

    def _reduce(self, op: Operation, value: TeReduction, outputs: list[Tensor]) -> None:
        domains = [d for d in map(_domains.get, value.axes) if d is not None]
        result = self.out.reduce_tuple(
            [t.name for t in outputs],
            outputs[0].shape,
            [d.extent for d in domains],
            self._body(value.values, [*op.axis, *value.axes]),
            value.combiner,
            [t.dtype for t in outputs],
            axes=[a.name for a in (*op.axis, *value.axes)],
            annotations=op.attrs,
        )
        self.made.update(zip(outputs, result, strict=True))

    def _element(self, value: Expr, axes: Sequence[Var]) -> Callable[..., Expr]:
        body = self._body([value], axes)
        return lambda *iterators: body(*iterators)[0]

    def _body(self, values: Sequence[Expr], axes: Sequence[Var]) -> Callable[..., list[Expr]]:
        """The values as a function of the block's iterators."""
        buffers = {old.buffer: new.buffer for old, new in self.made.items()}

        def at(*iterators: Expr) -> list[Expr]:
            places: dict[Any, Any] = dict(buffers)
            for axis, iterator in zip(axes, iterators, strict=True):
                domain = _domains.get(axis)
                places[axis] = iterator if domain is None else ir.add(iterator, domain.min)
            return [ir.substitute(value, places) for value in values]

        return at

    def _extern(self, op: Operation) -> None:
        ins = [self.made[t].buffer for t in op.inputs]
        emit = op.emit
        assert emit is not None

        def body(outs: Sequence[Buffer]) -> ir.Stmt:
            result: list[ir.Stmt] = []
            with Builder(), FrameOf(result.append):
                emit(ins, outs)
            return result[0]

        outputs = [(t.name, t.shape, t.dtype) for t in op.outputs]
        created = self.out.opaque(op.name, outputs, ins, body, annotations=op.attrs)
        self.made.update(zip(op.outputs, created, strict=True))


# ----------------------------------------------------------------------------- unsupported names
_ELSEWHERE = {
    "create_schedule": "schedules work on programs: bw.Schedule(te.create_prim_func([A, B, C]))",
    "scan": "write a block with a scan axis: T.axis.scan(n, i)",
    "hybrid": "write @T.prim_func",
    "extern_primfunc": "call the program: te.extern with T.call_global",
    "tag_scope": "pass tag= to te.compute",
    "thread_axis": "threads are bound by the schedule",
    "gradient": "differentiate the model in its framework before it is imported",
}


class _Elsewhere(ScriptError, AttributeError):
    """A name of TVM's `te` that this module replaces by something else."""


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        raise _Elsewhere(f"te has no {name!r}", code="BW115", help=_ELSEWHERE[name])
    if name in ir.OPS:
        return expressions.builtin(name)
    raise AttributeError(f"te has no {name!r}")


__all__ = [
    "Operation", "TeReduction", "Tensor", "all", "any", "comm_reducer", "compute", "const",
    "create_prim_func", "extern", "if_then_else", "max", "max_value", "min", "min_value",
    "placeholder", "power", "prod", "reduce_axis", "size_var", "sum", "var",
]  # fmt: skip
