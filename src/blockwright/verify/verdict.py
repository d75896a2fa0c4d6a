"""What the verifier answers, and how its parts stop early."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np


class Counterexample(msgspec.Struct, frozen=True, eq=False):
    """Arguments for which two programs differ; `interpret` runs both on copies of the arrays.

    Attributes:
        sizes: values of the symbolic sizes and integer scalars, by name in the program before.
        scalars: values of the scalar parameters, in order.
        arrays: one array per buffer parameter, as they are at entry.
        difference: what differs, in words.
    """

    sizes: dict[str, int]
    scalars: tuple[int | float, ...]
    arrays: tuple[np.ndarray[Any, Any], ...]
    difference: str


class Verdict(msgspec.Struct, frozen=True, eq=False):
    """Whether two programs mean the same.

    Attributes:
        verdict: "proved"; "refuted", with a counter-example that was run; or "unknown".
        why: for "refuted" what differs, for "unknown" the query that failed or what is outside of
            the decidable class; empty when proved.
        counterexample: arguments for which the programs differ, when refuted.
    """

    verdict: Literal["proved", "refuted", "unknown"]
    why: str = ""
    counterexample: Counterexample | None = None

    def __bool__(self) -> bool:
        return self.verdict == "proved"


class Unknown(Exception):
    """Something is outside of what can be decided: the proof attempt ends."""


class Exhausted(Unknown):
    """The proof attempt used up its operations.

    Attributes:
        common: whether the other road of the dataflow has the same step; else it may be shorter.
    """

    def __init__(self, why: str, common: bool = False) -> None:
        super().__init__(why)
        self.common = common


class Mismatch(Exception):
    """A query failed: the programs may differ.

    Attributes:
        sizes: values of the parameters, by isl name, for which the query fails; empty if none.
    """

    def __init__(self, why: str, sizes: dict[str, int] | None = None) -> None:
        super().__init__(why)
        self.sizes = sizes or {}
