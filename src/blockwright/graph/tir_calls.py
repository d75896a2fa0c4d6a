"""Check calls of tensor programs: arguments and stated results against the callee's buffers.

`y = R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((n, 4), "float32"))` passes the memory of x and y to
f, which does not check annotations: type, rank and every dimension must match f's buffers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.analysis.canonical.memory import plain_memory
from blockwright.analysis.canonical.statement_blocks import with_root, with_statement_blocks
from blockwright.analysis.dataflow.contexts import block_contexts
from blockwright.analysis.kernels import kernels
from blockwright.analysis.validate.read_before_write import coverage_problems
from blockwright.arith import Analyzer
from blockwright.graph.buffer_uses import uses_of_buffers
from blockwright.graph.relate import differ, info_text
from blockwright.ir.attributes import LOWER_BOUND, NUM_OUTPUTS, UPPER_BOUND
from blockwright.ops.row import dims_text
from blockwright.support import GraphError


def deduce_tir_call(
    call: ir.GraphCall, infos: Sequence[ir.Info], module: ir.IRModule, analyzer: Analyzer
) -> ir.Info:
    """Check a call_tir or call_tir_inplace and return its stated result annotation.

    Raises: GraphError: BW402 an argument does not fit its buffer, BW403 wrong number of arguments
        or results, BW404 no stated result, BW408 a stated result is not what the program writes,
        BW412 a symbol is undetermined, BW415 the callee is not a tensor program, BW416 the callee
        cannot be called this way.
    """
    assert isinstance(call.op, ir.OpRef)
    checker = _TirCall(call, call.op.name, _callee(call, module), analyzer)
    checker.run(infos)
    return call.out_info[0] if len(call.out_info) == 1 else ir.TupleInfo(call.out_info)


def _callee(call: ir.GraphCall, module: ir.IRModule) -> ir.PrimFunc:
    target = call.args[0] if call.args else None
    if not isinstance(target, ir.GlobalVar):
        raise GraphError(
            "the first argument of call_tir must name a tensor program of the module", code="BW415"
        )
    if target.name not in module:
        raise GraphError(f"no function {target.name!r} in the module", code="BW415")
    callee = module[target.name]
    if not isinstance(callee, ir.PrimFunc):
        raise GraphError(
            f"{target.name} is a graph function, not a tensor program",
            code="BW415",
            help=f"call it as cls.{target.name}(…)",
        )
    for code, text, help in ir.attribute_problems(callee.attrs):
        raise GraphError(f"{target.name}: {text}", code=code, help=help)
    return callee


class _TirCall:
    """Compares one call with the signature of its callee."""

    def __init__(
        self, call: ir.GraphCall, operator: str, callee: ir.PrimFunc, analyzer: Analyzer
    ) -> None:
        self.call, self.operator, self.callee, self.analyzer = call, operator, callee, analyzer
        self.symbols: dict[ir.Var, ir.Expr] = {}
        self.later: list[tuple[ir.Expr, ir.Expr, str, str, ir.Info, ir.Info]] = []

    def run(self, infos: Sequence[ir.Info]) -> None:
        if not self.call.out_info:
            raise self.error(
                "the call does not state its result annotation",
                "BW404",
                "pass out_sinfo=R.Tensor(...)",
            )
        args = self.arguments(infos)
        fresh, overwritten = self.results(args)
        require_plain(self.callee, len(args), len(fresh), overwritten)
        self.scalars(infos[2] if len(infos) > 2 else None)
        buffers = self.callee.buffers
        for number, (buffer, info) in enumerate(zip(buffers, args, strict=False)):
            self.match(buffer, info, "BW402", f"argument {number}")
        for number, info in overwritten.items():
            self.match(buffers[number], info, "BW408", "out_sinfo")
        for buffer, info in zip(buffers[len(args) :], fresh, strict=True):
            self.match(buffer, info, "BW408", "out_sinfo")
        self.compare()
        self.bounds()

    def arguments(self, infos: Sequence[ir.Info]) -> tuple[ir.Info, ...]:
        if len(infos) not in (2, 3) or not isinstance(infos[1], ir.TupleInfo):
            raise self.error("takes a program, a tuple of tensors and tir_vars", "BW403")
        return infos[1].fields

    def results(self, args: Sequence[ir.Info]) -> tuple[list[ir.Info], dict[int, ir.Info]]:
        """Stated results that have their own buffers, and those that overwrite an argument."""
        stated = self.call.out_info
        if self.operator == "call_tir":
            return list(stated), {}
        indices: Any = self.call.attrs.get("inplace_indices")
        listed: tuple[Any, ...] = (indices,)
        if isinstance(indices, (list, tuple)):
            listed = tuple(cast("Iterable[Any]", indices))
        if len(listed) != len(stated):
            raise self.error(f"{len(stated)} results, but {len(listed)} inplace_indices", "BW403")
        fresh: list[ir.Info] = []
        overwritten: dict[int, ir.Info] = {}
        for index, info in zip(listed, stated, strict=True):
            if index == -1:
                fresh.append(info)
            elif type(index) is not int or not 0 <= index < len(args) or index in overwritten:
                raise self.error(f"inplace index {index!r} is out of range or repeated", "BW403")
            else:
                overwritten[index] = info
        return fresh, overwritten

    def scalars(self, given: ir.Info | None) -> None:
        """Bind scalar parameters to the values of `tir_vars`, in order."""
        mapped = dict(self.callee.buffer_map)
        wanted = [p for p in self.callee.params if p not in mapped]
        for param in wanted:
            if not param.dtype.is_int:
                raise self.error(
                    f"parameter {param.name} is {param.dtype}; a graph passes tensors "
                    "and integers only",
                    "BW416",
                )
        values: tuple[ir.Expr, ...] | None = ()
        if given is not None:
            values = given.values if isinstance(given, ir.ShapeInfo) else None
        if values is None:
            raise self.error("tir_vars must be a shape of known values", "BW402")
        if len(values) != len(wanted):
            raise self.error(
                f"has {len(wanted)} scalar parameters, tir_vars has {len(values)}", "BW403"
            )
        self.symbols.update(zip(wanted, values, strict=True))

    def match(self, buffer: ir.Buffer, info: ir.Info, code: str, what: str) -> None:
        formal = buffer_info(buffer)
        if not isinstance(info, ir.TensorInfo):
            raise self.mismatch(what, info, formal, code)
        if info.shape is None or info.dtype is None:
            raise self.error(
                f"{what} is {info_text(info)}, of unknown shape or type, for buffer "
                f"{buffer.name}: {info_text(formal)}",
                "BW407",
                "match_cast it to a shape and type",
            )
        if info.dtype is not buffer.dtype or len(info.shape) != len(buffer.shape):
            raise self.mismatch(what, info, formal, code)
        for dim, size in zip(buffer.shape, info.shape, strict=True):
            if isinstance(dim, ir.Var) and dim not in self.symbols:
                self.symbols[dim] = size
            else:
                self.later.append((dim, size, code, what, info, formal))

    def compare(self) -> None:
        """Check that dimensions other than those that bind a symbol are provably equal."""
        for dim, size, code, what, info, formal in self.later:
            missing = [v.name for v in ir.free_vars(dim) if v not in self.symbols]
            if missing:
                raise self.error(
                    f"the arguments do not determine {', '.join(missing)}",
                    "BW412",
                    "use the symbol as a whole dimension of some argument, or make it "
                    "a scalar parameter and pass it in tir_vars",
                )
            expected = self.inserted(dim)
            if not self.analyzer.prove_equal(expected, size):
                unsure = not differ(expected, size, self.analyzer)
                raise self.mismatch(what, info, formal, code, (size, expected, unsure))

    def inserted(self, dim: ir.Expr) -> ir.Expr:
        """A dimension of the callee in symbols of the caller."""
        if isinstance(dim, ir.Var):
            return self.symbols[dim]
        values = {v: ir.cast_to(self.symbols[v], v.dtype) for v in ir.free_vars(dim)}
        return self.analyzer.simplify(ir.substitute(dim, values))

    def bounds(self) -> None:
        """Check that sizes lie within the bounds that the callee declares for its symbols."""
        lower = self.callee.attrs.get(LOWER_BOUND, {})
        upper = self.callee.attrs.get(UPPER_BOUND, {})
        for symbol, value in self.symbols.items():
            low, high = lower.get(symbol.name), upper.get(symbol.name)
            known = self.analyzer.const_bounds(value)
            below = low is not None and (known[0] is None or known[0] < int(low))
            above = high is not None and (known[1] is None or known[1] > int(high))
            if below or above:
                bound = f"at least {low}" if below else f"at most {high}"
                raise self.error(
                    f"{symbol.name} is {bound}; {dims_text(value)} is not known to be",
                    "BW402",
                    "declare the bound in tir_var_lower_bound or tir_var_upper_bound of the caller",
                )

    def mismatch(
        self,
        what: str,
        info: ir.Info,
        formal: ir.Info,
        code: str,
        sizes: tuple[ir.Expr, ir.Expr, bool] | None = None,
    ) -> GraphError:
        role = "writes" if what == "out_sinfo" else "takes"
        why = ""
        if sizes is not None:
            verb = "is not known to be" if sizes[2] else "is not"
            why = f": {dims_text(sizes[0])} {verb} {dims_text(sizes[1])}"
        return self.error(
            f"{what} is {info_text(info)}, but the program {role} {info_text(formal)}{why}", code
        )

    def error(self, message: str, code: str, help: str | None = None) -> GraphError:
        return GraphError(f"{self.operator} of {self.callee.name}: {message}", code=code, help=help)


def require_plain(
    callee: ir.PrimFunc, arguments: int, results: int, overwritten: Container[int] = ()
) -> None:
    """Raise unless a program reads its first buffers and writes the others, all compact."""
    name, buffers = callee.name, callee.buffers
    stated = callee.attrs.get(NUM_OUTPUTS, 0)
    if stated and not overwritten and stated != results:
        raise GraphError(
            f"num_outputs of {name} is {stated}; the call has {results} results",
            code="BW403",
            help="leave num_outputs out, or state the results of the call",
        )
    if len(buffers) != arguments + results:
        raise GraphError(
            f"{name} has {len(buffers)} buffers; the call has {arguments} arguments "
            f"and {results} results",
            code="BW403",
        )
    for buffer in buffers:
        if buffer.scope != "global":
            raise GraphError(
                f"buffer {buffer.name} of {name} is in scope {buffer.scope!r}; values of "
                "a graph are global",
                code="BW416",
            )
        if not _is_compact(buffer):
            raise GraphError(
                f"buffer {buffer.name} of {name} has strides or an offset; values of "
                "a graph are compact",
                code="BW416",
                help="drop strides and elem_offset of the buffer",
            )
    uses = uses_of_buffers(callee)
    for number, buffer in enumerate(buffers):
        if number < arguments and number not in overwritten:
            if buffer in uses.written:
                raise GraphError(
                    f"{name} writes {buffer.name}, which the call passes as an argument",
                    code="BW416",
                    help="write to a separate buffer and make it the result; "
                    "around a call with an address argument, declare T.reads and T.writes",
                )
            if buffer in uses.unstated:
                raise GraphError(
                    f"{name} passes the address of argument {buffer.name} to a "
                    "call that may write there",
                    code="BW416",
                    help="put the call into a block with T.reads and T.writes",
                )
        elif buffer not in uses.written and buffer not in uses.handed_on and not _is_empty(buffer):
            raise GraphError(
                f"{name} does not write {buffer.name}, which the call uses as a result",
                code="BW416",
            )
    if not overwritten:
        _require_written(callee, results)


def _is_empty(buffer: ir.Buffer) -> bool:
    """Whether a buffer has no elements, so that nothing has to be written."""
    return any(ir.is_const_int(extent, 0) for extent in buffer.shape)


def _require_written(callee: ir.PrimFunc, results: int) -> None:
    """Raise if a program reads elements of its results that it has not written."""
    own = set(callee.buffers[len(callee.buffers) - results :]) if results else set[ir.Buffer]()
    if not any(_reads_first(block, own) for block in ir.blocks(with_root(callee).body)):
        return
    func = with_statement_blocks(plain_memory(callee.with_attrs(num_outputs=results)))
    for problem in coverage_problems(func, block_contexts(func, kernels(func))):
        if any(r.buffer in own for b in problem.guilty for r in _reads(b)):
            raise GraphError(
                f"{callee.name}: {problem.message}; results are uninitialized",
                code="BW416",
                help="pass the values read as an argument, and write to a separate result",
            )


def _reads_first(block: ir.Block, own: set[ir.Buffer]) -> bool:
    """Whether a block reads results other than reductions that it initializes itself."""
    begun = {r.buffer for r in block.writes} if block.init is not None else set[ir.Buffer]()
    return any(load.buffer in own - begun for load in ir.collect(block.body, ir.BufferLoad))


def _reads(node: ir.Node) -> tuple[ir.BufferRegion, ...]:
    block = node.block if isinstance(node, ir.BlockRealize) else node
    return block.reads if isinstance(block, ir.Block) else ()


def buffer_info(buffer: ir.Buffer) -> ir.TensorInfo:
    """The annotation of a buffer; constant sizes become int64."""
    sizes = (ir.const_int(d) for d in buffer.shape)
    dims = (
        d if n is None else ir.const(n, "int64") for d, n in zip(buffer.shape, sizes, strict=True)
    )
    return ir.TensorInfo(tuple(dims), buffer.dtype)


def _is_compact(buffer: ir.Buffer) -> bool:
    if buffer.offset is not None and not ir.is_const_int(buffer.offset, 0):
        return False
    stride: ir.Expr = ir.const(1, "int64")
    analyzer = Analyzer()
    for given, dim in zip(reversed(buffer.strides), reversed(buffer.shape), strict=False):
        if not analyzer.prove_equal(given, stride):
            return False
        stride = ir.mul(stride, ir.cast_to(dim, stride.dtype))
    return True
