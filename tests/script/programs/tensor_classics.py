"""Programs everybody knows: matmul, softmax, convolution with padding, concatenation."""

from blockwright.script import ir as I
from blockwright.script import tir as T


@I.ir_module
class Module:
    @T.prim_func
    def matmul(a: T.handle, b: T.handle, C: T.Buffer((128, 256), "float32")):
        T.func_attr({"tir.noalias": True})
        A = T.match_buffer(a, (128, 64), "float32")
        B = T.match_buffer(b, (64, 256), "float32")
        for i, j, k in T.grid(128, 256, 64):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0.0
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    @T.prim_func
    def softmax(x: T.handle, y: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "float32")
        Y = T.match_buffer(y, (n, m), "float32")
        top = T.alloc_buffer((n,), "float32")
        total = T.alloc_buffer((n,), "float32")
        for i, k in T.grid(n, m):
            with T.block("top"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    top[vi] = T.min_value("float32")
                top[vi] = T.max(top[vi], X[vi, vk])
        for i, k in T.grid(n, m):
            with T.block("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] += T.exp(X[vi, vk] - top[vi])
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.exp(X[vi, vj] - top[vi]) / total[vi]

    @T.prim_func
    def conv2d(
        X: T.Buffer((1, 3, 32, 32), "float32"),
        W: T.Buffer((8, 3, 3, 3), "float32"),
        Y: T.Buffer((1, 8, 32, 32), "float32"),
    ):
        P = T.alloc_buffer((1, 3, 34, 34), "float32")
        for n, c, h, w in T.grid(1, 3, 34, 34):
            with T.block("P"):
                vn, vc, vh, vw = T.axis.remap("SSSS", [n, c, h, w])
                P[vn, vc, vh, vw] = T.if_then_else(
                    1 <= vh and vh < 33 and 1 <= vw and vw < 33,
                    X[vn, vc, vh - 1, vw - 1],
                    T.float32(0),
                )
        for n, o, h, w, c, kh, kw in T.grid(1, 8, 32, 32, 3, 3, 3):
            with T.block("Y"):
                vn, vo, vh, vw, vc, vkh, vkw = T.axis.remap("SSSSRRR", [n, o, h, w, c, kh, kw])
                with T.init():
                    Y[vn, vo, vh, vw] = 0
                Y[vn, vo, vh, vw] += P[vn, vc, vh + vkh, vw + vkw] * W[vo, vc, vkh, vkw]

    @T.prim_func
    def concatenate(
        A0: T.Buffer((10,), "float32"),
        A1: T.Buffer((10,), "float32"),
        A2: T.Buffer((10,), "float32"),
        B: T.Buffer((30,), "float32"),
    ):
        with T.block([10]) as vi:
            B[vi] = A0[vi]
        with T.block([10]) as vi:
            B[vi + 10] = A1[vi]
        with T.block([10]) as vi:
            B[vi + 20] = A2[vi]
