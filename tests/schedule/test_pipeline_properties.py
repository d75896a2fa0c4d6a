"""Random pipelines: legal ones keep the meaning, illegal ones are refused, and no others.

What is legal is told by an oracle that knows no rule about stages: it puts the instances of some
iterations in the order of the pipeline and looks whether each dependence still points forward.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning, make_arrays

OUTER, WIDTH = 3, 4


class Case:
    """A program with one loop to pipeline.

    A statement adds up what it reads: its input row, temporary rows of the same iteration, the
    running total `S`, or the row of `P` that the iteration before has written.

    Attributes:
        needs: has (a, b, d) where what statement `b` of iteration `i + d` does must come after what
            statement `a` of iteration `i` does. Temporaries are filled anew by every iteration, so
            that they count with d = 0 only.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.count = chance.randint(2, 4)
        self.iterations = None if chance.random() < 0.4 else chance.randint(1, 6)
        self.low = chance.choice([0, 0, 2])
        self.outer = chance.choice(["", "T.parallel(3)", "range(3)"])
        self.shapes = [chance.choice(list(SHAPES)) for _ in range(self.count)]
        self.needs: set[tuple[int, int, int]] = set()
        self.total = chance.choice([None, *range(self.count)])  # the statement that adds to S
        others = [k for k in range(self.count) if k != self.total]
        self.rows = chance.choice([None, *others])  # the statement that writes P
        body = "\n".join(self.statement(k) for k in range(self.count))
        self.func = from_source(self.text(body))
        self.loop = next(f for f in ir.loops(self.func.body) if f.loop_var.name == "i")

    def find(self, sch: Schedule, block: BlockRV) -> LoopRV:
        """The loop to pipeline."""
        return next(h for h in sch.get_loops(block) if sch.get(h) is self.loop)

    def statement(self, k: int) -> str:
        chance = self.chance
        terms = ["A[vo, vi, vj]"]
        for j in chance.sample(range(k), min(k, chance.randint(0, 2))):
            if j not in (self.total, self.rows):
                terms.append(self.temp(j))
                self.needs.add((j, k, 0))
        if self.total is not None and (k == self.total or chance.random() < 0.3):
            terms.append("S[vo, vj]")
            if k < self.total:
                self.needs |= {(k, self.total, 0), (self.total, k, 1)}
            elif k > self.total:
                self.needs |= {(self.total, k, 0), (k, self.total, 1)}
        if self.rows is not None and chance.random() < 0.4:
            terms.append("P[vo, vi, vj]")
            self.needs.add((self.rows, k, 1))
        if k in (self.total, self.rows):
            target = "S[vo, vj]" if k == self.total else "P[vo, vi + 1, vj]"
            return self.block(k, target, terms, [])
        last = [] if k < self.count - 1 else [f"Q[vo, vi, vj] = {self.temp(k)}"]
        return self.block(k, self.temp(k), terms, last)

    def temp(self, k: int) -> str:
        return f"T{k}[{SHAPES[self.shapes[k]]}]"

    def block(self, k: int, target: str, terms: list[str], more: list[str]) -> str:
        """Statement `k`: one block, or two with the second one reading what the first one wrote;
        sometimes the input row is added up in a reduction."""
        binds = [
            "vo = T.axis.spatial(3, " + ("o" if self.outer else "1") + ")",
            f"vi = T.axis.spatial({self.end()}, i)",
        ]
        used = [b for b in binds if b[:2] in " ".join([target, *terms])]
        inner = [*used, "vj = T.axis.spatial(4, j)"]
        own = [t for t in terms if t != target]
        if target.startswith("T") and self.chance.random() < 0.3:
            value = " + ".join([target, "A[vo, vi, vr]", *own[1:]])
            lines = [
                "for j, r in T.grid(4, 4):",
                f"    with T.block('s{k}'):",
                *(f"        {b}" for b in [*inner, "vr = T.axis.reduce(4, r)"]),
                "        with T.init():",
                f"            {target} = T.float32(0)",
                f"        {target} = {value}",
            ]
        else:
            lines = [
                "for j in range(4):",
                f"    with T.block('s{k}'):",
                *(f"        {b}" for b in inner),
                f"        {target} = {' + '.join(terms)}",
            ]
        text = "\n".join(lines)
        if not more:
            return text
        second = [
            "    for j2 in range(4):",
            f"        with T.block('q{k}'):",
            *(f"            {b}" for b in [*binds, "vj = T.axis.spatial(4, j2)"]),
            *(f"            {m}" for m in more),
        ]
        return "\n".join(["for once in range(1):", textwrap.indent(text, "    "), *second])

    def end(self, more: int = 0) -> str:
        """Where the loop ends, and some rows more."""
        more += self.low
        if self.iterations is not None:
            return str(self.iterations + more)
        return f"n + {more}" if more else "n"

    def text(self, body: str) -> str:
        rows = self.end(1)
        sizes = {"reused": "(4,)", "row": f"({rows}, 4)", "own": f"(3, {rows}, 4)"}
        size = ", n: T.int32" if self.iterations is None else ""
        head = [
            "@T.prim_func",
            f"def main(a: T.handle, q: T.handle, p: T.handle, s: T.handle{size}):",
        ]
        head += [f'    {x.upper()} = T.match_buffer({x}, (3, {rows}, 4), "float32")' for x in "aqp"]
        head += ['    S = T.match_buffer(s, (3, 4), "float32")']
        head += [
            f'    T{k} = T.alloc_buffer({sizes[self.shapes[k]]}, "float32")'
            for k in range(self.count)
            if k not in (self.total, self.rows)
        ]
        loop = f"for i in T.serial({self.low}, {self.end()}):\n"
        loop += textwrap.indent(body, "    ")
        if self.outer:
            loop = f"for o in {self.outer}:\n" + textwrap.indent(loop, "    ")
        return "\n".join(head) + "\n" + textwrap.indent(loop, "    ")


SHAPES = {"reused": "vj", "row": "vi, vj", "own": "vo, vi, vj"}


def is_legal(case: Case, stages: Sequence[int], orders: Sequence[int]) -> bool:
    """Whether each dependence points forward when the instances run in the pipeline's order."""
    count = 9 if case.iterations is None else case.iterations
    instances = [(i + stages[k], orders[k], k, i) for k in range(case.count) for i in range(count)]
    when = {(k, i): at for at, (_, _, k, i) in enumerate(sorted(instances))}
    return all(when[a, i] < when[b, i + d] for a, b, d in case.needs for i in range(count - d))


def draw(case: Case) -> tuple[list[int], list[int]]:
    stages = [case.chance.randint(0, 2) for _ in range(case.count)]
    if case.chance.random() < 0.6:
        stages.sort()
    orders = list(range(case.count))
    if case.chance.random() < 0.6:
        case.chance.shuffle(orders)
    return stages, orders


def sizes(case: Case) -> list[dict[str, int]]:
    return [{}] if case.iterations is not None else [{"n": n} for n in (0, 1, 2, 5)]


@pytest.mark.fuzz
def test_random_pipelines(fuzz_factor: int) -> None:
    legal = illegal = built = 0
    for seed in range(50 * fuzz_factor):
        case = Case(seed)
        for _ in range(3):
            stages, orders = draw(case)
            sch = Schedule(case.func, verify="full")
            block = sch.get_block(f"s{case.count - 1}")
            loop = case.find(sch, block)
            expected = is_legal(case, stages, orders)
            note = f"seed {seed}: {stages}, {orders}, needs {case.needs}\n{case.func.script()}"
            refused = ""
            try:
                sch.software_pipeline(loop, stages, orders)
            except ScheduleError as error:
                refused = error.code
                note += str(error)
            if refused:
                assert not expected, note
                assert refused in ("BW370", "BW371"), note
                illegal += 1
                continue
            assert expected, note + sch.func.script()
            legal += 1
            check(case, sch, note)
            assert sch.alive(block)
            if seed % 12 == 0:
                built += 1
                same_natively(case, sch.func)
    assert legal > 40 * fuzz_factor
    assert illegal > 40 * fuzz_factor
    assert built


def check(case: Case, sch: Schedule, note: str) -> None:
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)
    again = Schedule(case.func)
    again.replay(sch.trace)
    ir.assert_structural_equal(again.func, sch.func)
    for known in sizes(case):
        arrays = make_arrays(case.func, 1, known)
        assert_same_meaning(case.func, sch.func, sizes=known, arrays=arrays, exact=True)


def same_natively(case: Case, func: ir.PrimFunc) -> None:
    module = bw.build(func)
    for known in sizes(case):
        expected = make_arrays(case.func, 2, known)
        actual = [a.copy() for a in expected]
        bw.interpret(case.func, *expected, **known)
        module["main"](*actual, *known.values())
        for x, y in zip(expected, actual, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
