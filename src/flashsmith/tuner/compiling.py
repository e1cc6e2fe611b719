"""Many kernels compiled ahead, a process a core: threads of one NVRTC wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from flashsmith.base import settings
from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import (
    CompileJob,
    available_cores,
    cache_key,
    compile_kernel,
    compile_many,
)
from flashsmith.compile.kernel_cache import default_cache
from flashsmith.compile.nvrtc_library import find_nvrtc
from flashsmith.compile.source import unit_source
from flashsmith.config import parse_config
from flashsmith.config.traits import ForwardTraits
from flashsmith.tuner.executor import Reply
from flashsmith.tuner.worker_pool import WorkerPool

EVALUATOR = "flashsmith.tuner.compiling:evaluate"
WORTH_A_PROCESS = 3  # kernels; fewer are compiled before a process has started
COMPILE_SECONDS = 300.0  # the slowest real kernel takes a few


def compile_in_processes(
    jobs: Sequence[CompileJob], progress: Callable[[int, int], None] | None = None
) -> list[CompiledKernel | FlashsmithError]:
    """As `compile_many`: what the cache does not have is compiled by a child on every core."""
    missing = [job for job in jobs if not _is_cached(job)]
    workers = min(available_cores(), len(missing) // WORTH_A_PROCESS)
    if workers < 2 or settings.bundle_path() is not None:
        return compile_many(jobs, progress=progress)
    done = len(jobs) - len(missing)

    def on_reply(number: int, reply: Reply) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(jobs))

    with WorkerPool(workers, EVALUATOR) as pool:
        pool.run([_to_json(job) for job in missing], COMPILE_SECONDS, on_reply)
    # Now all are in the cache but those that do not compile, which say why here.
    return compile_many(jobs)


def evaluate(data: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Compiles one kernel into the cache; its error is told to whoever asks for it next."""
    config, traits = parse_config(data["config"]), ForwardTraits(**data["traits"])
    try:
        compile_kernel(config, traits, data["arch"])
    except FlashsmithError:
        return {"compiled": False}
    return {"compiled": True}


def _to_json(job: CompileJob) -> dict[str, Any]:  # Any: JSON
    return {"config": job.config.short_form(), "traits": asdict(job.traits), "arch": job.arch}


def _is_cached(job: CompileJob) -> bool:
    source = unit_source(job.config, job.traits)
    key = cache_key(source, job.arch, find_nvrtc().compiler, job.options)
    return default_cache().get(key) is not None
