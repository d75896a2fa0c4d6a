"""Work on weights alone leaves the kernels and is done while compiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.passes import PassContext
from blockwright.passes.hoist_weight_prepack import split_prologue
from blockwright.passes.schedule_programs import schedule_programs
from blockwright.schedule import Schedule
from blockwright.strategies import OUTSIDE_PRIVATE_CACHE_PARAMS, UNCACHED_PARAMS
from blockwright.strategies.strategy import StrategyResult
from blockwright.target import Cache, Target

F32 = ir.dtype_of("float32")

KERNEL = """
@T.prim_func(private=True)
def kernel(x: T.handle, w: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, T.int64(4)), "float32")
    W = T.match_buffer(w, (T.int64(4), T.int64(6)), "float32")
    Y = T.match_buffer(y, (n, T.int64(6)), "float32")
    P = T.alloc_buffer((T.int64(6), T.int64(4)), "float32")
    for j, k in T.grid(T.int64(6), T.int64(4)):
        with T.block("P"):
            vj, vk = T.axis.remap("SS", [j, k])
            P[vj, vk] = W[vk, vj]
    for i, j, k in T.grid(n, T.int64(6), T.int64(4)):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + X[vi, vk] * {read}
"""


def kernel(parse: Any, read: str = "P[vj, vk]") -> ir.PrimFunc:
    return parse(KERNEL.format(read=read))["kernel"]


def graph(func: ir.PrimFunc, weights: list[np.ndarray[Any, Any]], calls: int = 1) -> ir.IRModule:
    """`calls` calls of the kernel on x, with these weights in turn; the results are added."""
    b = GraphBuilder(module=ir.IRModule({"kernel": func}))
    x = b.param("x", ir.TensorInfo((ir.var("n", "int64"), ir.const(4, "int64")), F32, 2))
    from blockwright.graph import constant
    from blockwright.passes.rewrite import call_tir

    assert x.tensor_info.shape is not None
    out = ir.TensorInfo((x.tensor_info.shape[0], ir.const(6, "int64")), F32, 2)
    constants = [constant(w) for w in weights]
    results = [
        b.emit(call_tir("kernel", [x, constants[i % len(constants)]], [out])) for i in range(calls)
    ]
    total = results[0]
    for one in results[1:]:
        total = b.op("add", total, one)
    return ir.IRModule({"kernel": func, "main": b.finish("main", total)})


def test_a_chain_of_nests_on_one_weight_is_one_packing(parse: Any) -> None:
    """What the first makes of the weight, only the second reads."""
    text = KERNEL.format(read="Q[vj, vk]").replace(
        """    for i, j, k in""",
        """    for j, k in T.grid(T.int64(6), T.int64(4)):
        with T.block("Q"):
            vj, vk = T.axis.remap("SS", [j, k])
            Q[vj, vk] = P[vj, vk] * T.float32(2)
    for i, j, k in""",
    )
    text = text.replace(
        "    for j, k in", '    Q = T.alloc_buffer((6, 4), "float32")\n    for j, k in', 1
    )
    func: ir.PrimFunc = parse(text)["kernel"]
    slim, (split,) = split_prologue(func, {1})
    (pack,) = split.packs
    assert (split.position, pack.packed.name) == (1, "Q")
    assert [b.name for b in ir.blocks(slim.body)] == ["root", "Y"]
    assert slim.root.alloc_buffers == ()
    assert [b.name for b in pack.func.root.alloc_buffers] == ["P"]


WEIGHT = np.arange(24, dtype="f4").reshape(4, 6)


def test_packing_leaves_the_kernel(parse: Any, run: Any, callees: Any) -> None:
    module = run(graph(kernel(parse), [WEIGHT]), "hoist_weight_prepack")
    assert callees(module) == ["kernel_pack", "kernel"]
    func = module["kernel"]
    assert [b.name for b in ir.blocks(func.body)] == ["root", "Y"]
    assert [ir.const_int(d) for d in func.buffers[1].shape] == [6, 4]
    assert not func.root.alloc_buffers


def test_packing_is_done_natively_while_compiling(parse: Any, run: Any, callees: Any) -> None:
    module = run(graph(kernel(parse), [WEIGHT]), "hoist_weight_prepack", "fold_packing")
    assert callees(module) == ["kernel"]
    packed = [c.data for c in ir.collect(module["main"], ir.Constant)]
    assert len(packed) == 1
    np.testing.assert_array_equal(packed[0], WEIGHT.T)
    assert "kernel_pack" not in module


def test_a_weight_used_twice_is_packed_once(parse: Any, run: Any) -> None:
    module = run(graph(kernel(parse), [WEIGHT], calls=3), "hoist_weight_prepack", "fold_packing")
    assert len({id(c.data) for c in ir.collect(module["main"], ir.Constant)}) == 1
    x = np.ones((2, 4), "f4")
    exe = bw.compile(graph(kernel(parse), [WEIGHT, WEIGHT + 1], calls=3))
    np.testing.assert_allclose(exe(x), x @ WEIGHT + x @ (WEIGHT + 1) + x @ WEIGHT, rtol=1e-6)
    once, thrice = (bw.compile(graph(kernel(parse), [WEIGHT], calls=n)) for n in (1, 3))
    assert thrice.memory_plan.packed_weight_bytes == once.memory_plan.packed_weight_bytes


def test_activations_are_not_taken_for_weights(parse: Any, run: Any, callees: Any) -> None:
    func = kernel(parse)
    assert split_prologue(func, {0})[1] == []
    assert len(split_prologue(func, {1})[1]) == 1


@pytest.mark.parametrize("read", ["P[vj, vk] * W[vk, vj]", "W[vk, vj]"])
def test_a_parameter_read_elsewhere_stays(parse: Any, read: str) -> None:
    """The kernel still needs the parameter as it is."""
    func, splits = split_prologue(kernel(parse, read), {1})
    assert splits == []
    assert "P" in [b.name for b in ir.blocks(func.body)]


SUMS = """    for j, k in T.grid(T.int64(6), T.int64(4)):
        with T.block("S"):
            vj, vk = T.axis.remap("SR", [j, k])
            with T.init():
                S[vj] = T.float32(0)
            S[vj] = S[vj] + W[vk, vj]
    for i, j, k in"""


def test_all_nests_that_only_read_a_weight_leave_the_kernel(
    parse: Any, run: Any, callees: Any
) -> None:
    """A weight may be packed in one nest and summed in another: the kernel gets both results."""
    text = KERNEL.format(read="(P[vj, vk] - S[vj])").replace("    for i, j, k in", SUMS)
    text = text.replace(
        "    P = T.alloc", '    S = T.alloc_buffer((6,), "float32")\n    P = T.alloc'
    )
    func: ir.PrimFunc = parse(text)["kernel"]
    slim, (split,) = split_prologue(func, {1})
    assert [p.packed.name for p in split.packs] == ["P", "S"]
    assert [b.name for b in slim.buffers] == ["X", "P", "S", "Y"]
    assert len(slim.params) == 4
    module = run(graph(func, [WEIGHT]), "hoist_weight_prepack", "fold_packing")
    assert callees(module) == ["kernel"]
    assert {c.data.shape for c in ir.collect(module["main"], ir.Constant)} == {(6, 4), (6,)}
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("f4")
    got = bw.compile(graph(func, [WEIGHT]))(x)
    np.testing.assert_allclose(got, x @ (WEIGHT - WEIGHT.sum(0)), rtol=1e-5, atol=1e-5)


def test_sizes_of_packed_weights_are_int64(parse: Any, run: Any) -> None:
    func: ir.PrimFunc = parse(KERNEL.format(read="P[vj, vk]").replace("T.int64(6)", "6"))["kernel"]
    module = run(graph(func, [WEIGHT]), "hoist_weight_prepack")
    infos = [b.var.info for b in module["main"].bindings]
    assert {d.dtype.name for info in infos for d in info.shape} == {"int64"}


def test_calls_on_constants_become_constants(parse: Any, run: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    a = R.exp(R.full(R.shape([4]), fill_value=2.0, dtype="float32"))
    b = R.multiply(a, a)
    return R.add(x, b)
"""
    module = run(parse(text), "normalize", "legalize", "fold_constants")
    (value,) = [c.data for c in ir.collect(module["main"], ir.Constant)]
    np.testing.assert_allclose(value, np.full(4, np.exp(2.0) ** 2), rtol=1e-6)
    assert [n for n, f in module.functions.items() if isinstance(f, ir.PrimFunc)] == ["add"]


def test_sizes_that_vary_are_not_folded(parse: Any, run: Any, callees: Any) -> None:
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    return R.add(x, R.full(R.shape([n]), fill_value=2.0, dtype="float32"))
"""
    module = run(parse(text), "normalize", "legalize", "fold_constants")
    assert len(callees(module)) == 2


@pytest.mark.parametrize(
    ("cache", "table", "uncached"), [(200, False, False), (191, False, True), (191, True, False)]
)
def test_constants_beyond_the_last_cache_are_uncached(
    parse: Any, monkeypatch: pytest.MonkeyPatch, cache: int, table: bool, uncached: bool
) -> None:
    """Two weights of 96 bytes; of a table, a call reads some rows only."""
    func = kernel(parse, "W[T.Cast('int64', X[vi, vk]), vj]" if table else "W[vk, vj]")
    weights = [np.full((4, 6), k, "float32") for k in (1, 2)]
    seen: list[tuple[int, ...]] = []

    def rules(func: ir.PrimFunc, *_: object, **__: object) -> StrategyResult:
        if func.name == "kernel":
            seen.append(func.attrs[UNCACHED_PARAMS])
        return StrategyResult(func, "none", Schedule(func).trace)

    monkeypatch.setattr("blockwright.passes.schedule_programs.apply_strategies", rules)
    context = PassContext(Target("x86-64-v3", caches=(Cache(cache, 4),)))
    done = schedule_programs(graph(func, weights, calls=2), context)
    assert seen == [(1,) if uncached else ()]
    assert all(UNCACHED_PARAMS not in f.attrs for f in done.functions.values())


@pytest.mark.parametrize(
    ("caches", "outside", "uncached"),
    [((64, 191, 192), True, False), ((64, 192, 300), False, False), ((64, 100, 191), True, True)],
)
def test_constants_beyond_the_second_cache_are_outside_private_caches(
    parse: Any,
    monkeypatch: pytest.MonkeyPatch,
    caches: tuple[int, ...],
    outside: bool,
    uncached: bool,
) -> None:
    """Two weights of 96 bytes."""
    seen: list[tuple[bool, bool]] = []

    def rules(func: ir.PrimFunc, *_: object, **__: object) -> StrategyResult:
        if func.name == "kernel":
            seen.append(
                (bool(func.attrs[OUTSIDE_PRIVATE_CACHE_PARAMS]), bool(func.attrs[UNCACHED_PARAMS]))
            )
        return StrategyResult(func, "none", Schedule(func).trace)

    monkeypatch.setattr("blockwright.passes.schedule_programs.apply_strategies", rules)
    target = Target("x86-64-v3", caches=tuple(Cache(size, 4) for size in caches))
    weights = [np.full((4, 6), k, "float32") for k in (1, 2)]
    schedule_programs(graph(kernel(parse, "W[vk, vj]"), weights, calls=2), PassContext(target))
    assert seen == [(outside, uncached)]
