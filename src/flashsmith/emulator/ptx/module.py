"""What one kernel of a PTX module is: parameters, variables, launch bounds, instructions."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashsmith.emulator.ptx.instruction import Instruction, Reg


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter at its offset in the parameter buffer."""

    name: str
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in a state space; `n_bytes` is 0 for dynamic shared memory."""

    name: str
    space: str  # "shared", "global", "const", "local"
    align: int
    n_bytes: int
    is_extern: bool = False
    initial: bytes = b""


@dataclass(slots=True)
class Kernel:
    """One entry with everything it refers to."""

    name: str
    target: str
    line: int
    params: tuple[Param, ...]
    variables: dict[str, Variable]
    registers: list[Reg] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # label → index of what follows it
    max_threads: int = 0  # .maxntid, or 0 when the kernel has no bound
    max_registers: int = 0  # .maxnreg, or 0
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((p.offset + p.n_bytes for p in self.params), default=0)
