"""Parse modules (`parse_module`) and plain text (`from_source`)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, cast

from blockwright.ir import DType, GraphFunction, IRModule, Node, PrimFunc
from blockwright.ir.dtype import INT32
from blockwright.script import relax, tir
from blockwright.script.core import ParseProblem, Reporter, Script, text_script
from blockwright.script.core.report import wrap
from blockwright.script.ir import functions
from blockwright.script.ir.program_calls import with_complete_calls
from blockwright.script.relax.parser import RelaxParser
from blockwright.script.relax.values import constant_table
from blockwright.script.tir.evaluator import ModuleRef
from blockwright.script.tir.macro import is_macro, macro_of
from blockwright.script.tir.parser import TirParser
from blockwright.script.tir.syntax import function_name
from blockwright.script.tir.values import index_type
from blockwright.support import ScriptError
from blockwright.support.kinds import require_kind
from blockwright.support.stack import deep

# Decorators and their options.
_DECORATORS = {
    "prim_func": ("private", "check_well_formed", "index_dtype", "name"),
    "function": ("private", "check_well_formed", "pure", "name"),
}


def _decorator(node: ast.FunctionDef, script: Script, reporter: Reporter) -> tuple[str, Any]:
    """The dialect decorator of a function: its name and options."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = ast.unparse(call.func if call is not None else decorator).split(".")[-1]
        if name in _DECORATORS:
            evaluator, known = TirParser(script, reporter), _DECORATORS[name]
            options: dict[str, Any] = {}
            for item in () if call is None else call.keywords:
                if item.arg not in known:
                    given = "**" if item.arg is None else item.arg
                    raise ParseProblem(
                        "BW106",
                        f"@{name} has no option {given!r}",
                        item.value,
                        f"its options are {', '.join(known)}",
                    )
                options[item.arg] = evaluator.eval(item.value)
                if item.arg == "index_dtype":
                    options[item.arg] = _index_type(options[item.arg], item.value)
                elif item.arg == "name" and function_name(node) != options["name"]:
                    raise ParseProblem(
                        "BW106", "the name of a function is a text in quotes", item.value
                    )
            return name, options
    raise ParseProblem(
        "BW112",
        f"function {node.name!r} has no dialect",
        node,
        "put @T.prim_func or @R.function above it",
    )


def _index_type(name: Any, node: ast.expr) -> DType:
    try:
        return index_type(name)
    except ScriptError as error:
        raise wrap(error, node) from None


def parse_function(
    node: ast.FunctionDef, script: Script, reporter: Reporter
) -> PrimFunc | GraphFunction | None:
    """Parse a tensor program or graph function; None if problems were reported."""
    name, options = _decorator(node, script, reporter)
    private = bool(options.get("private", False))
    if name == "prim_func":
        index_dtype = options.get("index_dtype", INT32)
        checked = bool(options.get("check_well_formed", True))
        return TirParser(script, reporter).function(node, private, index_dtype, checked)
    return RelaxParser(script, reporter).function(node, private, bool(options.get("pure", True)))


def parse_module(script: Script, reporter: Reporter | None = None) -> IRModule:
    """Parse the module that a class defines."""
    node = script.node
    assert isinstance(node, ast.ClassDef)
    report = Reporter(script) if reporter is None else reporter
    functions = [n for n in node.body if isinstance(n, ast.FunctionDef) and not is_macro(n)]
    ref = ModuleRef(map(function_name, functions))
    siblings = {f.name: ref[function_name(f)] for f in functions}
    script.env = {**siblings, **script.env, "cls": ref, node.name: ref}
    members: dict[str, Node] = {}
    attrs: dict[str, Any] = {}
    for item in node.body:
        with report.statement(item):
            if isinstance(item, ast.FunctionDef) and is_macro(item):
                script.env[item.name] = macro_of(item, _part(script, item))
            elif isinstance(item, ast.FunctionDef):
                key = function_name(item)
                if key in members:
                    raise ParseProblem("BW111", f"function {key!r} is defined twice", item)
                function = parse_function(item, script, report)
                if function is not None:
                    members[key] = function
            elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
                value = TirParser(script, report).eval(item.value)
                attrs.update(cast("Mapping[str, Any]", value) if isinstance(value, dict) else {})
            elif not _is_harmless(item):
                raise ParseProblem("BW103", "a module holds functions and I.module_attrs", item)
    members = with_complete_calls(members, report)
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
    text: str,
    *,
    constants: Mapping[str, Any] | None = None,
    name: str = "<script>",
    env: Mapping[str, Any] | None = None,
) -> Any:
    """Parse program text that is not part of a Python file.

    Args:
        text: one module class or function, or several functions, which form a module.
        constants: arrays that the text refers to by name.
        name: the file name shown in errors.
        env: additional Python names that the text may use.

    Returns:
        An `IRModule`, `PrimFunc` or `GraphFunction`.
    """
    require_kind(
        text,
        str,
        "a script is text",
        ScriptError,
        "BW107",
        "pass the text of the program; for a file, Path(name).read_text()",
    )
    from_dialects: dict[str, Any] = {"T": tir, "R": relax, "I": functions}
    script = text_script(text, {**from_dialects, "cls": ModuleRef(), **(env or {})}, name)
    reporter = Reporter(script)
    result: list[Node] = []
    with constant_table(constants):
        assert isinstance(script.node, ast.Module)
        for item in script.node.body:
            with reporter.statement(item):
                if isinstance(item, ast.ClassDef) and _is_module(item):
                    result.append(parse_module(_part(script, item), reporter))
                elif isinstance(item, ast.FunctionDef) and is_macro(item):
                    script.env[item.name] = macro_of(item, _part(script, item))
                elif isinstance(item, ast.FunctionDef):
                    function = parse_function(item, _part(script, item), reporter)
                    result += [] if function is None else [function]
                elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                    script.env[item.targets[0].id] = TirParser(script, reporter).eval(item.value)
                elif not _is_harmless(item):
                    raise ParseProblem(
                        "BW103", "text holds functions, modules and constants only", item
                    )
        if not result and not reporter.found:
            reporter.add(ParseProblem("BW103", "there is no function in the text"))
        reporter.finish()
    if len(result) == 1:
        return result[0]
    named = {f.name: f for f in result if isinstance(f, (PrimFunc, GraphFunction))}
    complete = with_complete_calls(named, reporter)
    reporter.finish()
    return IRModule(dict(complete))


def _part(script: Script, node: ast.AST) -> Script:
    return Script(script.file, node, script.env, script.trusted)
