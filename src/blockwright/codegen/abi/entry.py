"""The entry of a compiled function: unpacks arguments, checks them and calls the code.

All checks are compiled in, so an artefact is safe to call from any language without this package.
They run in this order: argument count, kind, type, rank, device, extents, layout, then symbolic
sizes and overlap. Messages read "BW704: argument 2 `mask` of f: expected …, got …" and end with a
remedy.

If the caller passes only the parameters, results are new tensors. If memory for all results
follows them, the code writes there and the entry returns nothing; such a call creates no objects.
That memory is checked like a written argument ("result 1 `out` of f").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockwright.analysis.calling_convention import (
    CallingConvention,
    calling_convention,
    entry_inputs,
    tensor_results,
)
from blockwright.codegen.abi.checks import Checker, extent_text, plain
from blockwright.codegen.abi.objects import Objects
from blockwright.codegen.abi.results import LentResults
from blockwright.codegen.abi.symbols import Symbols
from blockwright.codegen.abi.tensors import tensor_of
from blockwright.codegen.llvm import ffi, types
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.ffi import ANY, SYMBOL_PREFIX, TENSOR_OBJECT
from blockwright.codegen.llvm.late_results import LATE_RESULT
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.ir import (
    Buffer,
    DType,
    Expr,
    IntImm,
    PrimFunc,
    Var,
    build,
    cast_to,
    const,
    const_int,
    structural_equal,
)
from blockwright.ir.attributes import NOALIAS, OBJECT_PARAMS
from blockwright.support import BuildError

ENTRY_TICKS = "tir.entry_ticks"
"""Attribute of a function whose entry reads the clock. It stores the times on entry, after the
argument checks and after the allocation of results in the first elements of the last result."""

ENTRY_READINGS = 3


def emit_entry(
    module: ModuleEmitter, func: PrimFunc, name: str, symbol: str, written: Sequence[int]
) -> None:
    """Add `__tvm_ffi_<name>` to a module that defines `symbol`."""
    params = [("ptr", "self"), ("ptr", "args"), ("i32", "count"), ("ptr", "result")]
    e = FunctionEmitter(module, SYMBOL_PREFIX + name, "i32", params, "nounwind")
    _Entry(e, func, name, symbol, written).emit()
    e.finish()


class _Entry:
    def __init__(
        self, e: FunctionEmitter, func: PrimFunc, name: str, symbol: str, written: Sequence[int]
    ) -> None:
        self.e, self.func, self.name, self.symbol = e, func, name, symbol
        self.written = frozenset(written)
        self.convention: CallingConvention = calling_convention(func)
        self.results = tensor_results(func)
        self.outputs = {p for p, _ in self.results}
        self.late = dict(self.convention.late)
        self.inputs = entry_inputs(func)
        self.objects = Objects(e, func)
        self.label = {p: f"argument {i + 1} `{_name(p)}`" for i, p in enumerate(self.inputs)}
        self.label |= {p: f"result {i + 1} `{_name(p)}`" for i, (p, _) in enumerate(self.results)}
        self.check = Checker(e, name)
        self.symbols = Symbols(e, self.check)
        self.data: dict[Var, Value] = {}
        self.scalars: dict[Var, Value] = {}
        self.records: dict[Var, Value] = {}

    def emit(self) -> None:
        ticks = [self._clock()]
        lent = self.check.count(
            self.e.params[2], [_name(p) for p in self.inputs], len(self.outputs)
        )
        mapped = dict(self.convention.buffers)
        # Scalars first: an extent may refer to one of them.
        for position, param in sorted(enumerate(self.inputs), key=lambda item: item[1] in mapped):
            slot = self._argument(position)
            self.check.begin(self.label[param])
            if param in mapped:
                self._tensor(slot, param, mapped[param])
            else:
                self.scalars[param] = self.symbols.known[param] = self._scalar(slot, param)
        self.symbols.solve()
        self.symbols.check_expressions()
        self.symbols.check_bounds(self.func.attrs, self.convention.symbols)
        self.symbols.check_scalars(self.func.attrs, self.convention.scalars)
        self._overlap()
        ticks.append(self._clock())
        self.scalars |= self.objects.hidden()
        objects = self._results(lent) if self.outputs else {}
        plain = [self.scalars[v] for v in self.convention.scalars]
        plain += [self.symbols.value(v) for v in self.convention.symbols]
        self._keep([*ticks, self._clock()])
        values = [self.data[p] for p, _ in self.convention.buffers]
        status = self.e.call_local("i32", self.symbol, *values, *plain)
        failed = self.e.compare("ne", status, int_const(0, "i32"))
        with self.e.guarded(failed, likely=False):
            if objects:
                with self.e.guarded(self.e.negated(lent)):
                    self._release(list(objects.values()))
            for record in self.records.values():
                self._release_late(record)
            self.objects.release()
            self.e.ret(int_const(-1, "i32"))
        if self.outputs:
            with self.e.guarded(lent):
                self.objects.give([], self.e.params[3])
        tensors = [self._object(p, objects) for p, _ in self.results]
        self.objects.give(tensors, self.e.params[3])

    # ---------------------------------------------------------------- clock
    def _clock(self) -> Value | None:
        if not self.func.attrs.get(ENTRY_TICKS, False):
            return None
        last = self.convention.outputs[-1][1] if self.convention.outputs else None
        size = const_int(last.shape[0]) if last is not None and last.ndim == 1 else None
        if last is None or last.dtype.name != "int64" or size is None or size < ENTRY_READINGS:
            raise BuildError(
                f"{ENTRY_TICKS} of {self.name} needs a last result of int64, of "
                f"{ENTRY_READINGS} elements or more",
                code="BW619",
                help="remove the attribute: it is for profiling only",
            )
        return self.e.call("i64", "bw_clock")

    def _keep(self, ticks: Sequence[Value | None]) -> None:
        """Store clock readings at the beginning of the last result."""
        for place, tick in enumerate(ticks):
            if tick is not None:
                start = self.data[self.convention.outputs[-1][0]]
                self.e.store(tick, self.e.offset(start, 8 * place), 8)

    # ---------------------------------------------------------------- arguments
    def _argument(self, position: int) -> Value:
        """The address of a packed argument."""
        return self.e.offset(self.e.params[1], ANY.size * position)

    def _tensor(self, slot: Value, param: Var, buffer: Buffer) -> None:
        tensor, extents = self.check.tensor(slot, buffer)
        self.symbols.bind_shape(buffer, extents, tensor)
        if buffer.strides:
            self.symbols.bind_strides(buffer, extents, tensor)
        else:
            self.check.contiguous(tensor)
        self.data[param] = self.check.data(tensor, extents, buffer)
        if isinstance(buffer.offset, Var):
            self.symbols.known.setdefault(
                buffer.offset, int_const(0, types.value_type(buffer.offset.dtype))
            )

    def _scalar(self, slot: Value, param: Var) -> Value:
        e, dtype = self.e, param.dtype
        packed = ANY.at(e, slot)
        kind = packed.load("type")
        if param.name in self.func.attrs.get(OBJECT_PARAMS, {}):
            if self.func.attrs[OBJECT_PARAMS][param.name] == "function":
                self.check.kind(kind, (ffi.FUNCTION,), "a function", slot)
            return slot
        if dtype.is_handle:
            allowed = (ffi.OPAQUE_PTR, ffi.NONE)
            self.check.kind(kind, allowed, "an opaque pointer or None", slot)
            return packed.load("value", type_="ptr")
        if dtype.is_float:
            allowed = (ffi.FLOAT, ffi.INT, ffi.BOOL)
            self.check.kind(kind, allowed, f"a number ({dtype})", slot)
            real = e.compare("eq", kind, int_const(ffi.FLOAT, "i32"))
            whole = e.convert("sitofp", packed.load("value"), "double")
            value = e.select(real, packed.load("value", type_="double"), whole)
            return types.cast(e, value, DType("float", 64), dtype)
        if dtype.name == "uint64":
            is_tensor = e.compare("ne", tensor_of.call(e, slot), NULL)
            return e.choose(
                is_tensor, lambda: self._element(slot, param), lambda: self._integer(slot, param)
            )
        return self._integer(slot, param)

    def _integer(self, slot: Value, param: Var) -> Value:
        """A scalar argument that is passed as a number."""
        e, dtype = self.e, param.dtype
        packed = ANY.at(e, slot)
        allowed = (ffi.INT, ffi.BOOL)
        self.check.kind(packed.load("type"), allowed, f"an integer ({dtype})", slot)
        wide = packed.load("value")
        self.check.fits(wide, dtype)
        return types.cast(e, wide, DType("int", 64), dtype)

    def _element(self, slot: Value, param: Var) -> Value:
        """A scalar argument that is passed as a tensor without axes: the FFI's integers are signed,
        so it has no other form for those from 2^63."""
        buffer = Buffer(_name(param), param.dtype, ())
        tensor, extents = self.check.tensor(slot, buffer)
        data = self.check.data(tensor, extents, buffer)
        return self.e.load(types.memory_type(param.dtype), data, param.dtype.nbytes)

    def _overlap(self) -> None:
        """Check that written memory does not overlap any other argument."""
        if self.func.attrs.get(NOALIAS, True) is False:
            return
        passed = [(i, p, b) for i, (p, b) in enumerate(self.convention.buffers) if p in self.data]
        checked: set[frozenset[int]] = set()
        for i, param, buffer in passed:
            if i not in self.written:
                continue
            for j, other, other_buffer in passed:
                pair = frozenset((i, j))
                if i == j or pair in checked:
                    continue
                checked.add(pair)
                self.check.begin(self.label[param])
                self.check.disjoint(
                    (self.data[param], self.symbols.byte_size(buffer)),
                    (self.data[other], self.symbols.byte_size(other_buffer)),
                    self.label[other],
                )

    # ---------------------------------------------------------------- results
    def _results(self, lent: Value) -> dict[Var, Value]:
        """Memory for the results: the caller's, or that of new tensors, which are returned.

        Late results get a record, which the program fills unless memory is lent.
        """
        e = self.e
        for param in self.late:
            record = LATE_RESULT.allocate(e)
            for field in ("object", "shape", "data"):
                record.store(field, NULL)
            self.records[param] = self.scalars[param] = record.address
        for _, buffer in self.convention.outputs:
            if buffer.strides and not _is_compact(buffer):
                raise BuildError(
                    f"result {buffer.name} of {self.name} has strides",
                    code="BW671",
                    help="remove the strides, or make the result a written argument",
                )
        for param, buffer in self.convention.outputs:
            for axis, extent in enumerate(buffer.shape):
                self.symbols.require_divisors(self.label[param], axis, extent)
        shapes = [[self.symbols.index(d) for d in b.shape] for _, b in self.convention.outputs]
        self._require_sizes(shapes)
        theirs, ours, join = (e.fresh(n) for n in ("lent", "new", "results"))
        e.branch_if(lent, theirs, ours)
        e.label(ours)
        result = self._allocate_outputs(shapes)
        new = {p: self.data.pop(p) for p, _ in self.convention.outputs}
        after_ours = e.block
        e.branch(join)
        e.label(theirs)
        taken = self._take_outputs(shapes)
        after_theirs = e.block
        e.branch(join)
        e.label(join)
        for param, a in new.items():
            self.data[param] = e.phi("ptr", [(a, after_ours), (taken[param], after_theirs)])
        return {p: e.phi("ptr", [(m, after_ours), (NULL, after_theirs)]) for p, m in result.items()}

    def _require_sizes(self, shapes: Sequence[Sequence[Value]]) -> None:
        """Check that computed result sizes, such as `n - 2`, are not negative."""
        for (param, buffer), extents in zip(self.convention.outputs, shapes, strict=True):
            for axis, (dim, extent) in enumerate(zip(buffer.shape, extents, strict=True)):
                if not isinstance(dim, (IntImm, Var)):
                    fine = self.e.compare("sge", extent, int_const(0))
                    text = f"dimension {axis}, {plain(extent_text(dim))}, would be %lld"
                    self.check.require_about(
                        self.label[param], fine, "BW708", text, "pass larger tensors", extent
                    )

    def _take_outputs(self, shapes: Sequence[Sequence[Value]]) -> dict[Var, Value]:
        """The memory that the caller passes for the results."""
        results = LentResults(self.e, self.check, self.symbols)
        known = {p: shape for (p, _), shape in zip(self.convention.outputs, shapes, strict=True)}
        taken: dict[Var, Value] = {}
        sizes: dict[Var, Value] = {}
        for number, (param, buffer) in enumerate(self.results):
            slot = self._argument(len(self.inputs) + number)
            if param in self.late:
                taken[param], sizes[param] = self._lend(slot, param, buffer)
            else:
                taken[param] = results.take(slot, self.label[param], buffer, known[param])
                sizes[param] = self.symbols.byte_size(buffer)
        if self.func.attrs.get(NOALIAS, True) is not False:
            inputs = [(p, b) for p, b in self.convention.buffers if p not in self.outputs]
            rows = [(self.label[p], self.data[p], self.symbols.byte_size(b)) for p, b in inputs]
            rows += [(self.label[p], taken[p], sizes[p]) for p, _ in self.results]
            results.apart(rows, len(taken))
        return taken

    def _lend(self, slot: Value, param: Var, buffer: Buffer) -> tuple[Value, Value]:
        """Pass memory of the caller on to the program; returns its address and its bytes."""
        e = self.e
        self.check.begin(self.label[param])
        tensor, extents = self.check.tensor(slot, buffer)
        self.check.contiguous(tensor)
        data = self.check.data(tensor, extents, buffer)
        record = LATE_RESULT.at(e, self.records[param])
        record.store("shape", ffi.DLTENSOR.at(e, tensor).load("shape"))
        record.store("data", data)
        size = int_const(buffer.dtype.nbytes * buffer.dtype.lanes)
        for extent in extents:
            size = e.binary("mul", size, extent)
        return data, size

    def _allocate_outputs(self, shapes: Sequence[Sequence[Value]]) -> dict[Var, Value]:
        """Allocate tensors for the results; earlier ones are released when a later one fails."""
        e = self.e
        result: dict[Var, Value] = {}
        for (param, buffer), extents in zip(self.convention.outputs, shapes, strict=True):
            shape = e.stack(8 * max(buffer.ndim, 1), 8)
            for axis, extent in enumerate(extents):
                e.store(extent, e.offset(shape, 8 * axis), 8)
            place = e.stack(8, 8)
            code = int_const(ffi.dlpack_dtype(buffer.dtype.name), "i32")
            rank = int_const(buffer.ndim, "i32")
            status = e.call("i32", "bw_tensor_alloc", shape, rank, code, place)
            with e.guarded(e.compare("ne", status, int_const(0, "i32")), likely=False):
                self._release(list(result.values()))
                e.ret(int_const(-1, "i32"))
            tensor = e.load("ptr", place, 8)
            result[param] = tensor
            self.data[param] = TENSOR_OBJECT.at(e, tensor).inner("tensor").load("data")
        return result

    def _release(self, objects: Sequence[Value]) -> None:
        for result in objects:
            self.e.call("i32", "TVMFFIObjectDecRef", result)

    def _release_late(self, record: Value) -> None:
        """Release the tensor of a late result if the program allocated it."""
        tensor = LATE_RESULT.at(self.e, record).load("object")
        with self.e.guarded(self.e.compare("ne", tensor, NULL)):
            self._release([tensor])

    def _object(self, param: Var, objects: Mapping[Var, Value]) -> Value:
        """The tensor object of a result."""
        if param in self.records:
            return LATE_RESULT.at(self.e, self.records[param]).load("object")
        return objects[param]


def _is_compact(buffer: Buffer) -> bool:
    """Whether the strides are those of a dense row-major buffer."""
    expected: Expr = const(1, "int64")
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=True):
        if not structural_equal(cast_to(stride, "int64"), expected):
            return False
        expected = build.mul(expected, cast_to(extent, "int64"))
    return True


def _name(param: Var) -> str:
    return param.name.removesuffix("_handle")
