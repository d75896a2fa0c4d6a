"""Libraries with code for several targets: chosen where they are loaded, at no cost for calls."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright.codegen.link.link import LinkOptions, link
from blockwright.codegen.llvm.binding import compile_object
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import Routine
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.codegen.rt.cpuid import processor, state_of
from blockwright.runtime import artefact, cpu
from blockwright.runtime.artefact import Metadata, read_metadata
from blockwright.runtime.cpu_features import FEATURES, from_flags
from blockwright.runtime.library import load_image
from blockwright.support import ArtefactError, BlockwrightError, BuildError
from blockwright.target.host import host_arch

pytestmark = pytest.mark.skipif(host_arch() != "x86_64", reason="levels of x86-64")

LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
HERE = [level for level in LEVELS if bw.Target(level).is_host]
MISSING = [
    f"x86-64-v3+{row.name}"
    for row in FEATURES["x86_64"]
    if row.name not in from_flags("x86_64", cpu.kernel_flags()) and row.name[:3] == "avx"
]

TABLE = np.random.default_rng(0).random((512, 256), np.float32)
MODEL = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 256), "float32"),
             at: R.Tensor(("n",), "int64")):
        rows = R.take(R.const(table, "float32"), at, axis=0)
        return R.add(R.matmul(x, w), rows)
"""
ADD = """
@T.prim_func
def add(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.block("B"):
            v = T.axis.spatial(64, i)
            B[v] = A[v] + T.float32(1)
"""


def model() -> Any:
    return bw.from_source(MODEL, env={"table": TABLE})


def arguments(rows: int = 5) -> tuple[Any, ...]:
    random = np.random.default_rng(1)
    x = random.random((rows, 64), np.float32)
    return x, random.random((64, 256), np.float32), random.integers(0, 512, rows)


def expected(x: Any, w: Any, at: Any) -> Any:
    return x @ w + TABLE[at]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "model.so"
    compiled = bw.compile(model(), target=LEVELS)
    assert compiled.target == HERE[-1]
    np.testing.assert_allclose(compiled(*arguments()), expected(*arguments()), rtol=1e-5)
    compiled.save(path)
    return path


def test_the_best_target_is_chosen_or_the_named_one(saved: Path) -> None:
    loaded = bw.load(saved)
    assert loaded.target == HERE[-1]
    assert set(loaded.metadata.features) == bw.Target(HERE[-1]).feature_set
    for level in HERE:
        forced = bw.load(saved, target=level)
        assert forced.target == level
        np.testing.assert_allclose(forced(*arguments()), expected(*arguments()), rtol=1e-5)
        peak = forced.memory_plan.activation_bytes(*arguments())
        assert 0 < forced.measure_memory(*arguments()) <= 2 * peak


def test_the_library_itself_chooses_the_same(saved: Path) -> None:
    import tvm_ffi

    module = tvm_ffi.load_module(str(saved))
    given = [tvm_ffi.from_dlpack(a) for a in arguments()]
    results = {
        name: np.from_dlpack(module.get_function(name)(*given))
        for name in ("main", *(f"main:{level}" for level in HERE))
    }
    chosen = results[f"main:{HERE[-1]}"]
    np.testing.assert_array_equal(results["main"], chosen)
    np.testing.assert_allclose(chosen, expected(*arguments()), rtol=1e-5)


def test_equal_weights_are_stored_once(saved: Path, tmp_path: Path) -> None:
    one = bw.compile(model(), target=LEVELS[0]).save(tmp_path / "one.bwx")
    assert TABLE.nbytes < one < saved.stat().st_size < 1.5 * TABLE.nbytes + one - TABLE.nbytes


def test_a_target_that_the_artefact_does_not_have(saved: Path) -> None:
    with pytest.raises(ArtefactError, match="x86-64-v2") as caught:
        bw.load(saved, target="native")
    assert caught.value.code == "BW846"


def test_processors_that_support_none(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = cpu.kernel_flags() - {"avx2"}
    monkeypatch.setattr(cpu, "kernel_flags", lambda: flags)
    assert bw.load(saved).target == "x86-64-v2"
    with pytest.raises(ArtefactError, match="lacks: avx2") as caught:
        bw.load(saved, target="x86-64-v3")
    assert caught.value.code == "BW803"
    monkeypatch.setattr(cpu, "kernel_flags", lambda: flags - {"ssse3"})
    for use in (bw.load, read_metadata):
        with pytest.raises(ArtefactError, match="lacks: ssse3") as caught:
            use(saved)
        assert caught.value.code == "BW803"


def test_tiles_are_requested_where_the_code_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(artefact, "missing_features", lambda features: [])
    monkeypatch.setattr(artefact, "request_tiles", lambda: asked.append("tiles"))
    targets = ["x86-64-v3+amx-tile", "x86-64-v2"]
    bw.compile(model(), target=targets).save(tmp_path / "model.bwx")
    for target in targets:
        bw.load(tmp_path / "model.bwx", target=target)
    assert asked == ["tiles"]


@pytest.mark.skipif(not MISSING, reason="the processor has all features")
def test_code_for_other_processors() -> None:
    program = bw.from_source(ADD)
    module = bw.build(program, [MISSING[0], "x86-64-v2"])
    assert module.target.name == "x86-64-v2"
    foreign = bw.build(
        program, MISSING[:2] if len(MISSING) > 1 else [MISSING[0], MISSING[0] + "+sha"]
    )
    with pytest.raises(BuildError, match="which lacks avx") as caught:
        foreign["add"]
    assert caught.value.code == "BW604"
    library = load_image(foreign.library_bytes)
    with pytest.raises(RuntimeError, match=f"BW803: .* targets needs: .*{MISSING[0][10:]}"):
        library.function("add")()


@pytest.mark.skipif(not MISSING, reason="the processor has all features")
def test_weights_of_other_processors_are_packed_here() -> None:
    weights = np.random.default_rng(2).random((256, 64), np.float32)
    source = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((96, 256), "float32")):
        return R.matmul(x, R.const(weights, "float32"))
"""
    stages: list[int] = []

    def observe(name: str, _: Any, after: Any) -> None:
        if name == "lower_host":
            stages.append(len(after.functions))

    bw.compile(
        bw.from_source(source, env={"weights": weights}),
        target=[MISSING[0], "x86-64-v3"],
        options={"instruments": [observe]},
    )
    assert stages[0] == stages[1]


def test_programs_for_several_targets() -> None:
    module = bw.build(bw.from_source(ADD), LEVELS)
    assert module.target.name == HERE[-1]
    library = load_image(module.library_bytes)
    for run in (module["add"], library.function("add"), library.function("add:x86-64-v2")):
        a, b = np.ones(64, np.float32), np.zeros(64, np.float32)
        run(a, b)
        np.testing.assert_array_equal(b, 2)


@pytest.mark.parametrize("targets", [
    ["x86-64-v3", "aarch64"],
    ["x86-64-v3", bw.Target("x86-64-v3", num_threads=1)],
])  # fmt: skip
def test_targets_that_cannot_share_a_library(targets: list[Any]) -> None:
    for use in (bw.build, bw.compile):
        with pytest.raises(ArtefactError, match="cannot share a library") as caught:
            use(bw.from_source(ADD), target=targets)
        assert caught.value.code == "BW845"


def test_no_target() -> None:
    with pytest.raises(BlockwrightError) as caught:
        bw.compile(model(), target=[])
    assert caught.value.code == "BW650"


def test_one_target_in_a_list_is_that_target() -> None:
    module = bw.build(bw.from_source(ADD), ["x86-64-v2", "x86-64-v2"])
    assert module.library_bytes == bw.build(bw.from_source(ADD), "x86-64-v2").library_bytes


def test_earlier_artefacts_have_no_name_of_a_target() -> None:
    earlier = msgspec.json.decode(
        b'{"version": "0.1.0", "triple": "x86_64-linux", "cpu": "x86-64-v3"}', type=Metadata
    )
    assert earlier.target_name == "x86-64-v3"


def test_the_processor_answers_as_the_kernel_does(tmp_path: Path) -> None:
    """Each row's CPUID bit agrees with the flags that Linux lists."""
    rows = [row for row in FEATURES["x86_64"] if not row.name.startswith("amx")]
    module = ModuleEmitter(bw.Target("x86-64"))

    def has(e: FunctionEmitter, position: Value) -> Value:
        asked = processor(e, [row.name for row in rows])
        for number, row in enumerate(rows):
            with e.guarded(e.compare("eq", position, number)):
                e.ret(e.convert("zext", asked.has([row.name]), "i32"))
        return int_const(0, "i32")

    Routine("has", "i32", ("i32",), has, "", "").define(module)
    target = bw.Target("x86-64")
    code = compile_object(module.render(), target.triple, target.cpu, "", "host", "a test")
    path = tmp_path / "has.so"
    path.write_bytes(link([("has", code)], LinkOptions(exports=["has"])).tobytes())
    function = ctypes.CDLL(str(path)).has
    answered = {row.name for number, row in enumerate(rows) if function(number)}
    listed = {row.name for row in rows} & from_flags("x86_64", cpu.kernel_flags())
    assert listed <= answered
    # Kernels leave out what a processor has but does not do right.
    assert answered - listed <= {"rdrnd", "rdseed", "xsaves", "clwb", "serialize"}


def test_state_that_features_need() -> None:
    """A bit of CPUID alone does not say that the registers are saved."""
    states = {row.name: state_of([row.name]) for row in FEATURES["x86_64"]}
    assert {n for n, s in states.items() if s == 0xE6} == {n for n in states if n[:6] == "avx512"}
    assert states["avx2"] == states["fma"] == states["vaes"] == 0x6
    assert states["sse4.2"] == states["bmi2"] == 0
