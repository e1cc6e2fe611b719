"""Whole small kernels: the hand-written TMA, wgmma and cluster kernels of the emulator's tests."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from instruction_cases.case import Case, Map, relative_to_largest

FOLDER = Path(__file__).parents[2] / "tests" / "emulator" / "kernels"
SMEM_BYTES = 1024 + 6 * 16384 + 9 * 8


def _text(name: str) -> str:
    return (FOLDER / "hopper_ptx.cuh").read_text() + (FOLDER / f"{name}.cu").read_text()


def _attention() -> Case:
    rng = np.random.default_rng(12)
    rows = (200, 297, 297)
    inputs = tuple(rng.standard_normal((n, 128)).astype(np.float16) for n in rows)
    maps = tuple(
        Map(buffer, 2, (128, n), (256,), (64, 64), 128, is_bf16=False)
        for buffer, n in ((0, 200), (1, 297), (2, 297), (-1, 200))
    )
    return Case(
        "kernel: TMA, wgmma, stmatrix, TMA store",
        "attention_like.cu: ring of two stages, two consumer warpgroups, setmaxnreg",
        _text("attention_like"), inputs, 200 * 256, threads=384, grid=2, smem_bytes=SMEM_BYTES,
        maps=maps, scalars=(struct.pack("<i", 5), struct.pack("<f", 0.125)),
        entry="attention_like", passes_inputs=False, passes_out=False, maps_first=True,
        compare=relative_to_largest(np.float16), unit="of the largest", allowed=2.0**-9,
    )  # fmt: skip


def _cluster() -> Case:
    words = np.random.default_rng(13).integers(0, 2**16, (80, 64), dtype=np.uint16)
    return Case(
        "kernel: cluster ring with multicast",
        "cluster_pair.cu: multicast halves, remote arrivals, barrier.cluster",
        _text("cluster_pair"), (words,), 4 * 512, threads=160, grid=4, cluster=2,
        maps=(Map(0, 2, (64, 80), (128,), (64, 8), 0),), scalars=(struct.pack("<i", 5),),
        entry="cluster_pair", passes_inputs=False, maps_first=True,
    )  # fmt: skip


def cases() -> list[Case]:
    return [_attention(), _cluster()]
