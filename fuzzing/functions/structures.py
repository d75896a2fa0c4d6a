"""Structures of random graph functions: branches, functions, closures, recursion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuzzing.functions.scope import (
    Body,
    Inner,
    Scope,
    child,
    indented,
    is_plain,
    renamed,
    structure,
)
from fuzzing.graphs.program import Array, Run, Value

SYMBOLS = ("n = T.int64()", "m = T.int64()")


# ----------------------------------------------------------------------------------------- branches
@structure
def branch(d: Scope) -> None:
    """`if` on a condition that depends on the elements; both branches give the same kind."""
    condition = d.pick(lambda v: v.dtype == "bool")
    kind = d.pick()
    if condition is None or kind is None:
        return
    test = d.bind((), "bool", *bool_of(d, condition))
    if test is None:
        return
    name = d.name()
    sides = [_side(d, kind, name) for _ in range(2)]
    (lines, then, first), (other_lines, other, second) = sides
    text = "\n".join([f"if {test.name}:", *indented(lines), "else:", *indented(other_lines)])

    def compute(r: Run) -> Any:
        body, value = (then, first) if r[test.name] else (other, second)
        return body.execute(child(r))[value]

    if d.define(name, text, compute):
        d.add(Value(name, kind.dims, kind.dtype))


def bool_of(d: Scope, condition: Value) -> tuple[str, Any]:
    """One bool from all elements of a tensor."""
    op = d.chance.choice(("any", "all"))

    def compute(r: Run) -> Any:
        return np.asarray(getattr(np, op)(r[condition.name]))

    return f"R.{op}({condition.name})", compute


def _side(d: Scope, kind: Value, name: str) -> tuple[list[str], Body, str]:
    inner = Inner(d, child(d.run), d.values)
    inner.steps(d.chance.randint(0, 3))
    alike = [v for v in inner.values if (v.dims, v.dtype) == (kind.dims, kind.dtype)]
    value = d.chance.choice(alike).name
    return [*inner.lines(), f"{name} = {value}"], inner.body(), value


# -------------------------------------------------------------------------- functions of the module
class _Signature:
    """Parameters of a function of the module, drawn together with the arguments of a call.

    The first argument has two dimensions, or is a shape, and binds the symbols n and m of the
    callee; the others have dimensions that these symbols express.
    """

    def __init__(self, d: Scope) -> None:
        self.d = d
        self.texts: list[str] = []
        self.arguments: list[str] = []
        self.values: list[Value] = []
        self.run = Run({}, {})
        self.unpack: list[str] = []
        self.sources: list[str] = []  # the caller's value that each value is

    def draw(self) -> bool:
        d = self.d
        first = d.pick(lambda v: len(v.dims) == 2)
        if first is not None and d.chance.random() < 0.7:
            self.dims = first.dims
            self._tensor(first, ("n", "m"))
        else:
            self.dims = (self._size(), self._size())
            self.texts.append('sizes: R.Shape(["n", "m"])')
            self.arguments.append(f"R.shape([{', '.join(self.dims)}])")
        self.names: dict[str, str] = {"n": self.dims[0], "m": self.dims[1]}
        self.run.sizes = {"n": d.run.size(self.dims[0]), "m": d.run.size(self.dims[1])}
        for _ in range(d.chance.randint(0 if self.values else 1, 2)):
            self._further()
        return bool(self.values)

    def _size(self) -> str:
        return self.d.chance.choice(("n", "m", "n + 1", "3", "m * 2"))

    def _expressed(self, value: Value) -> tuple[str, ...] | None:
        """The dimensions in symbols of the callee."""
        known = {self.dims[1]: "m", self.dims[0]: "n"}
        dims = tuple(dim if dim.isdigit() else known.get(dim, "") for dim in value.dims)
        return dims if all(dims) else None

    def _further(self) -> None:
        picked = self.d.pick(lambda v: self._expressed(v) is not None)
        if picked is None:
            return
        dims = self._expressed(picked)
        assert dims is not None
        if self.d.chance.random() < 0.3:
            self._pair(picked, dims)
        else:
            self._tensor(picked, dims)

    def _tensor(self, value: Value, dims: Sequence[str]) -> None:
        param = Value(self.d.name(), tuple(dims), value.dtype)
        self.texts.append(f"{param.name}: {declared(param)}")
        self.arguments.append(value.name)
        self._see(param, value)

    def _pair(self, value: Value, dims: Sequence[str]) -> None:
        name = self.d.name()
        first, second = (Value(self.d.name(), tuple(dims), value.dtype) for _ in range(2))
        self.texts.append(f"{name}: R.Tuple({declared(first)}, {declared(second)})")
        self.arguments.append(f"({value.name}, {value.name})")
        for number, param in enumerate((first, second)):
            self.unpack.append(f"{param.name} = {name}[{number}]")
            self._see(param, value)

    def _see(self, param: Value, value: Value) -> None:
        self.values.append(param)
        self.sources.append(value.name)
        self.run.values[param.name] = self.d.run[value.name]

    def entered(self, r: Run) -> Run:
        """The run of the callee for a call in the run of the caller."""
        sizes = {symbol: r.size(dim) for symbol, dim in self.names.items()}
        pairs = zip(self.values, self.sources, strict=True)
        return Run(sizes, {p.name: r[source] for p, source in pairs})


def declared(value: Value) -> str:
    """An annotation of a parameter, which declares its symbols."""
    dims = "".join(f"{d}, " if d.isdigit() else f'"{d}", ' for d in value.dims)
    return f'R.Tensor(({dims}), "{value.dtype}")'


@structure
def call(d: Scope) -> None:
    """A call of a function of the module, by name or as a value, with one result or a tuple."""
    signature = _Signature(d)
    if not signature.draw():
        return
    name = d.fresh_function()
    inner = Inner(d, signature.run, signature.values)
    inner.steps(d.chance.randint(1, 4), 0.15)
    plain = [v for v in inner.values if is_plain(v)]
    results = d.chance.sample(plain, min(len(plain), d.chance.randint(1, 3)))
    body = inner.body()
    many = len(results) > 1 or d.chance.random() < 0.2
    returned = f"({''.join(f'{v.name}, ' for v in results)})" if many else results[0].name
    arrow = f" -> {_quoted(results, many)}" if d.chance.random() < 0.5 else ""
    private = d.chance.choice(("", "(private=True)"))
    lines = [f"@R.function{private}", f"def {name}({', '.join(signature.texts)}){arrow}:"]
    content = [*SYMBOLS, *signature.unpack, *inner.lines(), f"return {returned}"]
    d.functions[name] = "\n".join([*lines, *indented(content)])
    callee, before = f"cls.{name}", ""
    if d.chance.random() < 0.25:
        callee = d.name()
        note = ": R.Callable" if d.chance.random() < 0.2 else ""
        before = f"{callee}{note} = cls.{name}\n"
    text = f"{callee}({', '.join(signature.arguments)})"

    def compute(r: Run) -> Any:
        run = body.execute(signature.entered(r))
        found = tuple(run[v.name] for v in results)
        return found if many else found[0]

    _bind_results(d, before, text, compute, results, signature.names, many)


def _quoted(results: Sequence[Value], many: bool) -> str:
    notes = [declared(v) for v in results]
    return f"R.Tuple({', '.join(notes)})" if many else notes[0]


def _bind_results(
    d: Scope,
    before: str,
    text: str,
    compute: Any,
    results: Sequence[Value],
    names: dict[str, str],
    many: bool,
) -> None:
    """Bind the result of a call; through a value of a function its annotation is checked."""
    outer = [Value("", renamed(v.dims, names), v.dtype) for v in results]
    whole = d.name()
    cast = bool(before)
    if cast:
        info = f"R.Tuple({', '.join(v.info for v in outer)})" if many else outer[0].info
        line = f"{before}{whole}_ = {text}\n{whole} = R.match_cast({whole}_, {info})"
    else:
        line = f"{whole} = {text}"
    if not d.define(whole, line, compute):
        return
    if not many:
        d.add(Value(whole, outer[0].dims, outer[0].dtype))
        return
    for number, value in enumerate(outer):
        d.bind(
            value.dims,
            value.dtype,
            f"{whole}[{number}]",
            lambda r, number=number: r[whole][number],
        )


# ---------------------------------------------------------------------------------------- recursion
def _twice(x: Array) -> Array:
    return x + x


def _squared(x: Array) -> Array:
    return x * x


def _flipped(x: Array) -> Array:
    return x[:, ::-1]


_STEPS: dict[str, Callable[[Array], Array]] = {
    "R.add({0}, {0})": _twice,
    "R.negative({0})": np.negative,
    "R.multiply({0}, {0})": _squared,
    "R.flip({0}, axis=1)": _flipped,
}


@structure
def recursion(d: Scope) -> None:
    """A function that calls itself, or another that calls it, once for each element of a vector."""
    value = d.pick(lambda v: len(v.dims) == 2 and v.dtype in ("int32", "int64"))
    count = d.pick(lambda v: len(v.dims) == 1 and d.run.size(v.dims[0]) <= 8)
    if value is None or count is None:
        return
    name, step = d.fresh_function(), d.chance.choice(list(_STEPS))
    after = d.chance.random() < 0.5  # the step follows the call, instead of preceding it
    other = d.fresh_function() if d.chance.random() < 0.4 else name
    for this, following in {name: other, other: name}.items():
        d.functions[this] = _recursive(this, following, value.dtype, count.dtype, step, after)

    def compute(r: Run) -> Any:
        x = r[value.name]
        for _ in range(len(r[count.name])):
            x = _STEPS[step](x).astype(value.dtype)
        return x

    d.bind(value.dims, value.dtype, f"cls.{name}({value.name}, {count.name})", compute)


def _recursive(this: str, following: str, dtype: str, count: str, step: str, after: bool) -> str:
    inner = "y" if after else "x"
    moved = step.format(inner)
    called = (
        f"y = cls.{following}(x, less)\nz = {moved}"
        if after
        else (f"y = {moved}\nz = cls.{following}(y, less)")
    )
    first, last = called.split("\n")
    x, vector = f'R.Tensor(("n", "m"), "{dtype}")', f'R.Tensor(("k",), "{count}")'
    return f"""@R.function
def {this}(x: {x}, s: {vector}) -> {x}:
    n = T.int64()
    m = T.int64()
    k = T.int64()
    left = R.full(R.shape([]), fill_value=k, dtype="int64")
    done = R.equal(left, R.const(0, "int64"))
    if done:
        z = x
    else:
        j = T.int64()
        rest = R.slice(s, axis=0, begin=1, end=k)
        less = R.match_cast(rest, R.Tensor((j,), "{count}"))
        {first}
        {last}
    return z"""


# --------------------------------------------------------------------------- sizes from elements
@structure
def sized_by_elements(d: Scope) -> None:
    """A value whose size depends on elements, often cast to a symbol of its own."""
    how = d.chance.choice(("unique", "nonzero", "masked_select", "zeros"))
    value = d.pick(lambda v: v.dtype == "bool" if how == "masked_select" else bool(v.dims))
    if value is None or value.dtype == "uint32":
        return
    source, mask = value.name, value.name
    if how == "masked_select":
        alike = d.pick(lambda v: v.dims == value.dims and v.dtype != "bool")
        if alike is None:
            return
        source = alike.name
    _sized(d, how, source, mask, len(value.dims))


@structure
def sized_twice(d: Scope) -> None:
    """Two values whose sizes are read from one tensor, with others between them."""
    value = d.pick(lambda v: bool(v.dims) and v.dtype != "uint32")
    if value is None:
        return
    _sized(d, "zeros", value.name, value.name, len(value.dims))
    d.steps(4, structures=0.0)
    _sized(d, "zeros", value.name, value.name, len(value.dims))


def _sized(d: Scope, how: str, source: str, mask: str, rank: int) -> None:
    """A value whose size an operator finds in elements of `source`, cast to a symbol."""
    dtype = {"nonzero": "int64", "zeros": "float32"}.get(how, str(d.run[source].dtype))

    def compute(r: Run) -> Array:
        x = np.asarray(r[source])
        if how == "unique":
            return np.unique(x)
        if how == "nonzero":
            return np.stack(np.nonzero(x)).astype(np.int64)
        if how == "masked_select":
            return x[r[mask]]
        return np.zeros(np.count_nonzero(x) + 1, np.float32)

    texts = {
        "unique": f"R.unique({source})",
        "nonzero": f"R.nonzero({source})",
        "masked_select": f"R.masked_select({source}, {mask})",
        "zeros": f"R.zeros(R.tensor_to_shape({_counted(source)}), dtype='float32')",
    }
    name = d.name()
    size = d.symbol(name, compute(d.run).shape[-1])
    dims = (str(rank), size) if how == "nonzero" else (size,)
    found = Value(name, dims, dtype)

    def sized(r: Run) -> Array:
        result = compute(r)
        r.sizes[size] = result.shape[-1]
        return result

    lines = [f"{size} = T.int64()", f"{name} = R.match_cast({texts[how]}, {found.info})"]
    if d.define(name, "\n".join(lines), sized):
        d.add(found)


def _counted(source: str) -> str:
    """The number of elements that are not 0, and one more, as a tensor of one element."""
    flags = f'R.astype(R.not_equal({source}, R.zeros_like({source})), dtype="int64")'
    total = f"R.sum({flags})"
    return f'R.reshape(R.add({total}, R.const(1, "int64")), R.shape([1]))'
