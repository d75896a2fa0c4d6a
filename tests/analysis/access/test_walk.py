"""Which nodes access memory, in which order, and which accesses may not happen."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.access.walk import AccessWalker

TEXT = """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), I: T.Buffer((8,), "int32")):
    with T.block("root"):
{body}
"""


class Recorder(AccessWalker):
    """Writes accesses as text; those in uncertain parts with a question mark."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.mark = ""

    def read(self, load: ir.BufferLoad) -> None:
        self.found.append(f"{load.buffer.name}{self.mark}")

    def write(self, element: ir.BufferStore | ir.BufferLoad) -> None:
        self.found.append(f"{element.buffer.name}={self.mark}")

    def address(self, first: ir.BufferLoad) -> None:
        self.found.append(f"&{first.buffer.name}{self.mark}")

    def branch(self, condition: ir.Expr, part: ir.Stmt | ir.Expr) -> None:
        self.found.append("if")
        self.visit(part)

    def uncertain(self, part: ir.Node) -> None:
        before, self.mark = self.mark, "?"
        self.visit(part)
        self.mark = before


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("B[I[0]] = A[1]", "B= I A"),
        ("B[0] = T.if_then_else(I[0] > 0, A[0], 1)", "B= I if A if"),
        ("B[0] = T.Select(I[0] > 0 and A[0] > 0, A[1], 1)", "B= I A? A"),
        ("if I[0] > 0:\n    B[0] = 1\nelse:\n    B[1] = A[0]", "I if B= if B= A"),
        ("while A[0] > 0:\n    B[0] = I[0]", "A B=? I?"),
        ("for i in range(A[0]):\n    B[i] = I[i]", "A B= I"),
        ("T.atomic_add(B[I[0]], A[0])", "B B= I A"),
        ("x: T.int32 = A[0]\nB[x] = x + x", "A B="),
        ('T.evaluate(T.call_extern("g", A[0], T.address_of(B[I[0]]), dtype="int32"))', "A? I? &B?"),
        ('assert A[0] > 0, "A"', "A"),
    ],
)
def test_accesses_in_order(lines: str, found: str) -> None:
    body = "\n".join("        " + line for line in lines.splitlines())
    func = bw.from_source(TEXT.format(body=body))
    recorder = Recorder()
    recorder.visit(func.root.body)
    assert " ".join(recorder.found) == found


def test_names_are_expanded_to_what_they_stand_for() -> None:
    func = bw.from_source(
        TEXT.format(
            body="        x: T.int32 = I[0]\n        y: T.int32 = x + 1\n        B[y] = A[x]"
        )
    )
    walker = Recorder()
    walker.visit(func.root.body)
    (store,) = ir.collect(func.body, ir.BufferStore)
    load = next(n for n in ir.collect(func.body, ir.BufferLoad) if n.buffer.name == "I")
    assert ir.structural_equal(walker.without_names(store.indices[0]), ir.add(load, 1))
