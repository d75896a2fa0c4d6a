"""Random programs at random stages of random schedules are read back from their text."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from blockwright import ir
from blockwright.script.ir import from_source
from blockwright.testing import random_program
from blockwright.testing.moves import MOVES, Player


def labels(func: ir.PrimFunc) -> list[str]:
    """The names of definitions, in the order in which they first occur."""
    kinds = (ir.Var, ir.Buffer, ir.Block)
    seen: dict[int, str] = {}
    for node in ir.walk(func.body):
        if isinstance(node, kinds):
            seen.setdefault(id(node), node.name)
    return list(seen.values())


def round_trips(func: ir.PrimFunc) -> None:
    text = repr(func)
    again = from_source(text)
    ir.assert_structural_equal(again, func)
    assert ir.structural_hash(again) == ir.structural_hash(func)
    assert repr(again) == text
    twice = from_source(repr(again))
    assert labels(twice) == labels(again)  # clashing labels are told apart once, then stay


@pytest.mark.parametrize("seed", range(40))
def test_every_stage_of_a_schedule_round_trips(seed: int) -> None:
    func = random_program(seed)
    round_trips(func)
    player = Player(func, MOVES, seed)
    for _ in range(6):
        before = player.sch.func
        player.play(1)
        if player.sch.func is not before:
            round_trips(player.sch.func)


class Widened(ir.Mutator):
    """Replaces int32 by another type, as indices of programs of the graph level have it."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = ir.dtype_of(dtype)

    def descend(self, node: Any) -> Any:
        made = super().descend(node)
        changes = {
            name: self.dtype
            for name in ("type", "dtype")
            if name in type(node).__struct_fields__ and str(getattr(node, name)) == "int32"
        }
        if changes and isinstance(made, ir.IntImm) and made.value > self.dtype.max_value:
            changes["value"] = made.value % 1000
        return made.replace(**changes) if changes else made


@pytest.mark.parametrize("dtype", ["int64", "int16"])
@pytest.mark.parametrize("seed", range(40))
def test_programs_of_other_index_types_round_trip(seed: int, dtype: str) -> None:
    func = random_program(seed)
    player = Player(func, MOVES, seed)
    player.play(4)
    for item in (func, player.sch.func):
        wide = Widened(dtype)(item)
        text = repr(wide)
        ir.assert_structural_equal(from_source(text), wide)
        for line in text.splitlines():  # only shapes and extents of loops state int16
            if dtype == "int64" or not any(
                word in line for word in ("Buffer(", "buffer(", "for ", "T.axis", "T.cast")
            ):
                assert not re.search(rf"T\.{dtype}\([-\d]", line), line


def with_mixed_loops(func: ir.PrimFunc, seed: int) -> ir.PrimFunc:
    """The program read from its text after extents of some of its loops took the other type."""
    chance = random.Random(seed)

    def header(found: re.Match[str]) -> str:
        numbers = re.sub(r"\b\d+\b", lambda n: drawn(n[0]), found[2])
        return f"{found[1]}{numbers}{found[3]}"

    def drawn(number: str) -> str:
        return (
            f"T.{chance.choice(['int32', 'int64'])}({number})" if chance.random() < 0.5 else number
        )

    heads = r"(for .* in (?:range|T\.grid)\()([\w, ]*)(\):)"
    mixed = from_source(re.sub(heads, header, repr(func)))
    assert isinstance(mixed, ir.PrimFunc)
    return mixed


@pytest.mark.parametrize("seed", range(40))
def test_programs_with_indices_of_both_types_round_trip(seed: int) -> None:
    func = random_program(seed)
    player = Player(func, MOVES, seed)
    player.play(3)
    for item in (func, player.sch.func, Widened("int32")(func)):
        round_trips(with_mixed_loops(item, seed))


@pytest.mark.parametrize("seed", range(40))
def test_names_that_do_not_clash_are_kept(seed: int) -> None:
    """Names that are distinct identifiers come back letter for letter."""
    func = random_program(seed)
    taken: dict[ir.Node, str] = {}
    for number, node in enumerate(ir.walk(func)):
        if isinstance(node, (ir.Var, ir.Buffer)):
            taken.setdefault(node, f"{node.name}_{number}")

    class Renamed(ir.Mutator):
        def rewrite_Var(self, node: ir.Var) -> ir.Var:
            return node.replace(name=taken[node])

        def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
            return self.descend(node).replace(name=taken[node])

    unique = Renamed()(func)
    assert labels(from_source(repr(unique))) == labels(unique)
