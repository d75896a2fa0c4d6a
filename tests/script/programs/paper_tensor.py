"""Listings of the tensor level, each stage a program, in today's dialect."""

from blockwright.script import ir as I
from blockwright.script import tir as T


@I.ir_module
class Module:
    # ------------------------------------------------ a matrix product and a maximum, tiled, fused
    @T.prim_func
    def dot_max(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        D: T.Buffer((64, 64), "float32"),
    ):
        C = T.alloc_buffer((64, 64), "float32")
        for i, j, k in T.grid(64, 64, 64):
            with T.block("block_C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] += A[vi, vk] * B[vk, vj]
        for i, j in T.grid(64, 64):
            with T.block("block_D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.max(C[vi, vj], T.float32(0))

    @T.prim_func
    def dot_max_tiled(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        D: T.Buffer((64, 64), "float32"),
    ):
        C = T.alloc_buffer((64, 64), "float32")
        for i0, j0, i1, j1, k in T.grid(8, 8, 8, 8, 64):
            with T.block("block_C"):
                vi = T.axis.spatial(64, i0 * 8 + i1)
                vj = T.axis.spatial(64, j0 * 8 + j1)
                vk = T.axis.reduce(64, k)
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] += A[vi, vk] * B[vk, vj]
        for i, j in T.grid(64, 64):
            with T.block("block_D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.max(C[vi, vj], T.float32(0))

    @T.prim_func
    def dot_max_fused(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        D: T.Buffer((64, 64), "float32"),
    ):
        C = T.alloc_buffer((64, 64), "float32")
        for i0, j0 in T.grid(8, 8):
            for i1, j1, k in T.grid(8, 8, 64):
                with T.block("block_C"):
                    vi = T.axis.spatial(64, i0 * 8 + i1)
                    vj = T.axis.spatial(64, j0 * 8 + j1)
                    vk = T.axis.reduce(64, k)
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] += A[vi, vk] * B[vk, vj]
            for i1, j1 in T.grid(8, 8):
                with T.block("block_D"):
                    vi = T.axis.spatial(64, i0 * 8 + i1)
                    vj = T.axis.spatial(64, j0 * 8 + j1)
                    D[vi, vj] = T.max(C[vi, vj], T.float32(0))

    # ----------------------------------------------------------------------------- blockization
    @T.prim_func
    def split_reduction(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        C: T.Buffer((64, 64), "float32"),
    ):
        for i, j, k0, k1 in T.grid(64, 64, 16, 4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                vk = T.axis.reduce(64, k0 * 4 + k1)
                C[vi, vj] += A[vi, vk] * B[vk, vj]

    @T.prim_func
    def blockized(
        A: T.Buffer((64, 64), "float32"),
        B: T.Buffer((64, 64), "float32"),
        C: T.Buffer((64, 64), "float32"),
    ):
        for i, j, k0 in T.grid(64, 64, 16):
            with T.block("C_o"):
                vi0, vj0, vk0 = T.axis.remap("SSR", [i, j, k0])
                T.reads(C[vi0, vj0], A[vi0, vk0 * 4 : vk0 * 4 + 4], B[vk0 * 4 : vk0 * 4 + 4, vj0])
                T.writes(C[vi0, vj0])
                for k1 in range(4):
                    with T.block("C"):
                        vk = T.axis.reduce(4, k1)
                        C[vi0, vj0] += A[vi0, vk0 * 4 + vk] * B[vk0 * 4 + vk, vj0]

    # -------------------------------------------- a convolution on its way to a matrix intrinsic
    @T.prim_func
    def conv2d(
        A: T.Buffer((16, 117, 117, 3), "float32"),
        B: T.Buffer((64, 7, 7, 3), "float32"),
        C: T.Buffer((16, 56, 56, 64), "float32"),
    ):
        for n, h, w, c, rh, rw, rc in T.grid(16, 56, 56, 64, 7, 7, 3):
            with T.block("C"):
                vn, vh, vw, vc, vrh, vrw, vrc = T.axis.remap("SSSSRRR", [n, h, w, c, rh, rw, rc])
                with T.init():
                    C[vn, vh, vw, vc] = T.float32(0)
                C[vn, vh, vw, vc] += A[vn, vh * 2 + vrh, vw * 2 + vrw, vrc] * B[vc, vrh, vrw, vrc]

    @T.prim_func
    def conv2d_reindexed(
        A: T.Buffer((16, 117, 117, 3), "float32"),
        B: T.Buffer((64, 7, 7, 3), "float32"),
        C: T.Buffer((16, 56, 56, 64), "float32"),
    ):
        Ar = T.alloc_buffer((16, 56, 56, 7, 7, 3), "float32")
        Br = T.alloc_buffer((64, 7, 7, 3), "float32")
        Cr = T.alloc_buffer((16, 56, 56, 64), "float32")
        for n, h, w, rh, rw, rc in T.grid(16, 56, 56, 7, 7, 3):
            with T.block("A_reindex"):
                vn, vh, vw, vrh, vrw, vrc = T.axis.remap("SSSSSS", [n, h, w, rh, rw, rc])
                Ar[vn, vh, vw, vrh, vrw, vrc] = A[vn, vh * 2 + vrh, vw * 2 + vrw, vrc]
        for c, rh, rw, rc in T.grid(64, 7, 7, 3):
            with T.block("B_reindex"):
                vc, vrh, vrw, vrc = T.axis.remap("SSSS", [c, rh, rw, rc])
                Br[vc, vrh, vrw, vrc] = B[vc, vrh, vrw, vrc]
        for n, h, w, c, rh, rw, rc in T.grid(16, 56, 56, 64, 7, 7, 3):
            with T.block("C"):
                vn, vh, vw, vc, vrh, vrw, vrc = T.axis.remap("SSSSRRR", [n, h, w, c, rh, rw, rc])
                with T.init():
                    Cr[vn, vh, vw, vc] = T.float32(0)
                Cr[vn, vh, vw, vc] += Ar[vn, vh, vw, vrh, vrw, vrc] * Br[vc, vrh, vrw, vrc]
        for n, h, w, c in T.grid(16, 56, 56, 64):
            with T.block("C_reindex"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [n, h, w, c])
                C[vn, vh, vw, vc] = Cr[vn, vh, vw, vc]

    @T.prim_func
    def conv2d_layout(
        A: T.Buffer((16, 117, 117, 3), "float32"),
        B: T.Buffer((64, 7, 7, 3), "float32"),
        C: T.Buffer((16, 56, 56, 64), "float32"),
    ):
        At = T.alloc_buffer((50176, 147), "float32")
        Bt = T.alloc_buffer((64, 147), "float32")
        Ct = T.alloc_buffer((50176, 64), "float32")
        for n, h, w, rh, rw, rc in T.grid(16, 56, 56, 7, 7, 3):
            with T.block("A_reindex"):
                vn, vh, vw, vrh, vrw, vrc = T.axis.remap("SSSSSS", [n, h, w, rh, rw, rc])
                At[vn * 3136 + vh * 56 + vw, vrh * 21 + vrw * 3 + vrc] = A[
                    vn, vh * 2 + vrh, vw * 2 + vrw, vrc
                ]
        for c, rh, rw, rc in T.grid(64, 7, 7, 3):
            with T.block("B_reindex"):
                vc, vrh, vrw, vrc = T.axis.remap("SSSS", [c, rh, rw, rc])
                Bt[vc, vrh * 21 + vrw * 3 + vrc] = B[vc, vrh, vrw, vrc]
        for nhw, c, rhwc in T.grid(50176, 64, 147):
            with T.block("C"):
                vnhw, vc, vrhwc = T.axis.remap("SSR", [nhw, c, rhwc])
                with T.init():
                    Ct[vnhw, vc] = T.float32(0)
                Ct[vnhw, vc] += At[vnhw, vrhwc] * Bt[vc, vrhwc]
        for n, h, w, c in T.grid(16, 56, 56, 64):
            with T.block("C_reindex"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [n, h, w, c])
                C[vn, vh, vw, vc] = Ct[vn * 3136 + vh * 56 + vw, vc]

    # --------------------------------------------- an intrinsic for 4 x 4 x 4 and its two meanings
    @T.prim_func
    def matmul4x4(
        A: T.Buffer((4, 4), "float32"),
        B: T.Buffer((4, 4), "float32"),
        C: T.Buffer((4, 4), "float32"),
    ):
        for y, x, k in T.grid(4, 4, 4):
            with T.block("update"):
                vy, vx, vk = T.axis.remap("SSR", [y, x, k])
                C[vy, vx] += A[vy, vk] * B[vk, vx]

    @T.prim_func
    def matmul4x4_dot(
        A: T.Buffer((4, 4), "float32", offset_factor=1),
        B: T.Buffer((4, 4), "float32", offset_factor=1),
        C: T.Buffer((4, 4), "float32", offset_factor=1),
    ):
        with T.block("root"):
            T.reads(C[0:4, 0:4], A[0:4, 0:4], B[0:4, 0:4])
            T.writes(C[0:4, 0:4])
            for y, x in T.grid(4, 4):
                with T.block("dot"):
                    vy, vx = T.axis.remap("SS", [y, x])
                    T.reads(C[vy, vx], A[vy, 0:4], B[0:4, vx])
                    T.writes(C[vy, vx])
                    C[vy, vx] = C[vy, vx] + T.call_extern(
                        "float32", "accel.dot", T.address_of(A[vy, 0]), T.address_of(B[0, vx])
                    )

    # ------------------------------------------------- a product from definition to two nests
    @T.prim_func
    def definition(a: T.handle, b: T.handle, c: T.handle) -> None:
        C = T.match_buffer(c, (1024, 1024), "float32")
        A = T.match_buffer(a, (1024, 1024), "float32")
        B = T.match_buffer(b, (1024, 1024), "float32")
        reducer = T.comm_reducer(lambda x, y: x + y, T.float32(0))
        with T.block([1024, 1024, T.reduce_axis(0, 1024)], "C") as [vi, vj, vk]:
            reducer.step(C[vi, vj], A[vi, vk] * B[vk, vj])

    @T.prim_func
    def tiled(a: T.handle, b: T.handle, c: T.handle) -> None:
        C = T.match_buffer(c, [1024, 1024])
        A = T.match_buffer(a, [1024, 1024])
        B = T.match_buffer(b, [1024, 1024])
        reducer = T.comm_reducer(lambda x, y: x + y, T.float32(0))
        for i0_outer, i1_outer, i2_outer, i2_inner, i0_inner, i1_inner in T.grid(
            32, 32, 256, 4, 32, 32
        ):
            with T.block([1024, 1024, T.reduce_axis(0, 1024)], "C") as [vi, vj, vk]:
                T.bind(vi, ((i0_outer * 32) + i0_inner))
                T.bind(vj, ((i1_outer * 32) + i1_inner))
                T.bind(vk, ((i2_outer * 4) + i2_inner))
                reducer.step(C[vi, vj], (A[vi, vk] * B[vk, vj]))

    @T.prim_func
    def decomposed(a: T.handle, b: T.handle, c: T.handle) -> None:
        C = T.match_buffer(c, [1024, 1024])
        A = T.match_buffer(a, [1024, 1024])
        B = T.match_buffer(b, [1024, 1024])
        for i0_outer in range(32):
            for i1_outer_init, i0_inner_init in T.grid(32, 32):
                for i1_inner_init in T.vectorized(0, 32):
                    with T.block([1024, 1024], "C_init") as [vi_init, vj_init]:
                        T.bind(vi_init, ((i0_outer * 32) + i0_inner_init))
                        T.bind(vj_init, ((i1_outer_init * 32) + i1_inner_init))
                        C[vi_init, vj_init] = T.float32(0)
            for i1_outer, i2_outer, i2_inner, i0_inner in T.grid(32, 256, 4, 32):
                for i1_inner in T.vectorized(0, 32):
                    with T.block([1024, 1024, T.reduce_axis(0, 1024)], "C") as [vi, vj, vk]:
                        T.bind(vi, ((i0_outer * 32) + i0_inner))
                        T.bind(vj, ((i1_outer * 32) + i1_inner))
                        T.bind(vk, ((i2_outer * 4) + i2_inner))
                        C[vi, vj] = C[vi, vj] + (A[vi, vk] * B[vk, vj])

    # ------------------------------------------------------------------------ shorter listings
    @T.prim_func
    def named_block(x: T.handle, y: T.handle, z: T.handle) -> None:
        X = T.match_buffer(x, [128, 128], "float32")
        Y = T.match_buffer(y, [128, 128], "float32")
        Z = T.match_buffer(z, [128, 128], "float32")
        with T.block([128, 128, T.reduce_axis(0, 128)], "Z") as [i, j, k]:
            with T.init():
                Z[i, j] = T.float32(0)
            Z[i, j] = Z[i, j] + (X[i, k] * Y[k, j])

    @T.prim_func
    def from_expression(var_A: T.handle, var_update: T.handle) -> None:
        A = T.match_buffer(var_A, [128, 128], elem_offset=0, align=128, offset_factor=1)
        update = T.match_buffer(var_update, [128, 128], elem_offset=0, align=128, offset_factor=1)
        with T.block([], "root") as []:
            for i0, i1 in T.grid(128, 128):
                with T.block([128, 128], "update") as [i, j]:
                    T.bind(i, i0)
                    T.bind(j, i1)
                    T.reads([A[i : (i + 1), j : (j + 1)]])
                    T.writes([update[i : (i + 1), j : (j + 1)]])
                    update[i, j] = A[i, j] + T.float32(1)

    @T.prim_func
    def concat(
        A0: T.Buffer((10,), "float32"),
        A1: T.Buffer((10,), "float32"),
        A2: T.Buffer((10,), "float32"),
        B: T.Buffer((30,), "float32"),
    ):
        with T.block([10], "first") as vi:
            B[vi] = A0[vi]
        with T.block([10], "second") as vi:
            B[vi + 10] = A1[vi]
        with T.block([10], "third") as vi:
            B[vi + 20] = A2[vi]

    @T.prim_func
    def scopes(A: T.Buffer((32768,), "float32"), B: T.Buffer((32768,), "float32")):
        for bx in T.thread_binding(0, 32, thread="blockIdx.x"):
            with T.block(exec_scope="gpu_block"):
                vb = T.axis.spatial(32, bx)
                for ty in T.thread_binding(0, 32, thread="threadIdx.y"):
                    with T.block(exec_scope="gpu_warp"):
                        vw = T.axis.spatial(32, ty)
                        for tx in T.thread_binding(0, 32, thread="threadIdx.x"):
                            with T.block(exec_scope="gpu_thread"):
                                vi = T.axis.spatial(32768, vb * 1024 + vw * 32 + tx)
                                A[vi] = B[vi] + T.float32(1)

    # ---------------------------------------------------------- programs that graphs call
    @T.prim_func
    def fused_mm_relu(
        X: T.Buffer(("n", 128), "float32"),
        W: T.Buffer((128, 256), "float32"),
        Z: T.Buffer(("n", 256), "float32"),
    ):
        n = T.int64()
        Y = T.alloc_buffer((n, 256), "float32")
        for i, j, k in T.grid(n, 256, 128):
            with T.block():
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = 0
                Y[vi, vj] += X[vi, vk] * W[vk, vj]
        for i, j in T.grid(n, 256):
            with T.block():
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = max(Y[vi, vj], T.float32(0))

    @T.prim_func
    def fused_decode_q4_mm(
        X: T.Buffer(("n", 128), "float16"),
        Wdata: T.Buffer((128, 32), "uint32"),
        Wscale: T.Buffer((128, 8), "float16"),
        Y: T.Buffer(("n", 256), "float16"),
    ):
        n = T.int64()
        W = T.alloc_buffer((128, 256), "float16")
        for k, j in T.grid(128, 256):
            W[k, j] = (
                T.Cast("float16", (Wdata[k, j // 8] >> T.Cast("uint32", j % 8 * 4)) & 15)
                - T.float16(7)
            ) * Wscale[k, j // 32]
        for i, j, k in T.grid(n, 256, 128):
            if k == 0:
                Y[i, j] = 0.0
            Y[i, j] += X[i, k] * W[k, j]

    @T.prim_func
    def mm_split_k(
        X: T.Buffer(("n", 2048), "float32"),
        W: T.Buffer((2048, 4096), "float32"),
        workspace: T.Buffer((8, "n", 4096), "float32"),
        Y: T.Buffer(("n", 4096), "float32"),
    ):
        T.func_attr({"compute_pattern": "Opaque"})
        n = T.int64()
        for i, j, k0, k1 in T.grid(n, 4096, 8, 256):
            with T.block("partial"):
                vi, vj, vs, vk = T.axis.remap("SSSR", [i, j, k0, k1])
                with T.init():
                    workspace[vs, vi, vj] = 0
                workspace[vs, vi, vj] += X[vi, vs * 256 + vk] * W[vs * 256 + vk, vj]
        for i, j, k0 in T.grid(n, 4096, 8):
            with T.block("sum"):
                vi, vj, vs = T.axis.remap("SSR", [i, j, k0])
                with T.init():
                    Y[vi, vj] = 0
                Y[vi, vj] += workspace[vs, vi, vj]
