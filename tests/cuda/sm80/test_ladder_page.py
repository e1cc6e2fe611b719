"""What the page of the ladder says of machine code is so."""

import pytest

from flashsmith.compile.compiler import compile_kernel
from flashsmith.compile.machine.instruction_mix import sass_mix
from flashsmith.compile.machine.sass import disassemble
from flashsmith.kernels import get_kernel_configs
from flashsmith.problem.needs import Needs

WORK = ("HMMA", "LDSM", "LDGSTS", "MUFU", "FFMA", "BAR", "LDGDEPBAR", "DEPBAR")


def test_buffered_loads_change_nothing_that_counts_on_hopper():
    """docs/kernels/sm80_forward.md: the same registers, products, loads and copies."""
    pytest.importorskip("nvidia", reason="the compiler and the disassembler have no wheel here")
    _, _, _, before, after, *_ = get_kernel_configs("prog")
    assert (before.mma_double_buffer_loads, after.mma_double_buffer_loads) == (False, True)
    kernels = [compile_kernel(config, Needs(), "sm_90a") for config in (before, after)]
    assert len({kernel.resources.registers for kernel in kernels}) == 1
    first, second = (sass_mix(disassemble(kernel.cubin)) for kernel in kernels)
    assert [first[opcode] for opcode in WORK] == [second[opcode] for opcode in WORK]
    others = sum(((first - second) + (second - first)).values())
    assert others < 0.01 * 2 * sum(first.values())
