"""The verdict on gradients: what the same precision gives passes, and wrong ones are found."""

from dataclasses import replace

import numpy as np
import pytest

from flashsmith.base.dtypes import DType, from_bits, to_bits
from flashsmith.check.cases import Case, full_cases, inputs_of
from flashsmith.check.placement import (
    MARGIN,
    fill_buffers,
    locations_of,
    scratch_buffer,
    scratch_location,
)
from flashsmith.check.same_precision import same_precision
from flashsmith.check.tolerance import expectation_of
from flashsmith.check.verdict import judge
from flashsmith.kernels import parse_config
from flashsmith.kernels.launch import SCRATCH
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.tensors import numbers_of

TILES = parse_config("(BF16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles")
PROBLEM = AttentionProblem(
    2, 4, 2, 37, 53, 72, DType.FP16, causal=True, diagonal=0, operation="backward"
)
CASE = Case("planted", PROBLEM, placement="padded")
ROUNDOFF = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}


def backward_cases(dtype):
    for case in full_cases(replace(TILES, dtype=dtype)):
        has_dlse = case.problem.lse  # all but one
        problem = replace(case.problem, operation="backward", lse=False, dlse=has_dlse)
        yield replace(case, problem=problem)


def near(case):
    problem, given = case.problem, inputs_of(case)
    roles = signature_of(problem).inputs(problem)
    return same_precision(problem, {r.name: numbers_of(r, given[r.name], problem) for r in roles})


def verdict_after(case, plant=lambda found: None, hit=lambda after: None):
    locations = locations_of(case)
    locations[SCRATCH] = scratch_location(1024)
    before = fill_buffers(case, locations_of(case), inputs_of(case))
    before[SCRATCH] = scratch_buffer(locations[SCRATCH])
    after = {name: buffer.copy() for name, buffer in before.items()}
    found = near(case)
    plant(found)
    for name, values in found.items():
        bits = to_bits(values, case.problem.dtype).reshape(values.shape)
        locations[name].view(after[locations[name].buffer])[...] = bits
    locations[SCRATCH].view(after[SCRATCH])[...] = 7
    hit(after)
    return judge(case, locations, before, after)


@pytest.mark.parametrize("dtype", DType)
def test_what_the_same_precision_gives_is_right_within_a_few_roundings(dtype):
    for case in backward_cases(dtype):
        verdict = verdict_after(case)
        assert verdict.ok, verdict
        for name, expected in expectation_of(case).items():
            # A tolerance that a case with tiny or cancelling numbers blew up would find nothing;
            # other seeds gave up to 4.2.
            assert expected.allowed < 6 * ROUNDOFF[dtype], (case.name, name)


def test_a_backward_case_is_given_what_a_forward_pass_gives():
    given = inputs_of(CASE)
    o = from_bits(given["o"], PROBLEM.dtype)
    weights = np.exp(given["lse"].view(np.float32))
    assert given["lse"].dtype == np.uint32
    assert o.shape == given["q"].shape
    # Row 0 sees one key: its output is that key's value, its LSE its score.
    np.testing.assert_array_equal(given["o"][:, 0, 0], given["v"][:, 0, 0])
    assert np.isfinite(weights).all()


def without(found, name, at):
    found[name][at] = 0


@pytest.mark.parametrize(
    "plant",
    [
        lambda found: without(found, "dq", (0, 36, 3)),
        lambda found: without(found, "dk", (1, 0, 1)),
        lambda found: without(found, "dv", (1, 36, 0)),
        lambda found: found.update(dk=found["dk"] * np.float32(72**0.5)),
        lambda found: found.update(dv=found["dv"][:, :, ::-1].copy()),
        lambda found: found.update(dq=found["dq"] * np.float32(1 + 2**-7)),
        lambda found: found["dq"].__setitem__((0, 0, 0, 0), np.nan),
    ],
    ids=["row of dq", "key of dk", "key of dv", "scale", "heads", "roundings", "nan"],
)
def test_a_wrong_gradient_is_found(plant):
    assert verdict_after(CASE).ok
    verdict = verdict_after(CASE, plant)
    assert not verdict.ok
    assert "too far from the truth" in verdict.reason


def test_a_gradient_of_one_head_of_a_group_is_found():
    """As if the heads of a group wrote one after the other instead of adding up."""
    alone = replace(PROBLEM, heads=2)

    def plant(found):
        given = inputs_of(CASE)
        of_last = {n: x[:, :, 1::2] if n in ("q", "o", "do") else x for n, x in given.items()}
        of_last["lse"] = given["lse"][:, 1::2]
        roles = signature_of(alone).inputs(alone)
        numbers = {r.name: numbers_of(r, of_last[r.name], alone) for r in roles}
        found["dk"] = same_precision(alone, numbers)["dk"]

    assert "dk is too far" in verdict_after(CASE, plant).reason


def test_keys_that_nobody_sees_have_gradient_exactly_zero():
    def plant(found):
        found["dv"][0, 52, 0, 0] = 1e-7  # row 36 is the last and sees keys up to 36

    assert not near(CASE)["dv"][:, 37:].any()
    assert not verdict_after(CASE, plant).ok


@pytest.mark.parametrize("element", [0, MARGIN - 1, MARGIN + 256, -1])
def test_a_hit_canary_of_the_scratch_is_found(element):
    def hit(after):
        after[SCRATCH][element] = 0

    verdict = verdict_after(CASE, hit=hit)
    assert verdict.reason == "1 elements outside the output changed"
    assert verdict.where.startswith("buffer scratch, element ")


def test_gradients_of_packed_tensors_lie_packed_too():
    case = Case("packed", replace(PROBLEM, k_len=37), placement="packed")
    locations = locations_of(case)
    assert {locations[name].buffer for name in ("dq", "dk", "dv")} == {"dqkv"}
    assert locations["dk"].strides == locations["k"].strides
    assert verdict_after(case).ok
