"""From a configuration, or CUDA text, to PTX and cubin: through the cache, else through NVRTC."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, CompileError, FlashsmithError, Unsupported
from flashsmith.base.threads import dropping_threads
from flashsmith.compile.ahead_of_time.bundle import open_bundle
from flashsmith.compile.artefact import CompiledKernel, PtxKernel, ptx_of
from flashsmith.compile.cache.kernel_cache import SCHEMA, KernelCache, default_cache
from flashsmith.compile.header_closure import INCLUDE_ROOT, closure_hash
from flashsmith.compile.machine.resources import parse_resources
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.compile.unit import UnitOptions, unit_source
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.problem.needs import Needs

if TYPE_CHECKING:
    from flashsmith.compile.nvrtc.program import NvrtcOutput

# The include folder is left out of the key: what lies in it is there by content.
PTX_OPTIONS = ("-std=c++20", "-default-device")
OPTIONS = (*PTX_OPTIONS, "--ptxas-options=-v")
DEFAULT_OPTIONS = UnitOptions()

_log = logging.getLogger("flashsmith.compile")
_Kernel = TypeVar("_Kernel", bound=PtxKernel)


class CompileJob(NamedTuple):
    """One kernel to compile."""

    config: KernelConfig
    needs: Needs
    arch: str
    options: UnitOptions = DEFAULT_OPTIONS


def compile_kernel(
    config: KernelConfig,
    needs: Needs,
    arch: str,
    *,
    options: UnitOptions = DEFAULT_OPTIONS,
    cache: KernelCache | None = None,
) -> CompiledKernel:
    """The kernel of `config` for `needs` on `arch`, from the cache where it is there.

    Where a bundle is set and nothing is asked that only a compiler can give, it comes from there.
    """
    bundle = settings.bundle_path()
    if bundle is not None and options == DEFAULT_OPTIONS and cache is None:
        return open_bundle(bundle).kernel(config, needs, arch)
    kernel = _compile(_unit(config, needs, arch, options), cache)
    return kernel if options.debug else _accepted(config, kernel)


def compile_ptx(
    config: KernelConfig, needs: Needs, arch: str, *, cache: KernelCache | None = None
) -> PtxKernel:
    """As `compile_kernel`, without machine code, which is nearly half of the work.

    What the compiler would make of it is not judged: what spills is given as well.
    """
    bundle = settings.bundle_path()
    if bundle is not None and cache is None:
        return open_bundle(bundle).kernel(config, needs, arch)
    unit = _unit(config, needs, arch, DEFAULT_OPTIONS)
    cache = cache or default_cache()
    key = cache_key(unit.source, _virtual(arch), find_nvrtc().compiler, unit.options)

    def kept() -> PtxKernel | None:
        return cache.get_ptx(key) or ptx_of(cache.get(unit.key))  # the PTX of both is the same

    return _kept_or(kept, cache, key, lambda to: _build_ptx(unit, key, to))


def _unit(config: KernelConfig, needs: Needs, arch: str, options: UnitOptions) -> _Unit:
    if not config.runs_on(arch):
        raise Unsupported(
            f"{config.short_form()}: its instructions do not exist on {arch}; choose a "
            f"configuration that `flashsmith configs --arch {arch}` lists."
        )
    name = config.kernel_name(needs)
    return _Unit(unit_source(config, needs), name, config.short_form(), arch, options)


def _virtual(arch: str) -> str:
    """The architecture of PTX: `compute_90a` for `sm_90a`."""
    return arch.replace("sm_", "compute_")


def kept_kernel(config: KernelConfig, needs: Needs, arch: str) -> CompiledKernel | None:
    """As `compile_kernel`, from the bundle or the cache; None where it would have to compile."""
    bundle = settings.bundle_path()
    if bundle is not None:
        return open_bundle(bundle).kernel(config, needs, arch)
    source, name = unit_source(config, needs), config.kernel_name(needs)
    unit = _Unit(source, name, config.short_form(), arch, DEFAULT_OPTIONS)
    kernel = default_cache().get(unit.key)
    return kernel if kernel is None else _accepted(config, kernel)


def _accepted(config: KernelConfig, kernel: CompiledKernel) -> CompiledKernel:
    """The kernel; raises where the compiler made of it what the configuration refuses."""
    made = kernel.resources
    refusal = config.refused_build(made.spill_bytes, made.warnings)
    if refusal is not None:
        raise Unsupported(f"{config.short_form()}: {refusal}.")
    return kernel


def compile_text(
    source: str,
    name: str,
    arch: str,
    *,
    options: UnitOptions = DEFAULT_OPTIONS,
    cache: KernelCache | None = None,
) -> CompiledKernel:
    """The kernel `extern "C" name` of a CUDA C++ text; it may include "flashsmith/…" headers."""
    return _compile(_Unit(source, name, name, arch, options), cache)


def compile_many(
    jobs: Sequence[CompileJob],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    cache: KernelCache | None = None,
) -> list[CompiledKernel | FlashsmithError]:
    """Compiles on all cores; in the order of `jobs`, an error standing where a kernel would."""

    def one(job: CompileJob) -> CompiledKernel | FlashsmithError:
        try:
            return compile_kernel(job.config, job.needs, job.arch, options=job.options, cache=cache)
        except FlashsmithError as error:
            return error

    # Threads are enough: NVRTC compiles in parallel and holds no Python lock meanwhile.
    with dropping_threads(workers or available_cores()) as pool:
        futures = [pool.submit(one, job) for job in jobs]
        for done, _ in enumerate(as_completed(futures), start=1):
            if progress is not None:
                progress(done, len(jobs))
    return [future.result() for future in futures]


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_key(source: str, arch: str, compiler: str, options: UnitOptions) -> str:
    """SHA-256 over all that decides the machine code."""
    flags = [*_options(arch), *options.flags()]
    parts = [SCHEMA, source, closure_hash(source), compiler, flags, arch]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _options(arch: str) -> tuple[str, ...]:
    return PTX_OPTIONS if arch.startswith("compute_") else OPTIONS


def kernel_source_hash(config: KernelConfig, needs: Needs) -> str:
    """What `CompiledKernel.source_hash` is for a kernel, without compiling it."""
    return _source_hash(unit_source(config, needs))


def _source_hash(source: str) -> str:
    return hashlib.sha256((source + closure_hash(source)).encode()).hexdigest()


class _Unit(NamedTuple):
    """All that decides one kernel, and its name in messages."""

    source: str
    name: str
    subject: str
    arch: str
    options: UnitOptions

    @property
    def key(self) -> str:
        return cache_key(self.source, self.arch, find_nvrtc().compiler, self.options)


def _compile(unit: _Unit, cache: KernelCache | None) -> CompiledKernel:
    if not re.fullmatch(r"sm_\d{2,3}[af]?", unit.arch):
        raise ArgumentError(
            f"arch is {unit.arch!r}; it must be a real architecture such as 'sm_90a'."
        )
    cache = cache or default_cache()
    key = unit.key
    return _kept_or(lambda: cache.get(key), cache, key, lambda to: _build(unit, key, to))


def _kept_or(
    kept: Callable[[], _Kernel | None],
    cache: KernelCache,
    key: str,
    build: Callable[[KernelCache | None], _Kernel],
) -> _Kernel:
    """What is kept, else what is built under the lock of its key."""
    found = kept()
    if found is not None:
        return found
    with ExitStack() as held:
        try:
            held.enter_context(cache.lock(key))
        except OSError as error:
            _say_unwritable(cache.root, error.strerror or str(error))
            return build(None)
        # Looked at again: another process may have compiled it while this one waited.
        return kept() or build(cache)


def _build(unit: _Unit, key: str, cache: KernelCache | None) -> CompiledKernel:
    output, seconds = _run_compiler(unit, unit.arch, key, cache)
    kernel = CompiledKernel(
        name=unit.name,
        arch=unit.arch,
        ptx=output.ptx,
        cubin=output.cubin,
        resources=parse_resources(output.log, unit.name),
        compiler=find_nvrtc().compiler,
        source_hash=_source_hash(unit.source),
        key=key,
        compile_seconds=seconds,
    )
    return _placed(kernel, unit, output.log, cache)


def _build_ptx(unit: _Unit, key: str, cache: KernelCache | None) -> PtxKernel:
    output, seconds = _run_compiler(unit, _virtual(unit.arch), key, cache)
    kernel = PtxKernel(
        name=unit.name,
        arch=unit.arch,
        ptx=output.ptx,
        compiler=find_nvrtc().compiler,
        source_hash=_source_hash(unit.source),
        key=key,
        compile_seconds=seconds,
    )
    return _placed(kernel, unit, output.log, cache)


def _placed(kernel: _Kernel, unit: _Unit, log: str, cache: KernelCache | None) -> _Kernel:
    """The kernel, with the folder of the cache that it was written to."""
    folder = _written(cache, lambda to: to.put(kernel, unit.source, log))
    return replace(kernel, folder=folder)


def _run_compiler(
    unit: _Unit, arch: str, key: str, cache: KernelCache | None
) -> tuple[NvrtcOutput, float]:
    """What NVRTC makes of a unit, and the seconds that took; keeps what it refuses."""
    from flashsmith.compile.nvrtc import program as nvrtc
    from flashsmith.compile.nvrtc.apart import compile_apart

    library = find_nvrtc()
    flags = [*_options(arch), *unit.options.flags(), f"--gpu-architecture={arch}"]
    if (library.cuda_major or 0) >= 13:
        # Beside a driver NVRTC 13 keeps machine code of its own, and what it finds there comes
        # without the compiler's figures.
        flags.append("--no-cache")
    started = time.perf_counter()
    try:
        is_apart = unit.options.debug or not nvrtc.survived_fork()
        compile_unit = compile_apart if is_apart else nvrtc.compile_program
        output = compile_unit(library, unit.source, "kernel.cu", [*flags, f"-I{INCLUDE_ROOT}"])
    except nvrtc.RefusedUnit as error:
        log = error.log
        kept = _written(cache, lambda to: to.keep_failure(key, unit.source, log))
        raise CompileError(unit.subject, log, kept) from error
    return output, time.perf_counter() - started


def _written(cache: KernelCache | None, write: Callable[[KernelCache], Path]) -> Path | None:
    """The folder that was written; None where there is no cache, or it cannot be written."""
    if cache is None:
        return None
    try:
        return write(cache)
    except OSError as error:
        _say_unwritable(cache.root, error.strerror or str(error))
        return None


@functools.lru_cache(maxsize=8)  # once a folder and reason
def _say_unwritable(root: Path, reason: str) -> None:
    _log.warning("the cache folder %s cannot be written (%s); kernels are not kept", root, reason)
