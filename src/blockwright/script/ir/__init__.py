"""The `I` dialect: modules with tensor programs and graph functions; parsing of plain text.

@I.ir_module
class Module:
    @T.prim_func
    def f(...): ...

    @R.function
    def main(...): ...
"""

from __future__ import annotations

from typing import Any

from blockwright.analysis.validate.well_formed import find_problems
from blockwright.graph.program_calls import call_problems
from blockwright.ir import IRModule, PrimFunc
from blockwright.script.core import Reporter, Script, caller_environment, decorated_class
from blockwright.script.ir.functions import (
    constant,
    module_attrs,
    module_global_infos,
    vdevice,
)
from blockwright.script.ir.parser import from_source, parse_module
from blockwright.support.stack import deep

__all__ = ["constant", "from_source", "ir_module", "module_attrs", "module_global_infos", "vdevice"]


def ir_module(cls: type | None = None, *, check_well_formed: bool = True) -> Any:
    """Decorator: parse a class of dialect functions into an `IRModule`.

    Its tensor programs are checked as by `T.prim_func`, unless `check_well_formed` is false.
    """
    if cls is None:
        return _ModuleDecorator(check_well_formed)
    return _decorate(cls, check_well_formed)


class _ModuleDecorator:
    """The form `@I.ir_module()`, with options."""

    def __init__(self, check: bool) -> None:
        self.check = check

    def __call__(self, cls: type) -> IRModule:
        return _decorate(cls, self.check)


def _decorate(cls: type, check: bool) -> IRModule:
    frame, env = caller_environment(2)
    return _parsed(decorated_class(cls, frame, env), check)


@deep
def _parsed(script: Script, check: bool) -> IRModule:
    reporter = Reporter(script)
    module = parse_module(script, reporter)
    if check and not reporter.found:
        for function in module.functions.values():
            if isinstance(function, PrimFunc):
                reporter.found.extend(find_problems(function))
        if not reporter.found:
            reporter.found.extend(call_problems(module))
    reporter.finish()
    return module
