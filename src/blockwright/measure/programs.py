"""Programs that measure the machine, compiled with the vector width and instructions of kernels.

Arithmetic: enough independent chains of FMAs or dot products to hide their latency, without loads
or stores in the loop. Memory: repeated sums over an array, of which each task reads a part; an
array that fits a cache measures the bandwidth of that cache. Streams: copies from one array to
another, with plain or non-temporal stores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.build import build
from blockwright.intrin.hardware import DOT_PRODUCTS, MATRIX_PRODUCTS, MatrixProduct
from blockwright.runtime.threads import set_num_threads
from blockwright.script.ir import from_source
from blockwright.target import Target

_CHAINS = 12
_DOT_CHAINS = 24  # dot products of bfloat16 take six cycles or more, two at a time
_ROUNDS = 1 << 15  # about a millisecond, similar to the kernels it is compared with
_TASKS = 8  # per thread, so that threads finish together

# Return the sum of all chains, so that none is eliminated as dead code.
_KEEP = """
            for lane in T.vectorized(LANES):
                with T.block("clear"):
                    vl = T.axis.spatial(LANES, lane)
                    out[t, vl] = T.KIND(0)
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("keep"):
                        vc = T.axis.reduce(CHAINS, c)
                        vl = T.axis.spatial(LANES, lane)
                        out[t, vl] = out[t, vl] + acc[vc, vl]
"""

_PEAK = """
@T.prim_func
def peak(
    a: T.Buffer((WIDTH,), "A_TYPE"),
    b: T.Buffer((WIDTH,), "B_TYPE"),
    out: T.Buffer((TASKS, LANES), "KIND"),
):
    for task in T.parallel(TASKS):
        with T.block("task"):
            t = T.axis.spatial(TASKS, task)
            acc = T.alloc_buffer((CHAINS, LANES), "KIND", scope="local")
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("start"):
                        vc, vl = T.axis.remap("SS", [c, lane])
                        acc[vc, vl] = T.KIND(0)
            for r in range(ROUNDS):
                for c in T.unroll(CHAINS):
                    with T.block("step"):
                        vr = T.axis.opaque(ROUNDS, r)
                        vc = T.axis.spatial(CHAINS, c)
                        acc[vc, T.ramp(0, 1, LANES)] = STEP
"""
_FMA = "T.fma(a[T.ramp(0, 1, WIDTH)], b[T.ramp(0, 1, WIDTH)], acc[vc, T.ramp(0, 1, LANES)])"
_DOT = "T.DOT(acc[vc, T.ramp(0, 1, LANES)], a[T.ramp(0, 1, WIDTH)], b[T.ramp(0, 1, WIDTH)])"

_TILE_PEAK = """
@T.prim_func
def peak(a: T.Buffer((WIDTH,), "A_TYPE"), b: T.Buffer((WIDTH,), "B_TYPE"),
         out: T.Buffer((TASKS, 4, 256), "KIND")):
    for task in T.parallel(TASKS):
        with T.block("task"):
            t = T.axis.spatial(TASKS, task)
            T.reads(a[0:WIDTH], b[0:WIDTH])
            T.writes(out[t, 0:4, 0:256])
            x = T.alloc_buffer((2, WIDTH), "A_TYPE", scope="amx.tile")
            y = T.alloc_buffer((2, WIDTH), "B_TYPE", scope="amx.tile")
            sums = T.alloc_buffer((4, 256), "KIND", scope="amx.tile")
            for i in T.unroll(2):
                x[i, T.ramp(0, 1, WIDTH)] = a[T.ramp(0, 1, WIDTH)]
                y[i, T.ramp(0, 1, WIDTH)] = b[T.ramp(0, 1, WIDTH)]
            for i in T.unroll(4):
                sums[i, T.ramp(0, 1, 256)] = T.broadcast(T.KIND(0), 256)
            for r in range(ROUNDS):
                for i in T.unroll(4):
                    sums[i, T.ramp(0, 1, 256)] = T.DOT(
                        sums[i, T.ramp(0, 1, 256)],
                        x[i // 2, T.ramp(0, 1, WIDTH)],
                        y[i % 2, T.ramp(0, 1, WIDTH)],
                    )
            for i in T.unroll(4):
                out[t, i, T.ramp(0, 1, 256)] = sums[i, T.ramp(0, 1, 256)]
"""

_READ_BYTES = 1 << 26  # minimum bytes per call, so that thread start-up is negligible

_READ = """
@T.prim_func
def read(x_: T.handle, out: T.Buffer((TASKS, LANES), "float32"), passes: T.int64):
    steps = T.int64()
    x = T.match_buffer(x_, (TASKS, steps, CHAINS, LANES), "float32")
    for task in T.parallel(TASKS):
        with T.block("task"):
            t = T.axis.spatial(TASKS, task)
            acc = T.alloc_buffer((CHAINS, LANES), "float32", scope="local")
            for c in T.unroll(CHAINS):
                for lane in T.vectorized(LANES):
                    with T.block("start"):
                        vc, vl = T.axis.remap("SS", [c, lane])
                        acc[vc, vl] = T.float32(0)
            for p in range(passes):
                for s in range(steps):
                    for c in T.unroll(CHAINS):
                        for lane in T.vectorized(LANES):
                            with T.block("step"):
                                vp = T.axis.opaque(passes, p)
                                vs = T.axis.opaque(steps, s)
                                vc, vl = T.axis.remap("SS", [c, lane])
                                acc[vc, vl] = acc[vc, vl] + x[t, vs, vc, vl]
"""

_STREAM = """
@T.prim_func
def stream(x_: T.handle, y_: T.handle):
    steps = T.int64()
    x = T.match_buffer(x_, (READS, TASKS, steps, LANES), "float32")
    y = T.match_buffer(y_, (TASKS, steps, LANES), "float32")
    for task in T.parallel(TASKS, annotations=NOTES):
        for s in range(steps):
            for lane in T.vectorized(LANES):
                with T.block("step"):
                    vt, vs, vl = T.axis.remap("SSS", [task, s, lane])
                    y[vt, vs, vl] = VALUE
"""


def peak_call(
    threads: int, target: str | Target = "native", dot: str = ""
) -> tuple[Callable[[], Any], float]:
    """Return a function that runs chains of multiply-adds, and the number of operations of a call.

    Args:
        threads: number of threads.
        target: whose instructions to use; by default those of this machine.
        dot: a dot product or a product of tiles of `intrin.hardware`, such as "dot2_bf16" or
            "mma_16x16x32_bf16"; float32 FMA by default.
    """
    if dot in MATRIX_PRODUCTS:
        return _tile_peak_call(threads, target, MATRIX_PRODUCTS[dot])
    lanes = _lanes(target)
    row = DOT_PRODUCTS[dot] if dot else None
    a, b, kind = ("float32",) * 3 if row is None else (row.a, row.b, row.accumulator)
    width = lanes * (1 if row is None else row.group)
    tasks, chains = threads * _TASKS, _CHAINS if row is None else _DOT_CHAINS
    words = {
        "STEP": _FMA if row is None else _DOT.replace("DOT", dot),
        "A_TYPE": a,
        "B_TYPE": b,
        "KIND": kind,
        "WIDTH": width,
        "LANES": lanes,
        "TASKS": tasks,
        "CHAINS": chains,
        "ROUNDS": _ROUNDS,
    }
    run = _built(_PEAK + _KEEP, words, "peak", threads, target)
    left, right = (np.ones(width, np.dtype(ir.dtype_of(t).numpy())) for t in (a, b))
    out = np.zeros((tasks, lanes), kind)
    return (lambda: run(left, right, out)), 2.0 * width * tasks * chains * _ROUNDS


def _tile_peak_call(
    threads: int, target: str | Target, row: MatrixProduct
) -> tuple[Callable[[], Any], float]:
    """As `peak_call`, of products of tile registers."""
    tasks, width, rounds = threads * _TASKS, row.ratio * row.tile, _ROUNDS // 16
    words = {
        "DOT": row.name, "A_TYPE": row.a, "B_TYPE": row.b, "KIND": row.accumulator,
        "WIDTH": width, "TASKS": tasks, "ROUNDS": rounds,
    }  # fmt: skip
    run = _built(_TILE_PEAK, words, "peak", threads, target)
    left, right = (np.ones(width, np.dtype(ir.dtype_of(t).numpy())) for t in (row.a, row.b))
    out = np.zeros((tasks, 4, row.tile), row.accumulator)
    return (lambda: run(left, right, out)), 2.0 * row.tile * row.depth * 4 * tasks * rounds


def read_call(threads: int, size: int) -> tuple[Callable[[], Any], float]:
    """Return a function that reads about `size` bytes repeatedly, and the total bytes it reads."""
    lanes = _lanes()
    steps = max(1, round(size / (4 * lanes * _CHAINS * threads)))
    once = 4 * lanes * _CHAINS * steps * threads
    passes = max(1, round(_READ_BYTES / once))
    words = {"KIND": "float32", "LANES": lanes, "TASKS": threads, "CHAINS": _CHAINS}
    run = _built(_READ + _KEEP, words, "read", threads)
    x = np.ones((threads, steps, _CHAINS, lanes), "float32")
    out = np.zeros((threads, lanes), "float32")
    return (lambda: run(x, out, passes)), float(once * passes)


def stream_call(
    threads: int, read: int, written: int, *, nontemporal: bool
) -> tuple[Callable[[], Any], float]:
    """Return a function that reads and writes the given bytes once, and the bytes it moves.

    Arguments: `read` is a multiple of `written`, or 0; `nontemporal` selects non-temporal stores.
    """
    lanes, reads = _lanes(), read // written
    tasks = threads * _TASKS
    steps = max(1, round(written / (4 * lanes * tasks)))
    value = " + ".join(f"x[{k}, vt, vs, vl]" for k in range(reads)) or "T.float32(1)"
    words = {
        "LANES": lanes,
        "TASKS": tasks,
        "READS": max(reads, 1),
        "VALUE": value,
        "NOTES": '{"nontemporal_stores": 0}' if nontemporal else "{}",
    }
    run = _built(_STREAM, words, "stream", threads)
    x = np.ones((max(reads, 1), tasks, steps, lanes), "float32")
    y = _lines(tasks, steps, lanes)
    return (lambda: run(x, y)), 4.0 * lanes * tasks * steps * (reads + 1)


def _lines(*shape: int) -> np.ndarray:
    """Allocate zeros at the middle of a page.

    A load waits for an earlier store whose address agrees in the last 12 bits (4 KiB aliasing), and
    NumPy places large arrays at the beginning of a page.
    """
    count = int(np.prod(shape))
    room = np.zeros(count + 2048, "float32")
    start = (2048 - room.ctypes.data) % 4096 // 4
    return room[start : start + count].reshape(shape)


def _lanes(target: str | Target = "native") -> int:
    return Target(target).vector_bits // 32


def _built(
    text: str, words: dict[str, Any], name: str, threads: int, target: str | Target = "native"
) -> Callable[..., Any]:
    for word, value in words.items():
        text = text.replace(word, str(value))
    set_num_threads(threads)
    return build(from_source(text), target)[name]
