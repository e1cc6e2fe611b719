"""Heads of up to 512 columns: ctas share the columns of V, each multiplies Q and K again."""

import random
from dataclasses import replace

import numpy as np
import pytest
from nearness import expected_of, require_expected

import flashsmith
from flashsmith.arch import get
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import OutOfResources, Unsupported
from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_ptx
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.tuner.choose.choice import choose

WIDE = "(BF16, 512, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
PLAIN = "(FP16, 512, 64, 32, 4): swizzled+load_4_4_2_tiles"
# Three blocks of keys and more, ragged tails, an odd number of heads that share one.
PROBLEM = AttentionProblem(1, 3, 1, 70, 117, 512, lse=True)


def checked(device, text, **facts):
    """Between canaries that are NaN, behind every row too: a column too many is noticed."""
    config = parse_config(text)
    problem = replace(PROBLEM, **{"dtype": config.dtype, **facts})
    return check_case(device, config, Case("wide heads", problem, placement="padded"))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (WIDE, {"causal": True}),
        (WIDE, {"d_head": 264, "window_left": 30, "causal": True, "sinks": True}),
        (WIDE, {"d_v": 264, "softcap": 5.0}),
        (WIDE, {"d_head": 320, "d_v": 128, "sequences": 3, "alibi": True}),  # one slice
        (WIDE, {"bias": "bool", "lse": False}),
        (PLAIN, {"d_head": 504, "k_lengths": True}),
    ],
    ids=["512", "264", "v 264", "packed", "bias", "plain"],
)
def test_wide_heads_are_right(text, facts, device):
    checked(device, text, **facts).require_ok(text)


def drawn_facts(seed):
    draw = random.Random(seed)
    packed = draw.random() < 0.4
    d_head = draw.choice([264, 320, 384, 504, 512])
    return {
        "d_head": d_head,
        "d_v": draw.choice([0, 8, 256, d_head - 8]),
        "batch": 1 if packed else 2,
        "sequences": 3 if packed else 0,
        "k_lengths": draw.random() < 0.3,
        "q_len": draw.choice([1, 67, 270]),
        "k_len": draw.choice([1, 77, 390]),
        "causal": draw.random() < 0.5,
        "window_left": draw.choice([None, 40]),
        "softcap": draw.choice([None, 5.0]),
        "sinks": draw.random() < 0.3,
        "alibi": draw.random() < 0.3,
        "lse": draw.random() < 0.5,
    }


@pytest.mark.gpu
@pytest.mark.parametrize("text", [WIDE, PLAIN])
def test_much_that_is_drawn_is_right_on_a_gpu(text, device):
    for seed in range(20):
        facts = drawn_facts(f"wide heads {text} {seed}")
        checked(device, text, **facts).require_ok(f"{text} {facts}")


class ChangedDevice(EmulatedDevice):
    """An emulator that runs another text in place of every kernel."""

    def __init__(self, ptx):
        super().__init__(options=EmulatorOptions())
        self.ptx = ptx

    def _load(self, kernel):
        return load(self.ptx)


def test_a_cta_that_takes_another_slice_is_noticed():
    config = parse_config(WIDE)
    problem = replace(PROBLEM, dtype=config.dtype)
    ptx = compile_ptx(config, needs_of(config, problem), "sm_80").ptx
    assert "%ctaid.y" in ptx
    assert checked(ChangedDevice(ptx), WIDE).ok
    for number in "01":
        assert not checked(ChangedDevice(ptx.replace("%ctaid.y", number)), WIDE).ok


def test_slices_are_as_many_as_the_columns_of_v_need():
    config = parse_config(WIDE)
    for d_v, slices in ((0, 2), (8, 1), (256, 1), (264, 2)):
        launch = plan(config, replace(PROBLEM, dtype=config.dtype, d_v=d_v), sm_count=8)[-1]
        assert launch.geometry.grid[1] == slices
    assert config.registers().o == 128
    assert config.smem_bytes() == 2 * (64 * 512 + 32 * (512 + 256))


def test_what_such_kernels_need_is_said_where_a_gpu_lacks_it():
    assert choose(PROBLEM, "sm_80").config == choose(PROBLEM, "sm_90a").config
    config = parse_config(WIDE)
    with pytest.raises(OutOfResources, match="needs 114,688 bytes of shared memory"):
        config.require_buildable(get("sm_86"))
    with pytest.raises(Unsupported, match=r"on sm_86; .* 512, 64, 32, 4\).*114,688 bytes"):
        choose(PROBLEM, "sm_86")


def test_doors_take_wide_heads_and_refuse_their_gradients(monkeypatch):
    random_numbers = np.random.default_rng(0)
    q = random_numbers.normal(size=(1, 5, 2, 300)).astype(np.float16)
    out, lse = flashsmith.flash_attention(q, q, q, causal=True, return_lse=True)
    assert out.shape == q.shape
    np.testing.assert_array_equal(out[:, 0], q[:, 0])  # the first row sees itself
    problem = AttentionProblem(1, 2, 2, 5, 5, 300, DType.FP16, causal=True, lse=True)
    wanted = expected_of(problem, q=q, k=q, v=q)
    require_expected(wanted, o=out, lse=lse)
    with pytest.raises(Unsupported, match=r"d_head is 300 and a gradient is wanted; .* up to 256"):
        flashsmith.flash_attention_backward(q, q, q, q, out, lse)
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    wide = torch.from_numpy(q)
    found = flashsmith.flash_attn_func(wide, wide, wide, causal=True)
    require_expected(wanted, o=found)
    with pytest.raises(Unsupported, match="d_head is 304 and a gradient is wanted"):
        flashsmith.flash_attn_func(wide.clone().requires_grad_(), wide, wide)
    lengths = torch.tensor([3], dtype=torch.int32)
    cached = flashsmith.flash_attn_with_kvcache(
        wide[:, 2:3], wide, wide, cache_seqlens=lengths, causal=True
    )
    problem, first = replace(problem, q_len=1, k_len=3, lse=False), q[:, :3]
    require_expected(expected_of(problem, q=q[:, 2:3], k=first, v=first), o=cached)
    with pytest.raises(Unsupported, match=r"that read pages, .* up to 256; keep .* contiguous"):
        flashsmith.flash_attn_with_kvcache(
            *(torch.zeros(1, 1, 2, 512).half(), *[torch.zeros(2, 16, 2, 512).half()] * 2),
            cache_seqlens=lengths,
            block_table=torch.zeros(1, 1, dtype=torch.int32),
        )
