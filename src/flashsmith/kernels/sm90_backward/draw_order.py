"""In which order kv blocks of a backward pass on wgmma are drawn: a function of the problem."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.kernels.sm90_backward.config import Sm90BackwardConfig
from flashsmith.kernels.sm90_backward.parts import GRADIENT_WARPS, Sm90TilesConfig
from flashsmith.problem.attention import AttentionProblem

MB = 1 << 20
SECTION_BYTES = 40 * MB  # of Q, dO and dQ that stay in L2 together (H200, 2026-11)
RISING = 4  # one head in so many adds from its longest block on
# Keys of all walks that have work for the SMs of an H200 where all are equally long; and how many
# times as many where they are not.
BUSY_KEYS, UNEVEN = 128 * 128, 4
# Keys up to which short blocks stay with their head: read again, its Q and dO come from DRAM again.
TOGETHER = 2048


@dataclass(frozen=True, slots=True)
class DrawOrder:
    """What the kernel's decoding of a number depends on."""

    section_heads: int = 1  # whose blocks are drawn together, one of each at a time
    section_rows: int = 0  # the same of packed sequences: query rows of heads; 0: one head
    short_blocks: int = 0  # the last ones of each head, drawn behind all others
    rising_heads: int = 0  # the last ones, whose blocks are drawn, and add, from the first on
    walked_heads: int = 1  # of Q, with which a block is walked at a time


def draw_order(config: Sm90BackwardConfig, problem: AttentionProblem, sm_count: int) -> DrawOrder:
    """The order of `config` on `problem`. Where sums have an order, no SM count is part of it."""
    walked = walked_heads(config, problem)
    heads = problem.heads * problem.batch // walked
    ends_short = problem.mask.hides_right and not problem.mask.hides_left
    # Which heads are the last ones follows from the batch.
    may_rise = config.rising and ends_short and not problem.is_batch_invariant
    rising = heads // RISING if may_rise else 0
    blocks = math.ceil(problem.k_len / config.tile_k)
    short = 0
    if config.short_last and ends_short and problem.k_len > TOGETHER:
        # As much work as SMs that end at different times leave, half a block each.
        short = min(math.ceil(math.sqrt(max(sm_count, 1) * blocks / heads)), blocks - 1)
    in_l2 = walked if ends_short else 1
    together = section_heads(config, problem, heads - rising, in_l2)
    if ends_short:  # short walks would wait for the part of their group that is drawn beside them
        together = min(together, problem.kv_heads * problem.batch)
    return DrawOrder(
        together,
        section_rows(config, problem, problem.group),
        short,
        rising,
        walked,
    )


def walked_heads(config: Sm90BackwardConfig, problem: AttentionProblem) -> int:
    """Heads of Q with which a block is walked at a time: those of a group, or of a part of it.

    Under a causal mask walks drift apart, so L2 should hold a part; in a window all see few rows.
    """
    group = problem.group
    if not config.part_mb or problem.sequences:
        return group
    # Launch 1 clears what counts parts, a word a thread: of few rows there are too few of them.
    counters = GRADIENT_WARPS * math.ceil(problem.k_len / config.tile_k)
    if counters > problem.q_len * group:
        return group
    row_bytes = (4 if config.two_passes else 8) * config.d_head  # Q, dO: 2 bytes; dQ: 4
    mask = problem.mask
    most = group if mask.hides_left else config.part_mb * MB // (row_bytes * problem.q_len)
    enough = BUSY_KEYS * (UNEVEN if mask.hides_right and not mask.hides_left else 1)
    sequences = 1 if problem.is_batch_invariant else problem.batch
    keys = problem.k_len * problem.kv_heads * sequences
    parts = [n for n in range(1, group + 1) if group % n == 0 and n <= most]
    return max((n for n in parts if keys * (group // n) >= enough), default=1)


def section_heads(
    config: Sm90BackwardConfig, problem: AttentionProblem, heads: int, in_l2: int
) -> int:
    """Of `heads` heads of K and V, how many are drawn together, a block of each at a time.

    Unordered and causal, the longest blocks come first, of as many heads as L2 holds. In order,
    blocks of a head that start together wait for each other; with `sections` each starts when the
    one before has gone on. `in_l2`: heads of Q that blocks of one head are in at a time. Where all
    blocks of a head are walked with the same q tiles, they follow each other closely through one.
    """
    rows = section_rows(config, problem, in_l2) // max(problem.q_len, 1)
    if config.section_mb:
        return _even(heads, rows)
    return max(min(rows, heads), 1)


def section_rows(config: Sm90BackwardConfig, problem: AttentionProblem, in_l2: int) -> int:
    """Query rows of heads whose kv blocks are drawn together; 0: of one head at a time."""
    is_divided = config.sections or ((config.unordered or config.two_passes) and problem.mask.hides)
    if not (config.section_mb or is_divided):
        return 0
    row_bytes = 8 * config.d_head * in_l2  # Q, dO: 2 bytes; dQ: 4
    return (config.section_mb * MB or SECTION_BYTES) // row_bytes


def _even(heads: int, most: int) -> int:
    """At most `most`, and the last section is about as large as the others: it has all SMs."""
    most = max(min(most, heads), 1)
    divisor = max(n for n in range(1, most + 1) if heads % n == 0)
    return divisor if 2 * divisor > most else math.ceil(heads / math.ceil(heads / most))


def hides_first_steps_only(config: Sm90TilesConfig, problem: AttentionProblem, walked: int) -> bool:
    """Whether no key is hidden after a kv block's first step that a warpgroup multiplies.

    A block must have one head of rows to walk: the next one of a group begins with hidden keys.
    """
    if walked > 1 or problem.sequences:
        return False
    return problem.mask.hides_at_corners_only(config.tile_q, config.tile_k)
