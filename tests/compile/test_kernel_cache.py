"""The kernel cache: private, whole or not there, healed when damaged, compiled once, bounded."""

import hashlib
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flashsmith.base.errors import ArgumentError, CompileError
from flashsmith.base.whole_file import scratch_beside
from flashsmith.compile import compiler
from flashsmith.compile.cache import kernel_cache
from flashsmith.compile.cache import upkeep as cache_upkeep
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.compile.unit import UnitOptions

SOURCE = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }\n'

CHILD = """
import sys
from pathlib import Path
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.cache.kernel_cache import KernelCache

compiled = []
compile_program = nvrtc.compile_program
nvrtc.compile_program = lambda *a: compiled.append(1) or compile_program(*a)
source = Path(sys.argv[2]).read_text()
sys.stdin.read(1)
compile_text(source, "k", "sm_80", cache=KernelCache(Path(sys.argv[1]), 1 << 30))
print(len(compiled), "libnvrtc" in Path("/proc/self/maps").read_text())
"""


def compile_one(cache, text=SOURCE):
    return compile_text(text, "k", "sm_80", cache=cache)


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a warm look-up must not compile")

    return lambda: monkeypatch.setattr(nvrtc, "compile_program", refuse)


def test_a_warm_look_up_gives_the_same_kernel_and_does_not_compile(cache, no_compiler):
    first = compile_one(cache)
    no_compiler()
    assert compile_one(cache) == first
    assert compile_one(KernelCache(cache.root, cache.limit_bytes)) == first


def test_a_key_that_was_never_compiled_is_none(cache):
    assert cache.get("0" * 64) is None


def test_every_folder_is_private_to_the_user(cache):
    compile_one(cache)
    folders = [cache.root, *(path for path in cache.root.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


@pytest.mark.parametrize("action", ["read", "write"])
def test_a_folder_of_another_user_is_not_used(cache, monkeypatch, action):
    if action == "read":
        compile_one(cache)
    else:
        cache.root.mkdir()
    other = cache.root.stat().st_uid + 1
    monkeypatch.setattr(kernel_cache.os, "getuid", lambda: other)
    with pytest.raises(ArgumentError, match=r"belongs to user .* set FLASHSMITH_CACHE_DIR"):
        compile_one(KernelCache(cache.root, cache.limit_bytes))


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.ptx", "artefact.json", "artefact.sha256"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_entry_is_moved_aside_rebuilt_and_said_once(cache, caplog, name, damage):
    first = compile_one(cache)
    path = first.folder / name
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(data[: len(data) // 2] + (b"!" * 40 if damage == "changed" else b""))
    with caplog.at_level(logging.WARNING, "flashsmith.cache"):
        again = compile_one(cache)
        compile_one(cache)
    assert again.cubin == first.cubin
    assert len(caplog.records) == 1
    assert "is damaged" in caplog.text
    assert len(list((cache.root / "damaged").iterdir())) == 1


def test_a_damaged_entry_that_cannot_be_moved_is_a_miss_too(cache, caplog):
    first = compile_one(cache)
    (first.folder / "artefact.json").write_text("[" * 100_000)  # deeper than Python recurses
    (cache.root / "damaged").write_text("not a folder")
    assert cache.get(first.key) is None
    assert "left there" in caplog.text


def test_every_fact_of_an_entry_is_covered_by_its_hash(cache, caplog):
    first = compile_one(cache)
    facts = first.folder / "artefact.json"
    facts.write_text(facts.read_text().replace('"registers": ', '"registers": 1'))
    assert cache.get(first.key) is None
    assert "the hash of artefact.json is not the stated one" in caplog.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"registers": ', '"registers": -1'),
        ('"warnings": []', '"warnings": 5'),
        ('"sm_80"', "[1]"),
        ('"compile_seconds": ', '"compile_seconds": -'),
        ('"files": {', '"files": 5, "x": {'),
    ],
)
def test_a_fact_of_an_entry_that_is_of_a_wrong_type_is_damage(cache, old, new):
    first = compile_one(cache)
    facts, stated = first.folder / "artefact.json", first.folder / "artefact.sha256"
    changed = facts.read_text().replace(old, new, 1)
    assert changed != facts.read_text()
    facts.write_text(changed)
    stated.write_text(hashlib.sha256(changed.encode()).hexdigest())
    assert cache.get(first.key) is None


def test_an_entry_under_another_key_is_damaged(cache, caplog):
    first = compile_one(cache)
    first.folder.rename(first.folder.with_name("0" * 64))
    assert cache.get("0" * 64) is None
    assert "it belongs to another key" in caplog.text


def test_two_processes_compile_the_same_kernel_once(cache, tmp_path):
    source = tmp_path / "unit.cu"
    # Long enough to compile that the second process waits for the first.
    source.write_text(
        'extern "C" __global__ void k(float* p) {\n'
        "#pragma unroll\nfor (int i = 0; i < 400; ++i) p[i] = __sinf(p[i] + p[i + 1]);\n}\n"
    )
    command = [sys.executable, "-c", CHILD, str(cache.root), str(source)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        child.stdin.write("g")
        child.stdin.flush()
    answers = [child.communicate()[0].split() for child in children]
    assert sorted(compiled for compiled, _ in answers) == ["0", "1"]
    # The third finds it there and does not even load NVRTC.
    third = subprocess.run(command, input="g", capture_output=True, text=True, check=True)
    assert third.stdout.split() == ["0", "False"]
    assert not list((cache.root / "locks").iterdir())


def test_a_lock_is_held_against_other_threads(cache):
    order = []

    def second():
        with cache.lock("key"):
            order.append("second")

    with cache.lock("key"):
        thread = threading.Thread(target=second)
        thread.start()
        with cache.lock("another key"):
            order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_least_recently_used_entries_go_when_the_limit_is_passed(cache):
    kernels = [compile_one(cache, SOURCE.replace("1.0f", f"{i}.0f")) for i in range(4)]
    for age, kernel in enumerate(kernels):
        past = time.time() - 1000 + age
        os.utime(kernel.folder, (past, past))
    cache.get(kernels[0].key)  # used again: no longer the oldest
    size = cache_upkeep.entries(cache.root)[0].n_bytes
    small = KernelCache(cache.root, 4 * size)
    compile_one(small, SOURCE.replace("1.0f", "5.0f"))
    left = {entry.folder.name for entry in cache_upkeep.entries(cache.root)}
    assert kernels[0].key in left
    assert kernels[1].key not in left
    assert sum(entry.n_bytes for entry in cache_upkeep.entries(cache.root)) <= 4 * size


def test_clean_removes_every_entry_and_says_how_much(cache):
    compile_one(cache)
    cleaned = cache_upkeep.clean(cache.root)
    assert (cleaned.count, cleaned.left) == (1, ())
    assert cleaned.n_bytes > 1000
    assert cache_upkeep.entries(cache.root) == []


def test_clean_goes_on_behind_an_entry_that_it_cannot_remove(cache, monkeypatch):
    kernels = [compile_one(cache, SOURCE.replace("1.0f", f"{i}.0f")) for i in range(3)]
    stuck, rename = kernels[0].folder, Path.rename

    def refuse(path, target):
        if path == stuck:
            raise PermissionError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    cleaned = cache_upkeep.clean(cache.root)
    assert (cleaned.count, cleaned.left) == (2, (f"{stuck}: Permission denied",))
    assert [entry.folder for entry in cache_upkeep.entries(cache.root)] == [stuck]


def test_half_an_entry_is_removed_whatever_ended_its_writing(cache, monkeypatch, caplog):
    compiler._say_unwritable.cache_clear()
    write = Path.write_bytes
    monkeypatch.setattr(
        Path, "write_bytes", lambda p, data: fails() if "cubin" in p.name else write(p, data)
    )
    assert compile_one(cache).folder is None
    assert "cannot be written (No space left on device)" in caplog.text
    assert list((cache.root / "kernels").iterdir()) == []


def test_what_a_killed_process_left_is_swept_away_and_its_name_harms_nobody(cache):
    key = compile_one(cache).key
    cache_upkeep.clean(cache.root)
    old, new = (cache.root / "kernels" / f".{key}-{n}" for n in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
        (folder / "kernel.cu").write_text("half")
    past = time.time() - 2 * cache_upkeep.ABANDONED_AFTER_S
    os.utime(old, (past, past))
    assert compile_one(KernelCache(cache.root, cache.limit_bytes)).folder is not None
    assert not old.exists()
    assert new.exists()  # its writer may be at work


def test_scratch_names_do_not_repeat_with_the_number_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert len({scratch_beside(tmp_path / "x") for _ in range(100)}) == 100


def test_a_folder_that_cannot_be_written_is_said_and_the_kernel_is_made_all_the_same(
    tmp_path, caplog
):
    compiler._say_unwritable.cache_clear()
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    kernel = compile_one(KernelCache(blocked / "cache", 1 << 30))
    compile_one(KernelCache(blocked / "cache", 1 << 30))
    assert kernel.folder is None
    assert kernel.cubin
    assert [record.message for record in caplog.records if "cannot be written" in record.message]
    assert len(caplog.records) == 1


def fails(*arguments, **options):
    raise OSError(28, "No space left on device")


def test_an_entry_that_cannot_be_written_does_not_compile_the_kernel_twice(
    cache, monkeypatch, caplog
):
    compiler._say_unwritable.cache_clear()
    compiled, compile_program = [], nvrtc.compile_program
    monkeypatch.setattr(
        nvrtc, "compile_program", lambda *a: compiled.append(1) or compile_program(*a)
    )
    monkeypatch.setattr(KernelCache, "put", fails)
    kernel = compile_one(cache)
    assert (len(compiled), kernel.folder) == (1, None)
    assert kernel.cubin
    assert "cannot be written (No space left on device)" in caplog.text
    assert not list((cache.root / "locks").iterdir())


def test_a_unit_that_does_not_compile_is_told_where_it_cannot_be_kept(cache, monkeypatch, caplog):
    compiler._say_unwritable.cache_clear()
    monkeypatch.setattr(KernelCache, "keep_failure", fails)
    with pytest.raises(CompileError, match="does not compile") as refused:
        compile_one(cache, "no C++")
    assert refused.value.source_path is None
    assert "cannot be written" in caplog.text


def test_an_error_of_the_compiler_itself_is_not_blamed_on_the_cache(cache, monkeypatch, caplog):
    started = []
    monkeypatch.setattr(nvrtc, "compile_program", lambda *a: started.append(1) or fails())
    with pytest.raises(OSError, match="No space left"):
        compile_one(cache)
    assert started == [1]
    assert "cannot be written" not in caplog.text


def test_a_compilers_process_that_does_not_start_is_an_error_of_the_unit(cache, monkeypatch):
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(CompileError, match=r"process did not start: .*No space left"):
        compile_text(SOURCE, "k", "sm_80", options=UnitOptions(debug=True), cache=cache)


def test_a_system_without_posix_locks_is_told_so_in_a_sentence():
    code = (
        "import sys; sys.modules['fcntl'] = None; sys.argv = ['flashsmith', 'compile', 'smoke']\n"
        "from flashsmith.cli.main import main\n"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "no POSIX file locks" in ran.stderr
    assert "Traceback" not in ran.stderr
