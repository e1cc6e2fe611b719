"""Text and configurations: every one reads back, and every bad text says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsmith import DType, FlashForwardKernelConfig, parse_kernel_name_into_config
from flashsmith.base.errors import ConfigError
from flashsmith.kernels import CATALOGUE, get_kernel_configs, parse_config
from flashsmith.problem.needs import NEEDS, Needs

FULL = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
FULL_CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 64, 4, True, True, True, 2, 2, 2, True, True
)


def any_config(family):
    return st.tuples(*(st.sampled_from(what.values) for what in family.knobs().values())).map(
        lambda values: family(*values)
    )


every_config = st.one_of([any_config(family) for family in CATALOGUE])


def test_the_short_form_is_the_one_of_the_documents():
    assert FULL_CONFIG.short_form() == FULL
    assert str(FULL_CONFIG) == FULL
    bare = FULL_CONFIG.replace(
        async_copy=False,
        eager_load_blocks=False,
        swizzled=False,
        Q_mma_load_K_tiles=0,
        mma_double_buffer_loads=False,
        optimized_softmax=False,
    )
    assert bare.short_form() == "(FP16, 128, 64, 64, 4): load_0_2_2_tiles"


@pytest.mark.parametrize("key", ["prog-all", "tune"])
def test_every_configuration_of_a_set_parses_back(key):
    for config in get_kernel_configs(key):
        assert parse_kernel_name_into_config(config.short_form()) == config


@given(every_config)
def test_every_text_of_every_configuration_parses_back(config):
    assert parse_kernel_name_into_config(config.short_form()) == config
    assert parse_kernel_name_into_config(config.to_cpp_struct()) == config
    assert parse_kernel_name_into_config(config.identifier()) == config
    assert parse_config(f"|  17 | {config.short_form()} | 1.25 | (x) |") == config


@given(every_config, st.sets(st.sampled_from(sorted(NEEDS))).map(lambda names: Needs(tuple(names))))
def test_a_kernels_name_is_a_c_identifier_that_parses_back(config, needs):
    name = config.kernel_name(needs)
    assert name.isidentifier()
    assert name.isascii()
    assert parse_kernel_name_into_config(f"  {name}(ForwardArgs) (512, 1, 1)x(128, 1, 1)") == config


@given(every_config, every_config)
def test_two_configurations_never_share_a_text(one, other):
    same = one == other
    assert (one.short_form() == other.short_form()) == same
    assert (one.identifier() == other.identifier()) == same
    assert (one.to_cpp_struct() == other.to_cpp_struct()) == same


@pytest.mark.parametrize(
    "text",
    [
        "void flash_forward_kernel<StaticForwardKernelConfig<FlashForwardKernelConfig{5, 128, 64, "
        "64, 4, 1, 1, 1, 2, 2, 2, 1, 1}>>(ForwardKernelArgs)",
        "FlashForwardKernelConfig{5, 128, 64, 64, 4, true, true, true, 2, 2, 2, true, true}",
        "kernel<flashsmith::FlashForwardKernelConfig{(c10::ScalarType)5, (int)128, (int)64, "
        "(int)64, (int)4, (bool)1, (bool)1, (bool)1, (int)2, (int)2, (int)2, (bool)1, (bool)1}>",
        "// " + FULL,
        "│ " + FULL + " │ 512.3 │",
        "(FP16,128,64,64,4): opt_softmax+buffer+load_2_2_2_tiles+swizzled+eager+async",
    ],
)
def test_a_configuration_is_found_as_profilers_and_tables_print_it(text):
    assert parse_kernel_name_into_config(text) == FULL_CONFIG


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "nothing here",
            r"'nothing here' is not a configuration; a configuration is written '\(dtype, d_head",
        ),
        ("prog", "not a configuration; it is a set, of which `flashsmith configs prog` lists the"),
        ("tuen", "did you mean one of the set 'tune'[?] `flashsmith configs tune` lists them"),
        ("hoper(BF16, 128, 2", r"is written 'hopper\(dtype, d_head, n_warpgroups, B_c\): kv_N"),
        ("(FP16, 128, 64, 64): async+load_0_0_0_tiles", "has 4 values in parentheses; there are 5"),
        ("(FP8, 128, 64, 64, 4): load_0_0_0_tiles", "dtype cannot be 'FP8'; it takes FP16, BF16;"),
        ("(FP16, 128, 96, 64, 4): load_0_0_0_tiles", "B_r cannot be '96'; it takes 64, 128;"),
        (
            "(FP16, 128, 64, 64, 4): load_3_0_0_tiles",
            "Q_mma_load_K_tiles cannot be '3'; it takes 0",
        ),
        (
            "(FP16, 128, 64, 64, 4): async+swizled+load_0_0_0_tiles",
            r"no flag 'swizled'; the flags are async, .*; did you mean 'swizzled'\?",
        ),
        ("(FP16, 128, 64, 64, 4): async+async+load_0_0_0_tiles", "has 'async' twice"),
        (
            "(FP16, 128, 64, 64, 4): async",
            "does not state Q_mma_load_K_tiles, .*'load_0_0_0_tiles'",
        ),
        (
            "FlashForwardKernelConfig{5, 128}",
            "has 2 values; FlashForwardKernelConfig has 13 fields",
        ),
        (
            "FlashForwardKernelConfig{7, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1}",
            "dtype cannot be 7; it takes FP16, BF16",
        ),
        (
            "FlashForwardKernelConfig{5, 128, 64, 64, 4, 2, 1, 1, 2, 2, 2, 1, 1}",
            "async_copy cannot be 2; it takes False, True",
        ),
        (FULL_CONFIG.to_cpp_struct().replace(".B_r", ".B_q"), "stands where B_r belongs"),
    ],
)
def test_a_bad_text_is_refused_by_name(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_kernel_name_into_config(text)


@pytest.mark.parametrize("text", ["nonsense", "tuen", "prog", "decode(", "x" * 4000])
def test_what_is_no_configuration_is_answered_in_a_few_lines(text):
    with pytest.raises(ConfigError) as refused:
        parse_config(text)
    assert len(str(refused.value)) < 500


def test_a_wrong_value_names_the_field_and_its_legal_values():
    with pytest.raises(ConfigError, match="n_warps cannot be 5; it takes 4, 8; choose one"):
        FULL_CONFIG.replace(n_warps=5)


@pytest.mark.parametrize(
    ("name", "value"), [("async_copy", 1), ("d_head", True), ("dtype", 5), ("B_r", 64.0)]
)
def test_a_value_of_the_wrong_type_is_refused_even_when_it_compares_equal(name, value):
    with pytest.raises(ValueError, match=f"{name} cannot be {value!r}"):
        FULL_CONFIG.replace(**{name: value})
