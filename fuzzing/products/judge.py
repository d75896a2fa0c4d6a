"""Compile a product, and compare its calls with the product in float64 or of integers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch

import blockwright as bw
from blockwright import ir
from blockwright.target import Target
from fuzzing.eager.outcome import Outcome, called, export, problem_of
from fuzzing.products.product import Array, Einsum, Product, tensor


def judge(product: Product, seed: int) -> Outcome:
    """Judge all calls of a product, each made twice: the bits are the same."""
    calls = [product.operands(call, seed) for call in range(len(product.sizes))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", bw.BlockwrightWarning)  # of a strategy that failed
            executable = _compiled(product, calls[0])
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    if isinstance(executable, Outcome):
        return executable
    for operands in calls:
        given = [a for name, a in operands.items() if not (name == "w" and product.constant)]
        before = [a.copy() for a in given]
        found, again = called(executable, tuple(given)), called(executable, tuple(given))
        for result in (found, again):
            if isinstance(result, Outcome):
                return result
        words = _difference(product, operands, np.asarray(found))
        if not words and np.asarray(found).tobytes() != np.asarray(again).tobytes():
            words = "a second call gives other bits"
        if not words and any(
            a.tobytes() != b.tobytes() for a, b in zip(given, before, strict=True)
        ):
            words = "the call changes an operand"
        if words:
            return Outcome("wrong", product.form, f"{words}: {product}")
    return Outcome("passed")


def _compiled(product: Product, operands: dict[str, Array]) -> Any:
    target = Target(product.target, num_threads=product.threads)
    if product.form != "einsum":
        module: Any = bw.from_source(product.text())
        if product.constant:
            module = _with_constant(module, operands["w"])
        return bw.compile(module, target=target)
    w = operands["w"] if product.constant else None
    inputs = tuple(tensor(a) for name, a in operands.items() if name != "w" or w is None)
    dims = {axis: torch.export.Dim(f"n{axis}", min=1, max=4096) for axis in product.symbolic}
    second = {other: dims[mine] for mine, other in product.shared if mine in dims}
    shapes = [
        dims,
        *([] if product.constant else [second]),
        *([{}] if "bias" in product.steps else []),
    ]
    program = export(Einsum(product, w), inputs, (tuple(shapes),) if dims else None)
    if isinstance(program, Outcome):
        return program
    return bw.compile(program, target=target, options={"fallback": "error"})


def _with_constant(module: ir.IRModule, w: Array) -> ir.IRModule:
    """The module with a constant in place of the parameter `w`."""
    main = module["main"]
    assert isinstance(main, ir.GraphFunction)
    param = next(p for p in main.params if p.name == "w")
    constant = ir.Constant(w, "w", info=param.info)

    def change(node: ir.Node) -> ir.Node | None:
        return constant if node is param else None

    body = ir.rewrite_bottom_up(main.body, change)
    params = tuple(p for p in main.params if p is not param)
    return module.replace(functions={"main": main.replace(params=params, body=body)})


def _difference(product: Product, operands: dict[str, Array], found: Array) -> str:
    """What is wrong with a result, or ""."""
    wanted, near = product.expected(operands)
    if found.shape != wanted.shape or str(found.dtype) != product.result:
        return f"{found.dtype}{found.shape}, not {product.result}{wanted.shape}"
    actual = found.astype(np.float64)
    wrong = ~(np.abs(actual - wanted) <= near)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements, first at {at}: {actual[at]}, expected "
        f"{wanted[at]} within {near[at]:.3g}"
    )


# -------------------------------------------------------------------------------------- reduction
def smaller(product: Product) -> Iterator[Product]:
    """Products with fewer operators, calls and symbols, without a constant, for one thread."""
    change = msgspec.structs.replace
    for place in range(len(product.steps)):
        yield change(product, steps=product.steps[:place] + product.steps[place + 1 :])
    if len(product.sizes) > 1:
        for sizes in product.sizes:
            yield change(product, sizes=(sizes,))
    elif product.symbolic:
        x, w = product.shapes(0)
        yield change(product, x=x, w=w, symbolic=(), sizes=((),))
    if product.constant:
        yield change(product, constant=False)
    if product.threads > 1:
        yield change(product, threads=1)
    for shape in range(4 if product.form in ("matmul", "linear") and not product.symbolic else 0):
        yield from _cut(product, shape)


def _cut(product: Product, part: int) -> Iterator[Product]:
    """The product with half of the rows, terms, columns, or batches."""
    x, w = list(product.x), list(product.w)
    own, other = {0: (-2, None), 1: (-1, -2), 2: (None, -1), 3: (0, 0)}[part]
    if product.form == "linear":
        own, other = {0: (-2, None), 1: (-1, 1), 2: (None, 0), 3: (0, None)}[part]
    if part == 3 and len(x) < 3:
        return
    for shape, axis in ((x, own), (w, other)):
        if axis is not None:
            shape[axis] = (shape[axis] + 1) // 2
    if (x, w) != (list(product.x), list(product.w)):
        yield msgspec.structs.replace(product, x=tuple(x), w=tuple(w))
