"""What the special registers hold in each lane."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from flashsmith.emulator.machine.unit import Unit
from flashsmith.emulator.machine.values import Value

if TYPE_CHECKING:
    from flashsmith.emulator.machine.chunk import Chunk

_U32 = np.uint32
TIMERS = frozenset(
    {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
)


def special_value(c: Chunk, u: Unit, name: str) -> Value:
    """The value of a special register: a scalar when all lanes of the grid agree."""
    base, _, axis = name.removeprefix("%").partition(".")
    if base in ("tid", "ntid"):
        if base == "ntid":
            return _U32(c.threads if axis == "x" else 1)
        return (_lane(u) + u.lane_warp * 32).astype(_U32) if axis == "x" else _U32(0)
    if base in ("ctaid", "nctaid"):
        number = "xyz".index(axis)
        if base == "nctaid":
            return _U32(c.grid[number])
        return _cta_index(c, u, number)
    if base.startswith("cluster") or base in ("nclusterid", "is_explicit_cluster"):
        return _cluster(c, u, base, axis)
    if name in TIMERS:
        return _timer(c, name)
    if base.startswith("lanemask_"):
        return _lane_mask(u, base.removeprefix("lanemask_"))
    simple: dict[str, Callable[[], Value]] = {
        "laneid": lambda: _lane(u).astype(_U32),
        "warpid": lambda: u.lane_warp.astype(_U32),
        "nwarpid": lambda: _U32(c.warps),
        "smid": lambda: _multiprocessor(c, u).astype(_U32),
        "nsmid": lambda: _U32(c.sm_count),
        "gridid": lambda: _U32(0),
        "dynamic_smem_size": lambda: _U32(c.dynamic_bytes),
        "total_smem_size": lambda: _U32(c.smem_bytes),
    }
    return simple[base]()


def _multiprocessor(c: Chunk, u: Unit) -> Value:
    """By slot where ctas begin as others end, else by number."""
    return (u.lane_cta if c.later or c.ended else c.ctas[u.lane_cta]) % c.sm_count


def _lane(u: Unit) -> Value:
    return np.tile(np.arange(32), u.pairs)


def _cta_index(c: Chunk, u: Unit, axis: int) -> Value:
    x, y, _ = c.grid
    linear = c.ctas[u.lane_cta]
    value = (linear % x, linear // x % y, linear // (x * y))[axis]
    if c.grid[axis] == 1:
        return _U32(0)
    return value.astype(_U32)


def _cluster(c: Chunk, u: Unit, base: str, axis: str) -> Value:
    linear = c.ctas[u.lane_cta]  # clusters are rows of `cluster` ctas along x
    if base in ("cluster_ctarank", "cluster_ctaid"):
        rank = (linear % c.cluster).astype(_U32)
        return rank if axis in ("", "x") and c.cluster > 1 else _U32(0)
    if base in ("cluster_nctarank", "cluster_nctaid"):
        return _U32(c.cluster if axis in ("", "x") else 1)
    if base == "is_explicit_cluster":
        return _U32(c.cluster > 1)
    number = "xyz".index(axis)
    if base == "nclusterid":
        return _U32(c.grid[0] // c.cluster if number == 0 else c.grid[number])
    index = _cta_index(c, u, number)
    return index // _U32(c.cluster) if number == 0 else index


def _timer(c: Chunk, name: str) -> Value:
    now = time.perf_counter_ns()
    if name in ("%clock64", "%globaltimer"):
        return np.uint64(now)
    return _U32(now >> 32 & 0xFFFFFFFF) if name.endswith("hi") else _U32(now & 0xFFFFFFFF)


def _lane_mask(u: Unit, which: str) -> Value:
    lane = _lane(u).astype(np.uint64)
    bit = np.uint64(1) << lane
    full = np.uint64(0xFFFFFFFF)
    masks = {
        "eq": bit,
        "lt": bit - np.uint64(1),
        "le": (bit << np.uint64(1)) - np.uint64(1),
        "ge": full & ~(bit - np.uint64(1)),
        "gt": full & ~((bit << np.uint64(1)) - np.uint64(1)),
    }
    return masks[which].astype(_U32)
