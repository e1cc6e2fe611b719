"""Who wrote and read each word of shared memory, and whether that was ordered by barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.ptx.instruction import Vector
from flashsmith.emulator.ptx.module import Kernel

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

AGENT_BITS = 6
AGENT_MASK = (1 << AGENT_BITS) - 1
NEVER = 0xFFFFFFFF  # tag of a word nobody wrote
IN_FLIGHT = 0xFFFFFF00  # tag of a word a copy is on its way to; the agent is in the low bits
BEING_READ = 0xFFFFFFFF  # read time of what an operation in flight still reads
LATEST = IN_FLIGHT >> AGENT_BITS  # first time that a tag cannot hold

Lanes = NDArray[np.intp] | None  # positions in the unit of the lanes that access, None for all


def shadow_grain(kernel: Kernel) -> int:
    """Bytes a tag stands for: a word, or a byte if the kernel accesses less than a word."""
    small = ("b8", "u8", "s8", "b16", "u16", "s16")
    for i in kernel.instructions:
        is_vector = any(isinstance(operand, Vector) for operand in i.operands)
        elsewhere = i.has("global") or i.has("param") or i.has("local") or i.has("const")
        if i.opcode in ("ld", "st", "atom") and i.type in small and not elsewhere | is_vector:
            return 1
    return 4


def still_read_by(warp: int) -> tuple[str, str, str]:
    """Kind, message and other party of a write over what an operation in flight reads."""
    return (
        "race",
        "overwrites what an asynchronous operation still reads",
        f"the wgmma or bulk store of warp {warp} that reads it, not waited for",
    )


def _of(lanes: Lanes, values: NDArray[Any]) -> NDArray[Any]:
    """The values of the lanes that access."""
    return values if lanes is None else values[lanes]


class Shadow:
    """A tag (time and agent of the last write) and read times by agent, for each grain of memory.

    A grain is a word, or a byte in kernels that access shared memory in smaller units. Times are
    Chunk.time, so that one comparison with Chunk.safe_time settles most accesses.
    """

    def __init__(self, chunk: Chunk, grain: int = 4) -> None:
        self.chunk = chunk
        self.grain = grain
        count = chunk.smem.size // grain
        self.tags = np.full(count, NEVER, np.uint32)
        self.lanes = np.zeros(count, np.uint32)  # lane of the last write
        self.reads = np.zeros((chunk.warps, count), np.uint32)

    def clear(self, slots: NDArray[np.intp]) -> None:
        """Ctas begin in these slots: nobody has touched their memory."""
        ctas = len(self.chunk.ctas)
        self.tags.reshape(ctas, -1)[slots] = NEVER
        self.lanes.reshape(ctas, -1)[slots] = 0
        self.reads.reshape(self.chunk.warps, ctas, -1)[:, slots] = 0

    # -- accesses -------------------------------------------------------------------------------

    def read(
        self, unit: Unit, lanes: Lanes, offsets: NDArray[np.int64], n_bytes: int, index: int
    ) -> None:
        """Checks a read of `n_bytes` at byte offsets into the chunk's memory, and notes it."""
        chunk = self.chunk
        tags = self._take(self.tags, offsets, n_bytes)
        if int(tags.max(initial=0)) >> AGENT_BITS > chunk.safe_time(unit):
            self._check_read(unit, lanes, offsets, n_bytes, tags, index)
        base = _of(lanes, unit.lane_warp) * self.tags.size
        self._put(self.reads.reshape(-1), base * self.grain + offsets, n_bytes, chunk.tick(index))

    def write(
        self, unit: Unit, lanes: Lanes, offsets: NDArray[np.int64], n_bytes: int, index: int
    ) -> None:
        """Checks a write, and notes it as done now by the lanes' warps."""
        self._check_write(unit, lanes, offsets, n_bytes, index)
        time = self.chunk.tick(index)
        self._mark(unit, lanes, offsets, n_bytes, time << AGENT_BITS, index)

    def begin_flight(
        self, unit: Unit, lanes: Lanes, offsets: NDArray[np.int64], n_bytes: int, index: int
    ) -> None:
        """Checks the destination of a copy that lands later, and marks it as in flight."""
        self._check_write(unit, lanes, offsets, n_bytes, index)
        self.chunk.tick(index)
        self._mark(unit, lanes, offsets, n_bytes, IN_FLIGHT, index)

    def land(
        self, agents: NDArray[Any], offsets: NDArray[np.int64], n_bytes: int, time: int
    ) -> None:
        """Notes that copies have landed: writes of `agents` at `time`."""
        tags = agents.astype(np.uint32) | np.uint32(time << AGENT_BITS)
        self._put(self.tags, offsets, n_bytes, tags)

    def forget(self, offsets: NDArray[np.int64], n_bytes: int) -> None:
        """What was just stored there means nothing: it counts as never written."""
        self._put(self.tags, offsets, n_bytes, np.full(len(offsets), NEVER, np.uint32))

    # -- storage --------------------------------------------------------------------------------

    def _take(
        self, array: NDArray[np.uint32], offsets: NDArray[np.int64], n_bytes: int
    ) -> NDArray[np.uint32]:
        """The entries of each access, a row each, flat."""
        width = max(n_bytes // self.grain, 1)
        at = offsets // max(n_bytes, self.grain)
        if width == 1:
            return array.take(at)
        if width == 4:
            return array.view(np.complex128).take(at).view(np.uint32)
        return array.reshape(-1, width)[at].reshape(-1)

    def _read_times(self, offsets: NDArray[np.int64], n_bytes: int) -> NDArray[np.uint32]:
        """When each warp last read what accesses touch: a row a warp."""
        width = max(n_bytes // self.grain, 1)
        at = offsets // max(n_bytes, self.grain)
        if width == 1:
            return self.reads.take(at, axis=1)
        if width == 4:
            return self.reads.view(np.complex128).take(at, axis=1).view(np.uint32)
        warps = len(self.reads)
        return self.reads.reshape(warps, -1, width).take(at, axis=1).reshape(warps, -1)

    def _put(
        self, array: NDArray[np.uint32], offsets: NDArray[np.int64], n_bytes: int, value: Value
    ) -> None:
        width = max(n_bytes // self.grain, 1)
        at = offsets // max(n_bytes, self.grain)
        if width == 1:
            array[at] = value
        elif width == 4:
            whole = np.asarray(value, np.uint32)
            array.view(np.complex128)[at] = np.repeat(whole, 4).view(np.complex128)
        else:
            array.reshape(-1, width)[at] = np.asarray(value).reshape(-1, 1)

    def _lane_numbers(self, unit: Unit, lanes: Lanes) -> NDArray[np.uint32]:
        positions = np.arange(32 * unit.pairs) if lanes is None else lanes
        return (positions % 32).astype(np.uint32)

    def _mark(
        self,
        unit: Unit,
        lanes: Lanes,
        offsets: NDArray[np.int64],
        n_bytes: int,
        stamp: int,
        index: int,
    ) -> None:
        agents = _of(lanes, unit.lane_warp).astype(np.uint32)
        tags = agents | np.uint32(stamp)
        self._put(self.tags, offsets, n_bytes, tags)
        self._put(self.lanes, offsets, n_bytes, self._lane_numbers(unit, lanes))
        # Two warps of one unit may have written the same word in this very instruction.
        width = max(n_bytes // self.grain, 1)
        kept = self._take(self.tags, offsets, n_bytes).reshape(-1, width)
        lost = (kept != tags[:, None]).any(axis=1)
        if lost.any():
            position = int(np.flatnonzero(lost)[0])
            other = int(kept[position][kept[position] != tags[position]][0]) & AGENT_MASK
            self._fault(
                unit, lanes, offsets, position, index,
                "race", "two warps write the same word with no barrier between them",
                f"warp {other} at the same instruction",
            )  # fmt: skip

    # -- what a slow look finds -----------------------------------------------------------------

    def _known(
        self, unit: Unit, lanes: Lanes, agents: NDArray[np.int64], width: int
    ) -> NDArray[np.int64]:
        cta = np.repeat(_of(lanes, unit.lane_cta), width)
        warp = np.repeat(_of(lanes, unit.lane_warp), width)
        known = self.chunk.known[cta, warp, np.minimum(agents, self.chunk.agents - 1)]
        return np.asarray(known)

    def _check_read(
        self,
        unit: Unit,
        lanes: Lanes,
        offsets: NDArray[np.int64],
        n_bytes: int,
        tags: NDArray[np.uint32],
        index: int,
    ) -> None:
        width = max(n_bytes // self.grain, 1)
        never = tags == NEVER
        if never.any():
            position = int(np.flatnonzero(never)[0]) // width
            self._fault(
                unit, lanes, offsets, position, index,
                "uninitialised", "reads shared memory that nothing has written", "",
            )  # fmt: skip
        flying = tags >= IN_FLIGHT
        if flying.any():
            at = int(np.flatnonzero(flying)[0])
            self._fault(
                unit, lanes, offsets, at // width, index,
                "in flight", "reads shared memory that a copy has not reached yet",
                f"the copy of {self._agent(int(tags[at]) & AGENT_MASK)}, not waited for",
            )  # fmt: skip
        self._check_order(unit, lanes, offsets, width, tags, index, "reads what another")

    def _agent(self, agent: int) -> str:
        return f"warp {agent}" if agent < self.chunk.warps else "the asynchronous proxy"

    def _check_order(
        self,
        unit: Unit,
        lanes: Lanes,
        offsets: NDArray[np.int64],
        width: int,
        tags: NDArray[np.uint32],
        index: int,
        deed: str,
    ) -> None:
        agents = (tags & np.uint32(AGENT_MASK)).astype(np.int64)
        times = (tags >> np.uint32(AGENT_BITS)).astype(np.int64)
        early = times > self._known(unit, lanes, agents, width)
        if early.any():
            at = int(np.flatnonzero(early)[0])
            self._fault(
                unit, lanes, offsets, at // width, index,
                "race", f"{deed} warp wrote with no barrier between them",
                f"written by {self.chunk.party(int(agents[at]), int(times[at]))}",
            )  # fmt: skip
        self._check_lanes(unit, lanes, offsets, width, (agents, times), index, deed)

    def _check_lanes(
        self,
        unit: Unit,
        lanes: Lanes,
        offsets: NDArray[np.int64],
        width: int,
        events: tuple[NDArray[np.int64], NDArray[np.int64]],
        index: int,
        deed: str,
    ) -> None:
        """Lanes of one warp are ordered by bar.warp.sync only (and by barriers of the cta)."""
        agents, times = events
        cta = np.repeat(_of(lanes, unit.lane_cta), width)
        warp = np.repeat(_of(lanes, unit.lane_warp), width)
        writer = self._take(self.lanes, offsets, width * self.grain)
        own = np.repeat(self._lane_numbers(unit, lanes), width)
        known = self.chunk.knows_lane(cta, warp, own, writer)
        early = (agents == warp) & (times > known) & (writer != own)
        if early.any():
            at = int(np.flatnonzero(early)[0])
            self._fault(
                unit, lanes, offsets, at // width, index,
                "race", f"{deed} lane of the warp wrote with no bar.warp.sync between them",
                f"written by lane {int(writer[at])} of "
                f"{self.chunk.party(int(agents[at]), int(times[at]))}",
            )  # fmt: skip

    def _check_write(
        self, unit: Unit, lanes: Lanes, offsets: NDArray[np.int64], n_bytes: int, index: int
    ) -> None:
        width = max(n_bytes // self.grain, 1)
        safe = self.chunk.safe_time(unit)
        tags = self._take(self.tags, offsets, n_bytes)
        if int(tags.max(initial=0)) >> AGENT_BITS > safe:
            flying = (tags >= IN_FLIGHT) & (tags != NEVER)
            if flying.any():
                at = int(np.flatnonzero(flying)[0])
                self._fault(
                    unit, lanes, offsets, at // width, index,
                    "in flight", "overwrites shared memory that a copy has not reached yet",
                    f"the copy of {self._agent(int(tags[at]) & AGENT_MASK)}, not waited for",
                )  # fmt: skip
            written = np.where(tags == NEVER, 0, tags).astype(np.uint32)
            self._check_order(
                unit, lanes, offsets, width, written, index, "overwrites what another"
            )
        reads = self._read_times(offsets, n_bytes)
        for agent, latest in enumerate(reads.max(axis=1, initial=0).tolist()):
            times = reads[agent]
            if latest == BEING_READ:
                at = int(times.argmax())
                self._fault(unit, lanes, offsets, at // width, index, *still_read_by(agent))
            if latest <= safe:
                continue
            early = times > self._known(unit, lanes, np.full(times.size, agent), width)
            if early.any():
                at = int(np.flatnonzero(early)[0])
                self._fault(
                    unit, lanes, offsets, at // width, index,
                    "race", "overwrites what another warp reads with no barrier between them",
                    f"read by {self.chunk.party(agent, int(times[at]))}",
                )  # fmt: skip

    def _fault(
        self,
        unit: Unit,
        lanes: Lanes,
        offsets: NDArray[np.int64],
        position: int,
        index: int,
        kind: str,
        message: str,
        other: str,
    ) -> None:
        lane = position if lanes is None else int(lanes[position])
        address = int(offsets[position]) % self.chunk.pitch
        self.chunk.fault(kind, message, index, unit, lane=lane, address=address, other=other)
