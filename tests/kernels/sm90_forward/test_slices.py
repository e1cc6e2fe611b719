"""How chunks are cut along the keys: enough for all SMs, and with batch_invariant by themselves."""

from dataclasses import replace

import pytest

from flashsmith.arch import get
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import cut, needs_of, plan, sum_order
from flashsmith.kernels.sm90_forward import rule
from flashsmith.kernels.sm90_forward.slices import count_of, most_given
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.choose.measured import shipped_table

CHUNK = AttentionProblem(1, 32, 8, 128, 32768, 128, causal=True)  # 32 tiles of 256 blocks
CONFIG = rule.candidates(CHUNK, get("sm_90a"))[0]
SM_COUNTS = (1, 7, 66, 114, 132, 148)
COMPANY = [{"batch": 5}, {"batch": 64}, {"heads": 8, "kv_heads": 1}, {"heads": 96, "kv_heads": 96}]


def launches(problem, sm_count=132, config=CONFIG):
    return plan(config, problem, sm_count=sm_count)


def busy(problem, sm_count):
    """Blocks of keys of the whole problem, over those that the SMs have the time for."""
    (one,) = launches(problem, sm_count)
    heads = problem.batch * problem.heads
    blocks = heads * sum(
        -(-sum(problem.mask.span(row, row + 128)) // CONFIG.B_c)
        for row in range(0, problem.q_len, 128)
    )
    waves = -(-one.split.drawn // sm_count)
    return blocks / (sm_count * waves * (one.split.blocks or 256))


@pytest.mark.parametrize("rows", [65, 128, 300])
@pytest.mark.parametrize("heads", [17, 32, 40, 48, 64])
def test_no_sm_has_nothing_to_do_while_others_take_long(rows, heads):
    problem = replace(CHUNK, heads=heads, kv_heads=1, q_len=rows)
    assert busy(problem, 132) > 0.85
    assert busy(problem, 114) > 0.85


def test_heads_that_share_keys_are_cut_at_the_same_ones():
    (one,) = launches(CHUNK)
    assert (one.split.ranges, one.split.blocks, one.split.slices) == (128, 64, 4)
    assert one.geometry.grid == (128, 1, 1)
    assert sum_order((one,)) == "slices of 64 kv blocks"
    assert "4 slices of 8,192 keys" in cut((one,))


@pytest.mark.parametrize(
    "facts",
    [
        {"q_len": 32768},  # tiles from one block to all: short ones even that out
        {"k_len": 1500, "q_len": 100},  # not worth an exchange
        {"window_left": 512},
        {"batch": 40},  # tiles for ten waves
        {"d_head": 120},
    ],
    ids=str,
)
def test_what_does_not_gain_by_it_is_not_cut(facts):
    assert not launches(replace(CHUNK, **facts))[0].split.slices


def test_where_the_launch_follows_from_sms_the_kernel_does_not():
    for invariant in (False, True):
        problem = replace(CHUNK, batch_invariant=invariant)
        assert {launches(problem, n)[0].needs for n in SM_COUNTS} == {needs_of(CONFIG, problem)}
        assert "sliced" in needs_of(CONFIG, problem)
    assert "sliced" not in needs_of(CONFIG.replace(split_last=False), CHUNK)


@pytest.mark.parametrize("facts", [{}, {"causal": False}, {"window_left": 20000}], ids=str)
@pytest.mark.parametrize("company", COMPANY, ids=str)
def test_the_invariant_cut_follows_from_the_sequence_alone(company, facts):
    alone = replace(CHUNK, batch_invariant=True, **facts)
    orders = {sum_order(launches(alone, n)) for n in SM_COUNTS}
    together = replace(alone, **company)
    for n in SM_COUNTS:
        plans = launches(together, n)
        orders |= {launch.sum_order for launch in plans}
        assert sum(launch.problem.batch for launch in plans) == together.batch
        assert len({launch.scratch_bytes for launch in plans}) == 1
        for launch in plans:
            assert launch.split.given <= most_given(CONFIG)
    assert orders == {"slices of 32 kv blocks"}
    assert "by its own sequence and the kernel alone" in cut(plans)


def test_slices_of_long_sequences_and_of_many_rows_double():
    for rows, keys, blocks, n in (
        (128, 4900, 32, 1),
        (128, 5300, 32, 2),
        (128, 131072, 128, 8),
        (512, 32768, 128, 2),
        (1024, 32768, 0, 0),
    ):
        problem = replace(CHUNK, q_len=rows, k_len=keys, batch_invariant=True)
        split = launches(problem)[0].split
        assert (split.blocks, split.slices) == ((blocks, n) if n > 1 else (0, 0))


def test_a_rest_below_a_quarter_of_a_slice_belongs_to_the_one_before():
    assert [count_of(span, 8) for span in (1, 8, 9, 10, 16, 17, 18)] == [1, 1, 1, 2, 2, 2, 3]
    assert [count_of(span, 1) for span in (1, 2, 3)] == [1, 2, 3]


def test_a_kernel_for_slices_takes_the_place_of_no_other():
    sliced, plain = Needs(("causal", "sliced")), Needs(("causal",))
    assert not sliced.covers(plain)
    assert not plain.covers(sliced)


def test_no_measured_problem_is_cut():
    problems = {item.problem for item in shipped_table("NVIDIA H200").of_gpu("NVIDIA H200")}
    forward = [p for p in problems if p.operation == "forward"]
    split = {width: CONFIG.replace(d_head=width) for width in (64, 128)}
    assert forward
    for problem in forward:
        if problem.d_head in split:
            assert "sliced" not in needs_of(split[problem.d_head], problem)


@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("rows", [40, 128])
def test_the_rule_takes_a_kernel_that_cuts_where_that_pays(rows, d_head):
    chunk = replace(CHUNK, q_len=rows, d_head=d_head)
    config = choose(chunk, "sm_90a").config
    assert config.split_last
    assert launches(chunk, config=config)[0].split.slices > 1
    # Of many tiles only where the batch must not decide; of as many rows as keys never.
    many = replace(chunk, batch=64, causal=False)
    alone = choose(replace(many, batch_invariant=True), "sm_90a").config
    assert alone == config
    if d_head == 64:
        assert not choose(many, "sm_90a").config.split_last
        assert not choose(replace(chunk, q_len=32768), "sm_90a").config.split_last


def test_a_plan_that_cuts_nothing_says_nothing_of_it():
    whole = parse_config(CONFIG.short_form().replace("+split", ""))
    assert cut(launches(CHUNK, config=whole)) == ""
