"""Tensor programs as the literature on this abstraction prints them, in the classic spelling."""

from blockwright.script import ir as I
from blockwright.script import tir as T


@I.ir_module
class Module:
    @T.prim_func
    def fuse_add_exp(A: T.Buffer[(64, 64), "float32"], C: T.Buffer[(64, 64), "float32"]):
        B = T.alloc_buffer((64, 64), "float32")
        for i, j in T.grid(64, 64):
            with T.block("block_B"):
                vi = T.axis.spatial(64, i)
                vj = T.axis.spatial(64, j)
                B[vi, vj] = A[vi, vj] + 1
        for i in range(64):
            with T.block("block_C"):
                vi = T.axis.spatial(64, i)
                for j in range(64):
                    C[vi, j] = T.exp(B[vi, j])

    @T.prim_func
    def blockized_matmul(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        C: T.Buffer((64, 64), "float32"),
    ):
        for yo, xo, ko in T.grid(16, 16, 16):
            with T.block("outer"):
                vy = T.axis.spatial(16, yo)
                vx = T.axis.spatial(16, xo)
                vk = T.axis.reduce(16, ko)
                T.reads(
                    A[vy * 4 : vy * 4 + 4, vk * 4 : vk * 4 + 4],
                    B[vk * 4 : vk * 4 + 4, vx * 4 : vx * 4 + 4],
                )
                T.writes(C[vy * 4 : vy * 4 + 4, vx * 4 : vx * 4 + 4])
                with T.init():
                    for y, x in T.grid(4, 4):
                        C[vy * 4 + y, vx * 4 + x] = 0.0
                for y, x, k in T.grid(4, 4, 4):
                    C[vy * 4 + y, vx * 4 + x] += (
                        A[vy * 4 + y, vk * 4 + k] * B[vk * 4 + k, vx * 4 + x]
                    )

    @T.prim_func
    def early_matmul(a: T.handle, b: T.handle, c: T.handle) -> None:
        C = T.match_buffer(c, (1024, 1024), "float32")
        A = T.match_buffer(a, (1024, 1024), "float32")
        B = T.match_buffer(b, (1024, 1024), "float32")
        reducer = T.comm_reducer(T.Add, T.float32(0))
        with T.block([1024, 1024, T.reduce_axis(0, 1024)], "C") as [vi, vj, vk]:
            reducer.step(C[vi, vj], A[vi, vk] * B[vk, vj])

    @T.prim_func
    def tiled_with_bind(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, [1024, 1024])
        B = T.match_buffer(b, [1024, 1024])
        C = T.match_buffer(c, [1024, 1024])
        for i0_outer, i1_outer_init, i0_inner_init in T.grid(32, 32, 32):
            for i1_inner_init in T.vectorized(0, 32):
                with T.block([1024, 1024], "C_init") as [vi_init, vj_init]:
                    T.bind(vi_init, ((i0_outer * 32) + i0_inner_init))
                    T.bind(vj_init, ((i1_outer_init * 32) + i1_inner_init))
                    C[vi_init, vj_init] = T.float32(0)
        for i0_outer, i1_outer, i2_outer, i2_inner, i0_inner in T.grid(32, 32, 256, 4, 32):
            for i1_inner in range(0, 32, annotations={"loop_type": "vectorize"}):
                with T.block([1024, 1024, T.reduce_axis(0, 1024)], "C_update") as [vi, vj, vk]:
                    T.bind(vi, ((i0_outer * 32) + i0_inner))
                    T.bind(vj, ((i1_outer * 32) + i1_inner))
                    T.bind(vk, ((i2_outer * 4) + i2_inner))
                    C[vi, vj] = C[vi, vj] + (A[vi, vk] * B[vk, vj])

    @T.prim_func
    def execution_scopes(A: T.Buffer((32, 4, 32), "float32"), B: T.Buffer((32, 4, 32), "float32")):
        for bx in T.thread_binding(32, thread="blockIdx.x"):
            with T.block("device", exec_scope="gpu_block"):
                vb = T.axis.spatial(32, bx)
                for ty in T.thread_binding(0, 4, thread="threadIdx.y"):
                    with T.block("warp", exec_scope="gpu_warp"):
                        vw = T.axis.spatial(4, ty)
                        for tx in T.thread_binding(32, "threadIdx.x", annotations={"hint": 2}):
                            with T.block("lane", exec_scope="gpu_thread"):
                                vt = T.axis.spatial(32, tx)
                                A[vb, vw, vt] = B[vb, vw, vt] + 1.0

    @T.prim_func
    def tensor_exp(x: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n,), "float32")
        Y = T.match_buffer(y, (n,), "float32")
        with T.grid(n) as i:
            Y[i] = T.exp(X[i])

    @T.prim_func
    def mm_symbolic(
        X: T.Buffer(("n", 128), "float32"),
        W: T.Buffer((128, 256), "float32"),
        Y: T.Buffer(("n", 256), "float32"),
    ):
        n = T.int64()
        for i, j, k in T.grid(n, 256, 128):
            with T.block("mm"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = 0
                Y[vi, vj] += X[vi, vk] * W[vk, vj]
