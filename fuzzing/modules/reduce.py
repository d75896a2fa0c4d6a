"""Reduce programs to smaller ones that fail in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from fuzzing.modules.program import ModuleCall, ModuleProgram, Ref, Size, run
from fuzzing.smaller import smallest

_MOST = 60
"""Maximum number of programs to try."""


def reduced(program: ModuleProgram, fails: Callable[[ModuleProgram], bool]) -> ModuleProgram:
    """The smallest program found that still `fails`."""
    return smallest(program, _smaller, fails, _MOST)


def _smaller(program: ModuleProgram) -> Iterator[ModuleProgram]:
    first = len(program.inputs)
    if len(program.outputs) > 1:
        for index in program.outputs:
            yield _trimmed(program, (index,))
    for count in range(1, len(program.calls)):  # only the first calls
        yield _trimmed(
            msgspec.structs.replace(program, calls=program.calls[:count]), (first + count - 1,)
        )
    for number in range(len(program.calls) - 1):  # replace a value by an input
        result = _as_input(program, number)
        if result is not None:
            yield result
    if program.dynamic:
        yield msgspec.structs.replace(program, dynamic=False)
    if program.buffers:
        yield msgspec.structs.replace(program, buffers=frozenset[int]())


def _as_input(program: ModuleProgram, number: int) -> ModuleProgram | None:
    """Replace call `number` by an input with its value."""
    first = len(program.inputs)
    try:
        value = run(
            msgspec.structs.replace(
                program, calls=program.calls[: number + 1], outputs=(first + number,)
            ),
            program.inputs,
        )[0].clone()
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
    old = first + number
    last = first + len(program.calls)
    new = {i: i if i < first else first if i == old else i + (i < old) for i in range(last)}
    calls = tuple(_mapped(c, new) for k, c in enumerate(program.calls) if k != number)
    return _trimmed(
        msgspec.structs.replace(program, inputs=(*program.inputs, value), calls=calls),
        tuple(new[i] for i in program.outputs),
    )


def _uses(node: Any) -> set[int]:
    if isinstance(node, ModuleCall):
        return _uses(node.args) | _uses(list(node.kwargs.values()))
    if isinstance(node, (Ref, Size)):
        return {node.index}
    if isinstance(node, (list, tuple)):
        return {i for item in cast("list[Any]", node) for i in _uses(item)}
    return set()


def _trimmed(program: ModuleProgram, outputs: tuple[int, ...]) -> ModuleProgram:
    """Reduce the program to the given outputs and what they depend on.

    An in-place write affects all users of the value and its views, so programs with one keep all
    their calls.
    """
    first = len(program.inputs)
    changing = any(c.fn.endswith("_") or c.fn == "operator.setitem" for c in program.calls)
    needed = set(outputs)
    for number in reversed(range(len(program.calls))):
        if changing or first + number in needed:
            needed.add(first + number)
            needed |= _uses(program.calls[number])
    kept = sorted(needed)
    new = {old: place for place, old in enumerate(kept)}
    calls = tuple(_mapped(c, new) for k, c in enumerate(program.calls) if first + k in needed)
    return msgspec.structs.replace(
        program,
        inputs=tuple(t for i, t in enumerate(program.inputs) if i in needed),
        buffers=frozenset(new[i] for i in program.buffers if i in needed),
        calls=calls,
        outputs=tuple(new[i] for i in outputs),
    )


def _mapped(node: Any, new: dict[int, int]) -> Any:
    if isinstance(node, ModuleCall):
        kwargs = {key: _mapped(value, new) for key, value in node.kwargs.items()}
        return ModuleCall(node.fn, _mapped(node.args, new), kwargs, node.exact, node.part)
    if isinstance(node, Ref):
        return Ref(new[node.index])
    if isinstance(node, Size):
        return msgspec.structs.replace(node, index=new[node.index])
    if isinstance(node, (list, tuple)):
        items = [_mapped(item, new) for item in cast("list[Any]", node)]
        return tuple(items) if isinstance(node, tuple) else items
    return node
