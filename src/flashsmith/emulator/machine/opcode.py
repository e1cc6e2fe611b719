"""Which opcodes there are: each family of instructions registers its translation here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashsmith.emulator.ptx.instruction import Instruction, Reg, registers

if TYPE_CHECKING:
    from flashsmith.emulator.machine.emit import Emitter

Translate = Callable[["Emitter", Instruction], None]
Positions = Callable[[Instruction], tuple[int, ...]]


class Unknown(Exception):
    """An instruction, or a form of one, that is not emulated; the text says which part."""


@dataclass(frozen=True, slots=True)
class Opcode:
    """How one opcode is translated, and what the control-flow analysis must know of it."""

    name: str
    translate: Translate
    writes: Positions  # operands that are destinations
    updates: Positions  # destinations that are read as well
    cuts: Callable[[Instruction], str]  # "", "before", "after", "both": where a segment must end
    counts_as: str  # its class in the counters
    touches_memory: bool  # random schedules may switch warps after it


OPCODES: dict[str, Opcode] = {}


def _translate_unknown(e: Emitter, i: Instruction) -> None:
    raise Unknown("unknown opcode")


_UNKNOWN = Opcode("", _translate_unknown, lambda _: (), lambda _: (), lambda _: "", "", False)


def opcode_of(instruction: Instruction) -> Opcode:
    """How an instruction is translated; one that is not known raises Unknown when it is."""
    return OPCODES.get(instruction.opcode, _UNKNOWN)


def opcode(
    *names: str,
    writes: int | Positions = 1,
    updates: Positions | None = None,
    cuts: str | Callable[[Instruction], str] = "",
    counts_as: str,
    touches_memory: bool = False,
) -> Callable[[Translate], Translate]:
    """Registers the translation of opcodes; `writes` counts leading destinations, or is a rule."""

    first = tuple(range(writes)) if isinstance(writes, int) else ()

    def leading(_: Instruction) -> tuple[int, ...]:
        return first

    def always(_: Instruction) -> str:
        return cuts if isinstance(cuts, str) else ""

    def register(translate: Translate) -> Translate:
        positions = writes if callable(writes) else leading
        cut = cuts if callable(cuts) else always
        for name in names:
            assert name not in OPCODES, f"{name} has a translation already"
            OPCODES[name] = Opcode(
                name,
                translate,
                positions,
                updates or (lambda _: ()),
                cut,
                counts_as,
                touches_memory,
            )
        return translate

    return register


def effects_of(instruction: Instruction) -> tuple[int, int]:
    """What `read` and `written` list, as bit masks over register numbers."""
    spec = opcode_of(instruction)
    destinations, updates = spec.writes(instruction), spec.updates(instruction)
    reads, writes = 1 << instruction.guard.number if instruction.guard else 0, 0
    for position, operand in enumerate(instruction.operands):
        bits = 0
        for reg in registers(operand):
            bits |= 1 << reg.number
        is_written = position in destinations
        if is_written:
            writes |= bits
        if not is_written or position in updates:
            reads |= bits
    return reads, writes


def written(instruction: Instruction) -> list[Reg]:
    """The registers an instruction writes."""
    spec = opcode_of(instruction)
    found: list[Reg] = []
    for position in spec.writes(instruction):
        if position < len(instruction.operands):
            found.extend(registers(instruction.operands[position]))
    return found


def read(instruction: Instruction) -> list[Reg]:
    """The registers an instruction reads, its guard included."""
    spec = opcode_of(instruction)
    destinations = set(spec.writes(instruction)) - set(spec.updates(instruction))
    found = [instruction.guard] if instruction.guard else []
    for position, operand in enumerate(instruction.operands):
        if position not in destinations:
            found.extend(registers(operand))
    return found
