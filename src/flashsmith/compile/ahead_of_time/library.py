"""`libflashsmith.so`: a set of configurations as a shared library with a C interface."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path

from flashsmith.arch import Arch
from flashsmith.base.errors import Unsupported
from flashsmith.base.threads import dropping_threads
from flashsmith.base.whole_file import written_whole
from flashsmith.compile.ahead_of_time import nvcc
from flashsmith.compile.ahead_of_time.registry import (
    REGISTERED_NEEDS,
    WrittenRegistry,
    write_registry,
)
from flashsmith.compile.artefact import Built
from flashsmith.compile.compiler import available_cores
from flashsmith.compile.survey import why_not
from flashsmith.kernels.kernel import KernelConfig


def build_library(
    configs: Sequence[KernelConfig],
    arches: Sequence[Arch],
    folder: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """Builds `libflashsmith.so` and puts it with `flashsmith.h` into `folder`."""
    started = time.perf_counter()
    compiler = nvcc.find_nvcc()
    targets = {config: _targets(config, arches) for config in configs}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libflashsmith.so"
    with tempfile.TemporaryDirectory(prefix="flashsmith-build-") as scratch:
        written = write_registry(configs, Path(scratch) / "registry")
        objects = _compile(compiler, written, targets, workers, progress)
        nvcc.link_library(compiler, objects, Path(scratch) / path.name)
        for name in ("flashsmith.h", path.name):
            made = (written.folder if name == "flashsmith.h" else Path(scratch)) / name
            with written_whole(folder / name) as beside:
                shutil.copyfile(made, beside)
    return Built(
        path=path,
        n_configs=len(written.units),
        n_kernels=len(REGISTERED_NEEDS) * sum(len(names) for names in targets.values()),
        n_bytes=path.stat().st_size,
        seconds=time.perf_counter() - started,
        compiler=nvcc.nvcc_version(compiler),
    )


def _compile(
    compiler: Path,
    written: WrittenRegistry,
    targets: dict[KernelConfig, list[str]],
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Path]:
    every = sorted({name for names in targets.values() for name in names})
    work = [(written.host_file, "flashsmith.cu", every)]
    work += [(unit, c.short_form(), targets[c]) for c, unit in written.units.items()]

    def one(source: Path, subject: str, names: list[str]) -> Path:
        path = source.with_suffix(".o")
        include = (written.folder, written.folder / "include")
        nvcc.compile_object(compiler, source, path, subject=subject, include=include, arches=names)
        return path

    with dropping_threads(workers or available_cores()) as pool:
        futures = [pool.submit(one, *item) for item in work]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            if progress is not None:
                progress(done, len(work))
    return [future.result() for future in futures]


def _targets(config: KernelConfig, arches: Sequence[Arch]) -> list[str]:
    """The architectures that `config` fits; raises where there is none."""
    reasons = {arch.name: why_not(config, arch) for arch in arches}
    fitting = [name for name, reason in reasons.items() if not reason]
    if not fitting:
        raise Unsupported(f"{config.short_form()}: {'; '.join(reasons.values())}")
    return fitting
