"""Canonical polynomials over atoms, hash-consed: equal polynomials are one object.

A `Poly` is a sum of integer multiples of monomials plus a constant. A monomial is a sorted tuple of
atom numbers. An atom is a variable, a floor division, a minimum, or an opaque expression. Two
choices keep the forms canonical, so that equality is identity:

- `x % c` is not an atom but `x - c * (x // c)`, so addition alone reduces `x // c * c + x % c` to
  `x`;
- `max` is not an atom, and every minimum is `base + min(0, d1, ...)` where the leading coefficients
  of the differences are positive, so addition alone reduces `min(a, b) + max(a, b)` to `a + b`.

Both hold for mathematical integers, that is for indices. A sum that depends on a value (`wraps`) is
a number modulo 2**n: only ring identities hold, and divisions, minima and maxima of values are
opaque atoms (`values`).

`regroup` recovers remainders, minima and maxima for bounds and printing.
A `Space` owns the tables; an analyzer and its copies share one, except copies made by `afresh`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from blockwright.ir import Expr, IntImm, Node, Sorts, Var, walk
from blockwright.ir.dtype import BOOL, DType
from blockwright.support import IRError

Mono = tuple[int, ...]
Term = tuple[Mono, int]
"""A monomial and its coefficient; the empty monomial stands for a constant."""
Bounds = tuple[int | None, int | None]
UNKNOWN: Bounds = (None, None)


def without(mono: Mono, part: Mono) -> Mono | None:
    """`mono / part`, or None if `part` does not divide it."""
    if not part:
        return mono
    rest = list(mono)
    for number in part:
        if number not in rest:
            return None
        rest.remove(number)
    return tuple(rest)


class Atom:
    """An indivisible value in linear reasoning.

    `kind` is "var" (`node`), "div" (`operands` = numerator, denominator), "min" (`operands` = the
    differences to the base, without the base's own difference 0) or "opaque" (`node`).
    """

    __slots__ = ("_vars", "id", "kind", "node", "operands", "wraps")

    def __init__(
        self, number: int, kind: str, node: Expr | None, operands: tuple[Poly, ...], wraps: bool
    ):
        self.id = number
        self.wraps = wraps  # depends on a value (a load, a call): sums with it wrap around
        self.kind = kind
        self.node = node
        self.operands = operands
        self._vars: frozenset[Var] | None = None

    def variables(self, space: Space) -> frozenset[Var]:
        """Variables that the atom depends on."""
        if self._vars is None:
            if self.node is not None:
                result = frozenset(n for n in walk(self.node) if isinstance(n, Var))
            else:
                result = frozenset[Var]().union(*(p.variables(space) for p in self.operands))
            self._vars = result
        return self._vars


class Poly:
    """Sum of `coefficient * monomial` over `terms` (sorted by monomial) plus `const`."""

    __slots__ = ("_vars", "const", "linear", "number", "plain", "terms", "wraps")

    def __init__(
        self, terms: tuple[tuple[Mono, int], ...], const: int, number: int, plain: bool, wraps: bool
    ):
        self.terms = terms
        self.const = const
        self.number = number
        self.plain = plain  # no division or minimum anywhere in the monomials
        self.wraps = wraps  # some atom depends on a value
        self.linear = all(len(m) == 1 for m, _ in terms)
        self._vars: frozenset[Var] | None = None

    @property
    def is_const(self) -> bool:
        return not self.terms

    def variables(self, space: Space) -> frozenset[Var]:
        """Variables that the sum depends on."""
        if self._vars is None:
            atoms = {a for m, _ in self.terms for a in m}
            self._vars = frozenset[Var]().union(
                *(space.atoms[a].variables(space) for a in sorted(atoms))
            )
        return self._vars

    def coefficient(self, mono: Mono) -> int:
        """Coefficient of a monomial; 0 if absent."""
        for m, c in self.terms:
            if m == mono:
                return c
        return 0


def never(expr: Expr) -> bool:
    """No memory changes."""
    return False


class Space:
    """Hash-consing tables of atoms, polynomials and expression nodes."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self._atom_table: dict[Any, Atom] = {}
        self._polys: dict[Any, Poly] = {}
        self._nodes: dict[Any, Any] = {}
        self._special: set[int] = set()  # numbers of div and min atoms
        self._loose: set[int] = set()  # numbers of atoms that depend on a value
        self._values: set[Var] = set()  # variables that hold values
        self.changes: Callable[[Expr], bool] = never  # whether memory that it reads may change
        self.sorts = Sorts(self._values)
        self.zero = self.const(0)
        self.one = self.const(1)

    def copy(self) -> Space:
        """A space with copies of the tables."""
        other = Space.__new__(Space)
        other.atoms = list(self.atoms)
        other._atom_table = dict(self._atom_table)
        other._polys = dict(self._polys)
        other._nodes = dict(self._nodes)
        other._special = set(self._special)
        other._loose = set(self._loose)
        other._values = set(self._values)
        other.sorts = Sorts(other._values)
        other.changes = self.changes
        other.zero, other.one = self.zero, self.one
        return other

    # ------------------------------------------------------------------ polynomials
    def make(self, terms: dict[Mono, int], const: int) -> Poly:
        """The polynomial with these terms; zero coefficients are dropped."""
        items = tuple(sorted((m, c) for m, c in terms.items() if c))
        return self.intern(items, const)

    def intern(self, items: tuple[tuple[Mono, int], ...], const: int) -> Poly:
        """The polynomial with these sorted, non-zero terms."""
        key = (items, const)
        result = self._polys.get(key)
        if result is None:
            special = self._special
            plain = not special or not any(a in special for m, _ in items for a in m)
            loose = self._loose
            wraps = bool(loose) and any(a in loose for m, _ in items for a in m)
            result = Poly(items, const, len(self._polys), plain, wraps)
            self._polys[key] = result
        return result

    def const(self, value: int) -> Poly:
        return self.intern((), value)

    def add(self, p: Poly, q: Poly, factor: int = 1) -> Poly:
        """`p + factor * q`."""
        if not q.terms:
            return p if not q.const else self.intern(p.terms, p.const + factor * q.const)
        if not p.terms and factor == 1:
            return q if not p.const else self.intern(q.terms, p.const + q.const)
        acc = dict(p.terms)
        for m, c in q.terms:
            acc[m] = acc.get(m, 0) + factor * c
        return self.make(acc, p.const + factor * q.const)

    def sub(self, p: Poly, q: Poly) -> Poly:
        return self.zero if p is q else self.add(p, q, -1)

    def wrapped(self, p: Poly, bits: int) -> Poly:
        """The sum congruent to `p` modulo 2**bits with coefficients in the signed range."""
        half, span = 1 << (bits - 1), 1 << bits
        numbers = (p.const, *(c for _, c in p.terms))
        if all(-half <= c < half for c in numbers):
            return p

        def signed(c: int) -> int:
            return (c + half) % span - half

        return self.make({m: signed(c) for m, c in p.terms}, signed(p.const))

    def scale(self, p: Poly, factor: int) -> Poly:
        if factor == 1:
            return p
        if factor == 0:
            return self.zero
        return self.intern(tuple((m, c * factor) for m, c in p.terms), p.const * factor)

    def mul(self, p: Poly, q: Poly) -> Poly:
        if not q.terms:
            return self.scale(p, q.const)
        if not p.terms:
            return self.scale(q, p.const)
        acc: dict[Mono, int] = {}
        for m, c in (*p.terms, *((((), p.const),) if p.const else ())):
            for n, d in (*q.terms, *((((), q.const),) if q.const else ())):
                mono = tuple(sorted(m + n))
                acc[mono] = acc.get(mono, 0) + c * d
        const = acc.pop((), 0)
        return self.make(acc, const)

    def monomial(self, mono: Mono, coefficient: int = 1) -> Poly:
        if not mono:
            return self.const(coefficient)
        return self.intern(((mono, coefficient),), 0) if coefficient else self.zero

    def split_atom(self, p: Poly, atom: int) -> tuple[Poly, Poly] | None:
        """`(a, b)` with `p = atom * a + b`, both free of the atom; None if the atom has a power."""
        with_atom: dict[Mono, int] = {}
        without: dict[Mono, int] = {}
        const = 0
        for m, c in p.terms:
            if atom in m:
                position = m.index(atom)
                rest = m[:position] + m[position + 1 :]
                if atom in rest:
                    return None
                if rest:
                    with_atom[rest] = c
                else:
                    const = c
            else:
                without[m] = c
        return self.make(with_atom, const), self.make(without, p.const)

    # ------------------------------------------------------------------ atoms
    def _atom(
        self, key: Any, kind: str, node: Expr | None, operands: tuple[Poly, ...], loose: bool
    ) -> Atom:
        result = self._atom_table.get(key)
        if result is None:
            wraps = loose or any(p.wraps for p in operands)
            result = Atom(len(self.atoms), kind, node, operands, wraps)
            if wraps:
                self._loose.add(result.id)
            self.atoms.append(result)
            self._atom_table[key] = result
            if kind in ("div", "min"):
                self._special.add(result.id)
        return result

    def declare_value(self, var: Var) -> None:
        """Declare that a variable holds a value, so that sums with it wrap around.

        Must precede the first use of the variable, because earlier sums treat it as an index.
        """
        known = self._atom_table.get(var)
        if known is not None and not known.wraps:
            raise IRError(
                f"variable {var.name} was used as an index before it became a value",
                help="declare values when the analyzer is made",
            )
        self._values.add(var)

    @property
    def values(self) -> frozenset[Var]:
        """Variables declared to hold values."""
        return frozenset(self._values)

    def is_value(self, var: Var) -> bool:
        """Whether the variable was declared to hold a value."""
        return var in self._values

    def var_atom(self, var: Var) -> Atom:
        return self._atom(var, "var", var, (), var in self._values)

    def var(self, var: Var) -> Poly:
        return self.intern((((self.var_atom(var).id,), 1),), 0)

    def opaque(self, node: Expr, wraps: bool = True) -> Poly:
        """A hash-consed node as an opaque atom; `wraps` unless it consists of indices only."""
        atom = self._atom(node, "opaque", node, (), wraps)
        return self.intern((((atom.id,), 1),), 0)

    def div_atom(self, p: Poly, c: Poly) -> Atom:
        return self._atom(("div", p, c), "div", None, (p, c), False)

    def min_atom(self, operands: tuple[Poly, ...]) -> Atom:
        return self._atom(("min", operands), "min", None, operands, False)

    # ------------------------------------------------------------------ nodes
    def node(self, cls: Callable[..., Any], *fields: Any) -> Any:
        """The hash-consed node `cls(*fields)`, keyed by class and field identities."""
        key: Any = (cls, *fields)
        result = self._nodes.get(key)
        if result is None:
            result = self._nodes[key] = cls(*fields)
        return result

    def int_node(self, value: int, dtype: DType) -> IntImm:
        return self.node(IntImm, value, dtype)

    def bool_node(self, value: bool) -> IntImm:
        return self.node(IntImm, int(value), BOOL)

    def adopt(self, node: Any) -> Any:
        """The hash-consed node equal to `node`, whose children are already hash-consed.

        Variables are returned unchanged.
        """
        if isinstance(node, Var):
            return node
        fields = tuple(getattr(node, name) for name in node.__struct_fields__ if name != "span")
        key: Any = (type(node), *(_field_key(f) for f in fields))
        result = self._nodes.get(key)
        if result is None:
            self._nodes[key] = result = node
        return result


def _field_key(value: Any) -> Any:
    if isinstance(value, float):
        return ("float", value.hex())  # keeps 0.0 and -0.0 apart, and NaN equal to itself
    hashable: Any = (Node, int, str, DType, tuple)
    return value if value is None or isinstance(value, hashable) else id(value)


class ArithContext(Protocol):
    """Interface that the modules of this package require of each other; see `Analyzer`."""

    @property
    def space(self) -> Space: ...
    def floordiv(self, p: Poly, c: Poly) -> Poly: ...
    def whole_quotient(self, k: int, c: Poly) -> Poly | None: ...
    def minimum(self, operands: list[Poly]) -> Poly: ...
    def bounds(self, p: Poly) -> Bounds: ...
    def atom_bounds(self, atom: Atom) -> Bounds: ...
    def nonneg(self, p: Poly) -> bool: ...
    def known_nonneg(self, p: Poly) -> bool: ...
    def units(self, p: Poly) -> tuple[Summand, ...]: ...
    def unit_value(self, unit: Summand) -> Poly: ...
    def limits(self, var: Var) -> tuple[Poly | None, Poly | None]: ...
    def const_limits(self, var: Var) -> tuple[Poly | None, Poly | None]: ...
    def facts(self) -> tuple[Poly, ...]: ...
    def value_facts(self, atom: Atom) -> list[Poly]: ...


class Rewriter(ArithContext, Protocol):
    """A context that also converts expressions to sums and back."""

    def lift(self, expr: Expr) -> Poly: ...
    def exact(self, expr: Expr) -> Poly: ...
    def is_value(self, expr: Expr) -> bool: ...
    def lower(self, p: Poly, dtype: DType) -> Expr: ...
    def simplify(self, expr: Expr) -> Expr: ...
    def is_true(self, condition: Expr) -> bool: ...
    def equality(self, var: Var) -> Poly | None: ...
    def knows(self, var: Var) -> bool: ...
    def exact_division(self, atom: int) -> tuple[Var, Term] | None: ...


def is_index(dtype: DType) -> bool:
    """Whether values of the type take part in index arithmetic."""
    return dtype.is_index and dtype.lanes == 1


class Summand:
    """A summand found by `regroup`: `coefficient * product(rest) * value`.

    By `kind`, the value is: "mono" 1; "mod" `operands[0] % operands[1]`; "min" or "max" that of
    `operands`.
    """

    __slots__ = ("coefficient", "kind", "operands", "rest")

    def __init__(self, coefficient: int, rest: Mono, kind: str, operands: tuple[Poly, ...]):
        self.coefficient = coefficient
        self.rest = rest
        self.kind = kind
        self.operands = operands
