"""Whether a launch is possible at all: parameters, grid, threads, shared memory, registers."""

from __future__ import annotations

from flashsmith.arch import Arch
from flashsmith.arch import get as get_arch
from flashsmith.arch.occupancy import occupancy
from flashsmith.base.errors import EmulationError, Unsupported
from flashsmith.emulator.options import LaunchSetup
from flashsmith.emulator.ptx.instruction import Imm
from flashsmith.emulator.ptx.module import Kernel

REGISTER_FILE = 65536  # of an SM
MAX_REGISTERS = 255  # of a thread

MAX_GRID = (2**31 - 1, 65535, 65535)


def _arch(kernel: Kernel) -> Arch:
    """The limits of the kernel's target; text without a known target gets those of sm_90a."""
    try:
        return get_arch(kernel.target)
    except Unsupported:
        return get_arch("sm_90a")


def param_buffer(kernel: Kernel, params: tuple[bytes, ...]) -> bytes:
    """The parameters at their places; raises unless count and sizes are the kernel's."""
    if len(params) != len(kernel.params):
        raise EmulationError(
            "wrong parameters",
            f"{len(params)} parameters given, the kernel takes {len(kernel.params)}",
            kernel=kernel.name,
            line=kernel.line,
        )
    buffer = bytearray(kernel.param_bytes)
    for number, (given, param) in enumerate(zip(params, kernel.params, strict=True)):
        if len(given) != param.n_bytes:
            raise EmulationError(
                "wrong parameters",
                f"parameter {number} has {len(given)} bytes, the kernel takes {param.n_bytes}",
                kernel=kernel.name,
                line=kernel.line,
            )
        buffer[param.offset : param.offset + param.n_bytes] = given
    return bytes(buffer)


def check_geometry(
    kernel: Kernel,
    grid: tuple[int, int, int],
    threads: int,
    smem_bytes: int,
    *,
    static_bytes: int,
    cluster: int,
    registers: int | None,
    sm_count: int,
) -> None:
    """Raises when a GPU of the kernel's target would refuse the launch."""
    problem = (
        _grid_problem(grid, cluster)
        or _thread_problem(kernel, threads)
        or _smem_problem(kernel, smem_bytes, static_bytes)
        or _register_problem(kernel, threads, registers)
        or ("" if sm_count >= 1 else f"{sm_count} SMs; 1 or more are possible")
    )
    if problem:
        raise EmulationError("bad launch", problem, kernel=kernel.name, line=kernel.line)


def _grid_problem(grid: tuple[int, int, int], cluster: int) -> str:
    for size, limit, axis in zip(grid, MAX_GRID, "xyz", strict=True):
        if not 1 <= size <= limit:
            return f"a grid of {size:,} blocks along {axis}; 1 to {limit:,} are possible"
    if grid[0] % cluster:
        return f"a grid of {grid[0]} blocks along x; clusters of {cluster} need a multiple"
    return ""


def _thread_problem(kernel: Kernel, threads: int) -> str:
    limit = _arch(kernel).max_threads_per_block
    if not 1 <= threads <= limit:
        return f"{threads} threads a block; 1 to {limit} are possible"
    if kernel.max_threads and threads > kernel.max_threads:
        return f"{threads} threads a block; .maxntid of the kernel is {kernel.max_threads}"
    return ""


def _smem_problem(kernel: Kernel, dynamic_bytes: int, static_bytes: int) -> str:
    limit = _arch(kernel).max_smem_per_block
    if dynamic_bytes < 0:
        return f"{dynamic_bytes} bytes of dynamic shared memory; 0 or more are possible"
    if static_bytes + dynamic_bytes > limit:
        return (
            f"{static_bytes + dynamic_bytes:,} bytes of shared memory; "
            f"{kernel.target} gives a block {limit:,}"
        )
    return ""


def _register_problem(kernel: Kernel, threads: int, registers: int | None) -> str:
    """Registers are those of the compiled kernel, or else the bound that its PTX states."""
    arch = _arch(kernel)
    count = kernel.max_registers if registers is None else registers
    if kernel.max_registers and count > kernel.max_registers:
        return f"{count} registers a thread; .maxnreg of the kernel is {kernel.max_registers}"
    unit = arch.register_allocation_unit
    needed = -(-threads // 32) * (-(-count * 32 // unit) * unit)
    if needed > arch.registers_per_block:
        return (
            f"{count} registers a thread and {threads} threads; {kernel.target} gives a block "
            f"{arch.registers_per_block:,} registers"
        )
    return ""


def resident_ctas(setup: LaunchSetup, registers: int | None) -> int:
    """How many ctas of a launch its SMs hold at a time."""
    kernel = setup.kernel
    held = occupancy(
        _arch(kernel),
        threads=setup.threads,
        registers=registers or kernel.max_registers,
        smem_bytes=setup.smem_bytes,
        barriers=_named_barriers(kernel),
    )
    return setup.sm_count * max(held.blocks, 1)


def most_registers(kernel: Kernel, threads: int) -> int:
    """The most that ptxas can give a thread: all that fits, and no more than the kernel asks for.

    A kernel with setmaxnreg gets just that.
    """
    asked = [
        count.value if isinstance(count := i.operands[0], Imm) else 0
        for i in kernel.instructions
        if i.opcode == "setmaxnreg"
    ]
    most = max(asked, default=kernel.max_registers or MAX_REGISTERS)
    return min(REGISTER_FILE // threads // 8 * 8, most)


def _named_barriers(kernel: Kernel) -> int:
    """The named barriers a cta takes: up to the highest number, all if one is not a constant."""
    most = 0
    for i in kernel.instructions:
        if i.opcode not in ("bar", "barrier") or i.has("warp") or i.has("cluster"):
            continue
        ident = i.operands[1 if i.has("result") else 0]
        most = max(most, ident.value + 1 if isinstance(ident, Imm) else 16)
    return min(most, 16)
