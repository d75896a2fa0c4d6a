"""Compare compiled code with the interpreter."""

from __future__ import annotations

from blockwright import ir
from blockwright.build import build
from blockwright.runtime import ffi
from blockwright.testing.arrays import Fenced, small_sizes
from blockwright.testing.check import Reference
from blockwright.testing.generators import random_program
from blockwright.testing.moves.checks import unbound


def check_native(reference: Reference, after: ir.PrimFunc) -> None:
    """Check that the compiled program writes the expected results and nothing around them.

    It runs at the sizes of the reference, and at small ones if sizes are symbolic. There are no
    threads: loops over thread axes run serially, and shared memory is ordinary memory.
    """
    func = _in_plain_memory(unbound(after))
    attrs = {key: value for key, value in func.attrs.items() if key != "num_outputs"}
    module = build(func.replace(attrs=attrs))  # every parameter is passed, including outputs
    for each in [reference, *_small(reference)]:
        fenced = Fenced(each.given)
        module(*fenced.arrays)
        each.assert_results(fenced.arrays, after, note=" in compiled code")
        if broken := fenced.broken():
            names = ", ".join(func.buffers[k].name for k in broken)
            raise AssertionError(f"compiled code writes outside of {names}\n{after!r}")


def _small(reference: Reference) -> list[Reference]:
    """The same program at small values of its symbolic sizes."""
    program, seed = reference.func, reference.seed
    return [Reference(program, seed=seed, sizes=sizes) for sizes in small_sizes(program, seed)]


def _in_plain_memory(func: ir.PrimFunc) -> ir.PrimFunc:
    def change(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.Buffer) and node.scope == "shared":
            return node.replace(scope="global")
        return None

    return ir.rewrite_bottom_up(func, change)


def load_compiler() -> None:
    """Load everything that compilation loads on first use, so that forked processes inherit it.

    Loading takes seconds.
    """
    build(random_program(0, stages=1, symbolic=False))
    ffi.tvm_ffi()
