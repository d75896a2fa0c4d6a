"""The result of a compilation: an executable that remembers how it came to be."""

from __future__ import annotations

import os
from typing import Any

from blockwright import __version__, ir
from blockwright.build import Module
from blockwright.passes import PassContext
from blockwright.passes.plan_memory import MemoryPlan
from blockwright.passes.size_text import size_text
from blockwright.runtime.artefact import Metadata, Parameter, Signature
from blockwright.runtime.executable import Executable
from blockwright.support import OptionError

# What `show` calls a stage → the pass after which the module is shown.
SHOWN = {
    "graph": "graph",
    "programs": "fuse_tir",
    "schedule": "schedule_programs",
    "packed": "fold_packing",
    "host": "lower_host",
}


class CompiledModel(Executable):
    """A compiled model.

    Attributes:
        context: notes, schedule traces and timings of the compilation.
        stages: pass name → module after it ("graph" is the imported model).
        library: the built module (`source`, object names).
    """

    def __init__(
        self,
        imported: ir.IRModule,
        lowered: ir.IRModule,
        library: Module,
        context: PassContext,
        stages: dict[str, ir.IRModule],
    ) -> None:
        self.library = library
        self.context = context
        self.stages = stages
        super().__init__(library.entry("main"), describe(imported, lowered, context))

    def show(self, stage: str = "schedule", kernel: str | None = None) -> str:
        """Text of a stage: graph, programs, schedule, packed, host, lowered, llvm or asm.

        "schedule" gives, per kernel, the rule, its trace as Python and the scheduled program.
        """
        if stage in ("llvm", "asm", "lowered"):
            return self.library.source(stage, kernel)
        if stage not in SHOWN:
            known = ", ".join([*SHOWN, "lowered", "llvm", "asm"])
            raise OptionError(f"no stage {stage!r}", code="BW904", help=f"stages: {known}")
        module = self.stages[SHOWN[stage]]
        if stage == "schedule":
            return self._show_schedules(module, kernel)
        return module.script() if kernel is None else repr(module[kernel])

    def _show_schedules(self, module: ir.IRModule, kernel: str | None) -> str:
        parts: list[str] = []
        for name, trace in self.context.traces.items():
            if kernel is None or kernel == name:
                func = module[name]
                parts.append(f"# {name}: rule {func.attrs.get('schedule_rule')}")
                parts.append(trace.as_python())
                parts.append(func.script())
        if not parts:
            known = ", ".join(self.context.traces)
            raise OptionError(f"no kernel {kernel!r}", code="BW905", help=f"kernels: {known}")
        return "\n".join(parts)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the artefact: one shared library with code, weights and description.

        It loads with `bw.load` in a base install, and with `tvm_ffi.load_module` without
        Blockwright when its name ends in `.so`. Returns the size in bytes.
        Raises: ArtefactError (BW805) when the file cannot be written; nothing is left behind.
        """
        return self.library.save(path, self.metadata)


def describe(imported: ir.IRModule, lowered: ir.IRModule, context: PassContext) -> Metadata:
    """The description that an artefact carries."""
    host: ir.PrimFunc = lowered["main"]
    count = int(host.attrs["num_outputs"])
    parameters = [_parameter(b) for b in host.buffers]
    lower, upper = (host.attrs.get(f"tir_var_{end}_bound", {}) for end in ("lower", "upper"))
    symbols = sorted({v.name for b in host.buffers for d in b.shape for v in ir.free_vars(d)})
    signature = Signature(
        "main",
        tuple(parameters[: len(parameters) - count]),
        tuple(parameters[len(parameters) - count :]),
        {s: (int(lower.get(s, 0)), upper.get(s)) for s in symbols},
        outputs_tree=imported.attrs.get("outputs_tree", 0 if count == 1 else None),
    )
    if signature.outputs_tree is None and count > 1:
        signature = Signature(
            signature.name, signature.parameters, signature.results, signature.dims,
            outputs_tree={"tuple": list(range(count))},
        )  # fmt: skip
    plan: MemoryPlan = context.options["memory_plans"]["main"]
    weights = sum(int(a.nbytes) for a in lowered.attrs.get("constants", {}).values())
    extra = {
        "memory_plan": {
            "packed_weight_bytes": weights,
            "arena": size_text(plan.total),
            "unshared": size_text(plan.unshared),
            "storages": [(size_text(s.size), s.holds) for s in plan.storages],
        }
    }
    target = context.target
    features = tuple(sorted(target.feature_set))
    return Metadata(__version__, target.triple, target.cpu, features, (signature,), "main", extra)


def _parameter(buffer: ir.Buffer) -> Parameter:
    shape: tuple[Any, ...] = tuple(size_text(d) for d in buffer.shape)
    return Parameter(buffer.name, "tensor", buffer.dtype.name, shape)
