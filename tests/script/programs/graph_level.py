"""Graph functions: symbolic shapes, calls of every kind, control flow, functions as values."""

from blockwright.script import ir as I
from blockwright.script import relax as R
from blockwright.script import tir as T


@I.ir_module
class Module:
    @T.prim_func
    def mm(x: T.handle, w: T.handle, y: T.handle):
        n = T.int64()
        X = T.match_buffer(x, (n, T.int64(128)), "float32")
        W = T.match_buffer(w, (T.int64(128), T.int64(256)), "float32")
        Y = T.match_buffer(y, (n, T.int64(256)), "float32")
        for i, j, k in T.grid(n, T.int64(256), T.int64(128)):
            with T.block("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] += X[vi, vk] * W[vk, vj]

    @R.function
    def end_to_end(x: R.Tensor(("n", 128), "float32"), w: R.Tensor((128, 256), "float32")):
        n = T.int64()
        with R.dataflow():
            lv0: R.Tensor((n, 256), "float32") = R.call_tir(
                cls.mm, [x, w], R.Tensor((n, 256), "float32")
            )
            lv1: R.Tensor((n, 256), "float32") = R.relu(lv0)
            lv2: R.Tensor((n, 256), "float32") = R.call_dps_library(
                "cutlass.rms_norm", [lv1], R.Tensor((n, 256), "float32")
            )
            R.output(lv2)
        return lv2

    @R.function
    def symbolic_shape(x: R.Tensor(("n", 2, 2), "float32")) -> R.Tensor(("m",), "float32"):
        n, m = T.int64(), T.int64()
        lv0: R.Tensor((n, 4), "float32") = R.reshape(x, R.shape([n, 4]))
        lv1: R.Tensor((n * 4,), "float32") = R.flatten(lv0)
        lv2: R.Tensor(ndim=1, dtype="float32") = R.unique(lv1)
        lv3 = R.match_cast(lv2, R.Tensor((m,), "float32"))
        lv4: R.Tensor((m,), "float32") = R.exp(lv3)
        return lv4

    @R.function
    def subfn(s: R.Shape(["n", "m"])) -> R.Tensor(("n * m",), "float32"):
        n = T.int64()
        m = T.int64()
        lv0: R.Tensor((n, m), "float32") = R.empty(s, dtype="float32")
        lv1: R.Tensor((n * m,), "float32") = R.flatten(lv0)
        return lv1

    @R.function
    def first_class(x: R.Tensor(("n",), "float32"), y: R.Shape(ndim=2)) -> R.Object:
        n = T.int64()
        f0: R.Callable((R.Shape(["n1", "m1"]),), R.Tensor(("n1 * m1",), "float32")) = cls.subfn
        lv0: R.Tensor((n * 4,), "float32") = f0(R.shape([n, 4]))
        lv1: R.Tensor((12,), "float32") = cls.subfn(R.shape([3, 4]))
        lv2: R.Tensor(((n + 1) * 4,), "float32") = cls.subfn(R.shape([n + 1, 4]))
        lv3: R.Tensor(ndim=1, dtype="float32") = cls.subfn(y)
        return (lv0, lv1, lv2, lv3)

    @R.function(pure=False)
    def everything(
        x: R.Tensor(("n", "n + 1"), "float32"),
        c: R.Tensor((), "bool"),
        k: R.Prim(value="p"),
        t: R.Tuple(R.Tensor((2,), "int8"), R.Object),
        d: R.Tensor(ndim=2, device="cuda:0"),
        u: R.Tensor,
    ) -> R.Tuple(R.Tensor, R.Shape, R.Prim("int64")):
        R.func_attr({"num_input": 2, "tir_var_upper_bound": {"n": 64}})
        n = T.int64()
        p = T.int64()

        @R.function
        def double(a: R.Tensor(("q",), "float32")) -> R.Tensor(("q",), "float32"):
            b = R.add(a, a)
            return b

        g = double
        if c:
            z: R.Tensor((n, n + 1), "float32") = R.nn.softmax(x, axis=-1)
            r: R.Object = z
        else:
            r: R.Object = t[0]
        e = R.call_tir_inplace(
            cls.mm,
            (x, r, d),
            [0, -1],
            [R.Tensor((n, 4), "float32"), R.Tensor((n,), "int8")],
            tir_vars=R.shape([n, p * 2]),
        )
        h = R.call_packed(
            "vm.builtin", x, R.str("mode"), R.prim_value(n + 1), k, sinfo_args=(R.Object,)
        )
        o = R.call_pure_packed(
            "f",
            R.tuple(),
            R.const([[1, 2], [3, 4]], "int64"),
            R.const(float("nan"), "float16"),
            sinfo_args=(R.Tensor((2,)), R.Object),
        )
        q = R.take(
            u,
            R.const([], "int64", shape=(0,)),
            axis=None,
            mode="clip",
            dtype="float32",
            raw="x",
            dims=(1,),
            flags=[True, 0.5],
        )
        w = R.op("weird-name")(q, R.ExternFunc("g"), cls.mm)
        v = R.invoke_closure(g, (x,), out_sinfo=R.Tensor((n,), "float32"))
        _ = R.print(v, w, h, o, e)
        return (u, R.shape([n, 3]), R.prim_value(p))
