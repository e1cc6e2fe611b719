"""Configurations with sums of dQ in memory: texts, refusals, the plan, and what is chosen."""

from dataclasses import replace

import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import Unsupported
from flashsmith.compile.compiler import compile_text
from flashsmith.compile.unit import structs
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.plans import plan, scratch_bytes
from flashsmith.kernels.sm80_backward.sum_parts import Sm80BlocksConfig
from flashsmith.kernels.sm80_backward.sums import Sm80SumsConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.signature import BACKWARD
from flashsmith.tuner.choose.choice import choose

CONFIG = parse_config("bwd_sums(BF16, 128, 128, 64, 8): roles+buffer")
PROBLEM = AttentionProblem(2, 6, 3, 300, 200, 128, operation="backward")


def test_every_configuration_of_the_set_can_be_built_and_its_texts_parse_back():
    configs = resolve_key("bwd-sums")
    assert len(configs) == len(set(configs)) > 0
    for config in configs:
        assert config.refusal() is None
        for one in (config, *config.kernels()):
            assert parse_config(one.short_form()) == one
            assert parse_config(one.kernel_name(Needs(("causal",)))) == one


def test_the_set_gives_every_knob_more_than_one_value():
    for name in Sm80SumsConfig.knobs():
        assert len({getattr(config, name) for config in resolve_key("bwd-sums")}) > 1, name


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("bwd_sums(BF16, 64, 64, 64, 8)", "warp_has_16_keys"),
        ("bwd_sums(BF16, 128, 128, 64, 4)", "gradients_fit_registers"),
        ("bwd_sums(BF16, 64, 128, 64, 8)", "warp_has_32_columns_of_dq"),
        ("bwd_sums(BF16, 64, 128, 64, 8): roles", None),
        ("bwd_sums(BF16, 64, 64, 128, 4): roles", "warp_has_32_columns_of_dq"),
        ("bwd_sums(BF16, 64, 128, 64, 4): roles", "roles_take_a_tile_at_once"),
        ("bwd_sums(BF16, 128, 128, 128, 8): roles", "roles_take_a_tile_at_once"),
        ("bwd_sums(BF16, 256, 128, 64, 8): roles", "gradients_fit_registers"),
        ("bwd_sums(BF16, 64, 128, 128, 4): unordered+rounds", "any_order_has_no_last_block"),
        ("bwd_sums(BF16, 64, 128, 128, 4): unordered+turn_2", "any_order_has_no_last_block"),
    ],
)
def test_what_cannot_be_built_is_refused_by_a_rule(text, rule):
    config = parse_config(text)
    assert (config.refusal().rule if rule else config.refusal()) == rule
    if rule:
        with pytest.raises(Unsupported):
            config.require_buildable()


def test_both_languages_agree_on_every_derived_number():
    blocks = sorted({config.blocks for config in resolve_key("bwd-sums")})
    asserts = "".join(
        f"static_assert({c.to_cpp_struct()}.smem_bytes() == {c.smem_bytes()}\n"
        f"    && {c.to_cpp_struct()}.threads() == {c.threads}\n"
        f"    && {c.to_cpp_struct()}.keys_per_warp() == {c.keys_per_warp}\n"
        f"    && {c.to_cpp_struct()}.dq_columns() == {c.dq_columns}\n"
        f"    && {c.to_cpp_struct()}.gradients_held() * {c.keys_per_warp * c.B_r // 32}\n"
        f"        + {c.to_cpp_struct()}.step_registers(0) == {c.tile_registers}\n"
        f"    && {c.to_cpp_struct()}.gradient_registers() == {c.gradient_registers});\n"
        for c in blocks
    )
    text = f'{structs(Sm80BlocksConfig)}{asserts}extern "C" __global__ void none() {{}}'
    assert compile_text(text, "none", "sm_90a").cubin


def test_statistics_come_first_then_kv_blocks_then_rounding_unless_they_do_it():
    delta, blocks, rounding = plan(CONFIG, PROBLEM, sm_count=132)
    names = ["sm80_backward_delta", "sm80_backward_blocks", "sm80_backward_rounding"]
    assert [launch.config.NAME for launch in (delta, blocks, rounding)] == names
    rounded = plan(replace(CONFIG, rounds=True), PROBLEM, sm_count=132)
    assert [launch.config.NAME for launch in rounded] == names[:2]
    assert (delta.config.unseen_rows, rounded[0].config.unseen_rows) == (0, 64)
    assert delta.geometry.grid == (384 // 16 * 6 * 2, 1, 1)  # rows padded to 384, 16 a cta
    assert blocks.geometry.grid == (2 * 3 * 2, 1, 1)  # of KV heads
    assert rounding.geometry.grid == (384 // 64 * 6 * 2, 1, 1)


@pytest.mark.parametrize(("turn", "warps"), [(1, 4), (2, 4)])
def test_scratch_holds_statistics_sums_and_a_counter_for_both_warps_of_a_turn(turn, warps):
    launches = plan(replace(CONFIG, turn=turn), PROBLEM, sm_count=1)
    rows = 2 * 6 * 384
    counters = 1 + rows // (64 * turn) * warps
    assert scratch_bytes(launches) == rows * 8 + rows * 128 * 4 + 4 * counters
    call = {
        role.name: TensorArg(16 * i)
        for i, role in enumerate(BACKWARD.tensors)
        if "bias" not in role.name
    }
    args = launches[1].arguments({**call, SCRATCH: TensorArg(4096)})
    assert (args.dq_sums, args.counters) == (4096 + rows * 8, 4096 + rows * (8 + 512))
    assert args.n_counters == counters


def test_as_many_heads_are_drawn_together_as_a_section_holds_and_sections_are_even():
    def section(config=CONFIG, **facts):
        return plan(config, replace(PROBLEM, **facts), sm_count=1)[1].sums.section_heads

    assert section() == 6  # all of K and V
    assert section(q_len=4096) == 3  # of five that would fit
    assert section(replace(CONFIG, section_mb=160), q_len=4096) == 6
    assert section(q_len=1 << 20) == 1


LARGE = replace(PROBLEM, batch=32, q_len=2048, k_len=2048)


def chosen(arch, **facts):
    return choose(replace(LARGE, **facts), arch).config


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_100a", "sm_120"])
def test_they_are_chosen_where_there_is_no_wgmma_and_for_what_they_compute(arch):
    for d_head in (64, 128):
        found = chosen(arch, d_head=d_head)
        assert found.NAME == "sm80_backward_sums"
        assert found.repeats_bits
        found.require_buildable(get_arch(arch))
    for facts in ({"softcap": 20.0}, {"bias": "same"}, {"batch": 1, "sequences": 3}):
        assert chosen(arch, **facts).NAME == "sm80_backward"
    assert chosen("sm_90a").NAME == "sm90_backward"


def test_few_heads_which_would_wait_for_each_other_and_short_lengths_keep_seven_products():
    assert chosen("sm_80", batch=2).NAME == "sm80_backward"
    assert chosen("sm_80", q_len=64, k_len=64).NAME == "sm80_backward"
    assert chosen("sm_100a", batch=2, deterministic=False).unordered  # nobody waits there


def test_a_mask_and_long_lengths_have_larger_sections_and_any_order_only_where_it_is_asked_for():
    assert chosen("sm_100a", q_len=512, k_len=512).section_mb == 40
    assert chosen("sm_100a").section_mb == 160
    assert chosen("sm_100a", d_head=64).section_mb == 40
    assert chosen("sm_100a", d_head=64, causal=True).section_mb == 160
    assert chosen("sm_100a", q_len=8192, k_len=8192, causal=True).section_mb == 320
    assert chosen("sm_100a", deterministic=False).unordered
    assert not chosen("sm_100a", d_head=256, deterministic=False).unordered


def test_tiles_of_which_an_sm_holds_two_come_first():
    assert chosen("sm_100a", d_head=64).B_r == 128
    assert chosen("sm_80", d_head=64).B_r == 64
