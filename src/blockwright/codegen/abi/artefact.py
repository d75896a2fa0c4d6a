"""Write artefacts: shared libraries that contain weights and a description.

The constants of the format are in `blockwright.runtime.artefact`, which reads it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from blockwright.codegen.link.link import DataSegment, LinkOptions, Note, Part, link
from blockwright.runtime.artefact import (
    FORMAT_VERSION,
    METADATA_SYMBOL,
    NOTE_KIND,
    NOTE_OWNER,
    Header,
    Metadata,
    Trailer,
)
from blockwright.support import ArtefactError


def write_artefact(
    path: str | os.PathLike[str],
    objects: Sequence[tuple[str, bytes]],
    options: LinkOptions,
    metadata: Metadata,
    weights: Sequence[DataSegment] = (),
    parts: Sequence[Part] = (),
) -> int:
    """Link and save an artefact. The file is written atomically.

    Arguments: `weights` are written without an intermediate copy, each under its symbol; `parts`
    are objects with names of their own, one part for each of several targets. Returns the size in
    bytes. Raises: BuildError from the linker; ArtefactError (BW805) when writing fails.
    """
    description = msgspec.json.encode(metadata)
    version = FORMAT_VERSION if metadata.state else 1  # the first that can read the file
    note = Note(NOTE_OWNER, NOTE_KIND, Header(version).pack())
    segments = [DataSegment(METADATA_SYMBOL, description, 8), *weights]
    options = msgspec.structs.replace(options, notes=[*options.notes, note])
    image = link(objects, options, segments, parts=parts)
    offset, size = image.symbols[METADATA_SYMBOL]
    total = image.size + Trailer.SIZE
    image.patch(image.notes[NOTE_OWNER], Header(version, total, offset, size).pack())
    target = Path(os.path.realpath(path))  # write through a symbolic link instead of replacing it
    temporary: str | None = None
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            raise OSError(errno.EINVAL, "it is not a regular file")  # replacing it would remove it
        handle, temporary = tempfile.mkstemp(prefix=target.name + ".", dir=target.parent)
        with open(handle, "wb", buffering=0) as file:
            head, whole = hashlib.sha256(), hashlib.sha256()
            at = 0
            for chunk in image.chunks():
                _write_all(file.fileno(), chunk)
                whole.update(chunk)
                head.update(chunk[: max(0, offset + size - at)])
                at += len(chunk)
            _write_all(file.fileno(), memoryview(Trailer(head.digest(), whole.digest()).pack()))
            os.fchmod(file.fileno(), 0o755)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ArtefactError(
            f"cannot write {target}: {error.strerror or error}",
            code="BW805",
            help="check that the directory exists, is writable and has space",
        ) from error
    return total


def _write_all(handle: int, data: memoryview) -> None:
    """Write all data; one system call writes at most about 2 GiB."""
    while len(data):
        data = data[os.write(handle, data) :]
