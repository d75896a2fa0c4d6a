"""Open the shared libraries that compiled code calls, and bind their functions.

Compiled code asks for a function once, under the global FFI name `address_name(library, symbol)`,
and keeps its address: no Python is in the way of a call. A process holds one copy of a library.
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
from blockwright.support import ArtefactError


class SharedLibrary(msgspec.Struct, frozen=True):
    """A shared library that compiled code calls.

    Attributes:
        name: by which code refers to it.
        file: its file: inside `package`, if that is set, else a path or a name for the linker.
        package: the Python distribution that holds the file.
        version: the versions that fit: "0.3" fits 0.3 and 0.3.34; "" fits all.
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


def _open(library: SharedLibrary, paths: Mapping[str, str]) -> str:
    held = _opened.get(library.name)
    if held is None:
        held = _load(library, paths.get(library.name))
    _require_version(library, held.version)
    for symbol in library.symbols:
        _bind(library, held.library, symbol)
    _opened[library.name] = held
    return held.version


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
        found = re.search(r"\d+(\.\d+)+", text.decode(errors="replace"))
        return found.group() if found else ""
    return metadata.version(library.package) if library.package else ""


def _require_version(library: SharedLibrary, found: str) -> None:
    wanted = library.version.split(".") if library.version else []
    if found.split(".")[: len(wanted)] != wanted:
        raise ArtefactError(
            f"the library {library.name} has version {found or 'unknown'}, the code was compiled "
            f"for {library.version}",
            code="BW809",
            help=f"install a version {library.version} of {library.package or library.file}, or "
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
