"""Kernels that come with a wheel are used in place of a compiler, as long as they are current."""

from dataclasses import replace

import pytest

from flashsmith.api.array_view import ArrayView, compact
from flashsmith.api.launches import launch_for
from flashsmith.api.options import CallOptions
from flashsmith.base.dtypes import DType
from flashsmith.compile.compiler import compile_kernel
from flashsmith.config.parse import parse_config
from flashsmith.config.traits import ForwardTraits
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.runtime.devices import open_device
from flashsmith.runtime.tensors import tensor_shapes
from flashsmith.tuner import shipped_kernels
from flashsmith.tuner.exchange import write_lines
from flashsmith.tuner.measurement import Measurement, MeasurementKey
from flashsmith.tuner.outcome import Timed

ARCH = "sm_90a"
CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+load_2_2_2_tiles")
PROBLEM = AttentionProblem(1, 3, 1, 128, 128, 64, DType.BF16, causal=True)
TRAITS = ForwardTraits(causal=True)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package with one measurement, of a GPU that is called `emulator`, and its kernels."""
    monkeypatch.setattr("flashsmith.tuner.measured.SHIPPED_FOLDER", tmp_path)
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(tmp_path / "none.sqlite"))
    key = MeasurementKey("emulator", ARCH, "", "", "", CONFIG.short_form(), PROBLEM, "final")
    timed = Timed(10.0, 10.0, 10.0, 15, "f")
    write_lines([Measurement(key, timed, gate=True)], tmp_path / "emulator.jsonl")
    made = shipped_kernels.write_shipped_kernels()
    assert made == {tmp_path / f"{ARCH}.bundle": 4}  # two types, with LSE and without
    return tmp_path


def forbid_compiling(monkeypatch):
    monkeypatch.setattr(
        "flashsmith.tuner.shipped_kernels.compile_kernel",
        lambda *_: pytest.fail("a shipped kernel was compiled"),
    )


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("lse", [False, True])
def test_a_shipped_choice_is_not_compiled(shipped, monkeypatch, dtype, lse):
    forbid_compiling(monkeypatch)
    problem = replace(PROBLEM, dtype=dtype)
    options = CallOptions(causal=True, return_lse=lse)
    shapes = tensor_shapes(problem)
    views = [ArrayView(n, shapes[n], compact(shapes[n]), "", 0, "cpu") for n in ("q", "k", "v")]
    launch = launch_for(open_device("emulator"), problem, options, views)
    assert launch.choice.source == "shipped measurement"
    assert launch.start.kernel.name == launch.choice.config.kernel_name(replace(TRAITS, lse=lse))


def test_the_shipped_kernel_is_the_compiled_one(shipped):
    kernel = shipped_kernels.shipped_or_compiled(CONFIG, TRAITS, ARCH)
    compiled = compile_kernel(CONFIG, TRAITS, ARCH)
    assert kernel.cubin == compiled.cubin
    assert kernel.compile_seconds == 0


@pytest.mark.parametrize("other", ["traits", "configuration", "sources", "damage"])
def test_anything_else_is_compiled(shipped, monkeypatch, other):
    config, traits = CONFIG, TRAITS
    if other == "traits":
        traits = ForwardTraits()
    elif other == "configuration":
        config = replace(CONFIG, swizzled=True)
    elif other == "sources":
        monkeypatch.setattr(shipped_kernels, "kernel_source_hash", lambda *_: "another")
    else:
        shipped_kernels.bundle_path(ARCH).write_bytes(b"PK")
    compiled = []

    def compile_instead(*asked):
        compiled.append(asked)
        return compile_kernel(*asked)

    monkeypatch.setattr(shipped_kernels, "compile_kernel", compile_instead)
    kernel = shipped_kernels.shipped_or_compiled(config, traits, ARCH)
    assert compiled == [(config, traits, ARCH)]
    assert kernel.name == config.kernel_name(traits)
