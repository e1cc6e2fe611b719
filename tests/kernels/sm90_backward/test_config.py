"""The backward configurations on wgmma: texts, what is refused and why, what is chosen."""

from dataclasses import replace
from itertools import product

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.compile.compiler import compile_kernel, compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.plans import plan
from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.parts import Sm90TilesConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.choose.measured import MeasuredConfig, MeasuredTable

ALL = "turns+fold+early_dv+late_fences"
BASE = parse_config(f"hopper_bwd(BF16, 128): ds_3+{ALL}")
BROAD = parse_config("hopper_bwd(BF16, 256): ds_2+dq_red")
PASSES = parse_config("hopper_bwd(BF16, 256): ds_2+turns+two_passes+early_release+v_halves")
PROBLEM = AttentionProblem(2, 6, 3, 300, 200, 128, operation="backward")


def test_the_set_has_what_the_rule_chooses_from_for_every_width_and_type():
    configs = resolve_key("hopper-bwd")
    assert len(configs) == len(set(configs)) == 52
    assert [config.refusal() for config in configs] == [None] * 52
    for dtype in DType:
        for width, count in ((64, 8), (128, 10), (256, 8)):
            own = [c for c in configs if (c.dtype, c.d_head) == (dtype, width)]
            assert len(own) == count
            assert sum(c.unordered for c in own) == 2
            assert sum(c.has_own_order for c in own) == count - 2  # the others are for lists


@pytest.mark.parametrize("config", [BASE, BROAD, *resolve_key("hopper-bwd")[1:4]], ids=str)
def test_every_text_of_the_whole_and_of_its_kernels_parses_back(config):
    for one in (config, *config.kernels()):
        assert parse_config(one.short_form()) == one
        assert parse_config(f"| {one.short_form()} | 3 us") == one
        assert parse_config(one.identifier()) == one
        assert parse_config(one.kernel_name(Needs(("causal",)))) == one


def test_a_prefix_that_ends_like_another_is_not_taken_for_it():
    assert parse_config("bwd(BF16, 64): dkv_64_64_4+dq_64_64_4").NAME == "sm80_backward"
    assert parse_config(f"hopper_bwd(BF16, 64): ds_2+{ALL}").NAME == "sm90_backward"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"hopper_bwd(BF16, 64): ds_3+{ALL}", "fits_shared_memory"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+dq_red", "red_is_unordered"),
        ("hopper_bwd(BF16, 64): ds_2+turns+early_dv", "many_rows_fold"),
        ("hopper_bwd(BF16, 256): ds_2", "fits_shared_memory"),
        ("hopper_bwd(BF16, 256): ds_2+turns+dq_red", "roles_have_one_order"),
        ("hopper_bwd(BF16, 256): ds_2+late_fences+dq_red", "roles_have_one_order"),
        ("hopper_bwd(BF16, 256): ds_3+dq_red", "fits_shared_memory"),
        ("hopper_bwd(BF16, 256): ds_2+dq_red+adders_3", "adders_add_staged_sums"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+unordered+early_polls", "adders_add_staged_sums"),
        ("hopper_bwd(BF16, 256): ds_2+dq_red+two_passes", "two_passes_add_nothing"),
        ("hopper_bwd(BF16, 256): ds_2+adders_3+two_passes", "adders_add_staged_sums"),
        ("hopper_bwd(BF16, 256): ds_2+two_passes+rising", "two_passes_add_nothing"),
        ("hopper_bwd(BF16, 256): ds_2+dq_red+early_release", "released_in_two_passes"),
        ("hopper_bwd(BF16, 256): ds_3+two_passes", "two_passes_of_wide_heads"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+two_passes", "two_passes_of_wide_heads"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+short_last", "order_has_one_end"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+unordered+rising", "order_has_one_end"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+unordered+rounds_dq", "rounded_sums_are_counted"),
        ("hopper_bwd(BF16, 256): ds_2+dq_red+rounds_dq", "rounded_sums_are_counted"),
        (f"hopper_bwd(BF16, 128): ds_3+{ALL}+staggered", "staggered_sums_have_no_order"),
        (
            "hopper_bwd(BF16, 256): ds_2+dq_red+unordered+staggered",
            "staggered_sums_have_no_order",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_a_rule(text, rule):
    config = parse_config(text)
    assert config.refusal().rule == config.tiles.refusal().rule == rule
    with pytest.raises(Unsupported):
        config.require_buildable()
    assert BASE.refusal() is None
    assert BROAD.refusal() is None


def test_spills_and_products_one_by_one_are_refused_after_the_build():
    assert BASE.tiles.refused_build(0, ()) is None
    assert BASE.tiles.refused_build(8, ()).rule == "spills"
    remark = "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    assert BASE.tiles.refused_build(0, (remark,)).rule == "wgmma_serialised"
    assert "add fold" in str(BASE.tiles.refused_build(8, ()))
    assert "configuration of `bwd`" in str(BROAD.tiles.refused_build(8, ()))


def test_the_parts_have_the_fields_of_the_whole():
    of_others = {"v_halves", "sections", "section_mb", "heads_inner", "part_mb"}
    of_tiles = Sm90TilesConfig.knobs().keys() - {"in_parts"}  # it follows from a problem's groups
    assert Sm90BackwardConfig.knobs().keys() == of_tiles | of_others
    assert replace(BASE, part_mb=10).tiles == BASE.tiles
    assert (BASE.rows.fold, BASE.rows.unordered) == (True, False)
    inner = replace(BASE, heads_inner=True)
    assert inner.rows.heads_inner
    assert inner.convert.heads_inner


def test_both_languages_agree_on_every_derived_number():
    own = sorted({config.tiles for config in resolve_key("hopper-bwd")})
    own.append(replace(BASE.tiles, fold=False, ds_stages=2))
    own.append(replace(BASE.tiles, adders=3))
    own.append(replace(BASE.tiles, rounds_dq=True))
    own.append(PASSES.tiles)
    asserts = "".join(
        f"static_assert({c.to_cpp_struct()}.smem_bytes() == {c.smem_bytes()}\n"
        f"    && {c.to_cpp_struct()}.threads() == {c.threads}\n"
        f"    && {c.to_cpp_struct()}.q_tile_rows() == {c.tile_q}\n"
        f"    && {c.to_cpp_struct()}.keys() == {c.tile_k}\n"
        f"    && {c.to_cpp_struct()}.barriers() == {c.barriers}\n"
        f"    && {c.to_cpp_struct()}.statistics_bytes() == {c.statistics_bytes});\n"
        for c in own
    )
    text = f'{structs(Sm90TilesConfig)}{asserts}extern "C" __global__ void none() {{}}'
    assert compile_text(text, "none", "sm_90a").cubin
    dq = PASSES.convert
    text = (
        f"{structs(type(dq))}static_assert({dq.to_cpp_struct()}.smem_bytes() == {dq.smem_bytes()}\n"
        f"    && {dq.to_cpp_struct()}.rows() == {dq.tile_q}\n"
        f"    && {dq.to_cpp_struct()}.keys() == {dq.tile_k}\n"
        f"    && {dq.to_cpp_struct()}.threads() == {dq.threads});\n"
        'extern "C" __global__ void none() {}'
    )
    assert compile_text(text, "none", "sm_90a").cubin


def test_a_launch_for_dq_refuses_packed_sequences_by_name():
    wide = replace(PROBLEM, d_head=256)
    with pytest.raises(Unsupported, match="its launch for dQ knows no packed sequences"):
        plan(PASSES, replace(wide, batch=1, sequences=3), sm_count=4)
    assert len(plan(PASSES, wide, sm_count=4)) == 3
    assert PASSES.repeats_bits


def test_the_whole_is_no_kernel_and_a_part_no_plan():
    with pytest.raises(Unsupported, match=r'plan of several kernels.*"hopper_bwd_rows\(BF16, 128'):
        compile_kernel(BASE, Needs(), "sm_90a")
    with pytest.raises(Unsupported, match="configs hopper-bwd"):
        plan(BASE.tiles, PROBLEM, sm_count=4)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"d_head": 128}, "sm90"),
        ({"d_head": 72}, "sm90"),
        ({"d_head": 128, "causal": True, "q_len": 512, "k_len": 512}, "sm90"),
        ({"d_head": 128, "causal": True, "q_len": 2048, "k_len": 2048}, "sm90"),
        ({"d_head": 8}, "sm90"),
        ({"d_head": 136}, "sm90"),
        ({"d_head": 256, "causal": True}, "sm90"),
    ],
)
def test_on_hopper_it_is_chosen_in_order_where_it_computes_the_problem(changes, name):
    problem = replace(PROBLEM, **({"causal": False} | changes))
    chosen = choose(problem, "sm_90a").config
    assert f"{name}_backward" == chosen.NAME
    assert not getattr(chosen, "unordered", False)
    wide = problem.d_head > 128
    assert chosen.two_passes == wide
    assert chosen.masks_first == problem.causal
    assert chosen.rising == (problem.causal and not wide)
    packed = choose(replace(problem, batch=1, sequences=3), "sm_90a").config
    assert packed.sections == (problem.d_head <= 64 or not problem.causal)
    assert not packed.has_own_order
    refused = "knows no packed sequences" if wide else "drawn by a list, in one order"
    with pytest.raises(Unsupported, match=refused):
        plan(chosen, replace(problem, batch=1, sequences=3), sm_count=4)
    assert choose(problem, "sm_80").config.NAME == "sm80_backward"


def test_times_of_a_gpu_decide_what_is_chosen_by_length_and_mask():
    plain = replace(PROBLEM, q_len=8192, k_len=8192)
    assert choose(plain, "sm_90a").config.section_mb == 40
    assert choose(replace(plain, k_len=2048), "sm_90a").config.section_mb == 20
    free = replace(plain, kv_heads=6, deterministic=False)
    # Up to so many keys order costs nothing; sums without it stagger where there is no mask.
    for d_head, causal, keys in (
        *((64, False, 1024), (64, True, 1024)),
        *((128, False, 1024), (128, True, 4096)),
    ):
        asked = replace(free, d_head=d_head, causal=causal, q_len=keys, k_len=keys)
        assert not choose(asked, "sm_90a").config.unordered
        config = choose(replace(asked, k_len=keys + 1), "sm_90a").config
        assert (config.unordered, config.staggered) == (True, not causal)
    assert choose(replace(free, causal=True, d_head=64), "sm_90a").config.short_last
    for wide in (replace(free, d_head=256), replace(free, d_head=192, causal=True)):
        assert choose(wide, "sm_90a").config.two_passes  # faster than sums in any order
        for fact in ({"softcap": 3.0}, {"alibi": True}, {"window_left": 100}):
            given = replace(wide, deterministic=True, **fact)
            assert choose(given, "sm_90a").config.two_passes


def test_sums_in_any_order_are_for_groups_that_need_no_parts():
    free = replace(PROBLEM, q_len=8192, k_len=8192, d_head=64, deterministic=False)
    assert choose(free, "sm_90a").config.unordered
    for other in ({"causal": True}, {"heads": 8, "kv_heads": 1, "batch": 1, "k_len": 4096}):
        assert choose(replace(free, **other), "sm_90a").config.part_mb


def test_groups_are_walked_in_parts_and_plain_heads_are_not():
    for d_head, causal, short in product((64, 128, 256), (False, True), (False, True)):
        keys = 1024 if short else 4096
        plain = replace(PROBLEM, heads=6, kv_heads=6, d_head=d_head, causal=causal, k_len=keys)
        chosen = choose(plain, "sm_90a").config
        of_groups = choose(replace(plain, kv_heads=2), "sm_90a").config
        assert not chosen.part_mb
        assert of_groups.part_mb
        assert not of_groups.short_last
        if d_head <= 128 or not causal:
            assert replace(of_groups, part_mb=0) == chosen


def test_an_empty_length_is_left_to_the_other_kernels():
    for lengths in ({"q_len": 0}, {"k_len": 0}):
        assert choose(replace(PROBLEM, **lengths), "sm_90a").config.NAME == "sm80_backward"
        with pytest.raises(Unsupported, match="empty; use a configuration of `bwd`"):
            plan(BASE, replace(PROBLEM, **lengths), sm_count=4)


class OneWinner(MeasuredTable):
    """What was measured, whatever the GPU is called."""

    def of_gpu(self, gpu):
        return self.read()


@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_any_order_is_chosen_only_where_it_is_allowed(d_head):
    problem = replace(PROBLEM, d_head=d_head, k_len=4096)
    configs = resolve_key("hopper-bwd")
    winner = next(c for c in configs if c.unordered and c.d_head == d_head)
    measured = MeasuredConfig(problem, winner.short_form(), 1.0)
    for tables in ([], [OneWinner("measured", lambda: [measured])]):
        chosen = choose(problem, "sm_90a", gpu="x", measurements=tables)
        assert chosen.config.repeats_bits
        said = [item.reason for item in chosen.rejected if item.what == winner.short_form()]
        assert all("only deterministic=False allows that" in reason for reason in said)
        assert bool(said) == bool(tables)
        free = choose(replace(problem, deterministic=False), "sm_90a", gpu="x", measurements=tables)
        assert free.config.unordered == (d_head <= 128 or bool(tables))  # wide heads: measured only
    assert not choose(replace(problem, deterministic=False), "sm_80").config.refusal()
