"""The phase machine of mbarriers, for all ctas at once; it knows nothing of warps or schedules.

PTX ISA, "mbarrier": a phase ends when no arrival is pending and the tx-count is zero; the next
one then begins with the count of `init`. `phase` counts the phases that have ended.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import EmulationError
from flashsmith.emulator.machine.values import distinct

MAX_COUNT = 2**20 - 1
OBJECT_BYTES = 8
_FIELDS = ("expected", "pending", "tx", "phase")

Ints = NDArray[np.int64]


class MbarrierTable:
    """Every mbarrier of every cta of a launch, found by cta and shared-memory address."""

    def __init__(self, ctas: int, smem_bytes: int) -> None:
        self.ctas = ctas
        self.smem_bytes = smem_bytes
        self.column_of: dict[int, int] = {}
        self.addresses: list[int] = []
        self._column_at = np.full(smem_bytes // OBJECT_BYTES + 1, -1)  # as `column_of`, by place
        self.expected = np.zeros((ctas, 0), np.int64)  # count of `init`; 0: no barrier here
        self.pending = np.zeros((ctas, 0), np.int64)  # arrivals this phase still waits for
        self.tx = np.zeros((ctas, 0), np.int64)  # bytes expected less bytes that have come
        self.phase = np.zeros((ctas, 0), np.int64)  # phases that have ended
        self.changes = 0  # rounds in which a barrier was made or ended, or a phase of one was
        self.on_complete: Callable[[Ints, Ints], None] | None = None  # ctas, columns

    def init(self, cta: Ints, address: Ints, count: Ints) -> Ints:
        """Makes barriers in phase 0 and returns their columns."""
        self._check_place(address)
        if bad := _first(~((count >= 1) & (count <= MAX_COUNT))):
            at, value = bad[0], int(count[bad[0]])
            message = f"init with count {value}, allowed are 1 to {MAX_COUNT}"
            raise _fault("mbarrier count", message, at, address)
        for value in np.unique(address).tolist():
            if value not in self.column_of:
                self._add_column(value)
        column = self._columns(address)
        self.expected[cta, column] = count
        self.pending[cta, column] = count
        self.tx[cta, column] = 0
        self.phase[cta, column] = 0
        self.changes += 1
        return column

    def clear(self, ctas: Ints) -> None:
        """Ends all barriers of some ctas."""
        for name in _FIELDS:
            getattr(self, name)[ctas] = 0

    def inval(self, cta: Ints, address: Ints) -> None:
        """Ends barriers: their bytes are ordinary memory again."""
        self.expected[cta, self.find(cta, address)] = 0
        self.changes += 1

    def find(self, cta: Ints, address: Ints) -> Ints:
        """Columns of barriers; a fault when one was never initialised."""
        if len(address) and (address == address[0]).all():  # where one is, its place is right
            one = self.column_of.get(int(address[0]), -1)
            if one >= 0 and (self.expected[cta, one] > 0).all():
                return np.full(len(address), one, np.int64)
        self._check_place(address)
        column = self._columns(address)
        valid = column >= 0
        valid[valid] = self.expected[cta[valid], column[valid]] > 0
        if bad := _first(~valid):
            at = bad[0]
            message = "no mbarrier was initialised here (or not before this instruction)"
            raise _fault("mbarrier not initialised", message, at, address)
        return column

    def arrive(self, cta: Ints, address: Ints, count: Ints, tx: Ints | None = None) -> Ints:
        """Expects `tx` more bytes, then takes `count` arrivals off; returns the phases arrived at.

        Entries may name the same barrier more than once: lanes of one instruction.
        """
        column = self.find(cta, address)
        token = self.phase[cta, column]
        if tx is not None:
            self._add_tx(cta, column, address, tx)
        np.subtract.at(self.pending, (cta, column), count)
        if bad := _first(self.pending[cta, column] < 0):
            at = bad[0]
            extra = -int(self.pending[cta[at], column[at]])
            had = int(self.expected[cta[at], column[at]])
            message = f"{extra} more arrivals than the phase waits for (count {had})"
            raise _fault("mbarrier over-arrival", message, at, address)
        self._finish(cta, column)
        return token

    def expect_tx(self, cta: Ints, address: Ints, tx: Ints) -> None:
        """Expects more bytes in the current phase."""
        column = self.find(cta, address)
        self._add_tx(cta, column, address, tx)
        self._finish(cta, column)

    def complete_tx(self, cta: Ints, address: Ints, tx: Ints) -> Ints:
        """Bytes have landed: returns the phase they counted for."""
        column = self.find(cta, address)
        phase = self.phase[cta, column]
        self._add_tx(cta, column, address, -tx)
        self._finish(cta, column)
        return phase

    def parity_done(self, cta: Ints, address: Ints, parity: Ints) -> NDArray[np.bool_]:
        """Whether the phase of that parity has ended: true at once for parity 1 when fresh."""
        if bad := _first((parity < 0) | (parity > 1)):
            message = f"waits on parity {int(parity[bad[0]])}, parities are 0 and 1"
            raise _fault("mbarrier parity", message, bad[0], address)
        done: NDArray[np.bool_] = self.phase[cta, self.find(cta, address)] & 1 != parity
        return done

    def token_done(self, cta: Ints, address: Ints, token: Ints) -> NDArray[np.bool_]:
        """Whether the phase that `arrive` returned has ended."""
        done: NDArray[np.bool_] = self.phase[cta, self.find(cta, address)] != token
        return done

    def describe(self, cta: int, address: int) -> str:
        """What a barrier waits for, for reports of a deadlock."""
        column = self.column_of.get(address, -1)
        if column < 0 or not self.expected[cta, column]:
            return f"mbarrier {address:#x} (not initialised)"
        pending, tx = int(self.pending[cta, column]), int(self.tx[cta, column])
        count, phase = int(self.expected[cta, column]), int(self.phase[cta, column])
        return (
            f"mbarrier {address:#x}, which is in phase {phase} (parity {phase & 1}) and lacks "
            f"{pending} of {count} arrivals and {tx} bytes"
        )

    def _add_column(self, address: int) -> None:
        self.column_of[address] = len(self.addresses)
        self._column_at[address // OBJECT_BYTES] = len(self.addresses)
        self.addresses.append(address)
        for name in _FIELDS:
            old = getattr(self, name)
            setattr(self, name, np.hstack([old, np.zeros((self.ctas, 1), np.int64)]))

    def _columns(self, address: Ints) -> Ints:
        """Columns of barriers at places that have been checked; -1 where there is none."""
        return self._column_at[address // OBJECT_BYTES]

    def _check_place(self, address: Ints) -> None:
        outside = (address < 0) | (address > self.smem_bytes - OBJECT_BYTES)
        if bad := _first(outside | (address % OBJECT_BYTES != 0)):
            message = f"an mbarrier is 8 aligned bytes inside the block's {self.smem_bytes}"
            raise _fault("mbarrier address", message, bad[0], address)

    def _add_tx(self, cta: Ints, column: Ints, address: Ints, tx: Ints) -> None:
        np.add.at(self.tx, (cta, column), tx)
        if bad := _first(np.abs(self.tx[cta, column]) > MAX_COUNT):
            at = bad[0]
            message = f"tx-count {int(self.tx[cta[at], column[at]])} is beyond {MAX_COUNT}"
            raise _fault("mbarrier tx-count", message, at, address)

    def _finish(self, cta: Ints, column: Ints) -> None:
        over = (self.pending[cta, column] == 0) & (self.tx[cta, column] == 0)
        if over.any():
            key = distinct(cta[over], column[over])
            self.phase[key[0], key[1]] += 1
            self.changes += 1
            self.pending[key[0], key[1]] = self.expected[key[0], key[1]]
            if self.on_complete is not None:
                self.on_complete(key[0], key[1])


def _first(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    """The index of the first true entry, as a tuple that is empty when there is none."""
    return (int(bad.argmax()),) if bad.any() else ()


def _fault(kind: str, message: str, entry: int, address: Ints) -> EmulationError:
    """`lane` is the entry of the arrays; whoever runs the instruction adds where it was."""
    return EmulationError(kind, message, lane=entry, address=int(address[entry]))
