"""Writes cuda/include/flashsmith/ptx/wgmma/m64nN.cuh: one asm operand for every accumulator.

Inline asm takes every accumulator as an operand of its own, N / 2 of them, so each width needs its
own text. Run this after a change and then clang-format; a test compares the files with its output.
"""

from __future__ import annotations

from pathlib import Path

# Widths of S = Q Kᵀ (B_c) and of O (d_head, and 8 more where a column of it is the row sums).
WIDTHS = (64, 72, 80, 96, 112, 128, 144, 160, 176, 192, 256)
FOLDER = Path(__file__).parents[1] / "src/flashsmith/cuda/include/flashsmith/ptx/wgmma"


def instruction(n: int, element: str, a_in_registers: bool) -> str:
    """The asm statement of one product."""
    count = n // 2
    accumulators = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    if a_in_registers:
        a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        inputs = ", ".join(f'"r"(a[{i}])' for i in range(4))
        b, modes = count + 4, "1, 1, "
    else:
        a, inputs, b, modes = f"%{count}", '"l"(a)', count + 1, f"1, 1, %{count + 4}, "
    transposed = '"n"(kTransB)' if a_in_registers else '"n"(kTransB), "n"(kTransA)'
    mnemonic = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{element}.{element}"
    return (
        f'asm volatile("{{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, %{b + 1}, 0;\\n\\t{mnemonic} "\n'
        f'"{{{accumulators}}}, "\n'
        f'"{a}, %{b}, p, {modes}%{b + 2};\\n\\t}}"\n'
        f': {outputs}\n: {inputs}, "l"(b), "r"(keep), {transposed});'
    )


def header(n: int) -> str:
    """One header: both element types, A from shared memory or registers."""
    methods = []
    for name, a in (("ss", "u64 a"), ("rs", "const u32* a")):
        bf16, f16 = (instruction(n, element, name == "rs") for element in ("bf16", "f16"))
        modes = "int kTransB, int kTransA = 0" if name == "ss" else "int kTransB"
        methods.append(
            f"template <{modes}>\n"
            f"static FS_DEVICE void {name}(float (&d)[{n // 2}], {a}, u64 b, u32 keep) {{\n"
            f"if constexpr (kDType == DType::kBF16) {{\n{bf16}\n}} else {{\n{f16}\n}}\n}}\n"
        )
    return (
        f"// wgmma m64n{n}k16: d = a b, plus d where `keep`; by tools/write_wgmma_headers.py.\n"
        f'#pragma once\n\n#include "flashsmith/ptx/wgmma.cuh"\n\nnamespace flashsmith::ptx {{\n\n'
        f"template <DType kDType>\nstruct Wgmma<kDType, {n}> {{\n{methods[0]}\n{methods[1]}}};\n\n"
        f"}}  // namespace flashsmith::ptx\n"
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for width in WIDTHS:
        (FOLDER / f"m64n{width}.cuh").write_text(header(width), encoding="utf-8")
