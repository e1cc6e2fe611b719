"""PTX without machine code: the same text, kept under a key of its own, judged by nobody."""

import logging

import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import LaunchError, Unsupported
from flashsmith.check.cases import Case
from flashsmith.check.survey import check_one
from flashsmith.check.verdict import check_case
from flashsmith.compile import compiler
from flashsmith.compile.artefact import CompiledKernel, PtxKernel
from flashsmith.compile.compiler import compile_kernel, compile_ptx
from flashsmith.compile.nvrtc import program as nvrtc
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.cuda.device import CudaDevice
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.limits import require_fits
from flashsmith.runtime.run import prepare

NEEDS = Needs(("causal", "ragged_k"))
KERNELS = [
    "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "hopper(BF16, 64, 1, 64): kv_2+q_1+regs_240_56",
    "decode(BF16, 64, 16, 16, 4): slice_256+most_32+stages_2+ctas_1",
]


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a warm look-up must not compile")

    return lambda: monkeypatch.setattr(nvrtc, "compile_program", refuse)


@pytest.mark.parametrize("text", KERNELS)
def test_the_text_is_that_of_the_whole_kernel(cache, text):
    config = parse_config(text)
    alone = compile_ptx(config, NEEDS, "sm_90a", cache=cache)
    whole = compile_kernel(config, NEEDS, "sm_90a", cache=cache)
    assert type(alone) is PtxKernel
    assert type(whole) is CompiledKernel
    assert (alone.ptx, alone.name, alone.arch) == (whole.ptx, whole.name, "sm_90a")
    assert alone.key != whole.key
    assert ("setmaxnreg" in alone.ptx) == config.FIXES_REGISTERS
    assert sorted(path.name for path in alone.folder.iterdir()) == [
        "artefact.json", "artefact.sha256", "kernel.cu", "kernel.log", "kernel.ptx",
    ]  # fmt: skip


def test_a_warm_look_up_does_not_compile_and_gives_no_machine_code(cache, small, no_compiler):
    first = compile_ptx(small, NEEDS, "sm_80", cache=cache)
    no_compiler()
    assert compile_ptx(small, NEEDS, "sm_80", cache=cache) == first
    with pytest.raises(AssertionError, match="must not compile"):
        compile_kernel(small, NEEDS, "sm_80", cache=cache)


def test_a_whole_kernel_serves_without_its_machine_code(cache, small, no_compiler):
    whole = compile_kernel(small, NEEDS, "sm_80", cache=cache)
    no_compiler()
    alone = compile_ptx(small, NEEDS, "sm_80", cache=cache)
    assert type(alone) is PtxKernel
    assert (alone.ptx, alone.key) == (whole.ptx, whole.key)


def test_a_damaged_entry_is_moved_aside_and_made_again(cache, small, caplog):
    first = compile_ptx(small, NEEDS, "sm_80", cache=cache)
    (first.folder / "kernel.ptx").write_text("nonsense")
    with caplog.at_level(logging.WARNING):
        again = compile_ptx(small, NEEDS, "sm_80", cache=cache)
    assert again.ptx == first.ptx
    assert "the hash of kernel.ptx is not the stated one" in caplog.text


def test_every_option_of_the_compiler_is_part_of_the_key(cache, small, monkeypatch):
    first = compile_ptx(small, NEEDS, "sm_80", cache=cache)
    monkeypatch.setattr(compiler, "PTX_OPTIONS", (*compiler.PTX_OPTIONS, "--fmad=false"))
    assert compile_ptx(small, NEEDS, "sm_80", cache=cache).key != first.key


def test_what_does_not_exist_on_an_architecture_is_refused(cache, small):
    with pytest.raises(Unsupported, match="do not exist on compute_80"):
        compile_ptx(small, NEEDS, "compute_80", cache=cache)
    with pytest.raises(Unsupported, match="do not exist on sm_80"):
        compile_ptx(parse_config(KERNELS[1]), NEEDS, "sm_80", cache=cache)


def test_the_emulator_runs_what_a_check_of_the_machine_code_refuses(monkeypatch, small):
    """`check_case` asks for numbers; `check_one`, which `verify` shows, for the build as well."""

    def refusing(config, kernel):
        raise Unsupported(f"{config.short_form()}: ptxas spills 8 bytes.")

    monkeypatch.setattr(compiler, "_accepted", refusing)
    case = Case("small", AttentionProblem(1, 3, 1, 70, 101, 64, small.dtype))
    device = EmulatedDevice()
    assert check_case(device, small, case).ok
    assert check_one(device, small, case).refusal.endswith("ptxas spills 8 bytes.")


def test_a_gpu_is_given_no_ptx(small):
    kernel = compile_ptx(small, NEEDS, "sm_90a")
    device = object.__new__(CudaDevice)
    with pytest.raises(LaunchError, match=r"no cubin.*PTX is not loaded"):
        device._load_cubin(kernel)


def test_the_emulator_is_given_ptx_alone_and_what_needs_none_fits(small):
    device = EmulatedDevice()
    prepared = prepare(device, small, AttentionProblem(1, 3, 1, 70, 101, 64, small.dtype))
    (step,) = prepared.steps
    assert type(step.kernel) is PtxKernel
    require_fits("it", step.kernel, step.launch.geometry, get_arch("sm_90a"))


@pytest.mark.judged
def test_ctas_that_count_each_other_run_with_the_registers_of_their_machine_code():
    config = parse_config(KERNELS[2])
    problem = AttentionProblem(3, 6, 2, 2, 1300, 64, config.dtype)
    steps = prepare(EmulatedDevice(), config, problem).steps
    assert any(step.launch.workspace_bytes for step in steps)
    for step in steps:
        is_counted = step.launch.workspace_bytes > 0
        assert isinstance(step.kernel, CompiledKernel) == is_counted


@pytest.mark.judged
@pytest.mark.parametrize(("text", "is_whole"), [(KERNELS[0], False), (KERNELS[1], True)])
def test_a_call_asks_for_machine_code_where_a_kernel_refuses_some(text, is_whole):
    config = parse_config(text)
    assert config.judges_builds() == is_whole
    problem = AttentionProblem(1, 3, 1, 70, 101, 64, config.dtype)
    (step,) = prepare(EmulatedDevice(), config, problem, judged=True).steps
    assert isinstance(step.kernel, CompiledKernel) == is_whole
    (alone,) = prepare(EmulatedDevice(), config, problem).steps
    assert type(alone.kernel) is PtxKernel
