"""The choice: given, measured or ruled; always one that fits, always with its reason."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsmith.arch import ARCHES
from flashsmith.arch import get as get_arch
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import ArgumentError, OutOfResources, Unsupported
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.choose.launched import launched_area
from flashsmith.tuner.choose.measured import MeasuredTable, distance, known_measurements
from flashsmith.tuner.store.database import ResultStore
from flashsmith.tuner.store.exchange import write_lines
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed, Wrong

GPU = "NVIDIA Test"
PROBLEM = AttentionProblem(2, 3, 1, 4096, 4096, 128, DType.BF16, causal=True)
FAST = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
SLOW = "(BF16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
TOO_LARGE = "(BF16, 256, 128, 128, 8): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"


PAIRS = (
    "hopper(BF16, 256, 2, 64): kv_2+q_3+overlap+early_rescale+stats_SUM+lazy_8+cluster_2"
    "+tiles_DYNAMIC+regs_232_40"
)
ALONE = PAIRS.replace("+cluster_2", "")
WIDE = AttentionProblem(4, 8, 8, 4096, 4096, 256, DType.BF16)
ROOM = {"sm_count": 132, "blocks_per_sm": 1}


def measured(
    config, median_us, problem=PROBLEM, *, gate=True, gpu=GPU, outcome=None, environment=None
):
    key = MeasurementKey(gpu, "sm_90a", "580", "nvrtc", "", config, problem, "final")
    timed = Timed(median_us, median_us, median_us, 15, "f")
    return Measurement(key, outcome or timed, gate=gate, environment=environment or {})


def table(*measurements, label="measured on this machine"):
    return MeasuredTable(label, lambda: measurements)


def chosen(problem, *tables, arch="sm_90a"):
    return choose(problem, arch, gpu=GPU, measurements=tables)


@given(
    d_head=st.integers(1, 32).map(lambda n: 8 * n),
    q_len=st.integers(1, 10**5),
    dtype=st.sampled_from(DType),
    causal=st.booleans(),
    arch=st.sampled_from([arch.name for arch in ARCHES]),
)
def test_the_rule_finds_what_fits_for_every_problem(d_head, q_len, dtype, causal, arch):
    problem = AttentionProblem(1, 3, 1, q_len, q_len, d_head, dtype, causal=causal)
    choice = choose(problem, arch, measurements=())
    assert choice.source == "rule"
    assert choice.config.dtype is dtype
    assert d_head <= choice.config.d_head
    choice.config.require_buildable(get_arch(arch))


def test_what_does_not_fit_is_rejected_with_its_numbers():
    wide = replace(PROBLEM, d_head=256)
    large = choose(wide, "sm_80", measurements=())
    small = choose(wide, "sm_86", measurements=())
    assert small.config != large.config
    reasons = {item.what: item.reason for item in small.rejected}
    assert (
        "needs 131,072 bytes of shared memory a block on sm_86"
        in reasons[large.config.short_form()]
    )


def test_short_queries_get_the_smallest_query_tile():
    tiles = {
        n: choose(replace(PROBLEM, q_len=n), "sm_80", measurements=()).config.tile_q
        for n in (1, 4096)
    }
    assert tiles[1] < tiles[4096]


def test_a_width_beyond_all_kernels_is_refused():
    with pytest.raises(Unsupported, match=r"No configuration computes .* d 520"):
        choose(replace(PROBLEM, d_head=520), "sm_80", measurements=())


def test_the_fastest_measured_configuration_wins():
    choice = chosen(PROBLEM, table(measured(SLOW, 20.0), measured(FAST, 10.0)))
    assert choice.config == parse_config(FAST)
    assert choice.source == "measured on this machine"
    assert choice.reason == "measured on this machine: 10.0 µs on this shape, NVIDIA Test"
    assert [(item.what, item.reason) for item in choice.rejected] == [
        (SLOW, "20.0 µs against 10.0")
    ]


def test_the_users_measurements_come_before_the_shipped():
    mine = table(measured(SLOW, 20.0))
    shipped = table(measured(FAST, 10.0), label="shipped measurement")
    assert chosen(PROBLEM, mine, shipped).config == parse_config(SLOW)
    assert chosen(PROBLEM, shipped).source == "shipped measurement"


def test_a_measurement_that_never_met_the_shipped_winner_does_not_replace_it():
    shipped = table(measured(FAST, 10.0), label="shipped measurement")
    mine = replace(table(measured(SLOW, 20.0)), must_know=shipped)
    choice = chosen(PROBLEM, mine, shipped)
    assert choice.config == parse_config(FAST)
    assert (choice.rejected[0].what, choice.rejected[0].reason) == (
        SLOW,
        "measured on this machine, but it was not timed beside the winner of the shipped "
        "measurements; `flashsmith tune` races both",
    )
    # Where it was in the race and lost, this machine's own winner is the choice.
    raced = replace(
        table(measured(SLOW, 20.0), measured(FAST, 21.0, gate=False)), must_know=shipped
    )
    assert chosen(PROBLEM, raced, shipped).config == parse_config(SLOW)
    # In another element type it is the same winner.
    half = replace(PROBLEM, dtype=DType.FP16)
    assert chosen(half, raced, shipped).config == parse_config(SLOW.replace("BF16", "FP16"))


def test_what_is_measured_or_imported_here_must_know_the_shipped_winner():
    mine, imported, shipped = known_measurements(GPU)
    assert mine.must_know == imported.must_know == shipped


def test_a_neighbours_measurement_is_taken_and_said():
    choice = chosen(replace(PROBLEM, q_len=3000, k_len=3000), table(measured(FAST, 10.0)))
    assert choice.config == parse_config(FAST)
    assert "the nearest shape measured, batch 2, heads 3:1, length 4096" in choice.reason


def test_tiles_dealt_out_beforehand_that_won_on_equal_lengths_yield_where_lengths_differ():
    dealt = ALONE.replace("DYNAMIC", "STATIC")
    known = table(measured(dealt, 660.0, WIDE), measured(ALONE, 670.0, WIDE))
    assert chosen(WIDE, known).config == parse_config(dealt)
    packed = replace(WIDE, batch=1, q_len=16384, k_len=16384, sequences=21)
    for problem in (packed, replace(WIDE, k_lengths=True)):
        choice = chosen(problem, known)
        assert choice.config == parse_config(ALONE)
        (loser,) = choice.rejected
        assert (loser.what, loser.reason) == (
            dealt,
            "its tiles are dealt out before lengths are known",
        )


def test_what_won_where_lengths_are_in_memory_is_taken_whatever_the_batch():
    own = replace(WIDE, batch=1, causal=True, k_lengths=True)
    rising = ALONE.replace("+tiles_DYNAMIC", "+up_ALL+tiles_DYNAMIC")
    known = table(measured(rising, 165.0, own), measured(ALONE, 170.0, own))
    for changed in ({}, {"batch": 2}, {"batch": 4}, {"scale": 0.5}, {"lse": True}):
        assert chosen(replace(own, **changed), known).config == parse_config(rising)


def test_tiles_that_ascend_yield_where_lengths_are_in_memory_and_a_mask_takes_registers():
    rising = ALONE.replace("+tiles_DYNAMIC", "+up_ALL+tiles_DYNAMIC")
    causal = replace(WIDE, causal=True)
    known = table(measured(rising, 360.0, causal), measured(ALONE, 370.0, causal))
    assert chosen(causal, known).config == parse_config(rising)
    packed = replace(causal, batch=1, q_len=16384, k_len=16384, sequences=21)
    for problem in (packed, replace(causal, k_lengths=True)):
        choice = chosen(problem, known)
        assert choice.config == parse_config(ALONE)
        assert [item.reason for item in choice.rejected] == [
            "ptxas spills where tiles that ascend are listed and masked"
        ]


def test_what_was_measured_in_spite_of_its_drawback_is_taken():
    """Another compiler found registers for it."""
    window = replace(WIDE, causal=True, window_left=500)
    wide = parse_config(ALONE)
    assert wide.drawback(window)
    assert chosen(window, table(measured(ALONE, 300.0, window))).config == wide


def wide_table(room=ROOM, shorter=2048):
    """Pairs of blocks won at 4096, single ones at another length."""
    other = replace(WIDE, batch=16384 // shorter, q_len=shorter, k_len=shorter)
    us = 665.2 * 1.04 * shorter / 4096  # a little less efficient than the pairs
    return table(
        measured(PAIRS, 665.2, WIDE, environment=room),
        measured(ALONE, us, other, environment=room),
    )


def test_33_tiles_are_no_pairs_so_a_cluster_that_won_on_32_yields_and_it_is_said():
    choice = chosen(replace(WIDE, q_len=4133, k_len=4133), wide_table())
    assert choice.config == parse_config(ALONE)
    assert "on batch 8, heads 8, length 2048" in choice.reason
    # 8 waves of 65 blocks of keys in place of 8 of 32; the pairs need 9 waves instead of 8 of 64.
    us = 665.2 * 1.04 / 2 * 65 / 32
    assert choice.reason.endswith(f"with whole tiles and waves, {us:.1f} µs expected here")
    (loser,) = choice.rejected
    assert loser.what == PAIRS
    assert loser.reason.startswith(
        "665.2 µs on the nearest shape measured, batch 4, heads 8, length 4096"
    )
    assert loser.reason.endswith(f"waves, {665.2 * 9 / 8 * 65 / 64:.1f} µs expected here")


@pytest.mark.parametrize(
    ("problem", "known"),
    [
        (WIDE, wide_table()),  # measured: nothing is estimated
        (replace(WIDE, q_len=4090, k_len=4090), wide_table()),  # 32 tiles are pairs
        (replace(WIDE, q_len=4133, k_len=4133), wide_table(room={})),  # waves are not known
        # More keys hide what a tile costs: times at 8192 say nothing good of 4133.
        (replace(WIDE, q_len=4133, k_len=4133), wide_table(shorter=8192)),
    ],
)
def test_a_cluster_that_won_stays_where_it_fits_or_nothing_better_is_known(problem, known):
    assert chosen(problem, known).config == parse_config(PAIRS)


def test_launched_area_counts_whole_tiles_whole_waves_and_what_a_mask_leaves():
    alone, pairs = parse_config(ALONE), parse_config(PAIRS)
    odd = replace(WIDE, q_len=4133, k_len=4133)
    keys = 65 * 64
    assert launched_area(alone, odd, 132) == 8 * 132 * 128 * keys
    assert launched_area(pairs, odd, 132) == 9 * 66 * 256 * keys
    assert launched_area(pairs, odd, 0) == 17 * 32 * 256 * keys
    # Half a wave of tiles takes a whole wave's time, unless they are split.
    half = replace(odd, batch=1, heads=2, kv_heads=2)
    assert launched_area(alone, half, 132) == 132 * 128 * keys
    assert launched_area(alone.replace(split_last=True), half, 132) == 66 * 128 * keys
    causal = replace(WIDE, q_len=300, k_len=300, causal=True)  # rows to 128, 256 and 300
    assert launched_area(alone, causal, 132) == 32 * 128 * (128 + 256 + 320)
    assert launched_area(alone, replace(causal, diagonal=-300), 132) == 0


@pytest.mark.parametrize(
    "far",
    [
        replace(PROBLEM, q_len=1024),
        replace(PROBLEM, causal=False),
        replace(PROBLEM, d_head=64),
        replace(PROBLEM, q_len=3000, diagonal=0),
    ],
)
def test_a_measurement_of_an_unlike_problem_is_not_taken(far):
    assert chosen(far, table(measured(FAST, 10.0))).source == "rule"


def test_layout_and_scale_do_not_matter():
    assert distance(PROBLEM, replace(PROBLEM, layout="bhsd", scale=0.3)) == 0


def test_a_measurement_in_the_other_type_serves():
    choice = chosen(replace(PROBLEM, dtype=DType.FP16), table(measured(FAST, 10.0)))
    assert choice.config == replace(parse_config(FAST), dtype=DType.FP16)


@pytest.mark.parametrize(
    "unusable",
    [
        measured(FAST, 10.0, gate=False),
        measured(FAST, 10.0, gpu="NVIDIA Other"),
        measured(FAST, 10.0, outcome=Wrong("off")),
    ],
)
def test_what_did_not_pass_the_gate_is_not_chosen(unusable):
    assert chosen(PROBLEM, table(unusable)).source == "rule"


def test_a_measured_configuration_that_does_not_fit_is_passed_over():
    wide = replace(PROBLEM, d_head=256)
    fits = SLOW.replace("128, 128, 32", "256, 64, 32")
    known = table(measured(TOO_LARGE, 5.0, wide), measured(fits, 9.0, wide))
    choice = chosen(wide, known, arch="sm_86")
    assert choice.config == parse_config(fits)
    assert choice.rejected[0].what == TOO_LARGE
    assert "bytes of shared memory" in choice.rejected[0].reason


def test_a_configuration_that_something_else_rules_out_is_passed_over():
    first = choose(PROBLEM, "sm_80", measurements=()).config
    ruled_out = choose(PROBLEM, "sm_80", measurements=(), unusable={first: "its strides"})
    assert ruled_out.config != first
    assert (first.short_form(), "its strides") in [(r.what, r.reason) for r in ruled_out.rejected]
    known = (table(measured(FAST, 10.0), measured(SLOW, 20.0)),)
    unusable = {parse_config(FAST): "its strides"}
    choice = choose(PROBLEM, "sm_90a", gpu=GPU, measurements=known, unusable=unusable)
    assert choice.config == parse_config(SLOW)


def test_a_given_configuration_is_used_or_refused():
    config = parse_config(SLOW)
    assert choose(PROBLEM, "sm_90a", given=config).config is config
    with pytest.raises(ArgumentError, match="the problem is FP16"):
        choose(replace(PROBLEM, dtype=DType.FP16), "sm_90a", given=config)
    with pytest.raises(Unsupported, match="d_head is 192"):
        choose(replace(PROBLEM, d_head=192), "sm_90a", given=config)
    with pytest.raises(OutOfResources, match="bytes of shared memory"):
        choose(replace(PROBLEM, d_head=256), "sm_86", given=parse_config(TOO_LARGE))


def test_the_results_file_of_the_user_is_read_as_it_grows(tmp_path, monkeypatch):
    path = tmp_path / "results.sqlite"
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(path))
    assert choose(PROBLEM, "sm_90a", gpu=GPU).source == "rule"
    with ResultStore(path) as store:
        store.add(measured(SLOW, 20.0))
        assert choose(PROBLEM, "sm_90a", gpu=GPU).config == parse_config(SLOW)
        store.add(measured(FAST, 10.0))
    assert choose(PROBLEM, "sm_90a", gpu=GPU).config == parse_config(FAST)


def test_shipped_measurements_are_found_by_the_gpus_name(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(tmp_path / "none.sqlite"))
    monkeypatch.setattr("flashsmith.tuner.choose.measured.SHIPPED_FOLDER", tmp_path)
    write_lines([measured(FAST, 10.0)], tmp_path / "nvidia_test.jsonl")
    choice = choose(PROBLEM, "sm_90a", gpu=GPU)
    assert choice.source == "shipped measurement"
    assert choose(PROBLEM, "sm_90a", gpu="NVIDIA Other").source == "rule"


def test_a_damaged_file_is_said_and_left_out(tmp_path, monkeypatch, caplog):
    path = tmp_path / "results.sqlite"
    path.write_text("no database")
    monkeypatch.setenv("FLASHSMITH_RESULTS", str(path))
    assert known_measurements(GPU)[0].of_gpu(GPU) == []
    assert "its measurements are left out" in caplog.text


def test_what_is_no_problem_is_refused_by_type():
    with pytest.raises(TypeError, match="problem is None; it must be an AttentionProblem"):
        choose(None, "sm_80")
