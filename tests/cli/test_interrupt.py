"""Ctrl-C ends a long verb within two seconds, leaves no process behind and loses nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashsmith.tuner.store.database import read_store
from flashsmith.tuner.store.outcome import DidNotRun

# Two seconds on an idle machine; pools that finish their queue take seven and more.
ENDS_WITHIN_S = 6.0
INTERRUPTED = 130
VERBS = {
    "compile": ("compile", "tune", "--workers", "2"),
    "verify": ("verify", "prog", "--device", "emulator", "--cases", "full", "--workers", "2"),
    "tune": ("tune", "64,32", "--device", "emulator", "--arch", "sm_80"),
    "build": ("build", "bundle", "tune", "-o", "tune.bundle", "--workers", "2"),
    "warmup": ("build", "warmup", "--heads", "8", "--d-head", "64", "--gpu", "NVIDIA H200"),
    "bench": (
        *("bench", "prog", "--dtype", "fp16", "--numbers"),
        *("--suite", "small.toml", "--peer", "none.py:none"),
    ),
}
WITH_WORKERS = ("verify", "tune")
SUITE = "about = 'for a while'\n" + "".join(
    f"[[shape]]\nname = '{length}'\nbatch = 1\nheads = 8\nkv_heads = 8\nlength = {length}\n"
    "d_head = 128\nmask = 'full'\n"
    for length in range(500, 520)
)
PEER = "def none(problem, q, k, v):\n    return lambda: q\n"


def start(arguments, folder):
    """The verb in a process group of its own, as a terminal starts it."""
    places = {
        "FLASHSMITH_CACHE_DIR": str(folder / "cache"),
        "FLASHSMITH_RESULTS": str(folder / "r.sqlite"),
        "FLASHSMITH_DEVICE": "emulator",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "flashsmith", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **places},
        start_new_session=True,
        # A shell that starts tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_until(is_so, process):
    until = time.monotonic() + 300
    while not is_so():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)


def members(group):
    """The processes of a group that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, pgid = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgid) == group and state != "Z":
            found.append(folder.name)
    return found


def kept_kernels(folder):
    return [path.name for path in folder.glob("cache/kernels/[0-9a-f]*")]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
# Of a verb in one process both are the same.
@pytest.mark.parametrize(
    ("verb", "to_all"),
    [
        (verb, to_all)
        for verb in VERBS
        for to_all in (True, False)
        if to_all or verb in WITH_WORKERS
    ],
    ids=lambda x: x if isinstance(x, str) else ("one process", "as a terminal does")[x],
)
def test_ctrl_c_ends_a_verb_soon(request, tmp_path, verb, to_all):
    (tmp_path / "small.toml").write_text(SUITE)
    (tmp_path / "none.py").write_text(PEER)
    process = start(VERBS[verb], tmp_path)
    request.addfinalizer(process.kill)
    wait_until(lambda: len(kept_kernels(tmp_path)) >= 2, process)
    if verb in WITH_WORKERS:  # they are at work by then
        wait_until(lambda: len(members(process.pid)) >= 2, process)
    kept = kept_kernels(tmp_path)
    began = time.monotonic()
    if to_all:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert time.monotonic() - began < ENDS_WITHIN_S
    assert process.returncode == INTERRUPTED
    assert told.endswith("\nflashsmith: interrupted; what was finished is kept.\n")
    assert "Traceback" not in told
    assert set(kept) <= set(kept_kernels(tmp_path))
    assert not list(tmp_path.glob("*.bundle"))  # written whole or not at all
    assert not list(tmp_path.glob(".*.bundle*"))
    wait_until_gone(process.pid)
    if verb == "tune":
        store = tmp_path / "r.sqlite"
        failed = [m for m in read_store(store) if isinstance(m.outcome, DidNotRun)]
        assert not failed  # Ctrl-C is no fault of a kernel


def wait_until_gone(group):
    until = time.monotonic() + ENDS_WITHIN_S
    while members(group):
        assert time.monotonic() < until, "workers outlive the verb"
        time.sleep(0.02)
