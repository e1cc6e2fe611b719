"""How a kernel is cut into segments, what follows each, and which registers live across."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashsmith.emulator.machine.opcode import effects_of, opcode_of
from flashsmith.emulator.ptx.instruction import Instruction, Symbol
from flashsmith.emulator.ptx.module import Kernel

EXIT = -2  # the next segment of a warp that has ended
FORKED = -1  # the unit's lanes go on in other units
CONTROL = frozenset({"bra", "brx", "ret", "exit", "trap"})  # a segment ends with these
FEW = 8  # ones of a mask that are sooner found one by one
READS_ONLY = frozenset({"ld", "ldu", "ldmatrix"})


class BadBranch(Exception):
    """A branch that leads nowhere."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Segment:
    """A straight run of instructions; sets of registers are bit masks over register numbers."""

    number: int
    instructions: list[Instruction]
    effects: list[tuple[int, int]] = field(default_factory=list)  # registers read, written by each
    successors: tuple[int, ...] = ()
    uses: int = 0  # read before written here
    defines: int = 0
    live_in: int = 0
    live_out: int = 0
    targets: dict[str, int] = field(default_factory=dict)  # label → segment


def cut(kernel: Kernel, *, fine: bool = False) -> list[Segment]:
    """The segments in program order; `fine` ends one after every access to memory as well."""
    starts = _starts(kernel, fine)
    bounds = [*sorted(starts), len(kernel.instructions)]
    number_of = {start: number for number, start in enumerate(bounds[:-1])}
    segments = [
        Segment(number, kernel.instructions[start : bounds[number + 1]])
        for start, number in number_of.items()
    ]
    targets = {label: _segment_at(number_of, at) for label, at in kernel.labels.items()}
    for segment in segments:
        _connect(segment, targets, kernel, len(segments))
        _summarise(segment)
    _spread_liveness(segments)
    return segments


def _starts(kernel: Kernel, fine: bool) -> set[int]:
    starts = {0}
    starts.update(at for at in kernel.labels.values() if at < len(kernel.instructions))
    for position, instruction in enumerate(kernel.instructions):
        spec = opcode_of(instruction)
        where = spec.cuts(instruction)
        if where in ("before", "both"):
            starts.add(position)
        ends = instruction.opcode in CONTROL or where in ("after", "both")
        if (ends or (fine and spec.touches_memory)) and position + 1 < len(kernel.instructions):
            starts.add(position + 1)
    return starts


def meeting_points(segments: list[Segment]) -> frozenset[int]:
    """Segments that begin with a barrier of ctas: the lanes of a warp come to it together."""
    return frozenset(
        s.number
        for s in segments
        if s.instructions[0].opcode in ("bar", "barrier") and not s.instructions[0].has("warp")
    )


def quiet_segments(segments: list[Segment]) -> list[bool]:
    """Which segments neither write memory nor wait: what they do, only their own warps see."""
    return [
        not any(opcode_of(i).touches_memory and i.opcode not in READS_ONLY for i in s.instructions)
        for s in segments
    ]


def _segment_at(number_of: dict[int, int], position: int) -> int:
    return number_of.get(position, EXIT)


def _connect(segment: Segment, targets: dict[str, int], kernel: Kernel, count: int) -> None:
    fall = segment.number + 1 if segment.number + 1 < count else EXIT
    last = segment.instructions[-1]
    segment.targets = targets
    if last.opcode == "bra":
        label = last.operands[0] if last.operands else None
        if not isinstance(label, Symbol) or label.name not in targets:
            raise BadBranch(f"branch to {label}, which is not a label here", last.line)
        to = targets[label.name]
        segment.successors = (to, fall) if last.guard else (to,)
    elif last.opcode == "brx":
        table = last.operands[1] if len(last.operands) > 1 else None
        labels = kernel.branch_targets.get(table.name, ()) if isinstance(table, Symbol) else ()
        if not labels or not set(labels) <= targets.keys():
            raise BadBranch(f"a table of branches with {labels or 'no labels'}", last.line)
        segment.successors = tuple(targets[label] for label in labels)
    elif last.opcode in ("ret", "exit", "trap"):
        segment.successors = (fall,) if last.guard else ()
    else:
        segment.successors = (fall,)


def _summarise(segment: Segment) -> None:
    for instruction in segment.instructions:
        reads, writes = effects_of(instruction)
        segment.effects.append((reads, writes))
        segment.uses |= reads & ~segment.defines
        if instruction.guard is None:
            segment.defines |= writes
        else:
            # A guarded write keeps the old value where the guard is false.
            segment.uses |= writes & ~segment.defines


def numbers(bits: int) -> list[int]:
    """The positions of the ones of a bit mask."""
    if bits.bit_count() > FEW:
        octets = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
        ones = np.unpackbits(np.frombuffer(octets, np.uint8), bitorder="little")
        return np.flatnonzero(ones).tolist()
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def _spread_liveness(segments: list[Segment]) -> None:
    changed = True
    while changed:
        changed = False
        for segment in reversed(segments):
            out = 0
            for successor in segment.successors:
                if successor >= 0:
                    out |= segments[successor].live_in
            into = segment.uses | (out & ~segment.defines)
            if into != segment.live_in or out != segment.live_out:
                segment.live_in, segment.live_out, changed = into, out, True
