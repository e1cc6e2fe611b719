"""What the forward rule takes first where a mask or a score asks for more than the plain kernel."""

import pytest

from flashsmith import arch
from flashsmith.base.dtypes import DType
from flashsmith.kernels.sm90_forward.rule import candidates
from flashsmith.problem.attention import AttentionProblem

CASES = {
    "nothing": ({}, (2, 128, "SUM")),
    "a window without tiles of its own": ({"window_left": 64, "causal": True}, (2, 128, "BITS")),
    "cap": ({"softcap": 50.0}, (3, 80, "SUM")),
    "cap under a causal mask": ({"softcap": 50.0, "causal": True}, (3, 80, "BITS")),
    "slopes": ({"alibi": True}, (3, 80, "SUM")),
    "slopes under a causal mask": ({"alibi": True, "causal": True}, (3, 80, "SUM")),
    "bias": ({"bias": "same"}, (2, 128, "BITS")),
    "bool": ({"bias": "bool"}, (2, 128, "SUM")),
    "two at once": ({"alibi": True, "softcap": 50.0}, (2, 128, "SUM")),
    "packed": ({"window_left": 64, "batch": 1, "sequences": 3}, (2, 128, "SUM")),
}


@pytest.mark.parametrize(("facts", "wanted"), CASES.values(), ids=CASES)
def test_a_fact_takes_what_was_fastest_with_it_alone(facts, wanted):
    shape = {"batch": 2, "heads": 3, "kv_heads": 1, "q_len": 900, "k_len": 911, "d_head": 120}
    problem = AttentionProblem(**{**shape, **facts}, dtype=DType.BF16)
    first = candidates(problem, arch.get("sm_90a"))[0]
    assert (first.n_warpgroups, first.B_c, first.statistics.name) == wanted


WINDOWS = {
    "narrow": ({"window_left": 256}, ("own_spans", 2)),
    "usual": ({"window_left": 1024}, ("own_spans", 6)),
    "wide": ({"window_left": 4096}, ("own_spans", 6)),
    "to both sides": ({"window_left": 200, "window_right": 200, "causal": False}, ("own_spans", 2)),
    "without a right edge": ({"window_left": 1, "causal": False}, ("own_spans", 6)),
    "as long as the keys": ({"window_left": 9000}, ("halves", 0)),
}


@pytest.mark.parametrize(("facts", "wanted"), WINDOWS.values(), ids=WINDOWS)
def test_tiles_of_a_window_have_spans_of_their_own_where_it_hides_keys(facts, wanted):
    shape = {"batch": 2, "heads": 3, "kv_heads": 1, "q_len": 8000, "k_len": 8001, "d_head": 120}
    problem = AttentionProblem(**{**shape, "causal": True, **facts}, dtype=DType.BF16)
    first = candidates(problem, arch.get("sm_90a"))[0]
    assert wanted == ("own_spans" if first.own_spans else "halves", first.told_ahead)


@pytest.mark.parametrize(("left", "own_spans"), [(300, True), (1024, True), (4096, False)])
def test_thin_heads_have_them_in_windows_that_are_not_wide(left, own_spans):
    problem = AttentionProblem(1, 3, 1, 8000, 8001, 64, DType.BF16, causal=True, window_left=left)
    assert candidates(problem, arch.get("sm_90a"))[0].own_spans == own_spans
