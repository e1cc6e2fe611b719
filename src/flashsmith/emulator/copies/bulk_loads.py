"""Bulk copies from global into shared memory, counted by mbarriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.checks.async_shadow import Access, check_write, rows_of
from flashsmith.emulator.checks.shadow import IN_FLIGHT
from flashsmith.emulator.copies.async_state import (
    AsyncState,
    Mask,
    active_lanes,
    at_lanes,
    cluster_target,
)
from flashsmith.emulator.copies.bulk_places import check_smem, global_chunks, transfer_places
from flashsmith.emulator.copies.mbarrier import Ints
from flashsmith.emulator.copies.transfers import LoadFlight, smem_chunks
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ops.mbarrier import find_barrier

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit


def start_load(
    c: Chunk, u: Unit, m: Mask, index: int, destination: Value, source: Value, size: Value,
    barrier: Value, multicast: Value,
) -> None:  # fmt: skip
    """Starts copies into shared memory; multicast ones go to several ctas."""
    lanes = active_lanes(u, m)
    for entries, place in transfer_places(c, u, index, lanes, source, size, is_store=False):
        mine = lanes[entries]
        if c.writes is not None:
            for lane, cells in zip(mine, global_chunks(c, place), strict=True):
                c.writes.read(u, int(lane), cells, index)
        cta, address = cluster_target(c, u.lane_cta[mine], at_lanes(destination, mine))
        owner, at = cluster_target(c, u.lane_cta[mine], at_lanes(barrier, mine))
        if multicast is not None:
            copies, cta = _targets(c, u, mine, at_lanes(multicast, mine))
            mine, address, at, place = (
                mine[copies],
                address[copies],
                at[copies],
                place.select(copies),
            )
            owner = cta
        check_smem(c, u, index, mine, address, place)
        find_barrier(c, u, index, mine, owner, at, fenced=True)
        if (owner != cta).any():
            c.fault("cluster", "destination and barrier lie in different blocks", index, u)
        offsets = smem_chunks(c, cta, address, place)
        places = None
        if c.shadow is not None:
            access = Access(c, u, index, u.lane_cta[mine], u.lane_warp[mine], mine, offsets)
            places = check_write(access)
            away = cta != u.lane_cta[mine]
            if away.any():
                lifetimes = AsyncState.of(c).lifetimes
                lifetimes.touch(cta[away], u.lane_cta[mine][away], u.lane_warp[mine][away])
            agent = AsyncState.of(c).agent(0)
            c.tick(index)
            rows_of(c.shadow, c.shadow.tags)[places] = IN_FLIGHT | agent
        c.flights.append(LoadFlight(index, place, cta, offsets, at, places))


def _targets(
    c: Chunk, u: Unit, lanes: NDArray[np.intp], masks: Ints
) -> tuple[NDArray[np.intp], Ints]:
    """Multicast: which transfer each copy repeats, and the cta it goes to."""
    bits = masks[:, None] >> np.arange(16) & 1
    copies, rank = np.nonzero(bits)
    first = u.lane_cta[lanes] // c.cluster * c.cluster
    return copies, first[copies] + rank
