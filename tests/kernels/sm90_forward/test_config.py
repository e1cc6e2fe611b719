"""The Hopper family's configurations: texts, formulas, filters, sets, and the mirror in C++."""

import itertools

import pytest

from flashsmith.base.errors import ConfigError
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels import get_kernel_configs, parse_config
from flashsmith.kernels.sm90_forward.config import (
    MAX_SMEM_BYTES,
    Ascending,
    Scheduler,
    Sm90ForwardConfig,
    Statistics,
)
from flashsmith.kernels.sm90_forward.sets import get_hopper_progression_configs
from flashsmith.problem.needs import Needs

BASE = parse_config(
    "hopper(BF16, 128, 3, 80): kv_2+q_6+overlap+early_rescale+stats_VOTE+lazy_8+tiles_DYNAMIC"
    "+sections+o_smem+regs_160_32"
)
TWO = BASE.replace(n_warpgroups=2, q_slots=4, consumer_registers=232, producer_registers=40)
SETS = [*get_kernel_configs("hopper"), *get_kernel_configs("hopper-prog")]

# rule → (a configuration that it refuses, its neighbour that passes)
REFUSED = {
    "fits_shared_memory": (TWO.replace(B_c=144), TWO.replace(B_c=144, o_staged=False, q_slots=2)),
    "fits_registers": (BASE.replace(B_c=96, q_slots=3), BASE),
    "fits_register_pool": (TWO.replace(consumer_registers=240), TWO),
    "q_slots_hold_a_tile": (BASE.replace(q_slots=2), BASE.replace(q_slots=3)),
    "pingpong_needs_two": (
        TWO.replace(n_warpgroups=1, q_slots=1, pingpong=True),
        TWO.replace(pingpong=True),
    ),
    "placement_needs_overlap": (
        TWO.replace(overlap=False),
        TWO.replace(overlap=False, early_rescale=False),
    ),
    "lazy_needs_threshold": (
        BASE.replace(rescale_threshold=0),
        BASE.replace(rescale_threshold=0, statistics=Statistics.MAX),
    ),
    "mma_sums_need_room": (
        BASE.replace(l_by_mma=True, d_head=64),
        BASE.replace(l_by_mma=True, d_head=64, statistics=Statistics.SUM),
    ),
    "sections_need_order": (
        BASE.replace(scheduler=Scheduler.STATIC),
        BASE.replace(scheduler=Scheduler.STATIC, l2_sections=False),
    ),
    "early_q_needs_a_slot": (
        TWO.replace(early_q=True),
        TWO.replace(early_q=True, early_tiles=True),
    ),
    "own_spans_need_overlap": (
        TWO.replace(own_spans=True, cluster=2),
        TWO.replace(own_spans=True),
    ),
    "ahead_needs_slots": (
        TWO.replace(told_ahead=2, q_slots=3),
        TWO.replace(told_ahead=2),
    ),
    "o_in_q_needs_own_spans": (
        TWO.replace(o_in_q=True, o_staged=False),
        TWO.replace(o_in_q=True, o_staged=False, own_spans=True),
    ),
    "halves_have_instructions": (
        TWO.replace(half_blocks=True),
        TWO.replace(half_blocks=True, B_c=128, d_head=64),
    ),
    "split_needs_ctas_that_stay": (
        BASE.replace(split_last=True, scheduler=Scheduler.SINGLE),
        BASE.replace(split_last=True),
    ),
    "split_adds_its_own_sums": (
        BASE.replace(split_last=True, l_by_mma=True, d_head=64, statistics=Statistics.SUM),
        BASE.replace(split_last=True, d_head=64, statistics=Statistics.SUM),
    ),
    "ascending_leaves_a_stage": (
        BASE.replace(ascending=Ascending.ALL),  # three warpgroups may end two blocks apart
        TWO.replace(ascending=Ascending.ALL),
    ),
    "late_draw_needs_a_draw": (
        BASE.replace(late_draw=True, scheduler=Scheduler.STATIC, l2_sections=False),
        BASE.replace(late_draw=True),
    ),
    "o_halves_are_staged": (
        TWO.replace(o_halves=True, o_staged=False),
        TWO.replace(o_halves=True),
    ),
    "cluster_with_pingpong": (TWO.replace(cluster=2, pingpong=True), TWO.replace(cluster=2)),
}
NOT_TUNED = {
    "wide_head_rescales_early": (
        TWO.replace(d_head=256, B_c=64, q_slots=3, o_staged=False, early_rescale=False),
        TWO.replace(d_head=256, B_c=64, q_slots=3, o_staged=False),
    ),
    "early_tiles_for_clusters": (
        TWO.replace(early_tiles=True),
        TWO.replace(early_tiles=True, cluster=2),
    ),
}


@pytest.mark.parametrize("config", SETS, ids=str)
def test_every_text_of_a_configuration_reads_back(config):
    assert parse_config(config.short_form()) == config
    assert parse_config(config.identifier()) == config
    assert parse_config(config.to_cpp_struct()) == config
    assert parse_config(config.kernel_name(Needs(("causal",)))) == config


@pytest.mark.parametrize("config", SETS, ids=str)
def test_every_configuration_of_the_sets_can_be_built_and_fits_a_block(config):
    assert config.refusal() is None
    assert config.smem_bytes() <= MAX_SMEM_BYTES


def test_the_sets_have_their_sizes_and_all_stays_the_first_family():
    assert len(set(get_kernel_configs("hopper"))) == len(get_kernel_configs("hopper"))
    assert len(get_kernel_configs("hopper-prog")) == 12
    assert not any(isinstance(c, Sm90ForwardConfig) for c in get_kernel_configs("all"))


def test_the_tuning_set_covers_every_head_dimension_in_both_types():
    found = {(c.dtype.name, c.d_head) for c in get_kernel_configs("hopper")}
    assert found == {(t, d) for t in ("BF16", "FP16") for d in (64, 96, 128, 192, 256)}
    assert all(c.autotune_refusal() is None for c in get_kernel_configs("hopper"))


def test_a_step_of_the_ladder_changes_few_fields():
    steps = get_hopper_progression_configs()
    names = tuple(Sm90ForwardConfig.knobs())
    for before, after in itertools.pairwise(steps):
        changed = {n for n in names if getattr(before, n) != getattr(after, n)}
        changed -= {"q_slots", "consumer_registers", "producer_registers"}
        assert 1 <= len(changed) <= 4, changed


@pytest.mark.parametrize("rule", REFUSED)
def test_a_build_rule_refuses_one_configuration_and_lets_its_neighbour_pass(rule):
    refused, passes = REFUSED[rule]
    assert refused.refusal().rule == rule
    assert passes.refusal() is None


@pytest.mark.parametrize("rule", NOT_TUNED)
def test_a_tuning_rule_refuses_one_configuration_and_lets_its_neighbour_pass(rule):
    refused, passes = NOT_TUNED[rule]
    assert refused.autotune_refusal().rule == rule
    assert passes.autotune_refusal() is None


def test_a_wrong_word_is_refused_by_name():
    with pytest.raises(ConfigError, match="ovrlap"):
        parse_config("hopper(BF16, 128, 3, 80): kv_2+q_6+ovrlap+regs_160_32")


@pytest.mark.parametrize(
    "config",
    get_hopper_progression_configs()[::3],
    ids=str,
)
def test_derived_numbers_are_the_same_in_both_languages(config):
    facts = {
        "threads()": config.threads,
        "smem_bytes()": config.smem_bytes(),
        "tile_q()": config.tile_q,
        "panels()": config.panels,
        "barriers()": config.barriers,
    }
    asserts = "\n".join(f"static_assert(kConfig.{cpp} == {v});" for cpp, v in facts.items())
    compile_text(
        f"{structs(Sm90ForwardConfig)}\n"
        f"inline constexpr {config.CPP_TYPE} kConfig = {config.to_cpp_struct()};\n{asserts}\n"
        f'extern "C" __global__ void facts() {{}}\n',
        "facts",
        "sm_90a",
    )
