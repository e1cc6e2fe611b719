"""What the forward kernel on wgmma and TMA would run where nothing was measured: best first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flashsmith.arch import Arch
from flashsmith.base.dtypes import DType
from flashsmith.kernels.short_form import parse_short_form
from flashsmith.kernels.sm90_forward.config import Sm90ForwardConfig
from flashsmith.kernels.sm90_forward.slices import is_chunk, may_be_cut, q_tiles
from flashsmith.problem.attention import AttentionProblem

WIDTHS = (64, 96, 128, 192, 256)  # the d_head that kernels are built for
SHORT_QUERIES = 64  # rows of one warpgroup: more of them would have none
MOST_SHORT_CUT = 128  # width of kernels of one warpgroup that have registers for slices
NARROW = 64  # width at which tall tiles are others than those that are cut, and faster
CHUNK_ROWS = 512  # of a request, up to which it is a chunk there; not measured
FEW_TILES = 264  # two waves on the 132 SMs of an H200: more fill them without slices

_LOOP = "overlap+early_rescale+tiles_DYNAMIC+late_draw+sections"
_SUM = f"{_LOOP}+stats_SUM+lazy_8"
_SUM_ALONE = "tiles_DYNAMIC+late_draw+sections+stats_SUM+lazy_8"  # products do not overlap
_ONE = "regs_240_56"
_TWO = "regs_232_40"
_MORE = "regs_224_56"  # for warps that copy pages (NVRTC 13.0)
_THREE = "regs_160_32"

# Warpgroups, B_c and the words of the short form, by width; order of an H200 (2026-11).
_TALL = {
    64: (
        (3, 128, f"kv_3+q_6+{_SUM}+halves+pingpong+l_mma+o_smem+{_THREE}"),
        (3, 128, f"kv_3+q_6+{_SUM}+halves+pingpong+o_smem+{_THREE}"),
    ),
    96: (
        (2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+o_smem+late_store+{_TWO}"),
        (3, 80, f"kv_2+q_6+{_LOOP}+stats_BITS+lazy_8+early_tests+o_smem+{_THREE}"),
    ),
    128: (
        (2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+split+o_smem+late_store+{_TWO}"),
        (3, 80, f"kv_2+q_6+{_LOOP}+stats_BITS+lazy_8+early_tests+o_smem+{_THREE}"),
    ),
    192: ((2, 96, f"kv_2+q_3+{_SUM}+early_tests+late_store+hints+{_TWO}"),),
    256: (
        (2, 64, f"kv_2+q_3+{_SUM}+early_tests+split+late_store+hints+{_TWO}"),
        (2, 64, f"kv_2+q_3+{_LOOP}+stats_VOTE+lazy_8+early_tests+late_store+hints+{_TWO}"),
    ),
}
_SHORT = {
    64: (1, 128, f"kv_4+q_2+{_SUM}+o_smem+{_ONE}"),
    96: (1, 128, f"kv_3+q_1+{_SUM}+o_smem+{_ONE}"),
    128: (1, 128, f"kv_3+q_1+{_SUM}+{_ONE}"),
    192: (1, 96, f"kv_2+q_2+{_SUM}+{_ONE}"),
    256: (1, 64, f"kv_2+q_2+{_SUM}+{_ONE}"),
}


# With a bias: three warpgroups have no registers for its elements, ptxas spills.
_TALL_BIASED = {
    **{width: tuple(c for c in found if c[0] < 3) for width, found in _TALL.items()},
    64: ((2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+o_smem+{_TWO}"),),
}

# What is faster than the first of these where a mask or a score asks for more, by width
# (benchmarks/results/h200_masks); each was raced alone.
_BITS = f"kv_2+q_4+{_LOOP}+stats_BITS+lazy_8+halves+pingpong+early_tests+o_smem+late_store+hints"
_ASCENDING = f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+up_ALL+o_smem+hints"
_TURNS = (3, 80, f"kv_2+q_6+{_SUM}+pingpong+early_tests+split+o_smem+hints+{_THREE}")
# Where tiles are short, Q of the next must not come long before it is needed.
_SPANS = f"kv_4+q_6+{_LOOP}+stats_BITS+lazy_8+own_spans+early_tests+o_q+hints+{_THREE}"
_THIN_SPANS = (3, 128, f"kv_3+q_6+{_SUM}+halves+own_spans+pingpong+l_mma+o_smem+{_THREE}")
_OWN_128 = {
    "narrow window": (3, 64, f"{_SPANS}+ahead_2"),
    "window": (3, 64, f"{_SPANS}+ahead_6"),
    "wide window": (3, 64, f"{_SPANS}+ahead_6"),
    "edges": (2, 128, f"{_BITS}+{_TWO}"),
    "bias": (2, 128, f"{_BITS}+split+{_TWO}"),
    "causal sinks": (2, 128, f"{_ASCENDING}+{_TWO}"),
    "cap": _TURNS,
    "causal cap": _TALL[128][1],
    "slopes": _TURNS,
}
_OWN = {
    64: {"narrow window": _THIN_SPANS, "window": _THIN_SPANS},
    128: _OWN_128,
}
NARROW_WINDOW = 512  # keys that a row sees, below which a window is narrow
WIDE_WINDOW = 2048  # above which it is wide
WINDOW_ROWS = 2048  # least length that tiles of 192 rows were raced at


# Of chunks, few rows on many keys: tiles that are cut along the keys, and no taller than most
# chunks are.
_CHUNK = {
    64: (2, 128, f"kv_3+q_4+{_SUM}+halves+pingpong+split+o_smem+{_MORE}"),
    96: (2, 128, f"kv_2+q_4+{_SUM}+halves+pingpong+early_tests+split+o_smem+late_store+{_TWO}"),
    128: _TALL[128][0],
    192: (2, 96, f"kv_2+q_3+{_SUM}+early_tests+split+late_store+hints+{_TWO}"),
    # With early_tests and late_store ptxas spills where there is a log-sum-exp or a sink too.
    256: (2, 64, f"kv_2+q_3+{_SUM}+split+hints+{_TWO}"),
}


# Behind those of its width, for tiles from a list and left edges, where these would spill.
_LISTED = {
    64: (_CHUNK[64],),
    192: ((2, 80, f"kv_2+q_3+{_SUM}+hints+{_TWO}"),),
    256: ((2, 64, f"kv_2+q_3+{_SUM_ALONE}+pingpong+hints+{_TWO}"),),
}


def candidates(problem: AttentionProblem, arch: Arch) -> Sequence[Sm90ForwardConfig]:
    """Configurations that compute `problem`, best first; not all of them need fit `arch`."""
    width = next((w for w in WIDTHS if w >= problem.d_head), None)
    if width is None:
        return ()
    ranked = _ranked(problem.dtype, width, bool(problem.bias), _is_full(problem))
    is_short = problem.q_len <= SHORT_QUERIES
    own = _asked(problem.dtype, width, _own_of(problem))
    if own is not None:
        ranked = (own, *(config for config in ranked if config != own))
    if is_short:
        ranked = (ranked[-1], *ranked[:-1])
    cut = _cut(problem.dtype, width, is_short)
    if _is_cut(cut, problem):
        return (cut, *(config for config in ranked if config != cut))
    return ranked


def _is_full(problem: AttentionProblem) -> bool:
    """Whether three warpgroups have no registers left, of tiles from a list (NVRTC 13.0)."""
    return problem.is_listed and (problem.mask.hides or problem.page > 0)


def _own_of(problem: AttentionProblem) -> str:
    """Which of the faster ones a problem asks for, or an empty text: what was not measured."""
    has_window = problem.window_left is not None or problem.window_right is not None
    asks = {
        "window": has_window,
        "cap": problem.softcap is not None,
        "slopes": problem.alibi,
        "sinks": problem.sinks,
        "bias": bool(problem.bias),
    }
    asked = [name for name, is_asked in asks.items() if is_asked]
    if problem.is_listed or len(asked) != 1:
        return ""
    if asked == ["bias"] and problem.bias != "same":
        return ""
    if has_window:
        return _window_of(problem)
    of_causal = f"causal {asked[0]}"
    return of_causal if problem.causal and of_causal in _OWN_128 else asked[0]


def _window_of(problem: AttentionProblem) -> str:
    """What a window is called: by its keys, or `edges` where tiles have no span of their own."""
    mask = problem.mask
    if not mask.hides_left or problem.q_len < WINDOW_ROWS:
        return "edges"
    if mask.reach < NARROW_WINDOW:
        return "narrow window"
    return "window" if mask.reach <= WIDE_WINDOW else "wide window"


@cache
def _asked(dtype: DType, width: int, own: str) -> Sm90ForwardConfig | None:
    parts = _OWN.get(width, {}).get(own)
    return None if parts is None else _read(dtype, width, parts)


def _is_cut(config: Sm90ForwardConfig, problem: AttentionProblem) -> bool:
    """Whether slices of tiles are likely to pay: few tiles, each of many keys.

    Where bits must not depend on the batch, the sequence alone says so.
    """
    if not may_be_cut(config, problem):
        return False
    if problem.is_listed and problem.is_batch_invariant:
        # How much room sequences have belongs to the batch: their rows alone may decide.
        return config.d_head > NARROW or problem.q_len <= CHUNK_ROWS
    if not is_chunk(config, problem):
        return False
    tiles = q_tiles(config, problem) * problem.batch * problem.heads
    return problem.is_batch_invariant or tiles <= FEW_TILES


def _read(dtype: DType, width: int, parts: tuple[int, int, str]) -> Sm90ForwardConfig:
    warpgroups, b_c, words = parts
    return parse_short_form(
        f"{Sm90ForwardConfig.PREFIX}({dtype.name}, {width}, {warpgroups}, {b_c}): {words}",
        Sm90ForwardConfig,
    )


@cache
def _cut(dtype: DType, width: int, is_short: bool) -> Sm90ForwardConfig:
    """The configuration that cuts tiles along the keys; wide short ones would spill."""
    if is_short and width <= MOST_SHORT_CUT:
        return _read(dtype, width, _SHORT[width]).replace(split_last=True)
    return _read(dtype, width, _CHUNK[width])


@cache
def _ranked(
    dtype: DType, width: int, has_bias: bool, is_full: bool
) -> tuple[Sm90ForwardConfig, ...]:
    tall, listed = (_TALL_BIASED if has_bias else _TALL)[width], _LISTED.get(width, ())
    # Of packed sequences it is not said here that they are: the choice asks for drawbacks.
    tall = listed if is_full and width == NARROW else (*tall, *listed)
    return tuple(_read(dtype, width, parts) for parts in (*tall, _SHORT[width]))
