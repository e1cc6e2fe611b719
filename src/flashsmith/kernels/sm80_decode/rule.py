"""Where the decode kernel on mma.sync is worth running, and how: by the request's own rows."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.arch import Arch
from flashsmith.kernels.sm80_decode.config import WIDTHS, Sm80DecodeConfig
from flashsmith.kernels.sm80_decode.plan import slices_at_most
from flashsmith.kernels.sm80_decode.sets import BY_WIDTH, configs_for
from flashsmith.problem.attention import AttentionProblem

MOST_ROWS = 64  # of one query tile: with more, keys are read again and tensor cores decide
LEAST_KEYS = 1024  # fewer leave nothing to divide between ctas
FEW_SLICES = 264  # two ctas on each SM of an H200 run at once: deep rings; with more, more ctas
# Up to four for each of those: runs of them. Of more slices than that ctas of one each, which
# come to SMs as these have done theirs, are 3 % ahead (H200, 2026-11).
RUN_SLICES = 4 * FEW_SLICES
# Of K and V: where they are all that L2 is asked for, up to 268 MB, it is 2 to 6 % faster to let
# them go first, from 0.5 GB on 1 to 2 % slower (H200, 2026-11).
FEW_BYTES = 2**28
# Ctas of a launch of which most may find nothing to do, where lengths are in memory.
MOST_CTAS = 16384


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm80DecodeConfig]:
    """Configurations for few rows on many keys, best first; not all of them need fit `arch`.

    What bits follow from, the first one's `numeric_class`, is chosen by d_head, element type and
    the request's own rows: a request gets the same in company. Only how much is in flight and how
    ctas take their slices follow from the batch. What no other kernel computes gets one whatever
    its lengths are. Packed requests are taken for such of one token: the plan has a launch for the
    others.
    """
    rows = problem.group if problem.sequences else problem.q_len * problem.group
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    fits = rows <= MOST_ROWS and problem.k_len >= LEAST_KEYS
    few = problem.k_lengths and rows <= MOST_ROWS and not problem.sequences
    served = problem.page > 0 or few
    if width is None or not (served or (fits and not problem.sequences)):
        return ()
    most = next((most for most in BY_WIDTH[width] if most >= rows), MOST_ROWS)
    found = configs_for(problem.dtype, width, most)
    configs = [config for config in found if not config.refused_problem(problem)]
    first = configs[0]
    slices = slices_at_most(first, problem)
    persistent = problem.k_lengths and slices > MOST_CTAS
    once = most_bytes(problem) <= FEW_BYTES
    kept = slices > FEW_SLICES and not once
    runs = suits_runs(first, problem) and not kept

    def rank(config: Sm80DecodeConfig) -> tuple[bool, ...]:
        more_ctas = config.ctas > first.ctas
        return (
            config.numeric_class != first.numeric_class,
            config.persistent != persistent,
            config.runs != runs,
            more_ctas != (slices > FEW_SLICES and not config.runs),
            config.evict_first != once,
            config.kept_parts != kept,
            config.whole_pages != (problem.page > 0 and not problem.sequences),
        )

    return sorted(configs, key=rank)


def suits_runs(config: Sm80DecodeConfig, problem: AttentionProblem) -> bool:
    """Whether a call has a few slices of `config`'s for every cta that runs at once."""
    return FEW_SLICES < slices_at_most(config, problem) <= RUN_SLICES


def most_bytes(problem: AttentionProblem) -> int:
    """Of K and V of all sequences, as if each were as long as any may be.

    A pool of pages may hold those of other calls too.
    """
    rows = problem.requests * problem.kv_heads * problem.k_len
    return 2 * rows * problem.d_head * problem.dtype.bytes
