"""Which measurements no longer describe the kernels of this version, as far as can be told here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import parse_config
from flashsmith.tuner.store.machine_code import code_of, jobs_of
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.version_0_1 import UNKNOWN


class Standing(Enum):
    """What comparing machine code says of a measurement."""

    CURRENT = "current"
    STALE = "stale"  # its kernel has other machine code by now, or exists no more
    UNCHECKABLE = "not checkable here"  # another compiler made it; used, and said


def standings(measurements: Iterable[Measurement]) -> list[tuple[Measurement, Standing]]:
    """Compiles the kernels of measurements that this machine's compiler made, and compares."""
    found = list(measurements)
    compiler = find_nvrtc().compiler
    jobs = {m.key: _jobs(m.key) for m in found if _is_compared(m.key, compiler)}
    wanted = list(dict.fromkeys(job for group in jobs.values() for job in group))
    made = dict(zip(wanted, compile_many(wanted), strict=True))
    return [(m, _standing(m.key, jobs, made, compiler)) for m in found]


def stale_measurements(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those that are known to be of other kernels than this version's."""
    return [m for m, standing in standings(measurements) if standing is Standing.STALE]


def _is_compared(key: MeasurementKey, compiler: str) -> bool:
    return bool(key.code) and not key.code.startswith(UNKNOWN) and key.compiler == compiler


def _standing(
    key: MeasurementKey,
    jobs: dict[MeasurementKey, tuple[CompileJob, ...]],
    made: dict[CompileJob, CompiledKernel | FlashsmithError],
    compiler: str,
) -> Standing:
    if not key.code:  # refused before it was compiled: a rule may have changed, nobody can tell
        return Standing.CURRENT
    if key.code.startswith(UNKNOWN):
        return Standing.STALE
    if key.compiler != compiler:
        return Standing.UNCHECKABLE
    built = [made[job] for job in jobs[key]]
    kernels = [kernel for kernel in built if isinstance(kernel, CompiledKernel)]
    is_same = bool(kernels) and len(kernels) == len(built) and code_of(kernels) == key.code
    return Standing.CURRENT if is_same else Standing.STALE


def _jobs(key: MeasurementKey) -> tuple[CompileJob, ...]:
    """The kernels of a measurement; none where its configuration exists no more."""
    try:
        return jobs_of(parse_config(key.config), key.problem, key.arch)
    except FlashsmithError:
        return ()


def uncheckable_compilers(found: Sequence[tuple[Measurement, Standing]]) -> list[str]:
    """The compilers whose machine code cannot be compared here."""
    return sorted({m.key.compiler for m, s in found if s is Standing.UNCHECKABLE})
