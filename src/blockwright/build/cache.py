"""On-disk cache of compiled objects, keyed by all of their inputs.

Each object is one file under the user's cache directory or BLOCKWRIGHT_CACHE_DIR. Files are written
atomically, so processes may share a directory. A file starts with a digest of its key and contents;
a file whose digest does not match is ignored and replaced. Files are sharded into folders by the
first characters of their keys. When the folder of a new file exceeds its share of the size limit,
its least recently used files are evicted, so the cost of a write does not grow with the cache.
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
    """The cache directory; None when BLOCKWRIGHT_CACHE_DIR is empty, or when the user has no home
    directory."""
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
    """A cache of objects.

    Attributes: `directory` (None disables the cache), `limit` in bytes, `hits`, `misses`.
    """

    def __init__(self, directory: Path | None, limit: int = DEFAULT_LIMIT) -> None:
        self.directory, self.limit = directory, limit
        self.hits = self.misses = 0

    @staticmethod
    def key(*parts: str) -> str:
        """The cache key for an object that these texts determine."""
        digest = hashlib.blake2b(digest_size=20)
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def _path(self, key: str) -> Path | None:
        return None if self.directory is None else self.directory / key[:2] / f"{key[2:]}.o"

    def get(self, key: str) -> bytes | None:
        """The object, or None when it is missing or damaged."""
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
        """Store an object. On a full or read-only disk nothing is stored, with a warning once."""
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
    """Warn, once per process, that the directory is not writable."""
    if directory not in _warned:
        _warned.add(directory)
        message = f"compiled objects cannot be cached in {directory}: {error.strerror or error}"
        remedy = "set BLOCKWRIGHT_CACHE_DIR to a writable folder, or empty to disable it"
        warnings.warn(BlockwrightWarning(message, code="BW667", help=remedy), stacklevel=3)


def _make_room(folder: Path, limit: int, newest: str) -> None:
    """Evict least recently used files until the folder is within its limit, except the newest."""
    files: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".o"):  # still being written
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
    """The file header. Its digest covers the key, so a copied entry of another key is detected."""
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
