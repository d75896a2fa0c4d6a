"""Random programs: a function `main`, and functions that it calls."""

from __future__ import annotations

from collections.abc import Callable

from fuzzing.programs.scope import Buffer, Index, Scope
from fuzzing.programs.statements import Callee, Statements
from fuzzing.statements import Statement, lines

_CHOICES = (
    ("A", "int32", ((24,), (16,))),
    ("B", "int32", ((6, 8), (4, 12))),
    ("F", "float32", ((16,), (4, 6))),
    ("L", "int64", ((12,), (3, 4))),
    ("U", "uint8", ((16,),)),
    ("S", "int16", ((16,), (2, 8))),
)


def script(program: list[Statement]) -> str:
    """The text of the module with these functions."""
    return "\n".join(["@I.ir_module", "class Module:", *lines(program), ""])


def draw(seed: int) -> list[Statement]:
    """The program of a seed, as a tree whose outermost statements are its functions."""
    return _Functions(seed).program()


class _Functions(Statements):
    """Draws the functions of a module."""

    def program(self) -> list[Statement]:
        functions: list[Statement] = []
        for number in range(self.chance.choice((0, 1, 1, 2))):
            functions += self.callee(f"f{number}")
        return functions + self.main()

    def callee(self, name: str) -> list[Statement]:
        """A function of two buffers, the first of which it writes, and a number."""
        distinct, writes = self.happens(0.7), self.happens(0.4)
        memory = frozenset({"X"}) if distinct else frozenset({"X", "P"})
        x = Buffer("X", "int32", ("n",), memory)
        p = Buffer("P", "int32", (4,), memory if not distinct else frozenset({"P"}), writes)
        low, high = self.chance.randint(-4, 1), self.chance.randint(2, 6)
        most = self.chance.choice((6, 8))
        self.callees.append(Callee(name, writes, distinct, low, high, most))
        attrs = f'"tir_var_lower_bound": {{"k": {low}}}, "tir_var_upper_bound": {{"k": {high}, '
        attrs += f'"n": {most}}}, "tir.fp_contract": "off"'
        attrs += "" if distinct else ', "tir.noalias": False'
        scope = Scope((x, p), scalars=(("k", "int32"),), sizes=("n",))
        head = [
            Statement(f"T.func_attr({{{attrs}}})"),
            Statement("n = T.int64()"),
            Statement('X = T.match_buffer(x, (n,), "int32")'),
        ]
        self.left = 6
        body = head + self.whole(scope) + self.several(scope, 0, 1)
        line = f'def {name}(x: T.handle, P: T.Buffer((4,), "int32"), k: T.int32):'
        return [Statement("@T.prim_func(private=True)"), Statement(line, body, nests=True)]

    def whole(self, scope: Scope) -> list[Statement]:
        """A loop over the buffer of symbolic size."""
        name = self.name("i")
        inner = scope.inside(Index(name, 8, "n"))
        kind = self.chance.choice(("range", "range", "T.parallel"))
        if kind == "range":
            body = self.several(inner, 1, 2)
        else:
            inner = self.lane(inner, name, kind, [(scope.buffers[0], (name,))])
            body = self.several(inner, 1, 2)
        return [Statement(f"for {name} in {kind}(n):", body, nests=True)]

    def main(self) -> list[Statement]:
        sizes, attrs, head = self.parameters()
        scope = Scope(
            tuple(self.given), scalars=self.scalars, sizes=sizes, callees=bool(self.callees)
        )
        params = [
            f"{b.name.lower()}: T.handle"
            if "n" in b.shape
            else f'{b.name}: T.Buffer({_shape(b.shape)}, "{b.dtype}")'
            for b in self.given
        ]
        params += [f"{name}: T.{dtype}" for name, dtype in self.scalars]
        body = [Statement(f"T.func_attr({{{attrs}}})"), *head]
        self.left = 24
        if self.happens(0.3):
            body += self.whole_of_symbolic(scope)
        body += self.several(scope, 3, 5)
        line = f"def main({', '.join(params)}):"
        return [Statement("@T.prim_func"), Statement(line, body, nests=True)]

    def parameters(self) -> tuple[tuple[str, ...], str, list[Statement]]:
        """Draw the parameters; the symbolic sizes, the attributes and what declares buffers."""
        self.given: list[Buffer] = [self.parameter("J", "int32", (12,), small=True)]
        for name, dtype, shapes in self.chance.sample(_CHOICES, self.chance.randint(2, 4)):
            self.given.append(self.parameter(name, dtype, self.chance.choice(shapes)))
        head: list[Statement] = []
        sizes: tuple[str, ...] = ()
        if self.happens(0.5):
            sizes = ("n",)
            dtype = self.chance.choice(("int32", "float32"))
            shape = self.chance.choice((("n",), ("n", 8)))
            self.given.append(self.parameter("X", dtype, shape))
            head.append(Statement("n = T.int64()"))
            head.append(Statement(f'X = T.match_buffer(x, {_shape(shape)}, "{dtype}")'))
        self.scalars = (("k", "int32"), ("m", "int64"))[: self.chance.randint(0, 2)]
        low: list[str] = []
        high: list[str] = []
        for name, dtype in self.scalars:
            if self.happens(0.3):
                continue
            ends = (-(2 ** (int(dtype[3:]) - 1)), 2 ** (int(dtype[3:]) - 1) - 1)
            extreme = self.happens(0.3)
            low.append(f'"{name}": {ends[0] if extreme else self.chance.randint(-5, 2)}')
            high.append(f'"{name}": {ends[1] if extreme else self.chance.randint(3, 9)}')
        if sizes:
            high.append('"n": 8')
        attrs = f'"tir_var_lower_bound": {{{", ".join(low)}}}, "tir_var_upper_bound": '
        attrs += f'{{{", ".join(high)}}}, "tir.fp_contract": "off"'
        return sizes, attrs, head

    def parameter(
        self, name: str, dtype: str, shape: tuple[int | str, ...], small: bool = False
    ) -> Buffer:
        written = self.happens(0.8)
        return Buffer(name, dtype, shape, frozenset({name}), written, small=small)

    def whole_of_symbolic(self, scope: Scope) -> list[Statement]:
        """A loop over the rows of the parameter with a symbolic size."""
        if not scope.sizes:
            return []
        name = self.name("i")
        return [
            Statement(
                f"for {name} in range(n):",
                self.several(scope.inside(Index(name, 8, "n")), 1, 3),
                nests=True,
            )
        ]


def _shape(shape: tuple[int | str, ...]) -> str:
    return "(" + "".join(f"{size}, " for size in shape).rstrip() + ")"


Draw = Callable[[Scope], list[Statement]]
