"""mma.sync: every shape, element type and accumulator the emulator runs."""

from __future__ import annotations

import numpy as np

from flashsmith.base.dtypes import DType, to_bits
from instruction_cases.case import PRELUDE, Case, relative_to_largest

REPEATS = 16  # random matrices a case


def _case(shape: str, kind: str, accumulator: str, registers: tuple[int, int, int]) -> Case:
    """`registers` of A, B and of C = D, 32 bits each, a lane."""
    a, b, c = registers
    rng = np.random.default_rng([len(shape), a, b, c, len(kind)])
    dtype = DType.FP16 if kind == "f16" else DType.BF16
    values = rng.standard_normal((REPEATS, (a + b) * 32, 2)).astype(np.float32)
    operands = to_bits(values, dtype).reshape(-1).view(np.uint32)
    if accumulator == "f32":
        start = rng.standard_normal(REPEATS * c * 32).astype(np.float32).view(np.uint32)
    else:
        start = rng.standard_normal(REPEATS * c * 64).astype(np.float16).view(np.uint32)
    numbers = iter(range(100))
    d_list = ", ".join(f"%{next(numbers)}" for _ in range(c))
    a_list = ", ".join(f"%{next(numbers)}" for _ in range(a))
    b_list = ", ".join(f"%{next(numbers)}" for _ in range(b))
    constraint = "f" if accumulator == "f32" else "r"
    cast = "__uint_as_float" if accumulator == "f32" else "(u32)"
    uncast = "__float_as_uint" if accumulator == "f32" else "(u32)"
    ctype = "float" if accumulator == "f32" else "u32"
    text = f"mma.sync.aligned.{shape}.row.col.{accumulator}.{kind}.{kind}.{accumulator} "
    source = (
        PRELUDE
        + f"""
extern "C" __global__ void __launch_bounds__(32) probe(const u32* in, const u32* start, u32* out) {{
    const u32 t = threadIdx.x;
    const u32* ab = in + blockIdx.x * {(a + b) * 32} + t;
    {ctype} d[{c}];
    for (int i = 0; i < {c}; ++i) d[i] = {cast}(start[(blockIdx.x * {c} + i) * 32 + t]);
    asm volatile("{text}{{{d_list}}}, {{{a_list}}}, {{{b_list}}}, {{{d_list}}};"
        : {", ".join(f'"+{constraint}"(d[{i}])' for i in range(c))}
        : {", ".join(f'"r"(ab[{32 * i}])' for i in range(a + b))});
    for (int i = 0; i < {c}; ++i) out[(blockIdx.x * {c} + i) * 32 + t] = {uncast}(d[i]);
}}
"""
    )
    return Case(
        f"mma {shape} {kind} into {accumulator}",
        text.strip(),
        source,
        (operands, start),
        REPEATS * c * 128,
        threads=32,
        grid=REPEATS,
        compare=relative_to_largest(np.float32 if accumulator == "f32" else np.float16),
        unit="of the largest",
        allowed=2.0**-21 if accumulator == "f32" else 2.0**-10,
    )


def cases() -> list[Case]:
    return [
        _case("m16n8k16", "f16", "f32", (4, 2, 4)),
        _case("m16n8k16", "bf16", "f32", (4, 2, 4)),
    ]
