"""Every kind of statement and of annotation."""

from blockwright.script import ir as I
from blockwright.script import tir as T


@I.ir_module
class Module:
    I.module_attrs({"system": {"name": "test", "levels": [1, 2]}})

    @T.prim_func(private=True)
    def signature(
        A: T.Buffer(
            (16, 16),
            "float32",
            strides=(32, 1),
            elem_offset=8,
            scope="shared",
            align=64,
            offset_factor=4,
            axis_separators=[1],
        ),
        n: T.int64,
        flag: T.bool,
        B: T.Buffer((n, 4), "int8"),
        p: T.handle,
    ):
        T.func_attr(
            {
                "global_symbol": "other.name",
                "values": (1, 2.5, None, True, "x"),
                "one": (1,),
                "imm": T.int64(3),
                "text": T.StringImm("s"),
                "type": T.dtype("int8x4"),
                "inf": float("inf"),
            }
        )
        A[0, 0] = T.float32(1)
        T.evaluate(T.call_extern("use", p, dtype="int32"))
        with T.block("only"):
            T.reads(B[T.int64(0) : n, T.int64(0)])
            T.writes(A)
            A[1, 1] = T.Cast("float32", B[n - T.int64(1), T.int64(0)])

    @T.prim_func
    def control(A: T.Buffer((16,), "int32"), n: T.int32):
        x: T.int32 = n * 2
        for i in range(16):
            if i < x:
                A[i] = i
            elif A[i] > 0 or not (A[i] == -3):
                A[i] = -A[i]
            else:
                A[i] = T.Select(i != 3, 1, 0)
            while A[i] > 10:
                A[i] = A[i] // 2
                if A[i] % 7 == 0:
                    break
                if A[i] % 5 == 0:
                    continue
                A[i] -= 1
            assert A[i] <= 10, "too large"
            T.Assert(A[i] >= 0, "negative")
            T.print("value", A[i])
            T.evaluate(0)
        for i in T.serial(2, 2 + n):
            A[i] = (
                T.Let(y * y + z, where={y: i + 1, z: y})
                if False
                else T.Let(y * y, where={y: i + 1})
            )
        for i in T.serial(n, 16):
            A[i] = 0
        for i in T.unroll(4, annotations={"factor": T.int32(2), "names": ["a", "b"]}):
            T.call_packed("touch", A[i], i)
        for i in T.parallel(n):
            with T.LetStmt(i + 1) as y:
                A[y] = y
            A[i] = 1
        return 0

    @T.prim_func
    def blocks(A: T.Buffer((64, 64), "float16"), B: T.Buffer((64, 64), "float32")):
        T.func_attr({"tir.noalias": True})
        C = T.alloc_buffer((64, 64), "float16", scope="shared")
        for i, j in T.grid(16, 8):
            with T.block("tile"):
                vi = T.axis.spatial((1, 15), i + 1)
                vj = T.axis.opaque(8, j)
                vk = T.axis.scan(T.int32(4), 0)
                T.where(i * 8 + j < 120 and i > 0)
                T.reads(A[vi * 4 : vi * 4 + 4, 0:64])
                T.writes(C[vi * 4 : vi * 4 + 4, vj * 8 : vj * 8 + 8], B)
                T.block_attr({"tile": [4, 8], "pack": "yes", "depth": T.int64(2)})
                local = T.alloc_buffer((4,), scope="local")
                s0 = T.int32()
                s1 = T.int32()
                A_tile = T.match_buffer(
                    A[vi * 4 : vi * 4 + 4, 0:64],
                    (4, 64),
                    "float16",
                    strides=(s0, s1),
                    offset_factor=16,
                )
                with T.init():
                    local[0] = 0.0
                for k in range(4):
                    local[k] = T.Cast("float32", A_tile[k, vk])
                    B[vi, vj] = local[k] + T.Cast("float32", s0)
        with T.block("scalar"):
            T.reads()
            T.writes(B[0, 0])
            B[0, 0] = T.float32("nan")

    @T.prim_func
    def root_with_facts(A: T.Buffer((4,), "float32")):
        with T.block("root"):
            T.reads()
            T.writes()
            T.block_attr({"fact": 1})
            for i in range(4):
                with T.block("A"):
                    vi = T.axis.spatial(4, i)
                    A[vi] = 0.0

    @T.prim_func
    def calls(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        cls.root_with_facts(T.address_of(A[0]))
        T.call_global("root_with_facts", T.address_of(B[0]))
        pass

    @T.prim_func
    def empty():
        pass
