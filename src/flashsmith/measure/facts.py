"""Why a configuration is fast or slow: resources, and events that the emulator counts."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.arch import get as get_arch
from flashsmith.arch.occupancy import occupancy
from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.compiler import compile_kernel
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import needs_of
from flashsmith.measure.timed_configs import random_inputs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import run_arrays

_BLOCKS = 4  # of keys that the counted kernel walks
_WARP_MMA, _GROUP_MMA = "mma", "matrix"  # classes of instructions: mma.sync, wgmma


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a kernel wherever it runs; counts are of a small problem, per score block."""

    registers: int
    spill_bytes: int  # stored and loaded, added
    smem_bytes: int
    blocks_per_sm: int
    limit: str  # what bounds blocks_per_sm
    instructions: float | None  # of all warps of a block, for one block of scores
    tensor_share: float | None  # of the instructions
    conflicts_a_phase: float | None  # extra shared-memory cycles for each that is needed
    sectors_a_request: float | None
    shared_cycles: float | None  # a block of scores, with conflicts
    group_share: float | None  # of tensor instructions: issued by four warps at once


def facts_of(config: KernelConfig, arch: str, *, causal: bool = False) -> Facts:
    """Compiles, and runs a small problem in the emulator with its counters on."""
    problem = small_problem(config, causal=causal)
    device = EmulatedDevice(arch, options=EmulatorOptions(checks=False, counters=True))
    used = compile_kernel(config, needs_of(config, problem), arch).resources
    room = occupancy(
        get_arch(arch),
        threads=config.threads,
        registers=used.registers,
        smem_bytes=config.smem_bytes() + used.static_smem_bytes,
    )
    return Facts(
        used.registers,
        used.spill_bytes,
        config.smem_bytes(),
        room.blocks,
        room.limit,
        *_events(device, config, problem),
    )


def small_problem(config: KernelConfig, *, causal: bool = False) -> AttentionProblem:
    """Even lengths, so that boundary code does not count; one tile of queries, four of keys."""
    return AttentionProblem(
        batch=1,
        heads=1,
        kv_heads=1,
        q_len=config.tile_q,
        k_len=_BLOCKS * config.tile_k,
        d_head=config.d_head,
        dtype=config.dtype,
        causal=causal,
        operation=config.OPERATION,
    )


_Events = tuple[float | None, ...]


def _events(device: EmulatedDevice, config: KernelConfig, problem: AttentionProblem) -> _Events:
    inputs = random_inputs(problem)
    try:
        run_arrays(device, config, problem, inputs)
    except FlashsmithError:
        # A kernel the emulator cannot run still has resources; what was not counted is left out.
        return (None,) * 6
    report = device.report()
    assert report is not None
    assert report.counters is not None
    counts = report.counters
    total = sum(counts.instructions.values())
    by_group = counts.instructions[_GROUP_MMA]
    tensor = counts.instructions[_WARP_MMA] + by_group
    return (
        round(total / _BLOCKS, 1),
        round(tensor / max(total, 1), 4),
        round(counts.bank_conflicts / max(counts.shared_phases, 1), 3),
        round(counts.sectors_a_request, 2),
        round((counts.shared_phases + counts.bank_conflicts) / _BLOCKS, 1),
        round(by_group / max(tensor, 1), 2),
    )
