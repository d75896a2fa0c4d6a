"""The thread pool, as compiled code sees it: what runs, where, how often, and at what cost."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockwright.codegen.link.link import LinkOptions, link
from blockwright.codegen.llvm.binding import compile_object
from blockwright.codegen.rt.runtime import runtime_ir
from blockwright.codegen.rt.scratch_memory import scratch_ir
from blockwright.codegen.rt.threadpool import threadpool_ir
from blockwright.runtime.library import load_library
from blockwright.runtime.threads import num_threads, set_num_threads, set_spin_us
from blockwright.target import Target
from tests.codegen.support_text import PRELUDE, TARGET

TRIPLE = "x86_64-unknown-linux-gnu"

# mark(tasks, spins, fail_at, nested, counts): counts[i] is how often task i ran. A task spins for
# `spins` rounds; task `fail_at` raises; `nested` runs each range as a region of its own.
PROGRAM = (
    PRELUDE
    + r"""
@kind = private constant [11 x i8] c"ValueError\00"
@message = private constant [18 x i8] c"BW708: task fails\00"

define internal i32 @body(ptr %ctx, i64 %begin, i64 %end) {
entry:
  %counts = load ptr, ptr %ctx, align 8
  %sp = getelementptr i64, ptr %ctx, i64 1
  %spins = load i64, ptr %sp, align 8
  %fp = getelementptr i64, ptr %ctx, i64 2
  %fail = load i64, ptr %fp, align 8
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %next ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %task, label %done
task:
  %bad = icmp eq i64 %i, %fail
  br i1 %bad, label %raise, label %work
raise:
  %rc = call i32 @bw_raise(ptr @kind, ptr @message)
  ret i32 %rc
work:
  %p = getelementptr i32, ptr %counts, i64 %i
  %old = atomicrmw add ptr %p, i32 1 monotonic, align 4
  br label %spin
spin:
  %k = phi i64 [ 0, %work ], [ %k1, %spin ]
  call void asm sideeffect "", ""()
  %k1 = add i64 %k, 1
  %over = icmp sge i64 %k1, %spins
  br i1 %over, label %next, label %spin
next:
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret i32 0
}

define internal i32 @inner(ptr %pair, i64 %begin, i64 %end) {
  %ctx = load ptr, ptr %pair, align 8
  %bp = getelementptr i64, ptr %pair, i64 1
  %base = load i64, ptr %bp, align 8
  %b = add i64 %base, %begin
  %e = add i64 %base, %end
  %rc = call i32 @body(ptr %ctx, i64 %b, i64 %e)
  ret i32 %rc
}

define internal i32 @outer(ptr %ctx, i64 %begin, i64 %end) {
  %pair = alloca [2 x i64], align 8
  store ptr %ctx, ptr %pair, align 8
  %bp = getelementptr i64, ptr %pair, i64 1
  store i64 %begin, ptr %bp, align 8
  %n = sub i64 %end, %begin
  %rc = call i32 @bw_parallel_for(ptr @inner, ptr %pair, i64 %n)
  ret i32 %rc
}

define i32 @__tvm_ffi_mark(ptr %self, ptr %args, i32 %n, ptr %result) {
  %ctx = alloca [3 x i64], align 8
  %p0 = getelementptr i8, ptr %args, i64 8
  %tasks = load i64, ptr %p0, align 8
  %p1 = getelementptr i8, ptr %args, i64 24
  %spins = load i64, ptr %p1, align 8
  %p2 = getelementptr i8, ptr %args, i64 40
  %fail = load i64, ptr %p2, align 8
  %p3 = getelementptr i8, ptr %args, i64 56
  %nested = load i64, ptr %p3, align 8
  %a4 = getelementptr i8, ptr %args, i64 64
  %t = call ptr @bw_tensor_of(ptr %a4)
  %data = call ptr @bw_tensor_data(ptr %t)
  store ptr %data, ptr %ctx, align 8
  %c1 = getelementptr i64, ptr %ctx, i64 1
  store i64 %spins, ptr %c1, align 8
  %c2 = getelementptr i64, ptr %ctx, i64 2
  store i64 %fail, ptr %c2, align 8
  %flag = icmp ne i64 %nested, 0
  %fn = select i1 %flag, ptr @outer, ptr @body
  %rc = call i32 @bw_parallel_for(ptr %fn, ptr %ctx, i64 %tasks)
  ret i32 %rc
}
"""
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files with the same contents: the second must use the first one's pool."""
    parts = (
        ("program", PROGRAM),
        ("runtime", runtime_ir(TARGET)),
        ("pool", threadpool_ir(TARGET)),
    )
    objects = [(n, compile_object(t, TRIPLE, "x86-64-v2", "", "host", n)) for n, t in parts]
    image = link(objects, LinkOptions(exports=["__tvm_ffi_mark"])).tobytes()
    folder = tmp_path_factory.mktemp("pool")
    paths = [folder / "first.so", folder / "second.so"]
    for path in paths:
        path.write_bytes(image)
    return paths


@pytest.fixture
def mark(libraries: list[Path]) -> Iterator[Any]:
    function = load_library(libraries[0]).function("mark")

    def call(tasks: int, spins: int = 0, fail_at: int = -1, nested: int = 0) -> np.ndarray:
        counts = np.zeros(max(tasks, 1), np.int32)
        function(tasks, spins, fail_at, nested, counts)
        return counts[:tasks]

    set_num_threads(4)
    yield call
    set_num_threads(0)
    set_spin_us(50)


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("nested", [0, 1])
def test_every_task_runs_exactly_once(mark: Any, threads: int, nested: int) -> None:
    set_num_threads(threads)
    assert num_threads() == threads
    for tasks in (0, 1, 2, 3, 7, 16, 17, 64, 1000):
        for _ in range(20):
            assert (mark(tasks, nested=nested) == 1).all()


@pytest.mark.parametrize("spin_us", [0, 1, 50])
def test_no_work_is_lost_however_threads_wait(mark: Any, spin_us: int) -> None:
    set_spin_us(spin_us)
    for pause in itertools.islice(itertools.cycle([0, 0, 0, 1e-4, 1e-3]), 200):
        assert (mark(37, spins=50) == 1).all()
        time.sleep(pause)


def test_the_number_of_threads_may_change_at_any_time(mark: Any) -> None:
    for count in [1, 4, 2, 8, 3, 1, 6] * 5:
        set_num_threads(count)
        assert (mark(100, spins=100) == 1).all()


@pytest.mark.parametrize("fail_at", [0, 50, 99])
def test_an_error_reaches_the_caller_from_any_thread(mark: Any, fail_at: int) -> None:
    for _ in range(20):
        with pytest.raises(ValueError, match="BW708: task fails"):
            mark(100, spins=2000, fail_at=fail_at)
        assert (mark(100) == 1).all()


def test_several_callers_at_once(mark: Any) -> None:
    failures: list[BaseException] = []

    def caller() -> None:
        try:
            for i in range(150):
                assert (mark(50, spins=200) == 1).all()
                if i % 10 == 0:
                    with pytest.raises(ValueError, match="BW708"):
                        mark(50, fail_at=25)
        except (AssertionError, ValueError, pytest.fail.Exception) as error:
            failures.append(error)

    callers = [threading.Thread(target=caller) for _ in range(5)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not failures


def _name(task: Path) -> str:
    """A thread's name; none of one that has ended meanwhile."""
    try:
        return (task / "comm").read_text()
    except FileNotFoundError:
        return ""


def worker_tasks() -> list[Path]:
    """The pool's own threads."""
    tasks = Path("/proc/self/task").iterdir()
    return [task for task in tasks if _name(task) == "bw-worker\n"]


def test_beside_busy_programs_no_task_is_lost_and_threads_may_run_where_they_might(
    mark: Any,
) -> None:
    """A worker that lost its processor is moved to the caller's for a while, and back; one on the
    caller's processor keeps to the others from then on."""
    allowed = os.sched_getaffinity(0)
    endless = [sys.executable, "-c", "while True: pass"]
    set_num_threads(3)
    others = [subprocess.Popen(endless) for _ in allowed]
    try:
        for _ in range(300):
            assert (mark(60, spins=20_000) == 1).all()
    finally:
        for other in others:
            other.kill()
            other.wait()
    for task in worker_tasks():
        own = os.sched_getaffinity(int(task.name))
        assert own <= allowed
        assert len(own) >= max(1, len(allowed) - 1)


def test_with_one_thread_callers_work_on_threads_of_their_own(mark: Any) -> None:
    """All of the processor time of a call is its caller's: the pool's threads sleep."""
    mark(100)  # they exist
    set_num_threads(1)
    time.sleep(0.05)
    before = [(task / "schedstat").read_text().split()[0] for task in worker_tasks()]
    with ThreadPoolExecutor(2) as callers:
        found = list(callers.map(lambda _: mark(200, spins=2000), range(20)))
    assert all((one == 1).all() for one in found)
    assert [(task / "schedstat").read_text().split()[0] for task in worker_tasks()] == before


def test_idle_threads_stop_spinning(mark: Any) -> None:
    mark(100, spins=1000)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.02


def test_libraries_share_one_pool(mark: Any, libraries: list[Path]) -> None:
    other = load_library(libraries[1]).function("mark")

    set_num_threads(9)
    mark(100)
    time.sleep(0.05)
    assert len(worker_tasks()) == 8
    counts = np.zeros(100, np.int32)
    other(100, 0, -1, 0, counts)
    assert (counts == 1).all()
    assert len(worker_tasks()) == 8


def test_workers_leave_signals_to_the_main_thread(mark: Any) -> None:
    mark(100)
    for task in os.listdir("/proc/self/task"):
        status = Path(f"/proc/self/task/{task}/status").read_text()
        if status.startswith("Name:\tbw-worker"):
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
                assert blocked >> (number - 1) & 1
            assert not blocked >> (signal.SIGSEGV - 1) & 1


def run_python(program: str, *args: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PLAIN = """
    import sys
    sys.modules["torch"] = None  # not needed here, and slow to import
    import os, numpy as np, tvm_ffi
    def mark(path, tasks):
        counts = np.zeros(tasks, np.int32)
        tvm_ffi.load_module(path)["mark"](tasks, 100, -1, 0, counts)
        return bool((counts == 1).all())
    """


def test_a_process_without_this_package(libraries: list[Path]) -> None:
    program = (
        PLAIN
        + """
    assert mark(sys.argv[1], 100) and mark(sys.argv[2], 100)
    print(tvm_ffi.get_global_func("blockwright.num_threads")(), "blockwright" in sys.modules)
    """
    )
    paths = [str(path) for path in libraries]
    assert run_python(program, *paths, BLOCKWRIGHT_NUM_THREADS="3") == "3 False"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_worker_does_not_share_the_processor_of_the_caller(libraries: list[Path]) -> None:
    """The system would leave it there while programs on the other processors keep them as busy."""
    program = (
        PLAIN
        + """
    import pathlib, subprocess
    allowed = sorted(os.sched_getaffinity(0))
    assert mark(sys.argv[1], 100)
    workers = []
    while not workers:
        workers = [task for task in pathlib.Path("/proc/self/task").iterdir()
                   if (task / "comm").read_text().strip() == "bw-worker"]
    os.sched_setaffinity(0, allowed[:1])
    endless = "import os; os.sched_setaffinity(0, [{}])\\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", endless.format(cpu)]) for cpu in allowed[1:]]
    together = 0
    try:
        for _ in range(300):
            assert mark(sys.argv[1], 40_000)
            last = (workers[0] / "stat").read_text().rsplit(")", 1)[1].split()[36]
            together += last == str(allowed[0])
    finally:
        for other in others:
            other.kill()
    print(together)
    """
    )
    environment = {"BLOCKWRIGHT_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    assert int(run_python(program, str(libraries[0]), **environment)) < 60


def test_default_follows_affinity(libraries: list[Path]) -> None:
    program = (
        PLAIN
        + """
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    assert mark(sys.argv[1], 100)
    print(tvm_ffi.get_global_func("blockwright.num_threads")(), len(os.listdir("/proc/self/task")))
    """
    )
    environment = {"BLOCKWRIGHT_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": "1"}
    assert run_python(program, str(libraries[0]), **environment) == "1 1"


GROUP_FILES = {
    "cpu.max": "100000 100000",
    "cpu.cfs_quota_us": "50000",
    "cpu.cfs_period_us": "100000",
}
"""What a control group of either version says to processes that get one processor or less."""


@pytest.mark.parametrize("version", [1, 2])
def test_default_follows_the_quota_of_the_control_group(
    version: int, libraries: list[Path], tmp_path: Path
) -> None:
    """In a mount namespace of its own, where the files of control groups are ours."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this process may not have a mount namespace of its own")
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    paths = {line.split(":")[1]: line.split(":")[2] for line in groups}
    if ("" if version == 2 else "cpu") not in paths:
        pytest.skip(f"no control group of version {version} here")
    files = tmp_path / "groups"
    folder = files / ("" if version == 2 else "cpu") / paths["" if version == 2 else "cpu"][1:]
    folder.mkdir(parents=True)
    for name, text in GROUP_FILES.items():
        if name.startswith("cpu.max") == (version == 2):
            (folder / name).write_text(text)
    program = (
        PLAIN
        + """
    assert mark(sys.argv[1], 100)
    from blockwright.runtime.threads import allowed_processors
    print(tvm_ffi.get_global_func("blockwright.num_threads")(), allowed_processors())
    """
    )
    script = f'mount --bind {files} /sys/fs/cgroup && exec "$@"'
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            sys.executable,
            "-c",
            textwrap.dedent(program),
            str(libraries[0]),
        ],
        env={**os.environ, "BLOCKWRIGHT_NUM_THREADS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_fork_before_and_after_first_use(libraries: list[Path]) -> None:
    program = (
        PLAIN
        + """
    def child():
        pid = os.fork()
        if pid == 0:
            ok = all(mark(sys.argv[1], 100) for _ in range(50))
            os._exit(0 if ok and len(os.listdir("/proc/self/task")) == 4 else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    module = tvm_ffi.load_module(sys.argv[1])
    codes = [child()]
    assert mark(sys.argv[1], 100)
    codes += [child(), child()]
    assert mark(sys.argv[1], 100)
    print(codes)
    """
    )
    environment = {"BLOCKWRIGHT_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}
    assert run_python(program, str(libraries[0]), **environment) == "[0, 0, 0]"


def test_interrupt_while_compiled_code_runs(libraries: list[Path]) -> None:
    program = (
        PLAIN
        + """
    import signal, threading, time
    module = tvm_ffi.load_module(sys.argv[1])
    assert mark(sys.argv[1], 100)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            mark(sys.argv[1], 10_000)
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    """
    )
    assert run_python(program, str(libraries[0]), BLOCKWRIGHT_NUM_THREADS="4") == "interrupted"


@pytest.mark.parametrize("value", [-1, 513, 2.5, "four", True, None])
def test_settings_out_of_range(libraries: list[Path], value: Any) -> None:
    with pytest.raises(ValueError, match="BW710"):
        set_num_threads(value)
    load_library(libraries[0])
    import tvm_ffi

    if value is not True:
        with pytest.raises(ValueError, match="BW710"):
            tvm_ffi.get_global_func("blockwright.set_num_threads")(value)


@pytest.mark.parametrize("module", [threadpool_ir, runtime_ir, scratch_ir])
def test_support_code_compiles_for_aarch64(module: Callable[[Target], str]) -> None:
    target = Target("aarch64")
    compile_object(module(target), target.triple, "generic", "", "host", "support code")
