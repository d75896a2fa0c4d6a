"""Partial library lowering: libraries, their functions, and the patterns that call them."""

from blockwright.passes.library.calls import LibraryCall, c_function
from blockwright.passes.library.registry import (
    LIBRARIES,
    Library,
    LibraryPattern,
    register_library,
)
from blockwright.runtime.shared_libraries import SharedLibrary

__all__ = [
    "LIBRARIES",
    "Library",
    "LibraryCall",
    "LibraryPattern",
    "SharedLibrary",
    "c_function",
    "register_library",
]
