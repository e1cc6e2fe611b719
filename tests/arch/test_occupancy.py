"""Occupancy: NVIDIA's own header agrees, and more of a resource never gives more blocks."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashsmith import arch
from flashsmith.arch.occupancy import occupancy

POINTS = Path(__file__).parents[1] / "data" / "occupancy_points.csv"
# The bits of `limitingFactors` in cuda_occupancy.h.
LIMIT_BITS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8, "barriers": 16}


def _points():
    with POINTS.open(encoding="utf-8") as lines:
        version = next(lines)
        return version, list(csv.DictReader(lines))


def test_the_stored_points_say_where_they_come_from_and_cover_every_architecture():
    version, points = _points()
    assert "nvidia-cuda-runtime 13." in version
    assert len(points) == 2000
    assert {p["arch"] for p in points} == {a.name for a in arch.ARCHES}
    for bit in LIMIT_BITS.values():
        assert any(int(p["limits"]) & bit for p in points)


def test_blocks_and_limit_agree_with_cuda_occupancy_h():
    for point in _points()[1]:
        names = ("threads", "registers", "smem_bytes", "barriers")
        result = occupancy(arch.get(point["arch"]), **{n: int(point[n]) for n in names})
        assert result.blocks == int(point["blocks"]), point
        assert LIMIT_BITS[result.limit] & int(point["limits"]), point


@given(
    st.sampled_from(arch.ARCHES),
    st.integers(1, 1024),
    st.integers(1, 254),
    st.integers(0, 200_000),
    st.integers(1, 15),
)
def test_more_of_any_resource_never_gives_more_blocks(device, threads, registers, smem, barriers):
    base = {"threads": threads, "registers": registers, "smem_bytes": smem, "barriers": barriers}
    blocks = occupancy(device, **base).blocks
    for name in base:
        more = base | {name: base[name] + 1}
        assert occupancy(device, **more).blocks <= blocks


@pytest.mark.parametrize(
    ("limit", "needs"),
    [
        ("registers", {"threads": 128, "registers": 255, "smem_bytes": 0}),
        ("shared memory", {"threads": 128, "registers": 32, "smem_bytes": 120_000}),
        ("warps", {"threads": 1024, "registers": 16, "smem_bytes": 0}),
        ("blocks", {"threads": 32, "registers": 16, "smem_bytes": 0}),
        ("barriers", {"threads": 128, "registers": 16, "smem_bytes": 0, "barriers": 16}),
    ],
)
def test_the_limit_that_binds_is_named(limit, needs):
    assert occupancy(arch.get("sm_90a"), **needs).limit == limit


def test_a_block_that_does_not_fit_has_no_occupancy():
    sm_86 = arch.get("sm_86")
    too_much = occupancy(sm_86, threads=128, registers=64, smem_bytes=101_377)
    assert (too_much.blocks, too_much.limit) == (0, "shared memory")
    assert occupancy(sm_86, threads=128, registers=64, smem_bytes=101_376).blocks == 1
