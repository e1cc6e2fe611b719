"""In which numpy type each register is kept: PTX registers are bits, operations have types."""

from __future__ import annotations

from functools import lru_cache

from flashsmith.emulator.ptx.instruction import Address, Instruction, Operand, registers
from flashsmith.emulator.ptx.module import Kernel
from flashsmith.emulator.ptx.types import SIZES

_WORD = {1: "u16", 2: "u16", 4: "u32", 8: "u64"}
_TYPELESS = frozenset({"mov", "ld", "st", "shfl", "selp"})


def storage_types(kernel: Kernel) -> list[str]:
    """By register number: the type most of its uses want, so that few views are needed."""
    votes: list[int] = [0] * len(kernel.registers)
    for instruction in kernel.instructions:
        _vote(instruction, votes)
    kinds = []
    for reg, vote in zip(kernel.registers, votes, strict=True):
        if reg.kind == "pred":
            kinds.append("pred")
            continue
        size = SIZES[reg.kind]
        is_float = size in (4, 8) and (vote > 0 or (vote == 0 and reg.kind in ("f32", "f64")))
        kinds.append(f"f{8 * size}" if is_float else _WORD[size])
    return kinds


def _vote(instruction: Instruction, votes: list[int]) -> None:
    opcode = instruction.opcode
    if opcode in _TYPELESS:
        return
    if opcode in ("mma", "wgmma"):
        for position in (0, 3):
            if position < len(instruction.operands):
                _add(instruction.operands[position], votes, 2 if instruction.has("f32") else -2)
        return
    weights = _weights(instruction.modifiers)
    if not weights:
        return
    for position, operand in enumerate(instruction.operands):
        # cvt.rn.f16x2.f32 d, a, b: the destination has the first type, the sources the last.
        _add(operand, votes, weights[0] if position == 0 and opcode == "cvt" else weights[-1])


@lru_cache(maxsize=4096)
def _weights(modifiers: tuple[str, ...]) -> tuple[int, ...]:
    """Of each type among them: 1 for a float that NumPy computes with, -1 for any other."""
    return tuple(1 if m in ("f32", "f64") else -1 for m in modifiers if m in SIZES)


def _add(operand: Operand, votes: list[int], weight: int) -> None:
    if isinstance(operand, Address):
        weight = -1  # the type is that of what lies there
    for reg in registers(operand):
        votes[reg.number] += weight
