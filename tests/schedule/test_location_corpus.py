"""Every block of realistic programs into every loop: what is accepted is right, and enough is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning
from tests.schedule.location_programs import PROGRAMS

Move = Callable[[Schedule], object]


def program(name: str) -> ir.PrimFunc:
    found = from_source(PROGRAMS[name])
    assert isinstance(found, ir.PrimFunc)
    return found


def blocks(sch: Schedule) -> list[BlockRV]:
    """All blocks but the root, also those inside others."""
    found: list[BlockRV] = []
    below = sch.get_child_blocks(sch.get_block("root"))
    while below:
        found += below
        below = [inner for block in below for inner in sch.get_child_blocks(block)]
    return found


def tiled(func: ir.PrimFunc, factor: int) -> Schedule:
    """The outer loops of each block split, tile loops outside."""
    sch = Schedule(func)
    for block in blocks(sch) if factor > 1 else []:
        pairs = [sch.split(loop, [None, factor]) for loop in sch.get_loops(block)[:3]]
        sch.reorder(*[outer for outer, _ in pairs], *[inner for _, inner in pairs])
    return sch


def moves(sch: Schedule) -> Iterator[Move]:
    """Every way to inline a block or to move it into a loop of another one."""
    for block in blocks(sch):
        yield lambda s, b=block: s.compute_inline(b)
        yield lambda s, b=block: s.reverse_compute_inline(b)
        seen: set[int] = set()
        for other in blocks(sch):
            for loop in sch.get_loops(other):
                if other == block or id(sch.get(loop)) in seen:
                    continue
                seen.add(id(sch.get(loop)))
                yield lambda s, b=block, f=loop: s.compute_at(b, f)
                yield lambda s, b=block, f=loop: s.reverse_compute_at(b, f)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_accepted_move_keeps_the_meaning(name: str, fuzz_factor: int) -> None:
    func = program(name)
    chance = random.Random(name)
    for factor in (1, 2, 3):
        sch = tiled(func, factor)
        accepted = 0
        candidates = list(moves(sch))
        chance.shuffle(candidates)
        for move in candidates:
            if accepted == fuzz_factor:
                break
            moved = sch.copy()
            try:
                move(moved)
            except ScheduleError:
                continue
            accepted += 1
            assert_same_meaning(func, moved.func, seed=accepted)


def _at(kind: str, block: str, consumer: str, position: int) -> Callable[[Schedule], object]:
    def move(sch: Schedule) -> object:
        loop: LoopRV = sch.get_loops(sch.get_block(consumer))[position]
        return getattr(sch, kind)(sch.get_block(block), loop)

    return move


def _inline(kind: str, block: str) -> Callable[[Schedule], object]:
    return lambda sch: getattr(sch, kind)(sch.get_block(block))


LEGAL: dict[str, tuple[str, int, list[Move]]] = {
    "a convolution and its padding in tiles with halos": ("conv_bn_relu", 3, [
        _at("compute_at", "bn", "relu", 2), _at("compute_at", "conv", "relu", 2),
        _at("compute_at", "pad", "relu", 2)]),
    "the same through the consumers": ("conv_bn_relu", 3, [
        _at("reverse_compute_at", "bn", "conv", 2), _at("reverse_compute_at", "relu", "conv", 2)]),
    "padding and batch norm inlined": ("conv_bn_relu", 1, [
        _inline("compute_inline", "pad"), _inline("compute_inline", "bn")]),
    "pooling follows the rows of its producer": ("pool", 1, [
        _at("reverse_compute_at", "pool", "relu", 1)]),
    "two consumers move after a reduction": ("pool", 2, [
        _at("reverse_compute_at", "out", "pool", 0), _at("reverse_compute_at", "mean", "pool", 0)]),
    "softmax in one loop over rows": ("softmax", 1, [
        _at("reverse_compute_at", "ex", "mx", 0), _at("reverse_compute_at", "sm", "mx", 0),
        _at("reverse_compute_at", "nrm", "mx", 0)]),
    "softmax from the other end": ("softmax", 3, [
        _at("compute_at", "sm", "nrm", 0), _at("compute_at", "ex", "nrm", 0),
        _at("compute_at", "mx", "nrm", 0)]),
    "a consumer with another producer before the loop": ("softmax", 1, [
        _at("reverse_compute_at", "nrm", "sm", 0)]),
    "layer norm": ("layernorm", 2, [
        _at("reverse_compute_at", "sq", "sum", 0), _at("reverse_compute_at", "norm", "sum", 0)]),
    "attention row by row": ("attention", 1, [
        _at("compute_at", "pv", "out", 1), _at("compute_at", "den", "out", 1),
        _at("compute_at", "ex", "out", 1), _at("compute_at", "mx", "out", 1),
        _at("compute_at", "score", "out", 1)]),
    "a matrix product with its epilogue in ragged tiles": ("matmul_gelu", 4, [
        _at("compute_at", "bias", "gelu", 1), _at("compute_at", "mm", "gelu", 1)]),
    "stencils recomputed in overlapping tiles": ("blur", 3, [
        _at("compute_at", "by", "bz", 1), _at("compute_at", "bx", "bz", 1)]),
    "a clamped stencil over symbolic rows": ("clamped", 3, [_at("compute_at", "b", "c", 0)]),
    "a part of a concatenation where it may not be needed": ("concat", 1, [
        _at("compute_at", "a2", "cat", 1)]),
    "two writers of one buffer into the tiles of their reader": ("concat2", 3, [
        _at("compute_at", "cat0", "relu", 0), _at("compute_at", "cat1", "relu", 0),
        _at("compute_at", "a2", "relu", 0)]),
    "a reshape into both its consumers": ("reshape", 1, [_inline("compute_inline", "reshape")]),
    "inlining a store at quotient and remainder": ("flatten", 1, [_inline("compute_inline", "a")]),
    "inlining a store at a mixed sum": ("unflatten", 1, [_inline("compute_inline", "a")]),
    "reading at quotient and remainder": ("reshape", 1, [
        _inline("reverse_compute_inline", "reshape")]),
    "rows of a flattened producer": ("flatten", 1, [_at("compute_at", "a", "y", 0)]),
    "a transpose into its producer": ("transpose", 1, [
        _inline("reverse_compute_inline", "t"), _inline("reverse_compute_inline", "y")]),
    "a packed layout": ("blocked", 1, [_inline("reverse_compute_inline", "pack")]),
    "unpacking moves to the packing": ("blocked", 2, [_at("reverse_compute_at", "y", "pack", 0)]),
    "upsampling follows its producer": ("upsample", 1, [_at("reverse_compute_at", "up", "a", 0)]),
    "ragged tiles on both sides": ("imperfect", 1, [
        _at("compute_at", "a", "y", 2)]),
    "ragged tiles split again": ("imperfect", 3, [_inline("compute_inline", "a")]),
    "inside a block": ("nested", 1, [_at("compute_at", "b", "y", 0)]),
    "a gathered tensor is computed whole where it is used": ("gather", 1, [
        _at("reverse_compute_at", "y", "g", 1), _inline("compute_inline", "a")]),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_moves_are_accepted(name: str) -> None:
    program_name, factor, steps = LEGAL[name]
    func = program(program_name)
    sch = tiled(func, factor)
    for step in steps:
        step(sch)
    for seed in (1, 2):
        assert_same_meaning(func, sch.func, seed=seed)
