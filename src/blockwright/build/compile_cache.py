"""On-disk cache of schedules and lowered programs, stored beside the object cache.

Strategies and lowering passes are pure functions of a program's text, the target and their options.
Results are keyed by a digest of these, of Blockwright's own source and of the Python version, so a
compilation in a new process reuses the results of earlier ones.
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
"""Exceptions from pickling values that are nested too deeply or cannot be pickled."""


class CompileCache:
    """Results of earlier compilations.

    Code that modifies the compiler at run time, such as tests that replace a strategy, must not use
    the cache."""

    def __init__(self, objects: ObjectCache | None = None) -> None:
        self.objects = objects or ObjectCache(cache_directory())

    def find(self, what: str, program: PrimFunc, target: Target, options: object) -> Any:
        """The cached result of the step `what`; None on a miss.

        Args:
            target, options: the other inputs of the step; `repr(options)` must be complete.
        """
        if self.objects.directory is None:
            return None
        known = self.objects.get(_key(what, program, target, options))
        return None if known is None else read(known, program)

    def keep(
        self, what: str, program: PrimFunc, target: Target, options: object, result: object
    ) -> None:
        """Store a result, which must not be None."""
        if self.objects.directory is not None:
            self.keep_written(what, program, target, options, written(result, program))

    def keep_written(
        self, what: str, program: PrimFunc, target: Target, options: object, data: bytes
    ) -> None:
        """Store a result that is already serialized; an empty one is not stored."""
        if self.objects.directory is not None and data:
            self.objects.put(_key(what, program, target, options), data)


def written(result: object, program: PrimFunc) -> bytes:
    """Serialize a result for a program; empty when it cannot be pickled."""
    data = io.BytesIO()
    try:
        _Writer(data, program).dump(result)
    except UNWRITABLE:
        return b""
    return data.getvalue()


def read(data: bytes, program: PrimFunc) -> Any:
    """Deserialize a result for a program with the same text."""
    return _Reader(data, program).load()


class _Writer(pickle.Pickler):
    """Pickles a result; nodes of the program's head are replaced by their positions in it."""

    def __init__(self, file: io.BytesIO, program: PrimFunc) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = {id(node): place for place, node in enumerate(_head(program))}

    def persistent_id(self, obj: Any) -> int | None:
        return self._places.get(id(obj))


class _Reader(pickle.Unpickler):
    """Unpickles a result for a program with the same text.

    The cache is trusted like the machine code stored beside it. Parameters, their buffers and
    symbols are shared with other functions of a module, so they resolve to those of this program.
    """

    def __init__(self, data: bytes, program: PrimFunc) -> None:
        super().__init__(io.BytesIO(data))
        self._nodes: list[Node] = _head(program)

    def persistent_load(self, pid: Any) -> Node:
        place: int = pid
        return self._nodes[place]


def _head(program: PrimFunc) -> list[Node]:
    """Parameters, and the buffers and variables of their declarations, in an order that depends on
    the text only."""
    result: dict[Node, None] = dict.fromkeys(program.params)
    for buffer in program.buffers:
        result |= dict.fromkeys(n for n in walk(buffer) if isinstance(n, (Var, Buffer)))
    return list(result)


def _key(what: str, program: PrimFunc, target: Target, options: object) -> str:
    return ObjectCache.key(what, program.script(), _text(target), repr(options), _compiler())


def _text(target: Target) -> str:
    """All attributes of a target, in a canonical order."""
    features = sorted(target.feature_set)
    return repr(sorted(({**vars(target), "feature_set": features}).items()))


@cache
def _compiler() -> str:
    """A digest of Blockwright's source and of the versions it runs with."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.blake2b(path.read_bytes(), digest_size=16).digest())
    return f"{digest.hexdigest()} {sys.version} {msgspec.__version__} {np.__version__}"
