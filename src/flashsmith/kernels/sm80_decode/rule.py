"""Where the decode kernel on mma.sync is worth running, and how: by the request's own rows."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm80_decode.config import WIDTHS, Sm80DecodeConfig
from flashsmith.kernels.sm80_decode.sets import BY_WIDTH, configs_for
from flashsmith.problem.attention import AttentionProblem

MOST_ROWS = 64  # of one query tile: with more, keys are read again and tensor cores decide
LEAST_KEYS = 1024  # fewer leave nothing to divide between CTAs


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm80DecodeConfig]:
    """Configurations for few rows on many keys, best first; not all of them need fit `arch`.

    Neither the batch nor the number of heads is asked: a request gets the same kernel in company.
    What no other kernel computes gets one whatever its lengths are.
    """
    rows = problem.q_len * problem.group
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    fits = rows <= MOST_ROWS and problem.k_len >= LEAST_KEYS
    if width is None or problem.sequences or not (fits or problem.k_lengths or problem.page):
        return ()
    tile = next((tile for tile in BY_WIDTH[width] if tile >= rows), MOST_ROWS)
    return configs_for(problem.dtype, width, tile)
