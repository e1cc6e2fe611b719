"""What a kernel's instructions say of its blocks: whether they meet in global memory, and how."""

from __future__ import annotations

from flashsmith.emulator.ptx.instruction import Instruction
from flashsmith.emulator.ptx.module import Kernel

STRONG = frozenset({"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio"})


def is_strong(i: Instruction) -> bool:
    """Whether a load or store may be a flag between threads (PTX ISA, "Operation types")."""
    return not STRONG.isdisjoint(i.modifiers)


def is_elsewhere(i: Instruction) -> bool:
    """Whether an access names a state space other than global memory."""
    return any(m.split("::")[0] in ("shared", "local", "param", "const") for m in i.modifiers)


def blocks_communicate(kernel: Kernel) -> bool:
    """Whether a block may see what another writes while both run."""
    return any(
        (i.opcode in ("atom", "red") and not is_elsewhere(i))
        or (i.opcode == "ld" and is_strong(i) and not is_elsewhere(i))
        or (i.opcode == "cp" and i.has("reduce"))
        for i in kernel.instructions
    )
