"""wgmma: operands from shared memory and registers, both majors, every swizzle, several N."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

import numpy as np

from flashsmith.base.dtypes import DType, to_bits
from instruction_cases.case import PRELUDE, Case, reals, small_integers_or_reals

MODE = {0: 0, 128: 1, 64: 2, 32: 3}
A_BYTES = 16384  # room for 64 x 64 of A, at the head of the shared tile
PAYLOAD = 65536


def _descriptor(address: str, leading: int, stride: int, swizzle: int) -> str:
    high = leading >> 4 << 16 | stride >> 4 << 32 | MODE[swizzle] << 62
    return f"((u64)(({address}) >> 4 & 0x3FFF) | {high}ull)"


def _layout(extent: int, swizzle: int, mn_major: bool) -> tuple[int, int]:
    """Leading and stride bytes of a tile that holds `extent` rows and 16 k's, packed."""
    if mn_major:
        if swizzle:
            panel = 16 * swizzle  # 16 k rows
            return panel, 8 * swizzle
        return 16 * extent, 128  # plain: next 8 k's, next 8 rows
    if swizzle:
        return 16, 8 * swizzle
    return extent * 16, 128


def _case(
    n: int,
    *,
    kind: str = "f16",
    accumulator: str = "f32",
    a_from: str = "smem",
    swizzle: int = 128,
    a_mn: bool = False,
    b_mn: bool = False,
    accumulate: bool = True,
    negate: bool = False,
    k_bytes: int = 0,
    exact: bool = True,
) -> Case:
    """One m64nNk16 step on random shared memory: small integers, or reals when not `exact`."""
    registers = n // 2 if accumulator == "f32" else n // 4
    a_lead, a_stride = _layout(64, swizzle, a_mn)
    b_lead, b_stride = _layout(n, swizzle, b_mn)
    d_list = ", ".join(f"%{i}" for i in range(registers))
    at = registers
    sign = -1 if negate else 1
    if a_from == "smem":
        operands = f"%{at}, %{at + 1}, p, {sign}, 1, {int(a_mn)}, {int(b_mn)}"
        arguments = (
            f'"l"({_descriptor(f"smem + {k_bytes}", a_lead, a_stride, swizzle)}), '
            f'"l"({_descriptor(f"smem + {A_BYTES + k_bytes}", b_lead, b_stride, swizzle)})'
        )
        scale = at + 2
    else:
        operands = (
            f"{{%{at}, %{at + 1}, %{at + 2}, %{at + 3}}}, %{at + 4}, p, {sign}, 1, {int(b_mn)}"
        )
        arguments = ", ".join(f'"r"(a[{i}])' for i in range(4))
        arguments += f', "l"({_descriptor(f"smem + {A_BYTES}", b_lead, b_stride, swizzle)})'
        scale = at + 5
    constraint = "f" if accumulator == "f32" else "r"
    ctype = "float" if accumulator == "f32" else "u32"
    cast = "__uint_as_float" if accumulator == "f32" else "(u32)"
    uncast = "__float_as_uint" if accumulator == "f32" else "(u32)"
    outputs = ", ".join(f'"+{constraint}"(d[{i}])' for i in range(registers))
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k16.{accumulator}.{kind}.{kind}"
    source = (
        PRELUDE
        + f"""
extern "C" __global__ void __launch_bounds__(128) probe(const u32* in, const u32* start, u32* out) {{
    extern __shared__ char raw[];
    char* tile = (char*)(((u64)raw + 1023) & ~1023ull);
    const u32 t = threadIdx.x, smem = smem_address(tile);
    for (u32 i = t; i < {PAYLOAD // 4}; i += 128) ((u32*)tile)[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    {ctype} d[{registers}];
    for (int i = 0; i < {registers}; ++i) d[i] = {cast}(start[i * 128 + t]);
    u32 a[4];
    for (int i = 0; i < 4; ++i) a[i] = in[i * 128 + t];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{scale}, 0;\\n"
        "{opcode} {{{d_list}}}, {operands}; }}"
        : {outputs}
        : {arguments}, "r"({int(accumulate)}) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < {registers}; ++i) {{
        asm volatile("" : "+{constraint}"(d[i]) :: "memory");
        out[i * 128 + t] = {uncast}(d[i]);
    }}
}}
"""
    )
    rng = np.random.default_rng([n, swizzle, a_mn, b_mn, a_from == "smem"])
    dtype = DType.FP16 if kind == "f16" else DType.BF16
    payload = to_bits(small_integers_or_reals(rng, PAYLOAD // 2, exact), dtype).view(np.uint32)
    first = small_integers_or_reals(
        rng, registers * 128 * (1 if accumulator == "f32" else 2), exact
    )
    start = first.astype(np.float32 if accumulator == "f32" else np.float16).view(np.uint32)
    majors = f"A {'registers' if a_from != 'smem' else 'MN-major' if a_mn else 'K-major'}"
    words = [majors, "B MN-major" if b_mn else "B K-major", f"swizzle {swizzle}"]
    words += ["scale-d 0"] if not accumulate else []
    words += ["negated A"] if negate else []
    words += [] if exact else ["reals"]
    words += [f"{k_bytes} bytes into the row"] if k_bytes else []
    return Case(
        f"wgmma n{n} {kind} into {accumulator}, {', '.join(words)}", opcode, source,
        (payload, start), registers * 512, threads=128, smem_bytes=PAYLOAD + 1024,
        **({} if exact else reals(accumulator)),
    )  # fmt: skip


def cases() -> list[Case]:
    found = [_case(n) for n in (8, 24, 64, 80, 128, 176, 256)]
    found += [_case(64, swizzle=s, a_mn=a, b_mn=b)
              for s in (0, 32, 64, 128) for a in (False, True) for b in (False, True)]  # fmt: skip
    found += [_case(n, swizzle=s, a_from="registers", b_mn=True)
              for n in (64, 128, 256) for s in (0, 32, 64, 128)]  # fmt: skip
    found += [
        *(_case(n, kind=kind, exact=False) for n in (64, 256) for kind in ("f16", "bf16")),
        _case(128, a_from="registers", b_mn=True, exact=False),
        _case(64, accumulator="f16", exact=False),
        _case(128, kind="bf16"),
        _case(128, kind="bf16", a_from="registers", b_mn=True),
        _case(64, accumulator="f16"),
        _case(96, accumulate=False),
        _case(96, negate=True),
        _case(96, a_from="registers", accumulate=False),
        *(_case(64, k_bytes=k) for k in (32, 64, 96)),
        _case(64, swizzle=64, k_bytes=32),
    ]
    unique = {case.name: case for case in found}
    return list(unique.values())
