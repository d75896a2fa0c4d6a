"""Open the shared libraries that compiled code calls, and bind their functions.

Compiled code asks for a function once, under the global FFI name `address_name(library, symbol)`,
and keeps its address: no Python is in the way of a call. A process holds one copy of a library.

A library without a file is a Python framework, whose operators are called through Python.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from blockwright.runtime.ffi import tvm_ffi
from blockwright.runtime.frameworks import FRAMEWORKS, Framework, bind, installed_version
from blockwright.support import ArtefactError


class SharedLibrary(msgspec.Struct, frozen=True):
    """A shared library that compiled code calls.

    Attributes:
        name: by which code refers to it.
        file: its file: inside `package`, if that is set, else a path or a name for the linker;
            empty for a Python framework (`runtime.frameworks`).
        package: the Python distribution that holds the file.
        version: the versions that fit: "0.3" fits 0.3 and 0.3.34; "" fits all.
        least: the least of these that fits; "" for all.
        version_function: a C function `const char *f(void)` whose text holds the version; "" if the
            version is that of `package`.
        threads_function: a C function `void f(int)` that sets the number of threads the library
            uses. It is called with 1: compiled code divides the work among its own threads.
        symbols: the functions that compiled code calls.
    """

    name: str
    file: str
    package: str = ""
    version: str = ""
    version_function: str = ""
    threads_function: str = ""
    symbols: tuple[str, ...] = ()
    least: str = ""


class _Open(msgspec.Struct, frozen=True):
    library: ctypes.CDLL
    version: str


_opened: dict[str, _Open] = {}
_lock = threading.Lock()


def address_name(library: str, symbol: str) -> str:
    """The global FFI name of the function that returns the address of a C function."""
    return f"blockwright.library.{library}.{symbol}"


def open_libraries(
    libraries: Iterable[SharedLibrary], paths: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Open libraries and bind their symbols; return the version of each by name.

    Arguments: `paths` maps names of libraries to their files, where these are not the usual ones.
    Raises: ArtefactError: BW808 a library or a function of it is missing, BW809 another version.
    """
    with _lock:
        return {library.name: _open(library, dict(paths or {})) for library in libraries}


def framework_library(framework: Framework, symbols: Iterable[str]) -> SharedLibrary:
    """The library that a framework is to code that is compiled now: versions from the installed
    one on, up to the next major one. Raises: ArtefactError BW808 if it is not installed."""
    numbers = _numbers(installed_version(framework)).split(".")
    return SharedLibrary(
        framework.name,
        "",
        framework.package,
        numbers[0],
        symbols=tuple(symbols),
        least=".".join(numbers[:2]),
    )


def _open(library: SharedLibrary, paths: Mapping[str, str]) -> str:
    if not library.file:
        return _open_framework(library)
    held = _opened.get(library.name)
    if held is None:
        held = _load(library, paths.get(library.name))
    _require_version(library, held.version)
    for symbol in library.symbols:
        _bind(library, held.library, symbol)
    _opened[library.name] = held
    return held.version


def _open_framework(library: SharedLibrary) -> str:
    framework = FRAMEWORKS.get(library.name)
    if framework is None:
        raise ArtefactError(
            f"there is no framework {library.name!r}",
            code="BW808",
            help="upgrade blockwright, or compile the model again",
        )
    version = _numbers(installed_version(framework))
    _require_version(library, version)
    bind(framework, library.symbols)
    return version


def _load(library: SharedLibrary, path: str | None) -> _Open:
    place = path or _place(library)
    try:
        loaded = ctypes.CDLL(place)
    except OSError as error:
        raise ArtefactError(
            f"the library {library.name} cannot be loaded: {error}",
            code="BW808",
            help=_remedy(library),
        ) from error
    if library.threads_function:
        function = _symbol(library, loaded, library.threads_function)
        function.argtypes, function.restype = [ctypes.c_int], None
        function(1)
    return _Open(loaded, _version(library, loaded))


def _place(library: SharedLibrary) -> str:
    if not library.package:
        return library.file
    try:
        return str(Path(str(metadata.distribution(library.package).locate_file(library.file))))
    except metadata.PackageNotFoundError:
        raise ArtefactError(
            f"the library {library.name} is not installed",
            code="BW808",
            help=_remedy(library),
        ) from None


def _remedy(library: SharedLibrary) -> str:
    install = f"pip install {library.package}; or " if library.package else ""
    return f'{install}bw.load(path, libraries={{"{library.name}": "its file"}}) names its file'


def _version(library: SharedLibrary, loaded: ctypes.CDLL) -> str:
    if library.version_function:
        function = _symbol(library, loaded, library.version_function)
        function.argtypes, function.restype = [], ctypes.c_char_p
        text: bytes = function() or b""
        return _numbers(text.decode(errors="replace"))
    return metadata.version(library.package) if library.package else ""


def _numbers(text: str) -> str:
    """The numbers of a version, such as 2.13.0 of 2.13.0+cpu."""
    found = re.search(r"\d+(\.\d+)+", text)
    return found.group() if found else ""


def _require_version(library: SharedLibrary, found: str) -> None:
    wanted = library.version.split(".") if library.version else []
    least = [int(number) for number in library.least.split(".") if number]
    numbers = [int(number) for number in found.split(".") if number]
    if found.split(".")[: len(wanted)] == wanted and numbers >= least:
        return
    fits = f"{library.version}, from {library.least} on" if least else library.version
    raise ArtefactError(
        f"the library {library.name} has version {found or 'unknown'}, the code was compiled "
        f"for {fits}",
        code="BW809",
        help=f"install a version {fits} of {library.package or library.file}, or "
        "compile the model again with the one that is installed",
    )


def _symbol(library: SharedLibrary, loaded: ctypes.CDLL, symbol: str) -> Any:
    try:
        return getattr(loaded, symbol)
    except AttributeError:
        raise ArtefactError(
            f"the library {library.name} has no function {symbol}",
            code="BW808",
            help=_remedy(library),
        ) from None


def _bind(library: SharedLibrary, loaded: ctypes.CDLL, symbol: str) -> None:
    pointer = ctypes.cast(_symbol(library, loaded, symbol), ctypes.c_void_p)
    register: Any = tvm_ffi().register_global_func
    register(address_name(library.name, symbol), lambda: pointer, override=True)
