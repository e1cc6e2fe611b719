"""Windows on wgmma: a warpgroup multiplies the kv blocks that its own rows see, and no others."""

import pytest

from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.kernels.sm90_forward.config import WARPGROUP_ROWS
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

LOOP = "overlap+early_rescale+early_tests+stats_BITS+lazy_8+own_spans+tiles_DYNAMIC+sections"
CONFIGS = {
    "turns": parse_config(f"hopper(BF16, 64, 3, 64): kv_2+q_6+{LOOP}+pingpong+o_smem+regs_160_32"),
    "free": parse_config(f"hopper(BF16, 64, 3, 80): kv_2+q_3+{LOOP}+late_store+regs_160_32"),
    "halves": parse_config(
        f"hopper(BF16, 64, 3, 128): kv_3+q_6+{LOOP}+pingpong+halves+o_smem+regs_160_32"
    ),
}
# Rows, keys and the window: edges inside of kv blocks and at their ends, fewer rows than keys, rows
# that see no key, and windows that no block or only a row's own key fits into.
EDGES = [(700, 700, 257), (450, 901, 128), (700, 333, 100), (641, 641, 0)]


def windowed(config, q_len, k_len, left, **facts):
    """Three heads of queries on one of keys."""
    facts = {"causal": True, "lse": True, **facts}
    return AttentionProblem(1, 3, 1, q_len, k_len, config.d_head, window_left=left, **facts)


def blocks_of(config, length, left):
    """kv blocks that some row of each warpgroup sees, added up over a head."""
    blocks = 0
    for row in range(0, length, WARPGROUP_ROWS):
        first = max(row - left, 0) // config.B_c
        blocks += (row + WARPGROUP_ROWS - 1) // config.B_c + 1 - first
    return blocks


@pytest.mark.parametrize("edge", EDGES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_window_is_right(device, name, edge):
    config = CONFIGS[name]
    check_case(device, config, Case("window", windowed(config, *edge))).require_ok(name)


def test_a_window_without_a_right_edge_is_right(device):
    config = CONFIGS["free"]
    edges = windowed(config, 450, 480, 130, causal=False)
    check_case(device, config, Case("window", edges)).require_ok("free")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CONFIGS)
def test_no_schedule_stops_warpgroups_that_end_early(name, seed):
    config = CONFIGS[name]
    device = EmulatedDevice(options=EmulatorOptions(seed=seed, delayed_landing=True))
    check_case(device, config, Case(f"{seed}", windowed(config, 700, 700, 257))).require_ok(name)


def test_blocks_before_the_window_of_a_warpgroup_are_not_multiplied():
    config = CONFIGS["turns"]
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    edges = windowed(config, 768, 768, 257)
    check_case(device, config, Case("products", edges)).require_ok("turns")
    blocks, warps = edges.heads * blocks_of(config, 768, 257), 4
    steps = (config.d_head + config.B_c) // 16 + 2 * 3  # each product: a fence, a commit, a wait
    assert device.report().counters.instructions["matrix"] == blocks * warps * steps
