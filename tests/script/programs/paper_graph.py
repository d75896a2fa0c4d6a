"""Listings of the graph level, in today's dialect."""

from blockwright.script import ir as I
from blockwright.script import relax as R
from blockwright.script import tir as T


@I.ir_module
class Module:
    @T.prim_func
    def exp(X: T.Buffer(("n", 4), "float32"), Y: T.Buffer(("n", 4), "float32")):
        T.func_attr({"compute_pattern": "ElementWise"})
        n = T.int64()
        for i, j in T.grid(n, 4):
            Y[i, j] = T.exp(X[i, j])

    @T.prim_func
    def matmul0(
        A: T.Buffer(("n", 4096), "float16"),
        B: T.Buffer((4096, 11008), "float16"),
        out: T.Buffer(("n", 11008), "float16"),
        n: T.int64,
    ):
        for i, j, k in T.grid(n, 11008, 4096):
            with T.block("out"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    out[vi, vj] = T.float16(0)
                out[vi, vj] += A[vi, vk] * B[vk, vj]

    @T.prim_func
    def mm_split_k(
        X: T.Buffer(("n", 2048), "float32"),
        W: T.Buffer((2048, 4096), "float32"),
        workspace: T.Buffer((8388608,), "float32"),
        Y: T.Buffer(("n", 4096), "float32"),
    ):
        n = T.int64()
        partial = T.decl_buffer((4, n, 4096), "float32", data=workspace.data)
        for i, j, k0, k1 in T.grid(n, 4096, 4, 512):
            with T.block("partial"):
                vi, vj, vk0, vk1 = T.axis.remap("SSSR", [i, j, k0, k1])
                with T.init():
                    partial[vk0, vi, vj] = T.float32(0)
                partial[vk0, vi, vj] += X[vi, vk0 * 512 + vk1] * W[vk0 * 512 + vk1, vj]
        for i, j, k0 in T.grid(n, 4096, 4):
            with T.block("sum"):
                vi, vj, vk0 = T.axis.remap("SSR", [i, j, k0])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] += partial[vk0, vi, vj]

    @T.prim_func
    def mm_gelu(A: T.Buffer(("n", 128), "float32"), B: T.Buffer((128, 256), "float32"),
                C: T.Buffer(("n", 256), "float32")):  # fmt: skip
        n = T.int64()
        with T.block("mm_gelu"):
            T.reads(A[0:n, 0:128], B[0:128, 0:256])
            T.writes(C[0:n, 0:256])
            T.call_packed("func_mm_gelu", T.tensor(A[0, 0]), T.tensor(B[0, 0]), T.tensor(C[0, 0]))

    @T.prim_func
    def update(X: T.Buffer(("n",), "float32")):
        n = T.int64()
        T.call_packed("custom_inplace_update", T.tensor(X[0]))

    @T.prim_func
    def decode_q4(
        Wdata: T.Buffer((128, 32), "uint32"),
        Wscale: T.Buffer((128, 8), "float16"),
        W: T.Buffer((128, 256), "float16"),
    ):
        T.func_attr({"compute_pattern": "Injective"})
        for k, j in T.grid(128, 256):
            W[k, j] = (
                T.Cast("float16", (Wdata[k, j // 8] >> T.Cast("uint32", j % 8 * 4)) & 15)
                - T.float16(7)
            ) * Wscale[k, j // 32]

    # ------------------------------------------------------------------------- symbolic shapes
    @R.function
    def symbolic_shape_fn(x: R.Tensor(("n", 2, 2), "f32")):
        n, m = T.int64(), T.int64()
        lv0: R.Tensor((n, 4), "f32") = R.reshape(x, R.shape([n, 4]))
        lv1: R.Tensor((n * 4,), "f32") = R.flatten(lv0)
        lv2: R.Tensor(ndim=1, dtype="f32") = R.unique(lv1)
        lv3 = R.match_cast(lv2, R.Tensor((m,), "f32"))
        lv4: R.Tensor((m,), "f32") = R.exp(lv3)
        return lv4

    @R.function
    def any_shape_fn(x: R.Tensor(("rows", 2, 2), "f32")):
        n: R.Object = R.get_shape_value(x, axis=0)
        lv0: R.Tensor(ndim=2, dtype="f32") = R.reshape(x, (n, 4))
        lv1: R.Tensor(ndim=1, dtype="f32") = R.flatten(lv0)
        lv2: R.Tensor(dtype="f32") = R.unique(lv1)
        lv3: R.Tensor(dtype="f32") = R.exp(lv2)
        return lv3

    # ------------------------------------------------------------- calls of every kind in a model
    @R.function
    def graph_mlp_func(
        x: R.Tensor(("n", 4096), "f16"),
        w0: R.Tensor((4096, 11008), "f16"),
    ):
        n = T.int64()
        lv0 = R.call_tir(cls.matmul0, [x, w0], R.Tensor((n, 11008), "f16"), tir_vars=[n])
        lv1: R.Tensor((n, 11008), "f16") = R.silu(lv0)
        lv2: R.Tensor((n, 11008), "f16") = R.add(lv0, lv1)
        lv4 = R.call_dps_library("cutlass.rms_norm", [lv2], R.Tensor((n, 11008), "f16"))
        return lv4

    @R.function
    def cross_level(x: R.Tensor(("n", 4), "f32")) -> R.Tensor(("n * 2",), "f32"):
        n = T.int64()
        with R.dataflow():
            lv0: R.Tensor((n, 4), "f32") = R.call_tir(cls.exp, [x], R.Tensor((n, 4), "f32"))
            lv1: R.Tensor((n, 4), "f32") = R.call_dps_library(
                "cutlass.rms_norm", [lv0], R.Tensor((n, 4), "f32")
            )
            f0: R.Callable = cls.subfunc
            lv2: R.Tensor((n * 4,), "f32") = cls.subfunc(lv1)
            lv3: R.Tuple[R.Tensor((n * 2,), "f32"), R.Tensor((n * 2,), "f32")] = R.split(
                lv2, sections=2
            )
            lv4: R.Tensor((n * 2,), "f32") = lv3[0]
            R.output(lv4)
        return lv4

    @R.function
    def subfunc(x: R.Tensor(("n", 4), "f32")) -> R.Tensor(("n * 4",), "f32"):
        n = T.int64()
        with R.dataflow():
            lv0: R.Tensor((n * 4,), "f32") = R.flatten(x)
            lv1: R.Tensor((n * 4,), "f32") = R.relu(lv0)
            R.output(lv1)
        return lv1

    @R.function
    def attention(x: R.Tensor(("n", 512), "f32"), w: R.Tensor((512, 1536), "f32")):
        n = T.int64()
        with R.dataflow():
            lv0: R.Tensor((n, 1536), "f32") = R.matmul(x, w)
            lv1: R.Tensor((n, 3, 8, 64), "f32") = R.reshape(lv0, R.shape([n, 3, 8, 64]))
            lv2: R.Tensor((n, 8, 64), "f32") = R.call_dps_library(
                "cutlass.attention", [lv1], R.Tensor((n, 8, 64), "f32")
            )
            R.output(lv2)
        return lv2

    # --------------------------------------------------------- first-class functions and shapes
    @R.function
    def subfn(s: R.Shape(["n", "m"])) -> R.Tensor(("n * m",), "f32"):
        n, m = T.int64(), T.int64()
        lv0: R.Tensor((n, m), "f32") = R.empty(s, dtype="f32")
        lv1: R.Tensor((n * m,), "f32") = R.flatten(lv0)
        return lv1

    @R.function
    def subgraph_func_shape_deduce_example(x: R.Tensor(("n",), "f32"), y: R.Shape(ndim=2)):
        n = T.int64()
        f0: R.Callable([R.Shape(["n1", "m1"])], R.Tensor(("n1 * m1",), "f32")) = cls.subfn
        lv0: R.Tensor((n * 4,), "f32") = f0(R.shape([n, 4]))
        lv1: R.Tensor((12,), "f32") = cls.subfn(R.shape([3, 4]))
        lv2: R.Tensor(((n + 1) * 4,), "f32") = cls.subfn(R.shape([n + 1, 4]))
        lv3: R.Tensor(ndim=1, dtype="f32") = cls.subfn(y)
        return (lv0, lv1, lv2, lv3)

    @R.function
    def before_fusion(x: R.Tensor(("n", 2), "f32")):
        n = T.int64()
        lv0: R.Tensor((2 * n,), "f32") = R.flatten(x)
        lv1: R.Tensor((2 * n,), "f32") = R.add(lv0, lv0)
        lv2: R.Tensor((2 * n,), "f32") = R.relu(lv1)
        return lv2

    @R.function
    def after_fusion(x: R.Tensor(("n", 2), "f32")):
        n = T.int64()
        lv0: R.Tensor((2 * n,), "f32") = R.flatten(x)
        lv1: R.Tensor((2 * n,), "f32") = cls.fused_add_relu(lv0, lv0, R.shape([n]))
        return lv1

    @R.function
    def fused_add_relu(
        x: R.Tensor(("n * 2",), "f32"), y: R.Tensor(("n * 2",), "f32"), s: R.Shape(["n"])
    ) -> R.Tensor(("n * 2",), "f32"):
        lv0 = R.add(x, y)
        lv1 = R.relu(lv0)
        return lv1

    # ------------------------------------------------------------- memory, workspaces, capture
    @R.function
    def before_planning(x: R.Tensor((2, "n"), "f32")):
        lv0 = R.exp(x)
        lv1 = R.permute_dims(lv0)
        lv2 = R.relu(lv1)
        lv3 = R.permute_dims(lv2)
        return lv3

    @R.function(pure=False)
    def lifted_workspace(x: R.Tensor(("n", 2048), "f32"), w: R.Tensor((2048, 4096), "f32")):
        n = T.int64()
        workspace = R.builtin.alloc_tensor(R.shape([8 * 1024 * 1024]), dtype="f32")
        both = R.call_tir_inplace(
            cls.mm_split_k,
            [x, w, workspace],
            inplace_indices=[2, -1],
            out_sinfo=[R.Tensor((8388608,), "f32"), R.Tensor((n, 4096), "f32")],
        )
        lv0: R.Tensor((n, 4096), "f32") = both[1]
        return lv0

    @R.function(pure=False)
    def captured(a: R.Tensor(("n", 128), "f32"), b: R.Tensor((128, 256), "f32")):
        R.func_attr({"tir_var_upper_bound": {"n": 64}})
        n = T.int64()
        storage_c = R.memory.alloc_storage(R.shape([64 * 256 * 4]), scope="global", dtype="u8")
        c: R.Tensor((n, 256), "f32") = R.builtin.cuda_graph_run_or_capture(
            cls.static_region, a, b, storage_c
        )
        return c

    @R.function(pure=False)
    def static_region(
        a: R.Tensor(("n", 128), "f32"), b: R.Tensor((128, 256), "f32"), storage_c: R.Object
    ):
        n = T.int64()
        c0: R.Tensor((n, 256), "f32") = R.memory.alloc_tensor(
            storage_c, R.shape([n, 256]), dtype="f32"
        )
        c: R.Tensor((n, 256), "f32") = R.call_tir_inplace(
            cls.mm_gelu, [a, b, c0], inplace_indices=[2], out_sinfo=R.Tensor((n, 256), "f32")
        )
        return c

    @R.function(pure=False)
    def opaque_update(x: R.Tensor(("n",), "f32")):
        n = T.int64()
        with R.dataflow():
            lv0 = R.exp(x)
            gv0: R.Tensor((n,), "f32") = R.add(lv0, x)
            R.output(gv0)
        gv1 = R.call_tir_inplace(
            cls.update, [gv0], inplace_indices=[0], out_sinfo=R.Tensor((n,), "f32")
        )
        return gv1

    # ------------------------------------------------------------------------ encoded weights
    @R.function
    def encoded(
        x: R.Tensor(("n", 128), "f16"),
        Wdata: R.Tensor((128, 32), "u32"),
        Wscale: R.Tensor((128, 8), "f16"),
    ):
        n = T.int64()
        with R.dataflow():
            W: R.Tensor((128, 256), "f16") = R.call_tir(
                cls.decode_q4, [Wdata, Wscale], R.Tensor((128, 256), "f16")
            )
            lv0: R.Tensor((n, 256), "f16") = R.matmul(x, W)
            R.output(lv0)
        return lv0

    # ------------------------------------------------------------------------- an early spelling
    @R.function
    def relax_func(x: R.Tensor[("n", "k"), "float32"], w: R.Tensor["float32"]):
        n, k, m = T.int64(), T.int64(), T.int64()
        with R.dataflow():
            lv0 = R.match_cast(w, R.Tensor((k, m), "float32"))
            lv1: R.Tensor((n, m), "float32") = R.matmul(x, lv0)
            lv2: R.Tensor((n * m,), "float32") = R.flatten(lv1)
            gv0 = R.call_tir(cls.exp, [lv2], (n * m,), dtype="float32")
            R.outputs(gv0)
        return gv0
