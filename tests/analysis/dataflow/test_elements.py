"""Elements and bytes that accesses of aliased memory touch."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from tests.analysis.validated import problems

TWO_TYPES = """
@T.prim_func
def main(A: T.Buffer((8,), "float32")):
    C = T.alloc_buffer((8,), "float32")
    {outside}
    for i in {loop}:
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            {inside}
            C[vi] = T.float32(1)
            D[{index}] = D_TYPE(3)
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            A[vi] = C[vi]
"""


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("loop", ["T.parallel(8)", 'T.thread_binding(8, thread="threadIdx.x")'])
@pytest.mark.parametrize(
    ("view", "index", "byte"),
    [
        ('(32,), "uint8"', "vi", 1),
        ('(32,), "uint8"', "vi * 4 + 1", None),
        ('(32,), "uint8"', "vi * 4 + 4", 4),
        ('(16,), "uint16"', "vi * 2 + 1", None),
        ('(4,), "int64"', "vi // 2", 0),
        ('(4,), "int32", elem_offset=4', "vi % 4", 16),
        ('(4,), "int32", strides=(2,)', "vi // 2", 0),
    ],
)
def test_iterations_meet_in_bytes_under_two_types(
    view: str, index: str, byte: int | None, loop: str, where: str
) -> None:
    places = {"inside": "", "outside": "", where: f"D = T.decl_buffer({view}, data=C.data)"}
    text = TWO_TYPES.format(loop=loop, index=index, **places)
    text = text.replace("D_TYPE", "T." + view.split('"')[1])
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    found = problems(func)
    assert [code for code, _ in found] == ([] if byte is None else ["BW240"]), found
    assert byte is None or f"byte {byte} of C" in found[0][1]
