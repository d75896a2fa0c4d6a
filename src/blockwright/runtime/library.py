"""Loads shared libraries of compiled functions.

A library imports the FFI's C functions. It names `libtvm_ffi.so` as needed; importing `tvm_ffi` has
loaded that already, so the loader binds to the copy in use, and `tvm_ffi.load_module` works on the
file without this package.

The loader knows a library by its path: loading a path again gives the old library even after the
file was replaced. So that a newly saved file is really loaded, a path seen before with other
contents is spelt differently, with `/./` in place of `/`.

Memory of a library that nobody can call any more goes back (`runtime.idle`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockwright.runtime import threads
from blockwright.runtime.errors import translate
from blockwright.runtime.ffi import tvm_ffi
from blockwright.runtime.reclaim import ReleaseOnDrop, watch
from blockwright.support import ArtefactError
from blockwright.support.uncopied import Uncopied

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from blockwright.runtime.constants import Constants  # with threads: artefacts do without


class Library(Uncopied):
    """A loaded library. Attributes: `path` it came from, `module` (the FFI's module object)."""

    # (Slots are emptied in this order: the module is gone when its memory is looked at.)
    __slots__ = ("module", "path", "watched")

    def __init__(self, path: Path, module: Any, watched: ReleaseOnDrop) -> None:
        self.path, self.module, self.watched = path, module, watched

    def __contains__(self, name: str) -> bool:
        return bool(self.module.implements_function(name))

    def function(self, name: str) -> Any:
        """The FFI function exported as `__tvm_ffi_NAME`; KeyError when there is none."""
        try:
            return self.module.get_function(name)
        except AttributeError:
            raise KeyError(name) from None


_seen: dict[str, list[tuple[int, int, int, int]]] = {}
_counter = itertools.count()
_memory_files: list[int] = []


def load_library(path: str | os.PathLike[str]) -> Library:
    """Loads a library from its file. Raises: ArtefactError (BW806) when the loader refuses it."""
    return _loaded(Path(path), None)


def load_image(
    image: ReadableBuffer, name: str = "kernels", constants: Constants | None = None
) -> Library:
    """Loads a library from memory, through a private file that is gone when this returns: however
    the process ends, and whoever it forks, nothing is left behind.

    Arguments: `name` becomes part of the file's name, for profilers; `constants` are what the code
    reads outside of the image, kept as long as somebody can call it.
    """
    directory = ""
    try:
        directory = tempfile.mkdtemp(prefix="blockwright-")
        path = Path(directory, f"{name}-{os.getpid()}-{next(_counter)}.so")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as file:
            file.write(image)
        return _loaded(path, constants)
    except ArtefactError as error:
        # A directory mounted without permission to execute: memory needs none.
        if "failed to map segment" not in error.message:
            raise
    except OSError:
        pass  # no such directory, or no space in it
    finally:
        if directory:
            shutil.rmtree(directory, ignore_errors=True)
    try:
        handle = os.memfd_create(name)
        with open(os.dup(handle), "wb") as file:
            file.write(image)
    except OSError as error:
        raise ArtefactError(
            f"cannot write the compiled code to a temporary file: {error.strerror or error}",
            code="BW805",
            help="free space in the directory for temporary files, or name another (TMPDIR); "
            "lift the limit on the size of files (ulimit -f)",
        ) from error
    _memory_files.append(handle)  # the number must not be used again: the loader remembers it
    return _loaded(Path(f"/proc/self/fd/{handle}"), constants)


def _loaded(path: Path, constants: Constants | None) -> Library:
    file = path.absolute()
    name = _fresh_name(file)
    module = _open(name)
    threads.apply_pending()
    return Library(file, module, watch(module, name, constants))


def _fresh_name(file: Path) -> str:
    """A spelling of the path that the loader knows for these contents or not at all."""
    try:
        status = file.stat()
    except OSError as error:
        raise ArtefactError(
            f"cannot read {file}: {error.strerror or error}", code="BW805"
        ) from error
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    known = _seen.setdefault(str(file), [])
    if identity not in known:
        known.append(identity)
    return f"{file.parent}/{'./' * known.index(identity)}{file.name}"


def _open(name: str) -> Any:
    # Not `load_module`, which goes by the file's suffix.
    loader = tvm_ffi().get_global_func("ffi.Module.load_from_file.so")
    try:
        return loader(name, "so")
    except RuntimeError as error:
        translated = translate(error)
        if translated is not error:
            raise translated from None
        reason = str(error).strip().splitlines()[-1]
        raise ArtefactError(
            f"the system's loader refused {name}: {reason}",
            code="BW806",
            help="the file must be a shared library for this machine",
        ) from error
