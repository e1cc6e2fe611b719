"""A kernel's instructions → one compiled Python function a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashsmith.base.errors import EmulationError
from flashsmith.emulator import ops
from flashsmith.emulator.checks.definedness import add_companions
from flashsmith.emulator.machine.address_space import PARAM_WINDOW, SHARED_BASE
from flashsmith.emulator.machine.emit import Emitter
from flashsmith.emulator.machine.segments import BadBranch, Segment, cut, numbers
from flashsmith.emulator.machine.storage import storage_types
from flashsmith.emulator.ptx.module import Kernel

assert ops.LOADED  # every family has registered its opcodes

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
MOST_LOCAL_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class Translation:
    """The compiled segments of a kernel."""

    functions: list[Callable[..., int]]
    segments: list[Segment]
    live: list[tuple[int, ...]]  # registers that live at the start of each
    registers: int  # with companions
    source: str
    static_smem_bytes: int
    local_bytes: int
    line_of: list[int]  # line of PTX that each line of the source comes from


def translate(kernel: Kernel, *, fine: bool = False) -> Translation:
    """Compiles a kernel; raises one EmulationError that lists all that is not emulated."""
    symbols, static, local = _layout(kernel)
    segments = _segments(kernel, fine)
    emitter = Emitter(kernel, storage_types(kernel), symbols)
    emitter.companions = add_companions(segments, len(kernel.registers))
    emitter.doubtful = sum(1 << number for number in emitter.companions)
    for segment in segments:
        emitter.emit(segment)
    _refuse_unknown(kernel, emitter.unknown)
    source = "\n".join(emitter.lines)
    namespace = emitter.namespace
    exec(compile(source, f"<{kernel.name}>", "exec"), namespace)  # noqa: S102 - our own text
    return Translation(
        [namespace[f"s{segment.number}"] for segment in segments],
        segments,
        [tuple(numbers(segment.live_in)) for segment in segments],
        len(kernel.registers) + len(emitter.companions),
        source,
        static,
        local,
        emitter.line_of,
    )


def _segments(kernel: Kernel, fine: bool) -> list[Segment]:
    if not kernel.instructions:
        raise EmulationError(
            "bad PTX", "the kernel has no instruction", kernel=kernel.name, line=kernel.line
        )
    try:
        return cut(kernel, fine=fine)
    except BadBranch as problem:
        raise EmulationError(
            "bad PTX", str(problem), kernel=kernel.name, line=problem.line
        ) from None


def _refuse_unknown(kernel: Kernel, found: list[tuple[int, str]]) -> None:
    if found:
        listed = "; ".join(f"line {line}: {what}" for line, what in sorted(set(found)))
        raise EmulationError(
            "not emulated", listed, kernel=kernel.name, line=min(line for line, _ in found)
        )


def _layout(kernel: Kernel) -> tuple[dict[str, tuple[str, int]], int, int]:
    """Addresses of names in their spaces; bytes of static shared and of local memory."""
    symbols = {p.name: ("param", PARAM_WINDOW + p.offset) for p in kernel.params}
    shared, local = SHARED_BASE, 0
    variables = kernel.variables.values()
    for variable in (v for v in variables if v.space == "shared" and not v.is_extern):
        shared = -(-shared // variable.align) * variable.align
        symbols[variable.name] = ("shared", shared)
        shared += variable.n_bytes
    for variable in (v for v in variables if v.space == "shared" and v.is_extern):
        # Dynamic shared memory begins after the static part, all its names at one place.
        shared = -(-shared // max(variable.align, 16)) * max(variable.align, 16)
        symbols[variable.name] = ("shared", shared)
    for variable in (v for v in variables if v.space == "local"):
        local = -(-local // variable.align) * variable.align
        symbols[variable.name] = ("local", local)
        local += variable.n_bytes
    if local > MOST_LOCAL_BYTES:
        message = f"{local:,} bytes of local memory a thread; {MOST_LOCAL_BYTES:,} are possible"
        raise EmulationError("bad PTX", message, kernel=kernel.name, line=kernel.line)
    for variable in (v for v in variables if v.space in ("global", "const")):
        symbols[variable.name] = (variable.space, 0)
    return symbols, shared - SHARED_BASE, -(-local // 16) * 16
