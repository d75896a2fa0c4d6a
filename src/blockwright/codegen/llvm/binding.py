"""The only module that uses llvmlite, which it imports lazily.

Programs arrive tiled, unrolled and vectorized, so the standard pipeline runs without its loop
vectorizer and unroller ("host"). That costs little for functions of usual size and helps loops
without a schedule: invariant loads are hoisted and sums stay in registers. Very large functions use
a short list of passes instead ("kernel").
"""

from __future__ import annotations

import functools
from typing import Any, Literal

from blockwright.codegen.llvm.masked_stores import may_narrow, with_scalar_stores
from blockwright.support import BuildError
from blockwright.target import Target, host_cpu_name

EMITTER_VERSION = 2
"""Incremented whenever the same program produces different code; part of the cache key."""

Pipeline = Literal["kernel", "host"]


@functools.cache
def _binding() -> Any:
    import llvmlite.binding as binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # inline assembly that is not empty
    return binding


def llvm_version() -> str:
    """Version of LLVM and of llvmlite."""
    import llvmlite

    return f"{'.'.join(map(str, _binding().llvm_version_info))}/{llvmlite.__version__}"


def cpu_name(target: Target) -> str:
    """The processor name in LLVM's notation."""
    return host_cpu_name() if target.cpu == "native" else target.cpu


@functools.lru_cache(maxsize=16)
def machine(triple: str, cpu: str, features: str) -> Any:
    """An optimizing target machine for position-independent code."""
    binding = _binding()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small"
    )


def parse(text: str, what: str) -> Any:
    """Parse and verify LLVM text."""
    try:
        module = _binding().parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise BuildError(
            f"the code generated for {what} is not valid: {str(error).strip()}",
            code="BW640",
            help="this is a defect; please report the program",
        ) from error
    return module


def optimise(module: Any, target_machine: Any, pipeline: Pipeline) -> None:
    """Run the optimization pipeline in place."""
    binding = _binding()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = binding.create_pass_builder(target_machine, options)
    if pipeline == "host":
        manager = builder.getModulePassManager()
    else:
        manager = binding.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.add_simplify_cfg_pass()
        manager.add_instruction_combine_pass()
        manager.add_new_gvn_pass()
        manager.add_dead_store_elimination_pass()
        manager.add_instruction_combine_pass()
        manager.add_simplify_cfg_pass()
    manager.run(module, builder)


def compile_object(
    text: str, triple: str, cpu: str, features: str, pipeline: Pipeline, what: str
) -> bytes:
    """Compile LLVM text to a relocatable object."""
    module, target_machine = _optimised(text, triple, cpu, features, pipeline, what)
    return bytes(target_machine.emit_object(module))


def compile_assembly(
    text: str, triple: str, cpu: str, features: str, pipeline: Pipeline, what: str
) -> str:
    """Compile LLVM text to assembly for display."""
    module, target_machine = _optimised(text, triple, cpu, features, pipeline, what)
    return str(target_machine.emit_assembly(module))


def _optimised(
    text: str, triple: str, cpu: str, features: str, pipeline: Pipeline, what: str
) -> tuple[Any, Any]:
    target_machine = machine(triple, cpu, features)
    module = parse(text, what)
    optimise(module, target_machine, pipeline)
    if may_narrow(text):
        before = str(module)
        after = with_scalar_stores(before)
        module = module if after == before else parse(after, what)
    return module, target_machine
