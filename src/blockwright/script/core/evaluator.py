"""Evaluate expressions of a script: operators on IR values build IR, all others run in Python.

Arithmetic on IR values builds exactly the node as written (operand types matched, no folding), so
that parsing is the inverse of printing. Names are looked up in the script's scopes first, then in
the enclosing Python scope, then among the builtins.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import operator
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from blockwright import ir
from blockwright.analysis.access.stable_values import is_pure
from blockwright.script.core.plain import iterable_of
from blockwright.script.core.report import ParseProblem, Poisoned, Reporter, raised, wrap
from blockwright.script.core.source import Script
from blockwright.support import BlockwrightError


class _Poison:
    """The value of a name whose definition failed; using it raises `Poisoned`."""


POISON = _Poison()
FuncT = TypeVar("FuncT", bound=Callable[..., Any])


class MetaVar:
    """`T.meta_var(x)`: bind the name to the value itself, not to a variable of the program."""

    def __init__(self, value: Any) -> None:
        self.value = value


def special_form(func: FuncT) -> FuncT:
    """Mark a dialect function that receives its call unevaluated: `func(evaluator, call_node)`."""
    vars(func)["__special_form__"] = True
    return func


_BINARY: dict[type[ast.operator], tuple[Callable[[Any, Any], Any], type[ir.BinaryOp] | None]] = {
    ast.Add: (lambda a, b: a + b, ir.Add), ast.Sub: (lambda a, b: a - b, ir.Sub),
    ast.Mult: (lambda a, b: a * b, ir.Mul), ast.Div: (lambda a, b: a / b, ir.Div),
    ast.FloorDiv: (lambda a, b: a // b, ir.FloorDiv), ast.Mod: (lambda a, b: a % b, ir.FloorMod),
    ast.Pow: (lambda a, b: a**b, None), ast.LShift: (lambda a, b: a << b, None),
    ast.RShift: (lambda a, b: a >> b, None), ast.BitAnd: (lambda a, b: a & b, None),
    ast.BitOr: (lambda a, b: a | b, None), ast.BitXor: (lambda a, b: a ^ b, None),
    ast.MatMult: (lambda a, b: a @ b, None),
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], type[ir.CompareOp] | None]] = {
    ast.Eq: (operator.eq, ir.EQ), ast.NotEq: (operator.ne, ir.NE), ast.Lt: (operator.lt, ir.LT),
    ast.LtE: (operator.le, ir.LE), ast.Gt: (operator.gt, ir.GT), ast.GtE: (operator.ge, ir.GE),
    ast.Is: (operator.is_, None), ast.IsNot: (operator.is_not, None),
    ast.In: (lambda a, b: a in b, None), ast.NotIn: (lambda a, b: a not in b, None),
}  # fmt: skip


def arithmetic(cls: type[ir.BinaryOp], a: Any, b: Any, span: Any = None) -> ir.Expr:
    """The node `cls(a, b)` with operand types matched and nothing folded."""
    x, y = ir.match_numbers(a, b, stated=True)
    if cls is ir.Div and not x.dtype.is_float:
        return ir.truediv(x, y)  # raises, with a help text
    return cls(x, y, span=span)


def comparison(cls: type[ir.CompareOp], a: Any, b: Any, span: Any = None) -> ir.Expr:
    """The node `cls(a, b)` with operand types matched and nothing folded."""
    x, y = ir.match_types(a, b, stated=True)
    return cls(x, y, span=span)


class Evaluator:
    """Evaluates the Python expressions of a script; subclasses add the values of their dialect."""

    _methods: ClassVar[dict[type[ast.expr], Callable[[Any, Any], Any]]] = {}

    def __init__(self, script: Script, reporter: Reporter) -> None:
        self.script = script
        self.reporter = reporter
        self.scopes: list[dict[str, Any]] = [{}]
        self.depth = 0  # nesting depth of macro expansions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        table: dict[type[ast.expr], Callable[[Any, Any], Any]] = {}
        for base in reversed(cls.__mro__):
            for name, method in vars(base).items():
                if name.startswith("eval_"):
                    table[getattr(ast, name.removeprefix("eval_"))] = method
        cls._methods = table

    # ------------------------------------------------------------------------------------- dialect
    def is_ir(self, value: Any) -> bool:
        """Whether operators on this value build IR."""
        return isinstance(value, ir.Expr)

    def operand(self, value: Any) -> Any:
        """A value as an operand of arithmetic."""
        return value

    def attribute(self, value: Any, name: str, node: ast.Attribute) -> Any:
        return getattr(value, name)

    def subscript(self, value: Any, index: Any, node: ast.Subscript) -> Any:
        return value[index]

    def binary(self, op: ast.operator, a: Any, b: Any, node: ast.BinOp) -> Any:
        """A binary operator with at least one IR operand."""
        function, cls = _BINARY[type(op)]
        if cls is not None:
            return arithmetic(cls, a, b, self.span(node))
        return function(a, b)

    def compare(self, op: ast.cmpop, a: Any, b: Any, node: ast.Compare) -> Any:
        function, cls = _COMPARE[type(op)]
        if cls is None:
            return function(a, b)
        return comparison(cls, a, b, self.span(node))

    def is_callable(self, value: Any) -> bool:
        return callable(value)

    def called(self, func: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call) -> Any:
        return func(*args, **kwargs)

    # -------------------------------------------------------------------------------------- engine
    def span(self, node: ast.AST) -> Any:
        return self.script.span(node)

    def bind(self, name: str, value: Any) -> None:
        self.scopes[-1][name] = value

    def lookup(self, name: str, node: ast.AST) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name in self.script.env:
            return self.script.env[name]
        known = self.script.builtins
        if name in known:
            return known[name]
        names = [*self.script.env, *(n for scope in self.scopes for n in scope)]
        close = difflib.get_close_matches(name, [n for n in names if not n.startswith("__")], 1)
        help = f"did you mean {close[0]!r}?" if close else "define it before it is used"
        raise ParseProblem("BW102", f"{name!r} is not defined", node, help)

    def eval(self, node: ast.expr) -> Any:
        """The value of an expression; raises `ParseProblem` with the location."""
        method = self._methods.get(type(node))
        if method is None:
            raise ParseProblem("BW104", f"{_name(node)} is not part of the dialect", node)
        try:
            return method(self, node)
        except BlockwrightError as error:
            raise wrap(error, node) from error

    def guarded(self, run: Callable[[], Any], node: ast.AST) -> Any:
        """Run spliced Python code; its exceptions become a problem at `node`."""
        try:
            return run()
        except (ParseProblem, Poisoned, BlockwrightError):
            raise
        except Exception as error:
            raise raised(error, node) from error

    def checked(self, value: Any) -> Any:
        if value is POISON:
            raise Poisoned
        return value

    # ------------------------------------------------------------------------------------ by class
    def eval_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def eval_Name(self, node: ast.Name) -> Any:
        return self.checked(self.lookup(node.id, node))

    def eval_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._items(node.elts))

    def eval_List(self, node: ast.List) -> Any:
        return self._items(node.elts)

    def eval_Dict(self, node: ast.Dict) -> Any:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                out.update(self.eval(value))
            else:
                out[self.eval(key)] = self.eval(value)
        return out

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        out: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                out.extend(self.eval(node.value))
            else:
                out.append(self.eval(node))
        return out

    def eval_Slice(self, node: ast.Slice) -> Any:
        parts = (node.lower, node.upper, node.step)
        return slice(*(None if part is None else self.eval(part) for part in parts))

    def eval_Attribute(self, node: ast.Attribute) -> Any:
        value = self.eval(node.value)
        if not self.script.trusted and _is_internal(value, node.attr):
            raise ParseProblem("BW104", f"{node.attr!r} is not reachable from script text", node)
        try:
            return self.attribute(value, node.attr, node)
        except BlockwrightError:
            raise  # a removed name, whose error names the replacement
        except AttributeError:
            raise self.no_attribute(value, node) from None

    def no_attribute(self, value: Any, node: ast.Attribute) -> ParseProblem:
        owner = ast.unparse(node.value)
        close = difflib.get_close_matches(node.attr, [n for n in dir(value) if n[0] != "_"], 1)
        help = f"did you mean {owner}.{close[0]}?" if close else None
        return ParseProblem("BW102", f"{owner!r} has no {node.attr!r}", node, help)

    def eval_Subscript(self, node: ast.Subscript) -> Any:
        value, index = self.eval(node.value), self.eval(node.slice)
        return self.guarded(lambda: self.subscript(value, index, node), node)

    def eval_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.operand(self.eval(node.operand))
        if isinstance(node.op, ast.Not):
            return ir.Not(value, span=self.span(node)) if self.is_ir(value) else not value
        functions: dict[type[ast.unaryop], Callable[[Any], Any]] = {
            ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert
        }  # fmt: skip
        return self.guarded(lambda: functions[type(node.op)](value), node)

    def eval_BinOp(self, node: ast.BinOp) -> Any:
        chain: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):  # left-deep sums would overflow the stack
            chain.append(left)
            left = left.left
        value = self.eval(left)
        for item in reversed(chain):
            value = self._binop(item, self.operand(value), self.operand(self.eval(item.right)))
        return value

    def _binop(self, node: ast.BinOp, a: Any, b: Any) -> Any:
        if self.is_ir(a) or self.is_ir(b):
            try:
                return self.guarded(lambda: self.binary(node.op, a, b, node), node)
            except BlockwrightError as error:
                raise wrap(error, node) from error
        return self.guarded(lambda: _BINARY[type(node.op)][0](a, b), node)

    def eval_BoolOp(self, node: ast.BoolOp) -> Any:
        cls = ir.And if isinstance(node.op, ast.And) else ir.Or
        value = self.operand(self.eval(node.values[0]))
        for item in node.values[1:]:
            if not self.is_ir(value) and bool(value) == (cls is ir.Or):
                return value  # short-circuits while parsing, as in Python
            other = self.operand(self.eval(item))
            if self.is_ir(value) or self.is_ir(other):
                value = cls(_condition(value), _condition(other), span=self.span(node))
            else:
                value = other
        return value

    def eval_Compare(self, node: ast.Compare) -> Any:
        left = self.operand(self.eval(node.left))
        result: Any = None
        named: list[tuple[ir.Var, ir.Expr]] = []

        def once(value: Any) -> Any:
            """A name for an operand of two comparisons, which is evaluated once."""
            if not isinstance(value, ir.Expr) or isinstance(value, (ir.Var, ir.IntImm)):
                return value
            named.append((ir.Var("operand", value.dtype, span=value.span), value))
            return named[-1][0]

        for number, (op, right_node) in enumerate(zip(node.ops, node.comparators, strict=True), 1):
            right = self.operand(self.eval(right_node))
            if number < len(node.ops) and isinstance(right, ir.Expr) and not is_pure(right):
                left = once(left)
                right = once(right)
            part = self._compare(op, left, right, node)
            if result is None:
                result = part
            elif self.is_ir(result) or self.is_ir(part):
                result = ir.And(_condition(result), _condition(part), span=self.span(node))
            else:
                result = result and part
            left = right
        for var, value in reversed(named):
            result = ir.Let(var, value, result, span=self.span(node))
        return result

    def _compare(self, op: ast.cmpop, a: Any, b: Any, node: ast.Compare) -> Any:
        if self.is_ir(a) or self.is_ir(b):
            return self.guarded(lambda: self.compare(op, a, b, node), node)
        return self.guarded(lambda: _COMPARE[type(op)][0](a, b), node)

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        condition = self.operand(self.eval(node.test))
        if not self.is_ir(condition):
            return self.eval(node.body if condition else node.orelse)
        raise ParseProblem("BW104", "`a if c else b` needs a condition known while parsing", node)

    # --------------------------------------------------------------------- functions and sequences
    def eval_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> Any:
        out: list[Any] = []
        self._comprehend(node.generators, node.elt, out)
        return out

    eval_GeneratorExp = eval_ListComp

    def _comprehend(
        self, loops: list[ast.comprehension], element: ast.expr, out: list[Any]
    ) -> None:
        if not loops:
            out.append(self.eval(element))
            return
        source = self.eval(loops[0].iter)
        items = None if self.is_ir(source) else iterable_of(source)
        if items is None:
            raise ParseProblem("BW104", "a comprehension runs over Python values", loops[0].iter)
        for item in items:
            self.scopes.append({})
            try:
                self.assign_plain(loops[0].target, item)
                if all(self._decided(test) for test in loops[0].ifs):
                    self._comprehend(loops[1:], element, out)
            finally:
                self.scopes.pop()

    def _decided(self, node: ast.expr) -> bool:
        value = self.eval(node)
        if self.is_ir(value):
            raise ParseProblem("BW104", "this condition is not known while parsing", node)
        return bool(value)

    def assign_plain(self, target: ast.expr, value: Any) -> None:
        """Bind names of the script to a value, with Python's unpacking."""
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part, item in zip(target.elts, value, strict=True):
                self.assign_plain(part, item)
        else:
            raise ParseProblem("BW103", "this cannot be assigned to", target)

    def eval_Lambda(self, node: ast.Lambda) -> Any:
        names = [a.arg for a in node.args.args]
        rest = None if node.args.vararg is None else node.args.vararg.arg
        around = list(self.scopes)

        def call(*args: Any) -> Any:
            if len(args) < len(names) or (rest is None and len(args) > len(names)):
                raise TypeError(f"the lambda takes {len(names)} arguments, got {len(args)}")
            saved = self.scopes
            bound = dict(zip(names, args, strict=False))
            if rest is not None:
                bound[rest] = args[len(names) :]
            self.scopes = [*around, bound]
            try:
                return self.eval(node.body)
            finally:
                self.scopes = saved

        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names]
        if rest is not None:
            parameters.append(inspect.Parameter(rest, inspect.Parameter.VAR_POSITIONAL))
        signature = inspect.Signature(parameters)
        call.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        return call

    def eval_JoinedStr(self, node: ast.JoinedStr) -> Any:
        return "".join(str(self.eval(part)) for part in node.values)

    def eval_FormattedValue(self, node: ast.FormattedValue) -> Any:
        spec = "" if node.format_spec is None else self.eval(node.format_spec)
        return format(self.eval(node.value), spec)

    def eval_Call(self, node: ast.Call) -> Any:
        func = self.eval(node.func)
        if getattr(func, "__special_form__", False):
            return func(self, node)
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for item in node.keywords:
            if item.arg is None:
                kwargs.update(self.eval(item.value))
            else:
                kwargs[item.arg] = self.eval(item.value)
        if not self.is_callable(func):
            raise ParseProblem("BW106", f"{ast.unparse(node.func)!r} cannot be called", node)
        return self.guarded(lambda: self._invoke(func, args, kwargs, node), node)

    def _invoke(self, func: Any, args: list[Any], kwargs: Mapping[str, Any], node: ast.Call) -> Any:
        if str(getattr(func, "__module__", "")).startswith("blockwright.script"):
            try:
                return self.called(func, args, dict(kwargs), node)
            except TypeError as error:  # arguments that do not fit the signature
                text = re.sub(r"^[\w.<>]+\(\) ", "it ", str(error))
                name = ast.unparse(node.func)
                raise ParseProblem("BW106", f"wrong call of {name}: {text}", node) from error
        return self.called(func, args, dict(kwargs), node)


def _is_internal(value: Any, name: str) -> bool:
    """Whether untrusted script text must not access this: dunder names, module internals, and
    `str.format`, whose templates read attributes of their arguments."""
    if isinstance(value, ModuleType):
        return name not in value.__all__ and name in vars(value)
    if name in ("format", "format_map") and (value is str or isinstance(value, str)):
        return True
    return name.startswith("__")


def _condition(value: Any) -> ir.Expr:
    return value if isinstance(value, ir.Expr) else ir.const(bool(value), "bool")


def _name(node: ast.AST) -> str:
    words = {
        "DictComp": "a dict comprehension",
        "SetComp": "a set comprehension",
        "NamedExpr": "`:=`",
        "Await": "`await`",
        "Yield": "`yield`",
    }
    return words.get(type(node).__name__, f"`{type(node).__name__}`")
