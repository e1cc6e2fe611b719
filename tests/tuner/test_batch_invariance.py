"""Where bits must not depend on the batch, neither do the kernel and the order of its sums."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith import flash_attention
from flashsmith.base.errors import Unsupported
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan, sum_order
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose.choice import choose

H200 = {"arch": "sm_90a", "gpu": "NVIDIA H200"}
DENSE = AttentionProblem(1, 16, 16, 4096, 4096, 128)
LOOP = "overlap+early_rescale+stats_SUM+lazy_8+tiles_DYNAMIC+sections+o_smem+regs_232_40"


def configs_of(problems):
    return {choose(problem, **H200).config for problem in problems}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_kernel_is_not_chosen_by_what_shares_the_batch(causal):
    problem = replace(DENSE, causal=causal, heads=4, kv_heads=4, q_len=1500, k_len=1500, d_head=64)
    batches = [replace(problem, batch=batch) for batch in (1, 2, 5, 16, 64, 300)]
    assert len(configs_of(batches)) > 1  # it is, where nobody asks for more
    asked = [replace(p, batch_invariant=True) for p in batches]
    assert len(configs_of(asked)) == 1
    assert "whatever shares the batch" in choose(asked[0], **H200).reason


def test_packed_sequences_get_one_kernel_whatever_is_packed():
    packed = [
        replace(DENSE, sequences=n, q_len=rows, k_len=rows)
        for n, rows in ((1, 20), (3, 500), (40, 16384), (500, 100_000))
    ]
    assert len(configs_of(packed)) == 1


def test_no_tile_is_split_and_none_ascends_by_its_place_in_the_launch():
    split = parse_config(f"hopper(BF16, 128, 2, 128): kv_2+q_4+{LOOP.replace('sections', 'split')}")
    problem = replace(DENSE, heads=9, kv_heads=9)
    assert sum_order(plan(split, problem, sm_count=132))
    assert not sum_order(plan(split, replace(problem, batch_invariant=True), sm_count=132))
    first = parse_config(f"hopper(BF16, 128, 2, 128): kv_2+q_4+up_FIRST+{LOOP}")
    causal = replace(DENSE, causal=True, batch_invariant=True)
    with pytest.raises(Unsupported, match="only the first tiles of a launch"):
        plan(first, causal, sm_count=132)
    plan(first, replace(causal, batch_invariant=False), sm_count=132)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_sequence_has_the_same_bits_alone_and_in_company(causal):
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal((3, 203, 3, 64)).astype(np.float16) for _ in "qkv")
    asked = {"causal": causal, "batch_invariant": True, "backend": "emulator"}
    together = flash_attention(q, k, v, **asked)
    for one in range(3):
        alone = flash_attention(*(x[one : one + 1] for x in (q, k, v)), **asked)
        np.testing.assert_array_equal(alone[0], together[one])
