"""What the forward rule takes first where a mask or a score asks for more than the plain kernel."""

import pytest

from flashsmith import arch
from flashsmith.base.dtypes import DType
from flashsmith.kernels.sm90_forward.rule import candidates
from flashsmith.problem.attention import AttentionProblem

CASES = {
    "nothing": ({}, (2, 128, "SUM")),
    "window": ({"window_left": 1024, "causal": True}, (2, 128, "BITS")),
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
