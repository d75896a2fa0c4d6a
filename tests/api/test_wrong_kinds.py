"""Something of another kind in place of a program is an error that says what to pass."""

from __future__ import annotations

import copy
import errno
import inspect
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

PROGRAM = bw.from_source("""
@T.prim_func
def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            b[vi] = a[vi] * T.float32(2)
""")


@pytest.mark.parametrize(
    "wrong", ["double", None, bw.Schedule(PROGRAM)], ids=["text", "none", "schedule"]
)
@pytest.mark.parametrize(
    ("function", "code"),
    [
        (bw.build, "BW606"),
        (bw.validate, "BW902"),
        (bw.compile, "BW902"),
        (lambda program: bw.interpret(program, np.zeros(8), np.zeros(8)), "BW757"),
    ],
    ids=["build", "validate", "compile", "interpret"],
)
def test_what_is_no_program_is_refused(function: Any, code: str, wrong: Any) -> None:
    with pytest.raises(bw.BlockwrightError) as caught:
        function(wrong)
    assert caught.value.code == code
    assert type(wrong).__name__ in str(caught.value) or "file" in str(caught.value)


class _Indices(ir.Mutator):
    """Puts Python numbers where a load has index expressions."""

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        return node.replace(indices=(0,))


class _Ranks(ir.Mutator):
    """Gives loads one index too many."""

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        return node.replace(indices=(*node.indices, ir.const(0, "int32")))


class _Sizes(ir.Mutator):
    """Puts Python numbers where a tensor has sizes."""

    def rewrite_TensorInfo(self, node: ir.TensorInfo) -> Any:
        return node.replace(shape=(8,))


@pytest.mark.parametrize("graph", [False, True])
def test_malformed_nodes_are_named(graph: bool) -> None:
    """Passes of users, or programs that are built by hand, may make such nodes."""
    function = bw.from_source("""
@R.function
def main(x: R.Tensor((8,), "float32")):
    return R.exp(x)
""")
    wrong: Any = _Sizes()(function) if graph else _Indices()(PROGRAM)
    arrays = [np.zeros(8, "float32") for _ in range(1 if graph else 2)]
    runs: list[Callable[[], Any]] = [
        lambda: bw.validate(wrong),
        lambda: bw.interpret(wrong, *arrays),
    ]
    for run in runs:
        with pytest.raises(bw.ValidationError, match="holds a tuple of int") as caught:
            run()
        assert caught.value.code == "BW259"


def test_a_schedule_takes_programs_only() -> None:
    with pytest.raises(bw.ScheduleError, match="cannot schedule a str"):
        bw.Schedule("double")  # type: ignore[arg-type]


def test_compile_points_from_tensor_programs_to_build() -> None:
    with pytest.raises(bw.OptionError, match=r"bw\.build"):
        bw.compile(PROGRAM)


def test_example_inputs_are_a_sequence() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(bw.OptionError, match=r"bw\.compile\(model, \(x,\)\)"):
        bw.compile(torch.nn.Linear(3, 4), torch.ones(2, 3))


WRONG = [None, 3, 2.5, "nothing", [1], {"a": 1}, object(), (), b"x", len]
NAMES = [
    "alive", "axis", "diff", "explain_compute_at", "get", "get_loops", "replay", "seed", "split",
    "symbol", "take", "tile", "undo", "work_on",
]  # fmt: skip


def _calls(wrong: Any) -> dict[str, Any]:
    """Entry points with something of another kind in one place."""
    return {
        "compile": lambda: bw.compile(wrong),
        "compile, options": lambda: bw.compile(PROGRAM, options=wrong),
        "build": lambda: bw.build(wrong),
        "build, target": lambda: bw.build(PROGRAM, wrong),
        "build, sanitize": lambda: bw.build(PROGRAM, sanitize=wrong),
        "interpret": lambda: bw.interpret(wrong),
        "interpret, arrays": lambda: bw.interpret(PROGRAM, wrong, wrong),
        "verify": lambda: bw.verify(PROGRAM, wrong),
        "validate": lambda: bw.validate(wrong),
        "load": lambda: bw.load(wrong),
        "Target": lambda: bw.Target(wrong),
        "Target, threads": lambda: bw.Target("native", num_threads=wrong),
        "Schedule": lambda: bw.Schedule(wrong),
        "from_source": lambda: bw.from_source(wrong),
    }


FITTING = {  # what is of the right kind after all
    ("compile, options", None), ("build, sanitize", ()), ("Target, threads", None),
    ("Target, threads", 3), ("from_source", "nothing"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_entry_points_refuse_other_kinds_with_a_code(wrong: Any) -> None:
    for name, call in _calls(wrong).items():
        if not any(name == n and wrong is w for n, w in FITTING):
            with pytest.raises(bw.BlockwrightError) as caught:
                call()
            assert caught.value.help or caught.value.diagnostics, name


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", NAMES)
def test_methods_of_schedules_refuse_other_kinds_with_a_code(name: str, wrong: Any) -> None:
    sch = bw.Schedule(PROGRAM)
    method = getattr(sch, name)
    required = [
        p
        for p in inspect.signature(method).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    known = {"block": sch.get_block("b"), "loop": sch.get_loops("b")[0]}
    given = [[wrong] * max(len(required), 1)]
    if len(required) > 1:  # all but the first are wrong
        given.append([known.get(required[0].name, wrong), *[wrong] * (len(required) - 1)])
    before = sch.func
    for arguments in given:
        if name == "seed" and isinstance(wrong, int):
            continue
        with pytest.raises(bw.ScheduleError) as caught:
            method(*arguments)
        assert caught.value.code.startswith("BW3")
    assert sch.func is before


COMPILE: list[tuple[dict[str, Any], str]] = [
    *(({"options": {"disabled_strategies": names}}, "BW928")
      for names in (None, 5, "gemm", [None])),
    *(({"options": {"pipeline": stages}}, "BW931") for stages in
      (None, 5, "x", ["x"], [("x",)], [("x", 5)], [("x", [("y", 3)])], [("x", ()), ("x", ())])),
    *(({"options": {name: stages}}, "BW928") for name in ("pipeline", "stages")
      for stages in ([], [("x", ())])),
    *(({"progress": progress}, "BW928") for progress in (5, "x")),
    *(({"verify": verify}, "BW927") for verify in (None, "x", [True], np.array([1, 2]))),
    *(({"example_inputs": given}, "BW908") for given in (5, "x", b"x", {"x": 1}, None)),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code"), COMPILE, ids=lambda value: str(value)[:40])
def test_compile_refuses_arguments_of_other_kinds(arguments: dict[str, Any], code: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.compile(torch.nn.ReLU(), **{"example_inputs": (torch.ones(2),), **arguments})
    assert caught.value.code == code
    assert caught.value.help


def test_compile_points_from_a_class_to_its_objects() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(bw.OptionError, match=r"cannot compile the class Linear") as caught:
        bw.compile(torch.nn.Linear, (torch.ones(2),))
    assert caught.value.code == "BW902"


@pytest.fixture(scope="module")
def model() -> bw.CompiledModel:
    text = """
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        return R.exp(x)
"""
    return bw.compile(bw.from_source(text))


def test_compiled_code_is_not_pickled(model: bw.CompiledModel) -> None:
    for found in (model, model.library, model.library["main"], model.library.loaded()):
        for act in (pickle.dumps, copy.deepcopy):
            with pytest.raises(bw.BlockwrightError) as caught:
                act(found)
            assert caught.value.code == "BW929"
        assert copy.copy(found) is found


def test_stages_and_kernels_are_names(model: bw.CompiledModel) -> None:
    for arguments, code in (((["schedule"],), "BW904"), (("asm", ["main"]), "BW905")):
        with pytest.raises(bw.OptionError) as caught:
            model.show(*arguments)
        assert caught.value.code == code


@pytest.mark.parametrize("path", ["", "\0", b"a\0b"])
def test_paths_of_artefacts(path: Any, model: bw.CompiledModel) -> None:
    for act in (model.save, bw.load):
        with pytest.raises(bw.BlockwrightError, match=r"the path of an artefact") as caught:
            act(path)
        assert caught.value.code == "BW805"


def test_arguments_by_name() -> None:
    module = bw.build(PROGRAM)
    x, y = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    module["double"](b=y, a=x)
    assert (y == 2 * x).all()
    module(x, b=y)
    for arguments, named in (((x,), {"c": y}), ((x, y), {"b": y}), ((), {"b": y})):
        with pytest.raises(bw.ArgumentError) as caught:
            module["double"](*arguments, **named)
        assert caught.value.code == "BW701"


def test_long_doubles() -> None:
    x = np.zeros(8, "longdouble")
    with pytest.raises(bw.ArgumentError) as caught:
        bw.build(PROGRAM)["double"](x, np.zeros(8, "float32"))
    assert caught.value.code == "BW703"


def test_code_is_loaded_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    x, y = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    bw.build(PROGRAM)["double"](x, y)  # through a file in memory
    assert (y == 2 * x).all()
    monkeypatch.setattr(os, "memfd_create", full)
    with pytest.raises(bw.BlockwrightError, match="No space left") as caught:
        bw.build(PROGRAM)["double"](x, y)
    assert caught.value.code == "BW805"


def test_malformed_programs_are_not_verified() -> None:
    wrong: Any = _Ranks()(PROGRAM)
    for pair in ((PROGRAM, wrong), (wrong, PROGRAM)):
        with pytest.raises(bw.ValidationError) as caught:
            bw.verify(*pair)
        assert caught.value.code == "BW209"
