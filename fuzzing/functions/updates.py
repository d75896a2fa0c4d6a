"""Random chains of updates in place: calls that overwrite values of which there are views.

An update is a function of values: each binding computes new values, whatever memory they are in.
Only a parameter, under its own name, keeps what the last update of it has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fuzzing.functions.scope import Scope, structure
from fuzzing.graphs.program import Array, Compute, Run, Value

_HEAD = """    @T.prim_func(private=True)
    def {name}(x: T.handle, y: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "int32")
        Y = T.match_buffer(y, (n, m), "int32")
        for i, j in T.grid(n, m):
            with T.block("X"):
                vi, vj = T.axis.remap("SS", [i, j])
{stores}
"""


def _program(name: str, *stores: str) -> str:
    return _HEAD.format(name=name, stores="\n".join(f"                {s}" for s in stores))


PROGRAMS: dict[str, tuple[str, Callable[[Array, Array], tuple[Array, ...]]]] = {
    "mixed": (
        _program("mixed", "X[vi, vj] = X[vi, vj] * 3 + Y[n - 1 - vi, m - 1 - vj]"),
        lambda x, y: (x * np.int32(3) + y[::-1, ::-1],),
    ),
    "replaced": (_program("replaced", "X[vi, vj] = Y[vi, vj]"), lambda x, y: (y.copy(),)),
    "swapped": (
        _program(
            "swapped",
            "old: T.int32 = X[vi, vj]",
            "X[vi, vj] = Y[vi, vj] + 1",
            "Y[vi, vj] = old * 2",
        ),
        lambda x, y: (y + np.int32(1), x * np.int32(2)),
    ),
}
"""The programs of the calls, and what they compute; the last overwrites both arguments."""

_ONE = ("mixed", "replaced")


class _Name(msgspec.Struct, frozen=True):
    """A value of a chain, all of which are int32 of the same dimensions.

    Attributes:
        value: names with equal numbers are names of one value.
        parameter: whose memory the value is in; "" if the caller does not see it.
        kept: whether it must not be overwritten, because it has further names elsewhere.
    """

    name: str
    value: int
    parameter: str = ""
    kept: bool = False


class _Chain:
    """The values of a chain that may still be used."""

    def __init__(self, d: Scope, like: Value) -> None:
        self.d, self.like, self.names, self.values = d, like, list[_Name](), 0

    def add(self, name: str, parameter: str = "", kept: bool = False) -> None:
        self.values += 1
        self.names.append(_Name(name, self.values, parameter, kept))

    def view(self, of: _Name) -> None:
        dims, name = self.like.dims, self.d.name()
        flat = f"R.reshape({of.name}, R.shape([({dims[0]}) * ({dims[1]})]))"
        text = f"{name} = R.reshape({flat}, R.shape([{', '.join(dims)}]))"
        self.d.define(name, text, lambda r: r[of.name].copy())
        self.add(name)

    def alias(self, of: _Name) -> None:
        name = self.d.name()
        self.d.define(name, f"{name} = {of.name}", lambda r: r[of.name])
        self.names.append(msgspec.structs.replace(of, name=name))

    def overwrite(self) -> None:
        """A call that overwrites one argument or two; they may be names of one value."""
        chance, free = self.d.chance, [n for n in self.names if not n.kept]
        first = chance.choice(free)
        if chance.random() < 0.3:
            self._call("swapped", first, chance.choice(free), both=True)
        else:
            self._call(chance.choice(_ONE), first, chance.choice(self.names), both=False)

    def _call(self, program: str, first: _Name, second: _Name, both: bool) -> None:
        d, info = self.d, Value("", self.like.dims, "int32").info
        stated = f"[0, 1], [{info}, {info}]" if both else f"[0], {info}"
        call = f"R.call_tir_inplace(cls.{program}, ({first.name}, {second.name}), {stated})"

        def compute(r: Run) -> Any:
            results = PROGRAMS[program][1](r[first.name], r[second.name])
            return results if both else results[0]

        name = d.name()
        fields: list[Compute] = [_field(name, k) for k in (0, 1)] if both else [lambda r: r[name]]
        targets = [first, second] if both and first.value != second.value else [first]
        owners = [t.parameter for t in targets]  # of one value twice, the second is a copy
        left = {p: f for p, f in zip(owners, fields, strict=False) if p}
        d.define(name, f"{name} = {call}", compute, left)
        self._drop(targets)
        for place, field in enumerate(fields):
            result = name
            if both:
                result = d.name()
                d.define(result, f"{result} = {name}[{place}]", field)
            self.add(result, owners[place] if place < len(owners) else "")

    def _drop(self, overwritten: list[_Name]) -> None:
        values = {n.value for n in overwritten}
        gone = {n.name for n in self.names if n.value in values}
        self.names = [n for n in self.names if n.name not in gone]
        self.d.values = [v for v in self.d.values if v.name not in gone]


def _field(name: str, place: int) -> Compute:
    return lambda r: r[name][place]


@structure
def update(d: Scope) -> None:
    """Overwrite a value, then what this computes, and so on; views of all of them are used later.

    The first is a new value, a view of any other, or a parameter. Only in `main`: elsewhere the
    memory of the caller is not known (BW425).
    """
    a = d.pick(lambda v: len(v.dims) == 2 and v.dtype == "int32")
    if a is None or d.depth:
        return
    chain, free = _Chain(d, a), _is_free(d, a.name)
    chain.add(a.name, a.name if free else "", not free)
    if not free or d.chance.random() < 0.3:
        name = d.name()
        d.define(name, f"{name} = R.add({a.name}, {a.name})", lambda r: r[a.name] + r[a.name])
        chain.add(name)
    for _ in range(d.chance.randint(1, 4)):
        for _ in range(d.chance.randint(0, 2)):
            d.chance.choice((chain.view, chain.view, chain.alias))(d.chance.choice(chain.names))
        chain.overwrite()
    known = {value.name for value in d.values}
    for name in (n.name for n in chain.names):
        if name not in known and d.chance.random() < 0.7:
            d.add(Value(name, a.dims, "int32"))


def _is_free(d: Scope, name: str) -> bool:
    """Whether a value is a parameter without other names: only operators have used it."""
    uses = [b.text for b in d.bindings if name in b.uses]
    plain = all("\n" not in text and "= R." in text and "R.call" not in text for text in uses)
    return name.startswith("p") and plain
