"""Which configurations compete on a problem, and which of them are the same kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashsmith.arch import Arch, occupancy
from flashsmith.arch import get as get_arch
from flashsmith.base.errors import FlashsmithError
from flashsmith.check.cases import Case, full_cases, quick_cases
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.kernels.catalogue import CATALOGUE
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import needs_of, require_computable
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.fingerprint import fingerprint_problem
from flashsmith.tuner.run.target import Target
from flashsmith.tuner.store.outcome import DidNotCompile, Refused


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration on one problem, compiled, or why not."""

    config: KernelConfig
    problem: AttentionProblem
    kernel: CompiledKernel | None
    obstacle: Refused | DidNotCompile | None = None
    same_as: KernelConfig | None = None  # an earlier candidate with equal machine code


Pair = tuple[KernelConfig, AttentionProblem]
FirstOfCode = dict[tuple[AttentionProblem, str], KernelConfig]  # by problem and hash of the code


def artefact_facts(candidate: Candidate) -> dict[str, object]:
    """What the compiler says of a candidate: registers, spills, and blocks that an SM holds."""
    if candidate.kernel is None:
        return {}
    used = candidate.kernel.resources
    room = occupancy(
        get_arch(candidate.kernel.arch),
        threads=candidate.config.threads,
        registers=used.registers,
        smem_bytes=candidate.config.smem_bytes() + used.static_smem_bytes,
    )
    return {
        "registers": used.registers,
        "spill_bytes": used.spill_bytes,
        "smem_bytes": candidate.config.smem_bytes(),
        "blocks_per_sm": room.blocks,
        "limit": room.limit,
    }


def competes(
    config: KernelConfig, problem: AttentionProblem, configs: Sequence[KernelConfig]
) -> bool:
    """Whether a configuration is meant for a problem: its dtype, and no wider than needed.

    What is needed is the least width that its kernel has among `configs`.
    """
    widths = [c.d_head for c in configs if type(c) is type(config) and c.d_head >= problem.d_head]
    return config.dtype is problem.dtype and bool(widths) and config.d_head == min(widths)


def default_configs(arch_name: str) -> list[KernelConfig]:
    """What can win on an architecture: the tuning sets of all kernels that run there."""
    return [
        config
        for kernel in reversed(CATALOGUE)  # those of newer GPUs first
        if kernel.runs_on(arch_name)
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
    jobs = {pair: _job(*pair, target, arch) for pair in pairs}
    wanted = list(dict.fromkeys(j for j in jobs.values() if isinstance(j, CompileJob)))
    made = dict(zip(wanted, compile_many(wanted, progress=progress), strict=True))
    known = {} if first is None else first
    return [_candidate(pair, jobs[pair], made, known) for pair in pairs]


def _job(
    config: KernelConfig, problem: AttentionProblem, target: Target, arch: Arch
) -> CompileJob | Refused:
    try:
        require_computable(config, problem)
        config.require_buildable(arch)
        needs = needs_of(config, problem)
    except FlashsmithError as error:
        return Refused(str(error))
    return CompileJob(config, needs, target.arch)


def compile_for_screening(candidates: Sequence[Candidate], target: Target) -> None:
    """Fills the kernel cache with what checks and fingerprints of candidates will ask for."""
    sound = [c for c in candidates if c.kernel is not None]
    wanted = [job for c in sound for job in _checking_jobs(c.config, c.problem, target)]
    compile_many(list(dict.fromkeys(wanted)))


def compile_for_gate(config: KernelConfig, target: Target) -> None:
    """Fills the kernel cache, on all cores, with what the gate's cases will ask for one by one.

    What does not compile is told by the gate itself.
    """
    compile_many(_case_jobs(config, full_cases(config), target))


def _checking_jobs(
    config: KernelConfig, problem: AttentionProblem, target: Target
) -> list[CompileJob]:
    """The kernels that checking a configuration and taking its fingerprint will ask for."""
    needs = needs_of(config, fingerprint_problem(problem))
    fingerprint = CompileJob(config, needs, target.arch)
    return [*_case_jobs(config, quick_cases(config), target), fingerprint]


def _case_jobs(config: KernelConfig, cases: Sequence[Case], target: Target) -> list[CompileJob]:
    """The kernels of cases, each once."""
    needed = dict.fromkeys(needs_of(config, case.problem) for case in cases)
    return [CompileJob(config, needs, target.arch) for needs in needed]


def _candidate(
    pair: tuple[KernelConfig, AttentionProblem],
    job: CompileJob | Refused,
    made: dict[CompileJob, CompiledKernel | FlashsmithError],
    first: FirstOfCode,
) -> Candidate:
    config, problem = pair
    if isinstance(job, Refused):
        return Candidate(config, problem, None, job)
    kernel = made[job]
    if isinstance(kernel, FlashsmithError):
        return Candidate(config, problem, None, DidNotCompile(str(kernel)))
    same = first.setdefault((problem, kernel.code), config)
    return Candidate(config, problem, kernel, same_as=None if same == config else same)
