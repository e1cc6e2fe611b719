"""Kernels made ahead of the calls that need them: of shapes, of a model, or of a log of calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flashsmith.api.ahead.model_shapes import LENGTHS, ModelConfig, model_problems
from flashsmith.api.ahead.shape_log import Wanted, read_shapes
from flashsmith.arch.gpus import find_gpu
from flashsmith.base.errors import (
    ArgumentError,
    ArgumentTypeError,
    FlashsmithError,
    OutOfResources,
    Unsupported,
)
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob, compile_many, kept_kernel
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import kernels_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_text
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.run import prepare
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.choose.shipped_kernels import shipped_or_compiled, shipped_or_kept

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Warmed:
    """What `warmup` did."""

    problems: int
    kernels: int  # that the problems need together
    compiled: int  # of these, the ones that were not there
    compile_s: float  # of the compiled ones, added up: several run side by side
    seconds: float
    left_out: tuple[str, ...] = ()  # problems that no kernel computes, with the reason


def warmup(
    problems: Iterable[AttentionProblem] = (),
    *,
    model: ModelConfig | str | Path | None = None,
    log: str | Path | None = None,
    lengths: Sequence[int] = LENGTHS,
    batch: int = 1,
    dtype: str | None = None,
    training: bool = False,
    arch: str | None = None,
    gpu: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Warmed:
    """Compiles, side by side, what calls will need, so that none of them waits for a compiler.

    `problems` are the shapes of calls. `model` is a transformers configuration, or the path of its
    config.json: prefill and decoding at `lengths` and in between, in its element type or `dtype`;
    with `training` the gradients too. `log` is a file that FLASHSMITH_SHAPES named in an earlier
    run. Kernels go to the kernel cache and are loaded; with `arch` (or `gpu`, "NVIDIA H200") they
    are compiled for another machine and not loaded. `progress` is told how many kernels of how
    many are done; without it a line on stderr says so where that is a terminal.
    """
    began = time.perf_counter()
    wanted: list[Wanted] = [(_checked(problem), None) for problem in problems]
    if model is not None:
        found = model_problems(model, lengths, batch=batch, dtype=dtype, training=training)
        wanted += [(problem, None) for problem in found]
    if log is not None:
        wanted += read_shapes(Path(log))
    if not wanted:
        raise ArgumentError("nothing to warm up; give problems, a model or a log of shapes.")
    target = _Target.of(arch, gpu)
    with _shown(progress) as told:
        return _make(list(dict.fromkeys(wanted)), target, workers, told, began)


def _checked(problem: object) -> AttentionProblem:
    if isinstance(problem, AttentionProblem):
        return problem
    raise ArgumentTypeError(
        f"problems holds {str(problem)[:80]!r}; it must hold AttentionProblem objects."
    )


@dataclass(frozen=True, slots=True)
class _Target:
    """What kernels are made for; with the device, they are loaded there."""

    arch: str
    gpu: str
    device: Device | None

    @property
    def runs_ptx(self) -> bool:
        """Whether kernels are wanted with PTX: those that come with a wheel are machine code."""
        return self.device is not None and self.device.runs_ptx

    @staticmethod
    def of(arch: str | None, gpu: str | None) -> _Target:
        if arch is None and gpu is None:
            device = default_device()
            return _Target(device.arch, device.name, device)
        listed = find_gpu(gpu or "")
        if arch is None and listed is None:
            raise ArgumentError(f"gpu is {gpu!r}, which is not listed; give its arch as well.")
        return _Target(arch or (listed.arch_name if listed else ""), gpu or "", None)


def _make(
    wanted: Sequence[Wanted],
    target: _Target,
    workers: int | None,
    progress: Progress,
    began: float,
) -> Warmed:
    needed: set[CompileJob] = set()
    made: dict[CompileJob, CompiledKernel | FlashsmithError] = {}
    left_out: list[str] = []
    unusable: dict[KernelConfig, str] = {}
    waiting = list(wanted)
    while waiting:  # again only for problems whose first choice turned out to be unusable
        chosen: dict[Wanted, KernelConfig] = {}
        jobs: list[CompileJob] = []
        for item in waiting:
            try:
                chosen[item] = _chosen(item, target, unusable)
            except (ArgumentError, Unsupported, OutOfResources) as error:
                left_out.append(f"{problem_text(item[0])}: {error}")
                continue
            jobs += _jobs(item, chosen[item], target)
        new = [job for job in dict.fromkeys(jobs) if job not in needed and _is_missing(job, target)]
        made |= zip(new, compile_many(new, workers=workers, progress=progress), strict=True)
        needed.update(jobs)
        waiting = []
        for item, config in chosen.items():
            reason = _obstacle(item, config, made, target)
            if reason and item[1] is None:
                unusable[config] = reason
                waiting.append(item)
            elif reason:
                left_out.append(f"{problem_text(item[0])}: {reason}")
    kernels = [kernel for kernel in made.values() if isinstance(kernel, CompiledKernel)]
    return Warmed(
        problems=len(wanted),
        kernels=len(needed),
        compiled=len(kernels),
        compile_s=sum(kernel.compile_seconds for kernel in kernels),
        seconds=time.perf_counter() - began,
        left_out=tuple(left_out),
    )


def _chosen(item: Wanted, target: _Target, unusable: dict[KernelConfig, str]) -> KernelConfig:
    problem, given = item
    choice = choose(problem, target.arch, gpu=target.gpu, given=given, unusable=unusable)
    assert choice.config is not None
    return choice.config


def _jobs(item: Wanted, config: KernelConfig, target: _Target) -> list[CompileJob]:
    return [CompileJob(*pair, target.arch) for pair in kernels_of(config, item[0])]


def _is_missing(job: CompileJob, target: _Target) -> bool:
    """Whether a call would have to compile it."""
    kept = kept_kernel if target.runs_ptx else shipped_or_kept
    try:
        return kept(job.config, job.needs, job.arch) is None
    except Unsupported:  # of the compiled kernel: that it spills
        return True


def _obstacle(
    item: Wanted,
    config: KernelConfig,
    made: Mapping[CompileJob, CompiledKernel | FlashsmithError],
    target: _Target,
) -> str:
    """Why a choice cannot be used after all, or an empty text; loads its kernels otherwise."""
    for job in _jobs(item, config, target):
        failed = made.get(job)
        if isinstance(failed, Unsupported):
            return str(failed).removeprefix(f"{config.short_form()}: ")
        if isinstance(failed, FlashsmithError):
            raise failed
    if target.device is None:
        return ""
    compile_with = None if target.runs_ptx else shipped_or_compiled
    try:
        prepare(target.device, config, item[0], compile_with=compile_with, judged=True)
    except (Unsupported, OutOfResources) as error:
        return str(error).removeprefix(f"{config.short_form()}: ")
    return ""


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """`progress`, or what keeps one line of a terminal up to date."""
    is_watched = progress is None and sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total)
        elif is_watched:
            sys.stderr.write(f"\rflashsmith: {done} of {total} kernels compiled")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if is_watched:
            sys.stderr.write("\n")
