"""Kernels that come with a wheel are used in place of a compiler, as long as they are current."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin_gpus import plug_in
from typer.testing import CliRunner

from flashsmith import flash_attention
from flashsmith.base.dtypes import DType
from flashsmith.cli.main import app
from flashsmith.compile import compiler, header_closure
from flashsmith.compile.compiler import CompileJob, compile_kernel
from flashsmith.compile.nvrtc import library as nvrtc_library
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import kernels_of, needs_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.tuner.choose import measured, shipped_kernels
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.choose.measured import MeasuredTable
from flashsmith.tuner.store.exchange import write_lines
from flashsmith.tuner.store.machine_code import jobs_of
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed

ARCH = "sm_90a"
CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+load_2_2_2_tiles")
PROBLEM = AttentionProblem(1, 3, 1, 128, 128, 64, DType.BF16, causal=True)
TRAITS = Needs(("causal",))
SHIPPED_TABLE = measured.SHIPPED_FOLDER / "nvidia_h200.jsonl"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What a package ships that has one measurement, of an H200, and its kernels."""
    folder = tmp_path_factory.mktemp("shipped")
    key = MeasurementKey("NVIDIA H200", ARCH, "", "", "", CONFIG.short_form(), PROBLEM, "final")
    timed = Timed(10.0, 10.0, 10.0, 15, "f")
    write_lines([Measurement(key, timed, gate=True)], folder / "nvidia_h200.jsonl")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flashsmith.tuner.choose.measured.SHIPPED_FOLDER", folder)
        patched.setattr(shipped_kernels, "_ruled_jobs", lambda items: ())  # seconds each
        made = shipped_kernels.write_shipped_kernels()
    # Two types, with LSE and without, whole tiles or not of queries and of keys.
    assert made == {folder / f"{ARCH}.bundle": 16}
    return folder


@pytest.fixture
def shipped(built, tmp_path, monkeypatch):
    """The same, as the package's own; the user has no results and no kernel in the cache."""
    folder = tmp_path / "shipped"
    shutil.copytree(built, folder)
    monkeypatch.setattr("flashsmith.tuner.choose.measured.SHIPPED_FOLDER", folder)
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(tmp_path / "none.sqlite"))
    return folder


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    """NVRTC cannot be loaded and the cache is empty: whoever compiles fails."""
    monkeypatch.setenv("FLASHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(nvrtc, "_load", lambda path: pytest.fail("NVRTC was loaded"))
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("a kernel was compiled"))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize(("q_len", "k_len"), [(128, 128), (100, 128), (192, 101), (130, 203)])
def test_a_shipped_choice_loads_no_compiler(
    shipped, no_compiler, monkeypatch, dtype, lse, q_len, k_len
):
    gpu = plug_in(monkeypatch, "NVIDIA H200")
    q, k = (np.zeros((1, n, 3, 64), dtype) for n in (q_len, k_len))
    *_, choice = flash_attention(q, k, k, causal=True, return_lse=lse, explain=True)
    assert choice.source == "shipped measurement"
    holds = {"causal": True, "lse": lse, "ragged_q": q_len % 64 > 0, "ragged_k": k_len % 32 > 0}
    needs = Needs(tuple(name for name, it_does in holds.items() if it_does))
    assert {started.kernel for started in gpu.started} == {choice.config.kernel_name(needs)}


def test_without_a_bundle_a_shipped_choice_is_compiled(shipped, monkeypatch):
    shipped_kernels.bundle_path(ARCH).unlink()
    gpu = plug_in(monkeypatch, "NVIDIA H200")
    q = np.zeros((1, 128, 3, 64), np.float16)
    _, choice = flash_attention(q, q, q, causal=True, explain=True)
    assert choice.source == "shipped measurement"
    assert {started.kernel for started in gpu.started} == {choice.config.kernel_name(TRAITS)}


def test_the_emulator_runs_what_is_compiled(shipped):
    """A shipped kernel has no PTX."""
    q = np.zeros((1, 128, 3, 64), ml_dtypes.bfloat16)
    flash_attention(q, q, q, causal=True, config=CONFIG, backend="emulator")
    assert shipped_kernels.shipped_or_compiled(CONFIG, TRAITS, ARCH).ptx == ""


def test_env_says_what_is_shipped_and_what_of_it_is_of_other_sources(shipped, monkeypatch):
    def found():
        ran = CliRunner().invoke(app, ["env", "--json"])
        rows = {row["what"]: row for row in json.loads(ran.stdout)}
        return rows["shipped kernels"]

    assert found()["found"] == "sm_90a: 16 kernels"
    monkeypatch.setattr(shipped_kernels, "kernel_source_hash", lambda *_: "another")
    assert found()["found"] == "sm_90a: 16 kernels, 16 of them of other sources"
    shipped_kernels.bundle_path(ARCH).write_bytes(b"PK")
    assert "is not a complete bundle" in found()["found"]
    shipped_kernels.bundle_path(ARCH).unlink()
    assert (found()["found"], found()["to_get_it"]) == (None, "make wheel")


@st.composite
def calls(draw):
    """A shape near one of the H200's table, in lengths, heads, type and layout."""
    near = draw(st.sampled_from(measured.choosable(SHIPPED_TABLE))).key.problem
    heads = draw(st.sampled_from([1, 3, 8, 48]))
    return AttentionProblem(
        batch=draw(st.integers(1, 64)),
        heads=heads,
        kv_heads=draw(st.sampled_from([n for n in (1, heads) if heads % n == 0])),
        q_len=draw(st.integers(near.q_len // 2, 2 * near.q_len)),
        k_len=draw(st.integers(near.k_len // 2, 2 * near.k_len)),
        d_head=near.d_head,
        dtype=draw(st.sampled_from(DType)),
        causal=near.causal,
    )


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(problem=calls(), lse=st.booleans())
def test_every_choice_of_the_shipped_table_is_among_the_kernels_of_a_wheel(problem, lse):
    jobs = set(_jobs_of_a_wheel())
    table = MeasuredTable("shipped measurement", lambda: measured.choosable(SHIPPED_TABLE))
    choice = choose(problem, ARCH, gpu="NVIDIA H200", measurements=[table])
    assert choice.source == "shipped measurement"
    needs = needs_of(choice.config, replace(problem, lse=lse))
    assert CompileJob(choice.config, needs, ARCH) in jobs


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(problem=calls(), group=st.sampled_from(shipped_kernels.GROUPS))
def test_so_is_every_choice_for_the_gradients_of_its_problems(problem, group):
    kv_heads = problem.heads
    problem = replace(problem, heads=group * kv_heads, kv_heads=kv_heads, operation="backward")
    choice = choose(problem, ARCH, gpu="NVIDIA H200")
    assert set(jobs_of(choice.config, problem, ARCH)) <= set(_jobs_of_a_wheel())


LISTED = {
    "packed": {"sequences": 21, "batch": 1, "batch_invariant": True},
    "packed, for gradients": {"sequences": 3, "batch": 1, "batch_invariant": True, "lse": True},
    "lengths of keys": {"k_lengths": True},
    "lengths of both": {"k_lengths": True, "q_lengths": True},
    "a chunk": {"q_len": 300, "k_len": 40000, "k_lengths": True, "batch_invariant": True},
    "a short chunk": {"q_len": 40, "k_lengths": True, "batch_invariant": True},
    "on pages": {"q_len": 256, "k_len": 90000, "k_lengths": True, "page": 64, "pages": 7},
    "on small pages": {"q_len": 77, "k_lengths": True, "page": 1, "pages": 7},
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("facts", LISTED.values(), ids=LISTED)
def test_so_is_what_is_chosen_for_packed_sequences_and_lengths(facts, d_head, causal):
    problem = AttentionProblem(3, 24, 8, 1999, 1999, d_head, DType.FP16, causal=causal)
    problem = replace(problem, **facts)
    choice = choose(problem, ARCH, gpu="NVIDIA H200")
    jobs = {CompileJob(*pair, ARCH) for pair in kernels_of(choice.config, problem)}
    assert jobs <= set(_jobs_of_a_wheel())


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize(("length", "window"), [(300, 100), (2048, 512), (9000, 4096)])
@pytest.mark.parametrize("batch", [1, 8])
def test_so_is_what_is_chosen_for_causal_windows(batch, length, window, d_head, lse):
    problem = AttentionProblem(batch, 8, 2, length, length, d_head, causal=True, lse=lse)
    problem = replace(problem, window_left=window)
    choice = choose(problem, ARCH, gpu="NVIDIA H200")
    assert set(jobs_of(choice.config, problem, ARCH)) <= set(_jobs_of_a_wheel())


@cache
def _jobs_of_a_wheel():
    return tuple(shipped_kernels.shipped_jobs()[ARCH])


def test_the_docs_say_how_many_kernels_a_wheel_has():
    text = (Path(__file__).parents[2] / "docs/api.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"For the H200's table these are ([\d,]+) kernels", text)
    assert int(told.replace(",", "")) == len(_jobs_of_a_wheel())


def test_the_shipped_kernel_is_the_compiled_one(shipped):
    kernel = shipped_kernels.shipped_or_compiled(CONFIG, TRAITS, ARCH)
    compiled = compile_kernel(CONFIG, TRAITS, ARCH)
    assert kernel.cubin == compiled.cubin
    assert kernel.compile_seconds == 0


@pytest.mark.parametrize("other", ["needs", "configuration", "sources", "driver", "damage"])
def test_anything_else_is_compiled(shipped, tmp_path, monkeypatch, other):
    config, needs = CONFIG, TRAITS
    if other == "needs":
        needs = Needs()
    elif other == "configuration":
        config = replace(CONFIG, swizzled=True)
    elif other == "sources":
        headers = tmp_path / "include"
        shutil.copytree(header_closure.INCLUDE_ROOT, headers)
        with (headers / CONFIG.HEADER).open("a") as header:
            header.write("// another\n")
        monkeypatch.setattr(header_closure.closure_hash, "__defaults__", (headers,))
    elif other == "driver":
        monkeypatch.setattr(nvrtc_library, "driver_cuda_major", lambda: 12)
    else:
        shipped_kernels.bundle_path(ARCH).write_bytes(b"PK")
    compiled = []

    def compile_instead(*asked):
        compiled.append(asked)
        return compile_kernel(*asked)

    monkeypatch.setattr(shipped_kernels, "compile_kernel", compile_instead)
    kernel = shipped_kernels.shipped_or_compiled(config, needs, ARCH)
    assert compiled == [(config, needs, ARCH)]
    assert kernel.name == config.kernel_name(needs)
