"""What a kernel's instructions say of its ctas: whether they meet in global memory, and how."""

from __future__ import annotations

from dataclasses import dataclass

from flashsmith.emulator.ptx.instruction import Instruction
from flashsmith.emulator.ptx.module import Kernel

STRONG = frozenset({"acquire", "release", "acq_rel", "relaxed", "volatile", "mmio"})
FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"})


def is_strong(i: Instruction) -> bool:
    """Whether a load or store may be a flag between threads (PTX ISA, "Operation types")."""
    return not STRONG.isdisjoint(i.modifiers)


def is_elsewhere(i: Instruction) -> bool:
    """Whether an access names a state space other than global memory."""
    return any(m.split("::")[0] in ("shared", "local", "param", "const") for m in i.modifiers)


@dataclass(frozen=True, slots=True)
class KernelTraits:
    """How the ctas of a kernel can meet in global memory."""

    communicates: bool  # a cta may see what another writes while both run
    polls: bool  # some load, or atomic that acquires, looks for what another thread writes
    has_flags: bool  # something can be a flag between threads
    writes_in_bulk: bool  # copies or reductions of the asynchronous proxy go to global memory
    adds_in_bulk: bool
    adds_floats: bool  # sums whose bits depend on their order

    @property
    def depends_on_pace(self) -> bool:
        """Whether it matters which cta is ahead of which."""
        return self.polls or self.adds_floats

    @property
    def tracks_writes(self) -> bool:
        """Whether ctas may touch what the asynchronous proxy of another wrote."""
        return self.writes_in_bulk and (self.adds_in_bulk or self.polls)


def traits_of(kernel: Kernel) -> KernelTraits:
    """Read off the kernel's instructions."""
    reached = [i for i in kernel.instructions if not is_elsewhere(i)]
    atomics = [i for i in reached if i.opcode in ("atom", "red")]
    polls = any(i.opcode == "ld" and is_strong(i) for i in reached) or any(
        i.has("acquire") or i.has("acq_rel") for i in atomics
    )
    bulk = [i for i in kernel.instructions if i.opcode == "cp" and i.has("bulk_group")]
    sums = [i for i in bulk if i.has("reduce")]
    floats = any(i.type in FLOATS for i in atomics) or any(
        i.has("tensor") or i.type in FLOATS for i in sums
    )
    return KernelTraits(
        communicates=bool(atomics or polls or sums),
        polls=polls,
        has_flags=polls or bool(atomics),
        writes_in_bulk=bool(bulk),
        adds_in_bulk=bool(sums),
        adds_floats=floats,
    )
