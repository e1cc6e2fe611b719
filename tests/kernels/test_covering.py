"""Which kernels may run in the place of another: those that give the same bits."""

import numpy as np
import pytest

from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case, inputs_of
from flashsmith.compile.compiler import compile_kernel, compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import OF_FACTS, OF_TILES, Needs
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded

MMA = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
HOPPER = "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+tiles_DYNAMIC+regs_232_40"
DECODE = "decode(BF16, 64, 16, 32, 4): slice_512+most_32+stages_2+ctas_3"
FACTS = {
    "scores": {"causal": True, "window_left": 100, "softcap": 5.0, "sinks": True, "lse": True},
    "packed": {"causal": True, "sequences": 3},
}
SHIPPED = (
    "hopper(BF16, 128, 2, 128): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM"
    "+lazy_8+halves+up_ALL+tiles_DYNAMIC+late_draw+sections+o_smem+hints+regs_232_40"
)


def output(device, config, problem, more=()):
    """The bits of O, by the problem's own kernel or by one that knows more needs."""

    def other(launch):
        compiled = compile_ptx if device.runs_ptx else compile_kernel
        return compiled(launch.config, Needs((*launch.needs, *more)), device.arch)

    device.kernels.clear()  # what is loaded is not asked for
    places, buffers = contiguous_tensors(problem, inputs_of(Case("covered", problem)))
    with uploaded(device, buffers) as held:
        prepared = prepare(device, config, problem, substitute=other if more else None)
        assert prepared.is_substituted is bool(more)
        prepared(held.call(places))
        return held.download("o")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", [MMA, HOPPER], ids=["mma", "hopper"])
def test_a_kernel_that_knows_more_of_tiles_gives_the_same_bits(text, causal):
    device = EmulatedDevice(options=EmulatorOptions(mma_in_order=True))
    config = parse_config(text)
    problem = AttentionProblem(1, 2, 1, 128, 256, 64, DType.BF16, causal=causal)
    own = output(device, config, problem)
    # Every second, in turn: all of them in each family, and with and without a mask.
    first = (text == MMA) ^ causal
    for more in [*([name] for name in OF_TILES), list(OF_TILES)][first::2]:
        np.testing.assert_array_equal(output(device, config, problem, more), own, str(more))


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("text", [MMA, HOPPER], ids=["mma", "hopper"])
def test_so_it_does_beside_other_facts(text, facts):
    device = EmulatedDevice(options=EmulatorOptions(mma_in_order=True))
    problem = AttentionProblem(1, 3, 1, 128, 256, 64, DType.BF16, **facts)
    config = parse_config(text)
    own = output(device, config, problem)
    np.testing.assert_array_equal(output(device, config, problem, list(OF_TILES)), own)


@pytest.mark.parametrize("facts", [{}, {"k_lengths": True}], ids=["plain", "lengths"])
@pytest.mark.parametrize("text", [DECODE, f"hopper_{DECODE}"], ids=["decode", "hopper_decode"])
def test_so_does_a_kernel_of_few_rows(text, facts):
    device = EmulatedDevice(options=EmulatorOptions(mma_in_order=True))
    problem = AttentionProblem(1, 3, 1, 1, 768, 64, DType.BF16, **facts)
    config = parse_config(text)
    own = output(device, config, problem)
    np.testing.assert_array_equal(output(device, config, problem, list(OF_TILES)), own)


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("text", [MMA, HOPPER, SHIPPED], ids=["mma", "hopper", "shipped"])
def test_it_gives_the_same_bits_on_a_gpu(text, causal):
    device, config = default_device("cuda"), parse_config(text)
    problem = AttentionProblem(2, 8, 2, 2048, 4096, config.d_head, DType.BF16, causal=causal)
    own = output(device, config, problem)
    for more in [*([name] for name in OF_TILES), list(OF_TILES)]:
        np.testing.assert_array_equal(output(device, config, problem, more), own, str(more))


def test_a_kernel_with_a_log_sum_exp_has_other_bits_and_does_not_serve():
    """Why a fact is no tile: this kernel sums its rows in another way."""
    device = EmulatedDevice(options=EmulatorOptions(mma_in_order=True))
    problem = AttentionProblem(1, 2, 1, 128, 256, 64, DType.BF16)
    own, other = (output(device, parse_config(MMA), problem, more) for more in ((), ("lse",)))
    assert (own != other).any()
    assert not Needs(("lse",)).gives_bits_of(Needs())


@pytest.mark.parametrize("fact", OF_FACTS)
def test_only_needs_of_tiles_may_be_more(fact):
    assert Needs((fact, *OF_TILES)).gives_bits_of(Needs((fact,)))
    assert not Needs((fact,)).gives_bits_of(Needs(("ragged_q", fact)))
    assert not Needs((fact, *OF_TILES)).gives_bits_of(Needs())
    assert not Needs(tuple(OF_TILES)).gives_bits_of(Needs((fact,)))
