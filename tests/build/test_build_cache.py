"""The object cache and the compile workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import msgspec
import pytest

from blockwright.build.cache import ObjectCache, cache_directory
from blockwright.build.worker import CompileJob, ProofJob, Proved
from blockwright.build.workers import WorkerPool
from blockwright.codegen.llvm import binding as llvm
from blockwright.ir import structural_hash
from blockwright.script.ir import from_source
from blockwright.support import BlockwrightWarning, BuildError
from blockwright.target import Target

TARGET = Target("native")


def job(name: str, text: str | None = None) -> CompileJob:
    text = text or f"define i32 @{name}() {{\n  ret i32 7\n}}\n"
    return CompileJob(name, text, TARGET.triple, llvm.cpu_name(TARGET), TARGET.features, "kernel")


# ------------------------------------------------------------------------------ cache
def test_what_is_put_is_found(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    key = ObjectCache.key("program", "x86", "avx2")
    assert cache.get(key) is None
    cache.put(key, b"object" * 100)
    assert ObjectCache(tmp_path).get(key) == b"object" * 100
    assert (cache.hits, cache.misses) == (0, 1)


def test_keys_depend_on_every_part() -> None:
    keys = {
        ObjectCache.key(*parts)
        for parts in [("a", "b"), ("ab", ""), ("", "ab"), ("a",), ("a", "b", ""), ("b", "a")]
    }
    assert len(keys) == 6


@pytest.mark.parametrize("damage", [b"", b"BWOBJ2\0\0", b"x" * 200])
def test_damaged_files_are_ignored_and_replaced(damage: bytes, tmp_path: Path) -> None:
    cache, key = ObjectCache(tmp_path), ObjectCache.key("p")
    cache.put(key, b"good")
    (file,) = tmp_path.glob("*/*.o")
    file.write_bytes(damage)
    assert cache.get(key) is None
    cache.put(key, b"good")
    assert cache.get(key) == b"good"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert cache.get(key) is None


def test_a_copy_of_another_entry_is_ignored(tmp_path: Path) -> None:
    cache, keys = ObjectCache(tmp_path), [ObjectCache.key(name) for name in "ab"]
    for key in keys:
        cache.put(key, key.encode())
    files = [tmp_path / key[:2] / f"{key[2:]}.o" for key in keys]
    files[1].write_bytes(files[0].read_bytes())
    assert cache.get(keys[1]) is None
    assert cache.get(keys[0]) == keys[0].encode()


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    """A folder has a 256th of the limit: here three files."""
    cache = ObjectCache(tmp_path, limit=256 * 3_200)
    keys = [f"ab{ObjectCache.key(str(i))}" for i in range(6)]
    past = time.time() - 1000
    for age, key in enumerate(keys[:3]):
        cache.put(key, bytes(1000))
        os.utime(tmp_path / key[:2] / f"{key[2:]}.o", (past + age, past + age))
    assert cache.get(keys[0]) is not None  # used now, so it stays
    elsewhere = f"cd{keys[0]}"
    cache.put(elsewhere, bytes(1000))
    for key in keys[3:5]:
        cache.put(key, bytes(1000))
    kept = [key for key in keys if cache.get(key) is not None]
    assert kept == [keys[0], *keys[3:5]]
    assert cache.get(elsewhere) is not None


def test_what_is_larger_than_its_share_of_the_limit_is_kept_until_the_next(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit=256 * 100)
    first, second = f"ab{ObjectCache.key('1')}", f"ab{ObjectCache.key('2')}"
    for key in (first, second):
        cache.put(key, bytes(1000))
        assert cache.get(key) is not None
    assert cache.get(first) is None


def test_directories_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", "")
    assert cache_directory() is None
    monkeypatch.delenv("BLOCKWRIGHT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "blockwright" / "objects"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification says to ignore
    assert cache_directory() == tmp_path / ".cache" / "blockwright" / "objects"


def test_a_user_without_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BLOCKWRIGHT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_directory() is None


def test_no_directory_and_unwritable_places_only_mean_no_cache(tmp_path: Path) -> None:
    nothing = ObjectCache(None)
    nothing.put("ab" * 20, b"x")
    assert nothing.get("ab" * 20) is None
    file = tmp_path / "file"
    file.write_text("in the way")
    blocked = ObjectCache(file)
    with pytest.warns(BlockwrightWarning, match=r"BW667.*cannot be cached in"):
        blocked.put("ab" * 20, b"x")
    assert blocked.get("ab" * 20) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        blocked.put("cd" * 20, b"x")  # the note is given once
        ObjectCache(file).put("ab" * 20, b"x")


AS_A_USER_WITHOUT_RIGHTS = """
import os
kept = os.environ.pop("BLOCKWRIGHT_CACHE_DIR", None)
os.environ["BLOCKWRIGHT_CACHE_DIR"] = ""
import numpy as np
import blockwright as bw
program = bw.from_source('''
@T.prim_func
def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        b[i] = a[i] * T.float32(2)
''')
# Called once, so that everything is imported while the process may read it.
bw.build(program)(np.ones(8, "float32"), np.zeros(8, "float32"))
del os.environ["BLOCKWRIGHT_CACHE_DIR"]
if kept is not None:
    os.environ["BLOCKWRIGHT_CACHE_DIR"] = kept
os.setgroups([])
os.setresgid(12345, 12345, 12345)
os.setresuid(12345, 12345, 12345)
for _ in range(2):
    module = bw.build(program)
    a, b = np.ones(8, "float32"), np.zeros(8, "float32")
    module(a, b)
    assert (b == 2).all()
print("right")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize("place", ["no home", "home", "cache", "relative"])
def test_a_user_without_rights_compiles(place: str, tmp_path: Path) -> None:
    """A user without passwd entry, whose home or cache directory is missing or not writable."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HOME", "XDG", "BLOCKWRIGHT"))}
    if place == "home":
        env["HOME"] = str(locked)
    elif place in ("cache", "relative"):
        env["BLOCKWRIGHT_CACHE_DIR"] = str(locked) if place == "cache" else "objects"
    done = subprocess.run(
        [sys.executable, "-c", AS_A_USER_WITHOUT_RIGHTS],
        env=env,
        cwd=locked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "right\n", done.stderr
    assert done.stderr.count("[BW667]") == (0 if place == "no home" else 1), done.stderr


def _hammer(directory: str, seed: int) -> None:
    cache = ObjectCache(Path(directory), limit=50_000)
    for i in range(200):
        key = ObjectCache.key(str((i * seed) % 40))
        found = cache.get(key)
        assert found is None or found == key.encode() * 50
        cache.put(key, key.encode() * 50)


def test_many_processes_share_a_directory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_hammer, args=(str(tmp_path), s)) for s in (3, 7)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0]


# ------------------------------------------------------------------------------ workers
@pytest.fixture(scope="module")
def pool() -> object:
    made = WorkerPool(2)
    yield made
    made.close()


def test_objects_come_in_the_order_of_the_jobs(pool: WorkerPool) -> None:
    jobs = [job(f"f{i}") for i in range(12)]
    objects = pool.run(jobs)
    for one, data in zip(jobs, objects, strict=True):
        assert one.what.encode() + b"\0" in data
    assert pool.run(jobs[:2]) == objects[:2]  # few jobs: compiled here, with the same result


def test_errors_name_the_kernel(pool: WorkerPool) -> None:
    jobs = [job(f"f{i}") for i in range(7)] + [job("broken", "define i32 @broken( {")]
    with pytest.raises(BuildError, match="broken") as caught:
        pool.run(jobs)
    assert caught.value.code == "BW640"
    assert len(pool.run(jobs[:7])) == 7


def test_a_dead_worker_is_reported_and_replaced(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(f"g{i}") for i in range(8)]
    pool.run(jobs)
    worker = pool._idle[-1]  # pyright: ignore[reportPrivateUsage]
    os.kill(worker.process.pid, signal.SIGSTOP)
    taken = pool._take  # pyright: ignore[reportPrivateUsage]

    def take_and_kill() -> object:
        found = taken()
        if found is worker:
            os.kill(worker.process.pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(pool, "_take", take_and_kill)
    with pytest.raises(
        BuildError, match="worker ended with status -9 while it processed g"
    ) as caught:
        pool.run(jobs)
    assert caught.value.code == "BW641"
    monkeypatch.undo()
    assert len(pool.run(jobs)) == 8


# ------------------------------------------------------------------------------ proofs
def proof(extent: int, hashes: tuple[int, int] | None = None) -> ProofJob:
    """Ones written to a row, in one loop and in two."""
    text = (
        "@T.prim_func\ndef ones(A: T.Buffer(({extent},), 'float32')):\n    {loops}:\n"
        "        with T.block('A'):\n            v = T.axis.spatial({extent}, {index})\n"
        "            A[v] = T.float32(1)\n"
    )
    before = text.format(extent=extent, loops=f"for i in range({extent})", index="i")
    after = text.format(
        extent=extent, loops=f"for i, j in T.grid(2, {extent // 2})", index=f"i * {extent // 2} + j"
    )
    known = tuple(structural_hash(from_source(t)) for t in (before, after))
    return ProofJob("ones", before, after, hashes or (known[0], known[1]))


def test_schedules_are_proved_by_the_same_workers(pool: WorkerPool) -> None:
    pytest.importorskip("islpy")
    finished: list[int] = []
    answers = pool.run([proof(n) for n in range(4, 12)], lambda: finished.append(1))
    found = [msgspec.msgpack.decode(a, type=Proved) for a in answers]
    assert [one.verdict for one in found] == ["proved", "refuted"] * 4  # odd rows are not finished
    assert len(finished) == 8


def test_a_program_that_is_read_as_another_one_proves_nothing(pool: WorkerPool) -> None:
    pytest.importorskip("islpy")
    with pytest.raises(BuildError, match="ones does not parse back to the same program") as caught:
        pool.run([proof(4, hashes=(1, 2))])
    assert caught.value.code == "BW642"
