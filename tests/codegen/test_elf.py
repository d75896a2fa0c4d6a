"""Linking: objects made from LLVM text become libraries that the system's loader accepts."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from blockwright.codegen.link import elf_plan
from blockwright.codegen.link.link import DataSegment, LinkOptions, link
from blockwright.codegen.llvm.binding import compile_object
from blockwright.support import BuildError

TRIPLE = "x86_64-unknown-linux-gnu"
Load = Callable[..., ctypes.CDLL]


def obj(text: str) -> bytes:
    return compile_object(text, TRIPLE, "x86-64-v2", "", "host", "a test")


@pytest.fixture
def load(tmp_path: Path) -> Load:
    numbers = itertools.count()

    def load(
        texts: Sequence[str],
        exports: Sequence[str],
        segments: Sequence[DataSegment] = (),
        imports: Sequence[str] = (),
    ) -> ctypes.CDLL:
        objects = [(f"object {i}", obj(text)) for i, text in enumerate(texts)]
        needed = ["libm.so.6", "libc.so.6"]
        options = LinkOptions(exports=exports, needed=needed, imports=imports)
        path = tmp_path / f"lib{next(numbers)}.so"
        path.write_bytes(link(objects, options, segments).tobytes())
        return ctypes.CDLL(str(path))

    return load


def test_code_of_one_object(load: Load) -> None:
    text = "define i32 @twice(i32 %x) {\n %r = add i32 %x, %x\n ret i32 %r }"
    assert load([text], ["twice"]).twice(21) == 42


def test_calls_and_data_between_objects(load: Load) -> None:
    first = """
        declare i32 @helper(i32)
        @counter = external global i32
        @limit = external hidden constant i32
        define i32 @f(i32 %x) {
          %a = call i32 @helper(i32 %x)
          %b = load i32, ptr @counter
          %c = load i32, ptr @limit
          %d = add i32 %a, %b
          %e = add i32 %d, %c
          store i32 %e, ptr @counter
          ret i32 %e }"""
    second = """
        @counter = global i32 1000
        @limit = hidden constant i32 7
        define i32 @helper(i32 %x) {
          %r = mul i32 %x, 3
          ret i32 %r }"""
    library = load([first, second], ["f"])
    assert library.f(2) == 6 + 1000 + 7
    assert library.f(0) == 1013 + 7
    with pytest.raises(AttributeError):
        _ = library.helper  # not exported


def test_constants_zeroed_memory_and_tables_of_addresses(load: Load) -> None:
    text = """
        @scale = private constant [2 x double] [double 0.5, double 4.0]
        @zeros = internal global [1000 x i64] zeroinitializer
        @table = internal constant [2 x ptr] [ptr @zeros, ptr @libm]
        define internal double @libm(double %x) {
          %r = call double @cbrt(double %x)
          ret double %r }
        declare double @cbrt(double)
        define double @f(i64 %i, double %x) {
          %z = getelementptr i64, ptr @zeros, i64 %i
          store i64 %i, ptr %z
          %p = getelementptr ptr, ptr @table, i64 1
          %fn = load volatile ptr, ptr %p
          %r = call double %fn(double %x)
          %q = getelementptr double, ptr @scale, i64 %i
          %s = load double, ptr %q
          %t = fmul double %r, %s
          ret double %t }
        define i64 @z(i64 %i) {
          %z = getelementptr i64, ptr @zeros, i64 %i
          %v = load i64, ptr %z
          ret i64 %v }"""
    library = load([text], ["f", "z"], imports=["cbrt"])
    library.f.restype, library.f.argtypes = ctypes.c_double, [ctypes.c_int64, ctypes.c_double]
    assert library.f(1, 27.0) == pytest.approx(12.0)
    assert (library.z(0), library.z(1), library.z(999)) == (0, 1, 0)


def test_initialisers_run_when_loaded(load: Load) -> None:
    text = """
        @state = internal global i32 1
        @llvm.global_ctors = appending global [1 x { i32, ptr, ptr }]
          [{ i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
        define internal void @start() {
          store i32 5, ptr @state
          ret void }
        define i32 @get() {
          %r = load i32, ptr @state
          ret i32 %r }"""
    assert load([text], ["get"]).get() == 5


def test_imports_through_stub_slot_and_pointer(load: Load) -> None:
    text = """
        declare i32 @abs(i32)
        declare i64 @labs(i64) nonlazybind
        @pointer = global ptr @abs
        define i64 @f(i32 %x) {
          %a = call i32 @abs(i32 %x)
          %w = sext i32 %x to i64
          %b = call i64 @labs(i64 %w)
          %fn = load ptr, ptr @pointer
          %c = call i32 %fn(i32 %x)
          %s = add i32 %a, %c
          %t = sext i32 %s to i64
          %u = add i64 %t, %b
          ret i64 %u }"""
    assert load([text], ["f"], imports=["abs", "labs"]).f(-5) == 15


def test_weak_definitions_yield_to_a_strong_one(load: Load) -> None:
    weak = "define weak i32 @which() {\n ret i32 1 }"
    strong = "define i32 @which() {\n ret i32 2 }"
    assert load([weak, weak], ["which"]).which() == 1
    assert load([weak, strong, weak], ["which"]).which() == 2


def test_data_segments_are_mapped_where_the_symbol_points(load: Load) -> None:
    weights = np.arange(3000, dtype=np.float32)
    text = """
        @weights = external global float
        define float @get(i64 %i) {
          %p = getelementptr float, ptr @weights, i64 %i
          %r = load float, ptr %p
          ret float %r }
        define i64 @misaligned() {
          %a = ptrtoint ptr @weights to i64
          %r = and i64 %a, 255
          ret i64 %r }"""
    segments = [
        DataSegment("note", b"hello"),
        DataSegment("nothing", b""),
        DataSegment("weights", weights, 256),
    ]
    library = load([text], ["get", "misaligned"], segments)
    library.get.restype, library.get.argtypes = ctypes.c_float, [ctypes.c_int64]
    assert [library.get(i) for i in (0, 1, 2999)] == [0.0, 1.0, 2999.0]
    assert library.misaligned() == 0
    assert bytes((ctypes.c_char * 5).in_dll(library, "note")) == b"hello"


def test_distant_data_segments_are_reached_through_the_offset_table(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elf_plan, "_FAR", 8)
    text = """
        @big = external global i64
        @near = global i64 5
        define i64 @f() {
          %a = load i64, ptr @big
          %b = load i64, ptr @near
          %c = add i64 %a, %b
          ret i64 %c }"""
    assert load([text], ["f"], [DataSegment("big", np.array([37, 0]))]).f() == 42


READS = """
    @weights = external constant [4 x float]
    @bias = external constant [3 x float]
    define float @sum(i64 %i) {
      %p = getelementptr [4 x float], ptr @weights, i64 0, i64 %i
      %q = getelementptr [3 x float], ptr @bias, i64 0, i64 %i
      %a = load float, ptr %p
      %b = load float, ptr %q
      %c = fadd float %a, %b
      ret float %c
    }"""


def test_symbols_may_be_addresses_of_this_process(tmp_path: Path) -> None:
    """Constants of a library that is loaded where it was made stay where they are."""
    arrays = {"weights": np.arange(4, dtype="f4"), "bias": np.arange(1 << 20, dtype="f4") * 10}
    places = {name: array.ctypes.data for name, array in arrays.items()}
    options = LinkOptions(exports=["sum"], needed=["libc.so.6"])
    image = link([("sums", obj(READS))], options, numbers=places)
    path = tmp_path / "sums.so"
    path.write_bytes(image.tobytes())
    assert image.size < 1 << 16
    library = ctypes.CDLL(str(path))
    library.sum.restype, library.sum.argtypes = ctypes.c_float, [ctypes.c_int64]
    assert library.sum(2) == 22


def test_data_segments_are_not_copied_while_writing(tmp_path: Path) -> None:
    weights = np.zeros(1 << 20, np.uint8)
    objects = [("o", obj("@w = external global i8\ndefine ptr @f() {\n ret ptr @w }"))]
    options = LinkOptions(exports=["f"], needed=["libc.so.6"])
    image = link(objects, options, [DataSegment("w", weights)])
    weights[:] = 77
    (tmp_path / "x.so").write_bytes(image.tobytes())
    offset, size = image.symbols["w"]
    assert offset % 4096 == 0
    assert (tmp_path / "x.so").read_bytes()[offset : offset + size] == weights.tobytes()


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")
def test_tools_read_names_and_find_no_fault(tmp_path: Path) -> None:
    text = "define void @visible() {\n ret void }\ndefine internal void @kernel_7() noinline {\n"
    text += " store volatile i32 1, ptr null\n ret void }\ndefine void @use() uwtable {\n"
    text += " call void @kernel_7()\n ret void }"
    options = LinkOptions(exports=["visible", "use"], soname="libtest.so", needed=["libc.so.6"])
    path = tmp_path / "x.so"
    path.write_bytes(link([("o", obj(text))], options).tobytes())
    command = ["readelf", "-W", "-a", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    assert "Warning" not in done.stderr
    assert "kernel_7" in done.stdout
    assert "[libtest.so]" in done.stdout
    assert (
        "GNU_STACK      0x000000 0x0000000000000000 0x0000000000000000 0x000000 0x000000 RW "
        in (done.stdout)
    )


@pytest.mark.parametrize("count", [0, 1, 2, 17, 200])
def test_every_export_is_found_through_the_hash_table(load: Load, count: int) -> None:
    names = [f"function_{i}" for i in range(count)] + ["last"]
    texts = [f"define i32 @{name}() {{\n ret i32 {i} }}" for i, name in enumerate(names)]
    library = load(["\n".join(texts)], names)
    assert [library[name]() for name in names] == list(range(count + 1))
    with pytest.raises(AttributeError):
        _ = library["function_x"]


class TestErrors:
    def test_duplicate(self) -> None:
        both = obj("define void @same() {\n ret void }")
        with pytest.raises(BuildError, match=r"'same' is defined in both a and b") as caught:
            link([("a", both), ("b", both)], LinkOptions(exports=[]))
        assert caught.value.code == "BW661"

    def test_duplicate_of_a_data_segment(self) -> None:
        both = obj("@same = global i32 1")
        with pytest.raises(BuildError, match="a data segment") as caught:
            link([("a", both)], LinkOptions(exports=[]), [DataSegment("same", b"1")])
        assert caught.value.code == "BW661"

    def test_all_undefined_names_are_listed(self) -> None:
        text = "declare void @q()\ndeclare void @p()\ndefine void @f() {\n call void @p()\n"
        with pytest.raises(BuildError, match="undefined symbols: p, q") as caught:
            link([("a", obj(text + " call void @q()\n ret void }"))], LinkOptions(exports=["f"]))
        assert caught.value.code == "BW663"

    def test_missing_export(self) -> None:
        with pytest.raises(BuildError, match="in no object: g") as caught:
            link([("a", obj("define void @f() {\n ret void }"))], LinkOptions(exports=["f", "g"]))
        assert caught.value.code == "BW664"

    def test_thread_locals(self) -> None:
        text = "@t = thread_local global i32 1\ndefine ptr @f() {\n ret ptr @t }"
        with pytest.raises(BuildError, match="thread-local") as caught:
            link([("a", obj(text))], LinkOptions(exports=["f"]))
        assert caught.value.code == "BW662"

    def test_unknown_relocation_names_its_place(self) -> None:
        text = "declare i32 @rand()\ndefine i32 @f() {\n %r = call i32 @rand()\n"
        image = bytearray(obj(text + " %s = add i32 %r, 1\n ret i32 %s }"))
        table = struct.unpack_from("<Q", image, 40)[0]
        for index in range(struct.unpack_from("<H", image, 60)[0]):
            _, kind, _, _, offset = struct.unpack_from("<IIQQQ", image, table + 64 * index)
            if kind == 4:
                image[offset + 8] = 200
                break
        with pytest.raises(
            BuildError, match=r"a: \.text\+0x\w+: unsupported .* type 200"
        ) as caught:
            link([("a", bytes(image))], LinkOptions(exports=["f"]))
        assert caught.value.code == "BW662"

    @pytest.mark.parametrize("image", [b"", b"\x7fELF", b"not an object at all" * 10])
    def test_damaged_object(self, image: bytes) -> None:
        with pytest.raises(BuildError) as caught:
            link([("a", image)], LinkOptions(exports=[]))
        assert caught.value.code == "BW660"

    def test_other_processor(self) -> None:
        image = compile_object(
            "define void @f() {\n ret void }", "aarch64-linux-gnu", "generic", "", "host", "a test"
        )
        with pytest.raises(BuildError, match="183") as caught:
            link([("a", image)], LinkOptions(exports=["f"]))
        assert caught.value.code == "BW666"
