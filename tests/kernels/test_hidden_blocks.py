"""Blocks that a boolean mask hides from a whole q tile: listed before, and passed over."""

import random
from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import from_bits
from flashsmith.base.errors import ArgumentError
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.placement import (
    MARGIN,
    fill_buffers,
    locations_of,
    scratch_buffer,
    scratch_location,
)
from flashsmith.check.verdict import check_case, run_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.block_list.lists import BlockLists
from flashsmith.kernels.block_list.plan import BlockListLaunch
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan, scratch_bytes
from flashsmith.kernels.sm80_forward import plan as sm80_plan
from flashsmith.kernels.sm90_forward import plan as sm90_plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.devices import open_device
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
WGMMA = f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40"
BOTH = pytest.mark.parametrize("text", [MMA, WGMMA], ids=["mma", "wgmma"])
# One for each way in which blocks are counted: plain loops, halves, clusters, splits, ascents.
CONFIGS = [
    "(FP16, 64, 64, 64, 4): async+swizzled+load_0_2_2_tiles",
    "(BF16, 128, 64, 32, 4): load_2_2_2_tiles",
    f"hopper(FP16, 64, 2, 64): kv_2+q_4+{LOOP}+stats_MAX+cluster_2+o_smem+regs_224_56",
    f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_VOTE+lazy_8+halves+early_tests+split+o_smem"
    "+late_store+regs_232_40",
    f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_BITS+lazy_8+up_FIRST+o_smem+regs_232_40",
    "hopper(FP16, 64, 1, 128): kv_2+q_1+stats_MAX+regs_240_56",
]
# Four blocks of keys of either family, a ragged tail, an odd number of heads that share one.
MASKED = AttentionProblem(1, 3, 1, 261, 522, 64, lse=True, bias="bool")
SHARED = {"contiguous": "", "padded": "heads", "transposed": "batch", "packed": "heads"}


def problem_of(config, **facts):
    return replace(MASKED, dtype=config.dtype, d_head=config.d_head, **facts)


def drawn_facts(seed):
    """Lengths, heads, strides, masks and scores, together."""
    draw = random.Random(seed)
    heads, group = draw.choice([(3, 1), (2, 2), (4, 2)])
    keys = draw.choice([77, 390, 651])
    placement = draw.choice(list(SHARED))
    return placement, {
        "bias_shared": draw.choice(["", SHARED[placement]]),
        "bias_keys": "" if placement == "contiguous" else "apart",
        "batch": draw.choice([1, 2]),
        "heads": heads,
        "kv_heads": group,
        "q_len": keys if placement == "packed" else draw.choice([1, 139, 270]),
        "k_len": keys,
        "causal": draw.random() < 0.4,
        "window_left": draw.choice([None, None, 40, 200]),
        "softcap": draw.choice([None, None, 20.0]),
        "alibi": draw.random() < 0.2,
        "sinks": draw.random() < 0.4,
        "lse": draw.random() < 0.5,
    }


def require_right(device, text, placement, facts):
    config = parse_config(text)
    case = Case("hidden", problem_of(config, **facts), placement=placement)
    check_case(device, config, case).require_ok(f"{text} {facts}")


@pytest.mark.parametrize("text", [CONFIGS[n] for n in (2, 3)])
def test_what_is_drawn_together_is_right_together(text, device):
    require_right(device, text, *drawn_facts(f"hidden {text}"))


@pytest.mark.gpu
@pytest.mark.parametrize("text", [MMA, WGMMA, *CONFIGS])
def test_much_that_is_drawn_is_right_on_a_gpu(text, device):
    for seed in range(30):
        require_right(device, text, *drawn_facts(f"many {text} {seed}"))


# What is hidden is neither loaded nor multiplied


def banded(problem, tile_q, tile_k):
    """A mask by blocks, and which (q tile, kv block) it leaves: padding, a gap, and no key."""
    tiles, blocks = -(-problem.q_len // tile_q), -(-problem.k_len // tile_k)
    seen = np.zeros((tiles, blocks), bool)
    seen[0, [0, blocks - 2]] = True  # what lies between is hidden, and the end
    seen[1, 1] = True
    if tiles > 2:
        seen[2:-1, :] = True  # the last tile sees nothing
    whole = np.repeat(np.repeat(seen, tile_q, axis=0), tile_k, axis=1)
    mask = whole[: problem.q_len, : problem.k_len].astype(np.uint8)
    return np.broadcast_to(mask, (problem.batch, problem.heads, *mask.shape)), seen


@BOTH
def test_keys_that_no_row_of_a_tile_sees_are_not_read(text, device):
    """NaN in their K and V would be 0 times NaN in O, were they multiplied."""
    config = parse_config(text)
    problem = problem_of(config, q_len=config.tile_q + 5, k_len=4 * config.tile_k + 2)
    made = dict(inputs_of(Case("unread", problem)))
    mask, seen = banded(problem, config.tile_q, config.tile_k)
    hidden = np.repeat(~seen.any(axis=0), config.tile_k)[: problem.k_len]
    assert hidden.sum() == config.tile_k + 2
    made["bias"] = mask
    for name in "kv":
        made[name] = made[name].copy()
        made[name][:, hidden] = 0x7FC0
    found = run_arrays(device, config, problem, made)
    assert np.isfinite(from_bits(found["o"], config.dtype)).all()
    assert np.isfinite(found["lse"].view(np.float32)).all()


@BOTH
def test_a_tile_that_sees_nothing_is_zero_and_its_log_sum_exp_minus_infinity(text, device):
    config = parse_config(text)
    problem = problem_of(config, q_len=2 * config.tile_q + 5, k_len=3 * config.tile_k + 2)
    made = dict(inputs_of(Case("unseen", problem)))
    mask = np.ones((1, 3, problem.q_len, problem.k_len), np.uint8)
    mask[:, :, config.tile_q : 2 * config.tile_q] = 0
    found = run_arrays(device, config, problem, {**made, "bias": mask})
    rows = slice(config.tile_q, 2 * config.tile_q)
    lse = found["lse"].view(np.float32)
    assert not found["o"][:, rows].any()
    assert np.isneginf(lse[..., rows]).all()
    assert np.isfinite(np.delete(lse, np.r_[rows], axis=-1)).all()


@BOTH
def test_the_mask_of_a_block_that_all_rows_see_is_not_read(text):
    config = parse_config(text)
    problem = problem_of(config, heads=1, batch=1, q_len=config.tile_q, k_len=3 * config.tile_k)
    made = dict(inputs_of(Case("whole", problem)))
    read = []
    for hidden in (0, 3):  # blocks that one element is hidden of
        mask = np.ones((1, 1, problem.q_len, problem.k_len), np.uint8)
        mask[..., 7, : hidden * config.tile_k : config.tile_k] = 0
        device = EmulatedDevice(sm_count=1, options=EmulatorOptions(counters=True))
        run_arrays(device, config, problem, {**made, "bias": mask})
        read.append(device.report().counters.bytes["global load"])
    assert read[1] - read[0] >= problem.q_len * problem.k_len


# The list


def listed(device, config, problem, mask, placement="contiguous"):
    """The lines of the list that a launch left in scratch."""
    case = Case("list", problem, placement=placement)
    locations = locations_of(case)
    before = fill_buffers(case, locations, {**inputs_of(case), "bias": mask})
    n_bytes = scratch_bytes(plan(config, problem, sm_count=device.sm_count))
    locations[SCRATCH] = scratch_location(n_bytes)
    before[SCRATCH] = scratch_buffer(locations[SCRATCH])
    words = run_case(device, config, case, locations, before)[SCRATCH][MARGIN:].view(np.int32)
    lists = BlockLists(problem, config.tile_q, config.tile_k)
    line = n_bytes // 4 // lists.lines
    rows = words[: n_bytes // 4].reshape(lists.lines, line)
    entries = [row[1 : 1 + row[0]] for row in rows]
    return [
        [word if word >= 0 else WHOLE + (word & 0x7FFFFFFF) for word in line.tolist()]
        for line in entries
    ]


WHOLE = 1000  # added to a block that the mask hides nothing of


@pytest.mark.parametrize(
    ("placement", "keys"),
    [("contiguous", 272), ("contiguous", 264), ("padded", 259), ("transposed", 259)],
)
def test_the_list_is_that_of_the_mask(placement, keys, device):
    """By chunks, words, bytes and strides; one line where one mask; blocks without a 0 are told."""
    config = parse_config(MMA)
    shared = SHARED[placement]
    problem = problem_of(
        config, q_len=150, k_len=keys, bias_shared=shared, bias_keys="apart" if keys % 2 else ""
    )
    draw = np.random.default_rng(5)
    blocks = np.repeat(draw.random((1, 3, 150, 5)) < 0.01, 64, axis=3)[..., :keys]
    mask = blocks.astype(np.uint8)
    mask[:, :, 64:128, 128:192] = 1  # whole, and with one element less
    mask[:, :, :64, 64:] = 1
    mask[:, :, 63, 191] = 0
    if shared == "heads":
        mask = np.broadcast_to(mask[:, :1], mask.shape)
    wanted = []
    for head in range(1 if shared == "heads" else 3):
        for row in range(0, 150, 64):
            blocks = np.split(mask[0, head, row : row + 64], range(64, keys, 64), axis=1)
            seen = [n + WHOLE * bool(b.all()) for n, b in enumerate(blocks) if b.any()]
            wanted.append(seen or [0])
    assert any(n >= WHOLE for line in wanted for n in line)
    assert listed(device, config, problem, mask, placement) == wanted


def test_more_blocks_than_threads_are_listed_in_their_order(device):
    config = parse_config("(BF16, 128, 64, 32, 4): load_2_2_2_tiles")
    problem = replace(MASKED, d_head=64, heads=1, q_len=1, k_len=32 * 300 - 7)
    mask = np.zeros((1, 1, 1, problem.k_len), np.uint8)
    seen = [3, 126, 127, 128, 200, 257, 299]
    mask[..., [32 * n + 5 for n in seen]] = 1
    assert listed(device, config, problem, mask) == [seen]


def test_masks_that_are_shared_are_listed_once():
    config = parse_config(WGMMA)
    problem = problem_of(config, batch=5, q_len=4000, k_len=4000)
    bytes_of = {
        shared: scratch_bytes(plan(config, replace(problem, bias_shared=shared), sm_count=132))
        for shared in ("", "batch", "heads", "both")
    }
    one = bytes_of["both"]
    assert bytes_of == {"": 15 * one, "batch": 3 * one, "heads": 5 * one, "both": one}
    assert one == 4 * 32 * (32 + 1)


def test_a_mask_that_is_said_to_be_shared_has_no_stride(device):
    config = parse_config(MMA)
    problem = problem_of(config, bias_shared="heads")
    with pytest.raises(ArgumentError, match="what is shared must have stride 0"):
        check_case(device, config, Case("shared", problem))


class ATileOff(BlockLists):
    def arg(self, call):
        right = super().arg(call)
        return replace(right, address=right.address + 4 * right.seq_stride)


class OfAnotherHead(BlockLists):
    def arg(self, call):
        return replace(super().arg(call), head_stride=0)


@pytest.mark.parametrize("wrong", [ATileOff, OfAnotherHead])
@BOTH
def test_a_line_of_another_tile_is_noticed(text, wrong, monkeypatch):
    """In the emulator: on a GPU what lies behind the lists is read as one, and ends the process."""
    config = parse_config(text)
    for module in (sm80_plan, sm90_plan):
        monkeypatch.setattr(module, "BlockLists", wrong)
    case = Case("mutant", problem_of(config, heads=2))
    assert not check_case(open_device("emulator"), config, case).ok


@BOTH
def test_a_list_that_is_a_block_off_is_noticed(text, device, monkeypatch):
    config = parse_config(text)
    arguments = BlockListLaunch.arguments

    def wrong(launch, call):
        right = arguments(launch, call)
        shifted = replace(right.bias, address=right.bias.address - launch.tile_k)
        return replace(right, bias=shifted)

    case = Case("mutant", problem_of(config, heads=2))
    assert check_case(device, config, case).ok
    monkeypatch.setattr(BlockListLaunch, "arguments", wrong)
    assert not check_case(device, config, case).ok
