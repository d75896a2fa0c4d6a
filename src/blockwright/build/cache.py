"""Objects on disk, keyed by everything that decides their contents.

One file per object, under the user's cache directory or BLOCKWRIGHT_CACHE_DIR. Files appear
complete or not at all, so any number of processes may share a directory. A file starts with a
digest of its key and what follows; one that does not match is ignored and replaced. Files lie in
folders by the first characters of their keys; when the folder of a new file is beyond its share of
the limit, those used longest ago go first: what a new file costs does not grow with all there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

from blockwright.support import BlockwrightWarning

_MAGIC = b"BWOBJ2\0\0"
_DIGEST = 16
DEFAULT_LIMIT = 1 << 30
_FOLDERS = 256


def cache_directory() -> Path | None:
    """Where objects are kept; None when BLOCKWRIGHT_CACHE_DIR is set to nothing, or where the user
    has no home directory."""
    chosen = os.environ.get("BLOCKWRIGHT_CACHE_DIR")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        root = base if base.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return root / "blockwright" / "objects" if root.is_absolute() else None


class ObjectCache:
    """Attributes: `directory` (None: nothing is kept), `limit` in bytes, `hits`, `misses`."""

    def __init__(self, directory: Path | None, limit: int = DEFAULT_LIMIT) -> None:
        self.directory, self.limit = directory, limit
        self.hits = self.misses = 0

    @staticmethod
    def key(*parts: str) -> str:
        """A name for the object that these texts decide."""
        digest = hashlib.blake2b(digest_size=20)
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def _path(self, key: str) -> Path | None:
        return None if self.directory is None else self.directory / key[:2] / f"{key[2:]}.o"

    def get(self, key: str) -> bytes | None:
        """The object, or None when it is absent or damaged."""
        path = self._path(key)
        result = None if path is None else _read(path, key)
        if result is None:
            self.misses += 1
            return None
        self.hits += 1
        assert path is not None
        with contextlib.suppress(OSError):
            os.utime(path)
        return result

    def put(self, key: str, data: bytes) -> None:
        """Keeps an object. On a full or read-only disk nothing is kept, which is progress once."""
        path = self._path(key)
        if path is None:
            return
        try:
            _write(path, key, data)
        except OSError as error:
            assert self.directory is not None
            _warn_once(self.directory, error)
            return
        with contextlib.suppress(OSError):
            _make_room(path.parent, self.limit // _FOLDERS, path.name)


_warned: set[Path] = set()


def _warn_once(directory: Path, error: OSError) -> None:
    """Tell that a directory cannot be written, the first time in this process."""
    if directory not in _warned:
        _warned.add(directory)
        message = f"compiled objects cannot be kept in {directory}: {error.strerror or error}"
        remedy = "set BLOCKWRIGHT_CACHE_DIR to a folder of yours, or to nothing for no cache"
        warnings.warn(BlockwrightWarning(message, code="BW667", help=remedy), stacklevel=3)


def _make_room(folder: Path, limit: int, newest: str) -> None:
    """Removes files used longest ago until a folder is within its limit; the newest one stays."""
    files: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".o"):  # being written
                continue
            with contextlib.suppress(OSError):
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, entry.name))
    total = sum(size for _, size, _ in files)
    for _, size, name in sorted(files):
        if total <= limit:
            return
        if name != newest:
            with contextlib.suppress(OSError):
                os.unlink(folder / name)
                total -= size


def _read(path: Path, key: str) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST
    body = data[head:]
    return body if data[:head] == _head(key, body) else None


def _head(key: str, body: bytes) -> bytes:
    """What a file starts with: a copy of another entry has the digest of another key."""
    digest = hashlib.blake2b(key.encode(), digest_size=_DIGEST)
    digest.update(body)
    return _MAGIC + digest.digest()


def _write(path: Path, key: str, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(_head(key, data))
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
