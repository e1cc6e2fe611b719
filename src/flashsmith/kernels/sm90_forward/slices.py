"""How the q tiles of a chunk, few rows on many keys, are cut along the keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.kernels.sm90_forward.arguments import COUNTER_BYTES, FIRST_FLAG
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs

ROWS_TO_KEYS = 4  # a chunk has at most this part of the keys that its tiles see as rows
LEAST_KEYS = 2048  # that a tile sees: fewer are not worth an exchange
MOST_WINDOWED_D = 128  # d_head of kernels that have registers for slices beside a left edge
MOST_SLICES = 16  # of a tile: who ends it adds them up one after the other
# What slices cost, in the time of so many keys of a tile. That an exchange of up to four parts
# takes that of 800 was reckoned from races (H200, 2026-11); how it divides is estimated.
EXCHANGE_KEYS, TAKEN_KEYS, GIVEN_KEYS = 400, 128, 128
# Where bits must not depend on the batch: keys of a slice at least, and slices of a head at most.
INVARIANT_KEYS = 4096
MOST_INVARIANT = 8


@dataclass(frozen=True, slots=True)
class Slices:
    """How every tile of a launch is cut: see sliced_segment in sm90/tile_order.cuh."""

    blocks: int  # kv blocks of a slice; the last one of a tile has a quarter more, or fewer
    count: int  # of the longest tile; 1: no tile is cut


def is_sliced(config: Sm90ForwardConfig, problem: AttentionProblem, needs: Needs) -> bool:
    """Whether the kernel must be able to cut every tile: by the sequence and its mask alone.

    Without a mask tiles are equally long, and those of a last wave are cut by another rule; where
    bits must not depend on the batch, that one would.
    """
    has_left = "window_left" in needs
    # For these ptxas has no registers left.
    is_full = "narrow_d" in needs or (has_left and config.d_head > MOST_WINDOWED_D)
    in_memory = problem.is_listed or problem.bias == "bool"  # how many kv blocks a tile sees
    if not config.split_last or in_memory or is_full:
        return False
    if problem.is_batch_invariant:
        return invariant_slices(config, problem).count > 1
    return ("causal" in needs or has_left) and is_chunk(config, problem)


def is_chunk(config: Sm90ForwardConfig, problem: AttentionProblem) -> bool:
    """Whether a problem has few rows on many keys: the tiles are then about equally long."""
    if ROWS_TO_KEYS * problem.q_len > problem.k_len:
        return False
    keys = longest_span(config, problem) * config.B_c
    return keys >= max(ROWS_TO_KEYS * problem.q_len, LEAST_KEYS)


def q_tiles(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    """Tiles of one head, counted in whole clusters."""
    return math.ceil(problem.q_len / (config.tile_q * config.cluster))


def longest_span(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    """The most kv blocks that a tile takes. Rows behind the last one count, as in the kernel."""
    rows, tiles = config.tile_q * config.cluster, q_tiles(config, problem)
    mask = problem.mask._replace(q_len=rows * tiles)
    spans = (mask.span(i * rows, (i + 1) * rows) for i in range(tiles))
    return max(
        math.ceil((first + count) / config.B_c) - first // config.B_c for first, count in spans
    )


def count_of(span: int, blocks: int) -> int:
    """Slices of `blocks` kv blocks of a tile that has `span`: a rest of a quarter is one more."""
    return max((span + blocks - math.ceil(blocks / 4)) // blocks, 1)


def most_given(config: Sm90ForwardConfig) -> int:
    """Slices of a launch that there are flags for."""
    return (COUNTER_BYTES // 4 - FIRST_FLAG) // (config.cluster * config.n_warpgroups)


def filling_slices(config: Sm90ForwardConfig, problem: AttentionProblem, clusters: int) -> Slices:
    """The cut that is reckoned to take the least time on `clusters` SMs, or pairs of them.

    Tiles of a head, and of heads that share K and V, are cut at the same keys: they read the same
    blocks at about the same time.
    """
    span = longest_span(config, problem)
    tiles = q_tiles(config, problem) * problem.batch * problem.heads
    cuts = (math.ceil(span / most) for most in range(1, MOST_SLICES + 1))
    found = [Slices(blocks, count_of(span, blocks)) for blocks in dict.fromkeys(cuts)]

    def keys(cut: Slices) -> int:
        waves = math.ceil(tiles * cut.count / clusters)
        if cut.count == 1:
            return waves * span * config.B_c
        longest = max(cut.blocks, span - (cut.count - 1) * cut.blocks)
        exchange = EXCHANGE_KEYS + TAKEN_KEYS * (cut.count - 1)
        return waves * (longest * config.B_c + GIVEN_KEYS) + exchange

    most = most_given(config)
    return min((c for c in found if (c.count - 1) * tiles <= most), key=keys)


def invariant_slices(config: Sm90ForwardConfig, problem: AttentionProblem) -> Slices:
    """The cut by the sequence, its mask and the kernel alone; slices of longer ones double.

    So they do for more heads than one launch has flags for: some two hundred.
    """
    if not is_chunk(config, problem):
        return Slices(1, 1)
    span, tiles = longest_span(config, problem), q_tiles(config, problem)
    of_head = most_given(config) // (tiles * problem.heads) + 1
    most = max(min(MOST_INVARIANT // tiles, of_head), 1)
    blocks = max(INVARIANT_KEYS // config.B_c, 1)
    while count_of(span, blocks) > most:
        blocks *= 2
    return Slices(blocks, count_of(span, blocks))
