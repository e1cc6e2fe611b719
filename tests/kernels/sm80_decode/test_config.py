"""The decode configurations: texts, what is refused and why, what fits where, when it is chosen."""

from dataclasses import replace

import pytest

from flashsmith.arch import get as get_arch
from flashsmith.base.dtypes import DType
from flashsmith.base.errors import CompileError, Unsupported
from flashsmith.compile.compiler import compile_kernel, compile_text
from flashsmith.compile.machine.cubin import machine_code
from flashsmith.compile.unit import structs
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.sm80_decode.config import Sm80DecodeConfig
from flashsmith.kernels.sm80_decode.plan import slices_at_most
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.tuner.choose.choice import choose

BASE = parse_config("decode(BF16, 64, 16, 16, 4): slice_256+most_32+stages_3+ctas_2")
PROBLEM = AttentionProblem(2, 32, 8, 1, 8192, 128)


def test_the_set_has_every_width_type_and_tile_and_all_can_be_built():
    configs = resolve_key("decode")
    assert len(configs) == len(set(configs)) == 90
    assert [config.refusal() for config in configs] == [None] * len(configs)
    every = {(t, d, rows) for t in DType for d in (64, 128, 256) for rows in (16, 32, 64)}
    assert {(c.dtype, c.d_head, c.B_r) for c in configs} == every


def test_the_set_gives_every_knob_more_than_one_value():
    for name in Sm80DecodeConfig.knobs():
        assert len({getattr(config, name) for config in resolve_key("decode")}) > 1, name


@pytest.mark.parametrize("config", resolve_key("decode")[:5], ids=str)
def test_every_text_parses_back(config):
    assert parse_config(config.short_form()) == config
    assert parse_config(config.identifier()) == config
    assert parse_config(config.kernel_name(Needs(("causal", "page")))) == config


@pytest.mark.parametrize(
    ("text", "rule", "sentence"),
    [
        (
            "decode(BF16, 64, 64, 32, 2): slice_512+most_32+stages_2+ctas_1",
            "team_divides_warps",
            "a CTA must be whole teams",
        ),
        (
            "decode(BF16, 64, 64, 16, 8): slice_512+most_32+stages_2+ctas_1",
            "",
            "",
        ),
        (
            "decode(BF16, 64, 16, 64, 8): slice_256+most_32+stages_2+ctas_1",
            "slice_has_a_block_for_every_team",
            "a slice must have a kv block for every team",
        ),
        (
            "decode(BF16, 64, 32, 16, 4): slice_256+most_32+stages_2+ctas_1+runs",
            "results_fit_a_stage",
            "a team's results must fit a stage of its ring",
        ),
    ],
)
def test_what_python_refuses_the_compiler_refuses_with_a_sentence(text, rule, sentence):
    config = parse_config(text)
    refusal = config.refusal()
    assert (refusal.rule if refusal else "") == rule
    if not rule:
        assert compile_kernel(config, Needs(("ragged_q",)), "sm_80").cubin
        return
    with pytest.raises(Unsupported):
        config.require_buildable()
    source = (
        f'{structs(Sm80DecodeConfig)}\n#include "flashsmith/sm80/decode/decode.cuh"\n'
        f"using Kernel = flashsmith::decode::DecodeKernel<{config.to_cpp_struct()},\n"
        f"    flashsmith::Needs::none(), flashsmith::DecodeArgs, flashsmith::sm80::ByCpAsync>;\n"
        f"static_assert(Kernel::valid() && sizeof(flashsmith::sm80::KVCopies<Kernel>) > 0);\n"
        f'extern "C" __global__ void none() {{}}'
    )
    with pytest.raises(CompileError, match=sentence):
        compile_text(source, "none", "sm_90a")


def test_both_languages_agree_on_every_derived_number():
    one_team = replace(BASE, B_r=32, B_c=32, n_warps=2, runs=True)
    asserts = "".join(
        f"static_assert({c.to_cpp_struct()}.smem_bytes() == {c.smem_bytes()}\n"
        f"    && {c.to_cpp_struct()}.threads() == {c.threads}\n"
        f"    && {c.to_cpp_struct()}.teams() == {c.teams}\n"
        f"    && {c.to_cpp_struct()}.rows_at_once() == {c.rows_at_once});\n"
        for c in (*resolve_key("decode"), one_team)
    )
    text = f'{structs(Sm80DecodeConfig)}{asserts}extern "C" __global__ void none() {{}}'
    assert compile_text(text, "none", "sm_90a").cubin


PAIRS = {
    "dtype": DType.FP16,
    "d_head": 128,
    "B_r": 32,
    "B_c": 32,
    "n_warps": 2,
    "slice_keys": 512,
    "most_slices": 16,
    "stages": 4,
    "ctas": 4,
    "persistent": True,
    "runs": True,
    "evict_first": True,
    "kept_parts": True,
    "whole_pages": True,
    "quick_start": True,
    "quick_end": True,
}


def test_every_field_alone_changes_the_machine_code():
    assert list(PAIRS) == list(Sm80DecodeConfig.knobs())
    needs = Needs(("ragged_q", "ragged_k", "k_lengths", "page"))
    codes = {
        name: machine_code(compile_kernel(replace(BASE, **{name: value}), needs, "sm_80").cubin)
        for name, value in PAIRS.items()
    }
    codes["base"] = machine_code(compile_kernel(BASE, needs, "sm_80").cubin)
    assert len(set(codes.values())) == len(codes), codes.keys()


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("q_len", [1, 5, 16])
def test_something_is_chosen_that_fits_every_architecture(width, q_len):
    problem = replace(PROBLEM, d_head=width, q_len=q_len)
    for arch in ("sm_80", "sm_86", "sm_90a", "sm_120"):
        config = choose(problem, arch).config
        assert config.NAME == "sm80_decode"
        assert config.B_r >= 4 * q_len
        config.require_buildable(get_arch(arch))


def test_one_page_is_looked_up_for_a_kv_block_where_pages_are_whole_blocks():
    paged = replace(PROBLEM, k_lengths=True, page=16, pages=600)
    for batch in (1, 8, 32):
        asked = replace(paged, batch=batch)
        assert choose(asked, "sm_90a").config.whole_pages
        assert not choose(replace(asked, page=24), "sm_90a").config.whole_pages
    packed = replace(paged, batch=1, sequences=3, q_len=9)
    chosen = choose(packed, "sm_90a").config
    assert (chosen.whole_pages, chosen.runs) == (False, False)


@pytest.mark.parametrize("q_len", [1, 2])
def test_boxes_are_chosen_for_pages_of_more_than_a_few_rows(q_len):
    paged = replace(PROBLEM, q_len=q_len, k_lengths=True, page=16, pages=600)
    family = "sm90_decode" if q_len * paged.group > 4 else "sm80_decode"
    assert family == choose(paged, "sm_90a").config.NAME
    assert choose(paged, "sm_80").config.NAME == "sm80_decode"
    odd = replace(paged, page=5)  # no boxes of whole kv blocks
    assert choose(odd, "sm_90a").config.NAME == "sm80_decode"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_pages_of_heads_wider_than_all_kernels_are_refused(arch):
    wide = replace(PROBLEM, q_len=4, d_head=264, k_lengths=True, page=16, pages=600)
    with pytest.raises(Unsupported, match=r"No configuration computes .* d 264"):
        choose(wide, arch)


def test_many_rows_and_few_keys_are_left_to_forward_kernels():
    for other in (replace(PROBLEM, q_len=17), replace(PROBLEM, k_len=1023)):
        assert choose(other, "sm_80").config.NAME == "sm80_forward"


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
@pytest.mark.parametrize("rows", [(1, 4), (1, 5), (4, 4), (5, 4), (9, 4)])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_what_bits_follow_from_does_not_look_at_the_batch_or_the_keys(arch, rows, width):
    q_len, group = rows
    chosen = {
        choose(
            AttentionProblem(batch, 8 * group, 8, q_len, k_len, width, **facts), arch
        ).config.numeric_class
        for batch in (1, 7, 256)
        for k_len in (1024, 8192, 131072)
        for facts in ({}, {"k_lengths": True}, {"k_lengths": True, "page": 16, "pages": 99})
    }
    assert len(chosen) == 1


def test_rings_and_ctas_follow_from_the_number_of_slices():
    few, some, many = (
        choose(replace(PROBLEM, batch=batch), "sm_90a").config for batch in (1, 8, 9)
    )
    assert (few.stages, few.ctas, few.runs, few.evict_first) == (3, 2, False, True)
    assert (some.stages, some.ctas, some.runs, some.evict_first) == (3, 2, True, True)
    assert (many.stages, many.ctas, many.runs, many.evict_first) == (2, 3, False, False)
    short = choose(replace(PROBLEM, batch=60, k_len=1030), "sm_90a").config  # 1,440 in 253 MB
    assert (short.stages, short.ctas, short.runs, short.evict_first) == (2, 3, False, False)
    large = choose(replace(PROBLEM, batch=4, k_len=65536), "sm_90a").config  # 1,024 in 1 GB
    assert (large.stages, large.ctas, large.runs, large.evict_first) == (2, 3, False, False)
    assert [c.kept_parts for c in (few, some, short, many, large)] == [*[False] * 3, True, True]
    wide = replace(PROBLEM, batch=64, k_len=131072)  # 64 * 8 * 32 ctas
    assert not choose(replace(wide, k_lengths=True), "sm_90a").config.persistent
    assert choose(replace(wide, k_lengths=True, batch=65), "sm_90a").config.persistent
    assert not choose(replace(wide, batch=65), "sm_90a").config.persistent


@pytest.mark.parametrize(
    ("kv_heads", "k_len", "slices", "words"),
    [
        (16, 32768, 512, {"runs", "evict_first"}),  # 2^28 bytes of K and V
        (16, 32769, 272, {"kept_parts"}),  # and a row of each head more
        (12, 45056, 264, set()),  # few slices of 277 MB, long ones
        (14, 38912, 266, {"kept_parts"}),
        (24, 5632, 264, {"evict_first"}),  # of 69 MB
        (53, 2560, 265, {"runs", "evict_first"}),
        (132, 3585, 1056, {"runs", "evict_first"}),
        (151, 3073, 1057, set()),  # of 238 MB
    ],
)
def test_edges_of_the_rule_are_where_it_says(kv_heads, k_len, slices, words):
    asked = replace(PROBLEM, batch=1, heads=4 * kv_heads, kv_heads=kv_heads, k_len=k_len)
    config = choose(asked, "sm_90a").config
    assert slices_at_most(config, asked) == slices
    named = {word for word in ("runs", "evict_first", "kept_parts") if getattr(config, word)}
    assert named == words


def test_boxes_are_left_to_calls_of_few_slices_and_of_very_many():
    """Where a width has runs: lanes take calls between, with runs or, of much, with kept parts."""
    paged = replace(PROBLEM, heads=64, k_len=3072, k_lengths=True, page=16, pages=600)
    found = {}
    for batch in (11, 12, 22, 44, 45):  # 264 slices, 288, 528 of 277 MB, 1,056 and 1,080
        config = choose(replace(paged, batch=batch), "sm_90a").config
        found[batch] = config.NAME, config.runs, config.kept_parts
        for width in (64, 256):
            asked = replace(paged, batch=batch, d_head=width)
            assert choose(asked, "sm_90a").config.NAME == "sm90_decode"
    assert found == {
        11: ("sm90_decode", False, False),
        12: ("sm80_decode", True, False),
        22: ("sm80_decode", False, True),
        44: ("sm80_decode", False, True),
        45: ("sm90_decode", False, False),  # boxes with kept parts were not raced
    }


def test_a_choice_names_what_bits_follow_from():
    text = str(choose(PROBLEM, "sm_90a"))
    assert "own sequence and decode(BF16, 128, 16, 16, 4): slice_512+most_32+quick_end\n" in text
    assert "batch-invariant" not in str(choose(replace(PROBLEM, q_len=99), "sm_90a"))


def test_lengths_and_pages_are_computed_here_and_refused_by_forward_kernels():
    asked = replace(PROBLEM, k_lengths=True, page=16, pages=9, q_len=1)
    assert choose(asked, "sm_89").config.NAME == "sm80_decode"
    forward = parse_config("(BF16, 128, 64, 64, 4): async+load_0_0_0_tiles")
    with pytest.raises(Unsupported, match="do not compute page"):
        choose(replace(asked, k_lengths=False), "sm_80", given=forward)
