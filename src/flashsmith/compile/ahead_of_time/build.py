"""Which kernels an ahead-of-time build of a set consists of, and the bundle made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flashsmith.arch import Arch
from flashsmith.base.errors import FlashsmithError, Unsupported
from flashsmith.compile.ahead_of_time.bundle import write_bundle
from flashsmith.compile.ahead_of_time.registry import REGISTERED_NEEDS
from flashsmith.compile.artefact import Built
from flashsmith.compile.cache.kernel_cache import KernelCache
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.compile.survey import why_not
from flashsmith.kernels.kernel import KernelConfig


def build_bundle(
    configs: Sequence[KernelConfig],
    arches: Sequence[Arch],
    path: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    cache: KernelCache | None = None,
) -> Built:
    """Compiles the registered kernels of every configuration that fits, and writes the bundle."""
    started = time.perf_counter()
    every = dict.fromkeys(kernel for config in configs for kernel in config.kernels())
    pairs = [(c, a) for a in arches for c in every if not why_not(c, a)]
    if not pairs:
        reasons = {why_not(config, arch) for arch in arches for config in configs}
        raise Unsupported(f"no configuration fits: {'; '.join(sorted(reasons))}")
    jobs = [CompileJob(c, needs, a.name) for c, a in pairs for needs in REGISTERED_NEEDS]
    made = compile_many(jobs, workers=workers, progress=progress, cache=cache)
    kernels, left_out = [], []
    for job, kernel in zip(jobs, made, strict=True):
        if isinstance(kernel, Unsupported):  # the compiler showed that it is not worth having
            left_out.append(f"{job.arch} {job.needs.identifier()}: {kernel}")
        elif isinstance(kernel, FlashsmithError):
            raise kernel
        else:
            kernels.append((job.config, job.needs, kernel))
    n_bytes = write_bundle(kernels, path)
    return Built(
        path=path,
        n_configs=len({config for config, _, _ in kernels}),
        n_kernels=len(kernels),
        n_bytes=n_bytes,
        seconds=time.perf_counter() - started,
        compiler=find_nvrtc().compiler,
        left_out=tuple(left_out),
    )
