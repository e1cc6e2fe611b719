"""Kernels that come with a wheel: what the shipped measurements choose needs no compiler."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import DamagedFile, FlashsmithError, Unsupported
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.bundle import open_bundle, write_bundle
from flashsmith.compile.compiler import (
    CompileJob,
    compile_kernel,
    compile_many,
    kernel_source_hash,
)
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.config.parse import parse_config
from flashsmith.config.traits import ForwardTraits
from flashsmith.runtime.launch import plan
from flashsmith.tuner import measured
from flashsmith.tuner.measurement import Measurement

_ANY_SM_COUNT = 132  # a plan's compile-time facts do not depend on it
_log = logging.getLogger("flashsmith.choose")


def shipped_or_compiled(config: KernelConfig, traits: ForwardTraits, arch: str) -> CompiledKernel:
    """The kernel that came with the package, if it is of these sources; else a compiled one."""
    path = bundle_path(arch)
    kernel = _shipped(path, config, traits, arch) if path.exists() else None
    return kernel if kernel is not None else compile_kernel(config, traits, arch)


def bundle_path(arch: str) -> Path:
    """Where the kernels for an architecture are, in a package that has them."""
    return measured.SHIPPED_FOLDER / f"{arch}.bundle"


def _shipped(
    path: Path, config: KernelConfig, traits: ForwardTraits, arch: str
) -> CompiledKernel | None:
    try:
        kernel = open_bundle(path).kernel(config, traits, arch)
    except Unsupported:
        return None
    except DamagedFile as error:
        _log.warning("%s Kernels are compiled instead.", error)
        return None
    # One that covers more than was asked would be right and slower.
    is_exact = kernel.name == config.kernel_name(traits)
    return kernel if is_exact and kernel.source_hash == kernel_source_hash(config, traits) else None


def write_shipped_kernels() -> dict[Path, int]:
    """Compiles what the shipped measurements may choose, beside them; files and their kernels."""
    files = sorted(measured.SHIPPED_FOLDER.glob("*.jsonl"))
    items = [item for path in files for item in measured.choosable(path)]
    return {
        bundle_path(arch): write_kernels_of(
            [item for item in items if item.key.arch == arch], bundle_path(arch)
        )
        for arch in sorted({item.key.arch for item in items})
    }


def write_kernels_of(items: Iterable[Measurement], path: Path) -> int:
    """Compiles the kernels of measurements into one bundle; returns how many there are."""
    wanted = list(dict.fromkeys(_jobs(items)))
    kernels = []
    for job, kernel in zip(wanted, compile_many(wanted), strict=True):
        if isinstance(kernel, FlashsmithError):
            raise kernel
        kernels.append((job.config, job.traits, kernel))
    write_bundle(kernels, path)
    return len(kernels)


def _jobs(items: Iterable[Measurement]) -> Iterator[CompileJob]:
    """The kernel of every measurement, in both element types, with LSE and without."""
    for item in items:
        for dtype in DType:
            fields: dict[str, Any] = {"dtype": dtype}  # Any: a field of each family
            config = replace(parse_config(item.key.config), **fields)
            problem = replace(item.key.problem, dtype=dtype)
            for lse in (False, True):
                traits = plan(config, problem, lse=lse, sm_count=_ANY_SM_COUNT).traits
                yield CompileJob(config, traits, item.key.arch)
