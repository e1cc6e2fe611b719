"""Which measurements no longer describe the kernels of this version, as far as can be told here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.artefact import CompiledKernel
from flashsmith.compile.compiler import CompileJob, compile_many
from flashsmith.compile.nvrtc.library import find_nvrtc
from flashsmith.kernels import parse_config
from flashsmith.kernels.plans import needs_of
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
    jobs = {m.key: _job(m.key) for m in found if _is_compared(m.key, compiler)}
    wanted = list(dict.fromkeys(job for job in jobs.values() if job is not None))
    made = dict(zip(wanted, compile_many(wanted), strict=True))
    return [(m, _standing(m.key, jobs, made, compiler)) for m in found]


def stale_measurements(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those that are known to be of other kernels than this version's."""
    return [m for m, standing in standings(measurements) if standing is Standing.STALE]


def _is_compared(key: MeasurementKey, compiler: str) -> bool:
    return bool(key.code) and not key.code.startswith(UNKNOWN) and key.compiler == compiler


def _standing(
    key: MeasurementKey,
    jobs: dict[MeasurementKey, CompileJob | None],
    made: dict[CompileJob, CompiledKernel | FlashsmithError],
    compiler: str,
) -> Standing:
    if not key.code:  # refused before it was compiled: a rule may have changed, nobody can tell
        return Standing.CURRENT
    if key.code.startswith(UNKNOWN):
        return Standing.STALE
    if key.compiler != compiler:
        return Standing.UNCHECKABLE
    job = jobs[key]
    kernel = made[job] if job is not None else None
    is_same = isinstance(kernel, CompiledKernel) and kernel.code == key.code
    return Standing.CURRENT if is_same else Standing.STALE


def _job(key: MeasurementKey) -> CompileJob | None:
    """The kernel of a measurement; None where its configuration exists no more."""
    try:
        config = parse_config(key.config)
        return CompileJob(config, needs_of(config, key.problem), key.arch)
    except FlashsmithError:
        return None


def uncheckable_compilers(found: Sequence[tuple[Measurement, Standing]]) -> list[str]:
    """The compilers whose machine code cannot be compared here."""
    return sorted({m.key.compiler for m, s in found if s is Standing.UNCHECKABLE})
