"""Programs for `refused_schedules`: what people schedule, at sizes that print on a screen."""

from __future__ import annotations

MATMUL = """
@T.prim_func
def matmul(A: T.Buffer((128, 64), "float32"), B: T.Buffer((64, 128), "float32"),
           C: T.Buffer((128, 128), "float32")):
    for i, j, k in T.grid(128, 128, 64):
        with T.block("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
DENSE = """
@T.prim_func
def dense(X: T.Buffer((128, 64), "float32"), W: T.Buffer((64, 128), "float32"),
          b: T.Buffer((128,), "float32"), Y: T.Buffer((128, 128), "float32")):
    M = T.alloc_buffer((128, 128), "float32")
    S = T.alloc_buffer((128, 128), "float32")
    for i, j, k in T.grid(128, 128, 64):
        with T.block("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                M[vi, vj] = T.float32(0)
            M[vi, vj] = M[vi, vj] + X[vi, vk] * W[vk, vj]
    for i, j in T.grid(128, 128):
        with T.block("bias"):
            vi, vj = T.axis.remap("SS", [i, j])
            S[vi, vj] = M[vi, vj] + b[vj]
    for i, j in T.grid(128, 128):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(S[vi, vj], T.float32(0))
"""
CONV = """
@T.prim_func
def conv2d(X: T.Buffer((16, 32, 32), "float32"), W: T.Buffer((32, 16, 3, 3), "float32"),
           Y: T.Buffer((32, 32, 32), "float32")):
    P = T.alloc_buffer((16, 34, 34), "float32")
    C = T.alloc_buffer((32, 32, 32), "float32")
    for c, h, w in T.grid(16, 34, 34):
        with T.block("pad"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            P[vc, vh, vw] = T.if_then_else(
                1 <= vh and vh < 33 and 1 <= vw and vw < 33, X[vc, vh - 1, vw - 1], T.float32(0))
    for f, h, w, c, kh, kw in T.grid(32, 32, 32, 16, 3, 3):
        with T.block("conv"):
            vf, vh, vw, vc, vkh, vkw = T.axis.remap("SSSRRR", [f, h, w, c, kh, kw])
            with T.init():
                C[vf, vh, vw] = T.float32(0)
            C[vf, vh, vw] = C[vf, vh, vw] + P[vc, vh + vkh, vw + vkw] * W[vf, vc, vkh, vkw]
    for f, h, w in T.grid(32, 32, 32):
        with T.block("relu"):
            vf, vh, vw = T.axis.remap("SSS", [f, h, w])
            Y[vf, vh, vw] = T.max(C[vf, vh, vw], T.float32(0))
"""
SOFTMAX = """
@T.prim_func
def softmax(X: T.Buffer((64, 256), "float32"), Y: T.Buffer((64, 256), "float32")):
    M = T.alloc_buffer((64,), "float32")
    E = T.alloc_buffer((64, 256), "float32")
    S = T.alloc_buffer((64,), "float32")
    for i, k in T.grid(64, 256):
        with T.block("max"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.min_value("float32")
            M[vi] = T.max(M[vi], X[vi, vk])
    for i, j in T.grid(64, 256):
        with T.block("exp"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = T.exp(X[vi, vj] - M[vi])
    for i, k in T.grid(64, 256):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + E[vi, vk]
    for i, j in T.grid(64, 256):
        with T.block("div"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = E[vi, vj] / S[vi]
"""
LAYER_NORM = """
@T.prim_func
def layer_norm(X: T.Buffer((64, 256), "float32"), G: T.Buffer((256,), "float32"),
               Y: T.Buffer((64, 256), "float32")):
    S = T.alloc_buffer((64,), "float32")
    Q = T.alloc_buffer((64,), "float32")
    for i, k in T.grid(64, 256):
        with T.block("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + X[vi, vk]
    for i, k in T.grid(64, 256):
        with T.block("squares"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Q[vi] = T.float32(0)
            Q[vi] = Q[vi] + (X[vi, vk] - S[vi] / 256.0) * (X[vi, vk] - S[vi] / 256.0)
    for i, j in T.grid(64, 256):
        with T.block("norm"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = (X[vi, vj] - S[vi] / 256.0) * T.rsqrt(Q[vi] / 256.0 + 0.00001) * G[vj]
"""
STENCIL = """
@T.prim_func
def blur(X: T.Buffer((66, 66), "float32"), Y: T.Buffer((64, 64), "float32")):
    H = T.alloc_buffer((66, 64), "float32")
    for i, j in T.grid(66, 64):
        with T.block("blur_x"):
            vi, vj = T.axis.remap("SS", [i, j])
            H[vi, vj] = X[vi, vj] + X[vi, vj + 1] + X[vi, vj + 2]
    for i, j in T.grid(64, 64):
        with T.block("blur_y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = H[vi, vj] + H[vi + 1, vj] + H[vi + 2, vj]
"""
TRANSPOSE = """
@T.prim_func
def transpose(X: T.Buffer((100, 60), "float32"), Y: T.Buffer((60, 100), "float32")):
    D = T.alloc_buffer((100, 60), "float32")
    for i, j in T.grid(100, 60):
        with T.block("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = X[vi, vj] * 2.0
    for i, j in T.grid(60, 100):
        with T.block("transpose"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = D[vj, vi]
"""
CONCAT = """
@T.prim_func
def concat(A: T.Buffer((48, 64), "float32"), B: T.Buffer((16, 64), "float32"),
           Y: T.Buffer((64, 64), "float32")):
    C = T.alloc_buffer((64, 64), "float32")
    for i, j in T.grid(48, 64):
        with T.block("upper"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for i, j in T.grid(16, 64):
        with T.block("lower"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi + 48, vj] = B[vi, vj]
    for i, j in T.grid(64, 64):
        with T.block("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = T.max(C[vi, vj], T.float32(0))
"""
ARGMAX = """
@T.prim_func
def argmax(X: T.Buffer((64, 256), "float32"), M: T.Buffer((64,), "float32"),
           P: T.Buffer((64,), "int32")):
    for i, k in T.grid(64, 256):
        with T.block("argmax"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.float32("-inf")
                P[vi] = 2147483647
            taken: T.bool = (
                X[vi, vk] > M[vi] or X[vi, vk] == M[vi] and vk < P[vi]
                or X[vi, vk] != X[vi, vk] and (M[vi] == M[vi] or vk < P[vi]))
            m: T.float32 = T.Select(taken, X[vi, vk], M[vi])
            p: T.int32 = T.Select(taken, vk, P[vi])
            M[vi] = m
            P[vi] = p
"""
