"""mma.sync: both element types, small integers for equal bits and reals for the distance."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

import numpy as np

from flashsmith.base.dtypes import DType, to_bits
from instruction_cases.case import PRELUDE, Case, reals, small_integers_or_reals

REPEATS = 16  # random matrices a case


def _case(kind: str, exact: bool) -> Case:
    """m16n8k16 into f32: four registers of A, two of B, four of C and D."""
    rng = np.random.default_rng([len(kind), exact])
    dtype = DType.FP16 if kind == "f16" else DType.BF16
    operands = to_bits(small_integers_or_reals(rng, REPEATS * 6 * 64, exact), dtype).view(np.uint32)
    start = small_integers_or_reals(rng, REPEATS * 4 * 32, exact)
    text = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    source = (
        PRELUDE
        + f"""
extern "C" __global__ void __launch_bounds__(32) probe(const u32* in, const float* start, float* out) {{
    const u32 t = threadIdx.x;
    const u32* ab = in + blockIdx.x * 192 + t;
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = start[(blockIdx.x * 4 + i) * 32 + t];
    asm volatile("{text} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : {", ".join(f'"r"(ab[{32 * i}])' for i in range(6))});
    for (int i = 0; i < 4; ++i) out[(blockIdx.x * 4 + i) * 32 + t] = d[i];
}}
"""
    )
    return Case(
        f"mma m16n8k16 {kind} into f32{'' if exact else ', reals'}", text, source,
        (operands, start), REPEATS * 512, threads=32, grid=REPEATS,
        **({} if exact else reals("f32")),
    )  # fmt: skip


def cases() -> list[Case]:
    return [
        _case("f16", True),
        _case("bf16", True),
        _case("f16", False),
        _case("bf16", False),
    ]
