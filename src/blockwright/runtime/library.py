"""Load shared libraries of compiled functions.

A library imports the FFI's C functions and names `libtvm_ffi.so` as a dependency. Importing
`tvm_ffi` has already loaded it, so the dynamic linker binds to the loaded copy, and
`tvm_ffi.load_module` can load the file without this package.

The dynamic linker identifies a library by its path: loading a path again returns the old library
even if the file was replaced. To load a replaced file, a path seen before with other contents is
respelled with `/./` in place of `/`.

Memory of unreachable libraries is released (`runtime.reclaim`).
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

    from blockwright.runtime.constants import Constants  # imports threads; artefacts do not need it


class Library(Uncopied):
    """A loaded library.

    Attributes: its `path`, its `name` for the dynamic linker; `module`, the FFI's module object;
    `suffix`, which the names of its functions end in where it holds code for several targets.
    """

    # Slots are cleared in this order: the module must go before its memory is reclaimed.
    __slots__ = ("module", "name", "path", "suffix", "watched")

    def __init__(
        self, path: Path, name: str, module: Any, watched: ReleaseOnDrop, suffix: str = ""
    ) -> None:
        self.path, self.name, self.suffix = path, name, suffix
        self.module, self.watched = module, watched

    def __contains__(self, name: str) -> bool:
        return bool(self.module.implements_function(name + self.suffix))

    def function(self, name: str) -> Any:
        """The FFI function exported as `__tvm_ffi_NAME`; KeyError if there is none."""
        try:
            return self.module.get_function(name + self.suffix)
        except AttributeError:
            raise KeyError(name) from None


_seen: dict[str, list[tuple[int, int, int, int]]] = {}
_counter = itertools.count()
_memory_files: list[int] = []


def load_library(path: str | os.PathLike[str], suffix: str = "") -> Library:
    """Load a library from its file; `suffix` selects the code of one of several targets.

    Raises: ArtefactError (BW806) when dlopen fails.
    """
    return _loaded(Path(path), None, suffix)


def load_image(
    image: ReadableBuffer, name: str = "kernels", constants: Constants | None = None
) -> Library:
    """Load a library from memory, through a private file that is deleted before this returns, so
    no file is left behind even if the process crashes or forks.

    Arguments: `name` becomes part of the file name, for profilers; `constants` are read by the
    code outside of the image, and are kept alive while the library is reachable.
    """
    directory = ""
    try:
        directory = tempfile.mkdtemp(prefix="blockwright-")
        path = Path(directory, f"{name}-{os.getpid()}-{next(_counter)}.so")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as file:
            file.write(image)
        return _loaded(path, constants)
    except ArtefactError as error:
        # The directory may be mounted noexec; a memory file is not affected.
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
    _memory_files.append(handle)  # never reuse the descriptor: the linker remembers its path
    return _loaded(Path(f"/proc/self/fd/{handle}"), constants)


def _loaded(path: Path, constants: Constants | None, suffix: str = "") -> Library:
    file = path.absolute()
    name = _fresh_name(file)
    module = _open(name)
    threads.apply_pending()
    return Library(file, name, module, watch(module, name, constants), suffix)


def _fresh_name(file: Path) -> str:
    """A spelling of the path that the linker has not seen yet, or has seen with these contents."""
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
    # Not `load_module`, which chooses the loader by the file suffix.
    loader = tvm_ffi().get_global_func("ffi.Module.load_from_file.so")
    try:
        return loader(name, "so")
    except RuntimeError as error:
        translated = translate(error)
        if translated is not error:
            raise translated from None
        reason = str(error).strip().splitlines()[-1]
        raise ArtefactError(
            f"the dynamic linker cannot load {name}: {reason}",
            code="BW806",
            help="the file must be a shared library for this machine",
        ) from error
