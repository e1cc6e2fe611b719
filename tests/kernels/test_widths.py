"""Rows of V that are narrower than those of K, in both forward families."""

from dataclasses import replace

import pytest

from flashsmith.base.errors import ArgumentError, Unsupported
from flashsmith.check.cases import Case
from flashsmith.check.verdict import check_case
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import needs_of, plan
from flashsmith.kernels.sm80_forward.plan import ForwardLaunch
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
MMA = "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
WGMMA = f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40"
DIRECT = f"hopper(BF16, 192, 2, 96): kv_2+q_3+{LOOP}+stats_SUM+lazy_8+late_store+regs_232_40"
# Three blocks of keys and more, ragged tails, an odd number of heads that share one.
NARROW = AttentionProblem(2, 3, 1, 139, 390, 64, lse=True, d_v=40)


def checked(device, text, **facts):
    """Between canaries that are NaN, behind every row too: a column too many is noticed."""
    config = parse_config(text)
    problem = replace(NARROW, **{"dtype": config.dtype, "d_head": config.d_head, **facts})
    return check_case(device, config, Case("widths", problem, placement="padded"))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (MMA, {"causal": True}),
        (WGMMA, {"d_head": 48, "d_v": 32, "sequences": 3, "batch": 1}),
        (DIRECT, {"d_v": 128, "causal": True, "batch": 1}),
    ],
    ids=["mma", "wgmma packed", "192 and 128"],
)
def test_rows_of_v_may_be_narrower(text, facts, device):
    checked(device, text, **facts).require_ok(text)


def test_a_width_that_is_ignored_is_noticed(device, monkeypatch):
    arguments = ForwardLaunch.arguments

    def wide(launch, call):
        return replace(arguments(launch, call), v_width=launch.problem.d_head)

    monkeypatch.setattr(ForwardLaunch, "arguments", wide)
    assert not checked(device, MMA, causal=True).ok


def test_what_a_problem_with_two_widths_is():
    config = parse_config(MMA)
    needs = needs_of(config, NARROW)
    assert "d_v" in needs
    assert not needs.covers(needs_of(config, replace(NARROW, d_v=0)))
    wide, narrow = (cost_of(replace(NARROW, d_v=d_v)) for d_v in (0, 32))
    assert narrow.flops == 0.75 * wide.flops
    with pytest.raises(
        ArgumentError, match="d_v is 64 and d_head is 64; rows of V may be narrower"
    ):
        replace(NARROW, d_v=64)
    with pytest.raises(Unsupported, match="d_v is 36; this kernel takes multiples of 8"):
        plan(config, replace(NARROW, d_v=36), sm_count=132)
    decode = parse_config("decode(BF16, 64, 16, 64, 4): slice_128+most_8+stages_2+ctas_1")
    with pytest.raises(Unsupported, match="do not compute d_v"):
        plan(decode, NARROW, sm_count=132)
