"""Modules, and text that does not come from a Python file."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, cast

from blockwright.ir import GraphFunction, IRModule, Node, PrimFunc
from blockwright.script import relax, tir
from blockwright.script.core import Problem, Reporter, Script, text_script
from blockwright.script.ir import functions
from blockwright.script.relax.parser import RelaxParser
from blockwright.script.relax.values import constant_table
from blockwright.script.tir.evaluator import ModuleRef
from blockwright.script.tir.macro import is_macro, macro_of
from blockwright.script.tir.parser import TirParser
from blockwright.support import ScriptError
from blockwright.support.kinds import require_kind
from blockwright.support.stack import deep

_LEVELS = {"prim_func": "T", "function": "R"}


class Options:
    """What a decorator says: the dialect and its options."""

    def __init__(self, level: str, private: bool = False, pure: bool = True) -> None:
        self.level, self.private, self.pure = level, private, pure


def _options(node: ast.FunctionDef) -> Options:
    """Read the decorator of a function without running it."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = ast.unparse(call.func if call is not None else decorator).split(".")[-1]
        if name in _LEVELS:
            given = {k.arg: k.value for k in call.keywords} if call is not None else {}
            flags: dict[str, bool] = {}
            for key in ("private", "pure"):
                value = given.get(key)
                if isinstance(value, ast.Constant):
                    flags[key] = bool(value.value)
            return Options(_LEVELS[name], **flags)
    raise Problem("BW112", f"function {node.name!r} has no dialect", node,
                  "put @T.prim_func or @R.function above it")  # fmt: skip


def parse_function(
    node: ast.FunctionDef, script: Script, reporter: Reporter
) -> PrimFunc | GraphFunction | None:
    """A function of either level, or None when problems were reported."""
    options = _options(node)
    if options.level == "T":
        return TirParser(script, reporter).function(node, options.private)
    return RelaxParser(script, reporter).function(node, options.private, options.pure)


def parse_module(script: Script, reporter: Reporter | None = None) -> IRModule:
    """The module that a class defines."""
    node = script.node
    assert isinstance(node, ast.ClassDef)
    report = Reporter(script) if reporter is None else reporter
    names = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not is_macro(n)]
    ref = ModuleRef(names)
    siblings = {name: getattr(ref, name) for name in names}
    script.env = {**siblings, **script.env, "cls": ref, node.name: ref}
    members: dict[str, Node] = {}
    attrs: dict[str, Any] = {}
    for item in node.body:
        with report.statement(item):
            if isinstance(item, ast.FunctionDef) and is_macro(item):
                script.env[item.name] = macro_of(item, _part(script, item))
            elif isinstance(item, ast.FunctionDef):
                if item.name in members:
                    raise Problem("BW111", f"function {item.name!r} is defined twice", item)
                function = parse_function(item, script, report)
                if function is not None:
                    members[item.name] = function
            elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
                value = TirParser(script, report).eval(item.value)
                attrs.update(cast("Mapping[str, Any]", value) if isinstance(value, dict) else {})
            elif not _is_harmless(item):
                raise Problem("BW103", "a module holds functions and I.module_attrs", item)
    if reporter is None:
        report.finish()
    return IRModule(members, attrs)


def _is_module(item: ast.ClassDef) -> bool:
    names = (ast.unparse(d).split("(")[0].split(".")[-1] for d in item.decorator_list)
    return "ir_module" in names


def _is_harmless(item: ast.stmt) -> bool:
    text = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
    return text or isinstance(item, (ast.Pass, ast.Import, ast.ImportFrom))


@deep
def from_source(
    text: str, *, constants: Mapping[str, Any] | None = None, name: str = "<script>",
    env: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Parse program text that is not part of a Python file.

    Args:
        text: one module class or function, or several functions (which make a module).
        constants: arrays that the text refers to by name.
        name: what errors call the text.
        env: further Python names the text may use.

    Returns:
        An `IRModule`, `PrimFunc` or `GraphFunction`.
    """
    require_kind(text, str, "a script is text", ScriptError, "BW107",
                 "pass the text of the program; of a file Path(name).read_text()")  # fmt: skip
    from_dialects: dict[str, Any] = {"T": tir, "R": relax, "I": functions}
    script = text_script(text, {**from_dialects, "cls": ModuleRef(), **(env or {})}, name)
    reporter = Reporter(script)
    found: list[Node] = []
    with constant_table(constants):
        assert isinstance(script.node, ast.Module)
        for item in script.node.body:
            with reporter.statement(item):
                if isinstance(item, ast.ClassDef) and _is_module(item):
                    found.append(parse_module(_part(script, item), reporter))
                elif isinstance(item, ast.FunctionDef) and is_macro(item):
                    script.env[item.name] = macro_of(item, _part(script, item))
                elif isinstance(item, ast.FunctionDef):
                    function = parse_function(item, _part(script, item), reporter)
                    found += [] if function is None else [function]
                elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                    script.env[item.targets[0].id] = TirParser(script, reporter).eval(item.value)
                elif not _is_harmless(item):
                    raise Problem("BW103", "text holds functions, modules and constants only", item)
        if not found and not reporter.found:
            reporter.add(Problem("BW103", "there is no function in the text"))
        reporter.finish()
    if len(found) == 1:
        return found[0]
    named = {f.name: f for f in found if isinstance(f, (PrimFunc, GraphFunction))}
    return IRModule(dict(named))


def _part(script: Script, node: ast.AST) -> Script:
    return Script(script.file, node, script.env, script.trusted)
