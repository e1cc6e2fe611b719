"""The Hopper kernels off the grid: FP16, groups, layouts, odd lengths; and candidates in FP16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from hopper_parts import ROUNDS, Numbers, Setting, flat, grid_problem
from hopper_shapes import (
    MORE_ROWS,
    SHAPES_LENGTH,
    Tensors,
    captured,
    cudnn,
    device,
    if_right,
    make_tensors,
    now,
    ours,
    pick,
    problem_of,
)

from flashsmith.base.dtypes import DType
from flashsmith.bench.versus import GEMM_FLOPS, GEMM_SIZE
from flashsmith.config import get_kernel_configs
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.measure.interleaved import Comparison, Timed, compare
from flashsmith.measure.record import Record
from flashsmith.measure.statistics import ratio_by_round
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.problem.cost import forward_cost

SHAPES_ROUNDS = 25
EQUAL_VALUES = "fp16, bf16 values"


def shapes(setting: Setting) -> Iterator[Record]:
    """FP16, GQA, the other layout and an odd length, per useful FLOP, beside the plain case.

    FP16 of cuDNN and of a matrix product stand beside their BF16, and ours on values that BF16
    holds too: what the chip's power takes, because more bits of the operands move.
    """
    products = [product(torch.bfloat16), product(torch.float16)]
    for d in (64, 128, 256):
        for causal in (False, True):
            yield from _shapes_of(setting, d, causal, products)


def product(dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    """A square matrix product of cuBLAS."""
    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def _shapes_of(
    setting: Setting, d: int, causal: bool, products: Sequence[Callable[[], torch.Tensor]]
) -> Iterator[Record]:
    length = SHAPES_LENGTH
    made = {
        "plain": make_tensors(d, length),
        "fp16": make_tensors(d, length, dtype=torch.float16),
        EQUAL_VALUES: make_tensors(d, length, rounded=True, dtype=torch.float16),
        "gqa 8:1": make_tensors(d, length, group=8),
        "heads first": make_tensors(d, length, heads_first=True),
        "odd length": make_tensors(d, length, more_rows=MORE_ROWS),
    }
    flops = {n: forward_cost(problem_of(t, causal=causal)).flops for n, t in made.items()}
    picked: dict[str, KernelConfig] = {}
    contenders = []
    for name, tensors in made.items():
        contender, picked[name] = ours(tensors, causal=causal, name=name)
        contenders.append(contender)
    for name, product in zip(("bf16", "fp16"), products, strict=True):
        tensors = made["plain" if name == "bf16" else name]
        contenders.append(captured(f"cuDNN {name}", cudnn(tensors, causal=causal)))
        contenders.append(captured(f"GEMM {name}", product))
        flops |= {f"cuDNN {name}": flops["plain"], f"GEMM {name}": GEMM_FLOPS}
    comparison = compare(device(), contenders, rounds=SHAPES_ROUNDS)
    for what, result in shape_lines(comparison, flops):
        config = picked.get(what["case"])
        what |= {"suite": "hopper shapes", "d_head": d, "causal": causal, "length": length}
        what["config"] = config.short_form() if config else ""
        yield flat(setting, what, result)


def shape_lines(
    comparison: Comparison, flops: Mapping[str, float]
) -> Iterator[tuple[Numbers, Numbers]]:
    """Each case, and its rate as a share of what it is held against, by round."""
    timed = {one.name: one for one in comparison.timed}
    for name, one in timed.items():
        base = f"{name.split()[0]} bf16" if name.startswith(("cuDNN", "GEMM")) else "plain"
        share = ratio_by_round(timed[base].times_us, one.times_us).median
        yield (
            {"case": name, "of": base},
            {
                "median_us": one.time_us.median,
                "tflops": flops[name] / one.time_us.median / 1e6,
                "share": share * flops[name] / flops[base],
                **_state(comparison, one),
            },
        )


def _state(comparison: Comparison, one: Timed) -> Numbers:
    return {
        "rounds": one.time_us.rounds,
        "control": comparison.control.median,
        "void": comparison.is_void,
        "attempts": comparison.attempts,
    }


def fp16_candidates(problem: AttentionProblem) -> list[KernelConfig]:
    """What might be fastest in FP16: the pick, the tuning set's, and each with a cluster."""
    found = [
        c
        for c in get_kernel_configs("hopper")
        if (c.d_head, c.dtype.name) == (problem.d_head, "BF16")
    ]
    found += [c.replace(cluster=2, pingpong=False, l2_hints=False) for c in found]
    distinct = dict.fromkeys(c.replace(dtype=DType.FP16) for c in (pick(problem), *found))
    return [c for c in distinct if c.refusal() is None]


def fp16_problems() -> list[tuple[KernelConfig, AttentionProblem]]:
    """The candidates with the problems they are timed on."""
    return [
        (config, problem)
        for d in (64, 128, 256)
        for causal in (False, True)
        for problem in [grid_problem(d, causal, SHAPES_LENGTH, DType.FP16)]
        for config in fp16_candidates(problem)
    ]


def fp16(setting: Setting) -> Iterator[Record]:
    """Candidates in FP16 beside the pick in BF16, at 4,096, rested."""
    for d in (64, 128, 256):
        for causal in (False, True):
            half = make_tensors(d, SHAPES_LENGTH, dtype=torch.float16)
            plain = Tensors(*(x.bfloat16() for x in (half.q, half.k, half.v)))
            expected = torch.empty_like(half.q)
            now(ours(half, causal=causal, out=expected)[0])
            contenders = [ours(plain, causal=causal, name="BF16")[0]]
            for config in fp16_candidates(problem_of(half, causal=causal)):
                found = if_right(half, config, expected, causal=causal)
                contenders += [found] if found is not None else []
            comparison = compare(device(), contenders, rounds=ROUNDS)
            for one in comparison.timed:
                what = {"suite": "hopper fp16", "case": one.name, "d_head": d, "causal": causal}
                result = {"median_us": one.time_us.median, "share": one.ratio.median}
                yield flat(setting, what, result | _state(comparison, one))
