"""The cp.async groups of a unit's threads, which are split and joined with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.emulator.machine.unit import LaneState


@dataclass(slots=True)
class Copy:
    """One cp.async of many lanes, on its way."""

    offsets: NDArray[np.int64]  # into the chunk's shared memory
    data: NDArray[Any]
    lanes: NDArray[np.intp] | None  # positions in the unit, None for all
    n_bytes: int
    index: int  # of the instruction

    def select(self, new_position: NDArray[np.intp], keep: NDArray[np.bool_]) -> Copy | None:
        """The part of the kept lanes, at their new positions."""
        lanes = np.arange(keep.size) if self.lanes is None else self.lanes
        chosen = keep[lanes]
        if not chosen.any():
            return None
        return Copy(
            self.offsets[chosen],
            self.data[chosen],
            new_position[lanes[chosen]],
            self.n_bytes,
            self.index,
        )


@dataclass(slots=True)
class CopyGroups:
    """Committed groups, oldest first, and the copies since the last commit."""

    groups: list[list[Copy]] = field(default_factory=list)
    open: list[Copy] = field(default_factory=list)

    def select(self, lanes: NDArray[np.intp], active: NDArray[np.bool_] | None) -> CopyGroups:
        """The groups of some lanes."""
        used = max(
            (int(x.lanes.max()) if x.lanes is not None else x.offsets.size - 1
             for group in [*self.groups, self.open] for x in group),
            default=0,
        )  # fmt: skip
        size = max(used, int(lanes.max(initial=0))) + 1
        keep = np.zeros(size, np.bool_)
        keep[lanes if active is None else lanes[active]] = True
        position = np.zeros(size, np.intp)
        position[lanes] = np.arange(lanes.size)
        return self._mapped(position, keep)

    def _mapped(self, position: NDArray[np.intp], keep: NDArray[np.bool_]) -> CopyGroups:
        def part(group: list[Copy]) -> list[Copy]:
            return [kept for x in group if (kept := x.select(position, keep)) is not None]

        return CopyGroups([part(group) for group in self.groups], part(self.open))

    def joined(self, others: Sequence[tuple[LaneState, NDArray[np.intp]]]) -> CopyGroups:
        """The groups of several units; the newest groups correspond to each other."""
        parts = []
        for state, places in others:
            assert isinstance(state, CopyGroups)
            parts.append(state._mapped(places, np.ones(places.size, np.bool_)))
        depth = max(len(part.groups) for part in parts)
        out = CopyGroups([[] for _ in range(depth)], [])
        for part in parts:
            for back, group in enumerate(reversed(part.groups)):
                out.groups[depth - 1 - back].extend(group)
            out.open.extend(part.open)
        return out
