"""All facts of a forward problem drawn together, so that every two of them meet in both families.

What a fact is alone, and what goes wrong with it, is tested in a file of its own; what its tests
draw is drawn here.
"""

import random

import pytest
from pairs import all_pairs, require_every_pair

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import Unsupported
from flashsmith.check.cases import Case, bias_cases
from flashsmith.check.verdict import check_case
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import plan
from flashsmith.problem.attention import FACTS, AttentionProblem
from flashsmith.problem.needs import facts_that_hold

LOOP = "overlap+early_rescale+tiles_DYNAMIC+sections"
# One for each way in which tiles are drawn, a loop runs, a mask is written, V comes or O leaves.
CONFIGS = {
    "mma": [
        "(BF16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        "(FP16, 64, 64, 64, 4): async+swizzled+load_0_2_2_tiles",
        "(FP16, 64, 128, 128, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax",
        "(BF16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles",
        "(BF16, 128, 64, 32, 4): load_2_2_2_tiles",
    ],
    "wgmma": [
        f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+o_smem+regs_232_40",
        f"hopper(FP16, 64, 2, 128): kv_3+q_4+{LOOP}+stats_SUM+lazy_8+halves+pingpong+l_mma+o_smem"
        "+late_draw+regs_232_40",
        f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_BITS+lazy_8+up_FIRST+o_smem+regs_232_40",
        f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_BITS+lazy_8+up_ALL+o_smem+regs_232_40",
        f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_SUM+lazy_8+up_ALL+halves+regs_232_40",
        f"hopper(BF16, 64, 2, 128): kv_2+q_4+{LOOP}+stats_VOTE+lazy_8+halves+early_tests+split"
        "+o_smem+late_store+regs_232_40",
        f"hopper(FP16, 64, 2, 64): kv_2+q_4+{LOOP}+stats_MAX+cluster_2+o_smem+regs_232_40",
        f"hopper(BF16, 64, 2, 64): kv_2+q_3+{LOOP}+stats_SUM+lazy_8+cluster_2+early_tiles+early_q"
        "+late_store+regs_224_56",
        "hopper(BF16, 64, 2, 128): kv_2+q_4+overlap+early_rescale+stats_SUM+lazy_8+tiles_STATIC"
        "+o_smem+regs_232_40",
        "hopper(FP16, 64, 1, 128): kv_2+q_1+stats_MAX+regs_240_56",
        f"hopper(BF16, 192, 2, 96): kv_2+q_3+{LOOP}+stats_SUM+lazy_8+late_store+regs_232_40",
    ],
}
EVERY = [text for texts in CONFIGS.values() for text in texts]
BIASES = ["bool", "same", "float32"]
LENGTHS = ["q_lengths", "k_lengths", "k_starts"]
GRID = {
    "dtype": [DType.FP16, DType.BF16],
    "heads": [(3, 1), (4, 2), (3, 3)],  # the second number: of K and V
    # Of q and k, and of v: less than the kernel's?
    "widths": ["whole", "narrow", "whole, narrower v", "narrow, narrower v"],
    "mask": ["full", "causal", "window", "causal window"],
    # What is refused beside another is one list.
    "tables": ["none", *BIASES, "packed", "lengths"],
    "placement": ["contiguous", "padded", "transposed", "packed"],
    "softcap": [None, 5.0],
    "alibi": [False, True],
    "sinks": [False, True],
    "lse": [False, True],
}
SAMPLE = {family: all_pairs(GRID, f"{family} together") for family in CONFIGS}


def case_of(config, point):
    """A case with the facts that a point of the grid names; what they leave open is drawn."""
    draw = random.Random(f"{config.short_form()} {point}")
    keys = point.get("keys") or 3 * config.tile_k + draw.choice([5, 8, 22])
    is_packed = point["placement"] == "packed"  # q, k and v lie in one tensor, and are as long
    lengths = [name for name in LENGTHS if draw.random() < 0.6] or ["k_lengths"]
    has_lengths, has_bias = point["tables"] == "lengths", point["tables"] in BIASES
    is_sequences = point["tables"] == "packed" or (has_lengths and draw.random() < 0.4)
    at_once = draw.choice(["", "apart", "chunks"]) if point["placement"] == "contiguous" else ""
    d_head = config.d_head - 8 * draw.choice([1, 3]) * point["widths"].startswith("narrow")
    problem = AttentionProblem(
        1 if is_sequences else draw.choice([1, 2]),
        *point["heads"],
        keys if is_packed else draw.choice([1, 67, 139]),
        *(keys, d_head, point["dtype"]),
        d_v=draw.choice([8, d_head // 16 * 8, d_head - 16]) * ("v" in point["widths"]),
        causal="causal" in point["mask"],
        diagonal=draw.choice([None, None, 0, 31, -40]),
        window_left=draw.choice([0, 1, 63, 64, 130]) if "window" in point["mask"] else None,
        window_right=draw.choice([None, 0, 2, 64]) if point["mask"] == "window" else None,
        bias=point["tables"] if has_bias else "",
        bias_keys=(at_once if point["placement"] == "contiguous" else "apart") * has_bias,
        **dict.fromkeys(lengths if has_lengths else (), True),
        sequences=draw.choice([1, 4, 9]) if is_sequences else 0,
        **{name: point[name] for name in ("softcap", "alibi", "sinks", "lse")},
    )
    return Case("together", problem, draw.choice([1.0, 8.0]), point["placement"])


def require_right(device, text, point):
    config = parse_config(text).replace(dtype=point["dtype"])
    case = case_of(config, point)
    check_case(device, config, case).require_ok(f"{config.short_form()} on {case}")


def dealt(family):
    """The family's points, each for the next of its configurations."""
    texts = CONFIGS[family]
    for n, point in enumerate(SAMPLE[family]):
        yield pytest.param(texts[n % len(texts)], point, id=f"{family} {n}")


@pytest.mark.parametrize(("text", "point"), [*dealt("mma"), *dealt("wgmma")])
def test_what_is_drawn_together_is_right_together(text, point, device):
    require_right(device, text, point)


@pytest.mark.gpu
@pytest.mark.parametrize("text", EVERY)
def test_much_that_is_drawn_is_right_on_a_gpu(text, device):
    draw = random.Random(f"many {text}")
    more = GRID | {"keys": [None, None, None, None, 1, 77]}
    for _ in range(90):
        require_right(device, text, {name: draw.choice(values) for name, values in more.items()})
    config = parse_config(text)
    for case in bias_cases(config):
        check_case(device, config, case).require_ok(text)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_two_facts_meet_in_each_family(family):
    require_every_pair(GRID, SAMPLE[family])


@pytest.mark.parametrize("family", CONFIGS)
def test_every_fact_that_is_compiled_in_is_drawn(family):
    """What one without a value in the grid is right together with, nobody knows."""
    held = set()
    for drawn in dealt(family):
        text, point = drawn.values
        held |= {*facts_that_hold(case_of(parse_config(text), point).problem)}
    compiled = {name for name, what in FACTS.items() if what.is_optional and what.compiled}
    assert compiled - held <= {"page"}  # of serving: tests/api/test_packed_pages.py


@pytest.mark.parametrize("other", [{"sequences": 4}, *({name: True} for name in LENGTHS)], ids=str)
def test_what_is_one_list_of_the_grid_is_refused_together_by_name(other):
    for bias in BIASES:
        with pytest.raises(Unsupported, match=f"bias and {next(iter(other))} are both given"):
            AttentionProblem(1, 3, 1, 139, 390, 64, bias=bias, d_v=40, **other)


@pytest.mark.parametrize(
    "text",
    [
        "bwd(BF16, 64): dkv_64_64_4+dq_64_64_4",
        "hopper_bwd(BF16, 64): ds_2+turns+early_dv",
        "decode(BF16, 64, 16, 64, 4): slice_128+most_8+stages_2+ctas_1",
    ],
)
def test_kernels_that_read_v_at_the_width_of_k_refuse_a_narrower_one_by_name(text):
    config = parse_config(text)
    problem = AttentionProblem(1, 3, 1, 139, 390, 64, d_v=40, operation=config.OPERATION)
    with pytest.raises(Unsupported, match="do not compute d_v"):
        plan(config, problem, sm_count=132)
