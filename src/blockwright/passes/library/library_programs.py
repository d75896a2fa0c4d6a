"""LibraryPrograms: give every call of a library function its tensor program of C calls.

`R.call_dps_library("openblas.gemm", (x, w), …, alpha=1.0)` becomes
`R.call_tir(cls.openblas_gemm, (x, w), …)`; the module gets that program, and the attribute
"shared_libraries". Calls of names that no library has are left: they are packed functions, looked
up at run time. The operators of frameworks among them are listed in the attribute.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_dps_library("my.function", (x,), out_sinfo=R.Tensor((4,), "float32"))
        return y
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.ir.attributes import IS_LIBRARY, IS_SCHEDULED, NUM_OUTPUTS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.legalize import ProgramTable, symbol_attrs, with_scalar_symbols
from blockwright.passes.library.calls import LibraryCall
from blockwright.passes.library.registry import LIBRARIES, Library
from blockwright.passes.rewrite import call_tir, flat_function, graph_functions, tir_args
from blockwright.runtime.frameworks import FRAMEWORKS, of_function
from blockwright.runtime.shared_libraries import framework_library
from blockwright.support import GraphError

SHARED_LIBRARIES = "shared_libraries"
"""Module attribute: the `SharedLibrary`s that the programs call, as dicts."""


@graph_pass
def library_programs(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Lower every `call_dps_library` whose name is that of a registered library's function."""
    table = ProgramTable(module)
    used: dict[str, list[str]] = {}
    for name, function in graph_functions(module):
        bindings: list[ir.Binding] = []
        for binding in function.bindings:
            value = binding.value if isinstance(binding, ir.VarBinding) else None
            found = None if value is None else library_function(value)
            if found is not None and isinstance(value, ir.GraphCall):
                new = _program_call(value, found, function, table, ctx, used)
                binding = binding.replace(value=new)
            bindings.append(binding)
        if any(a is not b for a, b in zip(bindings, function.bindings, strict=True)):
            table.functions[name] = flat_function(function, bindings)
    shared = [
        msgspec.structs.replace(LIBRARIES[name].shared, symbols=tuple(symbols))
        for name, symbols in used.items()
    ]
    shared += [framework_library(FRAMEWORKS[n], s) for n, s in framework_symbols(module).items()]
    if not shared:
        return module
    attrs = {**module.attrs, SHARED_LIBRARIES: [msgspec.to_builtins(each) for each in shared]}
    return module.replace(functions=table.functions, attrs=attrs)


def framework_symbols(module: ir.IRModule) -> dict[str, list[str]]:
    """Framework → the operators of it that graph functions call, in order."""
    result: dict[str, list[str]] = {}
    for _, function in graph_functions(module):
        for callee in ir.collect(function, ir.ExternFunc):
            found = None if callee.function else of_function(callee.name)
            if found is not None:
                symbols = result.setdefault(found[0].name, [])
                symbols += [found[1]] if found[1] not in symbols else []
    return result


def library_function(value: ir.GraphExpr) -> tuple[Library, str] | None:
    """The registered library, and the name of its function, that an expression calls."""
    if not isinstance(value, ir.GraphCall) or not isinstance(value.op, ir.OpRef):
        return None
    callee = value.args[0] if value.args else None
    if value.op.name != "call_dps_library" or not isinstance(callee, ir.ExternFunc):
        return None
    of, _, name = callee.name.partition(".")
    library = LIBRARIES.get(of)
    return None if library is None or not name else (library, name)


def _program_call(
    value: ir.GraphCall,
    found: tuple[Library, str],
    caller: ir.GraphFunction,
    table: ProgramTable,
    ctx: PassContext,
    used: dict[str, list[str]],
) -> ir.GraphCall:
    library, name = found
    emit = library.functions.get(name)
    if emit is None:
        raise GraphError(
            f"the library {library.name} has no function {name!r}",
            code="BW424",
            help=f"its functions: {', '.join(library.functions)}",
        )
    why = library.why_not(ctx.target)
    if why:
        raise GraphError(f"{library.name}.{name}: {why}", code="BW424")
    info = value.info or value.out_info[0]
    outs = info.fields if isinstance(info, ir.TupleInfo) else (info,)
    args = tir_args(value)
    inputs = [_buffer(f"in{i}", a.info, library, name) for i, a in enumerate(args)]
    outputs = [_buffer(f"out{i}", o, library, name) for i, o in enumerate(outs)]
    call = LibraryCall(
        library.name, name, tuple(inputs), tuple(outputs), dict(value.attrs), ctx.target, []
    )
    block = ir.Block(
        f"{library.name}_{name}",
        (),
        tuple(map(ir.full_region, inputs)),
        tuple(map(ir.full_region, outputs)),
        emit(call),
    )
    body = ir.BlockRealize((), ir.const(True, "bool"), block)
    symbols = used.setdefault(library.name, [])
    symbols += [s for s in call.used if s not in symbols]
    handles = [ir.Var(f"{b.name}_handle", ir.dtype_of("handle")) for b in (*inputs, *outputs)]
    pairs = tuple(zip(handles, (*inputs, *outputs), strict=True))
    marks = {"op": f"{library.name}.{name}", NUM_OUTPUTS: len(outputs), IS_SCHEDULED: True}
    marks |= {IS_LIBRARY: True}
    func = ir.PrimFunc(tuple(handles), pairs, body, marks)
    func = func.replace(attrs={**marks, **symbol_attrs(func, caller)})
    func, extra = with_scalar_symbols(func)
    return call_tir(table.add(f"{library.name}_{name}", func), args, outs, extra)


def _buffer(label: str, info: ir.Info | None, library: Library, name: str) -> ir.Buffer:
    if not isinstance(info, ir.TensorInfo) or info.shape is None or info.dtype is None:
        raise GraphError(
            f"{library.name}.{name}: {label} is {info!r}: its tensors have a shape and a type",
            code="BW424",
            help="annotate the result, match_cast an operand",
        )
    return ir.Buffer(label, info.dtype, info.shape)
