"""Products and models of narrow types beside the peers: bfloat16, float16, bytes.

    python -m benchmarks.narrow [--only TEXT] [--rounds N] [--threads N]

Each line is one product of matrices (the right one constant), one operator on inputs alone
(attention, a matrix times a few rows) or one model of `benchmarks.models`, in one type. All engines
run in turns in one process, on the same threads; a figure is the median of the rounds, the spread
half the distance between their quartiles. `share` is the part of the peak of the instruction, which
is measured in the same turns. Floats are compared with a float64 run: `error` is the ratio of the
root mean squares, ours to PyTorch's. Sums of integers must be equal.

PyTorch is always there. ONNX Runtime (products of bytes; it has no bfloat16) and OpenVINO (float32
models with the hint to compute in bfloat16) take part if they are installed beside it.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import blockwright as bw
from benchmarks.models import CASES
from blockwright import ir
from blockwright.intrin.hardware import DOT_PRODUCTS
from blockwright.measure import peak_call
from blockwright.strategies.cpu.micro_kernel import matrix_kernel

SHAPES = [(1024, 1024, 1024), (1021, 1019, 1027), (128, 768, 3072), (333, 1001, 777)]
HEADS = [(12, 128, 64), (12, 512, 64), (8, 1024, 128)]
MATRICES = [(1, 1024), (4, 1024), (1, 8192), (4, 8192)]
MODELS = ("MiniLM 1x128", "BERT-base 1x128", "ViT-B/16 b1", "GPT-2 prefill 128", "ResNet-50 b1")
PEERS = ("PyTorch", "OpenVINO", "ONNX Runtime")
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Line:
    """One comparison.

    Attributes:
        operations: of one call; 0 where they are not counted.
        dot: the dot product whose peak bounds the rate; "" for FMA.
        wide: builds the module in float32, for peers that narrow it themselves.
    """

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    operations: float = 0.0
    dot: str = ""
    wide: Callable[[], torch.nn.Module] | None = None


class Bytes(torch.nn.Module):
    """A product with a constant matrix of signed bytes, summed in int32."""

    weight: torch.Tensor

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (k, n), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._int_mm(x, self.weight)


def products() -> Iterator[Line]:
    torch.manual_seed(0)
    for m, n, k in SHAPES:
        size = f"{m}x{n}x{k}"
        for dtype in (torch.float32, *HALVES):
            module = torch.nn.Linear(k, n).to(dtype)
            x = torch.randn(m, k).to(dtype)
            dot = "dot2_bf16" if dtype is torch.bfloat16 else ""
            yield Line(
                f"linear {size} {_name(dtype)}",
                module,
                (x,),
                2.0 * m * n * k,
                dot,
                partial(_widened, module) if dtype is torch.bfloat16 else None,
            )
        for dtype, low, high in ((torch.uint8, 0, 256), (torch.int8, -128, 128)):
            x = torch.randint(low, high, (m, k)).to(dtype)
            name = f"product {size} {_name(dtype)}"
            yield Line(name, Bytes(k, n), (x,), 2.0 * m * n * k, "dot4_u8s8")


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


class Product(torch.nn.Module):
    """A product of two inputs, the second one transposed or not."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ (w.T if self.transposed else w)


def operators() -> Iterator[Line]:
    torch.manual_seed(0)
    for dtype in HALVES:
        for heads, length, size in HEADS:
            inputs = tuple(torch.randn(1, heads, length, size).to(dtype) for _ in range(3))
            name = f"attention {heads}x{length}x{size} {_name(dtype)}"
            yield Line(name, Attention(), inputs, wide=_wide(dtype, Attention))
        for (rows, size), transposed in itertools.product(MATRICES, (True, False)):
            x, w = (torch.randn(n, size).to(dtype) for n in (rows, size))
            name = f"GEMV {rows}x{size}x{size}{' W^T' if transposed else ''} {_name(dtype)}"
            build = partial(Product, transposed)
            yield Line(name, build(), (x, w), wide=_wide(dtype, build))


def _wide(
    dtype: torch.dtype, build: Callable[[], torch.nn.Module]
) -> Callable[[], torch.nn.Module] | None:
    return build if dtype is torch.bfloat16 else None


def models() -> Iterator[Line]:
    for case in CASES:
        if case.name not in MODELS:
            continue
        file, function = case.build.rsplit(".", 1)
        build = getattr(importlib.import_module(f"benchmarks.modules.{file}"), function)
        random = np.random.default_rng(0)
        inputs = [torch.from_numpy(one.draw(random)) for one in case.inputs]
        for dtype in HALVES:
            module = build(**case.settings).to(dtype)
            own = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
            wide = partial(build, **case.settings) if dtype is torch.bfloat16 else None
            yield Line(f"{case.name} {_name(dtype)}", module, own, wide=wide)


def compare(line: Line, rounds: int, threads: int) -> str:
    """Compile, check, and time in turns; one line of the table."""
    module = line.module.eval()
    target = bw.Target("native", num_threads=threads)
    with torch.no_grad():
        compiled = bw.compile(module, line.inputs, target=target, options={"fallback": "error"})
        error = _error(module, line.inputs, compiled)
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda: compiled(*line.inputs),
            "PyTorch": lambda: module(*line.inputs),
            **_peers(line, threads),
        }
        operations = 1.0
        dot = _of_tiles(target, line.dot) or line.dot
        if line.operations and (dot != line.dot or _has(target, dot)):
            calls["peak"], operations = peak_call(threads, target, dot)
        times = _in_turns(calls, rounds)
    ours = statistics.median(times["ours"])
    ratios = "".join(
        f" {ours / statistics.median(times[name]):8.3f}" if name in times else " " * 9
        for name in PEERS
    )
    rate = share = " " * 8
    if line.operations:
        rate = f"{line.operations / ours / 1e9:8.0f}"
        if "peak" in times:
            peak = operations / statistics.median(times["peak"])
            share = f"{100 * line.operations / ours / peak:7.1f}%"
    return f"{line.name:36} {_spread(times['ours'])} {ratios} {rate} {share}  {error:>6}"


def _in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def _of_tiles(target: bw.Target, dot: str) -> str:
    """The product of tiles of the same types, if the target has it; else ""."""
    if not dot:
        return ""
    row = DOT_PRODUCTS[dot]
    types = (ir.dtype_of(name) for name in (row.a, row.b, row.accumulator))
    kernel = matrix_kernel(target, *types)
    return "" if kernel is None else kernel.dot


def _has(target: bw.Target, dot: str) -> bool:
    return (
        not dot or DOT_PRODUCTS[dot].form(target.vector_bits // 32, target.feature_set) is not None
    )


def _peers(line: Line, threads: int) -> dict[str, Callable[[], Any]]:
    """Calls of the installed peers that can run a line."""
    result: dict[str, Callable[[], Any]] = {}
    if isinstance(line.module, Bytes) and importlib.util.find_spec("onnxruntime"):
        result["ONNX Runtime"] = _onnx_runtime(line.module, line.inputs[0], threads)
    if line.wide is not None and importlib.util.find_spec("openvino"):
        result["OpenVINO"] = _openvino(line.wide(), line.inputs, threads)
    return result


def _onnx_runtime(module: Bytes, x: torch.Tensor, threads: int) -> Callable[[], Any]:
    onnx: Any = importlib.import_module("onnx")
    onnxruntime: Any = importlib.import_module("onnxruntime")
    kinds = onnx.TensorProto
    weight = onnx.numpy_helper.from_array(module.weight.numpy(), "B")
    kind = kinds.UINT8 if x.dtype == torch.uint8 else kinds.INT8
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["A", "B"], ["C"])],
        "product",
        [onnx.helper.make_tensor_value_info("A", kind, list(x.shape))],
        [onnx.helper.make_tensor_value_info("C", kinds.INT32, [x.shape[0], weight.dims[1]])],
        [weight],
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {"A": x.numpy()}
    assert np.array_equal(session.run(None, feed)[0], module(x).numpy())
    return lambda: session.run(None, feed)


def _openvino(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], threads: int
) -> Callable[[], Any]:
    """The float32 module with the hint to compute in bfloat16; inputs are float32."""
    openvino: Any = importlib.import_module("openvino")
    own = tuple(x.float() if x.is_floating_point() else x for x in inputs)
    converted = openvino.convert_model(torch.export.export(module.eval(), own))
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    request = openvino.Core().compile_model(converted, "CPU", settings).create_infer_request()
    arrays = [x.numpy() for x in own]
    tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
    for place, tensor in enumerate(tensors):
        request.set_input_tensor(place, tensor)

    def call(_alive: Any = (arrays, tensors)) -> None:  # a tensor does not keep its array alive
        request.infer()

    return call


def _widened(module: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(module).float()


def _error(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], compiled: Any) -> str:
    """Ratio of our error to PyTorch's; "equal" for integers. Raises AssertionError if wrong."""
    ours, theirs = _tensors(compiled(*inputs)), _tensors(module(*inputs))
    if not theirs[0].is_floating_point():
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        return "equal"
    wide = copy.deepcopy(module).double()
    exact = _tensors(wide(*(x.double() if x.is_floating_point() else x for x in inputs)))
    pairs = [
        (_rms(a.double() - c), _rms(b.double() - c))
        for a, b, c in zip(ours, theirs, exact, strict=True)
        if c.is_floating_point()
    ]
    worst = max(a / max(b, 1e-30) for a, b in pairs)
    assert worst < 2, f"error {worst:.2f} times PyTorch's"
    return f"{worst:.2f}"


def _rms(x: torch.Tensor) -> float:
    return float((x**2).mean().sqrt())


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves: list[Any] = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _spread(times: list[float]) -> str:
    low, _, high = statistics.quantiles(times, n=4)
    return f"{1e3 * statistics.median(times):9.2f} ±{500 * (high - low):6.2f}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.narrow")
    parser.add_argument("--only", default="", help="compare lines whose name contains this text")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    heads = "".join(f" {'/ ' + name[:6]:>8}" for name in PEERS)
    print(f"{'':36} {'ours, ms':>17} {heads} {'Gop/s':>8} {'share':>8}  {'error':>6}")
    for make in (products, operators, models):
        for line in make():
            if arguments.only in line.name:
                print(compare(line, arguments.rounds, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
