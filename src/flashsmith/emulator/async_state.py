"""What the asynchronous instructions of a chunk share: mbarriers, clocks, remote addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.mbarrier import Ints, MbarrierTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashsmith.emulator.chunk import Chunk
    from flashsmith.emulator.unit import Unit

RANK_SHIFT = 24  # shared::cluster addresses: (rank + 1) << 24 | address; 0 means the own block
ADDRESS_MASK = (1 << RANK_SHIFT) - 1
Mask = NDArray[np.bool_] | None


class AsyncState:
    """Kept in `chunk.state["async"]`; made when the first asynchronous instruction runs."""

    def __init__(self, chunk: Chunk) -> None:
        blocks = len(chunk.blocks)
        self.chunk = chunk
        self.barriers = MbarrierTable(blocks, chunk.limit)
        self.barriers.on_complete = self._snapshot
        # What has happened before the arrivals so far, and before the last phase that ended.
        self.arrived = np.zeros((blocks, 0, chunk.known.shape[2]), np.int64)
        self.ended = np.zeros((blocks, 0, chunk.known.shape[2]), np.int64)
        # Who initialised a barrier and when, and when that warp fenced it (0: not yet).
        self.init_warp = np.zeros((blocks, 0), np.int64)
        self.init_time = np.zeros((blocks, 0), np.int64)
        self.init_fence = np.zeros((blocks, 0), np.int64)

    @staticmethod
    def of(chunk: Chunk) -> AsyncState:
        """The state of a chunk."""
        found = chunk.state.get("async")
        if found is None:
            found = chunk.state["async"] = AsyncState(chunk)
        assert isinstance(found, AsyncState)
        return found

    def grow(self) -> None:
        """Makes room for the clocks of barriers that have just been initialised."""
        missing = len(self.barriers.addresses) - self.arrived.shape[1]
        if missing > 0:
            blank = np.zeros((self.arrived.shape[0], missing, self.arrived.shape[2]), np.int64)
            self.arrived = np.concatenate([self.arrived, blank], axis=1)
            self.ended = np.concatenate([self.ended, blank], axis=1)
            for name in ("init_warp", "init_time", "init_fence"):
                setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, missing))))

    def initialised(self, block: Ints, column: Ints, warp: Ints, index: int) -> None:
        """Begins the clocks of barriers that a warp has just initialised."""
        self.grow()
        self.arrived[block, column] = 0
        self.ended[block, column] = 0
        self.init_warp[block, column] = warp
        self.init_time[block, column] = self.chunk.tick(index)
        self.init_fence[block, column] = 0
        used = len(self.barriers.addresses)
        self.chunk.async_used = min(used, self.chunk.async_agents)
        self.chunk.known_version += 1

    def fence_inits(self, block: Ints, warp: Ints) -> None:
        """The warp's initialisations so far are visible to copies and to the cluster."""
        mine = (self.init_warp[block] == warp[:, None]) & (self.init_time[block] > 0)
        late = mine & (self.init_fence[block] == 0)
        rows, columns = np.nonzero(late)
        self.init_fence[block[rows], columns] = self.chunk.time

    def unseen(self, block: Ints, column: Ints, source: Ints, warp: Ints, fenced: bool) -> Ints:
        """Entries whose warp cannot know that the barrier is initialised (for copies: fenced)."""
        by = self.init_warp[block, column]
        since = (self.init_fence if fenced else self.init_time)[block, column]
        known = self.chunk.known[source, warp, by]
        own = (by == warp) & (source == block)
        late = np.where(
            source == block, ~own & (known < since), self.init_fence[block, column] == 0
        )
        return np.flatnonzero(late | (fenced & (since == 0)))

    def agent(self, column: int) -> int:
        """The agent that stands for copies which a barrier counts."""
        first = self.chunk.warps
        return min(first + column, first + self.chunk.async_agents - 1)

    def release(self, block: Ints, column: Ints, source: Ints, warp: Ints) -> None:
        """An arrival of `warp` of block `source` carries all that this warp knows."""
        row = self.chunk.known[source, warp].copy()
        row[np.arange(len(warp)), warp] = self.chunk.time
        row[source != block] = 0  # clocks are a block's own
        np.maximum.at(self.arrived, (block, column), row)

    def acquire(self, block: Ints, column: Ints, warp: Ints) -> None:
        """A wait that has ended: the warp knows what the barrier's arrivals knew."""
        known = self.chunk.known
        np.maximum.at(known, (block, warp), self.ended[block, column])
        self.chunk.known_version += 1

    def _snapshot(self, block: Ints, column: Ints) -> None:
        self.ended[block, column] = self.arrived[block, column]


def active_lanes(unit: Unit, mask: Mask) -> NDArray[np.intp]:
    """Positions of the lanes an instruction runs in."""
    return np.arange(32 * unit.pairs) if mask is None else np.flatnonzero(mask)


def at_lanes(value: Any, lanes: NDArray[np.intp]) -> Ints:  # Any: array or scalar register
    """A register's values in some lanes, as signed numbers."""
    value = np.asarray(value)
    picked = np.full(len(lanes), value) if value.ndim == 0 else value[lanes]
    return picked.astype(np.int64)


def cluster_target(chunk: Chunk, block: Ints, address: Ints) -> tuple[Ints, Ints]:
    """The block and the address inside it that a shared::cluster address means."""
    rank = address >> RANK_SHIFT
    if not rank.any():
        return block, address
    own = block // chunk.cluster * chunk.cluster
    return np.where(rank > 0, own + rank - 1, block), address & ADDRESS_MASK


def told(
    chunk: Chunk,
    unit: Unit,
    index: int,
    lanes: NDArray[np.intp],
    action: Callable[..., Any],  # Any: arrays of the table
    *arguments: Any,
) -> Any:
    """Runs an action of the barrier table; its faults get kernel, line, block, warp and lane."""
    try:
        return action(*arguments)
    except EmulationError as fault:
        lane = int(lanes[fault.lane or 0])
        chunk.fault(fault.kind, fault.message, index, unit, lane=lane, address=fault.address)
