"""Which measurements no longer describe the kernels of this version."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from flashsmith.base.errors import FlashsmithError
from flashsmith.compile.compiler import kernel_source_hash
from flashsmith.config import parse_config
from flashsmith.runtime.launch import traits_of
from flashsmith.tuner.measurement import Measurement, MeasurementKey


def stale_measurements(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those whose kernel has another source by now, or whose configuration is no more."""
    return [m for m in measurements if m.key.source_hash and not _is_current(m.key)]


def _is_current(key: MeasurementKey) -> bool:
    return current_source_hash(key) == key.source_hash


@cache
def current_source_hash(key: MeasurementKey) -> str | None:
    """The hash of the source that would be compiled for a measurement's kernel, or None."""
    try:
        config = parse_config(key.config)
        return kernel_source_hash(config, traits_of(config, key.problem, lse=False))
    except FlashsmithError:
        return None
