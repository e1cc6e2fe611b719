"""The forward kernels on wgmma, whole, against the float64 truth, in every configuration."""

from dataclasses import fields, replace
from importlib import import_module

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case, quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel, compile_ptx
from flashsmith.compile.machine.cubin import machine_code
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.kernels.plans import needs_of
from flashsmith.kernels.sm90_forward import plan as launch
from flashsmith.kernels.sm90_forward.config import (
    Ascending,
    Scheduler,
    Sm90ForwardConfig,
    Statistics,
)
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

pytest.importorskip("nvidia", reason="the compiler has no wheel here")

SMALL = parse_config(
    "hopper(BF16, 64, 2, 64): kv_2+q_4+overlap+pingpong+early_rescale+early_tests+stats_SUM+lazy_8"
    "+tiles_DYNAMIC+sections+o_smem+regs_232_40"
)
PLAIN = SMALL.replace(
    overlap=False,
    early_rescale=False,
    early_tests=False,
    statistics=Statistics.MAX,
    rescale_threshold=0,
)
HALVES = SMALL.replace(B_c=128, half_blocks=True)
STATISTICS = tuple(Statistics)
# the field and its other value; where the base leaves no other value, the base to take instead
PAIRS = {
    "dtype": (SMALL, DType.FP16),
    "d_head": (SMALL, 96),
    "n_warpgroups": (SMALL.replace(q_slots=3, consumer_registers=160, producer_registers=32), 3),
    "B_c": (SMALL, 80),
    "kv_stages": (SMALL, 3),
    "q_slots": (SMALL, 3),
    "overlap": (PLAIN, True),
    "pingpong": (SMALL, False),
    "early_rescale": (SMALL, False),
    "early_tests": (SMALL, False),
    "statistics": (SMALL, Statistics.VOTE),
    "rescale_threshold": (SMALL.replace(statistics=Statistics.MAX), 0),
    "half_blocks": (SMALL.replace(B_c=128), True),
    "own_spans": (SMALL, True),
    "ascending": (SMALL, Ascending.ALL),
    "l_by_mma": (SMALL, True),
    "cluster": (SMALL.replace(pingpong=False), 2),
    "scheduler": (SMALL.replace(l2_sections=False), Scheduler.STATIC),
    "late_draw": (SMALL, True),
    "early_tiles": (SMALL, True),
    "early_q": (SMALL.replace(early_tiles=True), True),
    "told_ahead": (SMALL, 2),
    "split_last": (SMALL, True),
    "l2_sections": (SMALL, False),
    "o_staged": (SMALL, False),
    "o_halves": (SMALL.replace(d_head=96), True),
    "o_in_q": (SMALL.replace(own_spans=True, o_staged=False), True),
    "late_store": (SMALL, True),
    "l2_hints": (SMALL, True),
    "consumer_registers": (SMALL, 224),
    "producer_registers": (SMALL, 32),
}


def problem(config, **changes):
    """Three blocks of keys and a tail, more tiles than blocks, an odd number of heads."""
    base = AttentionProblem(1, 3, 1, 300, 3 * config.B_c + 9, config.d_head, config.dtype)
    return replace(base, **{"lse": True, **changes})


def require(device, config, case):
    check_case(device, config, case).require_ok(config.short_form())


def sets():
    """Each configuration with one of its two quick cases: both cases in each element type.

    Where a set has a configuration in both types, the emulator runs a third of those in FP16.
    """
    found = [*get_kernel_configs("hopper"), *get_kernel_configs("hopper-prog")]
    for n, config in enumerate(found):
        is_half = config.dtype is DType.FP16
        is_twin = is_half and config.replace(dtype=DType.BF16) in found
        marks = (pytest.mark.gpu,) if is_twin and n % 3 else ()
        yield pytest.param(config, (n + is_half) % 2, marks=marks)


@pytest.mark.parametrize(("config", "which"), sets(), ids=str)
def test_a_configuration_of_the_sets_is_right(device, config, which):
    case = quick_cases(config)[which]
    # test_sass.py looks at the machine code of these kernels: compiled once, whole.
    if config.dtype is DType.BF16 and config in get_kernel_configs("hopper"):
        compile_kernel(config, needs_of(config, case.problem), "sm_90a")
    require(device, config, case)


@pytest.mark.parametrize("field", PAIRS)
def test_a_field_alone_changes_the_machine_code_and_not_the_result(device, field):
    config, other = PAIRS[field]
    changed = config.replace(**{field: other})
    assert changed.refusal() is None
    causal = problem(changed, causal=True, lse=False)
    if field in ("own_spans", "o_in_q"):
        causal = replace(causal, window_left=100)
    needs = needs_of(changed, causal)  # of the kernel that runs below
    codes = {machine_code(compile_kernel(c, needs, "sm_90a").cubin) for c in (config, changed)}
    assert len(codes) == 2
    require(device, changed, Case(field, causal))


def test_every_field_has_a_pair():
    assert list(PAIRS) == [field.name for field in fields(Sm90ForwardConfig)]


@pytest.mark.parametrize("statistics", STATISTICS, ids=lambda s: s.name)
@pytest.mark.parametrize("gain", [8.0, 30.0])
def test_rows_that_outgrow_their_maximum_are_rescaled(device, statistics, gain):
    config = SMALL.replace(statistics=statistics)
    require(device, config, Case("large logits", problem(config, q_len=130), gain=gain))


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16], ids=lambda t: t.name)
@pytest.mark.parametrize(("gain", "late_store"), [(1.0, False), (30.0, False), (1.0, True)])
def test_sums_may_be_a_column_of_the_output(device, dtype, gain, late_store):
    config = SMALL.replace(dtype=dtype, l_by_mma=True, kv_stages=3, late_store=late_store)
    masked = problem(config, q_len=150, causal=True, diagonal=-70, lse=False)
    require(device, config, Case("mma sums", masked, gain=gain))


@pytest.mark.parametrize("statistics", STATISTICS, ids=lambda s: s.name)
@pytest.mark.parametrize("diagonal", [-70, -64, -1, 0, 63])
def test_rows_that_see_no_key_are_zero_and_their_lse_is_minus_infinity(
    device, statistics, diagonal
):
    config = SMALL.replace(statistics=statistics)
    masked = problem(config, q_len=150, causal=True, diagonal=diagonal)
    require(device, config, Case("masked rows", masked))


@pytest.mark.parametrize("config", [SMALL, PLAIN], ids=["overlap", "plain"])
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (65, 300), (300, 65), (129, 64), (64, 640)])
def test_lengths_may_differ(device, config, q_len, k_len):
    lengths = problem(config, q_len=q_len, k_len=k_len, causal=True, kv_heads=3)
    require(device, config, Case("lengths", lengths))


# Where it is, how many slots of Q: with four, that of both warpgroups is loaded early.
EARLY_Q = [(scheduler, 0) for scheduler in Scheduler]
EARLY_Q += [(Scheduler.STATIC, 3), (Scheduler.DYNAMIC, 3), (Scheduler.DYNAMIC, 4)]


PAIRS_OF_CTAS = [(1, 40), (1, 65), (1, 300), (2, 65), (2, 300)]  # of a cluster, and keys
# Two of three combinations: each two of the four values still meet.
TOLD_EARLY = [
    (*early, *of_cluster)
    for n, early in enumerate(EARLY_Q)
    for m, of_cluster in enumerate(PAIRS_OF_CTAS)
    if (n + m) % 3 != 1
]


@pytest.mark.parametrize(
    ("scheduler", "q_slots", "cluster", "k_len"), TOLD_EARLY, ids=lambda x: getattr(x, "name", x)
)
def test_the_next_tile_may_be_told_early(device, scheduler, q_slots, cluster, k_len):
    config = SMALL.replace(early_tiles=True, scheduler=scheduler, l2_sections=False)
    config = config.replace(cluster=cluster, pingpong=cluster == 1)
    if q_slots:
        config = config.replace(early_q=True, q_slots=q_slots)
    require(device, config, Case("early tiles", problem(config, q_len=700, k_len=k_len)))


@pytest.mark.parametrize("early_q", [False, True])
@pytest.mark.parametrize(("cluster", "k_len"), [(1, 40), (1, 150), (1, 300), (2, 300)])
def test_the_next_tile_may_be_drawn_late(device, cluster, k_len, early_q):
    config = SMALL.replace(late_draw=True, cluster=cluster, pingpong=cluster == 1)
    if early_q:
        config = config.replace(early_tiles=True, early_q=True, q_slots=3)
    late = problem(config, q_len=700, k_len=k_len, causal=True)
    require(device, config, Case("late draw", late))


@pytest.mark.parametrize(("late_draw", "loads"), [(False, 0), (True, 7)])
def test_a_late_draw_comes_when_two_blocks_are_left_to_load(monkeypatch, late_draw, loads):
    """Before it both Q, K of five blocks but the last two, and V behind them are under way."""
    seen = []
    for file, name in (("ops.atomic", "_one_by_one"), ("copies.bulk_loads", "smem_chunks")):
        module = import_module(f"flashsmith.emulator.{file}")
        monkeypatch.setattr(module, name, _noted(seen, getattr(module, name)))
    config = SMALL.replace(late_draw=late_draw)
    device = EmulatedDevice(sm_count=1, options=EmulatorOptions(processes=1))
    one_tile = problem(config, heads=1, q_len=128, k_len=5 * config.B_c, lse=False)
    require(device, config, Case("draw", one_tile))
    assert seen.index("_one_by_one") == loads


def _noted(seen, function):
    def call(*arguments, **named):
        seen.append(function.__name__)
        return function(*arguments, **named)

    return call


# The last block has no key for some warpgroups, a half, its whole, or more: diagonals and tails
# right before and behind the middle of a block.
EDGES = [(384, 384, 0), (300, 321, -1), (300, 320, 0), (256, 512, 63), (256, 512, 65)]
EDGES += [(200, 448, None)]
BY_HALVES = [(HALVES, edge) for edge in EDGES]
# On both sides of the middle, with tails: one kernel each.
BY_HALVES += [(HALVES.replace(statistics=s), edge) for s in STATISTICS[:3] for edge in EDGES[1:3]]
BY_HALVES += [(PLAIN.replace(B_c=128, half_blocks=True), edge) for edge in EDGES[1:3]]


@pytest.mark.parametrize(("config", "edge"), BY_HALVES, ids=str)
def test_a_block_may_be_taken_by_halves(device, config, edge):
    q_len, k_len, diagonal = edge
    causal = diagonal is not None
    edges = problem(config, q_len=q_len, k_len=k_len, causal=causal, diagonal=diagonal)
    require(device, config, Case("halves", edges))


def test_half_a_block_is_half_the_products_and_exponentials():
    """Two warpgroups of a tile end in one block of 128: the first sees only half of it."""
    counts = {}
    for config in (HALVES, HALVES.replace(half_blocks=False)):
        device = EmulatedDevice(sm_count=1, options=EmulatorOptions(counters=True))
        causal = problem(config, q_len=128, k_len=128, causal=True, lse=False)
        require(device, config, Case("products", causal))
        counts[config.half_blocks] = device.report().counters.instructions
    fewer = counts[False] - counts[True]
    tiles, warps = 3, 4
    assert fewer["matrix"] == tiles * warps * 4  # of 8 steps of P V
    # A lane has 64 of a block's exponentials. The first tile of a block is no step behind another.
    assert fewer["special function"] == (tiles - 1) * warps * 32


UP = {
    "two": SMALL,
    "three": SMALL.replace(
        n_warpgroups=3, B_c=128, kv_stages=3, q_slots=6, half_blocks=True, l_by_mma=True,
        consumer_registers=160, producer_registers=32,
    ),
    "halves": HALVES,
    "halves, late store": HALVES.replace(
        statistics=Statistics.BITS, pingpong=False, q_slots=2, late_store=True
    ),
    "late store": SMALL.replace(pingpong=False, q_slots=3, late_store=True, o_staged=False),
    "early Q": SMALL.replace(q_slots=3, early_tiles=True, early_q=True),
}  # fmt: skip
# Long tiles before short ones, diagonals that no block ends at, rows that see no key.
MASKED = [(700, 700, 0), (450, 500, None), (260, 520, None), (520, 260, None), (65, 300, 3)]


# Two of three combinations, in turn.
ASCENDING = [
    (name, edge) for n, name in enumerate(UP) for m, edge in enumerate(MASKED) if (n + m) % 3 != 1
]


@pytest.mark.parametrize(("name", "edge"), ASCENDING, ids=str)
def test_keys_may_ascend(device, name, edge):
    """In the first tile and in all, in turn: both for each configuration and for each edge."""
    q_len, k_len, diagonal = edge
    turn = list(UP).index(name) + MASKED.index(edge)
    config = UP[name].replace(ascending=(Ascending.FIRST, Ascending.ALL)[turn % 2])
    masked = problem(config, q_len=q_len, k_len=k_len, causal=True, diagonal=diagonal)
    masked = replace(masked, lse=not config.l_by_mma)
    require(device, config, Case("ascending", masked, gain=4.0))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["two", "three", "halves"])
def test_no_schedule_stops_tiles_that_ascend(name, seed):
    config = UP[name].replace(ascending=Ascending.ALL)
    device = EmulatedDevice(options=EmulatorOptions(seed=seed, delayed_landing=True))
    masked = problem(config, q_len=700, k_len=700, heads=5, causal=True, lse=False)
    require(device, config, Case(f"ascending {seed}", masked))


def test_only_the_first_tile_of_a_block_ascends_where_that_is_asked_for():
    """The order of keys is in the last bits of O: one SM takes the longest of six tiles first."""
    causal = AttentionProblem(1, 1, 1, 6 * 128, 6 * 128, 64, SMALL.dtype, causal=True)
    inputs, o = random_inputs(causal), {}
    for a in Ascending:
        config = SMALL.replace(ascending=a)
        bits = run_arrays(EmulatedDevice(sm_count=1), config, causal, inputs)["o"]
        o[a] = bits.reshape(causal.q_len, causal.d_head)
    first, others = slice(5 * 128, None), slice(None, 5 * 128)
    assert (o[Ascending.FIRST][first] == o[Ascending.ALL][first]).all()
    assert (o[Ascending.FIRST][others] == o[Ascending.NONE][others]).all()
    for rows in (first, others):
        assert (o[Ascending.ALL][rows] != o[Ascending.NONE][rows]).any()


@pytest.mark.parametrize("d_head", [96, 128, 192])
@pytest.mark.parametrize("late_store", [False, True])
def test_output_may_be_staged_by_halves(device, d_head, late_store):
    config = SMALL.replace(d_head=d_head, o_halves=True, late_store=late_store, q_slots=2)
    whole = config.replace(o_halves=False)
    assert whole.smem_bytes() - config.smem_bytes() == 128 * 128  # rows, a panel's bytes of each
    # Whole heads and narrower ones, in turn: both for each width and with each way to store.
    if (d_head == 128) == late_store:
        require(device, config, Case("staged by halves", problem(config, q_len=300)))
    else:
        narrow = problem(config, q_len=130, d_head=d_head - 24, lse=False)
        require(device, config, Case("narrower", narrow))


SPLIT = SMALL.replace(split_last=True)
SPLITS = {
    "overlap": SPLIT,
    "late store": SPLIT.replace(late_store=True, o_staged=False),
    "fixed order": SPLIT.replace(scheduler=Scheduler.STATIC, l2_sections=False),
    "plain": PLAIN.replace(split_last=True),
    "halves": HALVES.replace(split_last=True),
    "row maxima": SPLIT.replace(statistics=Statistics.VOTE),
    "early Q": SPLIT.replace(q_slots=3, early_tiles=True, early_q=True),
    "clusters": SPLIT.replace(
        pingpong=False, cluster=2, consumer_registers=224, producer_registers=56
    ),
    "clusters in order": SPLIT.replace(
        pingpong=False, cluster=2, early_tiles=True, scheduler=Scheduler.STATIC,
        l2_sections=False, consumer_registers=224, producer_registers=56,
    ),
}  # fmt: skip
# Heads, queries, blocks of keys and a tail: one tile for all SMs; some that are left over;
# warpgroups that have no rows. All of one kernel; without tails are those of the last test of them.
LEFT_OVER = [(1, 127, 10, 5), (3, 200, 12, 9), (5, 130, 9, 5)]


@pytest.mark.parametrize("lengths", LEFT_OVER, ids=str)
@pytest.mark.parametrize("name", SPLITS)
def test_tiles_of_a_last_wave_may_be_split(device, name, lengths, monkeypatch):
    monkeypatch.setattr(launch, "LEAST_SAVED_KEYS", 1)
    config = SPLITS[name]
    heads, q_len, blocks, tail = lengths
    # With and without a log-sum-exp, alternating: both for each configuration and for all lengths.
    lse = (list(SPLITS).index(name) + LEFT_OVER.index(lengths)) % 2 == 0
    full = problem(config, heads=heads, q_len=q_len, k_len=blocks * config.B_c + tail, lse=lse)
    assert launch.plan_forward(config, full, device.sm_count)[0].split.ranges > 0
    require(device, config, Case("split", full, gain=8.0))  # parts with maxima of their own
    if lengths == LEFT_OVER[1]:
        require(device, config, Case("split again", full))  # flags were left zero


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["overlap", "fixed order", "clusters"])
def test_no_schedule_changes_what_parts_add_up_to(name, seed, monkeypatch):
    monkeypatch.setattr(launch, "LEAST_SAVED_KEYS", 1)
    device = EmulatedDevice(options=EmulatorOptions(seed=seed, delayed_landing=True))
    full = problem(SPLITS[name], q_len=200, k_len=777)
    require(device, SPLITS[name], Case(f"parts {seed}", full, gain=8.0))


def test_every_part_but_a_tiles_last_is_given(monkeypatch):
    """Three tiles of 12 blocks on two SMs: two are whole, the third is half of each block's."""
    monkeypatch.setattr(launch, "LEAST_SAVED_KEYS", 1)
    atomics = {}
    for config in (SPLIT, SMALL):
        device = EmulatedDevice(sm_count=2, options=EmulatorOptions(counters=True))
        three = problem(config, q_len=128, k_len=12 * 64, lse=False)
        require(device, config, Case("parts", three))
        atomics[config.split_last] = device.report().counters.instructions["atomic"]
    draws, leaves, warps = 2, 2, 8  # behind a block's first tile, which is its own
    assert atomics[False] == draws + 1 + leaves
    assert atomics[True] == draws + 2 + leaves + warps


def test_hints_are_given_to_loads_and_stores():
    hinted = SMALL.replace(l2_hints=True)
    pairs = hinted.replace(cluster=2, pingpong=False, o_staged=False)
    for config, hint in (
        (hinted, "mbarrier::complete_tx::bytes.L2::cache_hint"),
        (hinted, "bulk_group.L2::cache_hint"),
        (pairs, "multicast::cluster.L2::cache_hint"),
        (pairs, "st.global.L2::cache_hint.v4.b32"),
    ):
        assert hint in compile_ptx(config, Needs(), "sm_90a").ptx
        without = config.replace(l2_hints=False)
        assert "cache_hint" not in compile_ptx(without, Needs(), "sm_90a").ptx


@pytest.mark.parametrize("d_head", [8, 40, 56])
@pytest.mark.parametrize("o_staged", [True, False])
def test_a_head_may_be_narrower_than_the_kernel(device, d_head, o_staged):
    config = SMALL.replace(o_staged=o_staged)
    narrow = problem(config, d_head=d_head, q_len=130)
    require(device, config, Case("narrow", narrow, placement="padded"))


def test_a_warpgroup_may_skip_more_blocks_than_the_ring_has_stages(device):
    config = SMALL.replace(pingpong=False, cluster=2)
    require(device, config, Case("skips", problem(config, q_len=520, k_len=600, causal=True)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        PLAIN,
        SMALL.replace(cluster=2, pingpong=False),
        SMALL.replace(cluster=2, pingpong=False, early_tiles=True),
        SMALL.replace(q_slots=3, early_tiles=True, early_q=True),
        HALVES,
    ],
    ids=["overlap", "plain", "cluster", "early tiles", "early Q", "halves"],
)
def test_no_schedule_of_warps_and_copies_changes_the_result(config, seed):
    device = EmulatedDevice(options=EmulatorOptions(seed=seed, delayed_landing=True))
    small = problem(config, q_len=140, k_len=200, causal=True)
    require(device, config, Case(f"schedule {seed}", small))
