"""The verdict: right outputs pass, and every way of being wrong is found and placed."""

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.base.errors import Mismatch
from flashsmith.check.cases import Case, full_cases, inputs_of
from flashsmith.check.placement import MARGIN, PLACEMENTS, fill_buffers, locations_of
from flashsmith.check.same_precision import same_precision
from flashsmith.check.tolerance import expectation
from flashsmith.check.verdict import judge
from flashsmith.kernels import parse_config
from flashsmith.problem.attention import AttentionProblem

CONFIG = parse_config("(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles")
PROBLEM = AttentionProblem(2, 3, 1, 37, 101, 72, DType.FP16, causal=True, lse=True)
CASE = Case("planted", PROBLEM, placement="padded")


def launched(case):
    """Buffers before a launch, and after one that wrote what the same precision gives."""
    locations = locations_of(case)
    inputs = inputs_of(case)
    before = fill_buffers(case, locations, inputs)
    after = {name: buffer.copy() for name, buffer in before.items()}
    dtype = case.problem.dtype
    found = same_precision(
        case.problem, {name: from_bits(bits, dtype) for name, bits in inputs.items()}
    )
    o = found["o"]
    locations["o"].view(after["o"])[...] = to_bits(o, dtype).reshape(o.shape)
    if case.problem.lse:
        after["lse"][MARGIN:-MARGIN] = found["lse"].reshape(-1).view(np.uint32)
    return locations, before, after


def verdict_after(case, plant):
    locations, before, after = launched(case)
    plant(locations["o"].view(after["o"]), after)
    return judge(case, locations, before, after)


@pytest.mark.parametrize("case", full_cases(CONFIG), ids=lambda case: case.name)
def test_what_the_same_precision_gives_is_right(case):
    locations, before, after = launched(case)
    verdict = judge(case, locations, before, after)
    assert verdict.ok, verdict
    assert verdict.worst <= verdict.allowed


def test_an_unwritten_element_is_found_by_its_index():
    def plant(o, after):
        o[1, 36, 2, 71] = 0x7E5A

    verdict = verdict_after(CASE, plant)
    assert not verdict.ok
    assert verdict.reason == "1 elements of o never written"
    assert verdict.where == "o[batch 1, row 36, head 2, d 71]"


def test_an_unwritten_lse_is_found():
    def plant(o, after):
        after["lse"][MARGIN + 40] = 0x7FC5A5A5

    assert verdict_after(CASE, plant).where == "lse[batch 0, head 1, row 3]"


def test_two_swapped_rows_are_found():
    def plant(o, after):
        o[0, [20, 21]] = o[0, [21, 20]]

    verdict = verdict_after(CASE, plant)
    assert not verdict.ok
    assert verdict.reason == "o is too far from the truth"
    assert "row 2" in verdict.where


def test_the_output_of_another_head_is_found():
    def plant(o, after):
        o[:, :, 1] = o[:, :, 2]

    assert not verdict_after(CASE, plant).ok


@pytest.mark.parametrize("dtype", DType)
def test_an_output_scaled_by_four_roundings_is_found(dtype):
    roundoff = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}[dtype]
    case = Case("planted", AttentionProblem(1, 3, 3, 37, 101, 64, dtype))

    def plant(o, after):
        o[...] = to_bits(from_bits(o, dtype) * (1 + 4 * roundoff), dtype).reshape(o.shape)

    assert not verdict_after(case, plant).ok


@pytest.mark.parametrize("bits", [0x7FFF, 0x7C00, 0xFC00], ids=["nan", "inf", "-inf"])
def test_what_is_not_a_number_is_infinitely_far_off(bits):
    def plant(o, after):
        o[0, 5, 1, 7] = bits

    verdict = verdict_after(CASE, plant)
    assert (verdict.ok, verdict.worst) == (False, np.inf)
    assert verdict.where.startswith("o[batch 0, row 5, head 1, d 7]")


def test_a_fully_masked_row_must_be_exactly_zero():
    case = Case("masked", AttentionProblem(1, 3, 3, 70, 33, 64, DType.BF16, causal=True))

    def plant(o, after):
        o[0, 0, 0, 0] = 0x0080  # the smallest normal number

    assert verdict_after(case, lambda o, after: None).ok
    assert not verdict_after(case, plant).ok


@pytest.mark.parametrize(
    "element", [0, MARGIN - 1, MARGIN + 72, -1], ids=["first", "before", "between rows", "last"]
)
def test_a_hit_canary_is_found(element):
    def plant(o, after):
        after["o"][element] = 0

    verdict = verdict_after(CASE, plant)
    assert verdict.reason == "1 elements outside the output changed"
    assert verdict.where.startswith("buffer o, element ")


def test_a_hit_canary_of_the_lse_is_found():
    def plant(o, after):
        after["lse"][MARGIN - 1] = 0

    assert verdict_after(CASE, plant).where == f"buffer lse, element {MARGIN - 1}"


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_changed_input_is_found(name):
    def plant(o, after):
        after[name][MARGIN] ^= 1

    verdict = verdict_after(CASE, plant)
    assert verdict.reason == "1 elements of an input changed"


def test_an_lse_in_base_two_is_found():
    def plant(o, after):
        lse = after["lse"][MARGIN:-MARGIN].view(np.float32)
        lse *= np.float32(np.log2(np.e))

    verdict = verdict_after(CASE, plant)
    assert verdict.reason == "lse is too far from the truth"


def test_an_lse_may_be_off_by_its_own_last_places_where_the_scores_are_small():
    """Of 64 small scores it is log 64 and more: float32 has no more digits there."""
    case = Case("small scores", AttentionProblem(2, 3, 1, 130, 64, 8, DType.FP16, lse=True))

    def off_by(steps):
        def plant(o, after):
            lse = after["lse"][MARGIN:-MARGIN].view(np.float32)
            lse += np.float32(steps) * np.spacing(lse)

        return verdict_after(case, plant)

    assert off_by(2).ok
    assert off_by(8).reason == "lse is too far from the truth"


def test_a_nan_of_the_truth_must_come_out_as_one():
    case = Case("nan", AttentionProblem(1, 3, 1, 5, 9, 8, DType.FP16), nan=True)
    locations, before, after = launched(case)
    assert judge(case, locations, before, after).ok
    for at in ((0, 4, 2, 0), (0, 1, 0, 7)):  # of the NaN in Q, and of that in V
        o = locations["o"].view(after["o"])
        kept, o[at] = o[at], 0x3C00
        assert judge(case, locations, before, after).worst == np.inf
        o[at] = kept


def test_a_wrong_verdict_raises_with_configuration_case_and_place():
    def plant(o, after):
        o[0, 0, 0, 0] = 0x7C00

    with pytest.raises(Mismatch, match=r"\(BF16, 64.* on 'planted' .*o\[batch 0, row 0"):
        verdict_after(CASE, plant).require_ok(CONFIG.short_form())


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_element_has_one_place_and_rows_begin_at_16_bytes(placement):
    case = Case("placed", AttentionProblem(2, 4, 2, 5, 5, 72), placement=placement)
    locations = locations_of(case)
    size = max(location.end for location in locations.values())
    seen = {location.buffer: np.zeros(size, np.int32) for location in locations.values()}
    for location in locations.values():
        location.view(seen[location.buffer])[...] += 1
        assert not any(number % 8 for number in (location.offset, *location.strides))
    assert all(buffer.max() == 1 for buffer in seen.values())
    assert sum(int(buffer.sum()) for buffer in seen.values()) == 2 * 5 * 72 * (4 + 2 + 2 + 4)


def test_rows_whose_terms_cancel_are_held_to_what_they_are_made_of():
    """Roundings of P do not cancel: the largest number left of a row says nothing of them."""
    problem = AttentionProblem(1, 1, 1, 3, 2, 8, DType.BF16)
    q, k = np.zeros((1, 3, 1, 8), np.float32), np.zeros((1, 2, 1, 8), np.float32)
    v = np.stack([np.full((1, 8), x, np.float32) for x in (1.0, -0.9921875)])[None]
    bits = {name: to_bits(x, DType.BF16) for name, x in {"q": q, "k": k, "v": v}.items()}
    expected = expectation(problem, bits)["o"]
    assert np.abs(expected.truth).max() < 0.004
    assert (expected.relative_to > 0.7).all()  # of two weights of a half, the root of their squares
