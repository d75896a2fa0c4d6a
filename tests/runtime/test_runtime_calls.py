"""Calling compiled functions from Python: arrays of any framework, any layout, and clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.codegen.link.link import LinkOptions, link
from blockwright.codegen.llvm.binding import compile_object
from blockwright.codegen.llvm.ffi import dlpack_dtype, error_kind
from blockwright.codegen.rt.runtime import runtime_ir
from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.errors import error_code, translate
from blockwright.runtime.library import load_image
from blockwright.support import ArgumentError, ArtefactError, BlockwrightError, BuildError
from tests.codegen.support_text import PRELUDE, TARGET

# copy(x): a fresh tensor with x's bytes. pair(x): (x copied, x copied, 7). fill(x, v): x[...] = v,
# in place, for f32. All want contiguous, element-aligned tensors.
PROGRAM = (
    PRELUDE
    + r"""
@value = private constant [11 x i8] c"ValueError\00"
@type = private constant [10 x i8] c"TypeError\00"
@layout = private constant [22 x i8] c"BW706: not contiguous\00"
@none = private constant [47 x i8] c"BW702: 'x' is no tensor\0Ahelp: pass a tensor ok\00"
declare ptr @memcpy(ptr, ptr, i64)

define internal ptr @checked(ptr %any) {
entry:
  %t = call ptr @bw_tensor_of(ptr %any)
  %no = icmp eq ptr %t, null
  br i1 %no, label %missing, label %look
missing:
  %r0 = call i32 @bw_raise(ptr @type, ptr @none)
  ret ptr null
look:
  %row_major = call i1 @bw_tensor_is_contiguous(ptr %t)
  %data = call ptr @bw_tensor_data(ptr %t)
  %address = ptrtoint ptr %data to i64
  %wp = getelementptr i8, ptr %t, i64 21
  %bits = load i8, ptr %wp
  %wide = zext i8 %bits to i64
  %bytes = lshr i64 %wide, 3
  %over = urem i64 %address, %bytes
  %aligned = icmp eq i64 %over, 0
  %fine = and i1 %row_major, %aligned
  br i1 %fine, label %good, label %bad
bad:
  %r1 = call i32 @bw_raise(ptr @value, ptr @layout)
  ret ptr null
good:
  ret ptr %t
}

define internal i64 @count(ptr %t) {
entry:
  %np = getelementptr i8, ptr %t, i64 16
  %n = load i32, ptr %np, align 8
  %sp = getelementptr i8, ptr %t, i64 24
  %shape = load ptr, ptr %sp, align 8
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %axis ]
  %c = phi i64 [ 1, %entry ], [ %c1, %axis ]
  %more = icmp slt i32 %i, %n
  br i1 %more, label %axis, label %done
axis:
  %ep = getelementptr i64, ptr %shape, i32 %i
  %e = load i64, ptr %ep, align 8
  %c1 = mul i64 %c, %e
  %i1 = add i32 %i, 1
  br label %loop
done:
  ret i64 %c
}

define internal i32 @fresh(ptr %any, ptr %out) {
entry:
  %t = call ptr @checked(ptr %any)
  %bad = icmp eq ptr %t, null
  br i1 %bad, label %fail, label %go
fail:
  ret i32 -1
go:
  %np = getelementptr i8, ptr %t, i64 16
  %ndim = load i32, ptr %np, align 8
  %dp = getelementptr i8, ptr %t, i64 20
  %dtype = load i32, ptr %dp, align 4
  %sp = getelementptr i8, ptr %t, i64 24
  %shape = load ptr, ptr %sp, align 8
  %rc = call i32 @bw_tensor_alloc(ptr %shape, i32 %ndim, i32 %dtype, ptr %out)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %copy, label %fail
copy:
  %object = load ptr, ptr %out, align 8
  %body = getelementptr i8, ptr %object, i64 24
  %to = call ptr @bw_tensor_data(ptr %body)
  %from = call ptr @bw_tensor_data(ptr %t)
  %elements = call i64 @count(ptr %t)
  %wp = getelementptr i8, ptr %t, i64 21
  %bits = load i8, ptr %wp
  %wide = zext i8 %bits to i64
  %bytes = lshr i64 %wide, 3
  %size = mul i64 %elements, %bytes
  %m = call ptr @memcpy(ptr %to, ptr %from, i64 %size)
  ret i32 0
}

define i32 @__tvm_ffi_copy(ptr %self, ptr %args, i32 %n, ptr %result) {
  %out = alloca ptr, align 8
  %rc = call i32 @fresh(ptr %args, ptr %out)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %give, label %fail
give:
  %object = load ptr, ptr %out, align 8
  call void @bw_return_tensor(ptr %result, ptr %object)
  ret i32 0
fail:
  ret i32 -1
}

define i32 @__tvm_ffi_pair(ptr %self, ptr %args, i32 %n, ptr %result) {
  %out = alloca ptr, align 8
  %values = alloca [3 x { i32, i32, i64 }], align 8
  %v1 = getelementptr i8, ptr %values, i64 16
  %v2 = getelementptr i8, ptr %values, i64 32
  %p2 = getelementptr i8, ptr %values, i64 40
  %r0 = call i32 @fresh(ptr %args, ptr %out)
  %first = load ptr, ptr %out, align 8
  call void @bw_return_tensor(ptr %values, ptr %first)
  %r1 = call i32 @fresh(ptr %args, ptr %out)
  %second = load ptr, ptr %out, align 8
  call void @bw_return_tensor(ptr %v1, ptr %second)
  store i64 1, ptr %v2, align 8
  store i64 7, ptr %p2, align 8
  %rc = call i32 @bw_return_tuple(ptr %result, ptr %values, i32 3)
  ret i32 %rc
}

define i32 @__tvm_ffi_alloc(ptr %self, ptr %args, i32 %n, ptr %result) {
  %out = alloca ptr, align 8
  %shape = alloca [2 x i64], align 8
  %p0 = getelementptr i8, ptr %args, i64 8
  %e0 = load i64, ptr %p0, align 8
  store i64 %e0, ptr %shape, align 8
  %p1 = getelementptr i8, ptr %args, i64 24
  %e1 = load i64, ptr %p1, align 8
  %s1 = getelementptr i64, ptr %shape, i64 1
  store i64 %e1, ptr %s1, align 8
  %rc = call i32 @bw_tensor_alloc(ptr %shape, i32 2, i32 73730, ptr %out)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %give, label %fail
give:
  %object = load ptr, ptr %out, align 8
  call void @bw_return_tensor(ptr %result, ptr %object)
  ret i32 0
fail:
  ret i32 -1
}

define i32 @__tvm_ffi_fill(ptr %self, ptr %args, i32 %n, ptr %result) {
entry:
  %t = call ptr @checked(ptr %args)
  %bad = icmp eq ptr %t, null
  br i1 %bad, label %fail, label %go
fail:
  ret i32 -1
go:
  %vp = getelementptr i8, ptr %args, i64 24
  %v64 = load double, ptr %vp, align 8
  %v = fptrunc double %v64 to float
  %data = call ptr @bw_tensor_data(ptr %t)
  %elements = call i64 @count(ptr %t)
  br label %loop
loop:
  %i = phi i64 [ 0, %go ], [ %i1, %body ]
  %more = icmp slt i64 %i, %elements
  br i1 %more, label %body, label %done
body:
  %p = getelementptr float, ptr %data, i64 %i
  store float %v, ptr %p, align 4
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret i32 0
}
"""
)


@pytest.fixture(scope="module")
def library() -> Any:
    triple = "x86_64-unknown-linux-gnu"
    texts = (("program", PROGRAM), ("runtime", runtime_ir(TARGET) + "\ndeclare i32 @bw_unused()"))
    objects = [(n, compile_object(t, triple, "x86-64-v2", "", "host", n)) for n, t in texts]
    exports = [f"__tvm_ffi_{name}" for name in ("copy", "pair", "alloc", "fill")]
    return load_image(link(objects, LinkOptions(exports=exports)).tobytes())


@pytest.fixture
def copy(library: Any) -> NativeFunction:
    return NativeFunction(library.function("copy"), "copy", ["x"], written=[])


@pytest.fixture
def fill(library: Any) -> Iterator[NativeFunction]:
    return NativeFunction(library.function("fill"), "fill", ["x", "value"], written=[0])


class TestNumpy:
    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
    @pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (1, 2, 1, 3)])
    def test_results_are_fresh_aligned_arrays(
        self, copy: NativeFunction, dtype: str, shape: tuple[int, ...]
    ) -> None:
        x = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        y = copy(x)
        assert type(y) is np.ndarray
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert y.flags.writeable
        assert y.ctypes.data % 64 == 0
        assert not np.shares_memory(x, y)
        np.testing.assert_array_equal(x, y)
        assert copy.copies == 0

    def test_many_results_do_not_leak_or_overlap(self, copy: NativeFunction) -> None:
        kept = [copy(np.full(100, i, np.float32)) for i in range(200)]
        assert all((y == i).all() for i, y in enumerate(kept))

    @given(
        shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
        steps=st.lists(st.sampled_from([1, 2, -1, -2]), min_size=4, max_size=4),
        seed=st.integers(0, 99),
    )
    def test_any_layout_gives_the_right_answer(
        self, library: Any, shape: list[int], steps: list[int], seed: int
    ) -> None:
        order = np.random.default_rng(seed).permutation(len(shape))
        base = np.random.default_rng(seed).standard_normal([4 * s for s in shape], np.float32)
        cut = tuple(slice(None, None, step) for step in steps[: len(shape)])
        x = base[cut].transpose(order)
        function = NativeFunction(library.function("copy"), "copy", ["x"], written=[])
        np.testing.assert_array_equal(function(x), x)
        assert function.copies == (0 if x.flags.c_contiguous else 1)

    def test_under_aligned_and_foreign_byte_order(self, copy: NativeFunction) -> None:
        raw = np.zeros(41, np.uint8)[1:].view(np.float32)
        raw[:] = np.arange(10)
        np.testing.assert_array_equal(copy(raw), raw)
        swapped = np.arange(5, dtype=">f4")
        np.testing.assert_array_equal(copy(swapped), swapped)
        assert copy.copies == 2

    def test_read_only_inputs_are_read_in_place(self, copy: NativeFunction) -> None:
        x = np.arange(5.0)
        x.flags.writeable = False
        np.testing.assert_array_equal(copy(x), x)
        assert copy.copies == 0

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_types_that_numpy_does_not_exchange(self, copy: NativeFunction, name: str) -> None:
        x = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
        y = copy(x)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))
        x.flags.writeable = False
        np.testing.assert_array_equal(copy(x.T).view(np.uint8), x.T.copy().view(np.uint8))

    def test_in_place_functions_write_any_layout(self, fill: NativeFunction) -> None:
        x = np.zeros((4, 6), np.float32)
        assert fill(x, 1.0) is None
        assert (x == 1).all()
        fill(x[:, ::2], 2.0)
        assert (x[:, ::2] == 2).all()
        assert (x[:, 1::2] == 1).all()
        assert fill.copies == 1

    def test_read_only_output(self, fill: NativeFunction) -> None:
        for x in (np.zeros(3, np.float32), np.zeros(6, np.float32)[::2]):
            x.flags.writeable = False
            with pytest.raises(
                ArgumentError, match=r"argument 1 'x' of fill is read-only"
            ) as found:
                fill(x, 1.0)
            assert found.value.code == "BW707"

    def test_several_results(self, library: Any) -> None:
        pair = NativeFunction(library.function("pair"), "pair", ["x"])
        x = np.arange(4.0)
        first, second, number = pair(x)
        np.testing.assert_array_equal(first, x)
        np.testing.assert_array_equal(second, x)
        assert number == 7


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        self.torch = pytest.importorskip("torch")

    def test_results_are_tensors(self, copy: NativeFunction) -> None:
        torch = self.torch
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
            x = torch.arange(6).reshape(2, 3).to(dtype)
            y = copy(x)
            assert isinstance(y, torch.Tensor)
            assert y.dtype == dtype
            assert torch.equal(x, y)
        assert copy.copies == 0

    def test_layouts_gradients_views(self, copy: NativeFunction) -> None:
        torch = self.torch
        x = torch.arange(12.0).reshape(3, 4)
        assert torch.equal(copy(x.t()), x.t())
        assert torch.equal(copy(x[:, 1]), x[:, 1])
        assert torch.equal(copy(x[1:]), x[1:])
        weight = torch.nn.Parameter(x)
        assert torch.equal(copy(weight), x)
        assert not copy(weight).requires_grad
        negated = torch.view_as_complex(x.reshape(6, 2)).conj().imag
        assert negated.is_neg()
        assert torch.equal(copy(negated), negated)
        misaligned = torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1)
        assert torch.equal(copy(misaligned), misaligned)

    def test_in_place(self, fill: NativeFunction) -> None:
        x = self.torch.zeros(4, 4)
        fill(x.t()[1:], 3.0)
        assert (x[:, 1:] == 3).all()
        assert (x[:, 0] == 0).all()

    def test_writes_are_counted_as_versions(
        self, copy: NativeFunction, fill: NativeFunction
    ) -> None:
        """Autograd learns of a write: in place, through a view, and through a temporary copy."""
        torch = self.torch
        x = torch.zeros(4, 4)
        before = x._version
        fill(x[1:3], 1.0)
        assert x._version > before
        before = x._version
        fill(x.t()[1:], 2.0)
        assert x._version > before
        before = x._version
        copy(x)
        copy(x.t())
        assert x._version == before
        with torch.inference_mode():
            fill(torch.zeros(2), 1.0)  # a tensor without a version counter
        y = torch.ones(3, requires_grad=True)
        z = y * 1.0
        squared = (z * z).sum()
        fill(z.detach(), 5.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squared.backward()

    def test_sparse(self, copy: NativeFunction) -> None:
        with pytest.raises(ArgumentError, match="sparse") as caught:
            copy(self.torch.eye(3).to_sparse())
        assert caught.value.code == "BW702"


class Foreign:
    """An array of a framework that knows only the exchange protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_other_frameworks_through_dlpack(copy: NativeFunction, fill: NativeFunction) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(np.from_dlpack(copy(Foreign(x))), x)
    np.testing.assert_array_equal(np.from_dlpack(copy(Foreign(x.T))), x.T)
    fill(Foreign(x[:, :2]), 9.0)
    assert (x[:, :2] == 9).all()
    assert (x[:, 2:] != 9).all()


@pytest.mark.parametrize("value", [None, "text", [1.0], {}, object()])
def test_things_that_are_no_arrays(copy: NativeFunction, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"argument 1 'x' of copy is ") as caught:
        copy(value)
    assert caught.value.code == "BW702"


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]")])
def test_data_types_that_cannot_cross(copy: NativeFunction, value: Any) -> None:
    with pytest.raises(ArgumentError, match="data type") as caught:
        copy(value)
    assert caught.value.code == "BW703"


def test_errors_of_compiled_code_get_their_class(copy: NativeFunction, library: Any) -> None:
    with pytest.raises(ArgumentError, match="'x' is no tensor") as caught:
        copy(3)
    assert caught.value.code == "BW702"
    assert caught.value.help == "pass a tensor ok"
    with pytest.raises(TypeError, match="BW702: 'x' is no tensor"):  # plain users of the FFI
        library.function("copy")(3)


@pytest.mark.parametrize("shape", [(1 << 62, 8), (1 << 45, 1), (1 << 31, 1 << 31), (-1, 1)])
def test_impossible_sizes_raise_memory_errors(library: Any, shape: tuple[int, int]) -> None:
    with pytest.raises(MemoryError, match="BW720"):
        library.function("alloc")(*shape)
    with pytest.raises(ArgumentError, match="no memory") as caught:
        NativeFunction(library.function("alloc"), "alloc")(*shape)
    assert caught.value.code == "BW720"
    assert library.function("alloc")(0, 1 << 40).shape == (0, 1 << 40)


def test_large_results_reuse_memory_only_of_released_ones(copy: NativeFunction) -> None:
    size = 9 << 20  # 36 MiB of float32
    sources = [np.full(size, value, "float32") for value in range(3)]
    first, second = (copy(source) for source in sources[:2])
    assert first.ctypes.data != second.ctypes.data
    place = first.ctypes.data
    del first
    third = copy(sources[2])
    assert third.ctypes.data == place
    longer = copy(np.full(size + 5, 7, "float32"))
    for array, value in ((second, 1), (third, 2), (longer, 7)):
        assert array.min() == array.max() == value
    del second, third
    assert [copy(source)[-1] for source in sources] == [0, 1, 2]


def test_results_of_hundreds_of_megabytes_are_used_again(copy: NativeFunction) -> None:
    """Beyond 256 MiB the system may take the pages between two calls."""
    places = set[int]()
    for value in (1, 2):
        result = copy(np.full(65 << 20, value, "float32"))
        assert result.min() == result.max() == value
        places.add(result.ctypes.data)
        del result
    assert len(places) == 1


@pytest.mark.parametrize(
    ("message", "class_", "code"),
    [
        ("BW601: a", BuildError, "BW601"),
        ("BW704: b\nhelp: c", ArgumentError, "BW704"),
        ("  BW801: d  ", ArtefactError, "BW801"),
        ("BW101: e", BlockwrightError, "BW101"),
    ],
)
def test_translation(message: str, class_: type[BlockwrightError], code: str) -> None:
    error = translate(RuntimeError(message))
    assert type(error) is class_
    assert error_code(error) == error_code(RuntimeError(message)) == code


def test_other_errors_stay_as_they_are() -> None:
    for error in (RuntimeError("disk full"), KeyboardInterrupt(), ValueError("BW7: no")):
        assert translate(error) is error
        assert error_code(error) is None


def test_type_words_and_kinds() -> None:
    assert dlpack_dtype("float32") == 2 | 32 << 8 | 1 << 16
    assert dlpack_dtype("bool") == 6 | 8 << 8 | 1 << 16
    assert dlpack_dtype("int8x4") == 8 << 8 | 4 << 16
    assert dlpack_dtype("bfloat16") == 4 | 16 << 8 | 1 << 16
    with pytest.raises(BuildError, match="decimal7"):
        dlpack_dtype("decimal7")
    assert [error_kind(c) for c in ("BW702", "BW704", "BW640")] == [
        "TypeError",
        "ValueError",
        "RuntimeError",
    ]
