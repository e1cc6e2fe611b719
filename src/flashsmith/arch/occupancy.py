"""How many blocks of a kernel one streaming multiprocessor holds, and which limit binds.

The arithmetic of `cuda_occupancy.h`; tests/data holds points computed by that header.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.arch.architecture import Arch


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks of one SM; `limit` names what keeps it from holding one more."""

    blocks: int
    limit: str  # "warps", "blocks", "registers", "shared memory" or "barriers"


def occupancy(
    arch: Arch, *, threads: int, registers: int, smem_bytes: int, barriers: int = 1
) -> Occupancy:
    """Blocks of `threads` threads with `registers` each on one SM.

    `smem_bytes` is static and dynamic shared memory of a block, `barriers` its named barriers.
    """
    warps = _ceil_div(threads, arch.warp_size)
    room = {
        "warps": arch.max_warps_per_sm // warps if threads <= arch.max_threads_per_block else 0,
        "blocks": arch.max_blocks_per_sm,
        "registers": _blocks_by_registers(arch, warps, registers),
        "shared memory": _blocks_by_smem(arch, smem_bytes),
        "barriers": arch.max_barriers_per_sm // max(barriers, 1),
    }
    limit = min(room, key=lambda name: room[name])
    return Occupancy(room[limit], limit)


def _blocks_by_registers(arch: Arch, warps: int, registers: int) -> int:
    if registers > arch.max_registers_per_thread:
        return 0
    if registers == 0:
        return arch.max_blocks_per_sm
    per_warp = _round_up(registers * arch.warp_size, arch.register_allocation_unit)
    # A block's registers are counted as if its warps filled whole rows of sub-partitions.
    if per_warp * _round_up(warps, arch.sub_partitions) > arch.registers_per_block:
        return 0
    warps_per_sub_partition = arch.registers_per_sm // arch.sub_partitions // per_warp
    return warps_per_sub_partition * arch.sub_partitions // warps


def _blocks_by_smem(arch: Arch, smem_bytes: int) -> int:
    if smem_bytes > arch.max_smem_per_block:
        return 0
    taken = _round_up(smem_bytes + arch.reserved_smem_per_block, arch.smem_allocation_unit)
    return arch.smem_per_sm // taken


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(value: int, unit: int) -> int:
    return _ceil_div(value, unit) * unit
