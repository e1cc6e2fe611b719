"""Small PTX kernels for tests: one thread an element, inputs in %a0, %a1, …, the result in %d."""

from __future__ import annotations

import struct

import numpy as np

from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions, LaunchReport
from flashsmith.emulator.program import load

_KIND = {
    "uint8": "u8", "uint16": "b16", "int16": "b16", "float16": "b16", "uint32": "b32",
    "int32": "b32", "float32": "b32", "uint64": "b64", "int64": "b64", "float64": "b64",
}  # fmt: skip
_REGISTER = {"u8": "b16"}


def text(body: str, params: int, *, registers: str = "", shared: str = "", target: str = "sm_90a"):
    """A kernel `probe` with pointer parameters p0, p1, … and registers of every kind."""
    listed = ",\n".join(f"\t.param .u64 p{number}" for number in range(params))
    return f"""
.version 8.3
.target {target}
.address_size 64
.visible .entry probe(
{listed}
)
{{
\t.reg .pred %p<20>;
\t.reg .b16 %h<20>;
\t.reg .b32 %r<60>;
\t.reg .f32 %f<40>;
\t.reg .b64 %rd<40>;
\t.reg .f64 %fd<20>;
{registers}
{shared}
{body}
\tret;
}}
"""


def lane_kernel(body: str, inputs: list[np.ndarray], out: np.dtype, **options: str) -> str:
    """Loads each thread's elements, runs `body`, stores %d."""
    lines = ["mov.u32 %r50, %tid.x;", "mov.u32 %r51, %ctaid.x;", "mov.u32 %r52, %ntid.x;",
             "mad.lo.s32 %r53, %r51, %r52, %r50;"]  # fmt: skip
    registers = []
    for number, array in enumerate(inputs):
        kind = _KIND[array.dtype.name]
        registers.append(f"\t.reg .{_REGISTER.get(kind, kind)} %a{number};")
        lines += [f"ld.param.u64 %rd30, [p{number}];",
                  f"mul.wide.u32 %rd31, %r53, {array.dtype.itemsize};",
                  "add.s64 %rd30, %rd30, %rd31;",
                  f"ld.global.{kind} %a{number}, [%rd30];"]  # fmt: skip
    kind = _KIND[out.name]
    registers.append(f"\t.reg .{_REGISTER.get(kind, kind)} %d;")
    lines += [body, f"ld.param.u64 %rd30, [p{len(inputs)}];",
              f"mul.wide.u32 %rd31, %r53, {out.itemsize};", "add.s64 %rd30, %rd30, %rd31;",
              f"st.global.{kind} [%rd30], %d;"]  # fmt: skip
    given = options.pop("registers", "")
    return text(
        "\t" + "\n\t".join(lines), len(inputs) + 1,
        registers="\n".join(registers) + given, **options,
    )  # fmt: skip


def run_lanes(
    body: str,
    *inputs: np.ndarray,
    out: type | np.dtype = np.uint32,
    threads: int | None = None,
    options: EmulatorOptions | None = None,
    **more: str,
) -> np.ndarray:
    """What `body` makes of the inputs, an element a thread."""
    arrays = [np.ascontiguousarray(array) for array in inputs]
    count = len(arrays[0]) if arrays else 32
    threads = threads or min(count, 64)
    assert count % threads == 0
    dtype = np.dtype(out)
    ptx = lane_kernel(body, arrays, dtype, **more)
    found, _ = launch(ptx, arrays, count * dtype.itemsize, count // threads, threads, options)
    return found.view(dtype)


def launch(
    ptx: str,
    inputs: list[np.ndarray],
    out_bytes: int,
    blocks: int,
    threads: int,
    options: EmulatorOptions | None = None,
    smem_bytes: int = 0,
) -> tuple[np.ndarray, LaunchReport]:
    """Output bytes (the last pointer parameter) and the report of a launch."""
    memory = GlobalMemory()
    pointers = []
    for array in inputs:
        pointers.append(memory.allocate(array.nbytes))
        memory.write(pointers[-1], array)
    out = memory.allocate(out_bytes)
    params = tuple(struct.pack("<Q", address) for address in (*pointers, out))
    report = load(ptx).launch((blocks, 1, 1), threads, smem_bytes, params, memory, options=options)
    return memory.read(out, out_bytes), report
