"""Models that change their buffers: state of the executable, equal to eager mode over calls."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import blockwright as bw
from blockwright.runtime.roofline import Roofline

ROWS = {"x": {0: Dim("n", min=1, max=9)}}


class Average(nn.Module):
    """A counter and a running mean; the mean is not saved with the model."""

    count: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.tensor([1.0, 2.0, 3.0]), persistent=False)

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        self.mean = self.mean + (x.mean(0) - self.mean) / self.count
        return x - self.mean, self.mean


class Model(nn.Module):
    """Applies a function to itself and the argument; has a buffer of shape (4, 3) and others."""

    def __init__(self, function: Callable[[Any, Tensor], Any], dtype: Any = torch.float32) -> None:
        super().__init__()
        self.function = function
        cache = torch.arange(12).view(4, 3).to(dtype)
        self.register_buffer("cache", cache)
        self.register_buffer("same", cache)
        self.register_buffer("row", cache[1], persistent=False)
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))
        self.plain = cache

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def through_views(self: Any, x: Tensor) -> Any:
    self.row.add_(x[0])
    self.same.t()[2] = 5
    return self.cache.sum(1), self.row * 2, self.plain + 1


def at_a_position(self: Any, x: Tensor) -> Any:
    here = torch.arange(4) == self.at % 4
    self.cache.copy_(torch.where(here[:, None], x[:1], self.cache))
    self.at.add_(1)
    return self.cache


def swapped(self: Any, x: Tensor) -> Any:
    old = self.cache.clone()
    self.cache.copy_(old.flip(0))
    self.at.copy_(old[0, 0].to(torch.int64))
    return old, self.cache.clone()


def as_it_was(self: Any, x: Tensor) -> Any:
    before = self.cache + 0
    view = self.cache[:2]
    self.cache.mul_(x.amax())
    return before, view, {"all": [view.t(), self.cache]}


def not_used_later(self: Any, x: Tensor) -> Any:
    self.at.add_(x.shape[0])
    return x + 1


def of_another_type(self: Any, x: Tensor) -> Any:
    self.at.copy_(x[0, 0])  # the number is cut off
    self.cache.copy_(self.at + x[0].to(torch.float64))  # to all rows
    return self.at * 2, self.cache / 2


CHANGES = [through_views, at_a_position, swapped, as_it_was, not_used_later, of_another_type]


def three_calls(exe: Any, model: nn.Module, dtype: Any = torch.float32) -> None:
    """Compare results and buffers of three calls with eager mode; earlier results stay as they
    are."""
    made: list[Any] = []
    for count in (3, 1, 5):
        x = (8 * torch.rand(count, 3)).to(dtype)
        with torch.no_grad():
            wanted = copy.deepcopy(model(x))
        made.append((exe(x), wanted))
        for name, array in exe.state.items():
            torch.testing.assert_close(array, model.get_buffer(name))
    for found, wanted in made:
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("change", CHANGES)
def test_results_and_state_are_those_of_eager_mode(change: Any, tmp_path: Path) -> None:
    model = Model(change)
    exe = bw.compile(model, (torch.zeros(2, 3),), dynamic_shapes=ROWS)
    exe.save(tmp_path / "model.bwx")
    three_calls(exe, copy.deepcopy(model))
    three_calls(bw.load(tmp_path / "model.bwx"), model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.uint8])
def test_element_types_of_state(dtype: Any) -> None:
    model = Model(at_a_position, dtype)
    exe = bw.compile(model, (torch.zeros(2, 3, dtype=dtype),), dynamic_shapes=ROWS)
    three_calls(exe, model, dtype)


@pytest.fixture(scope="module")
def average() -> bw.CompiledModel:
    return bw.compile(Average(), (torch.zeros(2, 3),), dynamic_shapes=ROWS)


def test_the_mapping_of_the_state(average: bw.CompiledModel) -> None:
    exe = average.copy()
    assert list(exe.state) == ["count", "mean"]
    assert [p.name for p in exe.signature.parameters] == ["x"]
    x = torch.ones(2, 3)
    exe(x)
    assert exe.state["count"] == 1
    torch.testing.assert_close(exe.state["mean"], torch.ones(3))
    exe.state["mean"][:] = 4  # the tensor that the next call reads
    exe.state["count"] = torch.tensor(2)
    exe(x)
    torch.testing.assert_close(exe.state["mean"], torch.full((3,), 3.0))
    exe.reset_state()
    assert exe.state["count"] == 0
    assert exe.state["mean"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "value"),
    [("sum", 0), ("mean", 0), ("mean", [1.0, 2.0, 3.0]), ("mean", torch.ones(2)),
     ("mean", np.ones(3)), ("count", torch.zeros(()))],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(
    average: bw.CompiledModel, name: str, value: Any
) -> None:
    with pytest.raises(bw.StateError) as caught:
        average.state[name] = value
    assert caught.value.code == "BW851"


def test_copies_have_states_of_their_own(average: bw.CompiledModel) -> None:
    one, x = average.copy(), torch.ones(2, 3)
    one(x)
    other = one.copy()
    for _ in range(3):
        other(x)
    one.reset_state()
    assert [int(each.state["count"]) for each in (one, other)] == [0, 4]
    assert isinstance(other, bw.CompiledModel)


def test_the_results_belong_to_the_caller(average: bw.CompiledModel) -> None:
    exe, x = average.copy(), torch.ones(2, 3)
    memory = torch.empty(2, 3), torch.empty(3)
    assert exe(x, out=memory) is memory
    kept = memory[1].clone()
    mean = exe(3 * x)[1]
    assert mean.data_ptr() != exe.state["mean"].data_ptr()
    torch.testing.assert_close(memory[1], kept)
    with pytest.raises(bw.ArgumentError) as caught:  # the state is no argument
        exe(x, out=(memory[0], exe.state["mean"]))
    assert caught.value.code == "BW706"


def test_an_artefact_starts_with_initial_or_current_values(
    average: bw.CompiledModel, tmp_path: Path
) -> None:
    exe = average.copy()
    exe(torch.ones(2, 3))
    exe.save(tmp_path / "initial.bwx")
    exe.save(tmp_path / "current.bwx", state="current")
    initial, current = (bw.load(tmp_path / f"{name}.bwx") for name in ("initial", "current"))
    assert initial.state["mean"].tolist() == [1, 2, 3]
    assert current.state["mean"].tolist() == [1, 1, 1]
    current(torch.zeros(2, 3))
    current.reset_state()
    assert current.state["count"] == 1
    with pytest.raises(bw.OptionError) as caught:
        bw.load(tmp_path / "initial.bwx", verify="no")  # pyright: ignore[reportArgumentType]
    assert caught.value.code == "BW928"
    with pytest.raises(bw.OptionError) as caught:
        exe.save(tmp_path / "model.bwx", state="now")  # pyright: ignore[reportArgumentType]
    assert caught.value.code == "BW928"


def test_the_source_model_and_the_state_are_apart(average: bw.CompiledModel) -> None:
    model = Average()
    exe = bw.compile(model, (torch.zeros(2, 3),))
    exe(torch.ones(2, 3))
    assert model.get_buffer("count") == 0
    model.get_buffer("mean").zero_()
    exe.reset_state()
    assert exe.state["mean"].tolist() == [1, 2, 3]


def test_a_call_while_another_uses_the_state_is_refused(average: bw.CompiledModel) -> None:
    exe = average.copy()
    exe.state.acquire()  # as a call in another thread does
    uses: list[Callable[[], Any]] = [lambda: exe(torch.ones(2, 3)), exe.reset_state, exe.copy]
    for use in uses:
        with pytest.raises(bw.StateError) as caught:
            use()
        assert caught.value.code == "BW850"
    exe.state.release()
    exe(torch.ones(2, 3))


def test_threads_with_copies(average: bw.CompiledModel) -> None:
    found: list[int] = []

    def work() -> None:
        mine = average.copy()
        mine.reset_state()
        for _ in range(50):
            mine(torch.ones(2, 3))
        found.append(int(mine.state["count"]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 4


def test_after_an_error_the_state_is_free(average: bw.CompiledModel) -> None:
    exe = average.copy()
    with pytest.raises(bw.ArgumentError):
        exe(torch.ones(2, 4))
    exe(torch.ones(2, 3))
    assert exe.state["count"] == 1


def test_a_profile_leaves_the_state(average: bw.CompiledModel) -> None:
    exe = average.copy()
    exe(torch.ones(2, 3))
    machine = Roofline(1, 1e9, ((1e9, 1e9),), 1e9)
    profile = exe.profile(torch.ones(2, 3), repeat=2, roofline=machine)
    assert profile.calls
    assert exe.state["count"] == 1


class Reader(nn.Module):
    """Reads what another model writes."""

    mean: Tensor

    def __init__(self, model: Average) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.add_(1)
        return self.model.mean + x * self.mean


def test_functions_share_state_also_where_they_only_read_it(tmp_path: Path) -> None:
    model = Average()
    reader = Reader(model)
    x = torch.ones(2, 3)
    exe = bw.compile({"write": model, "read": reader}, {"write": (x,), "read": (x,)})
    assert list(exe.state) == ["count", "mean", "read.mean"]  # another buffer of the same name
    exe.save(tmp_path / "both.bwx")
    for each in (exe, bw.load(tmp_path / "both.bwx")):
        source = Reader(Average())
        for step in range(3):
            torch.testing.assert_close(each["write"](step * x), source.model(step * x))
            torch.testing.assert_close(each["read"](x), source(x))


def test_buffers_that_overlap_otherwise_are_refused() -> None:
    class Columns(nn.Module):
        cache: Tensor
        column: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3))
            self.register_buffer("column", self.cache[:, 1])

        def forward(self, x: Tensor) -> Tensor:
            self.column.add_(1)
            return x + self.cache

    with pytest.raises(bw.ImporterError, match="cache, column") as caught:
        bw.compile(Columns(), (torch.zeros(4, 3),))
    assert caught.value.code == "BW512"


def test_buffers_of_one_storage_that_do_not_overlap() -> None:
    class Halves(nn.Module):
        keys: Tensor
        values: Tensor

        def __init__(self) -> None:
            super().__init__()
            both = torch.zeros(2, 3)
            self.register_buffer("keys", both[0])
            self.register_buffer("values", both[1])

        def forward(self, x: Tensor) -> Tensor:
            self.keys.add_(x[0])
            self.values.sub_(self.keys)
            return self.keys * self.values

    model = Halves()
    three_calls(bw.compile(model, (torch.zeros(2, 3),), dynamic_shapes=ROWS), model)


def test_a_model_without_arguments_counts() -> None:
    class Counter(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2, dtype=torch.int32))

        def forward(self) -> Tensor:
            self.count += 1
            return self.count

    exe = bw.compile(Counter(), ())
    counts = [exe() for _ in range(3)]
    assert [c.tolist() for c in counts] == [[1, 1], [2, 2], [3, 3]]
    assert isinstance(counts[0], Tensor)


def test_tied_weights_beside_an_update_in_place() -> None:
    """The second name of a parameter is replaced by another parameter, as an export demands."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            x[:, 0].add_(1)
            return self.head(x)

    model, ids = Tied().eval(), torch.tensor([[1, 2, 8], [0, 3, 3]])
    torch.testing.assert_close(bw.compile(model, (ids,))(ids), model(ids).detach())
