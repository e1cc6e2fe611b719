"""Named sets: their sizes, their keys, and what an unknown key says."""

import itertools
from collections import Counter

import pytest

from flashsmith import (
    DType,
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
)
from flashsmith.base.errors import ArgumentError, ConfigError
from flashsmith.kernels import CATALOGUE, resolve_key, space
from flashsmith.kernels.rules import Rule, first_refusal
from flashsmith.kernels.sets import named_sets
from flashsmith.kernels.sm80_backward.config import Sm80BackwardConfig
from flashsmith.kernels.space import autotuning_steps, every_config, whole_space_steps

SIZES = {"tune": 80, "prog": 7, "prog-all": 56, "all": 85, "64,32": 16, "64,64": 32, "smoke": 5}


@pytest.mark.parametrize(("key", "size"), SIZES.items())
def test_a_set_has_its_size_without_duplicates(key, size):
    configs = get_kernel_configs(key)
    assert len(configs) == len(set(configs)) == size


def test_what_is_built_is_the_tuning_set_and_the_ladder_sorted():
    built = get_kernels_to_build()
    assert built == sorted(built)
    assert set(built) == {*get_autotuning_kernel_configs(), *get_kernel_progression_configs()}


def test_the_tuning_set_of_one_dtype_is_half_of_it():
    configs = get_autotuning_kernel_configs([DType.FP16])
    assert len(configs) == 40
    assert {config.dtype for config in configs} == {DType.FP16}


def test_the_ladder_adds_one_idea_a_step():
    assert [c.short_form().partition(": ")[2] for c in get_kernel_progression_configs()] == [
        "async+load_0_0_0_tiles",
        "async+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_2_2_2_tiles",
        "async+eager+swizzled+load_2_2_2_tiles+buffer",
        "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    ]


def test_the_ladder_at_all_block_sizes_leaves_out_what_makes_no_sense():
    blocks = {(c.B_r, c.B_c, c.n_warps) for c in get_kernel_progression_configs(True)}
    assert blocks == {
        *((128, b_c, warps) for b_c in (128, 64, 32) for warps in (4, 8)),
        (64, 64, 4),
        (64, 32, 4),
    }


def test_a_key_that_begins_with_prog_is_the_ladder():
    assert get_kernel_configs("progression") == get_kernel_configs("prog")
    assert get_kernel_configs("prog_all") == get_kernel_configs("prog-all")


def test_the_smoke_set_gives_every_knob_more_than_one_value():
    smoke = get_kernel_configs("smoke")
    for name in CATALOGUE[0].knobs():
        assert len({getattr(config, name) for config in smoke}) > 1, name


def test_kernels_is_read_when_used_and_a_key_goes_first(monkeypatch):
    monkeypatch.setenv("KERNELS", "64,64")
    assert len(get_kernel_configs()) == 32
    assert len(get_kernel_configs("prog")) == 7
    monkeypatch.delenv("KERNELS")
    with pytest.raises(TypeError, match="kernels_key is 3; it must be a text such as 'tune'"):
        get_kernel_configs(3)
    with pytest.raises(
        ValueError, match="no key is given and KERNELS is not set; the sets are prog"
    ):
        get_kernel_configs()


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("nonsense", "unknown set 'nonsense'; the sets are prog, prog-all, tune, all"),
        ("tnue", r"the sets are .*; did you mean 'tune'\?"),
        ("64,", "'64,' is not of the form 'B_r,B_c'; the tuning set has 64,32 64,64 128,32 128,64"),
        ("64,x", "'64,x' is not of the form 'B_r,B_c'"),
        ("64,32,16", "is not of the form 'B_r,B_c'"),
        ("128,128", "unknown block size '128,128'; the tuning set has 64,32"),
    ],
)
def test_an_unknown_key_lists_the_valid_ones(key, says):
    with pytest.raises(ConfigError, match=says):
        get_kernel_configs(key)


def test_a_key_may_be_a_configuration_or_a_file_of_them(tmp_path):
    configs = get_kernel_configs("prog")
    assert resolve_key(configs[2].short_form()) == [configs[2]]
    lines = ["# the ladder", *(config.short_form() for config in configs), "", "  # end"]
    path = tmp_path / "ladder.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert resolve_key(f"@{path}") == configs


def test_a_bad_file_of_configurations_names_the_line(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("\n(FP16, 128, 64, 64, 4): asink+load_0_0_0_tiles\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.txt:2: .*no flag 'asink'"):
        resolve_key(f"@{path}")
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no configuration"):
        resolve_key(f"@{path}")
    with pytest.raises(ArgumentError, match="is not a file"):
        resolve_key(f"@{tmp_path}/missing.txt")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match=r"bad\.txt cannot be read .*one short form per line"):
        resolve_key(f"@{path}")


def test_every_named_set_of_every_family_can_be_made():
    for name in named_sets():
        configs = get_kernel_configs(name)
        assert configs, name
        assert len(configs) == len(set(configs)), name


def test_the_space_shrinks_by_what_each_rule_refuses():
    for steps in (whole_space_steps(), autotuning_steps()):
        for before, after in itertools.pairwise(steps):
            if after.refused:
                assert after.left == before.left - after.refused
    by_family = [step for step in autotuning_steps() if step.family == CATALOGUE[0].NAME]
    assert (by_family[0].left, by_family[-1].left) == (256, 80)


def test_walking_the_space_makes_real_configurations():
    first = next(every_config(CATALOGUE[0]))
    assert CATALOGUE[0](*(getattr(first, name) for name in CATALOGUE[0].knobs())) == first


def test_counting_passes_over_knobs_that_no_rule_looks_at_and_counts_the_same():
    family = Sm80BackwardConfig
    looked_at = Counter(
        refusal.rule
        for config in every_config(family)
        if (refusal := first_refusal(family.BUILD_RULES, config)) is not None
    )
    assert len(looked_at) > 1
    assert space.counted_refusals(family, family.BUILD_RULES) == looked_at


def test_counting_hides_no_error_of_a_rule():
    broken = Rule("broken", lambda c: c.n_wraps > 4, "", "")
    with pytest.raises(AttributeError, match="n_wraps"):
        space.counted_refusals(CATALOGUE[0], (broken,))


def test_a_space_too_large_to_walk_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr(space, "CATALOGUE", CATALOGUE[:1])
    counted = whole_space_steps()
    monkeypatch.setattr(space, "MOST_TO_WALK", 1000)
    sampled = whole_space_steps()
    assert {step.how for step in counted} == {"counted"}
    assert {step.how for step in sampled[1:]} == {"sampled"}
    for exact, estimate in zip(counted, sampled, strict=True):
        assert estimate.step == exact.step
        assert estimate.left == pytest.approx(exact.left, rel=0.05)


def test_random_configurations_are_the_same_for_the_same_seed():
    first, again = (list(space.random_configs(CATALOGUE[0], 20, seed=7)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 10


def test_sets_are_joined_and_what_is_in_both_is_taken_once():
    joined = resolve_key("all+tune+hopper")
    assert joined == [*resolve_key("all"), *resolve_key("hopper")]
    with pytest.raises(ConfigError, match="unknown set 'tun'"):
        resolve_key("hopper+tun")


def test_a_key_that_is_none_is_not_given(monkeypatch):
    monkeypatch.setenv("KERNELS", "prog")
    assert get_kernel_configs(None) == get_kernel_configs("prog")
    monkeypatch.delenv("KERNELS")
    with pytest.raises(ConfigError, match="no key is given and KERNELS is not set"):
        get_kernel_configs(None)
