"""Compare the rounding error of long float32 reductions with PyTorch's.

``python -m benchmarks.accuracy`` compiles each case and runs it on several kinds of data, along
with PyTorch and a float64 reference. It prints both errors, as ``max |x - exact| / max |exact|``,
for the kind with the worst ratio. The exit status is 1 if an error exceeds both four times
PyTorch's and ``FLOOR``. ``--only`` selects cases whose names contain a text; ``--over`` prints only
cases above the limit.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

import blockwright as bw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Tensor = torch.Tensor

FACTOR = 4.0  # largest accepted ratio to PyTorch's error
FLOOR = 2.5e-7  # error that is always accepted: two units in the last place
KINDS = ("normal", "uniform", "large", "constant")
LARGE = 1000.0
# Sums of a constant always round in one direction, or never: take the worst of several values.
CONSTANTS = ((1000.3, 0.3), (0.7, 1.3), (3.3, 0.1), (123.4, 0.011))


class Case(NamedTuple):
    """A function of tensors, compiled for given shapes.

    Attributes:
        shapes: shapes of the arguments.
        constant: whether the arguments after the first are parameters of the module.
        dynamic: for each argument, the axes with symbolic sizes.
        kinds: kinds of data to try.
    """

    name: str
    fn: Callable[..., Tensor]
    shapes: Sequence[tuple[int, ...]]
    constant: bool = False
    dynamic: Sequence[Sequence[int]] = ()
    kinds: Sequence[str] = KINDS


class Measured(NamedTuple):
    """The worst kind of data of a case, with both errors."""

    kind: str
    ours: float
    torch: float
    rules: str

    @property
    def ratio(self) -> float:
        return self.ours / max(self.torch, 1e-9)

    @property
    def over(self) -> bool:
        return self.ours > FLOOR and self.ratio > FACTOR


class _Module(torch.nn.Module):
    def __init__(self, fn: Callable[..., Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.fn, self.count = fn, len(weights)
        for position, weight in enumerate(weights):
            self.register_buffer(f"w{position}", weight)

    def forward(self, *args: Tensor) -> Tensor:
        return self.fn(*args, *(getattr(self, f"w{k}") for k in range(self.count)))


def data(shape: tuple[int, ...], kind: str, position: int = 0, draw: int = 0) -> Tensor:
    """Data of one kind; with "large", only the first argument is around 1000."""
    random = torch.Generator().manual_seed(7 + position)
    if kind == "uniform":
        return torch.rand(shape, generator=random)
    if kind == "constant":
        return torch.full(shape, CONSTANTS[draw][min(position, 1)])
    made = torch.randn(shape, generator=random)
    return made + LARGE if kind == "large" and position == 0 else made


def error(got: Tensor, exact: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((got.double() - exact).abs().max() / exact.abs().max())


def measure(case: Case) -> Measured:
    """Compile and run a case; modules with weights are compiled for each kind of data."""
    found: list[Measured] = []
    model: Any = None
    rules = ""
    for kind in case.kinds[:2] if case.constant else case.kinds:
        args = _arguments(case, kind)
        given = args[:1] if case.constant else args
        if model is None or case.constant:
            module = _Module(case.fn, args[1:] if case.constant else [])
            model = bw.compile(
                module, tuple(given), dynamic_shapes=_symbols(case), options={"fallback": "error"}
            )
            text = model.show("schedule")
            rules = "+".join(
                dict.fromkeys(re.findall(r"^# \S+: strategy (\w+)", text, re.MULTILINE))
            )
        ours, eager = 0.0, 0.0
        for draw in range(len(CONSTANTS) if kind == "constant" else 1):
            args = _arguments(case, kind, draw)
            exact = case.fn(*(a.double() for a in args))
            eager = max(eager, error(case.fn(*args), exact))
            ours = max(ours, error(model(*(args[:1] if case.constant else args)), exact))
        found.append(Measured(kind, ours, eager, rules))
    return max(found, key=lambda m: (m.over, m.ratio if m.ours > FLOOR else 0.0, m.ours))


def _arguments(case: Case, kind: str, draw: int = 0) -> list[Tensor]:
    return [data(shape, kind, k, draw) for k, shape in enumerate(case.shapes)]


def _symbols(case: Case) -> Any:
    if not case.dynamic:
        return None
    named: dict[int, Any] = {}

    def dim(size: int) -> Any:
        return named.setdefault(size, torch.export.Dim(f"n{size}", min=2, max=1 << 21))

    pairs = zip(case.shapes, case.dynamic, strict=not case.constant)
    return {"args": tuple({axis: dim(shape[axis]) for axis in axes} for shape, axes in pairs)}


# -------------------------------------------------------------------------------------------- cases
def _reductions() -> list[Case]:
    over: list[tuple[str, tuple[int, ...], Any]] = [
        ("1000000", (1_000_000,), 0),
        ("1000000x4 0", (1_000_000, 4), 0),
        ("4x1000000 1", (4, 1_000_000), 1),
        ("30000x64 0", (30_000, 64), 0),
        ("3x30000x5 1", (3, 30_000, 5), 1),
        ("40x5000x7 0,1", (40, 5000, 7), (0, 1)),
        ("5000x7x40 0,2", (5000, 7, 40), (0, 2)),
        ("7x400x500 1,2", (7, 400, 500), (1, 2)),
        ("30x40x50x60 all", (30, 40, 50, 60), (0, 1, 2, 3)),
    ]
    functions: dict[str, Callable[..., Tensor]] = {
        "sum": lambda x, axis: x.sum(axis),
        "mean": lambda x, axis: x.mean(axis),
        "var": lambda x, axis: x.var(axis),
        "std": lambda x, axis: x.std(axis, correction=0),
        "norm": lambda x, axis: torch.linalg.vector_norm(x, dim=axis),
        "norm3": lambda x, axis: torch.linalg.vector_norm(x, 3.0, dim=axis),
        "norm1": lambda x, axis: torch.linalg.vector_norm(x, 1, dim=axis),
        "logsumexp": lambda x, axis: torch.logsumexp(x, axis),
    }
    cases: list[Case] = []
    for name, fn in functions.items():
        kinds = KINDS[:3] if name in {"var", "std"} else KINDS  # 0 for constants
        some = over if name == "sum" else over[1:6]
        for text, shape, axis in some:
            cases.append(Case(f"{name} {text}", partial(fn, axis=axis), [shape], kinds=kinds))
    for text, shape, axis in over:
        axes = [axis] if isinstance(axis, int) else axis
        fn = partial(functions["sum"], axis=axis)
        cases.append(Case(f"sum any {text}", fn, [shape], dynamic=[axes[:2]]))
    for name, change in _STRIDED.items():
        cases.append(Case(f"sum {name}", lambda x, c=change: c(x).sum(0), [(200_000, 8)]))
        cases.append(Case(f"sum {name} 1", lambda x, c=change: c(x).sum(1), [(8, 200_000)]))
    cases.append(Case("sum of gathered", _bag, [(5000, 40)]))
    cases.append(Case("masked sum", lambda x: torch.where(x > 0.5, x, 0.0).sum(0), [(200_000, 4)]))
    cases.append(
        Case("sum of products", lambda x, y: (x * y).sum(-1), [(4, 300_000), (4, 300_000)])
    )
    cases.append(
        Case("sum of products 0", lambda x, y: (x * y).sum(0), [(300_000, 4), (300_000, 4)])
    )
    cases.append(Case("cumsum 0", lambda x: x.cumsum(0), [(100_000, 3)]))
    cases.append(Case("cumsum 1", lambda x: x.cumsum(1), [(3, 100_000)]))
    return cases


_STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": lambda x: x[::2, ::2],
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed": lambda x: x.flip(0),
}


def _bag(x: Tensor) -> Tensor:
    index = (torch.arange(60_000) * 7919) % x.shape[0]
    return x[index].sum(0)


def _norms() -> list[Case]:
    def layer(x: Tensor, rank: int = 1) -> Tensor:
        return F.layer_norm(x, x.shape[-rank:])

    def batch(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)

    # With data around 1000, deviations are differences of numbers with errors of 6e-5.
    kinds = ("normal", "uniform", "large")
    return [
        Case("softmax 16x100000", lambda x: x.softmax(1), [(16, 100_000)]),
        Case("softmax 100000x16 0", lambda x: x.softmax(0), [(100_000, 16)]),
        Case("log_softmax 16x100000", lambda x: x.log_softmax(1), [(16, 100_000)]),
        Case("softmax any", lambda x: x.softmax(1), [(16, 100_000)], dynamic=[[1]]),
        Case("layer_norm 8x100000", layer, [(8, 100_000)], kinds=kinds),
        Case("layer_norm 8x4096", layer, [(8, 4096)], kinds=kinds),
        Case("layer_norm 8x768", layer, [(8, 768)], kinds=kinds),
        Case("layer_norm 3x200x300", partial(layer, rank=2), [(3, 200, 300)], kinds=kinds),
        Case("layer_norm any", layer, [(8, 100_000)], kinds=kinds, dynamic=[[1]]),
        Case("rms_norm 8x100000", lambda x: F.rms_norm(x, x.shape[1:]), [(8, 100_000)]),
        Case("group_norm", lambda x: F.group_norm(x, 4), [(2, 32, 64, 64)], kinds=kinds),
        Case("instance_norm", lambda x: F.instance_norm(x), [(2, 8, 128, 128)], kinds=kinds),
        Case("batch_norm", batch, [(16, 8, 64, 64)], kinds=kinds),
        Case("batch_norm 1d", batch, [(60_000, 8)], kinds=kinds),
        Case("normalize", lambda x: F.normalize(x, dim=1), [(8, 100_000)]),
        Case("cosine", lambda x, y: F.cosine_similarity(x, y), [(8, 100_000)] * 2),
        Case("mse", lambda x, y: F.mse_loss(x, y), [(500_000,), (500_000,)], kinds=KINDS[:3]),
        Case("cdist", torch.cdist, [(20, 5000), (30, 5000)], kinds=KINDS[:3]),
        Case("cdist 3", partial(torch.cdist, p=3.0), [(20, 5000), (30, 5000)], kinds=KINDS[:3]),
    ]


def _products() -> list[Case]:
    cases: list[Case] = []
    for depth in (4096, 65_536, 1_000_000):
        rows = 33 if depth < 100_000 else 9
        for constant in (True, False):
            text = f"{depth}{' constant' if constant else ''}"
            for many, what in ((rows, "linear"), (1, "linear of a row")):
                shapes = [(many, depth), (50, depth)]
                cases.append(Case(f"{what} {text}", F.linear, shapes, constant))
            cases.append(
                Case(f"matmul {text}", torch.matmul, [(rows, depth), (depth, 50)], constant)
            )
        cases.append(Case(f"row by matrix {depth}", torch.matmul, [(1, depth), (depth, 50)]))
        cases.append(Case(f"mv {depth}", torch.mv, [(60, depth), (depth,)]))
        cases.append(Case(f"vm {depth}", torch.matmul, [(depth,), (depth, 60)]))
        cases.append(Case(f"dot {depth}", torch.dot, [(depth,), (depth,)]))
        if depth > 100_000:
            continue
        cases.append(Case(f"bmm {depth}", torch.bmm, [(3, 20, depth), (3, depth, 24)]))
        cases.append(Case(f"bmm rows {depth}", torch.bmm, [(3, 1, depth), (3, depth, 24)]))
        cases.append(
            Case(f"matmul transposed {depth}", lambda x, y: x.T @ y, [(depth, 20), (depth, 40)])
        )
        cases.append(Case(f"outer sum {depth}", lambda x: x.T @ x, [(depth, 20)]))
        cases.append(
            Case(
                f"matmul any {depth}", torch.matmul, [(33, depth), (depth, 50)], dynamic=[[1], [0]]
            )
        )
        cases.append(
            Case(
                f"bmm any {depth}", torch.bmm, [(3, 20, depth), (3, depth, 24)], dynamic=[[2], [1]]
            )
        )
        cases.append(Case(f"mv any {depth}", torch.mv, [(60, depth), (depth,)], dynamic=[[1], [0]]))
        cases.append(
            Case(f"linear any {depth}", F.linear, [(1, depth), (50, depth)], dynamic=[[1], [1]])
        )
        cases.append(
            Case(f"vm any {depth}", torch.matmul, [(1, depth), (depth, 60)], dynamic=[[1], [0]])
        )
    cases += [
        Case(
            "einsum bik,bjk", partial(torch.einsum, "bik,bjk->bij"), [(3, 20, 8192), (3, 24, 8192)]
        ),
        Case(
            "einsum ikl,jkl", partial(torch.einsum, "ikl,jkl->ij"), [(20, 90, 100), (24, 90, 100)]
        ),
        Case(
            "einsum kil,kjl", partial(torch.einsum, "kil,kjl->ij"), [(900, 20, 10), (900, 24, 10)]
        ),
        Case("einsum bhk,bkh", partial(torch.einsum, "bhk,bkh->bh"), [(4, 6, 9000), (4, 9000, 6)]),
    ]
    return cases


def _convolutions() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, fn: Callable[..., Tensor], x: tuple[int, ...], w: tuple[int, ...]) -> None:
        cases.append(Case(f"{name} constant", fn, [x, w], True))
        cases.append(Case(name, fn, [x, w]))

    for channels in (512, 1024, 2048, 4096, 8192):
        add(f"conv2d 1x1 {channels}", F.conv2d, (1, channels, 14, 14), (40, channels, 1, 1))
    for channels in (64, 128, 256, 512, 1024, 2048):
        padded = partial(F.conv2d, padding=1)
        add(f"conv2d 3x3 {channels}", padded, (1, channels, 14, 14), (64, channels, 3, 3))
    add("conv2d 3x3 s2 1024", partial(F.conv2d, stride=2), (1, 1024, 14, 14), (32, 1024, 3, 3))
    add("conv2d 7x7 512", F.conv2d, (1, 512, 12, 12), (32, 512, 7, 7))
    add("conv2d 5x5 512", F.conv2d, (1, 512, 12, 12), (32, 512, 5, 5))
    add(
        "conv2d 3x3 dilated 1024",
        partial(F.conv2d, dilation=2),
        (1, 1024, 12, 12),
        (32, 1024, 3, 3),
    )
    add("conv2d grouped 4x1024", partial(F.conv2d, groups=4), (1, 4096, 10, 10), (64, 1024, 1, 1))
    add("conv2d grouped 3x3 4x512", partial(F.conv2d, groups=4), (1, 2048, 10, 10), (64, 512, 3, 3))
    add("conv2d depthwise 63x63", partial(F.conv2d, groups=8), (1, 8, 80, 80), (8, 1, 63, 63))
    add("conv2d one filter 1024", F.conv2d, (1, 1024, 14, 14), (1, 1024, 3, 3))
    add("conv2d whole 64x20x20", F.conv2d, (2, 64, 20, 20), (32, 64, 20, 20))
    add("conv1d 2048x3", partial(F.conv1d, padding=1), (1, 2048, 50), (40, 2048, 3))
    add("conv1d 4096x1", F.conv1d, (1, 4096, 50), (40, 4096, 1))
    add("conv1d long", F.conv1d, (1, 4, 9000), (8, 4, 4000))
    add("conv3d 512x3x3x3", F.conv3d, (1, 512, 5, 6, 7), (32, 512, 3, 3, 3))
    add("conv3d 4096x1", F.conv3d, (1, 4096, 4, 6, 7), (32, 4096, 1, 1, 1))
    add(
        "transposed 2x2 s2 4096",
        partial(F.conv_transpose2d, stride=2),
        (1, 4096, 8, 8),
        (4096, 16, 2, 2),
    )
    add("transposed 3x3 1024", F.conv_transpose2d, (1, 1024, 8, 8), (1024, 16, 3, 3))
    add(
        "transposed 4x4 s2 2048",
        partial(F.conv_transpose2d, stride=2, padding=1),
        (1, 2048, 8, 8),
        (2048, 16, 4, 4),
    )
    cases.append(
        Case(
            "conv2d 1x1 4096 any",
            F.conv2d,
            [(1, 4096, 14, 14), (40, 4096, 1, 1)],
            True,
            dynamic=[[2]],
        )
    )
    cases.append(
        Case(
            "conv2d 3x3 512 any",
            partial(F.conv2d, padding=1),
            [(2, 512, 14, 14), (64, 512, 3, 3)],
            True,
            dynamic=[[0]],
        )
    )
    last = partial(_channels_last, padding=1)
    cases.append(
        Case("conv2d 3x3 512 channels last", last, [(1, 512, 14, 14), (64, 512, 3, 3)], True)
    )
    cases.append(
        Case(
            "conv2d 1x1 4096 channels last",
            _channels_last,
            [(1, 4096, 14, 14), (40, 4096, 1, 1)],
            True,
        )
    )
    return cases


def _channels_last(x: Tensor, w: Tensor, padding: int = 0) -> Tensor:
    x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return F.conv2d(x, w, padding=padding)


def _others() -> list[Case]:
    cases: list[Case] = []
    attend = F.scaled_dot_product_attention
    for keys in (1000, 3000, 16_000):
        for head in (64, 128):
            shapes = [(1, 2, 64, head), (1, 2, keys, head), (1, 2, keys, head)]
            cases.append(Case(f"attention {keys} keys, head {head}", attend, shapes))
            cases.append(Case(f"attention v {keys} keys, head {head}", _attend_large, shapes))
        shapes = [(1, 2, 64, 64), (1, 2, keys, 64), (1, 2, keys, 64)]
        cases.append(Case(f"attention any {keys} keys", attend, shapes, dynamic=[[], [2], [2]]))
        shapes = [(1, 2, 1, 64), (1, 2, keys, 64), (1, 2, keys, 64)]
        cases.append(Case(f"attention of a row, {keys} keys", attend, shapes))
        shapes = [(1, 2, keys, 64)] * 3
        causal = partial(attend, is_causal=True)
        if keys < 10_000:
            cases.append(Case(f"attention causal {keys}", causal, shapes))
    cases += [
        Case("attention head 4096", attend, [(1, 2, 8, 4096), (1, 2, 40, 4096), (1, 2, 40, 4096)]),
        Case("softmax @ v", lambda s, v: s.softmax(-1) @ v, [(8, 9000), (9000, 64)]),
        Case("avg_pool 64x64", lambda x: F.avg_pool2d(x, 64, 16), [(1, 4, 200, 200)]),
        Case("avg_pool 100x100 s100", lambda x: F.avg_pool2d(x, 100), [(1, 4, 200, 200)]),
        Case("avg_pool1d 5000", lambda x: F.avg_pool1d(x, 5000, 1000), [(1, 4, 40_000)]),
        Case("avg_pool3d 20", lambda x: F.avg_pool3d(x, 20), [(1, 3, 40, 40, 40)]),
        Case("adaptive_avg_pool 1", lambda x: F.adaptive_avg_pool2d(x, 1), [(1, 8, 200, 200)]),
        Case("adaptive_avg_pool 7", lambda x: F.adaptive_avg_pool2d(x, 7), [(1, 8, 500, 510)]),
        Case("adaptive_avg_pool1d 3", lambda x: F.adaptive_avg_pool1d(x, 3), [(1, 8, 70_000)]),
        Case(
            "interpolate",
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
            [(1, 4, 50, 60)],
        ),
        Case(
            "bicubic",
            lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
            [(1, 4, 50, 60)],
        ),
    ]
    return cases


def _attend_large(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with values around 1000 and nearly equal keys, so that every key has weight."""
    return F.scaled_dot_product_attention(q * 1e-3, k, v + LARGE)


def cases() -> list[Case]:
    return [*_reductions(), *_norms(), *_products(), *_convolutions(), *_others()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each case; return 1 if an error exceeds the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="cases whose names contain it")
    parser.add_argument("--over", action="store_true", help="print cases that exceed the limit")
    options = parser.parse_args(arguments)
    many = 0
    print(f"{'case':<34} {'strategies':<20} {'data':<9} {'ours':>8} {'PyTorch':>8} {'ratio':>6}")
    for case in cases():
        if options.only and not any(part in case.name for part in options.only):
            continue
        try:
            found = measure(case)
        except bw.BlockwrightError as refused:
            print(f"{case.name:<34} refused: {str(refused).splitlines()[0]}", flush=True)
            continue
        many += found.over
        if found.over or not options.over:
            print(
                f"{case.name:<34} {found.rules:<20} {found.kind:<9} {found.ours:8.1e} "
                f"{found.torch:8.1e} {found.ratio:6.1f}{' over' if found.over else ''}",
                flush=True,
            )
    return 1 if many else 0


if __name__ == "__main__":
    sys.exit(main())
