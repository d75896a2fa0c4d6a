"""What was worked out of a program before: schedules and lowered forms, on disk beside the objects.

A rule and the lowering passes are functions of a program's text, the target and their options.
Their results are kept under a digest of these, of Blockwright's own source and of the Python that
runs it, so a compilation in a new process repeats nothing that an earlier one has done.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blockwright.build.cache import ObjectCache, cache_directory
from blockwright.ir import Buffer, Node, PrimFunc, Var, walk
from blockwright.target import Target

UNWRITABLE = (RecursionError, pickle.PicklingError, TypeError, AttributeError)
"""What pickling raises for what is nested too deeply, or has a value without written form."""


class CompileCache:
    """Results of earlier compilations. Whoever changes the compiler while it runs, as tests that
    replace a rule do, must leave it aside."""

    def __init__(self, objects: ObjectCache | None = None) -> None:
        self.objects = objects or ObjectCache(cache_directory())

    def find(self, what: str, program: PrimFunc, target: Target, options: object) -> Any:
        """The result of a function of this name; None where it is not known.

        Args:
            target, options: what else it looks at; `options` has a `repr` that says all of it.
        """
        if self.objects.directory is None:
            return None
        known = self.objects.get(_key(what, program, target, options))
        return None if known is None else read(known, program)

    def keep(
        self, what: str, program: PrimFunc, target: Target, options: object, result: object
    ) -> None:
        """Remember a result, which is not None."""
        if self.objects.directory is not None:
            self.keep_written(what, program, target, options, written(result, program))

    def keep_written(
        self, what: str, program: PrimFunc, target: Target, options: object, data: bytes
    ) -> None:
        """As `keep`, for a result that is written already; one that could not be is made again."""
        if self.objects.directory is not None and data:
            self.objects.put(_key(what, program, target, options), data)


def written(result: object, program: PrimFunc) -> bytes:
    """A result of a program as bytes; none where it cannot be written."""
    data = io.BytesIO()
    try:
        _Writer(data, program).dump(result)
    except UNWRITABLE:
        return b""
    return data.getvalue()


def read(data: bytes, program: PrimFunc) -> Any:
    """The result that was written, for a program of equal text."""
    return _Reader(data, program).load()


class _Writer(pickle.Pickler):
    """Writes a result; what stands in the program's head is named by its place there."""

    def __init__(self, file: io.BytesIO, program: PrimFunc) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = {id(node): place for place, node in enumerate(_head(program))}

    def persistent_id(self, obj: Any) -> int | None:
        return self._places.get(id(obj))


class _Reader(pickle.Unpickler):
    """Reads a result, as trustworthy as the machine code beside it, for a program of equal text:
    parameters, their buffers and symbols, which other functions of a module share, are those of
    this program."""

    def __init__(self, data: bytes, program: PrimFunc) -> None:
        super().__init__(io.BytesIO(data))
        self._nodes: list[Node] = _head(program)

    def persistent_load(self, pid: Any) -> Node:
        place: int = pid
        return self._nodes[place]


def _head(program: PrimFunc) -> list[Node]:
    """Parameters, and the buffers and variables of their declarations, in an order that the text
    decides."""
    result: dict[Node, None] = dict.fromkeys(program.params)
    for buffer in program.buffers:
        result |= dict.fromkeys(n for n in walk(buffer) if isinstance(n, (Var, Buffer)))
    return list(result)


def _key(what: str, program: PrimFunc, target: Target, options: object) -> str:
    return ObjectCache.key(what, program.script(), _text(target), repr(options), _compiler())


def _text(target: Target) -> str:
    """All that a target says, in an order of its own."""
    features = sorted(target.feature_set)
    return repr(sorted(({**vars(target), "feature_set": features}).items()))


@cache
def _compiler() -> str:
    """A digest of Blockwright's source and of what it is run and pickled by."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.blake2b(path.read_bytes(), digest_size=16).digest())
    return f"{digest.hexdigest()} {sys.version} {msgspec.__version__} {np.__version__}"
