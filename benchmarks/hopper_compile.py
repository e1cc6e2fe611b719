"""Compiles many kernels into the cache, a process a core: NVRTC's threads wait for each other."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.compiler import CompileJob, available_cores, compile_many


def compile_apart(jobs: Iterable[CompileJob]) -> list[str]:
    """Compiles every job once; what did not compile, and why."""
    wanted = list(dict.fromkeys(jobs))
    with ProcessPoolExecutor(available_cores(), get_context("spawn")) as pool:
        errors = [text for text in pool.map(_error, wanted) if text]
    print(f"{len(wanted) - len(errors)} kernels compiled", *errors, sep="\n", flush=True)
    return errors


def _error(job: CompileJob) -> str:
    (kernel,) = compile_many([job], workers=1)
    return str(kernel) if isinstance(kernel, FlashsmithError) else ""
