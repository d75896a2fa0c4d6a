"""The floating-point peak of this machine, measured: independent FMA chains in registers.

As many chains as hide the latency of an FMA, nothing loaded or stored inside the loop. The program
is compiled like every other, so that vector width and instruction are those our kernels use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_CHAINS = 12
_ROUNDS = 1 << 18
_TASKS = 8  # per thread, so that threads finish together

_PROGRAM = """
@T.prim_func
def peak(x: T.Buffer((LANES,), "float32"), out: T.Buffer((TASKS, LANES), "float32")):
    for task in T.parallel(TASKS):
        with T.block("task"):
            t = T.axis.spatial(TASKS, task)
            acc = T.alloc_buffer((CHAINS, LANES), "float32", scope="local")
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("start"):
                        vc, vl = T.axis.remap("SS", [c, lane])
                        acc[vc, vl] = x[vl]
            for r in range(ROUNDS):
                for c in T.unroll(CHAINS):
                    for lane in T.vectorized(LANES):
                        with T.block("step"):
                            vr = T.axis.opaque(ROUNDS, r)
                            vc, vl = T.axis.remap("SS", [c, lane])
                            acc[vc, vl] = T.fma(acc[vc, vl], x[vl], x[vl])
            for lane in T.vectorized(LANES):
                with T.block("clear"):
                    vl = T.axis.spatial(LANES, lane)
                    out[t, vl] = T.float32(0)
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("keep"):
                        vc = T.axis.reduce(CHAINS, c)
                        vl = T.axis.spatial(LANES, lane)
                        out[t, vl] = out[t, vl] + acc[vc, vl]
"""


def peak_call(threads: int) -> tuple[Callable[[], Any], float]:
    """A call that runs the chains on `threads` threads, and the operations it does."""
    import blockwright as bw

    lanes = bw.Target("native").vector_bits // 32
    tasks = threads * _TASKS
    sizes = {"LANES": lanes, "TASKS": tasks, "CHAINS": _CHAINS, "ROUNDS": _ROUNDS}
    text = _PROGRAM
    for name, value in sizes.items():
        text = text.replace(name, str(value))
    run = bw.build(bw.from_source(text))["peak"]
    bw.set_num_threads(threads)
    x = np.full(lanes, 0.5, "float32")
    out = np.zeros((tasks, lanes), "float32")
    return (lambda: run(x, out)), 2.0 * lanes * tasks * _CHAINS * _ROUNDS
