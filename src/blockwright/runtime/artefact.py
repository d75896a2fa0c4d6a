"""Read artefacts: compiled models with their weights in one file.

An artefact *is* a shared library. `tvm_ffi.load_module` loads it when its name ends in `.so`; the
FFI function "ffi.Module.load_from_file.so" accepts any name. Besides code, the library contains:

- near the start, a note with the format version, the file size and the location of the metadata;
- the metadata (JSON, symbol `__bw_metadata`);
- packed weights, which the loader maps from the file, and initial values of state.

An artefact may hold its code for several targets: see `TargetCode`. The weights that they have in
common are stored once.

Two SHA-256 checksums follow the library: one over the file up to the end of the metadata, one over
the whole library.

No part of the file is mapped or executed before the checks have passed.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from blockwright.runtime.cpu import machine, missing_features, request_tiles
from blockwright.runtime.library import Library, load_library
from blockwright.support import ArtefactError
from blockwright.support.kinds import require_kind

FORMAT_VERSION = 2
"""The latest format. 2: there is state, which readers of format 1 would not pass."""

METADATA_SYMBOL = "__bw_metadata"
NOTE_OWNER, NOTE_KIND = "Blockwright", 1
_MACHINES = {62: "x86-64", 183: "aarch64"}
_CHUNK = 1 << 20


class Header(msgspec.Struct, frozen=True):
    """Contents of the note. The version stays first in later formats."""

    version: int
    file_size: int = 0
    metadata_offset: int = 0
    metadata_size: int = 0

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("<IIQQQ")

    def pack(self) -> bytes:
        fields = (self.version, 0, self.file_size, self.metadata_offset, self.metadata_size)
        return self.LAYOUT.pack(*fields)


class Trailer(msgspec.Struct, frozen=True):
    """The end of the file: checksums of the head and of everything before the trailer."""

    head: bytes
    whole: bytes

    MAGIC: ClassVar[bytes] = b"BWSUMS1\n"
    SIZE: ClassVar[int] = 8 + 32 + 32

    def pack(self) -> bytes:
        return self.MAGIC + self.head + self.whole


COMPLEX = {"float32": "complex64", "float64": "complex128"}
"""Element types of pairs → the complex types that they stand for."""


class Parameter(msgspec.Struct, frozen=True):
    """An argument or result. Sizes in `shape` are numbers or textual expressions over `dims`.

    A parameter of kind "object" is any value that the FFI passes.
    `order` lists the axes in storage order where it is not the default: (0, 2, 3, 1) for
    channels-last images. Code in the library numbers axes in storage order. `state` is the variable
    of the executable's state that is passed as this argument; "" for arguments of the caller.
    `paired` tensors are complex for callers, and stored as pairs of numbers along their last axis.
    """

    name: str
    kind: Literal["tensor", "int", "float", "bool", "object", "function"] = "tensor"
    dtype: str = ""
    shape: tuple[int | str, ...] = ()
    written: bool = False
    order: tuple[int, ...] = ()
    state: str = ""
    paired: bool = False

    @property
    def is_object(self) -> bool:
        """Whether it is any value that the FFI passes, or a function."""
        return self.kind in ("object", "function")

    @property
    def text(self) -> str:
        """The type and the shape that callers see: `complex64[n, 8]`."""
        if self.is_object:
            return self.kind
        dtype, shape = self.dtype, self.shape
        if self.paired:
            dtype, shape = COMPLEX[dtype], shape[:-1]
        return f"{dtype}[{', '.join(map(str, shape))}]"


class StateVariable(msgspec.Struct, frozen=True):
    """An array that outlives calls.

    `symbol` names its initial value in the library; "" for zeros.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    symbol: str = ""


class ExportedFunction(msgspec.Struct, frozen=True):
    """A function of the artefact.

    Attributes:
        dims: inclusive range of each symbolic size; the upper end is None when unbounded.
        inputs_tree, outputs_tree: nesting of arguments and results, as JSON values.
        framework: package of the results when no argument is an array; "" for NumPy.
        updated: pairs of a result's position among all results and the position of the parameter
            that it is: one that the function updates in place. `results` lists the others.
        memory: the memory plan; empty in earlier artefacts, where `extra` of the metadata has it.
        state: arguments of the code after `parameters`, which are variables of the state.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    results: tuple[Parameter, ...] = ()
    dims: dict[str, tuple[int, int | None]] = {}
    inputs_tree: Any = None
    outputs_tree: Any = None
    framework: str = ""
    updated: tuple[tuple[int, int], ...] = ()
    memory: dict[str, Any] = {}
    state: tuple[Parameter, ...] = ()

    def describe(self) -> str:
        """The function's name with its parameters, their types and shapes."""
        params = ", ".join(f"{p.name}: {p.text}" for p in self.parameters)
        return f"{self.name}({params})"


class TargetCode(msgspec.Struct, frozen=True):
    """The code for one target among several of an artefact.

    The function `f` is exported as `f` + `suffix_of(name)`. The function `f` itself jumps to the
    code of the first target whose features the processor has.

    Attributes:
        name, cpu, features: the target, as in `Metadata`.
        functions: the functions, which differ between targets by their memory plans only.
    """

    name: str
    cpu: str
    features: tuple[str, ...]
    functions: tuple[ExportedFunction, ...]


def suffix_of(target: str) -> str:
    """What distinguishes the functions of one target from those of others in one library."""
    return f":{target}"


class Metadata(msgspec.Struct, frozen=True):
    """The description stored in an artefact.

    Attributes:
        version: version of Blockwright that wrote the artefact.
        triple, cpu, features: the compilation target; `features` (LLVM names) are required to run
            the code. Of several targets, what they have in common.
        main: the function that runs when the artefact itself is called; "" if there is none.
        extra: additional JSON values.
        target: name of the target; empty in earlier artefacts and where there are several.
        targets: the code of each target where there are several, in the order of preference.
        state: the variables that functions update, and that outlive calls.
    """

    version: str
    triple: str
    cpu: str = ""
    features: tuple[str, ...] = ()
    functions: tuple[ExportedFunction, ...] = ()
    main: str = "main"
    extra: dict[str, Any] = {}
    target: str = ""
    targets: tuple[TargetCode, ...] = ()
    state: tuple[StateVariable, ...] = ()

    @property
    def target_name(self) -> str:
        """The target that the code is for; the processor in artefacts of earlier versions."""
        return self.target or self.cpu or self.triple

    def of(self, code: TargetCode) -> Metadata:
        """The description of the code for one of the targets."""
        return msgspec.structs.replace(
            self,
            cpu=code.cpu,
            features=code.features,
            functions=code.functions,
            target=code.name,
            targets=(),
        )


class Artefact(msgspec.Struct, frozen=True, eq=False):
    """A loaded artefact; `metadata` describes the code that was chosen."""

    path: Path
    metadata: Metadata
    library: Library


def load_artefact(
    path: str | os.PathLike[str],
    *,
    verify: Literal["full", "head"] = "full",
    target: str | None = None,
) -> Artefact:
    """Check an artefact and load it. Of several targets it takes the code of one, which `metadata`
    of the result describes: the first that this processor supports, or `target`.

    Arguments: `verify="head"` does not read the weights until they are used.
    Raises: ArtefactError: BW800 not an artefact, BW801 truncated, BW802 newer format, BW803 for
    another processor, BW804 damaged, BW805 cannot be read, BW846 no code for `target`.
    """
    described = read_metadata(path, verify=verify)
    file = Path(path)
    metadata = choose_target(described, os.fspath(file), target)
    suffix = suffix_of(metadata.target) if described.targets else ""
    if "amx-tile" in metadata.features:
        request_tiles()  # code that uses no tiles runs without
    return Artefact(file.absolute(), metadata, load_library(file, suffix))


def read_metadata(
    path: str | os.PathLike[str], *, verify: Literal["full", "head"] = "head"
) -> Metadata:
    """Check an artefact and return its metadata without loading it; raises as `load_artefact`."""
    require_path(path, 'write bw.load("model.bwx")')
    name = os.fspath(path)
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            header = _read_header(file, name, size)
            trailer = _read_trailer(file, name, header)
            end = header.metadata_offset + header.metadata_size
            file.seek(0)
            digest = hashlib.sha256()
            description = _hash(file, digest, 0, end, header.metadata_offset)
            if digest.digest() != trailer.head:
                raise _damaged(name)
            metadata = _decode(description, name)
            choose_target(metadata, name)
            if verify == "full":
                _hash(file, digest, end, size - Trailer.SIZE, size)
                if digest.digest() != trailer.whole:
                    raise _damaged(name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArtefactError(f"cannot read {name}: {reason}", code="BW805") from error
    return metadata


def require_path(path: Any, remedy: str) -> None:
    """Raise ArtefactError (BW805) unless `path` is a valid file path."""
    require_kind(
        path,
        (str, os.PathLike),
        "the path of an artefact must be text or a Path",
        ArtefactError,
        "BW805",
        remedy,
    )
    name = os.fsdecode(path)
    fault = None if name else "is empty"
    if "\0" in name:
        fault = "holds a NUL character"
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        fault = f"holds {name[error.start]!a}, which file names cannot"
    if fault is not None:
        raise ArtefactError(f"the path of an artefact {fault}", code="BW805", help=remedy)


def _damaged(name: str) -> ArtefactError:
    return ArtefactError(
        f"{name} is damaged: its contents do not match its checksum",
        code="BW804",
        help="copy the file again, or save the artefact again",
    )


def _foreign(name: str) -> ArtefactError:
    return ArtefactError(
        f"{name} is not a Blockwright artefact",
        code="BW800",
        help="artefacts are written by the save method of a compiled model",
    )


def _read_header(file: io.RawIOBase, name: str, size: int) -> Header:
    """Find the note through the ELF program headers, which are in the first page."""
    start = file.read(4096)
    if len(start) < 64 or start[:6] != b"\x7fELF\x02\x01":
        if size == 0:
            raise ArtefactError(f"{name} is empty", code="BW801", help="copy the file again")
        raise _foreign(name)
    (elf_machine,) = struct.unpack_from("<H", start, 18)
    (table,) = struct.unpack_from("<Q", start, 32)
    (count,) = struct.unpack_from("<H", start, 56)
    note = None
    for index in range(count if table + 56 * count <= len(start) else 0):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", start, table + 56 * index)
        if kind == 4:
            note = _find_note(start[offset : offset + length])
    if note is None:
        raise _foreign(name)
    (version,) = struct.unpack_from("<I", note)
    if version > FORMAT_VERSION:
        raise ArtefactError(
            f"{name} has format {version}; this version reads up to format {FORMAT_VERSION}",
            code="BW802",
            help="upgrade blockwright, or save the artefact with this version",
        )
    built_for = _MACHINES.get(elf_machine, f"machine {elf_machine}")
    if built_for != machine():
        raise ArtefactError(
            f"{name} was built for {built_for}, this is {machine()}",
            code="BW803",
            help="compile the model again for this machine",
        )
    version, _, file_size, metadata_offset, metadata_size = Header.LAYOUT.unpack_from(note)
    if size < file_size:
        raise ArtefactError(
            f"{name} is truncated: {size} of {file_size} bytes",
            code="BW801",
            help="copy the file again; it may still be in transfer",
        )
    if size > file_size or metadata_offset + metadata_size > file_size:
        raise _damaged(name)
    return Header(version, file_size, metadata_offset, metadata_size)


def _find_note(notes: bytes) -> bytes | None:
    at = 0
    while at + 12 <= len(notes):
        owner_size, size, kind = struct.unpack_from("<III", notes, at)
        owner = notes[at + 12 : at + 12 + owner_size]
        body = at + 12 + (owner_size + 3) // 4 * 4
        result = notes[body : body + size]
        if owner == NOTE_OWNER.encode() + b"\0" and kind == NOTE_KIND:
            return result if len(result) >= Header.LAYOUT.size else None
        at = body + (size + 3) // 4 * 4
    return None


def _read_trailer(file: io.RawIOBase, name: str, header: Header) -> Trailer:
    file.seek(header.file_size - Trailer.SIZE)
    data = file.read(Trailer.SIZE)
    if len(data) != Trailer.SIZE or data[:8] != Trailer.MAGIC:
        raise _damaged(name)
    return Trailer(data[8:40], data[40:72])


def _hash(file: io.RawIOBase, digest: Any, start: int, end: int, keep_from: int) -> bytes:
    """Feed bytes `start`..`end` to `digest` in chunks; return those from `keep_from` on."""
    buffer = memoryview(bytearray(min(_CHUNK, max(1, end - start))))
    kept = bytearray()
    at = start
    while at < end:
        count = file.readinto(buffer[: min(len(buffer), end - at)])
        if not count:
            break
        digest.update(buffer[:count])
        if at + count > keep_from:
            kept += buffer[max(0, keep_from - at) : count]
        at += count
    return bytes(kept)


def _decode(description: bytes, name: str) -> Metadata:
    try:
        return msgspec.json.decode(description, type=Metadata)
    except msgspec.DecodeError as error:
        raise ArtefactError(
            f"the description in {name} cannot be read: {error}",
            code="BW804",
            help="save the artefact again with this version",
        ) from error


def choose_target(metadata: Metadata, name: str, target: str | None = None) -> Metadata:
    """The description of the code that runs here: of the first target, or of the one that `target`
    names.

    Arguments: `name` is the artefact's, for messages.
    Raises: ArtefactError: BW846 if there is no code for `target`; BW803 if this processor lacks
    features that the code needs.
    """
    known = tuple(metadata.of(code) for code in metadata.targets) or (metadata,)
    if target is not None:
        known = tuple(each for each in known if each.target_name == target)
        if not known:
            names = [code.name for code in metadata.targets] or [metadata.target_name]
            raise ArtefactError(
                f"{name} has no code for the target {target!r}",
                code="BW846",
                help=f"its targets: {', '.join(names)}; leave target out to take the best",
            )
    missing = [missing_features(each.features) for each in known]
    for each, lacking in zip(known, missing, strict=True):
        if not lacking:
            return each
    least = min(missing, key=len)
    built_for = ", ".join(each.target_name for each in known)
    raise ArtefactError(
        f"{name} needs processor features this machine lacks: {', '.join(least)}",
        code="BW803",
        help=f"it was built for '{built_for}'; compile the model here, "
        "or with a more common target such as 'x86-64-v3' or 'x86-64-v2'",
    )
