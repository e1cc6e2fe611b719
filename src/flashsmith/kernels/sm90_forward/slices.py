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
UNCUT_LISTS = 192  # d_head of kernels that have none for slices of tiles from a list
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
    if not config.split_last or is_full or not may_be_cut(config, problem):
        return False
    if problem.is_batch_invariant:
        return invariant_slices(config, problem).count > 1
    return ("causal" in needs or has_left) and is_chunk(config, problem)


def may_be_cut(config: Sm90ForwardConfig, problem: AttentionProblem) -> bool:
    """Whether the kernel can tell where to cut, by the sequence that a tile is of.

    Of a boolean mask, how many kv blocks a tile sees is in memory. Lengths of keys may be there
    too, if all sequences have as many rows and no left edge: then a tile looks at its own length.
    """
    if not problem.is_listed:
        return problem.bias != "bool"
    facts = ("sequences", "q_lengths", "k_starts", "bias", "alibi")
    others = any(getattr(problem, name) for name in facts)
    others = others or problem.window_left is not None
    return problem.k_lengths and not others and config.d_head != UNCUT_LISTS


def is_chunk(config: Sm90ForwardConfig, problem: AttentionProblem) -> bool:
    """Whether a problem has few rows on many keys: the tiles are then about equally long."""
    if problem.k_len < least_keys(problem):
        return False
    return longest_span(config, problem) >= least_span(config, problem)


def least_keys(problem: AttentionProblem) -> int:
    """Of a sequence, for its rows to be few."""
    return ROWS_TO_KEYS * problem.q_len


def least_span(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    """Kv blocks that the longest tile of a chunk takes, at least."""
    return math.ceil(max(least_keys(problem), LEAST_KEYS) / config.B_c)


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

    So they do for more heads than one launch has flags for: some two hundred. Where lengths are in
    memory, the shortest slices that a sequence may have, and the most.
    """
    if not is_chunk(config, problem):
        return Slices(1, 1)
    span, most = longest_span(config, problem), most_invariant(config, problem)
    blocks = max(INVARIANT_KEYS // config.B_c, 1)
    if problem.is_listed:
        return Slices(blocks, min(count_of(span, blocks), most))
    while count_of(span, blocks) > most:
        blocks *= 2
    return Slices(blocks, count_of(span, blocks))


def most_invariant(config: Sm90ForwardConfig, problem: AttentionProblem) -> int:
    """Slices that a tile has at most, where bits must not depend on the batch."""
    tiles = q_tiles(config, problem)
    of_head = most_given(config) // (tiles * problem.heads) + 1
    return max(min(MOST_INVARIANT // tiles, of_head), 1)
