"""The decode kernel with TMA: the bits of the one on sm_80, and nothing from behind an end."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import Case, inputs_of, quick_cases, serving_cases
from flashsmith.check.verdict import check_case
from flashsmith.kernels import parse_config, resolve_key
from flashsmith.kernels.plans import plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays
from flashsmith.tuner.choose.choice import choose

SMALL = "decode(BF16, 64, 16, 16, 2): slice_128+most_32+stages_3+ctas_2"
TEAMS = "decode(FP16, 128, 32, 16, 4): slice_128+most_32+stages_2+ctas_2+persistent+kept_parts"
WIDE = "decode(BF16, 256, 16, 16, 2): slice_128+most_8+stages_2+ctas_1"
ONE_TEAM = "decode(BF16, 64, 32, 32, 2): slice_128+most_32+stages_2+ctas_1"
NAN = 0x7FC0
SERVED = AttentionProblem(3, 6, 2, 2, 300, 64, causal=True, lse=True, k_lengths=True)


def hopper(text):
    return parse_config(f"hopper_{text}")


def problem_of(config, **facts):
    return replace(SERVED, **{"dtype": config.dtype, "d_head": config.d_head, **facts})


@pytest.mark.parametrize("text", [SMALL, TEAMS])
def test_what_servers_ask_for_is_right(text, device):
    config = hopper(text)
    wrong = [v for case in serving_cases(config) if not (v := check_case(device, config, case)).ok]
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize("config", resolve_key("hopper-decode"), ids=str)
def test_every_configuration_of_the_set_is_right(config, device):
    cases = (*serving_cases(config), *quick_cases(config))
    wrong = [v for case in cases if not (v := check_case(device, config, case)).ok]
    assert not wrong


PROBLEMS = {
    "contiguous": {"k_lengths": False},
    "lengths": {},
    "window": {"window_left": 70},
    "pages of a block": {"page": 16, "pages": 70},
    "pages of half a block": {"page": 8, "pages": 130},
    "pages of three blocks": {"page": 48, "pages": 30},
    "large pages": {"page": 256, "pages": 7},
    "narrow": {"d_head": 40, "page": 16, "pages": 70},
}


# Two of three combinations, in turn.
TWINS = [
    (text, name)
    for n, text in enumerate((SMALL, TEAMS, WIDE))
    for m, name in enumerate(PROBLEMS)
    if (n + m) % 3 != 1
]


@pytest.mark.parametrize(("text", "name"), TWINS)
def test_bits_are_those_of_the_kernel_on_sm_80(text, name, device):
    facts = PROBLEMS[name]
    one, other = parse_config(text), hopper(text)
    assert one.numeric_class == other.numeric_class
    problem = problem_of(one, **facts)
    given = dict(inputs_of(Case("twins", problem)))
    if problem.k_lengths:
        given["k_lengths"] = np.array([299, 1, 150], np.int32).view(np.uint32)
    found = [run_arrays(device, config, problem, given) for config in (one, other)]
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("facts", [{}, {"page": 16, "pages": 70}], ids=["contiguous", "pages"])
@pytest.mark.parametrize("text", [SMALL, TEAMS])
def test_what_lies_behind_the_end_of_a_sequence_reaches_nothing(text, facts, device):
    """A cache's unused rows hold anything; 0 times what is not a number is not 0."""
    config = hopper(text)
    problem = problem_of(config, **facts)
    given = dict(inputs_of(Case("ends", problem)))
    lengths = (299, 0, 150)
    given["k_lengths"] = np.array(lengths, np.int32).view(np.uint32)
    dirty = {**given, "k": given["k"].copy(), "v": given["v"].copy()}
    if problem.page:
        table = np.arange(57, dtype=np.int32).reshape(3, 19)
        given["block_table"] = dirty["block_table"] = table.view(np.uint32)
    for name in "kv":
        for sequence, length in enumerate(lengths):
            for key in range(length, 300):
                if problem.page:
                    dirty[name][table[sequence, key // 16], key % 16] = NAN
                else:
                    dirty[name][sequence, key] = NAN
    found = [run_arrays(device, config, problem, inputs) for inputs in (given, dirty)]
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


def test_entries_and_lengths_that_are_wrong_are_clamped(device):
    config = hopper(SMALL)
    problem = problem_of(config, page=16, pages=19)
    given = dict(inputs_of(Case("bad", problem)))
    bad = {**given}
    bad["block_table"] = np.full((3, 19), 10**6, np.int32).view(np.uint32)
    bad["k_lengths"] = np.array([10**9, -5, 300], np.int32).view(np.uint32)
    good = {**given}
    good["block_table"] = np.full((3, 19), 18, np.int32).view(np.uint32)
    good["k_lengths"] = np.array([300, 0, 300], np.int32).view(np.uint32)
    found = [run_arrays(device, config, problem, inputs)["o"] for inputs in (bad, good)]
    np.testing.assert_array_equal(*found)


def test_no_number_of_sms_reaches_the_bits():
    config = hopper(TEAMS)
    problem = problem_of(config)
    given = inputs_of(Case("sms", problem))
    bits = {
        run_arrays(EmulatedDevice(sm_count=count), config, problem, given)["o"].tobytes()
        for count in (1, 3, 132)
    }
    assert len(bits) == 1


@pytest.mark.parametrize("text", [SMALL, ONE_TEAM])
def test_runs_of_slices_give_the_same_bits_and_whole_pages_are_no_word_of_boxes(text):
    one, problem = parse_config(text), problem_of(hopper(text), k_len=700, page=16, pages=150)
    given = dict(inputs_of(Case("runs", problem)))
    given["k_lengths"] = np.array([699, 0, 390], np.int32).view(np.uint32)
    runs = replace(hopper(text), runs=True, evict_first=True)
    found = [
        run_arrays(EmulatedDevice(sm_count=1), config, problem, given) for config in (one, runs)
    ]
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])
    assert replace(runs, whole_pages=True).refusal().rule == "boxes_are_whole_pages"


@pytest.mark.parametrize("page", [1, 4, 12, 24])
def test_pages_that_do_not_fit_kv_blocks_are_refused_and_left_to_the_other_kernel(page):
    config = hopper(SMALL)
    problem = problem_of(config, page=page, pages=300)
    with pytest.raises(Unsupported, match=f"pages of {page} rows do not fit kv blocks"):
        plan(config, problem, sm_count=132)
    assert choose(problem, "sm_90a").config.NAME == "sm80_decode"
    assert choose(replace(problem, page=16), "sm_90a").config.NAME == "sm90_decode"
    assert choose(replace(problem, page=16), "sm_89").config.NAME == "sm80_decode"
