"""Kernels that come with a wheel: what the shipped measurements choose needs no compiler."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from flashsmith.base.dtypes import DType
from flashsmith.base.errors import DamagedFile, FlashsmithError, Unsupported
from flashsmith.base.loose_types import KnobValue
from flashsmith.compile.ahead_of_time.bundle import open_bundle, write_bundle
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import (
    CompileJob,
    compile_kernel,
    compile_many,
    kept_kernel,
    kernel_source_hash,
)
from flashsmith.compile.nvrtc.library import loads_on_driver
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.parse import parse_config
from flashsmith.kernels.plans import kernels_of
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.signature import BACKWARD, FORWARD
from flashsmith.tuner.choose import measured
from flashsmith.tuner.choose.choice import choose
from flashsmith.tuner.store.machine_code import jobs_of
from flashsmith.tuner.store.measurement import Measurement

GROUPS = (1, 2, 4, 8)  # heads of Q for each of K, as models that are trained have them
_BATCH, _PAGE = 4, 16  # any numbers
_ROOMS = (256, 512, 1024, 2048, 4096, 8192, 16384)  # of padded sequences; measured winners differ
_WINDOWS = (128, 1024, 4096)  # keys that rows see before their own, as models that are trained do
_TILES = 8  # any number: the lengths only have to be whole tiles, or not
_log = logging.getLogger("flashsmith.choose")


def shipped_or_compiled(config: KernelConfig, needs: Needs, arch: str) -> CompiledKernel:
    """The kernel that came with the package, if it is of these sources; else a compiled one.

    It has no PTX: a device that runs PTX asks the compiler.
    """
    kernel = _shipped(config, needs, arch)
    return kernel if kernel is not None else compile_kernel(config, needs, arch)


def shipped_or_kept(config: KernelConfig, needs: Needs, arch: str) -> CompiledKernel | None:
    """The same where nothing has to be compiled, else None."""
    kernel = _shipped(config, needs, arch)
    return kernel if kernel is not None else kept_kernel(config, needs, arch)


def bundle_path(arch: str) -> Path:
    """Where the kernels for an architecture are, in a package that has them."""
    return measured.SHIPPED_FOLDER / f"{arch}.bundle"


def _shipped(config: KernelConfig, needs: Needs, arch: str) -> CompiledKernel | None:
    path = bundle_path(arch)
    if not path.exists():
        return None
    try:
        kernel = open_bundle(path).kernel(config, needs, arch)
    except Unsupported:
        return None
    except DamagedFile as error:
        _log.warning("%s Kernels are compiled instead.", error)
        return None
    # One that covers more than was asked would be right and slower.
    is_exact = kernel.name == config.kernel_name(needs)
    is_current = kernel.source_hash == kernel_source_hash(config, needs)
    return kernel if is_exact and is_current and loads_on_driver(kernel.compiler) else None


def current_kernels(path: Path) -> int:
    """How many kernels of a package's bundle are of the package's sources."""
    found = open_bundle(path).source_hashes().items()
    return sum(source == kernel_source_hash(config, needs) for (config, needs, _), source in found)


def write_shipped_kernels() -> dict[Path, int]:
    """Compiles what the shipped measurements may choose, beside them; files and their kernels."""
    made = {}
    for arch, jobs in shipped_jobs().items():
        made[bundle_path(arch)] = _write_kernels(jobs, bundle_path(arch), with_ptx=False)
    return made


def shipped_jobs() -> dict[str, list[CompileJob]]:
    """The kernels of every choice that a shipped measurement can lead to, by architecture.

    And what rules choose: gradients, since who trains calls both; packed sequences, lengths,
    chunks on caches and causal windows, of the widths that were measured.
    """
    files = sorted(measured.SHIPPED_FOLDER.glob("*.jsonl"))
    items = [item for path in files for item in measured.choosable(path)]
    by_arch: dict[str, list[CompileJob]] = {}
    for job in dict.fromkeys([*_jobs(items), *_ruled_jobs(items)]):
        by_arch.setdefault(job.arch, []).append(job)
    return dict(sorted(by_arch.items()))


def write_kernels_of(items: Iterable[Measurement], path: Path) -> int:
    """Compiles the kernels of measurements into one bundle; returns how many there are."""
    return _write_kernels(list(dict.fromkeys(_jobs(items))), path, with_ptx=True)


def _write_kernels(jobs: list[CompileJob], path: Path, *, with_ptx: bool) -> int:
    kernels = []
    for job, kernel in zip(jobs, compile_many(jobs), strict=True):
        if isinstance(kernel, Unsupported):  # the choice passes it over, and so it is not there
            _log.warning("%s: left out: %s", job.needs.identifier(), kernel)
        elif isinstance(kernel, FlashsmithError):
            raise kernel
        else:
            kernels.append((job.config, job.needs, kernel))
    write_bundle(kernels, path, with_ptx=with_ptx)
    return len(kernels)


def _jobs(items: Iterable[Measurement]) -> Iterator[CompileJob]:
    """The kernels of every measurement: both element types, whole tiles and not, LSE or none.

    A measurement speaks for lengths near its own, whole tiles or not, with its d_head and mask.
    """
    for item in items:
        is_forward = item.key.problem.operation == FORWARD.operation
        for dtype, lse in product(DType, (False, True) if is_forward else (False,)):
            fields: dict[str, KnobValue] = {"dtype": dtype}
            config = replace(parse_config(item.key.config), **fields)
            problem = replace(item.key.problem, dtype=dtype, lse=lse)
            yield from _whole_tiles_or_not(config, problem, item.key.arch)


def _ruled_jobs(items: Sequence[Measurement]) -> Iterator[CompileJob]:
    yield from _gradient_jobs(items)
    yield from _listed_jobs(items)
    yield from _window_jobs(items)


def _gradient_jobs(items: Iterable[Measurement]) -> Iterator[CompileJob]:
    """What is chosen for the gradients of measured forward problems, both element types."""
    for item, dtype, group in product(items, DType, GROUPS):
        measured_problem = item.key.problem
        if measured_problem.operation != FORWARD.operation or measured_problem.heads % group:
            continue
        problem = replace(
            measured_problem,
            operation=BACKWARD.operation,
            dtype=dtype,
            lse=False,
            kv_heads=measured_problem.heads // group,
        )
        config = choose(problem, item.key.arch, gpu=item.key.gpu).config
        if config is not None:
            yield from _whole_tiles_or_not(config, problem, item.key.arch)


def _listed_jobs(items: Iterable[Measurement]) -> Iterator[CompileJob]:
    """What is chosen for packed sequences and lengths in memory, of the measured widths.

    Kernels of decoding are many and small: these compile at their first call.
    """
    for (arch, gpu, d_head), dtype in product(_widths(items), DType):
        for problem in _listed_problems(d_head, dtype):
            config = choose(problem, arch, gpu=gpu).config
            if config is not None:
                yield from (CompileJob(*pair, arch) for pair in kernels_of(config, problem))


def _widths(items: Iterable[Measurement]) -> list[tuple[str, str, int]]:
    """Architectures, GPUs and widths that forward passes were measured on."""
    keys = [i.key for i in items if i.key.problem.operation == FORWARD.operation]
    return list(dict.fromkeys((key.arch, key.gpu, key.problem.d_head) for key in keys))


def _window_jobs(items: Iterable[Measurement]) -> Iterator[CompileJob]:
    """What is chosen for causal windows, of the measured widths, with the LSE and without it."""
    for (arch, gpu, d_head), dtype, lse in product(_widths(items), DType, (False, True)):
        found = {}
        for length, window in product(_ROOMS, _WINDOWS):
            if window < length:
                problem = AttentionProblem(
                    _BATCH, 32, 8, length, length, d_head, dtype, True, lse=lse, window_left=window
                )
                found[choose(problem, arch, gpu=gpu).config] = problem
        for config, problem in found.items():
            narrow = replace(problem, window_left=min(_WINDOWS))
            if config is not None:
                yield from _whole_tiles_or_not(config, narrow, arch)


def _listed_problems(d_head: int, dtype: DType) -> Iterator[AttentionProblem]:
    """Trained and served: one of each kernel that these may take, whatever their lengths are."""
    many = AttentionProblem(_BATCH, 32, 8, 4096, 4096, d_head, dtype)
    for causal, lse in product((False, True), (False, True)):
        yield replace(many, batch=1, causal=causal, lse=lse, sequences=_BATCH, batch_invariant=True)
    for room, causal, q_lengths in product(_ROOMS, (False, True), (False, True)):
        padded = replace(many, q_len=room, k_len=room, causal=causal)
        yield replace(padded, k_lengths=True, q_lengths=q_lengths)
    # Chunks: some are cut along the keys, and some have rows that are no whole tiles.
    for causal, q_len, k_len, page in product(
        (False, True), (32, 128, 200, 1024), (1024, 65536), (0, _PAGE)
    ):
        yield replace(
            many, q_len=q_len, k_len=k_len, causal=causal, k_lengths=True, batch_invariant=True,
            page=page, pages=page,
        )  # fmt: skip


def _whole_tiles_or_not(
    config: KernelConfig, problem: AttentionProblem, arch: str
) -> Iterator[CompileJob]:
    """The kernels of a problem near this one, of whole tiles or not of queries and of keys.

    Two lengths that are not whole are equal once, since a diagonal then ends in a corner, and once
    they are not.
    """
    rows, keys = config.tile_q * _TILES, config.tile_k * _TILES
    for q_len, k_len in product((rows, rows + 1), (keys, keys + 1, keys + 2)):
        yield from jobs_of(config, replace(problem, q_len=q_len, k_len=k_len), arch)
