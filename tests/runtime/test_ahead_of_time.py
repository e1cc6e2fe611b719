"""Kernels built ahead of time give the bits that compiling on the spot gives."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from flashsmith import arch as arches
from flashsmith.base.dtypes import to_bits
from flashsmith.compile.ahead_of_time import nvcc
from flashsmith.compile.ahead_of_time.build import build_bundle
from flashsmith.compile.ahead_of_time.library import build_library
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.run import run_arrays

CLIENT = Path(__file__).parents[1] / "compile" / "c" / "forward_client.c"
CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax")
OTHER = parse_config("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax")
HOPPER = next(config for config in resolve_key("hopper") if config.d_head == 64)
# Even and full (the plain kernel), even and causal, and what only the general kernel covers: ragged
# lengths, a narrow d_head, a diagonal, and each of them with and without a mask.
SHAPES = {
    "plain": {"q_len": 128, "k_len": 128, "d_head": 64},
    "causal": {"q_len": 128, "k_len": 128, "d_head": 64, "causal": True},
    "ragged": {"q_len": 77, "k_len": 109, "d_head": 64},
    "ragged causal": {"q_len": 77, "k_len": 109, "d_head": 64, "causal": True, "diagonal": 0},
    "narrow": {"q_len": 70, "k_len": 128, "d_head": 40},
}


def problem_of(name, config, lse):
    shape = SHAPES[name] | {"d_head": SHAPES[name]["d_head"] * config.d_head // 64}
    return AttentionProblem(batch=1, heads=3, kv_heads=1, dtype=config.dtype, lse=lse, **shape)


def inputs_of(problem):
    random = np.random.default_rng(0)
    return {
        role.name: to_bits(random.standard_normal(role.shape(problem)), problem.dtype)
        for role in signature_of(problem).inputs(problem)
    }


@pytest.fixture(scope="module")
def bundle_for(tmp_path_factory):
    """A function that gives the bundle of a configuration and architecture, built once."""
    made = {}

    def get(config, arch):
        if (config, arch) not in made:
            path = tmp_path_factory.mktemp("bundle") / "k.bundle"
            made[config, arch] = build_bundle([config], [arches.get(arch)], path).path
        return made[config, arch]

    return get


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("config", [CONFIG, HOPPER], ids=lambda config: config.NAME)
def test_a_bundle_gives_the_bits_of_a_compile(device, bundle_for, monkeypatch, config, name):
    if not config.runs_on(device.arch):
        pytest.skip(f"{config.NAME} does not exist for {device.arch}")
    # In turn: with and without it for each configuration, and for each shape.
    lse = (list(SHAPES).index(name) + (config is HOPPER)) % 2 == 0
    problem = problem_of(name, config, lse)
    inputs = inputs_of(problem)
    compiled = run_arrays(device, config, problem, inputs)
    monkeypatch.setenv("FLASHSMITH_BUNDLE", str(bundle_for(config, device.arch)))
    monkeypatch.setenv("FLASHSMITH_NVRTC", "/nowhere")  # no compiler from here on
    device.kernels.clear()
    bundled = run_arrays(device, config, problem, inputs)
    assert bundled.keys() == compiled.keys() == ({"o", "lse"} if lse else {"o"})
    for output, bits in compiled.items():
        np.testing.assert_array_equal(bundled[output], bits)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """The C program, linked against a library for the GPU that is here."""
    if not has_cuda():
        pytest.skip("needs a GPU")
    folder = tmp_path_factory.mktemp("library")
    arch = arches.get(default_device("cuda").arch)
    build_library([CONFIG, OTHER], [arch], folder)
    program = folder / "client"
    link = (f"-L{folder}", "-lflashsmith", f"-Xlinker=-rpath,{folder}")
    command = [nvcc.find_nvcc(), f"-I{folder}", CLIENT, *link, "-o", program]
    subprocess.run(command, check=True)
    return program


@pytest.mark.gpu
@pytest.mark.parametrize("lse", [False, True], ids=["o", "o and lse"])
@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_a_c_program_gives_the_bits_of_a_compile(client, tmp_path, config, name, lse):
    problem = problem_of(name, config, lse)
    inputs = inputs_of(problem)
    device = default_device("cuda")
    outputs = run_arrays(device, config, problem, inputs)
    numbers = [1, 3, 1, problem.q_len, problem.k_len, problem.d_head]
    numbers += [problem.causal, problem.diagonal_offset, lse]
    data = [np.array(numbers, np.int32), *inputs.values()]
    (tmp_path / "in").write_bytes(b"".join(array.tobytes() for array in data))
    command = [client, config.short_form(), tmp_path / "in", tmp_path / "out"]
    subprocess.run(command, check=True)
    expected = b"".join(bits.tobytes() for bits in outputs.values())
    assert (tmp_path / "out").read_bytes() == expected
