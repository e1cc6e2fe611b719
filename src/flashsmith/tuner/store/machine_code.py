"""The machine code that a measurement is keyed by: of one kernel, or of all that a plan starts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import kernels_of
from flashsmith.problem.attention import AttentionProblem


def jobs_of(config: KernelConfig, problem: AttentionProblem, arch: str) -> tuple[CompileJob, ...]:
    """What is compiled to know the code; raises as `plan`.

    Launches that a configuration is not itself, such as a list of tiles, count where it is made of
    nothing else.
    """
    kernels = kernels_of(config, problem)
    own = [pair for pair in kernels if pair[0] == config]
    return tuple(dict.fromkeys(CompileJob(*pair, arch) for pair in own[:1] or kernels))


def code_of(kernels: Sequence[CompiledKernel]) -> str:
    """The hash of one kernel's code, or of the hashes of several."""
    codes = [kernel.code for kernel in kernels]
    return codes[0] if len(codes) == 1 else hashlib.sha256(" ".join(codes).encode()).hexdigest()
