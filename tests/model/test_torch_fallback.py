"""Operators that no converter covers run in PyTorch, between parts that are compiled."""

# Custom operators are untyped, and so are lambdas that take tensors.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import blockwright as bw
from blockwright.runtime import frameworks
from blockwright.support import ArtefactError

SEEN: list[Any] = []
KEPT: list[Any] = []


@torch.library.custom_op("bw_fallback::scaled", mutates_args=())
def scaled(
    x: torch.Tensor,
    count: int,
    others: Sequence[torch.Tensor],
    shift: torch.Tensor | None = None,
    mode: str = "plus",
) -> tuple[torch.Tensor, torch.Tensor]:
    assert shift is None
    assert mode == "plus"
    return x * count, others[0] + others[1]


@scaled.register_fake
def _(x: Any, count: int, others: Any, shift: Any = None, mode: str = "plus") -> Any:
    return torch.empty_like(x), torch.empty_like(others[0])


@torch.library.custom_op("bw_fallback::note", mutates_args=())
def note(x: torch.Tensor, label: str) -> None:
    SEEN.append((label, float(x.sum())))


@note.register_fake
def _(x: Any, label: str) -> None:
    return None


@torch.library.custom_op("bw_fallback::increase", mutates_args=("x",))
def increase(x: torch.Tensor, by: float) -> None:
    x.add_(by)


@torch.library.custom_op("bw_fallback::odd", mutates_args=())
def odd(x: torch.Tensor, fault: str) -> torch.Tensor:
    SEEN.append((torch.get_num_threads(), torch.is_autocast_enabled("cpu")))
    if fault == "raises":
        raise ValueError("no such\nelement")
    if fault == "keeps":
        KEPT.append(x)
    return {"type": x.double(), "shape": x[:1]}.get(fault, x).clone()


@odd.register_fake
def _(x: Any, fault: str) -> Any:
    return torch.empty_like(x)


@torch.library.custom_op("bw_fallback::positive", mutates_args=())
def positive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The positive elements, a result of known size, and a number."""
    return x[x > 0], x * 2, int((x > 1).sum())


@positive.register_fake
def _(x: Any) -> Any:
    size, number = (torch.library.get_ctx().new_dynamic_size(min=0, max=50) for _ in range(2))
    return x.new_empty(size), torch.empty_like(x), number


@torch.library.custom_op("bw_fallback::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    return torch.bincount(x)


@counted.register_fake
def _(x: Any) -> Any:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=0))


VIEWS = torch.library.Library("bw_fallback_views", "DEF")
VIEWS.define("turned(Tensor(a) x) -> Tensor(a)")
VIEWS.impl("turned", lambda x: x.t(), "CompositeExplicitAutograd")


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


class Spectral(nn.Module):
    """Linear layers around a filter of frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("filter", torch.polar(torch.ones(5), torch.arange(5.0)))

    def forward(self, x: torch.Tensor) -> Any:
        spectrum = torch.fft.rfft(self.first(x)).sin()
        back = torch.fft.irfft(spectrum * self.filter)
        return self.last(back), spectrum.abs(), spectrum.real


def compiled(model: Any, *inputs: Any, names: Sequence[str], shapes: Any = None) -> Any:
    """The compiled model, of which PyTorch computes these operators."""
    model = model if isinstance(model, nn.Module) else Model(model)
    if shapes is not None and isinstance(model, Model):
        shapes = (shapes,)
    with pytest.warns(bw.BlockwrightWarning, match="not covered, and run in") as caught:
        exe = bw.compile(model, inputs, dynamic_shapes=shapes)
    assert len(caught) == 1
    assert [operator.name.rpartition(".")[0] for operator in exe.fallbacks] == list(names)
    return exe


def agree(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(
            torch.as_tensor(ours), theirs.detach(), rtol=tolerance, atol=tolerance
        )


ROWS = {0: torch.export.Dim("n", min=2, max=50)}
SPECTRAL = ["prims.sin"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_frequencies_between_linear_layers(dynamic: bool) -> None:
    """Complex tensors are pairs of real numbers, also if they are weights."""
    model, x = Spectral().eval(), torch.randn(4, 8)
    exe = compiled(model, x, names=SPECTRAL, shapes=(ROWS,) if dynamic else None)
    assert "R.linear(" in exe.show("graph")
    for rows in (4, 7) if dynamic else (4,):
        x = torch.randn(rows, 8)
        agree(exe(x), model(x))
        agree(bw.interpret(exe.stages["graph"], x.numpy()), model(x))
    (first,) = exe.fallbacks
    assert first.uses == 1
    assert f"{Path(__file__).name}:" in first.places[0]
    assert "spectrum = torch.fft.rfft(self.first(x)).sin()" in first.places[0]


def decomposed(x: torch.Tensor) -> Any:
    values = torch.linalg.svd(x, full_matrices=False)[1]
    square = x.T @ x + torch.eye(3)
    return values, torch.linalg.eigh(square)[0], torch.linalg.inv(square)


ALGEBRA = [
    "aten._linalg_check_errors",
    "aten._linalg_eigh",
    "aten._linalg_svd",
    "aten.linalg_inv_ex",
]
ABSENT = """
import sys
sys.path[:0] = [{folder!r}, {source!r}]
import numpy as np
import blockwright as bw
try:
    bw.load({path!r})
except bw.BlockwrightError as error:
    print(error.code, error.message, "torch" in sys.modules)
"""


def test_an_artefact_names_pytorch_and_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 3)
    exe = compiled(decomposed, x, names=ALGEBRA, shapes=(ROWS,))
    path = str(tmp_path / "model.bwx")
    exe.save(path)
    agree(bw.load(path)(x), decomposed(x))
    (needed,) = exe.metadata.extra["libraries"]
    major, minor = metadata.version("torch").split(".")[:2]
    assert (needed["name"], needed["version"], needed["least"]) == (
        "torch",
        major,
        f"{major}.{minor}",
    )
    assert "ops.aten._linalg_eigh.default" in needed["symbols"]
    for version in ("1.13.1", "2.0.0", "3.0.0"):
        monkeypatch.setattr(frameworks.metadata, "version", lambda _, version=version: version)
        with pytest.raises(ArtefactError, match="compiled for 2, from 2") as caught:
            bw.load(path)
        assert caught.value.code == "BW809"


def test_without_pytorch_an_artefact_is_refused(tmp_path: Path) -> None:
    """In a process that has the base install alone."""
    exe = compiled(torch.linalg.eigvalsh, torch.eye(3), names=["aten._linalg_eigh"])
    exe.save(tmp_path / "model.bwx")
    folder = tmp_path / "packages"
    folder.mkdir()
    for package in Path(np.__file__).parents[1].iterdir():
        if not package.name.startswith(("torch", "functorch", "__editable__", "_")):
            (folder / package.name).symlink_to(package)
    source = str(Path(bw.__file__).parents[1])
    script = ABSENT.format(folder=str(folder), source=source, path=str(tmp_path / "model.bwx"))
    run = [sys.executable, "-S", "-c", script]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert found.startswith(
        "BW808 PyTorch, which computes operators of the model, is not installed"
    )
    assert found.split()[-1] == "False"


def test_an_operator_that_is_not_registered_is_named(tmp_path: Path) -> None:
    library = torch.library.Library("bw_fallback_gone", "DEF")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.clone(), "CompositeExplicitAutograd")
    gone: Any = torch.ops
    exe = compiled(
        lambda x: gone.bw_fallback_gone.same(x), torch.ones(3), names=["bw_fallback_gone.same"]
    )
    exe.save(tmp_path / "model.bwx")
    script = f"""
import blockwright as bw
try:
    bw.load({str(tmp_path / "model.bwx")!r})
except bw.BlockwrightError as error:
    print(error)
"""
    run = [sys.executable, "-c", script]
    found = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert "BW808" in found
    assert "has no operator bw_fallback_gone.same.default" in found
    assert "import the module that registers the operator" in found


# -------------------------------------------------------------------------------- custom operators
OPS: Any = torch.ops.bw_fallback


def test_arguments_of_all_kinds_and_several_results() -> None:
    """Lists of tensors, numbers that are sizes, no tensor, texts."""

    def function(x: torch.Tensor) -> Any:
        first, second = OPS.scaled(x.exp(), x.shape[0] + 1, [x, x * 2])
        return first.sum(0), second + 1

    exe = compiled(function, torch.randn(4, 3), names=["bw_fallback.scaled"], shapes=(ROWS,))
    for rows in (4, 9):
        x = torch.randn(rows, 3)
        agree(exe(x), function(x))
        agree(bw.interpret(exe.stages["graph"], x.numpy()), function(x))


def test_effects_stay_in_order() -> None:
    def function(x: torch.Tensor) -> Any:
        OPS.note(x, "first")
        y = x + 1
        OPS.increase(y[1:], 2.0)
        OPS.note(y, "second")
        OPS.note(x, "third")
        return y

    x = torch.ones(3)
    exe = compiled(function, x, names=["bw_fallback.increase", "bw_fallback.note"])
    SEEN.clear()
    torch.testing.assert_close(exe(x), torch.tensor([2.0, 4.0, 4.0]))
    assert SEEN == [("first", 3.0), ("second", 10.0), ("third", 3.0)]
    assert exe.fallbacks[1].uses == 3
    assert x.tolist() == [1, 1, 1]


def test_views_are_copied() -> None:
    turned: Any = torch.ops.bw_fallback_views
    x = torch.randn(3, 4)
    exe = compiled(
        lambda x: (turned.turned.default(x * 2) + 1, turned.turned.default(x)),
        x,
        names=["bw_fallback_views.turned"],
    )
    sums, view = exe(x)
    torch.testing.assert_close(sums, 2 * x.t() + 1)
    torch.testing.assert_close(view, x.t())
    view.zero_()
    assert x.abs().sum() > 0


def test_random_numbers_of_uncovered_operators_are_those_of_pytorch() -> None:
    def function(x: torch.Tensor) -> Any:
        return x + torch.poisson(x.abs()), torch.poisson(x.exp())

    x = torch.randn(4, 5)
    exe = compiled(function, x, names=["aten.poisson"])
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    agree(exe(x), expected)


def test_sizes_that_the_operator_decides() -> None:
    def function(x: torch.Tensor) -> Any:
        counts = OPS.counted(x)
        return counts * 2, counts.max()

    exe = compiled(function, torch.tensor([1, 1, 3]), names=["bw_fallback.counted"])
    for values in ([1, 1, 3], [0, 9, 0]):
        x = torch.tensor(values)
        agree(exe(x), function(x))
        agree(bw.interpret(exe.stages["graph"], x.numpy()), function(x))


class Counting(nn.Module):
    """Changes its input and a buffer by an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        OPS.increase(x, 1.0)
        OPS.increase(self.total, 2.0)
        return x + self.total


def test_inputs_and_state_that_an_operator_changes() -> None:
    exe = compiled(Counting(), torch.ones(3), names=["bw_fallback.increase"])
    model, ours, theirs = Counting(), torch.ones(3), torch.ones(3)
    for _ in range(3):
        torch.testing.assert_close(exe(ours), model(theirs))
        torch.testing.assert_close(ours, theirs)
    assert exe.state["total"].tolist() == [6, 6, 6]


def test_results_of_known_and_unknown_sizes_and_numbers() -> None:
    def function(x: torch.Tensor) -> Any:
        chosen, doubled, number = OPS.positive(x)
        return chosen + 1, doubled.sum(), torch.zeros(number) + x[0]

    exe = compiled(function, torch.randn(9), names=["bw_fallback.positive"])
    for x in (torch.randn(9), -torch.ones(9), 2 * torch.ones(9)):
        agree(exe(x), function(x))


# --------------------------------------------------------------------------------------- what fails
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("raises", "BW726", "bw_fallback.odd.default failed: ValueError: no such element"),
        ("type", "BW727", r"returned float64\[2, 2\] as result 0, not float32\[2, 2\]"),
        ("shape", "BW727", r"returned float32\[1, 2\] as result 0, not float32\[2, 2\]"),
        ("keeps", "BW727", "keeps its argument 0"),
    ],
)
def test_faults_of_an_operator_are_clear_errors(fault: str, code: str, says: str) -> None:
    x = torch.ones(2, 2)
    exe = compiled(lambda x: OPS.odd(x + 1, fault) * 2, x, names=["bw_fallback.odd"])
    KEPT.clear()
    for call in (exe, lambda x: bw.interpret(exe.stages["graph"], x.numpy())):
        if fault == "keeps" and call is not exe:
            continue  # the interpreter's arrays are its own
        with pytest.raises(bw.BlockwrightError, match=says) as caught:
            call(x)
        assert caught.value.code == code
        assert caught.value.help
    KEPT.clear()


def test_a_failure_ends_the_call_alone() -> None:
    exe = compiled(
        torch.linalg.inv, torch.eye(3), names=["aten._linalg_check_errors", "aten.linalg_inv_ex"]
    )
    for _ in range(3):
        with pytest.raises(bw.BlockwrightError, match=r"BW726.*singular"):
            exe(torch.zeros(3, 3))
        torch.testing.assert_close(exe(2 * torch.eye(3)), torch.eye(3) / 2)


def test_threads_and_autocast_of_the_caller() -> None:
    """Operators use at most the threads of compiled code, and the types of the model."""
    exe = compiled(lambda x: OPS.odd(x, ""), torch.ones(2), names=["bw_fallback.odd"])
    before, threads = torch.get_num_threads(), bw.num_threads()
    try:
        torch.set_num_threads(2)
        for count, expected in ((1, 1), (8, 2)):
            bw.set_num_threads(count)
            SEEN.clear()
            with torch.autocast("cpu", torch.bfloat16):
                exe(torch.ones(2))
            assert [(expected, False)] == SEEN
            assert torch.get_num_threads() == 2
    finally:
        bw.set_num_threads(threads)
        torch.set_num_threads(before)


def test_arguments_that_a_converter_refuses() -> None:
    """A covered operator with such arguments runs in PyTorch like one that is not covered."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.elu(x.exp() - 2, 1.0, 2.0) + 1

    x = torch.randn(3, 4)
    exe = compiled(scaled, x, names=["aten.elu"], shapes=(ROWS,))
    for given in (x, torch.randn(7, 4)):
        torch.testing.assert_close(exe(given), scaled(given))
    with pytest.raises(bw.ImporterError, match="elu with scale") as caught:
        bw.compile(Model(scaled), (x,), options={"fallback": "error"})
    assert caught.value.code == "BW507"


def test_complex_results_of_operators_that_the_framework_computes() -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.fft.rfft(x).sin(), torch.fft.rfft(x) * 2

    x = torch.randn(3, 4)
    exe = compiled(function, x, names=["prims.sin"])
    agree(exe(x), function(x))


def test_several_models_report_once() -> None:
    models = {
        "a": Model(lambda x: torch.igamma(x, x + 1)),
        "b": Model(lambda x: torch.igamma(x + 1, x)),
    }
    inputs = dict.fromkeys(models, (torch.rand(3, 4),))
    with pytest.warns(bw.BlockwrightWarning, match="igamma") as caught:
        exe = bw.compile(models, inputs)
    assert len(caught) == 1
    assert [operator.uses for operator in exe.fallbacks] == [2]
    torch.testing.assert_close(exe["b"](inputs["b"][0]), models["b"](inputs["b"][0]))


def test_operators_that_read_strides_are_refused() -> None:
    """The strides of a value are those that compiled code chooses, not those of eager mode."""

    class Strided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t().as_strided((2, 2), (1, 3))

    with pytest.raises(bw.ImporterError) as caught:
        bw.compile(Strided(), (torch.arange(12.0).reshape(3, 4),))
    assert caught.value.code in ("BW501", "BW507", "BW509")
    assert "as_strided" in str(caught.value)
