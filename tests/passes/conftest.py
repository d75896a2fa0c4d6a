"""Parses modules and runs passes by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ops.table import OPERATORS
from blockwright.passes import PassContext, default_pipeline
from blockwright.passes.check_passes import CheckPasses
from blockwright.target import Target
from tests.conftest import check_after_every_pass

HEAD = "from blockwright.script import ir as I, relax as R, tir as T\n"


@pytest.fixture(autouse=True)
def modules_stay_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every pass of every compilation, the functions that it changed are valid."""
    check_after_every_pass(monkeypatch, CheckPasses())


@pytest.fixture
def parse() -> Callable[[str], ir.IRModule]:
    """A module from the text of its functions."""

    def parse_(text: str) -> ir.IRModule:
        lines = [f"    {line}" if line else "" for line in text.strip("\n").splitlines()]
        return bw.from_source("@I.ir_module\nclass Module:\n" + "\n".join(lines) + "\n")

    return parse_


@pytest.fixture
def context() -> PassContext:
    return PassContext(Target("native"))


@pytest.fixture
def run(context: PassContext) -> Callable[..., ir.IRModule]:
    """`run(module, *names)`: the module after these passes of the pipeline."""

    def run_(module: ir.IRModule, *names: str) -> ir.IRModule:
        return default_pipeline().only(*names)(module, context)

    return run_


@pytest.fixture
def callees() -> Callable[..., list[str]]:
    """Names of what `main` calls, in order."""
    from blockwright.passes.rewrite import tir_callee

    def callees_(module: ir.IRModule, name: str = "main") -> list[str]:
        out: list[str] = []
        for binding in module[name].bindings:
            value: Any = binding.value
            callee = tir_callee(value)
            if callee is None and isinstance(value, ir.GraphCall):
                callee = getattr(value.op, "name", "")
            out.append(callee or type(value).__name__)
        return out

    return callees_


@pytest.fixture
def evaluate() -> Callable[..., Any]:
    """`evaluate(module, *inputs)`: what `main` means by the oracles of its operators.

    Every result is rounded to its type, tuples included.
    """

    def evaluate_(module: ir.IRModule, *inputs: Any) -> Any:
        main = module["main"]
        values: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))

        def of(value: Any) -> Any:
            if isinstance(value, ir.TupleExpr):
                return tuple(map(of, value.fields))
            return value.data if isinstance(value, ir.Constant) else values[value]

        for binding in main.bindings:
            call = binding.value
            row = OPERATORS[call.op.name]
            attrs = {**row.attrs, **call.attrs}
            args: list[Any] = []
            for arg in call.args:
                if isinstance(arg, ir.ShapeExpr):
                    attrs["shape"] = [ir.const_int(d) for d in arg.values]
                else:
                    args += arg.fields if isinstance(arg, ir.TupleExpr) else [arg]
            values[binding.var] = row.oracle(*map(of, args), **attrs)
        return of(main.body.body)

    return evaluate_
