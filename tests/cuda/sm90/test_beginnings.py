"""In a window a tile may begin inside its span: with which kv block, and that all agree on it."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.kernels.sm90_forward.config import Beginning, Statistics
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

HALVES = parse_config(
    "hopper(BF16, 64, 2, 128): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+halves+tiles_DYNAMIC+late_draw+sections+o_smem+late_store+regs_232_40"
)
NARROW = HALVES.replace(B_c=64, half_blocks=False)
CONFIGS = {
    "halves": HALVES,
    "halves, maxima": HALVES.replace(statistics=Statistics.BITS, late_store=False),
    "no turns": HALVES.replace(statistics=Statistics.VOTE, pingpong=False, q_slots=2),
    "narrow blocks": NARROW,
    "pairs": NARROW.replace(cluster=2, pingpong=False),
    "three": NARROW.replace(
        n_warpgroups=3, B_c=80, q_slots=6, consumer_registers=160, producer_registers=32
    ),
}
INSIDE = (Beginning.WHOLE, Beginning.SHARED)
# Edges at multiples of a block and beside them; windows that no block fits into; rows that see no
# key, behind the last and before the first; a right edge behind the diagonal.
WINDOWS = [
    {"q_len": 700, "k_len": 700, "window_left": 256},
    {"q_len": 450, "k_len": 777, "window_left": 400},
    {"q_len": 300, "k_len": 500, "window_left": 70, "causal": False, "window_right": 33},
    {"q_len": 520, "k_len": 300, "window_left": 130, "diagonal": 0},
    {"q_len": 400, "k_len": 200, "window_left": 20},
    {"q_len": 640, "k_len": 640, "window_left": 300, "window_right": 130, "causal": False},
]


def window(config, **facts):
    problem = AttentionProblem(1, 3, 1, 1, 1, config.d_head, config.dtype, causal=True, lse=True)
    return replace(problem, **facts)


def require(device, config, problem):
    case = Case("beginnings", problem, gain=4.0)
    check_case(device, config, case).require_ok(f"{config.short_form()} on {problem}")


@pytest.mark.parametrize("facts", WINDOWS, ids=str)
@pytest.mark.parametrize("beginning", INSIDE, ids=lambda b: b.name)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_tile_may_begin_inside_its_span(device, config, beginning, facts):
    config = config.replace(beginning=beginning)
    require(device, config, window(config, **facts))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["halves", "pairs", "three"])
def test_no_schedule_stops_tiles_that_begin_inside(name, seed):
    config = CONFIGS[name].replace(beginning=Beginning.SHARED)
    device = EmulatedDevice(options=EmulatorOptions(seed=seed, delayed_landing=True))
    require(device, config, window(config, q_len=700, k_len=700, window_left=256, heads=5))


def test_where_a_tile_begins_is_in_the_last_bits():
    problem = replace(window(HALVES, q_len=1280, k_len=1280, window_left=640), heads=1, lse=False)
    inputs = random_inputs(problem)
    o = [
        run_arrays(EmulatedDevice(), HALVES.replace(beginning=b), problem, inputs)["o"]
        for b in Beginning
    ]
    assert all((o[a] != o[b]).any() for a, b in ((0, 1), (0, 2), (1, 2)))


def blocks(run_lines, config, tile, window_left, shift=0):
    """The kv blocks of a q tile, in the order in which they come."""
    body = f"""
    constexpr {config.CPP_TYPE} kConfig = {config.to_cpp_struct()};
    constexpr Needs kNeeds = {Needs(("causal", "window_left")).to_cpp()};
    using Kernel = sm90::ForwardKernel<kConfig, kNeeds>;
    Sm90ForwardArgs args{{}};
    args.q_len = args.k_len = 4096;
    args.diagonal = {shift};
    args.left_diagonal = {shift - window_left};
    const i32 row = {tile} * kConfig.tile_q();
    const i32 first = sm90::first_block_of<Kernel>(args, row, 0);
    const i32 end =
        Kernel::Mask::template blocks_seen<kConfig.B_c>(args, row + kConfig.tile_q());
    const i32 begin = sm90::begins_inside<Kernel>(args, row, first, end - first, 0);
    if (thread < end - first) {{
        const i32 n = end - first - 1 - thread;
        reinterpret_cast<i32*>(out)[thread] = sm90::block_near(begin, n, end - first, first);
    }}
    """
    got = run_lines(
        body,
        np.zeros(1),
        headers=["sm90/kernel.cuh"],
        out_bytes=4 * 32,
        dtype=np.int32,
        kernel=type(config),
    )
    return [int(block) for block in got if block >= 0]


def test_tiles_begin_with_a_block_that_all_of_their_rows_see(run_lines):
    whole = HALVES.replace(beginning=Beginning.WHOLE)
    assert blocks(run_lines, whole, 20, 1024) == [*range(19, 11, -1), 20]
    assert blocks(run_lines, whole, 2, 1024) == [1, 0, 2]
    assert blocks(run_lines, whole, 0, 1024) == [0]
    # Rows 0 to 127 of the tile see the keys up to 30 more: block 20 is cut, block 21 as well.
    assert blocks(run_lines, whole, 20, 1024, shift=30) == [*range(19, 11, -1), 21, 20]


def test_neighbours_begin_with_the_same_block(run_lines):
    shared = HALVES.replace(beginning=Beginning.SHARED)
    # 1,024 - 2 x 128 rows and more see a block in common: 512 is the power of two below.
    orders = [blocks(run_lines, shared, tile, 1024) for tile in range(16, 21)]
    assert [order[0] for order in orders] == [15, 15, 15, 15, 19]
    assert orders[2] == [15, 14, 13, 12, 11, 10, 18, 17, 16]
    assert blocks(run_lines, shared, 20, 200) == [19, 18, 20]  # none in common: its own
