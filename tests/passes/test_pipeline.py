"""Pipelines as values: printed, edited, stopped, instrumented; what each pass did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes import PassContext, register_pipeline
from blockwright.passes.check_passes import CheckPasses
from blockwright.passes.defaults import _registered

# The stages of Relax, in their order.
STAGES = (
    "PartialLibraryLowering",
    "LowerOperatorToTensorProgram",
    "CrossLevelDynShapeAwareOperatorFusion",
    "TensorProgramOptim",
    "CrossLevelTensorProgramWorkspaceLift",
    "DynShapeAwareMemoryPlanning",
    "CUDAGraphOffloading",
    "BuildRunnableModule",
)

X = np.arange(8, dtype="float32").reshape(2, 4) / 8


@bw.graph_pass
def same_module(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Change nothing.

    The details are not printed.
    """
    return module


@bw.function_pass
def first_result(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Return the first value that a function computes."""
    first = function.bindings[0].var
    return function.replace(body=function.body.replace(body=first), ret_info=first.info)


@bw.program_pass
def named_programs(program: ir.PrimFunc, ctx: PassContext) -> ir.PrimFunc:
    return program.replace(attrs={**program.attrs, "note": program.name})


@pytest.fixture
def module() -> ir.IRModule:
    function = bw.from_source("""
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    a = R.exp(x)
    b = R.exp(x)
    return R.add(a, b)
""")
    return bw.import_model(function)


PIPELINE = bw.default_pipeline()


class TestValue:
    def test_the_stages_are_those_of_relax(self) -> None:
        assert tuple(name for name, _ in PIPELINE.stages) == STAGES

    def test_it_prints_stages_passes_and_their_first_lines(self) -> None:
        lines = str(PIPELINE.after("legalize", same_module)).splitlines()
        assert [line for line in lines if not line.startswith(" ")] == list(STAGES)
        empty = lines.index("CUDAGraphOffloading")
        assert lines[empty + 1] == "    nothing to do"
        (line,) = [line for line in lines if "same_module" in line]
        assert line.split(maxsplit=1) == ["same_module", "Change nothing."]

    def test_edits_make_new_pipelines(self) -> None:
        before = PIPELINE.names
        edited = PIPELINE.before("fuse_ops", same_module).after("fuse_ops", ("again", same_module))
        at = edited.names.index("fuse_ops")
        assert edited.names[at - 1 : at + 2] == ("same_module", "fuse_ops", "again")
        assert PIPELINE.names == before
        assert edited.without("again", "same_module") == PIPELINE
        other = PIPELINE.replace("legalize", same_module)
        assert other.names.index("same_module") == before.index("legalize")
        assert "legalize" not in other.names

    def test_a_stage_stands_for_its_passes(self) -> None:
        filled = PIPELINE.after("CUDAGraphOffloading", same_module)
        assert filled.names[-2:] == ("same_module", "lower_host")
        fusion = "CrossLevelDynShapeAwareOperatorFusion"
        around = PIPELINE.before(fusion, same_module).after(fusion, ("last", same_module))
        passes = dict(around.stages)[fusion]
        assert (passes[0].name, passes[-1].name) == ("same_module", "last")
        assert dict(PIPELINE.without(fusion).stages)[fusion] == ()
        assert PIPELINE.only(fusion).names == tuple(n for n, _ in dict(PIPELINE.stages)[fusion])

    def test_it_ends_after_a_pass_or_a_stage(self) -> None:
        assert PIPELINE.until("legalize").names[-1] == "legalize"
        assert PIPELINE.until("LowerOperatorToTensorProgram").names[-1] == "fold_constants"
        assert PIPELINE.until("CUDAGraphOffloading").names == PIPELINE.names[:-1]
        assert PIPELINE.until("BuildRunnableModule") == PIPELINE

    @pytest.mark.parametrize(
        "edit",
        [
            lambda name: PIPELINE.before(name, same_module),
            lambda name: PIPELINE.after(name, same_module),
            lambda name: PIPELINE.replace(name, same_module),
            PIPELINE.without,
            PIPELINE.only,
            PIPELINE.until,
        ],
        ids=["before", "after", "replace", "without", "only", "until"],
    )
    def test_an_unknown_name(self, edit: Callable[[str], Any]) -> None:
        with pytest.raises(bw.OptionError, match="no pass or stage 'fuse_op'") as caught:
            edit("fuse_op")
        assert caught.value.code == "BW930"
        assert "did you mean 'fuse_ops'?" in str(caught.value.help)

    @pytest.mark.parametrize(
        "wrong", [5, "exp", ("name", 5), None, lambda m, c: m], ids=lambda w: str(w)[:9]
    )
    def test_not_a_new_pass(self, wrong: Any) -> None:
        """No pass, or one whose name is taken."""
        passes = (wrong, wrong) if callable(wrong) else (wrong,)
        with pytest.raises(bw.OptionError) as caught:
            PIPELINE.after("legalize", *passes)
        assert caught.value.code == "BW931"
        assert caught.value.help


class TestDefaults:
    def test_a_target_without_a_pipeline(self, module: ir.IRModule) -> None:
        for call in (bw.default_pipeline, lambda target: bw.compile(module, target=target)):
            with pytest.raises(bw.BuildError, match="no pipeline for the target cuda") as caught:
                call("cuda-sm_80")
            assert caught.value.code == "BW602"

    def test_targets_and_kinds_have_pipelines_of_their_own(
        self, module: ir.IRModule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("cuda", "x86-64-v3"):
            monkeypatch.delitem(_registered, name, raising=False)  # restores the table afterwards
        register_pipeline("cuda", PIPELINE.until("normalize"))
        register_pipeline("x86-64-v3", PIPELINE.replace("fuse_ops", same_module))
        assert bw.default_pipeline("cuda-sm_80").names[-1] == "normalize"
        normal = bw.default_pipeline("cuda-sm_80")(module, "cuda-sm_80")
        assert all(binding.var.info is not None for binding in normal["main"].bindings)
        assert "fuse_ops" not in bw.default_pipeline("x86-64-v3").names
        assert "fuse_ops" in bw.default_pipeline("x86-64-v2").names
        for name in ("cuda", "x86-64-v3"):
            del _registered[name]


class TestRuns:
    def test_the_module_after_any_pass(self, module: ir.IRModule) -> None:
        merged = PIPELINE.until("eliminate_common")(module)
        assert len(merged["main"].bindings) == 2
        lowered = PIPELINE.until("legalize")(module, "x86-64-v3")
        assert set(lowered.functions) == {"main", "exp", "add"}

    def test_passes_of_ones_own(self, module: ir.IRModule) -> None:
        pipeline = PIPELINE.after("normalize", first_result).after("legalize", named_programs)
        assert pipeline.until("named_programs")(module)["exp"].attrs["note"] == "exp"
        exe = bw.compile(module, options={"pipeline": pipeline})
        np.testing.assert_allclose(exe(X), np.exp(X), rtol=1e-6)
        assert "R.add" not in exe.show("eliminate_dead")

    def test_former_stages(self, module: ir.IRModule) -> None:
        """The option `stages` lists pairs of a name and pairs of name and function."""
        stages = [(name, [*passes]) for name, passes in PIPELINE.without("fuse_ops").stages]
        exe = bw.compile(module, options={"stages": stages})
        np.testing.assert_allclose(exe(X), 2 * np.exp(X), rtol=1e-6)
        assert "fuse_ops" not in exe.stages

    def test_only_whole_pipelines_compile(self, module: ir.IRModule) -> None:
        with pytest.raises(bw.OptionError, match="still a graph function") as caught:
            bw.compile(module, options={"pipeline": PIPELINE.until("legalize")})
        assert caught.value.code == "BW928"
        assert "until" in str(caught.value.help)

    @pytest.mark.parametrize(
        ("decorated", "place"),
        [(bw.graph_pass, "returned"), (bw.function_pass, "for main"), (bw.program_pass, "for exp")],
    )
    def test_a_pass_without_a_result(self, decorated: Any, place: str, module: ir.IRModule) -> None:
        @decorated
        def forgot(node: ir.Node, ctx: PassContext) -> None:
            """Return nothing."""

        with pytest.raises(bw.BuildError, match="the pass forgot returned NoneType") as caught:
            PIPELINE.after("legalize", forgot).until("forgot")(module)
        assert caught.value.code == "BW646"
        assert place in caught.value.message

    def test_only_modules_run(self) -> None:
        wrong: Any = "model.pt2"
        with pytest.raises(bw.OptionError) as caught:
            PIPELINE(wrong)
        assert caught.value.code == "BW902"
        assert "import_model" in str(caught.value.help)


class TestInstruments:
    def test_they_see_every_pass_before_and_after(self, module: ir.IRModule) -> None:
        seen: list[tuple[str, str, ir.IRModule]] = []

        class Watch(bw.Instrument):
            def before(self, name: str, module: ir.IRModule) -> None:
                seen.append(("before", name, module))

            def after(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
                assert seen[-1] == ("before", name, before)
                seen.append(("after", name, after))

        after: list[str] = []
        ctx = PassContext(bw.Target("native"), {}, [Watch(), lambda name, *_: after.append(name)])
        result = PIPELINE(module, ctx)
        assert [name for when, name, _ in seen if when == "after"] == list(PIPELINE.names) == after
        assert seen[0][2] is module
        assert seen[-1][2] is result

    def test_they_skip_passes(self, module: ir.IRModule) -> None:
        class Unfused(bw.Instrument):
            def should_run(self, name: str, module: ir.IRModule) -> bool:
                return name != "fuse_ops"

        exe = bw.compile(module, options={"instruments": [Unfused()]})
        assert exe.stages["fuse_ops"] is exe.stages["duplicate_data_movement"]
        (row,) = [row for row in exe.passes.rows if row.name == "fuse_ops"]
        assert row.skipped
        assert "skipped" in str(exe.passes)
        np.testing.assert_allclose(exe(X), 2 * np.exp(X), rtol=1e-6)

    def test_invalid_modules_are_found_after_the_pass(self, module: ir.IRModule) -> None:
        @bw.function_pass
        def unbound(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
            """Drop all bindings."""
            return function.replace(body=function.body.replace(blocks=()))

        @bw.program_pass
        def unwritten(program: ir.PrimFunc, ctx: PassContext) -> ir.PrimFunc:
            """Drop the last parameter."""
            return program.replace(params=program.params[:-1])

        for wrong, place in ((unbound, "normalize"), (unwritten, "legalize")):
            pipeline = PIPELINE.after(place, wrong).until(wrong.__name__)
            context = PassContext(bw.Target("native"))
            context.instruments[:] = [CheckPasses()]
            with pytest.raises(bw.BuildError, match=f"{wrong.__name__} left an invalid") as caught:
                pipeline(module, context)
            assert caught.value.code == "BW647"
            assert wrong.__name__ in str(caught.value.help)


class TestReport:
    def test_it_tells_what_each_pass_did(self, module: ir.IRModule) -> None:
        exe = bw.compile(module)
        rows = {row.name: row for row in exe.passes.rows}
        assert tuple(rows) == PIPELINE.names
        assert rows["eliminate_common"].before.bindings == 3
        assert rows["eliminate_common"].after.bindings == 2
        assert rows["eliminate_common"].changed == ("main",)
        assert rows["legalize"].added == ("exp", "add")
        assert rows["fuse_tir"].removed == ("exp", "add")
        assert rows["lower_host"].after.bindings == 0
        assert rows["hoist_slices"].effect == "no change"
        assert rows["legalize"].after.nodes > rows["legalize"].before.nodes
        assert rows["legalize"].seconds == exe.context.timings["legalize"]

    def test_it_prints_a_table(self, module: ir.IRModule) -> None:
        lines = str(bw.compile(module).passes).splitlines()
        heads = [line for line in lines if line[0].isalpha()]
        assert heads == [name for name in STAGES if dict(PIPELINE.stages)[name]]
        (line,) = [line for line in lines if line.startswith("  eliminate_common ")]
        assert "3 → 2" in line
        assert line.endswith("~main")
        assert lines[0].split() == ["ms", "functions", "bindings", "nodes", "changes"]

    def test_every_pass_is_shown(self, module: ir.IRModule) -> None:
        exe = bw.compile(module)
        assert exe.show("passes") == str(exe.passes)
        for name in PIPELINE.names:
            assert exe.stages[name].script() in exe.show(name)
        assert exe.show("legalize", "exp") == repr(exe.stages["legalize"]["exp"])
        with pytest.raises(bw.OptionError, match="'legalise'") as caught:
            exe.show("legalise")
        assert "did you mean 'legalize'?" in str(caught.value.help)

    def test_a_stage_whose_pass_is_missing(self, module: ir.IRModule) -> None:
        exe = bw.compile(module, options={"pipeline": PIPELINE.without("fuse_ops", "fuse_tir")})
        assert "schedule_strategy" in exe.show("packed")
        with pytest.raises(bw.OptionError, match="no pass fuse_tir") as caught:
            exe.show("programs")
        assert caught.value.code == "BW904"
