"""`blockwright show`: print a stage of a compilation, or the metadata of a compiled model."""

from __future__ import annotations

import msgspec

from blockwright.cli.session import output, print_code, size
from blockwright.runtime.artefact import ExportedFunction, Metadata, Parameter, read_metadata
from blockwright.runtime.memory_plan import MemoryPlan
from blockwright.support import OptionError
from blockwright.support.suggest import choices

STAGES = (
    *("graph", "layout", "programs", "schedule", "packed", "host", "lowered", "llvm", "asm"),
    "passes",
)
_LEXERS = {"llvm": "llvm", "asm": "gas", "passes": "text"}


def show_model(text: str, stage: str | None, kernel: str | None, target: str) -> None:
    """Print a stage of a model, or the metadata of a compiled model.

    Raises: OptionError: BW904 unknown stage, BW916 a stage of a compiled model; the errors of
    loading and compiling.
    """
    if text.endswith((".bwx", ".so")):
        if stage is not None or kernel is not None:
            raise OptionError(
                f"{text} is compiled: it contains machine code but no compilation stages",
                code="BW916",
                help="give the source model, as for compile; without --stage and "
                "--kernel, show prints the signature, target and memory plan",
            )
        describe(read_metadata(text))
        return
    chosen = stage or "schedule"
    print_code(_stage_text(text, chosen, kernel, target), _LEXERS.get(chosen, "python"))


def _stage_text(text: str, stage: str, kernel: str | None, target: str) -> str:
    import blockwright as bw
    from blockwright.api.importing import import_model
    from blockwright.cli.models import load_model

    machine = bw.Target(target)
    known = (*STAGES, *bw.default_pipeline(machine).names)
    if stage not in known:
        raise OptionError(f"no stage {stage!r}", code="BW904", help=choices(stage, known))
    model = load_model(text)
    if stage == "graph":  # available even if the model cannot be compiled
        module = import_model(model)
        return module.script() if kernel is None else module[kernel].script()
    return bw.compile(model, target=machine).show(stage, kernel)


def describe(metadata: Metadata) -> None:
    """Print signature, target and memory plan of a compiled model."""
    console = output()
    main = next(f for f in metadata.functions if f.name == metadata.main)
    lines = [
        f"compiled by blockwright {metadata.version}",
        "",
        "signature",
        *_signature(main),
        "",
        "target",
        f"  triple    {metadata.triple}",
    ]
    for each in [metadata.of(code) for code in metadata.targets] or [metadata]:
        lines += [f"  name      {each.target}"] if each.target else []
        lines += [
            f"  processor {each.cpu or 'any'}",
            f"  features  {' '.join(each.features) or 'none'}",
        ]
    plan: object = main.memory or metadata.extra.get("memory_plan")
    if plan:
        known = msgspec.convert(plan, MemoryPlan)
        bound = "" if known.upper_bound is None else f", at most {size(known.upper_bound)}"
        lines += [
            "",
            "memory plan",
            f"  weights   {size(known.packed_weight_bytes)}",
            f"  peak      {known.peak} bytes per call{bound}",
            f"  arena     {known.arena} bytes of it",
            f"  unshared  {known.unshared} bytes without sharing",
        ]
        for value in known.values:
            where = f"in {value.inside}" if value.inside else "in the arena"
            place = "a result" if value.result else f"{value.offset} {where}"
            steps = f"{value.first} to {value.last}"
            lines.append(f"  {value.name}: {value.size} bytes, {place}, steps {steps}")
    console.print("\n".join(lines), markup=False)


def _signature(function: ExportedFunction) -> list[str]:
    lines = [f"  {function.name}("]
    lines += [f"    {p.name}: {_tensor(p)}," for p in function.parameters]
    lines.append("  ) -> " + ", ".join(_tensor(r) for r in function.results))
    if function.state:
        listed = ", ".join(f"{p.state}: {_tensor(p)}" for p in function.state)
        lines.append(f"  state {listed}")
    for name, (low, high) in function.dims.items():
        lines.append(f"  {name}: from {low}" + ("" if high is None else f" to {high}"))
    return lines


def _tensor(parameter: Parameter) -> str:
    stored = f" stored as axes {parameter.order}" if parameter.order else ""
    return f"{parameter.dtype}[{', '.join(map(str, parameter.shape))}]{stored}"
