"""Some ctas of a grid while they run: shared memory, clocks, barriers, copies in flight.

Ctas stand in slots. Where ctas wait for each other all that fit on the GPU have one, and the
next of the grid takes the slot of one that has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.checks.counters import Counters
from flashsmith.emulator.checks.shadow import LATEST, Shadow, shadow_grain
from flashsmith.emulator.machine.address_space import SHARED_BASE
from flashsmith.emulator.machine.barriers import Barriers
from flashsmith.emulator.machine.special_registers import TIMERS, special_value
from flashsmith.emulator.machine.unit import LANES, Unit
from flashsmith.emulator.machine.values import Value
from flashsmith.emulator.options import LaunchSetup
from flashsmith.emulator.ordering.async_writes import AsyncWrites
from flashsmith.emulator.ordering.clocks import GlobalClocks
from flashsmith.emulator.ordering.sums import PendingSums

ALWAYS = 1 << 40  # later than any time
Slots = NDArray[np.intp]
ASYNC_AGENTS = 40
POISON = 0xFF  # byte that fills shared memory at the start: NaN in every float type
FamilyState = Any  # Any: each family of instructions keeps a class of its own


class Flight(Protocol):
    """A copy in flight."""

    def land(self, chunk: Chunk, *, whole: bool) -> bool:
        """Takes the next step, or all of them; true when there is none left."""


class Chunk:
    """The state that all units of some ctas share."""

    def __init__(
        self, setup: LaunchSetup, ctas: NDArray[np.int64], later: Sequence[int] = ()
    ) -> None:
        """`ctas` are numbers in the grid, by slot; `later` ones begin when others have ended."""
        self.ctas = ctas
        self.later = deque(later)
        self.ended: list[int] = []  # slots whose cta has ended, while others wait for one
        self.kernel, self.options, self.memory = setup.kernel, setup.options, setup.memory
        self.grid, self.cluster, self.sm_count = setup.grid, setup.cluster, setup.sm_count
        self.threads = setup.threads
        self.warps = -(-setup.threads // 32)
        self.symbols = setup.symbols
        self.traits = setup.traits
        self.params = np.frombuffer(setup.params + bytes(-len(setup.params) % 16 + 16), np.uint8)
        self.smem_bytes, self.dynamic_bytes = setup.smem_bytes, setup.dynamic_bytes
        self.limit = SHARED_BASE + setup.smem_bytes  # first shared address that is not there
        self.pitch = -(-self.limit // 128) * 128
        self.smem = np.full(len(ctas) * self.pitch, POISON, np.uint8)
        kinds = (np.uint8, np.uint16, np.uint32, np.uint64, np.complex128)
        self.shared_views: dict[int, NDArray[Any]] = {  # by the size of an element in bytes
            np.dtype(kind).itemsize: self.smem.view(kind) for kind in kinds
        }
        self.local = np.zeros((len(ctas) * self.warps * 32, setup.local_bytes), np.uint8)
        self._number_agents()
        self.time = 1
        # known[cta, warp, agent]: the agent's events up to this time happened before the warp's
        # next one. A warp knows all of its own.
        self.known = np.zeros((len(ctas), self.warps, self.agents), np.int64)
        self.known[:, np.arange(self.warps), np.arange(self.warps)] = ALWAYS
        # together[cta, warp]: when the lanes of the warp last met at a barrier
        self.together = np.zeros((len(ctas), self.warps), np.int64)
        self.known_version = 0
        self.history: list[int] = [0, 0]  # instruction that each moment belongs to
        lanes = np.arange(self.warps * 32).reshape(self.warps, 32) < setup.threads
        self.first_alive = lanes  # lanes that are there at the start, by warp
        self.alive = np.tile(lanes, (len(ctas), 1, 1))  # lanes that have not ended
        self.lives = 0  # counts changes of `alive`
        self._lane_clocks: NDArray[np.int64] | None = None
        self.barriers = Barriers(self)
        self.shadow = Shadow(self, shadow_grain(setup.kernel)) if setup.options.checks else None
        self.counters = Counters() if setup.options.counters else None
        self.flights: list[Flight] = []
        self.forks: list[Unit] = []
        self.live: Sequence[Sequence[int]] = ()  # registers that live at each segment's start
        self.lines: Sequence[int] = ()  # of PTX, where each segment begins
        self.on_exit: list[Callable[[Unit], None]] = []  # called with warps that end
        self.on_start: list[Callable[[Slots], None]] = []  # called with slots that begin anew
        self.state: dict[str, FamilyState] = {}  # by family of instructions
        self.clocks = GlobalClocks(self) if self.flag_columns else None
        self.writes = AsyncWrites(self) if self.tracks_writes else None
        seed = setup.options.seed
        self.random = np.random.default_rng([seed, 2]) if seed is not None else None
        self.sums = PendingSums(self, seed) if seed is not None and self.defers_sums else None

    def release(self) -> None:
        """Lets go of all state: parts of it know the chunk, so that only a collector would."""
        self.__dict__.clear()

    def _number_agents(self) -> None:
        """Agents: the warps, then asynchronous ones (one an mbarrier: the copies it counts).

        The columns after them say, warp by warp, which writes the asynchronous proxy sees; then
        come the warps of the other ctas of the cluster, those of the next rank first; the last
        ones belong to GlobalClocks.
        """
        has_async = any(i.opcode == "mbarrier" for i in self.kernel.instructions)
        self.async_agents = min(ASYNC_AGENTS, 62 - self.warps) if has_async else 1
        self.async_used = 0  # asynchronous agents that have a barrier
        self.fenced_column = self.warps + self.async_agents
        self.peer_column = self.fenced_column + self.warps
        self.flag_column = self.peer_column + (self.cluster - 1) * self.warps
        self.tracks_writes = self.options.checks and self.traits.tracks_writes
        self.defers_sums = self.options.seed is not None and self.traits.adds_floats
        is_ordered = self.traits.has_flags and (self.tracks_writes or self.defers_sums)
        self.flag_columns = 2 * len(self.ctas) * self.warps if is_ordered else 0
        self.agents = self.flag_column + self.flag_columns

    # -- units --------------------------------------------------------------------------------

    def first_units(
        self, registers: int, split_warps: bool, slots: Slots | None = None
    ) -> list[Unit]:
        """All warps of the ctas of some slots (of all) in one unit, or a unit for each warp."""
        slots = np.arange(len(self.ctas)) if slots is None else slots
        tail = self.threads % 32
        groups = (
            [np.array([w]) for w in range(self.warps)] if split_warps else [np.arange(self.warps)]
        )
        units = []
        for group in groups:
            cta = np.repeat(slots, len(group))
            warp = np.tile(group, len(slots))
            mask = None
            if tail and (warp == self.warps - 1).any():
                mask = ((warp * 32)[:, None] + LANES < self.threads).reshape(-1)
            units.append(Unit(cta, warp, mask, [None] * registers, 0))
        return units

    def exited(self, unit: Unit) -> None:
        """Notes that the active lanes of a unit have ended."""
        self.lives += 1
        if unit.mask is None:
            self.alive[unit.cta, unit.warp] = False
        else:
            where = (unit.cta, unit.warp)
            self.alive[where] &= ~unit.mask.reshape(-1, 32)
        for action in self.on_exit:
            action(unit)
        if self.later:
            slots = np.unique(unit.cta)
            self.ended += slots[~self.alive[slots].any(axis=(1, 2))].tolist()

    def restart(self) -> Slots:
        """Gives the slots of ended ctas (of whole clusters) to the next ctas of the grid."""
        whole = [
            first
            for first in sorted({slot // self.cluster * self.cluster for slot in self.ended})
            if set(range(first, first + self.cluster)) <= set(self.ended)
        ]
        starting = [slot for first in whole for slot in range(first, first + self.cluster)]
        starting = starting[: len(self.later)]
        if not starting:
            return np.array([], np.intp)
        self.land_all()  # nothing of the old ctas may land in the new ones
        self.ended = [slot for slot in self.ended if slot not in starting]
        slots = np.array(starting, np.intp)
        self.ctas[slots] = [self.later.popleft() for _ in starting]
        self._clear(slots)
        for action in self.on_start:
            action(slots)
        return slots

    def _clear(self, slots: Slots) -> None:
        self.smem.reshape(len(self.ctas), -1)[slots] = POISON
        self.local.reshape(len(self.ctas), -1)[slots] = 0
        self.known[slots] = 0
        own = np.arange(self.warps)
        self.known[slots[:, None], own, own] = ALWAYS
        self.together[slots] = 0
        self.known_version += 1
        self.alive[slots] = self.first_alive
        self.lives += 1
        if self._lane_clocks is not None:
            self._lane_clocks[slots] = 0
        self.barriers.clear(slots)
        if self.shadow is not None:
            self.shadow.clear(slots)

    # -- clocks -------------------------------------------------------------------------------

    def tick(self, index: int) -> int:
        """The next moment of emulated time, which belongs to an instruction."""
        self.time += 1
        self.history.append(index)
        if self.time >= LATEST:
            raise EmulationError(
                "too long",
                f"more than {LATEST:,} accesses in one chunk of blocks; launch fewer, or less work",
                kernel=self.kernel.name,
            )
        return self.time

    def clock_rows(self, unit: Unit) -> NDArray[np.int64]:
        """What each pair knows now, its own past included: the clock it hands on by arriving."""
        rows = self.known[unit.cta, unit.warp]
        rows[np.arange(unit.pairs), unit.warp] = self.time
        return rows

    def join(self, unit: Unit, clocks: NDArray[np.int64]) -> None:
        """The pairs of a unit learn what `clocks` (a row a pair) know."""
        where = (unit.cta, unit.warp)
        self.known[where] = np.maximum(self.known[where], clocks)
        self.meet(unit)

    def join_whole_ctas(self, unit: Unit) -> None:
        """All warps of the unit's ctas learn all that any of them knows or did."""
        ctas = np.unique(unit.cta)
        rows = self.known[ctas]
        others = rows[:, :, self.warps :].max(axis=1, keepdims=True)
        rows[:, :, : self.warps] = self.time
        rows[:, :, self.warps :] = others
        rows[:, np.arange(self.warps), np.arange(self.warps)] = ALWAYS
        self.known[ctas] = rows
        self.meet(unit)

    def meet(self, unit: Unit) -> None:
        """The lanes of each warp of the unit have seen what the others of their warp did."""
        self.together[unit.cta, unit.warp] = self.time
        self.known_version += 1

    def lane_clocks(self) -> NDArray[np.int64]:
        """[cta, warp, lane, other]: up to when a lane knows another's past, beyond `together`."""
        if self._lane_clocks is None:
            self._lane_clocks = np.zeros((*self.alive.shape, 32), np.int64)
        return self._lane_clocks

    def knows_lane(
        self,
        cta: NDArray[np.intp],
        warp: NDArray[np.intp],
        lane: NDArray[Any],
        other: NDArray[Any],
    ) -> NDArray[np.int64]:
        """Up to when lanes know what another lane of their own warp did."""
        met: NDArray[np.int64] = self.together[cta, warp]
        if self._lane_clocks is None:
            return met
        return np.asarray(np.maximum(met, self._lane_clocks[cta, warp, lane, other]))

    def safe_time(self, unit: Unit) -> int:
        """Up to here, the events of every agent happened before every pair of the unit."""
        version, value = unit.safe
        if version != self.known_version:
            known = self.known[unit.cta, unit.warp, : self.warps + self.async_used]
            value = min(int(known.min()), int(self.together[unit.cta, unit.warp].min()))
            unit.safe = (self.known_version, value)
        return value

    def party(self, agent: int, time: int) -> str:
        """Who did what at a moment, in words for a fault."""
        line = self.kernel.instructions[self.history[time]].line if time < len(self.history) else 0
        who = f"warp {agent}" if agent < self.warps else "an asynchronous copy"
        return f"{who} at PTX line {line}"

    def count_wait(self, unit: Unit) -> None:
        """Counts warps that have to wait at a barrier."""
        if self.counters is not None:
            self.counters.barrier_waits += unit.pairs

    # -- asynchronous copies --------------------------------------------------------------------

    def land_some(self, random: np.random.Generator | None) -> None:
        """Lands copies in flight: all at once, or some by chance when landing is delayed."""
        if not self.options.delayed_landing:
            self.land_all()
            return
        landing: list[Flight] = []
        flying: list[Flight] = []
        for flight in self.flights:
            late = random is None or random.random() > 0.15
            (flying if late else landing).append(flight)
        self.flights = flying
        for flight in landing:
            if not flight.land(self, whole=False):
                self.flights.append(flight)

    def land_all(self) -> None:
        """Lands every copy in flight."""
        landing, self.flights = self.flights, []
        for flight in landing:
            flight.land(self, whole=True)

    # -- special registers -----------------------------------------------------------------------

    def special(self, unit: Unit, name: str) -> Value:
        """The value of a special register; grid-uniform ones are scalars."""
        if name in TIMERS:
            return special_value(self, unit, name)
        return unit.cached(name, lambda: special_value(self, unit, name))

    # -- faults -----------------------------------------------------------------------------------

    def cta_index(self, cta: int) -> tuple[int, int, int]:
        """blockIdx of the cta in a slot."""
        return self.cta_index_of(int(self.ctas[cta]))

    def cta_index_of(self, linear: int) -> tuple[int, int, int]:
        """blockIdx of a cta by its number in the grid."""
        x, y, _ = self.grid
        return (linear % x, linear // x % y, linear // (x * y))

    def fault(
        self,
        kind: str,
        message: str,
        index: int,
        unit: Unit,
        *,
        lane: int | None = None,
        address: int | None = None,
        other: str = "",
    ) -> NoReturn:
        """Raises the error of a fault; `lane` is a position in the unit."""
        instruction = self.kernel.instructions[index]
        pair = lane // 32 if lane is not None else 0
        raise EmulationError(
            kind,
            f"{message} in `{instruction.text}`",
            kernel=self.kernel.name,
            line=instruction.line,
            block=self.cta_index(int(unit.cta[pair])),
            warp=int(unit.warp[pair]),
            lane=lane % 32 if lane is not None else None,
            address=address,
            other=other,
        )

    def deadlock(self, units: list[Unit], kind: str) -> NoReturn:
        """Raises the report of who waits for what, at the line where the first one stands."""
        lines: dict[str, list[str]] = {}
        for unit in units:
            spins = f"spins at PTX line {self.lines[unit.pc]}, or waits for lanes of its own warp"
            for pair in range(unit.pairs):
                what = unit.wait.describe(pair) if unit.wait else spins
                who = f"block {self.cta_index(int(unit.cta[pair]))} warp {int(unit.warp[pair])}"
                lines.setdefault(what, []).append(who)
        told = "; ".join(
            f"{', '.join(who[:4])}{f' and {len(who) - 4} more' if len(who) > 4 else ''}: {what}"
            for what, who in lines.items()
        )
        if self.later:
            told += (
                f"; {len(self.later)} blocks from {self.cta_index_of(self.later[0])} on have not "
                f"begun: {len(self.ctas)} fit on {self.sm_count} SMs"
            )
        first = units[0]
        raise EmulationError(
            kind,
            f"no warp can go on: {told}",
            kernel=self.kernel.name,
            line=self.lines[first.pc] if first.pc >= 0 else 0,
            block=self.cta_index(int(first.cta[0])),
            warp=int(first.warp[0]),
        )
