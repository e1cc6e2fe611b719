"""Facts of a mma.sync configuration: shared memory, registers, rules, C++ literal."""

import pickle

import pytest

from flashsmith import DType, FlashForwardKernelConfig, arch, should_autotune_config
from flashsmith.base.errors import OutOfResources, Unsupported
from flashsmith.kernels import get_kernel_configs, parse_config

BASE = "(FP16, 128, {b_r}, {b_c}, {warps}): {flags}load_{tiles}_tiles"


def make(b_r=64, b_c=64, warps=4, flags="async+eager+swizzled+", tiles="0_2_2", tail=""):
    text = BASE.format(b_r=b_r, b_c=b_c, warps=warps, flags=flags, tiles=tiles)
    return parse_config(text + tail)


def test_dtype_has_the_numbers_of_torchs_scalar_type():
    assert (int(DType.FP16), int(DType.BF16)) == (5, 15)


def test_a_configuration_is_hashable_ordered_frozen_and_picklable():
    small, large = make(b_r=64), make(b_r=128)
    assert small < large
    assert len({small, make(b_r=64), large}) == 2
    assert pickle.loads(pickle.dumps(small)) == small
    with pytest.raises(AttributeError):
        small.B_r = 128


def test_shared_memory_is_q_and_one_block_of_k_and_v():
    assert make().smem_bytes() == (64 + 2 * 64) * 128 * 2
    assert make(b_r=128, b_c=32).smem_bytes(elem_size=1) == (128 + 2 * 32) * 128


def test_blocks_by_shared_memory_alone():
    config = make()
    assert config.num_ctas_per_sm(163 * 1024) == 3
    assert config.num_ctas_per_sm(config.smem_bytes() - 1) == 0


def test_threads_and_tiles_follow_from_warps_and_blocks():
    config = make(b_r=128, b_c=32, warps=8, tiles="2_2_2")
    assert (config.threads, config.tile_q, config.tile_k, config.rows_per_warp) == (
        256,
        128,
        32,
        16,
    )


def test_registers_by_role_are_the_bytes_of_the_operands_over_a_warp():
    # 16 rows of O and S in fp32 over 32 lanes; 16 rows of Q whole; 16 columns of K and V.
    registers = make().registers()
    assert (registers.o, registers.s) == (16 * 128 // 32, 16 * 64 // 32)
    assert registers.q == 16 * 128 * 2 // 4 // 32
    assert registers.k == 64 * 16 * 2 // 4 // 32
    assert registers.v == 128 * 16 * 2 // 4 // 32
    assert registers.total == 64 + 32 + 32 + 16


def test_where_registers_end_s_is_taken_in_steps():
    assert make().step_cols == 64
    wide = parse_config("(BF16, 256, 128, 128, 8): async+load_0_2_2_tiles")
    assert wide.step_cols < 128
    assert wide.registers().s == 16 * wide.step_cols // 32


def test_double_buffering_doubles_what_is_read_in_steps_and_leaves_what_is_read_whole():
    plain, buffered = make().fragments(), make(tail="+buffer").fragments()
    assert (plain["Q"].stages, buffered["Q"].stages) == (1, 1)
    assert (plain["K"].stages, buffered["K"].stages) == (1, 2)
    assert buffered["V"].registers == 2 * plain["V"].registers
    assert (plain["Q"].steps, plain["K"].steps, plain["V"].steps) == (1, 8, 4)


def test_the_cpp_literal_names_every_field_in_order():
    text = make().to_cpp_struct()
    assert text.startswith(
        "flashsmith::FlashForwardKernelConfig{.dtype = flashsmith::DType::kFP16, .d_head = 128, "
    )
    names = [part.partition(" = ")[0].lstrip(" .") for part in text[:-1].split("{")[1].split(",")]
    assert names == list(FlashForwardKernelConfig.knobs())
    assert ".swizzled = true" in text
    assert ".optimized_softmax = false" in text


REFUSED_AND_LET_PASS = {
    "eager_needs_async": (make(flags="eager+"), make(flags="async+eager+")),
    "q_tiles_match_k_tiles": (make(tiles="2_4_2"), make(tiles="2_2_2")),
    "warp_has_16_rows": (make(warps=8), make(b_r=128, warps=8, tiles="2_2_2")),
    "tiles_fit_contraction": (
        make(b_c=32, tiles="2_2_4", tail="+buffer"),
        make(b_c=32, tiles="2_2_4"),
    ),
    "output_fits_registers": (
        parse_config("(BF16, 256, 128, 32, 4): async+load_2_2_2_tiles"),
        parse_config("(BF16, 256, 128, 32, 8): async+load_2_2_2_tiles"),
    ),
    "small_tile_reads_q_in_steps": (make(b_c=32, tiles="0_2_2"), make(b_c=32, tiles="2_2_2")),
    "square_tile_holds_q": (make(tiles="2_2_2"), make(tiles="0_2_2")),
    "large_tile_reads_q_in_steps": (
        make(b_r=128, tiles="0_2_2"),
        make(b_r=128, tiles="2_2_2"),
    ),
}


def test_every_rule_has_an_example():
    rules = (*FlashForwardKernelConfig.BUILD_RULES, *FlashForwardKernelConfig.AUTOTUNE_RULES)
    assert {rule.name for rule in rules} == set(REFUSED_AND_LET_PASS)


@pytest.mark.parametrize("name", REFUSED_AND_LET_PASS)
def test_a_rule_refuses_one_configuration_and_lets_another_pass(name):
    rules = (*FlashForwardKernelConfig.BUILD_RULES, *FlashForwardKernelConfig.AUTOTUNE_RULES)
    refused, passes = REFUSED_AND_LET_PASS[name]
    for rule in rules:
        if rule.name == name:
            assert rule.refuses(refused)
            assert not rule.refuses(passes)


@pytest.mark.parametrize("name", [r.name for r in FlashForwardKernelConfig.AUTOTUNE_RULES])
def test_should_autotune_config_is_false_with_a_reason(name):
    refused, _ = REFUSED_AND_LET_PASS[name]
    assert not should_autotune_config(refused)
    assert refused.autotune_refusal() is not None


@pytest.mark.parametrize("name", [r.name for r in FlashForwardKernelConfig.BUILD_RULES])
def test_what_cannot_be_built_says_so_by_name(name):
    refused, _ = REFUSED_AND_LET_PASS[name]
    refusal = refused.refusal()
    assert refusal is not None
    assert refusal.rule == name
    with pytest.raises(Unsupported, match=refusal.advice) as caught:
        refused.require_buildable()
    assert str(caught.value).startswith(refused.short_form())


def test_every_configuration_of_the_named_sets_can_be_built():
    for key in ("prog-all", "tune", "all", "smoke"):
        assert all(config.refusal() is None for config in get_kernel_configs(key))


def test_a_block_too_large_for_an_architecture_is_refused_there_and_only_there():
    large = parse_config("(BF16, 256, 128, 128, 8): async+load_2_2_2_tiles")
    with pytest.raises(OutOfResources, match="196,608 bytes of shared memory a block on sm_86"):
        large.require_buildable(arch.get("sm_86"))
    large.require_buildable(arch.get("sm_90a"))
