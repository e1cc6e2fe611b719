"""Instructions of whole warps: lanes that diverged wait until the rest of their warp is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.unit import Unit, Wait
from flashsmith.emulator.machine.warp_barrier import ALL_LANES, LANE_BITS
from flashsmith.emulator.ptx.instruction import Imm, Instruction

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk


_TOGETHER = frozenset({"sync", "aligned", "vote"})


def members_of(instruction: Instruction) -> int:
    """The lanes that must execute an instruction together, as a mask; 0 when it asks for none."""
    if _TOGETHER.isdisjoint(instruction.modifiers):
        return 0
    if instruction.guard is not None or instruction.has("warp"):
        return 0  # bar.warp.sync waits for the lanes of its mask itself
    if instruction.has("aligned") or instruction.opcode == "bar":
        return ALL_LANES
    members = instruction.operands[-1] if instruction.operands else None
    return members.value & ALL_LANES if isinstance(members, Imm) else 0


def is_apart(c: Chunk, u: Unit, m: NDArray[np.bool_], members: int, index: int) -> bool:
    """Whether lanes of `members` are elsewhere; the unit then waits for them."""
    wait = Convergence(c, u.cta, u.warp, m.reshape(-1, 32), members, index)
    if wait.ready().all():
        return False
    u.wait = wait
    return True


class Convergence(Wait):
    """Waits until all lanes of a warp that have not ended are at the same instruction."""

    def __init__(
        self,
        chunk: Chunk,
        cta: NDArray[np.intp],
        warp: NDArray[np.intp],
        here: NDArray[np.bool_],
        members: int,
        index: int,
    ) -> None:
        self.chunk = chunk
        self.cta = cta
        self.warp = warp
        self.here = here
        self.members = members
        self.index = index

    def _missing(self) -> NDArray[np.bool_]:
        named = (np.uint32(self.members) & LANE_BITS) != 0
        missing: NDArray[np.bool_] = self.chunk.alive[self.cta, self.warp] & named & ~self.here
        return missing

    def epoch(self) -> int:
        """Who is missing changes only when lanes end, or ctas begin."""
        return self.chunk.lives

    def ready(self) -> NDArray[np.bool_]:
        """Which warps are together."""
        return ~np.asarray(self._missing().any(axis=1))

    def finish(self, unit: Unit) -> None:
        """Nothing is learnt by coming together."""

    def describe(self, pair: int) -> str:
        """The lanes that are missing."""
        lanes = np.flatnonzero(self._missing()[pair]).tolist()
        line = self.chunk.kernel.instructions[self.index].line
        return f"waits at PTX line {line} for lanes {lanes} of its own warp"

    def select(self, pairs: NDArray[np.intp]) -> Convergence:
        """The same wait of some warps."""
        return Convergence(
            self.chunk,
            self.cta[pairs],
            self.warp[pairs],
            self.here[pairs],
            self.members,
            self.index,
        )
