"""Flat-form programs built by hand, compiled and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.build import Module, ObjectCache, compile_lowered
from blockwright.target import Target

INT64 = ir.dtype_of("int64")
HANDLE = ir.dtype_of("handle")

BufferSpec = tuple[str, str, tuple[Any, ...]]


def index(value: int) -> ir.Expr:
    return ir.const(value, INT64)


def flat(
    name: str,
    buffers: Sequence[BufferSpec],
    body: Callable[..., ir.Stmt],
    *,
    attrs: Mapping[str, Any] | None = None,
    scalars: Sequence[ir.Var] = (),
) -> ir.PrimFunc:
    """A function in flat form: `body` gets one-dimensional views of the buffers."""
    pairs: list[tuple[ir.Var, ir.Buffer]] = []
    views: list[tuple[ir.Buffer, ir.Expr]] = []
    for label, dtype, shape in buffers:
        extents = tuple(index(d) if isinstance(d, int) else d for d in shape)
        buffer = ir.Buffer(label, ir.dtype_of(dtype), extents)
        pairs.append((ir.var(f"{label}_handle", HANDLE), buffer))
        size = index(1)
        for extent in extents:
            size = ir.mul(size, extent)
        zeros = tuple(index(0) for _ in extents)
        source = ir.Call("address_of", (ir.BufferLoad(buffer, zeros),), HANDLE)
        views.append((ir.Buffer(f"{label}_flat", buffer.dtype, (size,)), source))
    stmt = body(*(view for view, _ in views))
    for view, source in reversed(views):
        stmt = ir.DeclBuffer(view, source, stmt)
    params = (*(p for p, _ in pairs), *scalars)
    return ir.PrimFunc(params, tuple(pairs), stmt, {"global_symbol": name, **(attrs or {})})


def serial(extent: Any, body: Callable[[ir.Var], ir.Stmt], **fields: Any) -> ir.Stmt:
    """`for i in range(extent): body(i)`; `kind=ForKind.PARALLEL` for a parallel loop."""
    i = ir.var("i", INT64)
    bound = index(extent) if isinstance(extent, int) else extent
    kind = fields.pop("kind", ir.ForKind.SERIAL)
    return ir.For(i, index(0), bound, kind, body(i), **fields)


def vector(base: Any, lanes: int) -> ir.Expr:
    """`lanes` contiguous positions from `base`."""
    base = index(base) if isinstance(base, int) else base
    return base if lanes == 1 else ir.Ramp(base, index(1), lanes)


@pytest.fixture(scope="session")
def flat_program() -> Callable[..., ir.PrimFunc]:
    """`flat`, for tests of other files."""
    return flat


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    return ObjectCache(Path(tmp_path_factory.mktemp("objects")))


@pytest.fixture(scope="session")
def build_flat(cache: ObjectCache) -> Callable[..., Module]:
    """Compiles a flat function or module for this machine."""

    def build(program: Any, target: str = "native") -> Module:
        module = program
        if isinstance(program, ir.PrimFunc):
            module = ir.IRModule({program.name: program})
        return Module(module, compile_lowered(module, Target(target), cache=cache))

    return build


@pytest.fixture(scope="session")
def evaluate(build_flat: Callable[..., Module]) -> Callable[..., np.ndarray]:
    """`evaluate(rows, inputs, dtype, lanes)`: each row is a function from the inputs' elements to
    an expression of `dtype`; the result has one line per row."""

    def run(
        rows: Sequence[Callable[..., ir.Expr]],
        inputs: Sequence[np.ndarray],
        dtype: str,
        lanes: int = 1,
        **attrs: Any,
    ) -> np.ndarray:
        count = len(inputs[0])
        assert count % lanes == 0
        specs: list[BufferSpec] = [
            (f"x{i}", ir.dtype_of(a.dtype).name, (count,)) for i, a in enumerate(inputs)
        ]
        specs.append(("y", dtype, (len(rows), count)))

        def body(*views: ir.Buffer) -> ir.Stmt:
            def step(i: ir.Var) -> ir.Stmt:
                place = vector(ir.mul(i, lanes), lanes)
                loaded = [ir.BufferLoad(v, (place,)) for v in views[:-1]]
                return ir.seq(
                    ir.BufferStore(
                        views[-1],
                        row(*loaded),
                        (vector(ir.add(ir.mul(i, lanes), number * count), lanes),),
                    )
                    for number, row in enumerate(rows)
                )

            return serial(count // lanes, step)

        result = np.zeros((len(rows), count), ir.dtype_of(dtype).numpy())
        module = build_flat(flat("evaluate", specs, body, attrs=attrs))
        module["evaluate"](*inputs, result)
        return result

    return run


@pytest.fixture(autouse=True)
def _quiet_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
