"""The plan of the forward kernel on wgmma: argument bytes, tensor maps, geometry, tile order."""

import struct
from dataclasses import replace

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.plans import needs_of
from flashsmith.kernels.sm90_forward.arguments import (
    COUNTER_BYTES,
    FIRST_FLAG,
    ForwardArguments,
)
from flashsmith.kernels.sm90_forward.config import Scheduler
from flashsmith.kernels.sm90_forward.plan import (
    SplitTiles,
    TileOrder,
    part_bytes,
    plan_forward,
)
from flashsmith.problem.attention import AttentionProblem

CONFIG = parse_config(
    "hopper(BF16, 128, 2, 128): kv_2+q_4+overlap+early_rescale+stats_VOTE+lazy_8+tiles_DYNAMIC"
    "+sections+o_smem+regs_232_40"
)
WIDE = parse_config(
    "hopper(BF16, 256, 2, 64): kv_2+q_3+overlap+early_rescale+stats_VOTE+lazy_8+tiles_DYNAMIC"
    "+sections+regs_232_40"
)
PROBLEM = AttentionProblem(2, 6, 3, 300, 500, 120, DType.BF16, causal=True)
OFFSETS = {
    "q": 0,
    "k": 128,
    "v": 256,
    "o": 384,
    "o_direct": 512,
    "lse": 544,
    "counter": 552,
    "heads": 560,
    "kv_group": 564,
    "q_len": 568,
    "k_len": 572,
    "d_head": 576,
    "diagonal": 580,
    "scale_log2": 584,
    "batch_heads": 588,
    "q_tiles": 592,
    "tiles": 596,
    "section_heads": 600,
    "short_tiles": 604,
    "early_heads": 608,
    "whole_tiles": 612,
    "split_ranges": 616,
    "split_blocks": 620,
    "left_diagonal": 624,
    "position": 628,
    "sinks": 632,
    "alibi_slopes": 640,
    "scratch": 648,
}


class MapRecorder:
    """A device that notes the maps it is asked for."""

    def __init__(self):
        self.specs = []

    def tensor_map(self, spec):
        self.specs.append(spec)
        return bytes([len(self.specs)]) * 128


def call_of(problem, **changes):
    q = TensorArg(4096, problem.q_len * problem.heads * 128, problem.heads * 128, 128)
    k = TensorArg(8192, problem.k_len * problem.kv_heads * 128, problem.kv_heads * 128, 128)
    rest = {"lse": TensorArg(111), "workspace": TensorArg(222)}
    return {"q": q, "k": k, "v": k, "o": q, **rest, **changes}


def launch(config, problem, sm_count=132, order=None):
    (one,) = plan_forward(config, problem, sm_count, order)
    return one


def packed_of(one, call):
    recorder = MapRecorder()
    return one.arguments(call).pack(one.problem, recorder.tensor_map), recorder.specs


def test_the_struct_in_cpp_has_the_offsets_that_are_packed():
    asserts = "\n".join(
        f'static_assert(__builtin_offsetof(flashsmith::Sm90ForwardArgs, {name}) == {at}, "");'
        for name, at in OFFSETS.items()
    )
    exchange = f"flashsmith::sm90::SliceExchange<{CONFIG.d_head}, {CONFIG.n_warpgroups}, 1, false>"
    parts = f"{exchange}::kPartBytes"
    asserts += f"\nstatic_assert({CONFIG.n_warpgroups} * {parts} == {part_bytes(CONFIG)});"
    asserts += f"\nstatic_assert(flashsmith::kCounterBytes == {COUNTER_BYTES});"
    asserts += f"\nstatic_assert(flashsmith::kFirstFlag == {FIRST_FLAG});"
    compile_text(
        f'{structs(type(CONFIG))}\n#include "flashsmith/sm90/slices.cuh"\n{asserts}\n'
        f"static_assert(sizeof(flashsmith::Sm90ForwardArgs) == {ForwardArguments.n_bytes()});\n"
        f'extern "C" __global__ void facts() {{}}\n',
        "facts",
        "sm_90a",
    )


def test_every_argument_stands_at_its_offset():
    one = launch(CONFIG, PROBLEM, order=TileOrder(5, 1, 2))
    packed, _ = packed_of(one, call_of(PROBLEM))
    assert len(packed) == ForwardArguments.n_bytes()
    for n, name in enumerate("qkvo"):
        assert packed[OFFSETS[name]] == n + 1
    numbers = {
        "heads": 6,
        "kv_group": 2,
        "q_len": 300,
        "k_len": 500,
        "d_head": 120,
        "diagonal": 200,
        "batch_heads": 12,
        "q_tiles": 3,
        "tiles": 36,
        "section_heads": 5,
        "short_tiles": 1,
        "early_heads": 2,
        "whole_tiles": 36,
        "split_ranges": 0,
        "split_blocks": 0,
    }
    for name, value in numbers.items():
        assert struct.unpack_from("<i", packed, OFFSETS[name]) == (value,), name
    assert struct.unpack_from("<QQ", packed, OFFSETS["lse"]) == (111, 222)
    assert struct.unpack_from("<Q3q", packed, OFFSETS["o_direct"]) == (4096, 230400, 768, 128)
    (scale,) = struct.unpack_from("<f", packed, OFFSETS["scale_log2"])
    assert scale == pytest.approx(120**-0.5 * 1.44269504)


def test_maps_have_the_extents_of_the_problem_and_boxes_of_the_tiles():
    _, (q, k, v, o) = packed_of(launch(CONFIG.replace(cluster=2), PROBLEM), call_of(PROBLEM))
    assert q.dims == o.dims == (120, 300, 6, 2)
    assert k.dims == v.dims == (120, 500, 3, 2)
    assert q.strides_bytes == (1536, 256, 460800)
    assert q.box == (64, 64, 1, 1)
    assert k.box == (64, 64, 1, 1)  # half of 128 keys for each block of a cluster


@pytest.mark.parametrize("stride", [0, -768, 1 << 39])
def test_a_stride_that_no_map_can_have_is_refused_by_name(stride):
    call = call_of(PROBLEM)
    call["k"] = replace(call["k"], seq_stride=stride)
    obstacle = launch(CONFIG, PROBLEM).obstacle(call)
    assert obstacle.startswith("k has strides of")
    assert obstacle.endswith("copy it or use a kernel without TMA")


def test_the_stride_of_a_single_head_does_not_matter():
    one = replace(PROBLEM, heads=1, kv_heads=1, batch=1)
    odd = TensorArg(4096, 0, 128, 3)
    assert not launch(CONFIG, one).obstacle(dict.fromkeys("qkvo", odd))


def test_persistent_kernels_have_a_block_an_sm_and_others_one_a_tile():
    many = replace(PROBLEM, batch=100)
    grids = {
        (scheduler, cluster): launch(
            CONFIG.replace(scheduler=scheduler, cluster=cluster, l2_sections=False), many, 131
        ).geometry.grid[0]
        for scheduler in Scheduler
        for cluster in (1, 2)
    }
    assert grids == {
        (Scheduler.SINGLE, 1): 1800,
        (Scheduler.SINGLE, 2): 2400,  # three tiles a head make two pairs
        (Scheduler.STATIC, 1): 131,
        (Scheduler.STATIC, 2): 130,
        (Scheduler.DYNAMIC, 1): 131,
        (Scheduler.DYNAMIC, 2): 130,
    }


def test_only_a_dynamic_schedule_has_a_counter():
    for scheduler in Scheduler:
        config = CONFIG.replace(scheduler=scheduler, l2_sections=False)
        one = launch(config, PROBLEM)
        assert (one.workspace_bytes > 0) == (scheduler is Scheduler.DYNAMIC)


def test_needs_say_what_the_problem_is():
    one = launch(CONFIG, replace(PROBLEM, lse=True))
    assert one.needs.identifier() == "causal_lse_ragged_q_ragged_k_narrow_d"
    even = replace(PROBLEM, q_len=256, k_len=512, d_head=128, diagonal=511)
    assert launch(CONFIG, even).needs.identifier() == "plain"
    pairs = CONFIG.replace(cluster=2)
    odd = replace(even, q_len=384)
    assert launch(pairs, odd).needs.identifier() == "ragged_q"


@pytest.mark.parametrize("k_len", [512, 1024, 2048, 4096, 16384])
def test_a_section_has_some_heads_and_leaves_long_tiles(k_len):
    problem = AttentionProblem(4, 16, 16, k_len, k_len, 128, causal=True)
    order = launch(CONFIG, problem).order
    assert 1 <= order.section_heads <= 64
    assert 0 <= order.short_tiles < -(-k_len // 128)


@pytest.mark.parametrize(
    ("d_head", "k_len", "megabytes"),
    [
        *[(64, 512, 8), (64, 4096, 16), (64, 16384, 32)],
        *[(128, 512, 16), (128, 1024, 16), (128, 4096, 16), (128, 8192, 32)],
        *[(256, 512, 16), (256, 1024, 32), (256, 2048, 32), (256, 8192, 32)],
    ],
)
def test_a_section_holds_as_many_megabytes_of_k_and_v_as_measured_best(d_head, k_len, megabytes):
    config = CONFIG.replace(d_head=d_head) if d_head <= 128 else WIDE
    problem = AttentionProblem(
        16, 2048 // d_head, 2048 // d_head, k_len, k_len, d_head, causal=True
    )
    heads = launch(config, problem).order.section_heads
    assert heads * 2 * k_len * d_head * 2 == megabytes << 20


KEPT = [(64, 512, (1, 256)), (64, 1024, (2, 128)), (64, 2048, (3, 256)), (128, 512, (0, 512))]
KEPT += [(128, 1024, (1, 256)), (128, 2048, (3, 128)), (128, 4096, (9, 64)), (256, 512, (2, 64))]
KEPT += [(256, 1024, (3, 64)), (256, 2048, (6, 64))]
KEPT_LATE = [(64, 512, (1, 256)), (64, 1024, (1, 512)), (64, 8192, (5, 64)), (128, 512, (0, 512))]
KEPT_LATE += [(128, 1024, (0, 256)), (128, 2048, (2, 128)), (128, 4096, (3, 64))]
KEPT_LATE += [
    (256, 512, (2, 64)),
    (256, 1024, (1, 128)),
    (256, 2048, (3, 64)),
    (256, 16384, (23, 8)),
]


@pytest.mark.parametrize(
    ("late_draw", "d_head", "k_len", "kept"),
    [*((False, *row) for row in KEPT), *((True, *row) for row in KEPT_LATE)],
)
def test_as_many_short_tiles_of_as_many_heads_are_kept_for_the_end_as_measured_best(
    late_draw, d_head, k_len, kept
):
    order, problem = order_of(late_draw, d_head, k_len)
    assert (order.short_tiles, problem.batch * problem.heads - order.early_heads) == kept


@pytest.mark.parametrize(
    ("d_head", "k_len", "rows", "heads"),
    [(256, 16384, 128, 1), (128, 16384, 128, 1), (128, 16384, 192, 2), (128, 8192, 192, 4)],
)
def test_a_section_of_tiles_that_are_drawn_late_fills_the_sms(d_head, k_len, rows, heads):
    order, _ = order_of(True, d_head, k_len, rows)
    assert order.section_heads == heads


def order_of(late_draw, d_head, k_len, rows=0):
    """The order of a causal launch of the grid, by the first kernel of the set, and its problem."""
    config = next(
        c.replace(late_draw=late_draw)
        for c in get_kernel_configs("hopper")
        if (c.d_head, c.cluster, c.tile_q) == (d_head, 1, rows or c.tile_q)
    )
    heads = 2048 // d_head
    problem = AttentionProblem(16384 // k_len, heads, heads, k_len, k_len, d_head, causal=True)
    return launch(config, problem).order, problem


SPLIT = CONFIG.replace(split_last=True)


@pytest.mark.parametrize(
    ("batch", "heads", "length", "causal", "expected"),
    [
        # 15.5 waves: half of every SM's last one is saved, which has to be worth the exchange.
        (1, 16, 16384, False, SplitTiles(1980, 132, 68 * 128)),
        (8, 16, 2048, False, SplitTiles(1980, 132, 68 * 16)),
        (16, 16, 1024, False, SplitTiles(2048)),
        (1, 16, 16384, True, SplitTiles(2048)),
        (1, 33, 2048, False, SplitTiles(528)),  # four whole waves
        # Fewer tiles than SMs: at most four parts of each, of at least four blocks.
        (1, 2, 4096, False, SplitTiles(0, 132, 64 * 32)),
        (1, 1, 2048, False, SplitTiles(0, 64, 16 * 16)),
        (1, 16, 1000, False, SplitTiles(128)),
    ],
)
def test_what_would_not_fill_a_wave_is_split_where_that_pays(
    batch, heads, length, causal, expected
):
    problem = AttentionProblem(batch, heads, heads, length, length, 128, causal=causal)
    one = launch(SPLIT, problem)
    assert one.split == expected
    assert one.ends_together == (expected.ranges > 0)
    assert one.geometry.grid[0] == min(expected.drawn, 132)
    parts = expected.ranges * part_bytes(SPLIT)
    assert one.workspace_bytes == COUNTER_BYTES + parts
    narrow = launch(SPLIT, replace(problem, d_head=120))
    assert not narrow.ends_together
    static = SPLIT.replace(scheduler=Scheduler.STATIC, l2_sections=False)
    one = launch(static, problem)
    assert one.workspace_bytes == (COUNTER_BYTES + parts if parts else 0)


@pytest.mark.parametrize("lse", [False, True])
def test_what_a_kernel_knows_when_compiled_is_the_same_on_every_number_of_sms(lse):
    for sm_count in (1, 114, 132, 148):
        one = launch(CONFIG, replace(PROBLEM, lse=lse), sm_count)
        assert needs_of(CONFIG, replace(PROBLEM, lse=lse)) == one.needs
    assert ("lse" in one.needs) is lse
