"""Join the modules of several models into one, whose functions share weights.

bw.compile({"prefill": program, "decode": other})   →   exe["prefill"], exe["decode"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.api.state import united_state
from blockwright.frontend.fallback import FALLBACKS, fallbacks
from blockwright.ir.attributes import STATE
from blockwright.support import OptionError

ENTRIES = "entries"
"""Module attribute: function name → attributes that describe its arguments and results."""

_OF_ENTRIES = (
    "framework",
    "input_orders",
    "input_pairs",
    "inputs_tree",
    "output_names",
    "output_orders",
    "output_pairs",
    "outputs_tree",
)


def entry_attributes(module: ir.IRModule, name: str) -> Mapping[str, Any]:
    """The attributes that describe arguments and results of a function (see
    `module_attributes`)."""
    entries: Mapping[str, Any] = module.attrs.get(ENTRIES, {})
    return entries.get(name, module.attrs if name == "main" else {})


def joined(modules: Mapping[str, ir.IRModule]) -> ir.IRModule:
    """One module with the function "main" of each module under the given name.

    Raises: OptionError BW902 for a module without the function "main".
    """
    functions: dict[str, ir.Node] = {}
    entries: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    for name, module in modules.items():
        if not isinstance(module.functions.get("main"), ir.GraphFunction):
            raise OptionError(
                f'the module of {name!r} has no graph function "main"',
                code="BW902",
                help="pass the module alone: its functions keep their names",
            )
        names = {n: _new_name(n, name, functions, modules) for n in module.functions}
        rename = _Rename(names)
        for each, function in module.functions.items():
            renamed = rename(function)
            assert isinstance(renamed, (ir.GraphFunction, ir.PrimFunc))
            if "global_symbol" in renamed.attrs:
                renamed = renamed.replace(attrs={**renamed.attrs, "global_symbol": names[each]})
            functions[names[each]] = renamed
        entries[name] = {k: v for k, v in module.attrs.items() if k in _OF_ENTRIES}
        others = {k: v for k, v in module.attrs.items() if k not in _OF_ENTRIES}
        attrs = {**others, **attrs}
    if state := united_state(modules.values()):
        attrs[STATE] = state
    united: dict[str, tuple[str, ...]] = {}
    for module in modules.values():
        for operator in fallbacks(module):
            united[operator.name] = united.get(operator.name, ()) + operator.places
    if united:
        attrs[FALLBACKS] = united
    return ir.IRModule(functions, {**attrs, ENTRIES: entries})


def _new_name(
    name: str, entry: str, functions: Mapping[str, ir.Node], modules: Mapping[str, ir.IRModule]
) -> str:
    """The name of a function in the joined module."""
    if name == "main":
        return entry
    base = name if name not in functions and name not in modules else f"{entry}_{name}"
    result, number = base, 1
    while result in functions or result in modules:
        result, number = f"{base}_{number}", number + 1
    return result


class _Rename(ir.Mutator):
    """Refer to functions by other names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self.names = names

    def rewrite_Constant(self, node: ir.Constant) -> ir.Constant:
        return node

    def rewrite_GlobalVar(self, node: ir.GlobalVar) -> ir.GlobalVar:
        return node.replace(name=self.names.get(node.name, node.name))

    def rewrite_Call(self, node: ir.Call) -> ir.Call:
        first = node.args[0] if node.args else None
        if node.op != "call_global" or not isinstance(first, ir.StringImm):
            return self.descend(node)
        name = self.names.get(str(first.value), str(first.value))
        rest = tuple(self(arg) for arg in node.args[1:])
        return node.replace(args=(ir.StringImm(name), *rest))
