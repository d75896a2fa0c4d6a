"""The flat form: declared buffers, allocations, vectors, masks, host calls, launches."""

from blockwright.script import ir as I
from blockwright.script import tir as T


@I.ir_module
class Module:
    @T.prim_func
    def kernel(a: T.handle, b: T.handle):
        T.func_attr({"tir.noalias": True})
        n = T.int64()
        A = T.match_buffer(a, (n, T.int64(16)), "float32")
        B = T.match_buffer(b, (n, T.int64(16)), "float32")
        flat_A = T.decl_buffer(
            (n * T.int64(16),), "float32", data=T.address_of(A[T.int64(0), T.int64(0)])
        )
        flat_B = T.decl_buffer(
            (n * T.int64(16),), "float32", data=T.address_of(B[T.int64(0), T.int64(0)])
        )
        for i in T.parallel(n):
            acc = T.allocate((16,), "float32", scope="local", annotations={"align": 32})
            acc[T.ramp(0, 1, 8)] = T.broadcast(T.float32(0), 8)
            for k in T.serial(T.int64(2), annotations={"llvm.unroll": "disable"}):
                base: T.int64 = i * T.int64(16) + k * T.int64(8)
                x: T.float32x8 = flat_A[T.ramp(base, T.int64(1), 8)]
                acc[0:8] = acc[0:8] + x * T.broadcast(T.float32(2), 8)
                mask: T.boolx8 = T.ramp(base, T.int64(1), 8) < T.broadcast(n, 8)
                y: T.float32x8 = flat_A.vload([T.ramp(base, T.int64(1), 8)], predicate=mask)
                flat_B.vstore(
                    [T.ramp(base, T.int64(1), 8)], T.fma(x, y, acc[T.ramp(0, 1, 8)]), predicate=mask
                )
            flat_B[i] = T.vector_reduce_add(acc[T.ramp(0, 1, 8)], dtype="float32")
            flat_B[i] = T.Select(flat_B[i] > T.float32(0.1), flat_B[i], T.float32(-0.0))
            s: T.float32x4 = T.shuffle([acc[T.ramp(0, 1, 8)]], [0, 2, 4, 6])
            acc[T.ramp(0, 2, 4)] = T.Cast("float32x4", T.Cast("int32x4", s))

    @T.prim_func
    def host(x: T.handle, out: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n, T.int64(16)), "float32")
        Out = T.match_buffer(out, (n, T.int64(16)), "float32")
        W = T.decl_buffer(
            (T.int64(16),), "float32", data=T.constant_data("weights", dtype="handle")
        )
        workspace = T.allocate((n * T.int64(64),), "uint8", align=64)
        with T.decl_buffer(
            (n, T.int64(16)), "float32", data=T.address_of(workspace[T.int64(0)])
        ) as t:
            T.call_global(
                "kernel",
                T.address_of(X[T.int64(0), T.int64(0)], dtype="handle"),
                T.address_of(t[T.int64(0), T.int64(0)]),
                n,
            )
        T.call_packed(
            "library.norm",
            T.tensor(X[T.int64(0), T.int64(0)], dtype="handle"),
            T.float64(1e-05),
            W[T.int64(0)],
        )
        T.ret(0)

    @T.prim_func
    def launches(A: T.Buffer((128,), "float32")):
        bx = T.launch_thread("blockIdx.x", 4)
        T.attr(None, "pragma", 1)
        T.attr(A, "storage_alignment", T.int32(16))
        with T.launch_thread("threadIdx.x", 32) as tx:
            A[bx * 32 + tx] = T.float32(0)
        with T.attr("node", "scope", T.StringImm("here")):
            A[0] = T.float32(1)
        A[1] = T.float32(2)

    @T.prim_func
    def types(
        A: T.Buffer((8,), "bfloat16"), B: T.Buffer((), "uint8"), C: T.Buffer((8,), "float8_e4m3fn")
    ):
        A[0] = T.bfloat16(0.5) + T.Cast("bfloat16", C[0])
        B[()] = B[()] + T.uint8(255)
        A[1] = T.Cast("bfloat16", T.float16("-inf"))
        T.evaluate(T.int8(-128))
        T.evaluate(T.int32(1) + 2)
        T.evaluate(T.int32(1) == 2 or T.bool(True) and not T.bool(False))
        T.evaluate(
            T.truncdiv(7, T.int32(2)) * T.truncmod(T.int32(7), -2) - T.floordiv(T.int32(7), 2) % 3
        )
        T.evaluate(
            T.min(T.int32(1), 2)
            + T.max(T.int64(4), T.int64(1)) * T.int64(2)
            - (T.int64(1) - T.int64(2))
        )
        T.evaluate(T.bitwise_and(T.int32(6), 3) + T.shift_left(T.int32(1), 4) + T.bitwise_not(3))
        T.evaluate(T.call_intrin("int32", "break"))
        T.evaluate(T.reinterpret(T.float32(1), dtype="int32"))
        T.evaluate(T.isnan(T.float64(0.1)))
        T.evaluate(T.Cast("int32", T.int32(3)) + T.Cast("int32", T.Cast("int64", 5)))
