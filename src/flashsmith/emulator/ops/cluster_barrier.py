"""barrier.cluster: arrive and wait of all warps of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.copies.async_state import AsyncState, seen_from
from flashsmith.emulator.machine.opcode import Unknown, opcode
from flashsmith.emulator.machine.unit import Wait
from flashsmith.emulator.ops.barrier import emit_barrier
from flashsmith.emulator.ptx.instruction import Instruction

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk
    from flashsmith.emulator.machine.emit import Emitter
    from flashsmith.emulator.machine.unit import Unit


class ClusterBarrier:
    """One barrier a cluster; `round` counts how often all its warps have arrived."""

    def __init__(self, c: Chunk) -> None:
        clusters = len(c.ctas) // c.cluster
        self.chunk = c
        self.round = np.zeros(clusters, np.int64)
        self.rounds_ended = 0  # of all clusters
        self.missing = np.full(clusters, c.cluster * c.warps, np.int64)
        self.alive = np.full(clusters, c.cluster * c.warps, np.int64)
        self.arrived_in = np.full((len(c.ctas), c.warps), -1, np.int64)
        self.has_arrived = np.zeros((len(c.ctas), c.warps), np.bool_)
        self.clock = np.zeros((len(c.ctas), c.known.shape[2]), np.int64)
        self.ended = np.zeros_like(self.clock)
        c.on_exit.append(self._exited)
        c.on_start.append(self._started)

    def _started(self, slots: NDArray[np.intp]) -> None:
        clusters = np.unique(slots // self.chunk.cluster)
        self.round[clusters] = 0
        self.missing[clusters] = self.alive[clusters] = self.chunk.cluster * self.chunk.warps
        self.arrived_in[slots] = -1
        self.has_arrived[slots] = False
        self.clock[slots] = self.ended[slots] = 0

    @staticmethod
    def of(c: Chunk) -> ClusterBarrier:
        """The barriers of a chunk."""
        found = c.state.get("cluster barrier")
        if found is None:
            found = c.state["cluster barrier"] = ClusterBarrier(c)
        assert isinstance(found, ClusterBarrier)
        return found

    def arrive(self, u: Unit, index: int) -> None:
        """Warps arrive; the last one of a cluster ends the round."""
        cluster = u.cta // self.chunk.cluster
        again = self.has_arrived[u.cta, u.warp]
        if again.any():
            lane = 32 * int(again.argmax())
            message = "arrives twice, with no wait between"
            self.chunk.fault("barrier.cluster", message, index, u, lane=lane)
        self.arrived_in[u.cta, u.warp] = self.round[cluster]
        self.has_arrived[u.cta, u.warp] = True
        np.maximum.at(self.clock, u.cta, self.chunk.clock_rows(u))
        np.subtract.at(self.missing, cluster, 1)
        self._advance(np.unique(cluster))

    def _advance(self, clusters: NDArray[np.intp]) -> None:
        for cluster in clusters[self.missing[clusters] == 0]:
            ctas = slice(cluster * self.chunk.cluster, (cluster + 1) * self.chunk.cluster)
            self.round[cluster] += 1
            self.rounds_ended += 1
            self.missing[cluster] = self.alive[cluster]
            self.ended[ctas] = self._met(np.arange(ctas.start, ctas.stop))

    def _met(self, ctas: NDArray[np.intp]) -> NDArray[np.int64]:
        """What all warps of a cluster knew, in each cta's own columns."""
        rows = self.clock[ctas]
        met = rows.copy()
        for turn in range(1, len(ctas)):
            others = np.roll(np.arange(len(ctas)), turn)
            heard = seen_from(self.chunk, rows[others], ctas[others], ctas)
            met = np.maximum(met, heard)
        return met

    def _exited(self, u: Unit) -> None:
        cluster = u.cta // self.chunk.cluster
        waiting = self.arrived_in[u.cta, u.warp] != self.round[cluster]
        np.subtract.at(self.alive, cluster, 1)
        np.subtract.at(self.missing, cluster[waiting], 1)
        self._advance(np.unique(cluster[self.alive[cluster] > 0]))


class ClusterWait(Wait):
    """Warps that wait for the round they arrived in to end."""

    def __init__(
        self, barrier: ClusterBarrier, cta: NDArray[np.intp], warp: NDArray[np.intp]
    ) -> None:
        self.barrier, self.cta, self.warp = barrier, cta, warp

    def epoch(self) -> int:
        """No round ends without being counted."""
        return self.barrier.rounds_ended

    def ready(self) -> NDArray[np.bool_]:
        """Which pairs' rounds have ended."""
        round_now = self.barrier.round[self.cta // self.barrier.chunk.cluster]
        return np.asarray(round_now > self.barrier.arrived_in[self.cta, self.warp])

    def finish(self, unit: Unit) -> None:
        """Takes over what the warps of the own cta knew when they arrived."""
        self.barrier.chunk.join(unit, self.barrier.ended[unit.cta])

    def describe(self, pair: int) -> str:
        """How many warps are missing."""
        cluster = self.cta[pair] // self.barrier.chunk.cluster
        return f"barrier.cluster lacks {int(self.barrier.missing[cluster])} warps of the cluster"

    def select(self, pairs: NDArray[np.intp]) -> ClusterWait:
        """The same wait for some pairs."""
        return ClusterWait(self.barrier, self.cta[pairs], self.warp[pairs])


def _cuts(i: Instruction) -> str:
    return "before" if i.has("cluster") and i.has("arrive") else "both"


@opcode("barrier", writes=0, cuts=_cuts, counts_as="barrier", touches_memory=True)
def barrier(e: Emitter, i: Instruction) -> None:
    """barrier.cluster.arrive and .wait, whatever their memory order; barrier.cta is `bar`."""
    if not i.has("cluster"):
        emit_barrier(e, i)
    elif i.has("arrive"):
        e.do(f"{e.use(_arrive)}(c, u, {e.index})")
    elif i.has("wait"):
        e.do(f"{e.use(_wait)}(c, u, {e.index})")
    else:
        raise Unknown("this form of barrier.cluster")


def _arrive(c: Chunk, u: Unit, index: int) -> None:
    ClusterBarrier.of(c).arrive(u, index)


def _wait(c: Chunk, u: Unit, index: int) -> None:
    barrier = ClusterBarrier.of(c)
    AsyncState.of(c)  # watches the lives of ctas from here on
    if not barrier.has_arrived[u.cta, u.warp].all():
        c.fault("barrier.cluster", "waits, but has not arrived", index, u)
    barrier.has_arrived[u.cta, u.warp] = False
    u.wait = ClusterWait(barrier, u.cta, u.warp)
