"""Entries of a library that holds its functions for several targets.

An initializer asks the processor once, when the library is loaded, and each entry jumps to the code
that was chosen. A library whose code no processor like this one runs still loads; its functions
raise BW803.

The entry `f` of a library for the targets `a` and `b` jumps to `f:a` or `f:b`, which are exported
too.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import Routine
from blockwright.codegen.llvm.structs import Global
from blockwright.codegen.llvm.values import Value
from blockwright.codegen.rt.cpuid import processor
from blockwright.runtime.artefact import suffix_of
from blockwright.target import Target

_PACKED = ("ptr", "ptr", "i32", "ptr")
"""Parameters of a packed function: self, arguments, their number, result."""


def choose_target_ir(entries: Sequence[str], targets: Sequence[Target], common: Target) -> str:
    """The entries as one LLVM module.

    Arguments: `entries` are exported symbols, which each target defines with its suffix; `targets`
    come in the order of preference; `common` is a target whose code runs wherever one of them does.
    """
    module = ModuleEmitter(common)
    none = _refusal(targets)
    slots = {entry: _slot(module, entry, none) for entry in entries}
    for entry, slot in slots.items():
        _jump(entry, slot).define(module)
    module.initializer(_chooser(slots, targets).address(module))
    return module.render()


def _slot(module: ModuleEmitter, entry: str, none: Routine) -> Global:
    """The variable with the address of an entry's code."""
    return Global(f"bw.chosen.{entry}", "ptr", initial=none.address(module).text)


def _jump(entry: str, slot: Global) -> Routine:
    def body(e: FunctionEmitter, self: Value, args: Value, n: Value, result: Value) -> Value:
        return e.call_pointer("i32", slot.load(e), self, args, n, result)

    return Routine(entry, "i32", _PACKED, body, "", "")


def _refusal(targets: Sequence[Target]) -> Routine:
    """The function that stands for all functions where no code runs."""
    names = ", ".join(target.name for target in targets)
    text = f"BW803: this processor lacks features that each of the targets needs: {names}"
    remedy = "compile the model again with a more common target such as x86-64-v2"

    def body(e: FunctionEmitter, self: Value, args: Value, n: Value, result: Value) -> Value:
        strings = (e.module.string(t) for t in ("RuntimeError", f"{text}\nhelp: {remedy}"))
        return e.call("i32", "bw_raise", *strings)

    return Routine("bw.chosen.none", "i32", _PACKED, body, "internal", "cold")


def _chooser(slots: dict[str, Global], targets: Sequence[Target]) -> Routine:
    """The initializer: takes the first target whose features the processor has."""

    def body(e: FunctionEmitter) -> None:
        asked = {feature for target in targets for feature in target.feature_set}
        answers = processor(e, asked)
        for target in targets:
            with e.guarded(answers.has(target.feature_set)):
                for entry, slot in slots.items():
                    slot.store(e, _code(e.module, entry + suffix_of(target.name)))
                e.ret()

    return Routine("bw.chosen.init", "void", (), body, "internal", "")


def _code(module: ModuleEmitter, symbol: str) -> Value:
    """The address of a function in another object."""
    name = f'@"{symbol}"'
    module.add_global_once(name, f"declare hidden i32 {name}({', '.join(_PACKED)})")
    return Value("ptr", name)
