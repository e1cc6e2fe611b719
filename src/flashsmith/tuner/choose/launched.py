"""What a launch computes beyond what is asked: tiles round lengths up, and last waves are not full.

A kernel that was fastest on one shape may not be on its neighbour: 33 tiles of rows are no pairs
for a cluster of two, and one tile more than the GPU holds at once costs as much as a whole wave.
"""

from __future__ import annotations

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.plans import ends_together, plan
from flashsmith.problem.attention import AttentionProblem


def launched_rows(config: KernelConfig, problem: AttentionProblem) -> int:
    """Rows of Q that blocks which work together take at once: lengths are rounded up to these."""
    return config.tile_q * plan(config, problem, sm_count=1)[0].geometry.cluster


def launched_area(config: KernelConfig, problem: AttentionProblem, blocks_at_once: int) -> int:
    """Elements of S that the GPU takes the time of; `blocks_at_once` is 0 where it is not known.

    Without a mask all tiles take equally long, so those of a wave end together and the last wave
    counts as full, unless its tiles are split. Under a mask the short tiles even that out.
    """
    rows, keys = launched_rows(config, problem), config.tile_k
    tiles = -(-problem.q_len // rows)
    heads = problem.batch * problem.heads
    if problem.mask.hides:
        spans = (problem.mask.span(i * rows, (i + 1) * rows) for i in range(tiles))
        return heads * rows * sum(_in_blocks(first, count, keys) for first, count in spans)
    launched = tiles * heads
    if blocks_at_once and not _splits(config, problem, blocks_at_once):
        slots = max(blocks_at_once * config.tile_q // rows, 1)
        launched = -(-launched // slots) * slots
    return launched * rows * _whole(problem.k_len, keys)


def _splits(config: KernelConfig, problem: AttentionProblem, blocks_at_once: int) -> bool:
    return ends_together(plan(config, problem, sm_count=blocks_at_once))


def _in_blocks(first: int, count: int, keys: int) -> int:
    """Keys [first, first + count) in whole kv blocks."""
    return _whole(first + count, keys) - first // keys * keys


def _whole(length: int, step: int) -> int:
    return -(-length // step) * step
