"""Macros: script fragments that are parsed at each call.

    @T.macro
    def clear(buffer, extent):
        for i in range(extent):
            buffer[i] = T.float32(0)

    @T.prim_func
    def f(A: T.Buffer((16,), "float32")):
        clear(A, 16)

A *hygienic* macro sees only its parameters and the Python scope of its definition, so its meaning
does not depend on the caller. With `hygienic=False`, other names are looked up in the caller's
script first, and then in the scope of the definition. In both cases names assigned in the body are
local to the body, and program variables are fresh per expansion. Python integers in index positions
have the `index_dtype` of the function that the macro is expanded into.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Protocol

from blockwright.script.core import (
    ParseProblem,
    Reporter,
    Script,
    caller_environment,
    decorated_function,
)

_DEEPEST = 64
_KINDS = inspect.Parameter


class Expander(Protocol):
    """The parser interface that macro expansion uses."""

    script: Script
    reporter: Reporter
    scopes: list[dict[str, Any]]
    depth: int

    def eval(self, node: ast.expr) -> Any: ...
    def fragment(self, body: list[ast.stmt]) -> Any: ...


class Macro:
    """A function whose body is parsed at each call."""

    def __init__(self, script: Script, node: ast.FunctionDef, hygienic: bool) -> None:
        self.script, self.node, self.hygienic = script, node, hygienic
        self.signature = _signature(node)
        script.env[node.name] = self  # recursion

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ParseProblem(
            "BW108",
            f"macro {self.node.name!r} is called outside a script",
            None,
            "macros expand inside @T.prim_func; call Python functions elsewhere",
        )

    def expand(
        self, parser: Expander, args: list[Any], kwargs: Mapping[str, Any], node: ast.Call
    ) -> Any:
        """Parse the body at the call; return the value of its `return`, if there is one."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ParseProblem(
                "BW106", f"wrong call of macro {self.node.name}: {error}", node
            ) from None
        if parser.depth >= _DEEPEST:
            raise ParseProblem(
                "BW116",
                f"macro {self.node.name!r} is expanded {_DEEPEST} levels deep",
                node,
                "end the recursion with an `if` on a Python value",
            )
        with self._inside(parser, node):
            names: dict[str, Any] = {}
            parser.scopes.append(names)
            for name, parameter in self.signature.parameters.items():
                names[name] = bound.arguments.get(name, _absent(parameter, parser))
            return parser.fragment(self.node.body)

    @contextmanager
    def _inside(self, parser: Expander, node: ast.AST) -> Generator[None]:
        """Switch the parser to the macro's text and scopes within the context."""
        outer, scopes, reporter = parser.script, parser.scopes, parser.reporter
        env = self.script.env if self.hygienic else {**self.script.env, **outer.env}
        parser.script = Script(self.script.file, self.node, env, self.script.trusted)
        parser.scopes = [{}] if self.hygienic else list(scopes)
        parser.depth += 1
        place = f"in macro {self.node.name!r}, called at {outer.span(node).location()}"
        try:
            with reporter.inside(parser.script, place):
                yield
        finally:
            parser.script, parser.scopes = outer, scopes
            parser.depth -= 1


def _signature(node: ast.FunctionDef) -> inspect.Signature:
    """The signature of a definition; defaults are kept as syntax trees."""
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    first = len(plain) - len(args.defaults)
    result: list[inspect.Parameter] = []
    for position, arg in enumerate(plain):
        early = position < len(args.posonlyargs)
        kind = _KINDS.POSITIONAL_ONLY if early else _KINDS.POSITIONAL_OR_KEYWORD
        default = args.defaults[position - first] if position >= first else _KINDS.empty
        result.append(inspect.Parameter(arg.arg, kind, default=default))
    if args.vararg is not None:
        result.append(inspect.Parameter(args.vararg.arg, _KINDS.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        value = _KINDS.empty if default is None else default
        result.append(inspect.Parameter(arg.arg, _KINDS.KEYWORD_ONLY, default=value))
    if args.kwarg is not None:
        result.append(inspect.Parameter(args.kwarg.arg, _KINDS.VAR_KEYWORD))
    return inspect.Signature(result)


def _absent(parameter: inspect.Parameter, parser: Expander) -> Any:
    if parameter.kind is _KINDS.VAR_POSITIONAL:
        return ()
    if parameter.kind is _KINDS.VAR_KEYWORD:
        return {}
    default = parameter.default
    return parser.eval(default) if isinstance(default, ast.expr) else None


class _Decorator:
    """`@T.macro` and `@T.macro(hygienic=False)`."""

    def __init__(self, hygienic: bool = True) -> None:
        self.hygienic = hygienic

    def __call__(self, func: FunctionType | None = None, *, hygienic: bool = True) -> Any:
        """Decorator: a script fragment that is parsed at each call."""
        if func is None:
            return _Decorator(hygienic)
        _, env = caller_environment(1)
        script = decorated_function(func, env)
        return Macro(script, script.function, self.hygienic)


_Decorator.__module__ = __name__
macro = inline = _Decorator()


def is_macro(node: ast.FunctionDef) -> bool:
    """Whether a function definition in a module or text is a macro."""
    return any(_decorator_name(d) in ("macro", "inline") for d in node.decorator_list)


def macro_of(node: ast.FunctionDef, script: Script) -> Macro:
    """A macro from its definition in a module or text."""
    hygienic = True
    for decorator in node.decorator_list:
        for item in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if item.arg == "hygienic" and isinstance(item.value, ast.Constant):
                hygienic = bool(item.value.value)
    return Macro(script, node, hygienic)


def _decorator_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(target).split(".")[-1]
