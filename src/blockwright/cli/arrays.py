"""Parse the arguments of `run`, and print or save its results."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from blockwright.runtime.artefact import Parameter
from blockwright.support import OptionError

Array = np.ndarray[Any, Any]
_SHAPE = re.compile(r"(\d+(x\d+)*)?\Z")


def read_inputs(given: Sequence[str], parameters: Sequence[Parameter]) -> dict[str, Array]:
    """Load the arrays of `NAME=FILE.npy` options. Raises: OptionError BW920, BW921, BW924."""
    known = {p.name: p for p in parameters}
    result: dict[str, Array] = {}
    for text in given:
        name, file = _split(text, "--input", "NAME=FILE.npy", known, result)
        try:
            array = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OptionError(
                f"cannot read {file}: {reason}", code="BW921", help="write it with numpy.save"
            ) from error
        if not isinstance(array, np.ndarray):
            raise OptionError(
                f"{file} holds several arrays", code="BW921", help="write one array with numpy.save"
            )
        result[name] = _retyped(cast("Array", array), known[name].dtype)
    return result


def random_inputs(
    given: Sequence[str], parameters: Sequence[Parameter], seed: int, taken: Mapping[str, Any]
) -> dict[str, Array]:
    """Create the arrays of `NAME=SHAPE[:DTYPE]` options; the default type is the parameter's.

    Raises: OptionError BW920 malformed, BW922 unknown type, BW924 unknown or duplicate argument.
    """
    known = {p.name: p for p in parameters}
    generator = np.random.default_rng(seed)
    result: dict[str, Array] = {}
    for text in given:
        usage = "NAME=SHAPE[:DTYPE], such as x=2x16:float32"
        name, value = _split(text, "--random", usage, known, {**taken, **result})
        shape, _, kind = value.partition(":")
        if not _SHAPE.match(shape):
            raise OptionError(
                f"--random {text}: {shape!r} is not a shape",
                code="BW920",
                help="write sizes with x between them, such as 2x16",
            )
        sizes = tuple(int(part) for part in shape.split("x")) if shape else ()
        dtype = _dtype(kind or known[name].dtype)
        try:
            result[name] = _random(generator, sizes, dtype)
        except (MemoryError, ValueError, OverflowError) as error:
            raise OptionError(
                f"--random {text}: not enough memory for the array",
                code="BW920",
                help="use smaller sizes",
            ) from error
    return result


def _split(
    text: str, option: str, usage: str, known: Mapping[str, Any], taken: Mapping[str, Any]
) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise OptionError(
            f"{option} {text!r} is malformed", code="BW920", help=f"write {option} {usage}"
        )
    if name not in known:
        raise OptionError(
            f"the model has no argument {name!r}",
            code="BW924",
            help=f"arguments: {', '.join(known) or 'none'}",
        )
    if name in taken:
        raise OptionError(
            f"argument {name!r} is given twice", code="BW924", help="give each argument once"
        )
    return name, value


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    try:
        result: Any = getattr(ml_dtypes, name, name)
        dtype = np.dtype(result)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufV" or dtype.fields is not None:
        raise OptionError(
            f"unknown element type {name!r}",
            code="BW922",
            help="use float32, bfloat16, int64 or bool, for example",
        )
    return dtype


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "biu":
        return np.asarray(generator.integers(0, 2, shape)).astype(dtype)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def _retyped(array: Array, name: str) -> Array:
    """Restore types unknown to NumPy: `.npy` files store only their width."""
    if array.dtype.kind != "V" or array.dtype.fields is not None:
        return array
    dtype = _dtype(name)
    return array.view(dtype) if dtype.itemsize == array.dtype.itemsize else array


def flatten(results: Any, names: Sequence[str]) -> Iterator[tuple[str, Array]]:
    """Yield (name, array) for each result; nested results get path names such as "0.hidden"."""
    pairs = list(_leaves(results, ""))
    for position, (place, array) in enumerate(pairs):
        fallback = names[position] if position < len(names) else f"result_{position}"
        yield (place if len(pairs) > 1 and place else fallback), array


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Array]]:
    if value is None:
        return
    if isinstance(value, dict):
        items = [(str(k), v) for k, v in cast("dict[Any, Any]", value).items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(k), v) for k, v in enumerate(cast("Sequence[Any]", value))]
    else:
        yield place, np.asarray(value)
        return
    for key, item in items:
        yield from _leaves(item, f"{place}.{key}" if place else key)


def statistics(array: Array) -> str:
    """Format type, shape, minimum, mean and maximum on one line."""
    head = f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"
    if array.size == 0:
        return f"{head}  empty"
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if finite.size == 0:
        return f"{head}  no finite element"
    text = f"{head}  min {finite.min():.6g}  mean {finite.mean():.6g}  max {finite.max():.6g}"
    missing = numbers.size - finite.size
    return f"{text}  ({missing} not finite)" if missing else text


def save_array(folder: Path, name: str, array: Array) -> Path:
    """Write `folder/name.npy`. Raises: OptionError BW915."""
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.npy"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(path, array, allow_pickle=False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OptionError(
            f"cannot write {os.fspath(path)}: {reason}",
            code="BW915",
            help="choose another folder with --output",
        ) from error
    return path
