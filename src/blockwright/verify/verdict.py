"""Verdicts, counterexamples, and the exceptions that end a proof attempt early."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np


class Counterexample(msgspec.Struct, frozen=True, eq=False):
    """Arguments for which two programs differ; `interpret` runs both on copies of the arrays.

    Attributes:
        sizes: values of the symbolic sizes and integer scalars, by their names in `before`.
        scalars: values of the scalar parameters, in order.
        arrays: one array per buffer parameter, with its content at entry.
        difference: a description of the difference.
    """

    sizes: dict[str, int]
    scalars: tuple[int | float, ...]
    arrays: tuple[np.ndarray[Any, Any], ...]
    difference: str


class Verdict(msgspec.Struct, frozen=True, eq=False):
    """The result of comparing two programs.

    Attributes:
        verdict: "proved"; "refuted", with a counterexample that was run; or "unknown".
        why: for "refuted", the difference; for "unknown", the query that failed or the construct
            outside of the decidable class; empty when proved.
        counterexample: arguments for which the programs differ, when refuted.
    """

    verdict: Literal["proved", "refuted", "unknown"]
    why: str = ""
    counterexample: Counterexample | None = None

    def __bool__(self) -> bool:
        return self.verdict == "proved"


class Unknown(Exception):
    """The proof attempt met something outside of the decidable class and ends."""


class Exhausted(Unknown):
    """The proof attempt used up its operation budget.

    Attributes:
        common: whether the other dataflow method has the same step. If not, it may be cheaper.
    """

    def __init__(self, why: str, common: bool = False) -> None:
        super().__init__(why)
        self.common = common


class Mismatch(Exception):
    """A query failed: the programs may differ.

    Attributes:
        sizes: values of the parameters, by isl name, for which the query fails; empty if unknown.
    """

    def __init__(self, why: str, sizes: dict[str, int] | None = None) -> None:
        super().__init__(why)
        self.sizes = sizes or {}
