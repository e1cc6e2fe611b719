"""Records as they were measured: who ran beside whom, and how many times as fast we were there.

Times of different moments do not compare, so a ratio is only ever taken inside one run: records of
one suite, regime, problem and date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.base.errors import ConfigError
from flashsmith.bench.ladder import KNOB, LADDER
from flashsmith.bench.versus import GEMM, GEMM_FLOPS, OURS
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.parse import looks_like_config
from flashsmith.measure.interleaved import MIN_ROUNDS
from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.cost import cost_of

# Distinguishable for colour-blind readers, on white and on black (Okabe and Ito).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
_ORDER = (
    *(OURS, "cuDNN", "FlashAttention-2 (torch)"),
    *("FlexAttention", "efficient (torch)", "FlashAttention-3"),
)
_SAME = {
    "torch FA2": "FlashAttention-2 (torch)",
    "FA3": "FlashAttention-3",
    "flash-attn 3": "FlashAttention-3",
    "flash_attention_3": "FlashAttention-3",  # as docs call a file's function
    "FlashAttention_3": "FlashAttention-3",  # as records of the papers' grid do
}
_EARLIER = ("prototype",)  # our own, before they were kernels of this package: no peers
_RATIO = {"ratio", "ratio_p20", "ratio_p80"}
# What a regime is, for readers who meet the word.
REGIMES = {
    "burst": "burst: each run after 4 ms of rest",
    "sustained": "sustained: each run after 0.3 s of its own load",
}


def mask_text(problem: AttentionProblem) -> str:
    """The mask in a word."""
    return "causal" if problem.causal else "full"


def length_text(problem: AttentionProblem) -> str:
    """The length, or those of queries and keys."""
    if problem.q_len == problem.k_len:
        return f"{problem.q_len:,}"
    return f"{problem.q_len:,} × {problem.k_len:,}"


def problem_text(problem: AttentionProblem) -> str:
    """A problem in a line: length, width and mask."""
    return f"{length_text(problem)}, d {problem.d_head}, {mask_text(problem)}"


def config_text(record: Record) -> str:
    """The configuration that a record is of, or its name where it states none."""
    return str(record.what.get("config") or record.what["name"])


def config_of(text: str) -> KernelConfig | None:
    """The configuration that a text of a record names, or None."""
    try:
        return parse_config(text) if looks_like_config(text) else None
    except ConfigError:
        return None


def family_of(record: Record) -> str:
    """The family of kernels that a record of ours is of; empty where it does not say."""
    config = config_of(config_text(record))
    return config.NAME if config else ""


def tflops_of(record: Record) -> float:
    """The rate that a record states, else the one that its time means."""
    stated = record.result.get("tflops")
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return float(stated)
    us = float(record.result["median_us"])
    if record.what["name"] == GEMM:
        return GEMM_FLOPS / us / 1e6
    return cost_of(record.problem).tflops(us / 1e6)


def is_ours(name: str) -> bool:
    """Whether a contender's name is ours: one of our configurations is us."""
    return name == OURS or looks_like_config(name)


def contender(record: Record) -> str:
    """Who a record is about."""
    name = str(record.what["name"])
    return OURS if is_ours(name) else _SAME.get(name, name)


def colour_of(name: str) -> str:
    """The colour of a contender, the same in every chart."""
    if name in _ORDER:
        return COLOURS[_ORDER.index(name)]
    return COLOURS[len(_ORDER) + sum(map(ord, name)) % (len(COLOURS) - len(_ORDER))]


def product_tflops(records: Sequence[Record]) -> float | None:
    """The best rate of the matrix product that was measured beside the contenders."""
    times = [float(r.result["median_us"]) for r in records if r.what["name"] == GEMM]
    return GEMM_FLOPS / min(times) / 1e6 if times else None


def regime_of(record: Record) -> str:
    """Rested or loaded; records that do not say were rested."""
    return str(record.result.get("regime", "burst"))


def has_too_few_rounds(record: Record) -> bool:
    """Whether the protocol asks for more rounds than a record was taken in; exploring does."""
    return int(record.result.get("rounds", MIN_ROUNDS)) < MIN_ROUNDS


def is_comparison(record: Record) -> bool:
    """Whether a record is of us or a peer, and counts: no ladder, no product, not void."""
    suite, name = str(record.what["suite"]), str(record.what["name"])
    stands_alone = suite == LADDER or suite.startswith(KNOB) or name in (GEMM, *_EARLIER)
    return not (stands_alone or record.result.get("void") or has_too_few_rounds(record))


def runs_of(records: Sequence[Record]) -> list[list[Record]]:
    """Records of the same run side by side, runs in the order of their dates."""
    runs: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        key = (r.what["suite"], regime_of(r), r.problem, r.environment["date"])
        runs.setdefault(key, []).append(r)
    return [runs[key] for key in sorted(runs, key=lambda key: str(key[3]))]


def best_of_ours(run: Sequence[Record]) -> Record | None:
    """The fastest of our records in a run."""
    mine = [r for r in run if contender(r) == OURS]
    return min(mine, key=lambda r: float(r.result["median_us"]), default=None)


def leading_family(records: Sequence[Record]) -> str:
    """The family of the fastest record of ours: kernels of two are not mixed in one line."""
    ours = [r for r in records if is_comparison(r) and contender(r) == OURS and family_of(r)]
    return family_of(max(ours, key=tflops_of)) if ours else ""


def rates_on_grid(
    records: Sequence[Record], d_head: int, causal: bool
) -> dict[tuple[str, int], Record]:
    """The best record of every contender at every length: self-attention, no groups, rested."""
    leader = leading_family(records)
    best: dict[tuple[str, int], Record] = {}
    for r in records:
        p, name = r.problem, contender(r)
        is_on_grid = p.q_len == p.k_len and p.heads == p.kv_heads and regime_of(r) == "burst"
        is_mixed = name == OURS and family_of(r) not in ("", leader)
        if is_comparison(r) and is_on_grid and (p.d_head, p.causal) == (d_head, causal):
            key = (name, p.q_len)
            if not is_mixed and (key not in best or tflops_of(r) > tflops_of(best[key])):
                best[key] = r
    return best


@dataclass(frozen=True, slots=True)
class Against:
    """How many times as fast as a peer a family of ours is on a problem, and the spread."""

    peer: str
    family: str  # of our kernel; empty where the record does not say
    problem: AttentionProblem
    regime: str
    ratio: float
    p20: float | None
    p80: float | None
    ours: Record
    theirs: Record


def against_peers(records: Sequence[Record]) -> list[Against]:
    """Every family of ours against every peer on every problem, from the newest run of both."""
    found: dict[tuple[str, str, AttentionProblem, str], Against] = {}
    for run in runs_of([r for r in records if is_comparison(r)]):
        for family in dict.fromkeys(family_of(r) for r in run if contender(r) == OURS):
            ours = best_of_ours([r for r in run if family_of(r) == family])
            if ours is None:
                continue
            for theirs in run:
                peer = contender(theirs)
                if peer != OURS:
                    one = _against(peer, family, ours, theirs)
                    found[peer, family, one.problem, one.regime] = one
    return list(found.values())


def _against(peer: str, family: str, ours: Record, theirs: Record) -> Against:
    ratio, p20, p80 = _ratio(ours, theirs)
    return Against(peer, family, ours.problem, regime_of(ours), ratio, p20, p80, ours, theirs)


def _ratio(ours: Record, theirs: Record) -> tuple[float, float | None, float | None]:
    """From the ratio within the rounds where the record holds it, else of medians."""
    if is_baseline(theirs) and set(ours.result) >= _RATIO:
        r = ours.result
        return float(r["ratio"]), float(r["ratio_p20"]), float(r["ratio_p80"])
    if is_baseline(ours) and set(theirs.result) >= _RATIO:
        r = theirs.result
        return 1 / float(r["ratio"]), 1 / float(r["ratio_p80"]), 1 / float(r["ratio_p20"])
    return float(theirs.result["median_us"]) / float(ours.result["median_us"]), None, None


def is_baseline(record: Record) -> bool:
    """Only the baseline is exactly as fast as itself in every round."""
    return all(record.result.get(name) == 1.0 for name in _RATIO)
