"""A small encoder compiled once: every size, every target, many threads, forks, the profile."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw
from blockwright.runtime.profile import AFTER, BEFORE

SIZES = [(1, 2), (1, 64), (64, 2), (3, 17), (8, 33)]


def test_every_size_in_the_declared_range_is_right(
    encoder: Any, encoder_exe: Any, compare_with_torch: Any, make_tokens: Any, rng: Any
) -> None:
    random = [(int(rng.integers(1, 65)), int(rng.integers(2, 65))) for _ in range(20)]
    for batch, sequence in [*SIZES, *random]:
        compare_with_torch(encoder_exe, encoder, make_tokens(batch, sequence))


def test_repeated_runs_give_the_same_bits(encoder_exe: Any, make_tokens: Any) -> None:
    inputs = make_tokens(7, 40)
    first = encoder_exe(*inputs)
    for _ in range(20):
        assert torch.equal(encoder_exe(*inputs), first)


def test_older_processors_are_served(
    encoder: Any, compile_torch: Any, compare_with_torch: Any, make_tokens: Any
) -> None:
    shapes = {
        name: {0: torch.export.Dim("batch", min=1, max=64),
               1: torch.export.Dim("sequence", min=2, max=64)}
        for name in ("input_ids", "attention_mask")
    }  # fmt: skip
    ids = torch.ones((3, 7), dtype=torch.int64)
    exe = compile_torch(encoder, (ids, ids), shapes, "x86-64-v2")
    text = exe.show("asm")
    assert "%xmm" in text
    assert "%ymm" not in text
    for batch, sequence in SIZES:
        compare_with_torch(exe, encoder, make_tokens(batch, sequence))


def test_several_threads_may_call_one_executable(encoder_exe: Any, make_tokens: Any) -> None:
    inputs = [make_tokens(b, s) for b, s in SIZES * 4]
    expected = [encoder_exe(*pair) for pair in inputs]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            found = list(pool.map(lambda pair: encoder_exe(*pair), inputs))
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_child_of_fork_can_go_on(encoder_exe: Any, make_tokens: Any) -> None:
    inputs = [x.numpy() for x in make_tokens(8, 33)]
    expected = encoder_exe(*inputs)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        same = all(np.array_equal(encoder_exe(*inputs), expected) for _ in range(3))
        os.write(writer, b"same" if same else b"other")
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 30
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.read(reader, 16) == b"same"
    os.close(reader)
    assert np.array_equal(encoder_exe(*inputs), expected)


def test_nothing_of_the_compiler_runs_at_a_call(encoder_exe: Any, make_tokens: Any) -> None:
    """Not one function of a compiler room is entered, at a size seen for the first time."""
    entered: set[str] = set()

    def watch(frame: Any, event: str, argument: Any) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if event == "call" and name.startswith("blockwright."):
            entered.add(".".join(name.split(".")[:2]))

    inputs = make_tokens(5, 59)
    sys.setprofile(watch)
    try:
        encoder_exe(*inputs)
    finally:
        sys.setprofile(None)
    assert entered <= {"blockwright.runtime"}


# ------------------------------------------------------------------------------------- profile
def test_the_profile_counts_and_times_every_kernel(encoder_exe: Any, make_tokens: Any) -> None:
    inputs = make_tokens(4, 20)
    profile = encoder_exe.profile(*inputs, repeat=3)
    first, second = (i for i, c in enumerate(profile.calls) if "attention" in c.operators)
    assert second - first <= 9  # kernels of one layer
    assert profile.kernel_calls == len(profile.calls) == sum(k.calls for k in profile.kernels())
    assert all(c.duration >= 0 for c in profile.calls)
    overhead = profile.overhead_seconds / profile.timed_seconds
    assert sum(k.share for k in profile.kernels()) + overhead == pytest.approx(1)
    operators = {op for c in profile.calls for op in c.operators}
    assert {"linear", "attention", "layer_norm", "gelu", "embedding"} <= operators
    assert encoder_exe.profile(*make_tokens(2, 3)).kernel_calls == profile.kernel_calls


def test_the_profile_knows_how_much_work_a_kernel_does(encoder_exe: Any, make_tokens: Any) -> None:
    """A linear layer with n rows, 64 inputs and 128 outputs: 2·n·64·128 and some operations."""
    rows = 4 * 20
    profile = encoder_exe.profile(*make_tokens(4, 20))
    call = next(c for c in profile.calls if c.operators == ("linear", "gelu"))
    product = 2 * rows * 64 * 128
    assert product <= call.flops <= product + 20 * rows * 128
    assert call.bytes == 4 * (rows * 64 + 64 * 128 + 128 + rows * 128)


def test_the_profile_is_a_table_and_a_trace(
    encoder_exe: Any, make_tokens: Any, tmp_path: Path
) -> None:
    profile = encoder_exe.profile(*make_tokens(4, 20))
    text = str(profile)
    assert f"{profile.kernel_calls} kernel calls" in text
    assert "4×20" in text
    assert "GFLOP" in text
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e.get("cat") == "kernel"]
    assert len(spans) == profile.kernel_calls
    ends = [e["ts"] + e["dur"] for e in spans]
    assert all(b["ts"] >= end - 1e-3 for end, b in zip(ends, spans[1:], strict=False))


def test_the_profile_leaves_nothing_of_a_call_out(encoder_exe: Any, make_tokens: Any) -> None:
    """Parts follow one another without gaps, and their sum is as long as the timed calls were."""
    profile = encoder_exe.profile(*make_tokens(4, 20), repeat=9)
    parts = sorted((*profile.calls, *profile.overhead), key=lambda part: part.start)
    assert parts[0].start == 0
    for part, later in itertools.pairwise(parts):
        assert part.start + part.duration == pytest.approx(later.start, abs=1e-3)
    assert {part.name for part in profile.overhead} == {*BEFORE, AFTER}
    assert profile.latency > 0
    assert "of a timed call's" in str(profile)
    # Calls without clocks are no longer than timed ones, unless something else delayed them.
    assert any(encoder_exe.profile(*make_tokens(4, 20)).cover >= 0.95 for _ in range(10))


def test_a_profile_takes_the_machine_as_it_is_told(encoder_exe: Any, make_tokens: Any) -> None:
    slow = bw.Roofline(1, 1.0, ((1, 1.0), (2, 1.0)), 1.0)
    inputs = make_tokens(4, 20)
    profile = encoder_exe.profile(*inputs, repeat=1, roofline=slow)
    assert all(
        kernel.limit == pytest.approx(max(kernel.gflops * 1e9, kernel.megabytes * 1e6))
        for kernel in profile.kernels()
        if kernel.calls == 1
    )
    measured = encoder_exe.profile(*inputs, repeat=1).roofline
    assert measured is encoder_exe.profile(*inputs, repeat=1).roofline  # once per process


def test_the_profile_shows_copies(encoder_exe: Any, make_tokens: Any) -> None:
    ids, mask = make_tokens(4, 20)
    assert encoder_exe.profile(ids, mask).copies == 0
    profile = encoder_exe.profile(ids.t().contiguous().t(), mask)
    assert profile.copies == 1
    assert "1 arguments copied" in str(profile)


def test_the_profile_refuses_bad_input_like_a_call(encoder_exe: Any, make_tokens: Any) -> None:
    ids, mask = make_tokens(4, 20)
    with pytest.raises(bw.ArgumentError) as caught:
        encoder_exe.profile(ids, mask[:2])
    assert caught.value.code == "BW709"
    with pytest.raises(bw.OptionError) as wrong:
        encoder_exe.profile(ids, mask, repeat=0)
    assert wrong.value.code == "BW906"


def test_an_estimate_is_the_sum_of_what_the_profile_expects(
    encoder_exe: Any, make_tokens: Any
) -> None:
    inputs = make_tokens(4, 20)
    profile = encoder_exe.profile(*inputs, repeat=1)
    expected = sum(kernel.predicted for kernel in profile.kernels() if kernel.predicted)
    assert encoder_exe.estimate(*inputs) == pytest.approx(expected)
    assert encoder_exe.estimate(*make_tokens(8, 40)) > 2 * expected
    with pytest.raises(bw.ArgumentError) as few:
        encoder_exe.estimate(inputs[0])
    assert few.value.code == "BW701"
    with pytest.raises(bw.ArgumentError) as rank:
        encoder_exe.estimate(inputs[0], inputs[1][0])
    assert rank.value.code == "BW704"


def test_no_kernel_only_copies_an_activation(encoder_exe: Any, make_tokens: Any) -> None:
    """Transposes and reshapes of activations are folded into the kernels that need them."""
    movement = {"reshape", "permute_dims", "transpose", "flatten", "copy", "broadcast_to"}
    for call in encoder_exe.profile(*make_tokens(4, 20)).calls:
        assert not set(call.operators) <= movement, call.kernel


# ----------------------------------------------------------------------------------- interrupts
class Long(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = (x @ x).tanh()
        return x


def test_control_c_stops_a_long_call(compile_torch: Any) -> None:
    n = torch.export.Dim("n", min=2, max=4096)
    exe = compile_torch(Long(), (torch.randn(4, 4),), ({0: n, 1: n},))
    exe(torch.zeros(8, 8))
    size, spent = 64, 0.0
    while spent < 0.1:
        size = size * 5 // 4
        started = time.perf_counter()
        exe(torch.zeros(size, size))
        spent = time.perf_counter() - started
    whole = 8 * spent  # what a matrix of twice the size takes
    threading.Timer(spent, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        exe(torch.zeros(2 * size, 2 * size))
    assert time.perf_counter() - started < whole / 2
    assert torch.equal(exe(torch.zeros(8, 8)), torch.zeros(8, 8))
