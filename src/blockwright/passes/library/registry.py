"""The libraries that graphs may call, and the patterns by which parts of a graph go to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from blockwright import ir
from blockwright.graph.pattern import Match, Pattern
from blockwright.passes.library.calls import Emit
from blockwright.passes.library.openblas import OPENBLAS_FUNCTIONS, OPENBLAS_PATTERNS, SHARED
from blockwright.runtime.shared_libraries import SharedLibrary
from blockwright.support import OptionError
from blockwright.target import Target


class LibraryPattern(msgspec.Struct, frozen=True):
    """A part of a graph that a library computes.

    Attributes:
        name: of the pattern, such as "matmul"; `bw.compile` knows it as "library.matmul".
        pattern: what is matched.
        replace: the value in its place, which calls the library: see `graph.pattern.rewrite`. None
            leaves the match to the compiler.
    """

    name: str
    pattern: Pattern
    replace: Callable[[Match], ir.GraphExpr | None]


class Library(msgspec.Struct, frozen=True):
    """A library of compiled functions.

    Attributes:
        shared: the shared library: name, file, version.
        functions: name → the C calls that compute it; graphs call "library.name".
        patterns: parts of graphs that go to the library when `options["libraries"]` names it, or
            the pattern; the first that matches is taken.
        architectures: of targets that it exists for ("x86_64", "aarch64"); empty: all CPUs.
    """

    shared: SharedLibrary
    functions: Mapping[str, Emit]
    patterns: tuple[LibraryPattern, ...] = ()
    architectures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.shared.name

    def why_not(self, target: Target) -> str:
        """Why a target cannot use the library; "" if it can."""
        if target.kind != "cpu":
            return f"{self.name} runs on CPUs, the target is {target.name}"
        if self.architectures and target.arch not in self.architectures:
            return f"{self.name} exists for {', '.join(self.architectures)}, not {target.arch}"
        return ""


LIBRARIES: dict[str, Library] = {}
"""All libraries by name."""


def register_library(library: Library) -> Library:
    """Add a library.

    Raises: OptionError BW932 if the name is taken, or is not an identifier.
    """
    names = [library.name, *library.functions, *(p.name for p in library.patterns)]
    for name in names:
        if not name.isidentifier():
            raise OptionError(
                f"{name!r} cannot be the name of a library, function or pattern",
                code="BW932",
                help="use letters, digits and underscores",
            )
    if library.name in LIBRARIES:
        raise OptionError(
            f"there is a library {library.name} already", code="BW932", help="choose another name"
        )
    LIBRARIES[library.name] = library
    return library


def known_names() -> list[str]:
    """Names that `options["libraries"]` may hold: of libraries and of their patterns."""
    return [
        name
        for library in LIBRARIES.values()
        for name in (library.name, *(f"{library.name}.{p.name}" for p in library.patterns))
    ]


def chosen_patterns(names: Iterable[str]) -> list[tuple[Library, LibraryPattern]]:
    """The patterns that an option names, alone or by their library, in the order of the option."""
    result: dict[str, tuple[Library, LibraryPattern]] = {}
    for name in names:
        of, _, alone = name.partition(".")
        library = LIBRARIES[of]
        for pattern in library.patterns:
            if not alone or pattern.name == alone:
                result.setdefault(f"{of}.{pattern.name}", (library, pattern))
    return list(result.values())


register_library(
    Library(
        SHARED,
        OPENBLAS_FUNCTIONS,
        tuple(LibraryPattern(*row) for row in OPENBLAS_PATTERNS),
        ("x86_64", "aarch64"),
    )
)
