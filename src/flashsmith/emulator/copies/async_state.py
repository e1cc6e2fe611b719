"""What the asynchronous instructions of a chunk share: mbarriers, clocks, remote addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.copies.mbarrier import Ints, MbarrierTable
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.unit import Unit

RANK_SHIFT = 24  # shared::cluster addresses: (rank + 1) << 24 | address; 0 means the own cta
ADDRESS_MASK = (1 << RANK_SHIFT) - 1
Mask = NDArray[np.bool_] | None


class AsyncState:
    """Kept in `chunk.state["async"]`; made when the first asynchronous instruction runs."""

    def __init__(self, chunk: Chunk) -> None:
        ctas = len(chunk.ctas)
        self.chunk = chunk
        self.barriers = MbarrierTable(ctas, chunk.limit)
        self.barriers.on_complete = self._snapshot
        # What has happened before the arrivals so far, and before the last phase that ended.
        self.arrived = np.zeros((ctas, 0, chunk.known.shape[2]), np.int64)
        self.ended = np.zeros((ctas, 0, chunk.known.shape[2]), np.int64)
        # Who initialised a barrier and when, and when that warp fenced it (0: not yet).
        self.init_warp = np.zeros((ctas, 0), np.int64)
        self.init_time = np.zeros((ctas, 0), np.int64)
        self.init_fence = np.zeros((ctas, 0), np.int64)
        self.lifetimes = Lifetimes(chunk)
        chunk.on_start.append(self._started)

    def _started(self, slots: Ints) -> None:
        """Ctas begin in these slots, without a barrier."""
        for state in (self.arrived, self.ended, self.init_warp, self.init_time, self.init_fence):
            state[slots] = 0
        self.barriers.clear(slots)
        self.lifetimes.clear(slots)

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

    def initialised(self, cta: Ints, column: Ints, warp: Ints, index: int) -> None:
        """Begins the clocks of barriers that a warp has just initialised."""
        self.grow()
        self.arrived[cta, column] = 0
        self.ended[cta, column] = 0
        self.init_warp[cta, column] = warp
        self.init_time[cta, column] = self.chunk.tick(index)
        self.init_fence[cta, column] = 0
        used = len(self.barriers.addresses)
        self.chunk.async_used = min(used, self.chunk.async_agents)
        self.chunk.known_version += 1

    def fence_inits(self, cta: Ints, warp: Ints) -> None:
        """The warp's initialisations so far are visible to copies and to the cluster."""
        mine = (self.init_warp[cta] == warp[:, None]) & (self.init_time[cta] > 0)
        late = mine & (self.init_fence[cta] == 0)
        rows, columns = np.nonzero(late)
        self.init_fence[cta[rows], columns] = self.chunk.time

    def unseen(self, cta: Ints, column: Ints, source: Ints, warp: Ints, fenced: bool) -> Ints:
        """Entries whose warp cannot know that the barrier is initialised (for copies: fenced)."""
        by = self.init_warp[cta, column]
        since = (self.init_fence if fenced else self.init_time)[cta, column]
        known = self.chunk.known[source, warp, by]
        own = (by == warp) & (source == cta)
        late = np.where(source == cta, ~own & (known < since), self.init_fence[cta, column] == 0)
        return np.flatnonzero(late | (fenced & (since == 0)))

    def agent(self, column: int) -> int:
        """The agent that stands for copies which a barrier counts."""
        first = self.chunk.warps
        return min(first + column, first + self.chunk.async_agents - 1)

    def release(self, cta: Ints, column: Ints, source: Ints, warp: Ints) -> None:
        """An arrival of `warp` of cta `source` carries all that this warp knows."""
        if self.chunk.shadow is None:
            return
        row = self.chunk.known[source, warp].copy()
        row[np.arange(len(warp)), warp] = self.chunk.time
        away = source != cta
        if away.any():
            row[away] = seen_from(self.chunk, row[away], source[away], cta[away])
            self.lifetimes.touch(cta[away], source[away], warp[away])
        np.maximum.at(self.arrived, (cta, column), row)

    def acquire(self, cta: Ints, column: Ints, warp: Ints) -> None:
        """A wait that has ended: the warp knows what the barrier's arrivals knew."""
        if self.chunk.shadow is None:
            return
        known = self.chunk.known
        np.maximum.at(known, (cta, warp), self.ended[cta, column])
        self.chunk.known_version += 1

    def _snapshot(self, cta: Ints, column: Ints) -> None:
        self.ended[cta, column] = self.arrived[cta, column]


def seen_from(chunk: Chunk, rows: Ints, source: Ints, target: Ints) -> Ints:
    """Clocks of warps of `source` ctas in the columns of `target` ctas of the same cluster.

    Columns are a cta's own: its warps first, then those of the next ranks. What copies and
    fences of the source cta did means nothing in the target cta.
    """
    warps, size = chunk.warps, chunk.cluster
    own = rows[:, :warps, None].swapaxes(1, 2)
    peers = rows[:, chunk.peer_column : chunk.flag_column].reshape(len(rows), size - 1, warps)
    ring = np.concatenate([own, peers], axis=1)  # by rank, counted from the source's
    shift = (target - source) % size
    order = (np.arange(size) + shift[:, None]) % size
    turned = np.take_along_axis(ring, order[:, :, None], axis=1)
    out = np.zeros_like(rows)
    out[:, :warps] = turned[:, 0]
    out[:, chunk.peer_column : chunk.flag_column] = turned[:, 1:].reshape(len(rows), -1)
    out[:, chunk.flag_column :] = rows[:, chunk.flag_column :]
    return out


class Lifetimes:
    """Ctas that end, and accesses of their neighbours that must come before."""

    def __init__(self, chunk: Chunk) -> None:
        ctas = len(chunk.ctas)
        self.chunk = chunk
        self.alive = np.full(ctas, chunk.threads, np.int64)
        self.known = np.zeros((ctas, chunk.agents), np.int64)  # by the warps that have ended
        self.touched = np.zeros((ctas, chunk.agents), np.int64)  # last access, by peer
        if chunk.cluster > 1:
            chunk.on_exit.append(self._exited)

    def clear(self, slots: Ints) -> None:
        """Ctas begin in these slots."""
        self.alive[slots] = self.chunk.threads
        self.known[slots] = 0
        self.touched[slots] = 0

    def touch(self, cta: Ints, source: Ints, warp: Ints) -> None:
        """Warps of `source` ctas reach into other ctas."""
        gone = self.alive[cta] == 0
        if gone.any():
            self._fault(int(cta[gone.argmax()]), "an access of its neighbour comes later")
        distance = (source - cta) % self.chunk.cluster
        column = self.chunk.peer_column + (distance - 1) * self.chunk.warps + warp
        np.maximum.at(self.touched, (cta, column), self.chunk.time)

    def _exited(self, unit: Unit) -> None:
        lanes = active_lanes(unit, unit.mask)
        np.subtract.at(self.alive, unit.lane_cta[lanes], 1)
        np.maximum.at(self.known, unit.cta, self.chunk.clock_rows(unit))
        for cta in np.unique(unit.cta[self.alive[unit.cta] == 0]).tolist():
            if (self.touched[cta] > self.known[cta]).any() and self.chunk.options.checks:
                self._fault(cta, "nothing orders an access of its neighbour before that")

    def _fault(self, cta: int, message: str) -> None:
        raise EmulationError(
            "block of a cluster ended too early",
            f"the block has ended, but {message}",
            kernel=self.chunk.kernel.name,
            line=self.chunk.kernel.instructions[-1].line,
            block=self.chunk.cta_index(cta),
        )


def active_lanes(unit: Unit, mask: Mask) -> NDArray[np.intp]:
    """Positions of the lanes an instruction runs in."""
    return np.arange(32 * unit.pairs) if mask is None else np.flatnonzero(mask)


def at_lanes(value: Value, lanes: NDArray[np.intp]) -> Ints:
    """A register's values in some lanes, as signed numbers."""
    value = np.asarray(value)
    picked = np.full(len(lanes), value) if value.ndim == 0 else value[lanes]
    return picked.astype(np.int64)


def cluster_target(chunk: Chunk, cta: Ints, address: Ints) -> tuple[Ints, Ints]:
    """The cta and the address inside it that a shared::cluster address means."""
    rank = address >> RANK_SHIFT
    if not rank.any():
        return cta, address
    own = cta // chunk.cluster * chunk.cluster
    return np.where(rank > 0, own + rank - 1, cta), address & ADDRESS_MASK


def told(
    chunk: Chunk,
    unit: Unit,
    index: int,
    lanes: NDArray[np.intp],
    action: Callable[..., Value],
    *arguments: Value,
) -> Value:
    """Runs an action of the barrier table; its faults get kernel, line, cta, warp and lane."""
    try:
        return action(*arguments)
    except EmulationError as fault:
        lane = int(lanes[fault.lane or 0])
        chunk.fault(fault.kind, fault.message, index, unit, lane=lane, address=fault.address)
