"""Results in memory of the caller: `exe(*inputs, out=...)`, fresh or from a file."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import blockwright as bw
from blockwright.runtime.library import Library

N = Dim("n", min=1, max=1 << 22)


class Nested(nn.Module):
    """Results of every origin: computed, a scalar, the input, one twice, a constant, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> Any:
        y = x * 2 + self.weight
        return {"sum": y.sum(), "parts": (y, [x, y, self.weight]), "flat": y.reshape(-1)}


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, x - 1


class Sparing(nn.Module):
    """One of its results is None."""

    def forward(self, x: torch.Tensor) -> Any:
        return x + 1, None


class Named(nn.Module):
    """One of its parameters is called `out`."""

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return x + 2 * out


class Foreign:
    """An array of some other framework: only the exchange protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.fixture(scope="module", params=["compiled", "loaded"])
def build(
    request: pytest.FixtureRequest, compile_torch: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """`build(model, inputs, shapes)`: what was compiled, or what was saved and loaded again."""

    def make(model: Any, inputs: Any, shapes: Any = None) -> Any:
        exe = compile_torch(model, inputs, shapes)
        if request.param == "compiled":
            return exe
        path = tmp_path_factory.mktemp("saved") / "model.bwx"
        exe.save(path)
        return bw.load(path)

    return make


@pytest.fixture(scope="module")
def nested(build: Any) -> Any:
    return build(Nested(), (torch.randn(3, 4),), ({0: N},))


@pytest.fixture(scope="module")
def double(build: Any) -> Any:
    return build(Double(), (torch.randn(3, 4),), ({0: N},))


@pytest.fixture(scope="module")
def pair(build: Any) -> Any:
    return build(Pair(), (torch.randn(3, 4),), ({0: N},))


def memory(like: Any, kind: str) -> Any:
    """What a call returned, with arrays of nines in place of the results."""
    if isinstance(like, dict):
        return {key: memory(value, kind) for key, value in like.items()}
    if isinstance(like, (tuple, list)):
        return type(like)(memory(value, kind) for value in like)
    array = np.full(tuple(like.shape), 9, np.float32)
    return {"torch": torch.from_numpy, "numpy": np.asarray, "dlpack": Foreign}[kind](array)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def plain(value: Any) -> np.ndarray:
    return np.asarray(value.array if isinstance(value, Foreign) else value)


@pytest.mark.parametrize("kind", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("size", [1, 2, 50])
def test_results_are_written_and_the_structure_is_returned(
    nested: Any, kind: str, size: int
) -> None:
    x = torch.randn(size, 4)
    expected = nested(x)
    out = memory(expected, kind)
    given = leaves(out)
    places = [plain(array).ctypes.data for array in given]
    found = nested(x, out=out)
    assert found is out
    assert [id(leaf) for leaf in leaves(found)] == [id(leaf) for leaf in given]
    assert [plain(array).ctypes.data for array in given] == places
    for ours, theirs in zip(given, leaves(expected), strict=True):
        np.testing.assert_array_equal(plain(ours), theirs.numpy())
    assert nested.copies == 0


def test_a_single_array(double: Any) -> None:
    x = torch.randn(5, 4)
    out = torch.empty(5, 4)
    assert double(x, out=out) is out
    assert torch.equal(out, x * 2)
    into = np.empty((5, 4), np.float32)
    assert double(x.numpy(), out=into) is into
    assert np.array_equal(into, out.numpy())
    assert torch.equal(double(x, out=None), out)


def test_autograd_learns_of_the_writes(double: Any, pair: Any) -> None:
    x = torch.randn(5, 4)
    whole = torch.empty(10, 4)
    first, second, apart = whole[:5], whole[5:], torch.empty(4, 5).T
    version = [x._version, whole._version, apart._version]
    double(x, out=first)
    assert whole._version > version[1]
    version[1] = whole._version
    pair(x, out=(second, apart))
    assert [x._version > version[0], whole._version > version[1]] == [False, True]
    assert apart._version > version[2]


def test_results_that_require_gradients_are_refused(double: Any) -> None:
    """Autograd would differentiate the former value of the memory."""
    x = torch.randn(5, 4)
    leaf = torch.zeros(5, 4, requires_grad=True)
    for out in (leaf, leaf * 1, (leaf * 1).T.contiguous().T):
        with pytest.raises(bw.ArgumentError, match="requires gradients") as caught:
            double(x, out=out)
        assert caught.value.code == "BW707"
        assert (out == 0).all()
    with torch.no_grad():
        double(x, out=leaf)
    assert torch.equal(leaf.detach(), x * 2)
    assert leaf._version == 1
    double(x * 2, out=leaf.detach())
    assert torch.equal(leaf.detach(), x * 4)
    assert not double(leaf).requires_grad


def test_lists_and_tuples_stand_for_each_other(pair: Any) -> None:
    x = torch.randn(5, 4)
    out = [torch.empty(5, 4), torch.empty(5, 4)]
    assert pair(x, out=out) is out
    assert torch.equal(out[0], x + 1)
    assert torch.equal(out[1], x - 1)


def test_inputs_by_name(double: Any) -> None:
    x, out = torch.randn(5, 4), torch.empty(5, 4)
    double(x=x, out=out)
    assert torch.equal(out, x * 2)


def test_results_are_never_passed_by_position(double: Any, pair: Any) -> None:
    x, y = torch.randn(5, 4), torch.zeros(5, 4)
    for exe, arguments in ((double, (x, y)), (pair, (x, y, y.clone()))):
        with pytest.raises(bw.ArgumentError, match=r"expected 1 argument \(x\), got") as caught:
            exe(*arguments)
        assert caught.value.code == "BW701"
    assert not y.any()


def read_only() -> np.ndarray:
    array = np.zeros((5, 4), np.float32)
    array.flags.writeable = False
    return array


# `out` of a model with one result (5, 4), code, what the message names
BAD: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "another number of rows": (torch.zeros(6, 4), "BW709", ("result 1 `out`", "5", "6", "`x`")),
    "another number of columns": (torch.zeros(5, 3), "BW704", ("result 1 `out`", "be 4, got 3")),
    "another rank": (torch.zeros(20), "BW704", ("result 1 `out`", "2 dimensions", "got 1")),
    "one row for all": (torch.zeros(4), "BW704", ("result 1 `out`",)),
    "doubles": (torch.zeros(5, 4).double(), "BW703", ("float32", "float64")),
    "integers": (np.zeros((5, 4), "int32"), "BW703", ("float32", "got int32")),
    "text": (np.zeros((5, 4), "U1"), "BW703", ("result 1 'out'", "<U1")),
    "a number": (1.0, "BW702", ("result 1 `out`", "a float")),
    "a NumPy number": (np.float32(1), "BW702", ("result 1 'out'", "float32")),
    "a list": ([torch.zeros(5, 4)], "BW702", ("result 1 'out'", "list")),
    "an object": (object(), "BW702", ("result 1 'out'", "object")),
    "a sparse tensor": (torch.zeros(5, 4).to_sparse(), "BW702", ("result 1 'out'", "sparse")),
    "another device": (torch.zeros(5, 4, device="meta"), "BW705", ("result 1 'out'", "meta")),
    "read-only": (read_only(), "BW707", ("result 1 'out'", "read-only")),
    "read-only columns": (read_only()[:, ::-1], "BW707", ("result 1 'out'", "read-only")),
    "marked read-only": (Foreign(read_only()), "BW707", ("result 1 'out'", "read-only")),
    "one row expanded": (torch.zeros(1, 4).expand(5, 4), "BW706", ("result 1 'out'", "share")),
}


@pytest.mark.parametrize("case", BAD)
def test_memory_that_cannot_be_written_is_refused(double: Any, case: str) -> None:
    out, code, named = BAD[case]
    x = torch.randn(5, 4)
    with pytest.raises(bw.ArgumentError) as caught:
        double(x, out=out)
    assert caught.value.code == code
    assert caught.value.help
    for text in named:
        assert text in caught.value.message
    assert torch.equal(double(x, out=torch.empty(5, 4)), x * 2)


def test_the_structure_must_be_the_models(nested: Any, pair: Any) -> None:
    x = torch.randn(2, 4)
    good = memory(nested(x), "torch")
    first, second = torch.zeros(2, 4), torch.zeros(2, 4)
    a, b, c = good["parts"][1]
    for exe, out, code, named in (
        (pair, first, "BW702", "out is a Tensor, where the model gives a tuple"),
        (pair, (first,), "BW701", "out must have 2 parts, got 1"),
        (pair, (first, second, first), "BW701", "out must have 2 parts, got 3"),
        (pair, (first, None), "BW702", "result 2 'out1' of main is None, not an array"),
        (nested, tuple(good.values()), "BW702", "out is a tuple, where the model gives a dict"),
        (nested, {"sum": good["sum"]}, "BW701", "out must have 'sum', 'parts', 'flat', got 'sum'"),
        (
            nested,
            {**good, "parts": (first, (a, b))},
            "BW701",
            "out['parts'][1] must have 3 parts, got 2",
        ),
        (nested, {**good, "more": c}, "BW701", "got 'sum', 'parts', 'flat', 'more'"),
    ):
        with pytest.raises(bw.ArgumentError) as caught:
            exe(x, out=out)
        assert caught.value.code == code
        assert named in caught.value.message
        assert caught.value.help


def test_where_the_model_gives_none_nothing_is_passed(build: Any) -> None:
    exe = build(Sparing(), (torch.randn(3, 4),), ({0: N},))
    x, out = torch.randn(2, 4), torch.zeros(2, 4)
    assert exe(x, out=(out, None))[0] is out
    assert torch.equal(out, x + 1)
    with pytest.raises(bw.ArgumentError, match=r"out\[1\] is a Tensor") as caught:
        exe(x, out=(out, out))
    assert caught.value.code == "BW702"


def underaligned() -> np.ndarray:
    return np.zeros(84, np.uint8)[3:83].view(np.float32).reshape(5, 4)


LAYOUTS = {
    "transposed": lambda: torch.zeros(4, 5).t(),
    "every second column": lambda: torch.zeros(5, 8)[:, ::2],
    "reversed": lambda: np.zeros((5, 4), np.float32)[::-1, ::-1],
    "Fortran order": lambda: np.zeros((5, 4), np.float32, order="F"),
    "under-aligned array": underaligned,
    "under-aligned tensor": lambda: torch.frombuffer(
        bytearray(81), dtype=torch.float32, offset=1
    ).reshape(5, 4),
    "foreign byte order": lambda: np.zeros((5, 4), ">f4"),
    "imaginary parts, negated": lambda: torch.zeros(5, 4, dtype=torch.complex64).conj().imag,
    "another framework's columns": lambda: Foreign(np.zeros((5, 8), np.float32)[:, ::2]),
    "another framework's under-aligned": lambda: Foreign(underaligned()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_of_any_layout_is_written_through_a_copy(double: Any, layout: str) -> None:
    x, out = torch.randn(5, 4), LAYOUTS[layout]()
    before = double.copies
    assert double(x, out=out) is out
    found = out.resolve_neg() if isinstance(out, torch.Tensor) else out
    np.testing.assert_array_equal(plain(found), (x * 2).numpy())
    assert double.copies == before + 1


def test_what_lies_between_the_elements_stays(double: Any) -> None:
    room = torch.full((5, 9), 3.0)
    double(torch.ones(5, 4), out=room[:, 1::2])
    assert (room[:, 1::2] == 2).all()
    assert (room[:, ::2] == 3).all()


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_results_may_overlap_arguments(double: Any, shift: int) -> None:
    """As in NumPy: the result is that of distinct memory."""
    room = torch.randn(8, 4)
    expected = room[:5] * 2
    before = double.copies
    double(room[:5], out=room[shift : shift + 5])
    assert torch.equal(room[shift : shift + 5], expected)
    assert double.copies == before + 1
    room = torch.randn(4, 4)
    expected = room * 2
    double(room, out=room.t())
    assert torch.equal(room.t(), expected)


def test_results_must_not_overlap_each_other(pair: Any) -> None:
    x, room = torch.randn(5, 4), torch.zeros(8, 9)
    flat = torch.zeros(40)
    for first, second in (
        (flat[:20].view(5, 4), flat[19:39].view(5, 4)),
        (flat[:20].view(5, 4), flat[:20].view(5, 4)),
        (room[:5, :4], room[1:6, 3:7]),
        (room[:5, :4].numpy(), room[:5, ::2][:, :4]),
    ):
        with pytest.raises(bw.ArgumentError, match=r"result 2 .out1. of main: it is") as caught:
            pair(x, out=(first, second))
        assert caught.value.code == "BW706"
        assert "overlaps result 1" in caught.value.message
    pair(x, out=(room[:5, :8:2], room[:5, 1::2]))  # columns in turn
    assert torch.equal(room[:5, :8:2], x + 1)
    assert torch.equal(room[:5, 1::2], x - 1)


def test_threads_with_memory_of_their_own(nested: Any) -> None:
    wrong: list[int] = []
    like = nested(torch.zeros(300, 4))

    def work(seed: int) -> None:
        out = memory(like, "torch")
        for step in range(60):
            x = torch.full((300, 4), float(seed + step))
            nested(x, out=out)
            if not (torch.equal(out["parts"][1][0], x) and out["flat"][0] == 2 * (seed + step)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if field in line)


@pytest.mark.usefixtures("usual_collections")
def test_no_memory_is_taken_for_results(double: Any) -> None:
    x, out = torch.ones(1 << 22, 4), torch.zeros(1 << 22, 4)
    double(x, out=out)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS:")
    double(x, out=out)
    assert resident("VmHWM:") - before < out.nbytes // 8
    assert (out == 2).all()


def test_a_parameter_called_out_is_given_by_position(build: Any) -> None:
    """The keyword always means the results."""
    exe = build(Named(), (torch.randn(3, 4), torch.randn(3, 4)), ({0: N}, {0: N}))
    x, y, result = torch.randn(2, 4), torch.randn(2, 4), torch.zeros(2, 4)
    assert torch.equal(exe(x, y), x + 2 * y)
    assert exe(x, y, out=result) is result
    assert torch.equal(result, x + 2 * y)
    for arguments, named in (((x,), {"out": y}), ((), {"x": x, "out": y})):
        with pytest.raises(bw.ArgumentError, match="pass the parameter `out` by position") as found:
            exe(*arguments, **named)
        assert found.value.code == "BW701"


def test_types_that_numpy_does_not_exchange(compile_torch: Any) -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.bfloat16)

    exe = compile_torch(Half(), (torch.randn(3, 4),))
    x = torch.randn(3, 4)
    expected = x.to(torch.bfloat16)
    tensor = torch.zeros(3, 4, dtype=torch.bfloat16)
    columns = torch.zeros(4, 3, dtype=torch.bfloat16).t()
    for out in (tensor, columns):
        assert torch.equal(exe(x, out=out), expected)
    array = np.zeros((3, 4), ml_dtypes.bfloat16)
    for out in (array, array[::-1]):
        exe(x, out=out)
        assert np.array_equal(out.astype("float32"), expected.float().numpy())


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.conv(x)
        return y, y.mean((2, 3))


@pytest.fixture(scope="module")
def image(build: Any) -> Any:
    torch.manual_seed(3)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return build(Image().eval(), (x,)), x


def test_results_that_stand_permuted(image: Any) -> None:
    exe, x = image
    expected = exe(x)
    last = torch.empty(2, 5, 8, 8).to(memory_format=torch.channels_last)
    for picture, copies in (
        (last, 0),
        (torch.empty(2, 5, 8, 8), 1),
        (np.empty((2, 5, 8, 8), np.float32), 1),
        (Foreign(np.empty((2, 8, 8, 5), np.float32).transpose(0, 3, 1, 2)), 0),
    ):
        before = exe.copies
        out = (picture, torch.empty(2, 5))
        assert exe(x, out=out) is out
        np.testing.assert_array_equal(plain(picture), expected[0].numpy())
        assert torch.equal(out[1], expected[1])
        assert exe.copies == before + copies
        assert not isinstance(picture, torch.Tensor) or picture._version > 0


def test_other_frameworks_images_are_read_in_the_models_order(build: Any) -> None:
    """Also where all sizes agree, so that no check could tell the orders apart."""
    torch.manual_seed(3)
    model = nn.Conv2d(8, 8, 3, padding=1).eval()
    x = torch.randn(8, 8, 8, 8).to(memory_format=torch.channels_last)
    exe = build(model, (x,))
    expected = exe(x)
    for given in (Foreign(x), Foreign(x.contiguous())):
        out = Foreign(torch.empty(8, 8, 8, 8))
        exe(given, out=out)
        assert torch.equal(out.array, expected)


def test_errors_of_permuted_results_say_how_dimensions_are_numbered(image: Any) -> None:
    exe, x = image
    with pytest.raises(bw.ArgumentError, match=r"result 1 `out0` of main: .* 3 to be 5") as found:
        exe(x, out=(torch.empty(2, 4, 8, 8), torch.empty(2, 5)))
    assert found.value.code == "BW704"
    assert "axes of x as (0, 2, 3, 1), out0 as (0, 2, 3, 1)" in str(found.value)
    with pytest.raises(bw.ArgumentError, match="result 1 `out0` of main: expected 4 dimensions"):
        exe(x, out=(torch.empty(5, 8, 8), torch.empty(2, 5)))


def test_the_plain_library_takes_memory_behind_the_arguments(
    compile_torch: Any, tmp_path: Path
) -> None:
    import tvm_ffi

    exe = compile_torch(Pair(), (torch.randn(3, 4),), ({0: N},))
    exe.save(tmp_path / "model.bwx")
    shutil.copyfile(tmp_path / "model.bwx", tmp_path / "model.so")
    main = tvm_ffi.load_module(tmp_path / "model.so")["main"]
    x, y, z = np.ones((6, 4), np.float32), np.zeros((6, 4), "f4"), np.zeros((6, 4), "f4")
    assert main(x, y, z) is None
    assert (y == 2).all()
    assert (z == 0).all()
    first, _ = main(x)
    assert np.array_equal(np.from_dlpack(first), y)
    with pytest.raises(TypeError, match="BW701: main: expected 1 argument"):
        main(x, y)
    with pytest.raises(ValueError, match="BW706: result 2 `out1` of main: it is written and over"):
        main(x, y, y)
    with pytest.raises(ValueError, match="BW709: result 1 `out0` of main: expected dimension 0"):
        main(x, y[:5], z)


def test_artefacts_of_earlier_versions_say_that_they_cannot(double: Any) -> None:
    """Their entries took the parameters alone; everything else about them is the same."""
    from blockwright.runtime.executable import Executable

    def entry(*arguments: Any) -> Any:
        if len(arguments) != 1:
            raise TypeError("BW701: main: expected 1 argument (x), got 2\nhelp: none")
        return double(*arguments)

    library = cast(Library, SimpleNamespace(function=lambda name: entry))
    old = Executable(library, double.metadata)
    x = torch.randn(5, 4)
    with pytest.raises(bw.ArgumentError, match="saved by a version") as caught:
        old(x, out=torch.empty(5, 4))
    assert caught.value.code == "BW701"
    assert "save the model again" in str(caught.value.help)
