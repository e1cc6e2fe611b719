"""The hand-written Hopper kernels: their PTX, their inputs, and what they must compute."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from flashsmith.compile.compiler import compile_text
from flashsmith.emulator.copies.tensor_map import encode_tensor_map
from flashsmith.emulator.memory import GlobalMemory
from flashsmith.emulator.options import EmulatorOptions
from flashsmith.emulator.program import load

SMEM_BYTES = 1024 + 6 * 16384 + 9 * 8  # alignment, tiles of Q, K and V, barriers
FOLDER = Path(__file__).parent / "kernels"


@cache
def kernel_ptx(name: str) -> str:
    text = (FOLDER / "hopper_ptx.cuh").read_text() + (FOLDER / f"{name}.cu").read_text()
    return compile_text(text, name, "sm_90a").ptx


def _map(memory: GlobalMemory, array: np.ndarray, box: tuple[int, int], swizzle: int):
    address = memory.allocate(array.nbytes)
    memory.write(address, array)
    rows, columns = array.shape
    return address, encode_tensor_map(
        address, 2, (columns, rows), (2 * columns,), box, swizzle, "f16"
    )


@dataclass(frozen=True)
class AttentionLike:
    """O = f16(scale Q K^T) V: two blocks, five key blocks, the last of each ragged."""

    queries: int = 200
    keys: int = 5 * 64 - 23
    blocks: int = 2
    key_blocks: int = 5
    scale: float = 0.125
    name: str = "attention_like"

    @property
    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(4)
        shapes = ((self.queries, 128), (self.keys, 128), (self.keys, 128))
        q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
        return q, k, v

    def run(self, ptx: str, options: EmulatorOptions) -> np.ndarray:
        memory = GlobalMemory()
        q, k, v = self.inputs
        maps = [_map(memory, array, (64, 64), 128) for array in (q, k, v)]
        out = np.zeros((self.queries, 128), np.float16)
        maps.append(_map(memory, out, (64, 64), 128))
        params = [raw for _, raw in maps]
        params += [struct.pack("<i", self.key_blocks), struct.pack("<f", self.scale)]
        load(ptx).launch(
            (self.blocks, 1, 1), 384, SMEM_BYTES, tuple(params), memory, options=options
        )
        return memory.read(maps[3][0], out.nbytes).view(np.float16).reshape(out.shape)

    def is_right(self, out: np.ndarray) -> bool:
        q, k, v = (x.astype(np.float64) for x in self.inputs)
        p = (q @ k.T * self.scale).astype(np.float16).astype(np.float64)
        expected = p @ v
        off = np.abs(out.astype(np.float64) - expected)
        # The same in float32, rounded to 16 bits: weights may round to either neighbour there.
        near = ((q.astype(np.float32) @ k.T.astype(np.float32)) * np.float32(self.scale)).astype(
            np.float16
        ).astype(np.float32) @ v.astype(np.float32)
        error = np.abs(near.astype(np.float16).astype(np.float64) - expected)
        return bool(off.max() <= 2 * error.max())  # NaN compares false


@dataclass(frozen=True)
class ClusterPair:
    """Sums over tiles that two blocks of a cluster load for each other."""

    blocks: int = 4
    tiles: int = 5
    name: str = "cluster_pair"

    @property
    def words(self) -> np.ndarray:
        rng = np.random.default_rng(5)
        return rng.integers(0, 2**16, (self.tiles * 16, 64), dtype=np.uint16)

    def run(self, ptx: str, options: EmulatorOptions) -> np.ndarray:
        memory = GlobalMemory()
        _, raw = _map(memory, self.words, (64, 8), 0)
        out = memory.allocate(self.blocks * 512)
        params = (raw, struct.pack("<Q", out), struct.pack("<i", self.tiles))
        load(ptx).launch((self.blocks, 1, 1), 160, 0, params, memory, cluster=2, options=options)
        return memory.read(out, self.blocks * 512).view(np.uint32).reshape(self.blocks, 128)

    def is_right(self, out: np.ndarray) -> bool:
        tiles = self.words.reshape(-1).view(np.uint32).reshape(self.tiles, 4, 128)
        total = np.zeros(128, np.uint32)
        for row in tiles.reshape(-1, 128):
            total = total * np.uint32(3) + row
        return bool((out == total).all())
