"""Windows on wgmma: a warpgroup multiplies the kv blocks that its own rows see, and no others."""

from importlib import import_module

import pytest

from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config
from flashsmith.kernels.sm90_forward.config import WARPGROUP_ROWS
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

LOOP = "overlap+early_rescale+stats_BITS+lazy_8+own_spans+tiles_DYNAMIC+late_draw+sections"
CONFIGS = {
    "chosen": parse_config(
        f"hopper(BF16, 64, 3, 64): kv_4+q_6+{LOOP}+early_tests+ahead_6+o_q+regs_160_32"
    ),
    "turns": parse_config(f"hopper(BF16, 64, 3, 80): kv_2+q_3+{LOOP}+pingpong+regs_160_32"),
    "halves": parse_config(
        f"hopper(BF16, 64, 3, 128): kv_3+q_6+{LOOP}+pingpong+halves+o_smem+regs_160_32"
    ),
}
# Rows, keys and the window: edges inside of kv blocks and at their ends, fewer rows than keys, rows
# that see no key, and a window of a row's own key.
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


PAIRS = [("chosen", edge) for edge in EDGES]
PAIRS += [(name, edge) for name in ("turns", "halves") for edge in EDGES[:2]]


@pytest.mark.parametrize(("name", "edge"), PAIRS, ids=str)
def test_any_window_is_right(device, name, edge):
    config = CONFIGS[name]
    check_case(device, config, Case("window", windowed(config, *edge))).require_ok(name)


def test_a_window_without_a_right_edge_is_right(device):
    config = CONFIGS["turns"]
    edges = windowed(config, 450, 480, 130, causal=False)
    check_case(device, config, Case("window", edges)).require_ok("turns")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["chosen", "turns"])
def test_no_schedule_stops_warpgroups_that_end_alone(name, seed):
    config = CONFIGS[name]
    device = EmulatedDevice(options=EmulatorOptions(seed=seed, delayed_landing=True))
    check_case(device, config, Case(f"{seed}", windowed(config, 700, 700, 257))).require_ok(name)


def test_blocks_before_the_window_of_a_warpgroup_are_not_multiplied():
    config = CONFIGS["chosen"]
    device = EmulatedDevice(options=EmulatorOptions(counters=True))
    edges = windowed(config, 768, 768, 257)
    check_case(device, config, Case("products", edges)).require_ok("chosen")
    blocks, warps = edges.heads * blocks_of(config, 768, 257), 4
    steps = (config.d_head + config.B_c) // 16 + 2 * 3  # each product: a fence, a commit, a wait
    assert device.report().counters.instructions["matrix"] == blocks * warps * steps


def test_spans_tiles_told_ahead_and_the_way_of_o_change_no_bits():
    config = CONFIGS["chosen"]
    edges = windowed(config, 700, 700, 257)
    inputs = random_inputs(edges)
    others = [config.replace(o_in_q=False), config.replace(own_spans=False, o_in_q=False)]
    others.append(others[1].replace(told_ahead=0))
    found = [run_arrays(EmulatedDevice(), c, edges, inputs)["o"] for c in (config, *others)]
    assert all((bits == found[0]).all() for bits in found)


LOADS = {
    0: "qqk kv kv kv kv qqkv kv kv kv kv v",
    2: "kqq kv kv kvq kvq kv kv kv kv kv v",
}


@pytest.mark.parametrize("told_ahead", LOADS)
def test_q_of_the_next_tile_is_loaded_when_so_many_blocks_are_left(monkeypatch, told_ahead):
    """Two tiles of five kv blocks. A launch that tells tiles ahead begins with K."""
    config = parse_config(f"hopper(BF16, 64, 2, 64): kv_2+q_4+{LOOP}+o_smem+regs_232_40").replace(
        told_ahead=told_ahead
    )
    loads = import_module("flashsmith.emulator.copies.bulk_loads")
    seen, chunks = [], loads.smem_chunks

    def noted(chunk, cta, address, place):
        seen.append(int(address.flat[0]))
        return chunks(chunk, cta, address, place)

    monkeypatch.setattr(loads, "smem_chunks", noted)
    device = EmulatedDevice(sm_count=1, options=EmulatorOptions(processes=1))
    two_tiles = AttentionProblem(1, 1, 1, 256, 5 * 64, 64)
    check_case(device, config, Case("loads", two_tiles)).require_ok("loads")
    base, slot = min(seen), 64 * 128
    kinds = "".join("qqqqkkvv"[(address - base) // slot] for address in seen)
    assert kinds == LOADS[told_ahead].replace(" ", "")
