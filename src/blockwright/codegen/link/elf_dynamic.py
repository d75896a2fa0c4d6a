"""Tables for the dynamic loader: dynamic section, symbol hash, notes; and the allowed imports."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB = 0, 1, 4, 5, 6
DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_SONAME = 7, 8, 9, 10, 11, 14
DT_INIT_ARRAY, DT_FINI_ARRAY, DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ = 25, 26, 27, 28
DT_FLAGS, DT_FLAGS_1, DT_RELACOUNT = 30, 0x6FFFFFFB, 0x6FFFFFF9
DF_BIND_NOW, DF_1_NOW, DF_1_NODELETE = 8, 1, 8

DEFAULT_NEEDED = ("libtvm_ffi.so", "libm.so.6", "libc.so.6")

_LIBC = """
__register_atfork abort abs atoi bcmp calloc clock_gettime fclose fflush fgets fopen free fscanf
getenv labs llabs madvise malloc memchr memcmp memcpy memmove memset posix_memalign printf
pthread_attr_destroy pthread_attr_init pthread_attr_setstacksize pthread_create pthread_detach
pthread_self pthread_setname_np pthread_sigmask putchar puts rand sched_getcpu snprintf srand
sscanf stpcpy strcat strchr strcmp strcpy strlen strncmp strncpy strnlen strrchr strstr strtol
syscall tolower toupper write
""".split()
_LIBM = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1
fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp lgamma llrint llround log
log10 log1p log2 logb lrint lround modf nearbyint nextafter pow remainder remquo rint round
roundeven scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc y0 y1 yn
""".split()
_FFI = """
TVMFFIAnyViewToOwnedAny TVMFFIEnvCheckSignals TVMFFIEnvGetStream TVMFFIEnvModLookupFromImports
TVMFFIEnvTensorAlloc TVMFFIErrorCreate TVMFFIErrorMoveFromRaised TVMFFIErrorSetRaised
TVMFFIErrorSetRaisedFromCStr TVMFFIErrorSetRaisedFromCStrParts TVMFFIFunctionCall
TVMFFIFunctionCreate TVMFFIFunctionGetGlobal TVMFFIFunctionSetGlobal TVMFFIHandleInitOnce
TVMFFIObjectDecRef TVMFFIObjectIncRef TVMFFIStringFromByteArray TVMFFITensorCreateUnsafeView
TVMFFITensorFromDLPack TVMFFITensorFromDLPackVersioned
""".split()

DEFAULT_IMPORTS = frozenset([*_LIBC, *_LIBM, *(name + "f" for name in _LIBM), *_FFI])
"""Symbols that generated code may leave undefined: the C library, its math library, and the FFI.

Besides the functions that the emitter calls these include those that LLVM substitutes for them
(`putchar` for `printf`) or for its intrinsics (`lround`). Functions of a compiler runtime
(`__truncsfhf2`, `__powisf2`) are not among them: libraries are not linked with one."""


def hash_table(names: Sequence[bytes]) -> bytes:
    """The System V symbol hash; `names[0]` is the null symbol."""
    count = len(names)
    buckets = max(1, count // 2 | 1)
    heads, chains = [0] * buckets, [0] * count
    for index in range(1, count):
        value = 0
        for byte in names[index]:
            value = (value << 4) + byte
            high = value & 0xF0000000
            value = (value ^ high >> 24) & ~high
        bucket = value % buckets
        chains[index], heads[bucket] = heads[bucket], index
    return struct.pack(f"<{2 + buckets + count}I", buckets, count, *heads, *chains)


def string_table(names: Iterable[str]) -> tuple[bytearray, dict[str, int]]:
    """A string table, and the offset of each name in it."""
    table, places = bytearray(b"\0"), {"": 0}
    for name in names:
        if name not in places:
            places[name] = len(table)
            table += name.encode() + b"\0"
    return table, places


def pack_note(owner: str, kind: int, contents: bytes) -> bytes:
    """One ELF note; name and contents are padded to 4 bytes."""
    name = owner.encode() + b"\0"
    head = struct.pack("<III", len(name), len(contents), kind)
    return head + name + bytes(-len(name) % 4) + contents + bytes(-len(contents) % 4)


def eh_frame_header(address: int, eh_frame: int) -> bytes:
    """The unwinder's entry point, without a search table, so that it scans the frames."""
    return struct.pack("<BBBBi", 1, 0x1B, 0xFF, 0xFF, eh_frame - address - 4)


def pack_dynamic(entries: Iterable[tuple[int, int]]) -> bytes:
    """The dynamic section: (tag, value) pairs, terminated by a null entry."""
    return b"".join(struct.pack("<QQ", tag, value) for tag, value in (*entries, (DT_NULL, 0)))
