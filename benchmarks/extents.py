"""The neighbors of a case: the same operator with one extent slightly smaller or larger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks import operators
from benchmarks.cases import Case, Input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Extents = dict[str, int]
    Family = tuple[Extents, Callable[[str, Mapping[str, int]], Case]]

STEPS = (-1, 1, 3)
_AXES = ("depth", "height", "width")


@dataclass(frozen=True)
class Neighbour:
    """A case whose ``extent`` was changed by ``step``."""

    extent: str
    step: int
    case: Case

    def __str__(self) -> str:
        return f"{self.extent} {self.step:+d}"


def neighbours(case: Case) -> Iterator[Neighbour]:
    """Change every extent by every step.

    Extents of one are kept, because changing them makes another operator. Kernels, strides and
    dilations are not extents. Channels of grouped convolutions are counted per group, so that
    changing them keeps groups whole.
    """
    extents, make = _FAMILIES[case.build.partition(".")[2]](case)
    for name, size in extents.items():
        for step in STEPS if size > 1 else ():
            moved = make(f"{case.name}, {name} {step:+d}", {**extents, name: size + step})
            yield Neighbour(name, step, moved)


def _convolution(case: Case) -> Family:
    settings = case.settings
    (batch, inner, *spatial) = case.inputs[0].shape
    groups, outer = settings["groups"], settings["channels"][1]
    axes = _AXES[-len(spatial) :]
    extents = {
        "batch": batch,
        **dict(zip(axes, spatial, strict=True)),
        "groups": groups,
        "inner": inner // groups,
        "outer": outer // groups,
    }
    same = {key: settings[key] for key in ("kernel", "stride", "dilation", "transposed")}

    def make(name: str, size: Mapping[str, int]) -> Case:
        channels = size["groups"] * size["inner"], size["groups"] * size["outer"]
        extent = tuple(size[axis] for axis in axes)
        counts = {"batch": size["batch"], "groups": size["groups"]}
        made = operators.convolution(name, extent, channels, **counts, **same)
        return replace(made, name=name)

    return extents, make


def _product(case: Case) -> Family:
    (*batch, rows, inner) = case.inputs[0].shape
    columns = case.settings["columns"] if case.constant else case.inputs[1].shape[-1]
    extents = dict(zip(["batch"], batch, strict=False))
    extents |= {"rows": rows, "inner": inner, "columns": columns}

    def make(name: str, size: Mapping[str, int]) -> Case:
        m, k, n = size["rows"], size["inner"], size["columns"]
        one = operators.product(name, m, k, n, constant=case.constant)
        if not batch:
            return one
        count = size["batch"]
        inputs = tuple(Input((count, *each.shape)) for each in one.inputs)
        assert one.flops is not None
        assert one.moved is not None
        return replace(one, inputs=inputs, flops=count * one.flops, moved=count * one.moved)

    return extents, make


def _attention(case: Case) -> Family:
    _, heads, length, head = case.inputs[0].shape

    def make(name: str, size: Mapping[str, int]) -> Case:
        sizes = size["heads"], size["length"], size["head"]
        return replace(operators.attention(*sizes, causal=case.settings["causal"]), name=name)

    return {"heads": heads, "length": length, "head": head}, make


def _rowwise(case: Case) -> Family:
    rows, columns = case.inputs[0].shape
    assert case.flops is not None
    each = case.flops / (rows * columns)
    kind = case.build.partition(".")[2]

    def make(name: str, size: Mapping[str, int]) -> Case:
        return replace(operators.rowwise(kind, size["rows"], size["columns"], each), name=name)

    return {"rows": rows, "columns": columns}, make


_FAMILIES: Mapping[str, Callable[[Case], Family]] = {
    "convolution": _convolution,
    "product": _product,
    "weight_product": _product,
    "attention": _attention,
    "softmax": _rowwise,
    "layer_norm": _rowwise,
}
