"""One-instruction kernels, one case an instruction class of the emulator."""

from instruction_cases import asynchronous, kernels, matrix, memory, registers, wgmma
from instruction_cases.case import Case


def all_cases() -> list[Case]:
    return [
        *registers.cases(),
        *memory.cases(),
        *matrix.cases(),
        *asynchronous.cases(),
        *wgmma.cases(),
        *kernels.cases(),
    ]
