"""The arguments that flash-attn's own tests try, sampled so that every pair of values occurs.

Its tests multiply lists of types, kinds of heads, masks, widths, lengths and caps. Here a seeded
sample holds every value and every pair of values of different lists, of a batch and of packed
sequences; each call is held against the float64 reference, through the drop-in of flash-attn's
name.
"""

import random

import numpy as np
import pytest
import torch
from pairs import all_pairs, require_every_pair

from flashsmith import flash_attn_func, flash_attn_varlen_func
from flashsmith.base.dtypes import DType
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.tolerance import distance, expectation_of
from flashsmith.problem.attention import AttentionProblem

pytestmark = pytest.mark.filterwarnings("ignore::flashsmith.FlashsmithWarning")
GRID = {
    "dtype": [DType.FP16, DType.BF16],
    "kv_heads": [6, 1, 2],
    "alibi": [False, True],
    "local": [False, True],
    "causal": [False, True],
    "softcap": [0.0, 50.0],
    "packed": [False, True],
    "d_head": [32, 40, 64, 96, 128, 160, 192, 224, 256],
    "lengths": [
        *((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256)),
        *((1024, 1024), (1023, 1024), (1024, 1023)),
    ],
}
SMALL = {"d_head": [64], "lengths": [(113, 203), (256, 113)]}


def problem_of(point):
    q_len, k_len = point["lengths"]
    draw = random.Random(str(point))
    window = (draw.randrange(k_len), draw.randrange(k_len)) if point["local"] else (None, None)
    sequences = draw.choice([2, 5]) if point["packed"] else 0
    batch = 1 if sequences else 2
    return AttentionProblem(
        *(batch, 6, point["kv_heads"], q_len, k_len, point["d_head"], point["dtype"]),
        causal=point["causal"],
        window_left=window[0],
        window_right=None if point["causal"] else window[1],
        softcap=point["softcap"] or None,
        alibi=point["alibi"],
        lse=True,
        sequences=sequences,
    )


def require_right(problem, where):
    case = Case("flash-attn", problem)
    bits = inputs_of(case)
    kind = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16
    q, k, v = (
        torch.from_numpy(bits[name].view(np.int16).copy()).view(kind).to(where) for name in "qkv"
    )
    slopes = None
    if problem.alibi:
        slopes = torch.from_numpy(bits["alibi_slopes"].view(np.float32).copy()).to(where)
    sides = (problem.window_left, problem.window_right)
    call, tables = flash_attn_func, ()
    if problem.sequences:
        call, (q, k, v) = flash_attn_varlen_func, (x[0] for x in (q, k, v))
        ends = (bits[f"cu_seqlens_{name}"].view(np.int32).copy() for name in "qk")
        tables = (*(torch.from_numpy(numbers).to(where) for numbers in ends), len(q), len(k))
    out, lse, _ = call(
        *(q, k, v, *tables),
        causal=problem.causal,
        window_size=tuple(-1 if side is None else side for side in sides),
        softcap=problem.softcap or 0.0,
        alibi_slopes=slopes,
        return_attn_probs=True,
    )
    found = {"o": out.float().cpu().numpy(), "lse": lse.cpu().numpy()}
    for name, expected in expectation_of(case).items():
        got = found[name][None] if problem.sequences else found[name]
        far = distance(name, expected, got)
        assert far.ok, (problem, far)


@pytest.mark.parametrize("point", all_pairs(GRID | SMALL, "emulator"), ids=str)
def test_a_sample_of_its_grid_is_right_in_the_emulator(point, monkeypatch):
    monkeypatch.setenv("FLASHSMITH_DEVICE", "emulator")
    require_right(problem_of(point), "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("point", all_pairs(GRID, "gpu"), ids=str)
def test_a_sample_of_its_grid_is_right_on_a_gpu(point):
    require_right(problem_of(point), "cuda")


@pytest.mark.parametrize(("grid", "seed"), [(GRID | SMALL, "emulator"), (GRID, "gpu")])
def test_the_sample_holds_every_value_and_every_pair(grid, seed):
    require_every_pair(grid, all_pairs(grid, seed))
