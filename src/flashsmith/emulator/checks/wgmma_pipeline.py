"""Which registers a wgmma may still write or read, at every instruction of a kernel.

A walk over the control flow, no execution: registers cannot be in two states on one path, so what
holds on some path is a fault on some path. PTX ISA, "wgmma.fence", "wgmma.wait_group": from the
first wgmma to the wait for its group nobody else touches its accumulators or writes its A
registers, and registers that others wrote pass a wgmma.fence before a wgmma takes them.

A plain copy of an accumulator in flight is allowed as another name of it, for the next wgmma of
the same chain. As a value it is undefined, before the wait and after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flashsmith.emulator.machine.opcode import read, written
from flashsmith.emulator.machine.segments import Segment
from flashsmith.emulator.ptx.instruction import Imm, Instruction, Reg, registers

MAX_GROUPS = 8  # wait_group counts to 7
STALE = "{} was copied from an accumulator before the wgmma.wait_group that ends its wgmma"


@dataclass(frozen=True, slots=True)
class Problem:
    """A register used at the wrong time."""

    instruction: Instruction
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class _Flight:
    """Registers of one group of wgmmas as bit masks."""

    accumulators: int = 0
    sources: int = 0
    copies: int = 0  # of accumulators, made before the wait

    def __or__(self, other: _Flight) -> _Flight:
        return _Flight(
            self.accumulators | other.accumulators,
            self.sources | other.sources,
            self.copies | other.copies,
        )

    def without(self, mask: int) -> _Flight:
        return _Flight(self.accumulators & ~mask, self.sources & ~mask, self.copies & ~mask)


@dataclass(frozen=True, slots=True)
class _State:
    """What may be in flight: the open group, then committed ones, newest first."""

    groups: tuple[_Flight, ...] = (_Flight(),)
    unfenced: int = -1  # accessed by other instructions since the last fence; all, at the start
    stale: int = 0  # copies of accumulators whose wait came after the copy

    def join(self, other: _State) -> _State:
        long, short = sorted((self.groups, other.groups), key=len, reverse=True)
        met = tuple(a | b for a, b in zip(long, short, strict=False)) + long[len(short) :]
        return _State(met, self.unfenced | other.unfenced, self.stale | other.stale)

    @property
    def busy(self) -> int:
        """The registers of every group."""
        mask = 0
        for group in self.groups:
            mask |= group.accumulators | group.sources | group.copies
        return mask

    @property
    def flight(self) -> _Flight:
        total = _Flight()
        for group in self.groups:
            total |= group
        return total


def pipeline_problems(segments: list[Segment]) -> list[Problem]:
    """Every misuse of registers around wgmma in a kernel, in program order."""
    if not any(i.opcode == "wgmma" for s in segments for i in s.instructions):
        return []
    entering: dict[int, _State] = {0: _State()}
    todo = [0]
    while todo:
        number = todo.pop()
        state = entering[number]
        for instruction, effects in _steps(segments[number]):
            state = _after(instruction, effects, state)
        for successor in segments[number].successors:
            if successor < 0:
                continue
            before = entering.get(successor)
            met = state if before is None else before.join(state)
            if met != before:
                entering[successor] = met
                todo.append(successor)
    problems = []
    for number in sorted(entering):
        state = entering[number]
        for instruction, effects in _steps(segments[number]):
            problems += _problems(instruction, effects, state)
            state = _after(instruction, effects, state)
    return problems


def _steps(segment: Segment) -> Iterator[tuple[Instruction, tuple[int, int]]]:
    """The instructions, each with the registers it reads and writes."""
    return zip(segment.instructions, segment.effects, strict=True)


def _mask(regs: tuple[Reg, ...]) -> int:
    mask = 0
    for reg in regs:
        mask |= 1 << reg.number
    return mask


def _wgmma_registers(instruction: Instruction) -> tuple[int, int]:
    """Accumulators and A registers; a descriptor is read at issue and is neither."""
    accumulators = _mask(registers(instruction.operands[0]))
    a = instruction.operands[1]
    return accumulators, 0 if isinstance(a, Reg) else _mask(registers(a))


def _after(instruction: Instruction, effects: tuple[int, int], state: _State) -> _State:
    if instruction.opcode == "wgmma":
        return _after_wgmma(instruction, state)
    reads, target = effects
    replaced = target if instruction.guard is None else 0
    groups = state.groups
    if replaced & state.busy:
        groups = tuple(group.without(replaced) for group in groups)
    source = _copied(instruction)
    if source is None:
        unfenced, stale = state.unfenced | target | reads, state.stale & ~replaced
        if groups is state.groups and (unfenced, stale) == (state.unfenced, state.stale):
            return state
        return _State(groups, unfenced, stale)
    bit = 1 << source.number if isinstance(source, Reg) else 0
    carried = tuple(
        replace(new, copies=new.copies | target) if (old.accumulators | old.copies) & bit else new
        for new, old in zip(groups, state.groups, strict=True)
    )
    unfenced = state.unfenced & ~target | (target if state.unfenced & bit else 0)
    return _State(carried, unfenced, state.stale & ~target | (target if state.stale & bit else 0))


def _after_wgmma(instruction: Instruction, state: _State) -> _State:
    groups = state.groups
    if instruction.has("fence"):
        return replace(state, unfenced=0)
    if instruction.has("commit_group"):
        committed = (_Flight(), *groups)
        oldest = committed[MAX_GROUPS] if len(committed) > MAX_GROUPS else _Flight()
        kept = committed[:MAX_GROUPS]
        return replace(state, groups=(*kept[:-1], kept[-1] | oldest))
    if instruction.has("wait_group"):
        count = instruction.operands[0]
        pending = 1 + (count.value if isinstance(count, Imm) else 0)
        stale = state.stale
        for ended in groups[pending:]:
            stale |= ended.copies
        return replace(state, groups=groups[:pending], stale=stale)
    accumulators, sources = _wgmma_registers(instruction)
    own = tuple(replace(group, copies=group.copies & ~accumulators) for group in groups)
    opened = own[0] | _Flight(accumulators, sources)
    return replace(state, groups=(opened, *own[1:]), stale=state.stale & ~accumulators)


def _copied(instruction: Instruction) -> Reg | Imm | None:
    """What a plain move copies: it may give a register another name, and touches nothing then."""
    if instruction.opcode != "mov" or instruction.guard is not None:
        return None
    source = instruction.operands[1]
    return source if isinstance(source, Reg | Imm) else None


def _problems(instruction: Instruction, effects: tuple[int, int], state: _State) -> list[Problem]:
    if instruction.opcode != "wgmma" and not (effects[0] | effects[1]) & (state.busy | state.stale):
        return []
    found = []

    def report(kind: str, message: str, mask: int, regs: list[Reg]) -> None:
        hit = next((reg for reg in regs if mask >> reg.number & 1), None)
        if hit is not None:
            found.append(Problem(instruction, kind, message.format(hit.name)))

    flight = state.flight
    if instruction.opcode == "wgmma":
        if not instruction.has("mma_async"):
            return []
        accumulators, sources = _wgmma_registers(instruction)
        taken = [
            reg
            for operand in instruction.operands[:2]
            for reg in registers(operand)
            if (accumulators | sources) >> reg.number & 1
        ]
        report(
            "missing wgmma.fence",
            "no wgmma.fence stands between this and the last access to {} by another instruction",
            state.unfenced,
            taken,
        )
        report(
            "accumulator not waited for",
            "A register {} is an accumulator of a wgmma that no wait_group has ended",
            (flight.accumulators | flight.copies) & sources,
            taken,
        )
        report("copy of an accumulator in flight", STALE, state.stale, taken)
        return found
    report(
        "register of a wgmma in flight",
        "{} is written, but no wgmma.wait_group has ended the wgmma that uses it",
        flight.accumulators | flight.sources,
        written(instruction),
    )
    if _copied(instruction) is not None:
        return found
    report(
        "accumulator not waited for",
        "{} is read, but no wgmma.wait_group has ended the wgmma that computes it",
        flight.accumulators | flight.copies,
        read(instruction),
    )
    report("copy of an accumulator in flight", STALE, state.stale, read(instruction))
    return found
