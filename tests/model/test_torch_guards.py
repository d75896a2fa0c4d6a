"""Guards of exported programs: calls that violate them are refused, by PyTorch's words for them."""

from __future__ import annotations

import ast
import itertools
import math
import random
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw
from blockwright import ir
from blockwright.frontend.torch import compositions, importer
from blockwright.frontend.torch.guard_arithmetic import NotCovered, all_in_turn, truth
from blockwright.frontend.torch.importer import from_exported_program
from blockwright.ir.printer import script
from blockwright.script.ir import from_source

AUTO = torch.export.Dim.AUTO


def rows(*counts: int) -> list[torch.Tensor]:
    return [torch.arange(4.0 * n).reshape(n, 4) for n in counts]


def refused(exe: Any, *args: Any, **named: Any) -> bw.ArgumentError:
    with pytest.raises(bw.ArgumentError) as caught:
        exe(*args, **named)
    assert caught.value.code == "BW719"
    assert caught.value.help
    assert "example inputs" in caught.value.help
    return caught.value


# ------------------------------------------------------------------------------ arithmetic
CHOSEN = [
    "n // 3 % 2 == 1",
    "(n - 10) % 3 == 1 and n != 4",
    "n > 4 or m == 2",
    "not (n > 4 or m >= 2)",
    "not (n > 4 and m <= 2)",
    "2 <= n < 7",
    "n / 3 > 2.5",
    "(n / m) == 2.5",
    "n // m == 2 or n % m == 1",
    "n > 5 or 8 // m == 2",
    "n > 5 and 8 // m == 2",
    "math.trunc((n - 9) / 4) == -1",
    "math.floor((n - 9) / 4) == -1",
    "math.ceil((n - 9) / 4) == -1",
    "math.ceil(n) == 4",
    "round((n - 5) / 2) == 2",
    "round((n - 5) / 2) == -2",
    "round(n) == 3",
    "math.floor(1.5*torch.sym_float(n)) == 12",
    "math.floor(torch.sym_float(n) * 0.1) == 1",
    "math.trunc(torch._sym_sqrt(torch.sym_float(n))) == 2",
    "torch.sym_float(n) ** 0.5 > 2.0",
    "torch.sym_float(n) ** 2.0 > 16.0",
    "n*n > 30",
    "n ** 3 == 125",
    "min(n, m, 4) == 3",
    "3 + torch.sym_min(n, m) > torch.sym_max(m, 4)",
    "max(n, 2.5) == 2.5",
    "abs(n - 5) == 2",
    "(n & 1) == 0",
    "(n | m) == 7",
    "(n ^ m) == 1",
    "(n if m > 2 else n // 2) == 3",
    "-n + 4 == -1",
    "not (n > 5 or 8 // m == 2)",
    "not (n > 5 and 8 // (8 // m - 4) == 2)",
    "(8 // m if n > 3 else n / (m - 1)) == 4",
]
NAMED = {"math": math, "torch": torch, "min": min, "max": max, "abs": abs, "round": round}


class Drawn:
    """Draws conditions as text."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def condition(self, depth: int) -> str:
        one = self.chance.choice
        if depth and self.chance.random() < 0.5:
            parts = [self.condition(depth - 1) for _ in range(one((1, 2, 3)))]
            return f"not {parts[0]}" if len(parts) == 1 else f"({one(JOINS).join(parts)})"
        number = one((self.whole, self.real))
        return f"({number(depth)} {one(ORDERS)} {self.whole(0)})"

    def whole(self, depth: int) -> str:
        one = self.chance.choice
        if not depth or self.chance.random() < 0.2:
            return one(("n", "m", "3", "(-2)"))
        if self.chance.random() < 0.3:
            return (
                f"{one(('math.floor', 'math.ceil', 'math.trunc', 'round'))}({self.real(depth - 1)})"
            )
        form = one(
            (
                "{0} + {1}",
                "{0} - {1}",
                "{0} * {1}",
                "{0} // {1}",
                "{0} % {1}",
                "{0} & {1}",
                "{0} if {2} else {1}",
            )
        )
        a, b, c = self.whole(depth - 1), self.whole(depth - 1), self.condition(depth - 1)
        return f"({form.format(a, b, c)})"

    def real(self, depth: int) -> str:
        form = self.chance.choice(("({0} / {1})", "(torch.sym_float({0}) * 0.3)", "abs({0} / 4)"))
        below = max(depth - 1, 0)
        return form.format(self.whole(below), self.whole(below))


JOINS, ORDERS = (" and ", " or "), ("==", "!=", "<", "<=", ">", ">=")
CONDITIONS = [*CHOSEN, *(drawn.condition(2) for drawn in map(Drawn, range(60)))]


def python_says(text: str, n: int, m: int) -> bool:
    """What PyTorch finds; a guard that divides by zero does not hold."""
    try:
        return bool(eval(text, NAMED, {"n": n, "m": m}))
    except ZeroDivisionError:
        return False


def test_conditions_hold_where_they_do_in_python() -> None:
    n, m = (ir.Var(name, ir.dtype_of("int64")) for name in "nm")
    out = ir.Buffer("out", ir.dtype_of("int32"), (ir.const(len(CONDITIONS), "int64"),))
    stores: list[ir.Stmt] = []
    for place, text in enumerate(CONDITIONS):
        divisors: list[ir.Expr] = []
        tree = ast.parse(text, mode="eval").body
        holds = truth(tree, lambda node: {"n": n, "m": m}[ast.unparse(node)], divisors)
        safe = all_in_turn([*divisors, holds])
        index = (ir.const(place, "int64"),)
        stores.append(ir.BufferStore(out, ir.cast_to(safe, "int32"), index))
    handle = ir.Var("out_handle", ir.dtype_of("handle"))
    func = ir.PrimFunc(
        (n, m, handle), ((handle, out),), ir.seq(stores), {"global_symbol": "conditions"}
    )
    built = bw.build(func)
    for sizes in itertools.product(range(14), range(6)):
        expected = [python_says(text, *sizes) for text in CONDITIONS]
        runs: list[Any] = [built, partial(bw.interpret, func)]
        for run in runs if sum(sizes) % 6 == 0 else runs[:1]:
            found = np.full(len(CONDITIONS), -1, np.int32)
            run(*sizes, found)
            wrong = [t for t, f, e in zip(CONDITIONS, found, expected, strict=True) if f != e]
            assert not wrong, sizes


@pytest.mark.parametrize(
    "text",
    ["math.log2(n) == 3.0", "2 ** n > 4", "n ** 0.3 > 2", "n is None", "n", "n in (1, 2)", "n == x",
     "round(n, 1) == 2", "n == 'a'", "n == 100000000000000000000", "(n & 1.5) == 0"],
)  # fmt: skip
def test_other_expressions_are_not_taken(text: str) -> None:
    def size(node: ast.expr) -> ir.Expr:
        if ast.unparse(node) != "n":
            raise NotCovered
        return ir.const(3, "int64")

    with pytest.raises(NotCovered):
        truth(ast.parse(text, mode="eval").body, size, [])


# ------------------------------------------------------------------------------ real exports
class Nested(torch.nn.Module):
    """Its first two tensors would both be called x_0; it returns nothing of some of them."""

    def forward(
        self, X: Any, X_0: torch.Tensor, *rest: Any, k: int = 2, b: Any = None, a: Any = None
    ) -> torch.Tensor:
        y = X[0] * k
        if X_0.shape[0] % 4 == 2:
            y = y + 1
        if rest[1]["q r"].shape[0] / 3 > 2.5:
            y = y + 2
        if a.shape[0] != b.shape[0]:
            y = y + 4
        return y


@pytest.mark.parametrize("strict", [False, True])
def test_inputs_of_guards_are_found_where_they_nest(strict: bool, tmp_path: Path) -> None:
    def arguments(*counts: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        first, second, rest, a, b = rows(*counts)
        return ([first], second, *rows(2), {"q r": rest}), {"k": 2, "b": b, "a": a}

    args, named = arguments(8, 6, 9, 5, 7)
    free = {0: AUTO}
    shapes = {
        "X": [free],
        "X_0": free,
        "rest": (None, {"q r": free}),
        "k": None,
        "b": free,
        "a": free,
    }
    exported = torch.export.export(Nested(), args, named, dynamic_shapes=shapes, strict=strict)
    exe = bw.compile(exported)
    exe.save(tmp_path / "nested.bwx")
    for run in (exe, bw.load(tmp_path / "nested.bwx")):
        for counts in ((8, 6, 9, 5, 7), (3, 10, 8, 2, 9)):
            args, named = arguments(*counts)
            assert torch.equal(run(*args, **named), Nested()(*args, **named))
        for counts, text in (
            ((8, 7, 9, 5, 7), "X_0.size()[0] % 4 == 2, got X_0.size()[0] = 7"),
            ((10, 8, 9, 5, 7), "X_0.size()[0] % 4 == 2, got X_0.size()[0] = 8"),
            ((8, 6, 7, 5, 7), "['q r'].size()[0] / 3 > 2.5, got rest"),
            ((8, 6, 9, 7, 7), "a.size()[0] = 7, b.size()[0] = 7"),
        ):
            args, named = arguments(*counts)
            with pytest.raises(AssertionError, match="Guard failed"):
                exported.module()(*args, **named)
            assert text in refused(run, *args, **named).message


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] // 2 % 4 == 0
        assert y.shape[0] % 3 == 1
        assert y.shape[0] / 3 > 1.2
        assert z.shape[0] * z.shape[1] > 20
        return x + 1


@pytest.fixture(scope="module")
def branches() -> Any:
    """Compiled with a derived, a dynamic and automatic dimensions."""
    shapes = (
        {0: 2 * torch.export.Dim("n", max=64)},
        {0: torch.export.Dim.DYNAMIC},
        {0: AUTO, 1: AUTO},
    )
    return bw.compile(torch.export.export(Branches(), (*rows(8, 7, 6),), dynamic_shapes=shapes))


CALLS: list[tuple[tuple[int, int, int], str]] = [
    ((8, 10, 9), ""),
    ((16, 4, 6), ""),
    ((12, 7, 6), "x.size()[0] // 2 % 4 == 0, got x.size()[0] = 12"),
    ((8, 8, 6), "y.size()[0] % 3 == 1, got y.size()[0] = 8"),
    ((8, 7, 5), "z.size()[1] * z.size()[0] > 20, got z.size()[1] = 4, z.size()[0] = 5"),
]


@pytest.mark.parametrize(("counts", "text"), CALLS)
def test_guards_of_all_kinds_of_dimensions(
    branches: Any, counts: tuple[int, int, int], text: str
) -> None:
    inputs = rows(*counts)
    if text:
        assert text in refused(branches, *inputs).message
    else:
        assert torch.equal(branches(*inputs), Branches()(*inputs))


def test_the_interpreter_says_the_same(branches: Any) -> None:
    good, bad = rows(8, 10, 9), rows(8, 8, 6)
    out = np.zeros((8, 4), np.float32)
    bw.interpret(branches.lowered, *[x.numpy() for x in good], out)
    assert np.array_equal(out, Branches()(*good).numpy())
    with pytest.raises(bw.InterpretError) as caught:
        bw.interpret(branches.lowered, *[x.numpy() for x in bad], out)
    assert caught.value.code == "BW719"
    assert caught.value.message == refused(branches, *bad).message


def test_guards_are_part_of_the_printed_program(branches: Any) -> None:
    """Of the graph as it is imported and of the host program."""
    exported = torch.export.export(Branches(), (*rows(8, 7, 6),), dynamic_shapes=({0: AUTO},) * 3)
    for program in (from_exported_program(exported), branches.lowered["main"]):
        text = script(program)
        assert "%% 3 == 1" in text
        assert script(from_source(text)) == text


class ByLayout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.stride(0) == 7 else x - 1


@pytest.mark.parametrize("strict", [False, True])
def test_guards_that_are_not_checked_are_listed(strict: bool) -> None:
    x = torch.zeros(8, 7)[:, :4]
    shapes = ({0: AUTO, 1: AUTO},)
    exported = torch.export.export(ByLayout(), (x,), dynamic_shapes=shapes, strict=strict)
    with pytest.warns(bw.BlockwrightWarning) as caught:
        module = from_exported_program(exported)
    (warning,) = caught
    text = "x.stride()[0] == 7" if strict else "x._base.size()[1] == 7"
    assert "BW510" in str(warning.message)
    assert text in str(warning.message)
    assert "x.size()[1] != 7" in script(module) or "7 != x.size()[1]" in script(module)


def test_each_guard_that_is_not_understood_is_named_once() -> None:
    exported = torch.export.export(Branches(), (*rows(8, 7, 6),), dynamic_shapes=({0: AUTO},) * 3)
    texts = ["L['x'].size()[0] == mystery(2)", "not python", "L['x'].size()[0] % 2 == 0"]
    changed = types.SimpleNamespace(
        _guards_code=texts,
        call_spec=exported.call_spec,
        graph_signature=exported.graph_signature,
        module_call_graph=exported.module_call_graph,
    )
    from blockwright.arith import Analyzer
    from blockwright.frontend.torch.guards import checked_guards

    n = ir.Var("n", ir.dtype_of("int64"))
    with pytest.warns(bw.BlockwrightWarning) as caught:
        (guard,) = checked_guards(changed, {"x": (n,)}, Analyzer())
    assert [str(w.message).count("BW510") for w in caught] == [1]
    assert "x.size()[0] == mystery(2); not python" in str(caught[0].message)
    assert guard.text == "x.size()[0] % 2 == 0"
    assert guard.found == {"x.size()[0]": n}


def test_numbers_that_vary_from_call_to_call_are_refused() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            return x + n if n % 4 == 2 else x

    exported = torch.export.export(Model(), (*rows(8), 6), dynamic_shapes=({0: AUTO}, AUTO))
    with pytest.raises(bw.ImporterError, match="the input n is SymInt") as caught:
        bw.compile(exported)
    assert caught.value.code == "BW504"


# ------------------------------------------------------------------------------ common factors
def quarters(x: torch.Tensor) -> torch.Tensor:
    return x.view(4, -1, 3).mean(0)


def both_halves(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2)
    return first * second + x.view(-1, 2).sum(1)


def thirds(x: torch.Tensor) -> torch.Tensor:
    return x + x.view(x.shape[0], 3, -1).amax(1).repeat(1, 3)


def unshuffled(x: torch.Tensor) -> torch.Tensor:
    return torch.pixel_unshuffle(x, 2)


def rows_of_many(x: torch.Tensor) -> torch.Tensor:
    return x.view(256, -1).sum(1)


FACTORED: list[Any] = [  # function, example, sizes that are right, sizes that are not
    (quarters, (8, 3), [(12, 3)], [(9, 3), (6, 3)]),
    (unshuffled, (3, 4, 6), [(3, 8, 4)], [(3, 5, 4)]),
    (both_halves, (8,), [(12,)], [(11,)]),
    (thirds, (4, 9), [(5, 6)], [(4, 10)]),
    (rows_of_many, (512,), [(768,)], [(700,)]),
]


@pytest.mark.parametrize(("fn", "example", "right", "wrong"), FACTORED)
def test_sizes_that_guards_make_multiples(
    fn: Any, example: tuple[int, ...], right: list[Any], wrong: list[Any]
) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fn(x)

    def arranged(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.arange(float(math.prod(shape))).reshape(shape)

    dims = {axis: AUTO for axis, size in enumerate(example) if size > 3}
    exported = torch.export.export(Model(), (arranged(example),), dynamic_shapes=({**dims},))
    exe = bw.compile(exported)
    for shape in (example, *right):
        x = arranged(shape)
        torch.testing.assert_close(exe(x), fn(x))
    for shape in wrong:
        with pytest.raises((RuntimeError, AssertionError)):
            exported.module()(arranged(shape))
        with pytest.raises(bw.ArgumentError) as caught:
            exe(arranged(shape))
        assert caught.value.code in {"BW704", "BW709", "BW719"}
        assert caught.value.help


def test_sizes_keep_their_own_symbols_where_these_fit() -> None:
    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] % 2 == 0 else x - 1

    exported = torch.export.export(Halves(), (torch.randn(8),), dynamic_shapes=({0: AUTO},))
    assert "x_dim0_by_2" not in str(from_exported_program(exported))


def test_branches_of_decompositions_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decomposition that asks whether a size is below another holds only for one answer."""

    def halved_if_large(x: Any) -> Any:
        return x / 2 if x.shape[0] > 10 else x * 3

    overload = "aten.special_erfcx.default"
    monkeypatch.setitem(compositions.COMPOSITIONS, overload, halved_if_large)
    unknown = importer.KNOWN - {overload}
    monkeypatch.setattr(importer, "KNOWN", unknown)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.erfcx(x)

    program = torch.export.export(
        Model(), (torch.ones(4),), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=50)},)
    )
    for _ in range(2):  # the second import finds the program's symbols as the first left them
        exe = bw.compile(program)
        assert torch.equal(exe(torch.ones(9)), torch.full((9,), 3.0))
        with pytest.raises(
            bw.BlockwrightError, match="exported for sizes where x_dim0 <= 10"
        ) as caught:
            exe(torch.ones(12))
        assert caught.value.code == "BW719"


def test_decisions_about_a_size_that_the_export_made_constant() -> None:
    """The slice is empty for the example, which fixes the first size; the update is decomposed."""

    class Squares(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[1:-1:2].mul_(2)

    model, x = Squares(), torch.arange(8.0).reshape(2, 4)
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(model, (x,), dynamic_shapes={"x": sizes})
    exe = bw.compile(program, options={"fallback": "error"})
    for given in (x, torch.ones(2, 7)):
        torch.testing.assert_close(exe(given.clone()), model(given.clone()))
