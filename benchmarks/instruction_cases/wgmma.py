"""wgmma: operands from shared memory and registers, both majors, every swizzle, several N."""
# ruff: noqa: E501 - a line of assembly stays one line

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashsmith.base.dtypes import DType, to_bits
from instruction_cases.case import PRELUDE, Case, reals, small_integers_or_reals

MODE = {0: 0, 128: 1, 64: 2, 32: 3}
A_BYTES = 16384  # room for 64 x 64 of A, at the head of the shared tile
PAYLOAD = 65536


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


@dataclass(frozen=True)
class Form:
    """One m64nNk16 step; `exact` takes small integers as operands, else reals."""

    n: int
    kind: str = "f16"
    accumulator: str = "f32"
    a_from: str = "smem"
    swizzle: int = 128
    a_mn: bool = False
    b_mn: bool = False
    accumulate: bool = True
    negate: bool = False
    k_bytes: int = 0  # bytes of the row before the step
    exact: bool = True
    one_core: bool = False  # of A: both strides are 0, one core matrix serves all rows and k's

    @property
    def registers(self) -> int:
        return self.n // 2 if self.accumulator == "f32" else self.n // 4

    @property
    def opcode(self) -> str:
        types = f"{self.accumulator}.{self.kind}.{self.kind}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k16.{types}"

    @property
    def name(self) -> str:
        a = "registers" if self.a_from != "smem" else "MN-major" if self.a_mn else "K-major"
        words = [f"A {a}", f"B {'MN' if self.b_mn else 'K'}-major", f"swizzle {self.swizzle}"]
        words += ["scale-d 0"] if not self.accumulate else []
        words += ["negated A"] if self.negate else []
        words += [f"{self.k_bytes} bytes into the row"] if self.k_bytes else []
        words += [] if self.exact else ["reals"]
        words += ["strides of 0"] if self.one_core else []
        return f"wgmma n{self.n} {self.kind} into {self.accumulator}, {', '.join(words)}"

    def descriptor(self, offset: int, extent: int, mn_major: bool) -> str:
        leading, stride = _layout(extent, self.swizzle, mn_major)
        if self.one_core:
            leading, stride = 0, stride if offset >= A_BYTES else 0
        high = leading >> 4 << 16 | stride >> 4 << 32 | MODE[self.swizzle] << 62
        return f"((u64)((smem + {offset}) >> 4 & 0x3FFF) | {high}ull)"

    def operands(self) -> tuple[str, str, int]:
        """Operands after the accumulators, their asm arguments, and the number of scale-d."""
        at, sign = self.registers, -1 if self.negate else 1
        b = self.descriptor(A_BYTES + self.k_bytes, self.n, self.b_mn)
        if self.a_from == "smem":
            a = self.descriptor(self.k_bytes, 64, self.a_mn)
            text = f"%{at}, %{at + 1}, p, {sign}, 1, {int(self.a_mn)}, {int(self.b_mn)}"
            return text, f'"l"({a}), "l"({b})', at + 2
        words = ", ".join(f"%{at + i}" for i in range(4))
        text = f"{{{words}}}, %{at + 4}, p, {sign}, 1, {int(self.b_mn)}"
        arguments = ", ".join(f'"r"(a[{i}])' for i in range(4))
        return text, f'{arguments}, "l"({b})', at + 5

    def source(self) -> str:
        wide = self.accumulator == "f32"
        constraint, ctype = ("f", "float") if wide else ("r", "u32")
        cast, uncast = ("__uint_as_float", "__float_as_uint") if wide else ("(u32)", "(u32)")
        d_list = ", ".join(f"%{i}" for i in range(self.registers))
        outputs = ", ".join(f'"+{constraint}"(d[{i}])' for i in range(self.registers))
        operands, arguments, scale = self.operands()
        return PRELUDE + f"""
extern "C" __global__ void __launch_bounds__(128) probe(const u32* in, const u32* start, u32* out) {{
    extern __shared__ char raw[];
    char* tile = (char*)(((u64)raw + 1023) & ~1023ull);
    const u32 t = threadIdx.x, smem = smem_address(tile);
    for (u32 i = t; i < {PAYLOAD // 4}; i += 128) ((u32*)tile)[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    {ctype} d[{self.registers}];
    for (int i = 0; i < {self.registers}; ++i) d[i] = {cast}(start[i * 128 + t]);
    u32 a[4];
    for (int i = 0; i < 4; ++i) a[i] = in[i * 128 + t];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{scale}, 0;\\n"
        "{self.opcode} {{{d_list}}}, {operands}; }}"
        : {outputs}
        : {arguments}, "r"({int(self.accumulate)}) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < {self.registers}; ++i) {{
        asm volatile("" : "+{constraint}"(d[i]) :: "memory");
        out[i * 128 + t] = {uncast}(d[i]);
    }}
}}
"""  # fmt: skip


def _case(n: int, **changes: Any) -> Case:
    """The case of one form, on random shared memory."""
    form = Form(n, **changes)
    wide = form.accumulator == "f32"
    rng = np.random.default_rng([n, form.swizzle, form.a_mn, form.b_mn, form.a_from == "smem"])
    dtype = DType.FP16 if form.kind == "f16" else DType.BF16
    payload = to_bits(small_integers_or_reals(rng, PAYLOAD // 2, form.exact), dtype)
    first = small_integers_or_reals(rng, form.registers * 128 * (1 if wide else 2), form.exact)
    start = first.astype(np.float32 if wide else np.float16).view(np.uint32)
    return Case(
        form.name, form.opcode, form.source(), (payload.view(np.uint32), start),
        form.registers * 512, threads=128, smem_bytes=PAYLOAD + 1024,
        **({} if form.exact else reals(form.accumulator)),
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
        _case(64, swizzle=0, one_core=True),
    ]
    unique = {case.name: case for case in found}
    return list(unique.values())
