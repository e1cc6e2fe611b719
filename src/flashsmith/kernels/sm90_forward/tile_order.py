"""In which order a causal launch draws its tiles: sections of heads, short tiles at the end.

The numbers were fitted to one GPU, from the record that their file names. They depend on what L2
holds; the other GPUs of sm_90a have one of the same size or a little more (50 to 60 MB), so they
get the same numbers. What depends on the SMs is counted from theirs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.problem.attention import AttentionProblem

FITTED = Path(__file__).parents[2] / "shipped" / "nvidia_h200.tile_order.json"
LEAST_KEYS_DRAWN_LATE = 513  # up to 512 a late draw gains nothing from an order of its own

# Short tiles of a head, from the usual number: as many of every head take all SMs together half as
# long as the longest tile takes one.
SHORT_TILES: dict[str, Callable[[float], int]] = {
    "none": lambda usual: 0,
    "third, nearest": lambda usual: round(usual / 3),
    "half, nearest": lambda usual: round(usual / 2),
    "usual, down, less 1": lambda usual: max(math.floor(usual) - 1, 0),
    "usual, up": math.ceil,
}


class TileOrder(NamedTuple):
    """In which order a causal launch draws its tiles; see decode_tile in sm90/tile_order.cuh."""

    section_heads: int  # heads whose K and V stay in L2 together
    short_tiles: int  # of each head, kept for the end to even out when ctas finish
    early_heads: int = 0  # the first ones, whose short tiles come with their sections all the same


UNORDERED = TileOrder(section_heads=1, short_tiles=0)


class Fitted(NamedTuple):
    """What was best for problems up to a head dimension and a length; 0: for all that are left."""

    section_megabytes: int
    short: str  # a name of SHORT_TILES
    late_megabytes: int = 0  # of heads whose short tiles come at the end; 0: of all heads
    d_head: int = 0
    k_len: int = 0

    def holds_for(self, problem: AttentionProblem) -> bool:
        """Whether a problem is one of those it was fitted to."""
        return problem.d_head <= (self.d_head or math.inf) and problem.k_len <= (
            self.k_len or math.inf
        )


@cache
def fitted(draw: str) -> tuple[Fitted, ...]:
    """The numbers for tiles drawn `early` or `late`; the first that holds for a problem counts."""
    return tuple(Fitted(**row) for row in json.loads(FITTED.read_text(encoding="utf-8"))[draw])


def tile_order(
    config: Sm90ForwardConfig, problem: AttentionProblem, q_tiles: int, sm_count: int
) -> TileOrder:
    """The order for a problem whose heads have `q_tiles` tiles each."""
    if problem.mask.hides_left:
        # In a window all tiles are equally long, but for those of the first rows.
        short = math.ceil(problem.mask.short_rows / (config.tile_q * config.cluster))
        return TileOrder(section_heads=1, short_tiles=min(short, q_tiles - 1))
    batch_heads = problem.batch * problem.heads
    kv_bytes = 2 * problem.k_len * problem.d_head * problem.dtype.bytes
    head_bytes = max(kv_bytes * problem.kv_heads // problem.heads, 1)
    is_late = config.late_draw and problem.k_len >= LEAST_KEYS_DRAWN_LATE
    best = next(f for f in fitted("late" if is_late else "early") if f.holds_for(problem))
    # Drawn early, tiles of two sections are under way at any time: one need not fill the SMs.
    least_tiles = 0.9 * sm_count / config.cluster if config.late_draw else 0
    heads = 1
    while 2 * heads <= batch_heads and (
        2 * heads * head_bytes <= best.section_megabytes << 20 or heads * q_tiles < least_tiles
    ):
        heads *= 2
    late_heads = min((best.late_megabytes << 20) // head_bytes, batch_heads) or batch_heads
    short_tiles = SHORT_TILES[best.short](math.sqrt(sm_count * q_tiles / batch_heads))
    return TileOrder(
        section_heads=heads,
        short_tiles=min(short_tiles, q_tiles - 1),
        early_heads=batch_heads - late_heads,
    )
