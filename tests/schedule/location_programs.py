# ruff: noqa: E501
"""Programs as they occur, for tests of the location primitives: name → source."""

from __future__ import annotations

PROGRAMS: dict[str, str] = {
    # padding, convolution, batch norm, ReLU
    "conv_bn_relu": """
@T.prim_func
def main(X: T.Buffer((3, 10, 10), "float32"), W: T.Buffer((4, 3, 3, 3), "float32"), S: T.Buffer((4,), "float32"), H: T.Buffer((4,), "float32"), Y: T.Buffer((4, 10, 10), "float32")):
    P = T.alloc_buffer((3, 12, 12), "float32")
    C = T.alloc_buffer((4, 10, 10), "float32")
    N = T.alloc_buffer((4, 10, 10), "float32")
    for c, h, w in T.grid(3, 12, 12):
        with T.block("pad"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            P[vc, vh, vw] = T.if_then_else(1 <= vh and vh < 11 and 1 <= vw and vw < 11, X[vc, vh - 1, vw - 1], T.float32(0))
    for f, h, w, c, rh, rw in T.grid(4, 10, 10, 3, 3, 3):
        with T.block("conv"):
            vf, vh, vw, vc, vrh, vrw = T.axis.remap("SSSRRR", [f, h, w, c, rh, rw])
            with T.init():
                C[vf, vh, vw] = T.float32(0)
            C[vf, vh, vw] = C[vf, vh, vw] + P[vc, vh + vrh, vw + vrw] * W[vf, vc, vrh, vrw]
    for f, h, w in T.grid(4, 10, 10):
        with T.block("bn"):
            vf, vh, vw = T.axis.remap("SSS", [f, h, w])
            N[vf, vh, vw] = C[vf, vh, vw] * S[vf] + H[vf]
    for f, h, w in T.grid(4, 10, 10):
        with T.block("relu"):
            vf, vh, vw = T.axis.remap("SSS", [f, h, w])
            Y[vf, vh, vw] = T.max(N[vf, vh, vw], T.float32(0))
""",
    # scaling, convolution with stride 2
    "strided_conv": """
@T.prim_func
def main(X: T.Buffer((3, 11, 11), "float32"), W: T.Buffer((4, 3, 3, 3), "float32"), Y: T.Buffer((4, 5, 5), "float32")):
    P = T.alloc_buffer((3, 11, 11), "float32")
    for c, h, w in T.grid(3, 11, 11):
        with T.block("scale"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            P[vc, vh, vw] = X[vc, vh, vw] * 2.0
    for f, h, w, c, rh, rw in T.grid(4, 5, 5, 3, 3, 3):
        with T.block("conv"):
            vf, vh, vw, vc, vrh, vrw = T.axis.remap("SSSRRR", [f, h, w, c, rh, rw])
            with T.init():
                Y[vf, vh, vw] = T.float32(0)
            Y[vf, vh, vw] = Y[vf, vh, vw] + P[vc, vh * 2 + vrh, vw * 2 + vrw] * W[vf, vc, vrh, vrw]
""",
    # ReLU, max pooling with two consumers
    "pool": """
@T.prim_func
def main(X: T.Buffer((4, 8, 8), "float32"), Y: T.Buffer((4, 4, 4), "float32"), Z: T.Buffer((4,), "float32")):
    R = T.alloc_buffer((4, 8, 8), "float32")
    M = T.alloc_buffer((4, 4, 4), "float32")
    for c, h, w in T.grid(4, 8, 8):
        with T.block("relu"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            R[vc, vh, vw] = T.max(X[vc, vh, vw], T.float32(0))
    for c, h, w, rh, rw in T.grid(4, 4, 4, 2, 2):
        with T.block("pool"):
            vc, vh, vw, vrh, vrw = T.axis.remap("SSSRR", [c, h, w, rh, rw])
            with T.init():
                M[vc, vh, vw] = T.float32(-1e30)
            M[vc, vh, vw] = T.max(M[vc, vh, vw], R[vc, vh * 2 + vrh, vw * 2 + vrw])
    for c, h, w in T.grid(4, 4, 4):
        with T.block("out"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            Y[vc, vh, vw] = M[vc, vh, vw] + T.float32(1)
    for c, h, w in T.grid(4, 4, 4):
        with T.block("mean"):
            vc, vh, vw = T.axis.remap("SRR", [c, h, w])
            with T.init():
                Z[vc] = T.float32(0)
            Z[vc] = Z[vc] + M[vc, vh, vw] * T.float32(0.0625)
""",
    # softmax over a symbolic number of rows
    "softmax": """
@T.prim_func
def main(a: T.handle, y: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, T.int64(7)), "float32")
    Y = T.match_buffer(y, (n, T.int64(7)), "float32")
    M = T.alloc_buffer((n,), "float32")
    E = T.alloc_buffer((n, T.int64(7)), "float32")
    S = T.alloc_buffer((n,), "float32")
    for i, j in T.grid(n, T.int64(7)):
        with T.block("mx"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                M[vi] = T.float32(-1e30)
            M[vi] = T.max(M[vi], A[vi, vj])
    for i, j in T.grid(n, T.int64(7)):
        with T.block("ex"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = T.exp(A[vi, vj] - M[vi])
    for i, j in T.grid(n, T.int64(7)):
        with T.block("sm"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + E[vi, vj]
    for i, j in T.grid(n, T.int64(7)):
        with T.block("nrm"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = E[vi, vj] / S[vi]
""",
    # layer norm
    "layernorm": """
@T.prim_func
def main(A: T.Buffer((6, 10), "float32"), G: T.Buffer((10,), "float32"), B: T.Buffer((10,), "float32"), Y: T.Buffer((6, 10), "float32")):
    S = T.alloc_buffer((6,), "float32")
    Q = T.alloc_buffer((6,), "float32")
    for i, j in T.grid(6, 10):
        with T.block("sum"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vj]
    for i, j in T.grid(6, 10):
        with T.block("sq"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Q[vi] = T.float32(0)
            Q[vi] = Q[vi] + (A[vi, vj] - S[vi] * T.float32(0.1)) * (A[vi, vj] - S[vi] * T.float32(0.1))
    for i, j in T.grid(6, 10):
        with T.block("norm"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = (A[vi, vj] - S[vi] * T.float32(0.1)) / T.sqrt(Q[vi] + T.float32(1)) * G[vj] + B[vj]
""",
    # attention of two heads
    "attention": """
@T.prim_func
def main(Q: T.Buffer((2, 6, 4), "float32"), K: T.Buffer((2, 6, 4), "float32"), V: T.Buffer((2, 6, 4), "float32"), O: T.Buffer((2, 6, 4), "float32")):
    S = T.alloc_buffer((2, 6, 6), "float32")
    M = T.alloc_buffer((2, 6), "float32")
    E = T.alloc_buffer((2, 6, 6), "float32")
    D = T.alloc_buffer((2, 6), "float32")
    U = T.alloc_buffer((2, 6, 4), "float32")
    for h, i, j, k in T.grid(2, 6, 6, 4):
        with T.block("score"):
            vh, vi, vj, vk = T.axis.remap("SSSR", [h, i, j, k])
            with T.init():
                S[vh, vi, vj] = T.float32(0)
            S[vh, vi, vj] = S[vh, vi, vj] + Q[vh, vi, vk] * K[vh, vj, vk]
    for h, i, j in T.grid(2, 6, 6):
        with T.block("mx"):
            vh, vi, vj = T.axis.remap("SSR", [h, i, j])
            with T.init():
                M[vh, vi] = T.float32(-1e30)
            M[vh, vi] = T.max(M[vh, vi], S[vh, vi, vj])
    for h, i, j in T.grid(2, 6, 6):
        with T.block("ex"):
            vh, vi, vj = T.axis.remap("SSS", [h, i, j])
            E[vh, vi, vj] = T.exp(S[vh, vi, vj] - M[vh, vi])
    for h, i, j in T.grid(2, 6, 6):
        with T.block("den"):
            vh, vi, vj = T.axis.remap("SSR", [h, i, j])
            with T.init():
                D[vh, vi] = T.float32(0)
            D[vh, vi] = D[vh, vi] + E[vh, vi, vj]
    for h, i, d, j in T.grid(2, 6, 4, 6):
        with T.block("pv"):
            vh, vi, vd, vj = T.axis.remap("SSSR", [h, i, d, j])
            with T.init():
                U[vh, vi, vd] = T.float32(0)
            U[vh, vi, vd] = U[vh, vi, vd] + E[vh, vi, vj] * V[vh, vj, vd]
    for h, i, d in T.grid(2, 6, 4):
        with T.block("out"):
            vh, vi, vd = T.axis.remap("SSS", [h, i, d])
            O[vh, vi, vd] = U[vh, vi, vd] / D[vh, vi]
""",
    # matrix product, bias, GELU; symbolic rows
    "matmul_gelu": """
@T.prim_func
def main(a: T.handle, W: T.Buffer((T.int64(9), T.int64(10)), "float32"), b: T.Buffer((T.int64(10),), "float32"), y: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, T.int64(9)), "float32")
    Y = T.match_buffer(y, (n, T.int64(10)), "float32")
    C = T.alloc_buffer((n, T.int64(10)), "float32")
    D = T.alloc_buffer((n, T.int64(10)), "float32")
    for i, j, k in T.grid(n, T.int64(10), T.int64(9)):
        with T.block("mm"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * W[vk, vj]
    for i, j in T.grid(n, T.int64(10)):
        with T.block("bias"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + b[vj]
    for i, j in T.grid(n, T.int64(10)):
        with T.block("gelu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = D[vi, vj] * T.sigmoid(D[vi, vj] * T.float32(1.7))
""",
    # a chain of three stencils
    "blur": """
@T.prim_func
def main(X: T.Buffer((14, 12), "float32"), Y: T.Buffer((10, 8), "float32")):
    Bx = T.alloc_buffer((14, 8), "float32")
    By = T.alloc_buffer((12, 8), "float32")
    for h, w in T.grid(14, 8):
        with T.block("bx"):
            vh, vw = T.axis.remap("SS", [h, w])
            Bx[vh, vw] = X[vh, vw] + X[vh, vw + 2] + X[vh, vw + 4]
    for h, w in T.grid(12, 8):
        with T.block("by"):
            vh, vw = T.axis.remap("SS", [h, w])
            By[vh, vw] = Bx[vh, vw] + Bx[vh + 1, vw] + Bx[vh + 2, vw]
    for h, w in T.grid(10, 8):
        with T.block("bz"):
            vh, vw = T.axis.remap("SS", [h, w])
            Y[vh, vw] = By[vh, vw] + By[vh + 1, vw] + By[vh + 2, vw]
""",
    # a stencil clamped at both ends
    "clamped": """
@T.prim_func
def main(a: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(a, (n, T.int64(8)), "float32")
    Y = T.match_buffer(y, (n, T.int64(8)), "float32")
    B = T.alloc_buffer((n, T.int64(8)), "float32")
    for h, w in T.grid(n, T.int64(8)):
        with T.block("b"):
            vh, vw = T.axis.remap("SS", [h, w])
            B[vh, vw] = X[vh, vw] * 2.0
    for h, w in T.grid(n, T.int64(8)):
        with T.block("c"):
            vh, vw = T.axis.remap("SS", [h, w])
            Y[vh, vw] = B[T.max(vh - 1, 0), vw] + B[vh, vw] + B[T.min(vh + 1, n - 1), vw]
""",
    # concatenation by a condition, and a slice
    "concat": """
@T.prim_func
def main(A: T.Buffer((4, 6), "float32"), B: T.Buffer((4, 5), "float32"), Y: T.Buffer((4, 11), "float32"), Z: T.Buffer((4, 4), "float32")):
    A2 = T.alloc_buffer((4, 6), "float32")
    C = T.alloc_buffer((4, 11), "float32")
    for i, j in T.grid(4, 6):
        with T.block("a2"):
            vi, vj = T.axis.remap("SS", [i, j])
            A2[vi, vj] = A[vi, vj] * 3.0
    for i, j in T.grid(4, 11):
        with T.block("cat"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(vj < 6, A2[vi, vj], B[vi, vj - 6])
    for i, j in T.grid(4, 11):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(C[vi, vj], T.float32(0))
    for i, j in T.grid(4, 4):
        with T.block("slice"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = C[vi, vj + 4] * 2.0
""",
    # concatenation by two writers
    "concat2": """
@T.prim_func
def main(A: T.Buffer((4, 6), "float32"), B: T.Buffer((4, 5), "float32"), Y: T.Buffer((4, 11), "float32")):
    A2 = T.alloc_buffer((4, 6), "float32")
    C = T.alloc_buffer((4, 11), "float32")
    for i, j in T.grid(4, 6):
        with T.block("a2"):
            vi, vj = T.axis.remap("SS", [i, j])
            A2[vi, vj] = A[vi, vj] * 3.0
    for i, j in T.grid(4, 6):
        with T.block("cat0"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A2[vi, vj]
    for i, j in T.grid(4, 5):
        with T.block("cat1"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj + 6] = B[vi, vj] + 1.0
    for i, j in T.grid(4, 11):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(C[vi, vj], T.float32(0))
""",
    # a reshape with two consumers
    "reshape": """
@T.prim_func
def main(X: T.Buffer((4, 6), "float32"), Y: T.Buffer((24,), "float32"), Z: T.Buffer((2, 4, 3), "float32")):
    A = T.alloc_buffer((4, 6), "float32")
    R = T.alloc_buffer((24,), "float32")
    for i, j in T.grid(4, 6):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] + 1.0
    for i in range(24):
        with T.block("reshape"):
            vi = T.axis.spatial(24, i)
            R[vi] = A[vi // 6, vi % 6] * 2.0
    for i in range(24):
        with T.block("y"):
            vi = T.axis.spatial(24, i)
            Y[vi] = T.exp(R[vi])
    for h, i, d in T.grid(2, 4, 3):
        with T.block("heads"):
            vh, vi, vd = T.axis.remap("SSS", [h, i, d])
            Z[vh, vi, vd] = R[vi * 6 + vh * 3 + vd] * 0.5
""",
    # a producer that stores at quotient and remainder
    "flatten": """
@T.prim_func
def main(X: T.Buffer((24,), "float32"), Y: T.Buffer((4, 6), "float32")):
    R = T.alloc_buffer((4, 6), "float32")
    for i in range(24):
        with T.block("a"):
            vi = T.axis.spatial(24, i)
            R[vi // 6, vi % 6] = X[vi] * 2.0
    for i, j in T.grid(4, 6):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = R[vi, vj] + 1.0
""",
    # a producer that stores at a mixed sum
    "unflatten": """
@T.prim_func
def main(X: T.Buffer((4, 6), "float32"), Y: T.Buffer((24,), "float32")):
    R = T.alloc_buffer((24,), "float32")
    for i, j in T.grid(4, 6):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            R[vi * 6 + vj] = X[vi, vj] * 2.0
    for i in range(24):
        with T.block("y"):
            vi = T.axis.spatial(24, i)
            Y[vi] = R[vi] + 1.0
""",
    # a transpose between elementwise blocks
    "transpose": """
@T.prim_func
def main(X: T.Buffer((4, 6), "float32"), b: T.Buffer((4,), "float32"), Y: T.Buffer((6, 4), "float32")):
    A = T.alloc_buffer((4, 6), "float32")
    R = T.alloc_buffer((6, 4), "float32")
    for i, j in T.grid(4, 6):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] + 1.0
    for i, j in T.grid(6, 4):
        with T.block("t"):
            vi, vj = T.axis.remap("SS", [i, j])
            R[vi, vj] = A[vj, vi]
    for i, j in T.grid(6, 4):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = R[vi, vj] + b[vj]
""",
    # packing into blocks of eight and back
    "blocked": """
@T.prim_func
def main(X: T.Buffer((4, 32), "float32"), Y: T.Buffer((4, 32), "float32")):
    A = T.alloc_buffer((4, 32), "float32")
    R = T.alloc_buffer((4, 4, 8), "float32")
    for i, j in T.grid(4, 32):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] + 1.0
    for i, jo, ji in T.grid(4, 4, 8):
        with T.block("pack"):
            vi, vo, vji = T.axis.remap("SSS", [i, jo, ji])
            R[vi, vo, vji] = A[vi, vo * 8 + vji] * 2.0
    for i, j in T.grid(4, 32):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = R[vi, vj // 8, vj % 8] + 1.0
""",
    # nearest-neighbour upsampling, and a strided slice
    "upsample": """
@T.prim_func
def main(X: T.Buffer((4, 5), "float32"), Y: T.Buffer((8, 10), "float32"), Z: T.Buffer((3, 5), "float32")):
    A = T.alloc_buffer((4, 5), "float32")
    U = T.alloc_buffer((8, 10), "float32")
    for i, j in T.grid(4, 5):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] + 1.0
    for i, j in T.grid(8, 10):
        with T.block("up"):
            vi, vj = T.axis.remap("SS", [i, j])
            U[vi, vj] = A[vi // 2, vj // 2]
    for i, j in T.grid(8, 10):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = U[vi, vj] * 2.0
    for i, j in T.grid(3, 5):
        with T.block("z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = U[vi * 2 + 1, vj * 2]
""",
    # tiles that do not divide the sizes
    "imperfect": """
@T.prim_func
def main(X: T.Buffer((30, 21), "float32"), Y: T.Buffer((30, 21), "float32")):
    A = T.alloc_buffer((30, 21), "float32")
    for i0, i1, j0, j1 in T.grid(4, 8, 3, 8):
        with T.block("a"):
            vi = T.axis.spatial(30, i0 * 8 + i1)
            vj = T.axis.spatial(21, j0 * 8 + j1)
            T.where(i0 * 8 + i1 < 30 and j0 * 8 + j1 < 21)
            A[vi, vj] = X[vi, vj] + 1.0
    for i0, i1, j0, j1 in T.grid(4, 8, 3, 8):
        with T.block("y"):
            vi = T.axis.spatial(30, i0 * 8 + i1)
            vj = T.axis.spatial(21, j0 * 8 + j1)
            T.where(i0 * 8 + i1 < 30 and j0 * 8 + j1 < 21)
            Y[vi, vj] = A[vi, vj] * 2.0
""",
    # blocks inside blocks
    "nested": """
@T.prim_func
def main(X: T.Buffer((16, 16), "float32"), Y: T.Buffer((16, 16), "float32")):
    A = T.alloc_buffer((16, 16), "float32")
    for i0, j0 in T.grid(4, 4):
        with T.block("tileA"):
            vi0, vj0 = T.axis.remap("SS", [i0, j0])
            for i1, j1 in T.grid(4, 4):
                with T.block("a"):
                    vi, vj = T.axis.remap("SS", [i1, j1])
                    A[vi0 * 4 + vi, vj0 * 4 + vj] = X[vi0 * 4 + vi, vj0 * 4 + vj] + 1.0
    for i0, j0 in T.grid(4, 4):
        with T.block("tileY"):
            vi0, vj0 = T.axis.remap("SS", [i0, j0])
            B = T.alloc_buffer((16, 16), "float32")
            for i1, j1 in T.grid(4, 4):
                with T.block("b"):
                    vi, vj = T.axis.remap("SS", [i1, j1])
                    B[vi0 * 4 + vi, vj0 * 4 + vj] = A[vi0 * 4 + vi, vj0 * 4 + vj] * 3.0
            for i1, j1 in T.grid(4, 4):
                with T.block("y"):
                    vi, vj = T.axis.remap("SS", [i1, j1])
                    Y[vi0 * 4 + vi, vj0 * 4 + vj] = B[vi0 * 4 + vi, vj0 * 4 + vj] - 2.0
""",
    # rows chosen by an index tensor
    "gather": """
@T.prim_func
def main(X: T.Buffer((9, 6), "float32"), I: T.Buffer((5,), "int64"), Y: T.Buffer((5, 6), "float32")):
    A = T.alloc_buffer((9, 6), "float32")
    B = T.alloc_buffer((5, 6), "float32")
    for i, j in T.grid(9, 6):
        with T.block("a"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] + 1.0
    for i, j in T.grid(5, 6):
        with T.block("g"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[I[vi], vj]
    for i, j in T.grid(5, 6):
        with T.block("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = B[vi, vj] * 2.0
""",
}
