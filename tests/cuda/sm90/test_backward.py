"""The backward kernels on wgmma at their edges: lengths, masks, groups, narrow heads, order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.check.cases import LARGE_LOGITS, Case, full_cases, inputs_of, quick_cases
from flashsmith.check.verdict import check_case
from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.cubin import machine_code
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm90_backward import draw_order
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.runtime.devices import default_device, has_cuda
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.tuner.choose.choice import choose

ALL = "turns+fold+early_dv+late_fences"
WIDE = parse_config(f"hopper_bwd(BF16, 128): ds_3+{ALL}")
SLIM = parse_config(f"hopper_bwd(FP16, 64): ds_2+{ALL}")
PLAIN = parse_config("hopper_bwd(BF16, 128): ds_2")
BROAD = parse_config("hopper_bwd(BF16, 256): ds_2+dq_red")
PASSES = parse_config("hopper_bwd(BF16, 256): ds_2+turns+two_passes+early_release+v_halves")
SECTIONS = replace(WIDE, sections=True)
CONFIGS = [WIDE, replace(SLIM, sections=True), PLAIN]
_EMULATOR = EmulatedDevice()


def problem(config, q_len, k_len, **more):
    given = {"heads": 2, "kv_heads": 2, "d_head": config.d_head, **more}
    return AttentionProblem(
        batch=1, q_len=q_len, k_len=k_len, dtype=config.dtype, operation="backward", **given
    )


def require_right(device, config, name, case_problem, **more):
    verdict = check_case(device, config, Case(name, case_problem, **more))
    assert verdict.ok, verdict


@pytest.mark.parametrize(
    "config",
    [
        *CONFIGS,
        replace(PLAIN, unordered=True),
        replace(WIDE, unordered=True, sections=True),
        replace(WIDE, unordered=True, dq_red=True, dtype=DType.FP16),
        replace(SLIM, unordered=True, dq_red=True, dtype=DType.BF16),
        replace(SLIM, turns=False, early_dv=False),
        replace(WIDE, fold=False),
        replace(BROAD, sections=True),
        parse_config("hopper_bwd(BF16, 256): ds_2+two_passes"),
    ],
    ids=str,
)
def test_the_quick_cases_are_right(device, config):
    for case in quick_cases(config):
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize("case", full_cases(SECTIONS), ids=lambda case: case.name)
def test_one_configuration_is_right_on_every_case(device, case):
    check_case(device, SECTIONS, case).require_ok(SECTIONS.short_form())


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
@pytest.mark.parametrize("config", resolve_key("hopper-bwd"), ids=str)
def test_the_set_is_right_on_every_case_on_a_gpu(config):
    device = default_device("cuda")
    for case in full_cases(config):
        check_case(device, config, case).require_ok(config.short_form())


@pytest.mark.parametrize("config", [SECTIONS, SLIM, BROAD], ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 130), (130, 1), (65, 129)])
def test_any_length_is_right(device, config, q_len, k_len):
    require_right(device, config, "lengths", problem(config, q_len, k_len))


@pytest.mark.parametrize("diagonal", [-100, -40, -1, 0, 17, 149, 150])
def test_any_diagonal_is_right_and_rows_without_keys_give_nothing(device, diagonal):
    for config in (WIDE, SLIM):
        causal = problem(config, 70, 150, kv_heads=1, causal=True, diagonal=diagonal)
        require_right(device, config, "diagonal", causal)


@pytest.mark.parametrize("diagonal", [-100, 17])  # kv blocks that no row sees, or few rows
def test_a_diagonal_of_wide_heads_is_right(device, diagonal):
    causal = problem(BROAD, 70, 150, heads=3, kv_heads=1, causal=True, diagonal=diagonal)
    require_right(device, BROAD, "diagonal", causal, placement="transposed")


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 1), (6, 2)])
def test_any_group_is_summed_up(device, heads, kv_heads):
    grouped = problem(SECTIONS, 70, 130, heads=heads, kv_heads=kv_heads, causal=True)
    require_right(device, SECTIONS, "group", grouped, placement="transposed")


FREE = replace(BROAD, dtype=DType.FP16, unordered=True)
NARROWER = [
    *((WIDE, d_head) for d_head in (8, 40, 72)),
    (FREE, 136),
]


@pytest.mark.parametrize(("config", "d_head"), NARROWER, ids=str)
def test_a_narrower_head_is_run_without_a_copy(device, config, d_head):
    narrow = problem(config, 70, 140, causal=True, d_head=d_head)
    require_right(device, config, "narrow", narrow, placement="padded")


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    lengths=st.tuples(st.integers(1, 150), st.integers(1, 300)),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]),
    diagonal=st.one_of(st.none(), st.integers(-160, 300)),
    width=st.sampled_from([8, 24, 56, 64]),
    placement=st.sampled_from(["contiguous", "padded", "transposed"]),
    config=st.sampled_from(CONFIGS),
)
def test_any_problem_is_right(lengths, heads, diagonal, width, placement, config):
    mask = {} if diagonal is None else {"causal": True, "diagonal": diagonal}
    drawn = problem(
        config, *lengths, heads=heads[0], kv_heads=heads[1], d_head=width, dlse=True, **mask
    )
    require_right(_EMULATOR, config, "drawn", drawn, placement=placement)


def test_large_logits_neither_overflow_nor_cancel_to_nan(device):
    for config in (*CONFIGS, BROAD):
        require_right(
            device, config, "large", problem(config, 65, 130, kv_heads=1), gain=LARGE_LOGITS
        )


@pytest.mark.parametrize("config", [WIDE, BROAD], ids=str)
def test_a_nan_of_one_query_row_reaches_no_other_row_of_dq(device, config):
    case = Case("nan", problem(config, 70, 100))
    inputs = {name: bits.copy() for name, bits in inputs_of(case).items()}
    inputs["do"][0, 33, 1, 2] = to_bits(np.float32([np.nan]), DType.BF16)[0]
    dq = from_bits(run_arrays(device, config, case.problem, inputs)["dq"], DType.BF16)
    rows = np.isnan(dq).any(axis=-1)
    assert rows[0, 33, 1]
    assert rows.sum() == 1


def bits_by_seed(config, sm_count, seeds=range(2), **mask):
    """The different bits that random schedules gave, of gradients and of dQ's sums in float32."""
    heads = 2 if config.sections else 1
    k_len = 4 * config.tile_k - 5
    given = {"q_len": 64, "k_len": k_len, "heads": heads, "kv_heads": heads, **mask}
    case = Case("repeated", problem(config, **given))
    *_, launch = plan(config, case.problem, sm_count=sm_count)
    begin, n_bytes = launch.scratch.statistics, launch.scratch.dq_sums
    seen = {name: set() for name in ("dq", "dk", "dv", "sums")}
    for seed in seeds:
        options = EmulatorOptions(
            seed=seed,
            delayed_landing=True,
            mma_in_order=True,
            ordered_sums=not config.unordered,
        )
        device = EmulatedDevice(sm_count=sm_count, options=options)
        found = run_arrays(device, config, case.problem, inputs_of(case))
        address = device.scratch(launch.scratch_bytes)
        found["sums"] = device.download(address + begin, n_bytes)
        for name, bits in seen.items():
            bits.add(found[name].tobytes())
    return seen


@pytest.mark.parametrize(
    ("config", "seeds"),
    [
        (WIDE, [(0,), (1,), (0,)]),
        (replace(SLIM, sections=True), [(1,), (0,), (1,)]),
        (BROAD, [(0,), (1,), (2,)]),
    ],
    ids=str,
)
def test_the_bits_are_the_same_on_every_schedule_and_number_of_sms(config, seeds):
    found = [bits_by_seed(config, sms, some) for sms, some in zip((1, 3, 132), seeds, strict=True)]
    for name in ("dq", "dk", "dv", "sums"):
        assert len(set().union(*(seen[name] for seen in found))) == 1


@pytest.mark.parametrize(
    "mask",
    [
        {"causal": True, "diagonal": 64 * 6},
        {"q_len": 200, "window_left": 150, "window_right": 140, "heads": 1, "kv_heads": 1},
    ],
    ids=["causal", "window"],
)
def test_under_a_mask_the_bits_are_the_same_too(mask):
    seen = bits_by_seed(SECTIONS, 7, **mask)
    assert all(len(bits) == 1 for bits in seen.values())


# What orders sums otherwise: three threads that add, early looks at counters, heads that rise.
ADDERS = replace(WIDE, adders=3, early_polls=True)
RISING = replace(ADDERS, masks_first=True, rising=True, section_mb=10)
SHORT_LAST = replace(SLIM, unordered=True, dq_red=True, masks_first=True, short_last=True)


@pytest.mark.parametrize(
    ("config", "length", "diagonal"),
    [
        (replace(WIDE, masks_first=True), 330, 0),  # three blocks; of the last one only 74 keys
        (replace(WIDE, masks_first=True), 200, 64),  # the first block begins behind its diagonal
        (replace(WIDE, masks_first=True, unordered=True), 190, 0),  # a block of one step
        (replace(SLIM, masks_first=True), 300, 0),
        (replace(BROAD, masks_first=True), 140, 0),
    ],
    ids=str,
)
def test_hiding_keys_in_first_steps_alone_is_right(device, config, length, diagonal):
    heads = {"heads": 1, "kv_heads": 1}
    given = problem(config, length, length + diagonal, causal=True, diagonal=diagonal, **heads)
    assert plan(config, given, sm_count=4)[1].config.masks_first
    require_right(device, config, "masks first", given)


# Kv blocks begin at q tiles of their own, where there are as many, and go round by groups of heads.
@pytest.mark.parametrize(
    ("config", "lengths", "heads"),
    [
        (replace(WIDE, unordered=True, early_start=True, staggered=True), (200, 390), (4, 2)),
        (replace(WIDE, unordered=True, section_mb=10, staggered=True), (330, 330), (2, 2)),
        (replace(SLIM, unordered=True, dq_red=True, staggered=True), (300, 200), (3, 1)),
    ],
    ids=str,
)
def test_kv_blocks_that_begin_at_tiles_of_their_own_are_right(device, config, lengths, heads):
    given = problem(config, *lengths, heads=heads[0], kv_heads=heads[1])
    assert plan(config, given, sm_count=4)[1].config.staggered
    require_right(device, config, "staggered", given)


def first_tiles(device, config, blocks):
    """The q tile that each kv block's walk begins with, of three: dV's sums tell it.

    All scores are 0. In column c of dO, tile c has a small number, and the two behind it large ones
    that cancel: beside them it is lost, unless both come before it.
    """
    given = problem(config, 190, blocks * config.tile_k - 7, heads=1, kv_heads=1)
    inputs = {name: np.zeros_like(bits) for name, bits in inputs_of(Case("tiles", given)).items()}
    inputs["lse"] = np.full_like(inputs["lse"], np.log(np.float32(given.k_len)).view(np.uint32))
    d_o = np.zeros((1, 190, 1, given.d_head), np.float32)
    for column in range(3):
        for behind, number in enumerate((1.0, 2.0**40, -(2.0**40))):
            d_o[0, (column + behind) % 3 * 64 + 5, 0, column] = number
    inputs["do"] = to_bits(d_o, config.dtype)
    dv = from_bits(run_arrays(device, config, given, inputs)["dv"], config.dtype)
    firsts = dv.reshape(given.k_len, -1)[:: config.tile_k, :3]
    assert (np.count_nonzero(firsts, axis=1) == 1).all()
    return [(int(column) + 1) % 3 for column in np.argmax(firsts, axis=1)]


def test_walks_begin_at_tiles_of_their_own(device):
    config = replace(WIDE, unordered=True, early_start=True, staggered=True)
    assert first_tiles(device, config, 4) == [0, 2, 1, 0]  # 128 keys on are two tiles on
    assert first_tiles(device, WIDE, 4) == [0] * 4


def test_heads_that_rise_give_the_same_bits_on_every_number_of_sms():
    facts = {"heads": 4, "kv_heads": 4, "causal": True, "diagonal": 64 * 6}
    seen = [bits_by_seed(RISING, sms, (sms,), **facts) for sms in (1, 7)]
    for name in ("dq", "dk", "dv", "sums"):
        assert len(set().union(*(bits[name] for bits in seen))) == 1


def test_wide_heads_that_rise_are_right(device):
    config = replace(BROAD, rising=True)
    given = problem(config, 64, 200, heads=4, kv_heads=4, causal=True, diagonal=128)
    assert plan(config, given, sm_count=4)[1].order.rising_heads == 1
    require_right(device, config, "rising", given)


# Rows of a launch for dQ are 128: here they end in a first warpgroup's, or a second one's, and each
# may see another last kv block.
@pytest.mark.parametrize(
    ("config", "lengths", "facts"),
    [
        (PASSES, (192, 260), {"heads": 3, "kv_heads": 1, "causal": True, "diagonal": 5}),
        (replace(PASSES, dtype=DType.FP16, turns=False), (150, 200), {"causal": True}),
        (PASSES, (140, 200), {"window_left": 70, "window_right": 30, "d_head": 136}),
        (PASSES, (150, 200), {"causal": True, "softcap": 1.5, "alibi": True}),
        (replace(PASSES, masks_first=True, short_last=True), (330, 330), {"causal": True}),
    ],
    ids=str,
)
def test_dq_by_a_launch_of_its_own_is_right(device, monkeypatch, config, lengths, facts):
    monkeypatch.setattr(draw_order, "TOGETHER", 0)
    given = problem(config, *lengths, **{"heads": 1, "kv_heads": 1, **facts})
    launches = plan(config, given, sm_count=4)
    assert launches[-1].config.NAME == "sm90_backward_queries"
    assert launches[-1].scratch.dq_sums == 0
    assert bool(launches[1].order.short_blocks) == config.short_last
    require_right(device, config, "two passes", given, placement="transposed")


def test_a_launch_for_dq_gives_the_same_bits_on_every_schedule_and_number_of_sms():
    case = Case("repeated", problem(PASSES, 200, 250, heads=1, kv_heads=1, causal=True))
    seen = set()
    for seed, sms in enumerate((1, 7, 132)):
        options = EmulatorOptions(seed=seed, delayed_landing=True, mma_in_order=True)
        device = EmulatedDevice(sm_count=sms, options=options)
        found = run_arrays(device, PASSES, case.problem, inputs_of(case))
        seen.add(tuple(found[name].tobytes() for name in ("dq", "dk", "dv")))
    assert len(seen) == 1


def test_heads_that_rise_and_three_adders_are_right(device):
    given = problem(RISING, 130, 260, heads=4, kv_heads=4, causal=True, diagonal=128)
    order = plan(RISING, given, sm_count=4)[1].order
    assert (order.rising_heads, order.section_heads) == (1, 3)
    require_right(device, RISING, "rising", given)


def test_three_adders_walk_groups_and_give_the_same_bits_as_two():
    """Each takes every third piece of a walk that goes from head to head of a group."""
    facts = {"q_len": 100, "k_len": 260, "heads": 2, "kv_heads": 1}
    bits = [bits_by_seed(config, 3, (0,), **facts) for config in (WIDE, ADDERS)]
    assert bits[0] == bits[1]


# A group's heads in parts, whose dK and dV are added up; few keys make parts of one head.
PARTS = replace(RISING, part_mb=10)
WIDE_PARTS = replace(PASSES, masks_first=True, part_mb=10)


@pytest.mark.parametrize(
    ("config", "length", "heads", "walked"),
    [(PARTS, 300, 6, 2), (WIDE_PARTS, 150, 3, 1), (replace(SLIM, part_mb=10), 270, 3, 1)],
    ids=str,
)
def test_parts_of_a_group_are_summed_up(device, monkeypatch, config, length, heads, walked):
    monkeypatch.setattr(draw_order, "BUSY_KEYS", length * 2 // 3)  # three parts
    given = problem(config, length, length, heads=heads, kv_heads=1, causal=True)
    launch = plan(config, given, sm_count=4)[1]
    assert (launch.order.walked_heads, launch.config.in_parts) == (walked, True)
    require_right(device, config, "parts", given, placement="transposed")


def test_parts_of_a_group_give_the_same_bits_on_every_number_of_sms():
    """Also with dQ rounded by who multiplies: heads are drawn part by part."""
    facts = {"heads": 4, "kv_heads": 1, "causal": True, "diagonal": 64 * 6}
    config = replace(PARTS, rounds_dq=True)
    seen = [bits_by_seed(config, sms, (sms,), **facts) for sms in (1, 7)]
    for name in ("dq", "dk", "dv", "sums"):
        assert len(set().union(*(bits[name] for bits in seen))) == 1


def test_short_blocks_of_all_heads_may_come_last(device, monkeypatch):
    monkeypatch.setattr(draw_order, "TOGETHER", 0)
    given = problem(SHORT_LAST, 300, 300, heads=3, kv_heads=3, causal=True)
    assert plan(SHORT_LAST, given, sm_count=4)[1].order.short_blocks == 2
    require_right(device, SHORT_LAST, "short last", given)


@pytest.mark.parametrize("placement", ["contiguous", "transposed"])
def test_rows_may_be_taken_head_by_head(device, placement):
    config = replace(WIDE, heads_inner=True)
    given = replace(problem(config, 70, 140, heads=3, kv_heads=1), batch=2)
    require_right(device, config, "heads inner", given, placement=placement)


UNORDERED = [
    (replace(WIDE, unordered=True), {}),
    (replace(WIDE, unordered=True, dq_red=True), {}),
    (FREE, {"k_len": 140, "causal": True, "d_head": 136}),  # as above: its kernel is there
]


@pytest.mark.parametrize(("config", "facts"), UNORDERED, ids=str)
def test_without_order_sums_of_dq_have_other_bits_and_the_others_have_not(config, facts):
    seen = bits_by_seed(config, 4, **facts)
    assert len(seen["sums"]) > 1
    assert len(seen["dk"]) == len(seen["dv"]) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="needs a GPU")
@pytest.mark.parametrize(
    "mask", [{}, {"causal": True}, {"causal": True, "window_left": 1024}], ids=str
)
@pytest.mark.parametrize("group", [1, 8])
@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_a_hundred_repeats_give_the_same_bits_on_a_gpu(d_head, group, mask):
    device = default_device("cuda")
    heads = min(16, 2048 // d_head)
    shape = (4, heads, heads // group, 4096, 4096, d_head)
    full_size = AttentionProblem(*shape, operation="backward", **mask)
    config = choose(full_size, "sm_90a").config
    inputs = random_inputs(full_size)
    first = run_arrays(device, config, full_size, inputs)
    for _ in range(100):
        again = run_arrays(device, config, full_size, inputs)
        assert all((first[name] == again[name]).all() for name in first)


TILES = PLAIN.tiles
OTHERS = [
    (TILES, {"dtype": DType.FP16}),
    (replace(TILES, fold=True), {"d_head": 64}),
    (TILES, {"ds_stages": 3}),
    (TILES, {"turns": True}),
    (TILES, {"fold": True}),
    (TILES, {"early_dv": True}),
    (TILES, {"late_fences": True}),
    (TILES, {"unordered": True}),
    (replace(TILES, unordered=True), {"dq_red": True}),
    (TILES, {"masks_first": True}),
    (TILES, {"adders": 3}),
    (TILES, {"early_polls": True}),
    (TILES, {"rounds_dq": True}),
    (replace(TILES, unordered=True), {"staggered": True}),
    *((part, {"early_start": True}) for part in (*PLAIN.kernels(), PASSES.convert)),
    (BROAD.tiles, {"two_passes": True, "dq_red": False}),
    (PASSES.tiles, {"early_release": False}),
    (PASSES.convert, {"turns": False}),
    (PASSES.convert, {"v_halves": False}),
    (PASSES.convert, {"dtype": DType.FP16}),
    (TILES, {"rising": True}),
    (TILES, {"in_parts": True}),
    (replace(TILES, unordered=True), {"short_last": True}),
    (PLAIN.rows, {"heads_inner": True}),
    (PLAIN.convert, {"heads_inner": True}),
    (PLAIN.rows, {"dtype": DType.FP16}),
    (PLAIN.rows, {"d_head": 64}),
    (PLAIN.rows, {"fold": True}),
    (PLAIN.rows, {"unordered": True}),
    (PLAIN.convert, {"dtype": DType.FP16}),
    (PLAIN.convert, {"d_head": 64}),
]


def test_every_field_of_every_kernel_is_tried():
    for part in PLAIN.kernels():
        tried = {name for config, other in OTHERS for name in other if config.NAME == part.NAME}
        assert tried == set(part.knobs())


@pytest.mark.parametrize(("config", "other"), OTHERS, ids=str)
def test_a_field_alone_changes_the_machine_code(config, other):
    needs = Needs(("causal",) if "masks_first" in other else ())
    codes = {
        machine_code(compile_kernel(one, needs, "sm_90a").cubin)
        for one in (config, replace(config, **other))
    }
    assert len(codes) == 2
