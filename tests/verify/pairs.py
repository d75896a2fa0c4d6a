"""Programs in text, and pairs of them, for tests of the verifier."""

from __future__ import annotations

import textwrap

from blockwright import ir
from blockwright.script.ir import from_source


def program(parameters: str, body: str, sizes: str = "") -> ir.PrimFunc:
    """A tensor program from its parameters and its body.

    Args:
        parameters: such as ``A[16, 8], C[16]``: names and shapes of float32 buffers; a name may be
            followed by another type, ``rows:int64[16]``.
        sizes: names of symbolic sizes, separated by spaces.
    """
    heads: list[str] = []
    matches: list[str] = [f"{name} = T.int64()" for name in sizes.split()]
    for part in parameters.split("; "):
        name, shape = part.split("[")
        name, _, dtype = name.partition(":")
        shape, dtype = f"({shape.rstrip(']')},)", dtype or "float32"
        if sizes:
            heads.append(f"{name}_handle: T.handle")
            matches.append(f'{name} = T.match_buffer({name}_handle, {shape}, "{dtype}")')
        else:
            heads.append(f'{name}: T.Buffer({shape}, "{dtype}")')
    lines = "\n".join([*matches, textwrap.dedent(body).strip()])
    text = f"@T.prim_func\ndef main({', '.join(heads)}):\n{textwrap.indent(lines, '    ')}\n"
    parsed = from_source(text)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


MATMUL = """
    for i, j, k in T.grid({n}, {n}, {n}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def matmul(n: str = "20") -> ir.PrimFunc:
    """The product of two square matrices."""
    sizes = "" if n.isdigit() else n
    return program(f"A[{n}, {n}]; B[{n}, {n}]; C[{n}, {n}]", MATMUL.format(n=n), sizes)


def tiled(
    n: str = "20",
    *,
    init: bool = True,
    guard: str = "",
    column: str = "vj",
    shift: str = "",
    tile: int = 8,
) -> ir.PrimFunc:
    """The product in tiles that need not divide the size, or with something wrong about it."""
    count = f"({n} + {tile - 1}) // {tile}"
    where = guard or f"i0 * {tile} + i1 < {n} and k0 * {tile} + k1 < {n}"
    first = (
        f"""
            for i1, j in T.grid({tile}, {n}):
                with T.block("C_init"):
                    vi = T.axis.spatial({n}, i0 * {tile} + i1)
                    vj = T.axis.spatial({n}, j)
                    T.where(i0 * {tile} + i1 < {n})
                    C[vi, vj] = T.float32(0)"""
        if init
        else ""
    )
    body = f"""
        for i0 in range({count}):{first}
            for k0, j, i1, k1 in T.grid({count}, {n}, {tile}, {tile}):
                with T.block("C"):
                    vi = T.axis.spatial({n}, i0 * {tile} + i1)
                    vj = T.axis.spatial({n}, j)
                    vk = T.axis.reduce({n}, k0 * {tile} + k1)
                    T.where({where})
                    C[vi, {column}] = C[vi, {column}] + A[vi, vk{shift}] * B[vk, {column}]
    """
    sizes = "" if n.isdigit() else n
    return program(f"A[{n}, {n}]; B[{n}, {n}]; C[{n}, {n}]", body, sizes)
