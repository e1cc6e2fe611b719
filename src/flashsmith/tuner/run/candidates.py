"""Which configurations compete on a problem, and which of them are the same kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashsmith.arch import Arch
from flashsmith.arch import get as get_arch
from flashsmith.arch.occupancy import occupancy
from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import full_cases, quick_cases
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.kernels.catalogue import CATALOGUE
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import kernels_of, require_computable
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.fingerprint import fingerprint_problem
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.store.machine_code import code_of, jobs_of
from flashsmith.tuner.store.outcome import DidNotCompile, Refused


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration on one problem, compiled, or why not."""

    config: KernelConfig
    problem: AttentionProblem
    kernels: tuple[CompiledKernel, ...] = ()  # those that its machine code is of
    obstacle: Refused | DidNotCompile | None = None
    same_as: KernelConfig | None = None  # an earlier candidate with equal machine code

    @property
    def code(self) -> str:
        """The hash of its machine code; empty where it could not be compiled."""
        return code_of(self.kernels) if self.kernels else ""


Pair = tuple[KernelConfig, AttentionProblem]
FirstOfCode = dict[tuple[AttentionProblem, str], KernelConfig]  # by problem and hash of the code


def artefact_facts(candidate: Candidate) -> dict[str, object]:
    """What the compiler says of a candidate: registers, spills, and blocks that an SM holds.

    Of several kernels, those of the one with the most registers; spills of all.
    """
    if not candidate.kernels:
        return {}
    used = max((k.resources for k in candidate.kernels), key=lambda r: r.registers)
    room = occupancy(
        get_arch(candidate.kernels[0].arch),
        threads=candidate.config.threads,
        registers=used.registers,
        smem_bytes=candidate.config.smem_bytes() + used.static_smem_bytes,
    )
    return {
        "registers": used.registers,
        "spill_bytes": sum(kernel.resources.spill_bytes for kernel in candidate.kernels),
        "smem_bytes": candidate.config.smem_bytes(),
        "blocks_per_sm": room.blocks,
        "limit": room.limit,
    }


def competes(
    config: KernelConfig, problem: AttentionProblem, configs: Sequence[KernelConfig]
) -> bool:
    """Whether a configuration is meant for a problem: operation, dtype, and no wider than needed.

    What is needed is the least width that its kernel has among `configs`. Gradients with other bits
    in every run take part where nobody asks for the same.
    """
    if problem.operation != config.OPERATION:
        return False
    if problem.deterministic and not config.repeats_bits:
        return False
    widths = [c.d_head for c in configs if type(c) is type(config) and c.d_head >= problem.d_head]
    return config.dtype is problem.dtype and bool(widths) and config.d_head == min(widths)


def default_configs(arch_name: str, operation: str = "forward") -> list[KernelConfig]:
    """What can win on an architecture: the tuning sets of all kernels that run there."""
    return [
        config
        for kernel in reversed(CATALOGUE)  # those of newer GPUs first
        if kernel.runs_on(arch_name) and operation == kernel.OPERATION
        for config in kernel.autotuning_grid()
        if config.autotune_refusal() is None
    ]


def pairs_of(configs: Sequence[KernelConfig], problems: Sequence[AttentionProblem]) -> list[Pair]:
    """Every configuration on every problem that it is meant for."""
    return [(c, p) for p in problems for c in configs if competes(c, p, configs)]


def compiled_candidates(
    pairs: Sequence[Pair],
    target: Target,
    *,
    first: FirstOfCode | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """The pairs with their kernels, compiled on all cores.

    A run that compiles in parts hands `first` from part to part: equal code is measured once.
    """
    arch = get_arch(target.arch)
    jobs = {pair: _jobs(*pair, target, arch) for pair in pairs}
    groups = [group for group in jobs.values() if not isinstance(group, Refused)]
    wanted = list(dict.fromkeys(job for group in groups for job in group))
    made = dict(zip(wanted, compile_many(wanted, progress=progress), strict=True))
    known = {} if first is None else first
    return [_candidate(pair, jobs[pair], made, known) for pair in pairs]


def _jobs(
    config: KernelConfig, problem: AttentionProblem, target: Target, arch: Arch
) -> tuple[CompileJob, ...] | Refused:
    try:
        require_computable(config, problem)
        config.require_buildable(arch)
        return jobs_of(config, problem, target.arch)
    except FlashsmithError as error:
        return Refused(str(error))


def compile_for_screening(candidates: Sequence[Candidate], target: Target) -> None:
    """Fills the kernel cache with what checks and fingerprints of candidates will ask for."""
    sound = [c for c in candidates if c.kernels]
    wanted = [job for c in sound for job in _checking_jobs(c.config, c.problem, target)]
    compile_many(list(dict.fromkeys(wanted)))


def compile_for_gate(config: KernelConfig, target: Target) -> None:
    """Fills the kernel cache, on all cores, with what the gate's cases will ask for one by one.

    What does not compile is told by the gate itself.
    """
    compile_many(_kernel_jobs(config, [case.problem for case in full_cases(config)], target))


def _checking_jobs(
    config: KernelConfig, problem: AttentionProblem, target: Target
) -> list[CompileJob]:
    """The kernels that checking a configuration and taking its fingerprint will ask for."""
    problems = [*(case.problem for case in quick_cases(config)), fingerprint_problem(problem)]
    return _kernel_jobs(config, problems, target)


def _kernel_jobs(
    config: KernelConfig, problems: Sequence[AttentionProblem], target: Target
) -> list[CompileJob]:
    """The kernels of all launches on these problems, each once."""
    kernels = [pair for problem in problems for pair in kernels_of(config, problem)]
    return list(dict.fromkeys(CompileJob(*pair, target.arch) for pair in kernels))


def _candidate(
    pair: tuple[KernelConfig, AttentionProblem],
    jobs: tuple[CompileJob, ...] | Refused,
    made: dict[CompileJob, CompiledKernel | FlashsmithError],
    first: FirstOfCode,
) -> Candidate:
    config, problem = pair
    if isinstance(jobs, Refused):
        return Candidate(config, problem, obstacle=jobs)
    kernels = []
    for kernel in (made[job] for job in jobs):
        if isinstance(kernel, FlashsmithError):
            return Candidate(config, problem, obstacle=DidNotCompile(str(kernel)))
        kernels.append(kernel)
    same = first.setdefault((problem, code_of(kernels)), config)
    return Candidate(config, problem, tuple(kernels), same_as=None if same == config else same)
