"""What a reader should know first: on what, of which shapes, when, who won, and three facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flashsmith.arch.gpus import find_gpu
from flashsmith.bench.ladder import LADDER
from flashsmith.bench.versus import GEMM_SIZE, OURS
from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import (
    REGIMES,
    best_of_ours,
    config_of,
    config_text,
    contender,
    is_comparison,
    problem_text,
    product_tflops,
    runs_of,
    tflops_of,
)
from flashsmith.report.ladders import ladders
from flashsmith.report.peer_tables import Versus, best_peer
from flashsmith.report.sources import ReportData
from flashsmith.report.winners import Winner, winners
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified


@dataclass(frozen=True, slots=True)
class Fact:
    """A number or a name, what it is, and how it was obtained."""

    value: str
    what: str
    reads: str = ""
    is_code: bool = False  # a short form, to be copied


@dataclass(frozen=True, slots=True)
class Headline:
    """The top of the page."""

    title: str
    shapes: str
    dates: str
    facts: tuple[Fact, ...]  # three at most


def headline(data: ReportData) -> Headline:
    """The verdict of whatever the data hold: against peers, of a tuning run, or of a check."""
    title, facts = _verdict(data)
    versus = best_peer(data.records)
    if versus is not None:  # the verdict is about these, whatever else there is
        problems = [a.problem for a in versus.found]
        dates = [str(a.ours.environment["date"]) for a in versus.found]
    else:
        problems, dates = _problems(data), _dates(data)
    return Headline(title, shapes_text(problems), dates_text(dates), tuple(facts[:3]))


def _verdict(data: ReportData) -> tuple[str, list[Fact]]:
    versus = best_peer(data.records)
    where = data.device or "no device"
    if versus is not None:
        title = f"{where}: {versus.mean:.2f} times as fast as {versus.peer}"
        return title, [_peer_fact(versus), _choice_fact(versus), *_rate_facts(data, versus)]
    tuned = winners(data.measurements)
    if tuned:
        return _tuned_title(where, tuned), [*_tuned_facts(tuned), *_counts(data.measurements)]
    if any(isinstance(m.outcome, Verified) for m in data.measurements):
        return _checked(data)
    if data.records:
        steps = [table.title for table in ladders(data.records)]
        return f"{where}: {'; '.join(steps) or 'what was timed'}", _ladder_facts(data.records)
    if data.counted:
        return f"{where}: what was counted", [_counted_fact(data.counted)]
    right = f"{where}: none of {len(data.measurements)} candidates is right"
    return right, list(_counts(data.measurements))


def _peer_fact(versus: Versus) -> Fact:
    count = len(versus.found)
    mean = (
        f"Geometric mean over {count} shapes: {versus.least.ratio:.2f} at least "
        f"({problem_text(versus.least.problem)}), {versus.most.ratio:.2f} at most "
        f"({problem_text(versus.most.problem)})."
        if count > 1
        else f"On {problem_text(versus.least.problem)}."
    )
    control = versus.control
    held = (
        "No control was taken."
        if control is None
        else f"Control, one kernel timed twice in the same rounds: off by {control:.1%} at most."
    )
    regime = REGIMES.get(versus.regime, versus.regime)
    what = f"times as fast as {versus.peer}, the fastest peer"
    return Fact(f"{versus.mean:.2f}×", what, f"{mean} {held} Regime {regime}.")


def _choice_fact(versus: Versus) -> Fact:
    """The configuration that ran on most of the shapes."""
    counts = Counter(config_text(a.ours) for a in versus.found)
    (name, times), total = counts.most_common(1)[0], len(versus.found)
    if config_of(name) is None:
        return Fact(name, "the contender that was timed")
    others = f"; {len(counts) - 1} others ran on the rest" if len(counts) > 1 else ""
    what = f"the winner most often, on {times} of {total} shapes{others}"
    if total == 1:
        what = "the winner"
    return Fact(name, what, is_code=True)


def _rate_facts(data: ReportData, versus: Versus) -> list[Fact]:
    """The highest rate, and the rates beside a large matrix product where one ran with them."""
    best = max(
        (r for r in data.records if is_comparison(r) and contender(r) == OURS), key=tflops_of
    )
    what = f"TFLOP/s at most ({problem_text(best.problem)})"
    gpu = find_gpu(data.device)
    sheet = f" The data sheet's limit is {gpu.tflops:.0f}." if gpu else ""
    return [Fact(f"{tflops_of(best):.0f}", what, f"{_of_the_product(data.records)}{sheet}".strip())]


def _of_the_product(records: Sequence[Record]) -> str:
    """The share of a large matrix product's rate, and what a share above 1 means."""
    shares: list[tuple[float, AttentionProblem]] = []
    rates: list[float] = []
    for run in runs_of(records):
        ours = best_of_ours([r for r in run if is_comparison(r)])
        product = product_tflops(run)
        if ours is not None and product is not None:
            shares.append((tflops_of(ours) / product, ours.problem))
            rates.append(product)
    if not shares:
        return ""
    (low, short), (high, long) = (f(shares, key=lambda item: item[0]) for f in (min, max))
    text = (
        f"{low:.0%} ({problem_text(short)}) to {high:.0%} ({problem_text(long)}) of the "
        f"{median(rates):.0f} TFLOP/s that a matrix product of {GEMM_SIZE:,}³ by torch reached in "
        f"the same rounds."
    )
    above = " The product is a yardstick, not a limit: above 100 %, attention was faster than it."
    return text + (above if high > 1 else "")


def _tuned_title(where: str, tuned: Sequence[Winner]) -> str:
    if len(tuned) == 1:
        return f"{where}: {tuned[0].median_us:.1f} µs, the fastest that was tuned"
    rates = [w.tflops for w in tuned]
    return f"{where}: {len(tuned)} problems tuned, {min(rates):.0f} to {max(rates):.0f} TFLOP/s"


def _tuned_facts(tuned: Sequence[Winner]) -> list[Fact]:
    counts = Counter(w.config for w in tuned)
    name, times = counts.most_common(1)[0]
    best = max(tuned, key=lambda w: w.tflops)
    margins = [w.ahead for w in tuned if w.ahead is not None]
    ahead = f"{median(margins):.1%} ahead of the next" if margins else "timed alone"
    what = "the winner"
    if len(tuned) > 1:
        ahead += " in the median" if margins else ""
        what = f"the winner most often, on {times} of {len(tuned)} problems"
    rate = f"{best.tflops:.0f}"
    peers = "No peer was timed beside it: `flashsmith bench`."
    return [
        Fact(name, what, f"{ahead[:1].upper()}{ahead[1:]}.", is_code=True),
        Fact(rate, f"TFLOP/s at most ({problem_text(best.problem)})", peers),
    ]


def _counts(measurements: Sequence[Measurement]) -> list[Fact]:
    ended = {(m.key.config, m.key.problem): m.outcome for m in measurements}
    if not ended:
        return []
    right = sum(isinstance(outcome, Timed | Verified) for outcome in ended.values())
    rest = "" if right == len(ended) else "The others and why they ended stand below."
    return [Fact(f"{right:,} of {len(ended):,}", "candidates are right and were measured", rest)]


def _checked(data: ReportData) -> tuple[str, list[Fact]]:
    """A run without a GPU: what is right, what is predicted to win, and bits."""
    ended = {(m.key.config, m.key.problem): m.outcome for m in data.measurements}
    right = [o for o in ended.values() if isinstance(o, Verified)]
    arches = ", ".join(sorted({m.key.arch for m in data.measurements}))
    title = f"{arches}, not timed: {len(right)} of {len(ended)} configurations are right"
    classes = len({outcome.fingerprint for outcome in right})
    facts = [
        Fact(
            f"{len(right)} of {len(ended)}",
            "are right",
            "Checked in the emulator; nothing was timed, for there was no GPU.",
        ),
        Fact(
            f"{classes}",
            f"{'class' if classes == 1 else 'classes'} of equal bits",
            "Configurations of one class give the same output, bit for bit.",
        ),
    ]
    first = [config for (config, problem), place in data.places.items() if place == 1]
    if first:
        problem = next(p for (_, p), place in data.places.items() if place == 1)
        what = f"predicted fastest on {problem_text(problem)}, not measured"
        facts.insert(0, Fact(first[0], what, is_code=True))
    return title, facts


def _ladder_facts(records: Sequence[Record]) -> list[Fact]:
    """Without peers: the fastest that was timed."""
    ours = [r for r in records if contender(r) == OURS and not r.result.get("void")]
    if not ours:
        return []
    best = max(ours, key=tflops_of)
    what = f"TFLOP/s at most ({problem_text(best.problem)})"
    kind = "in a ladder" if best.what["suite"] == LADDER else f"in {best.what['suite']}"
    reads = f"The fastest that was timed, {kind}. No peer ran beside it: `flashsmith bench`."
    name = config_text(best)
    is_code = config_of(name) is not None
    return [Fact(f"{tflops_of(best):.0f}", what, reads), Fact(name, "the fastest", "", is_code)]


def _counted_fact(counted: Sequence[Record]) -> Fact:
    busy = [r.result["tensor_pct"] for r in counted if r.result.get("tensor_pct") is not None]
    reads = (
        f"Tensor cores are busy {min(busy):.0f} to {max(busy):.0f} % of the cycles." if busy else ""
    )
    return Fact(f"{len(counted)}", "launches under Nsight Compute", reads)


def _problems(data: ReportData) -> list[AttentionProblem]:
    found = [r.problem for r in (*data.records, *data.counted)]
    return list(dict.fromkeys([*found, *(m.key.problem for m in data.measurements)]))


def shapes_text(problems: Sequence[AttentionProblem]) -> str:
    """Shapes in a line: `36 shapes: BF16, d_head 64, 128 and 256, 512 to 16,384 long, …`."""
    if not problems:
        return ""
    types = _and(sorted({p.dtype.name for p in problems}))
    widths = _and([str(d) for d in sorted({p.d_head for p in problems})])
    lengths = sorted({p.k_len for p in problems})
    long = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    masks = _and(
        ["causal" if causal else "full" for causal in sorted({p.causal for p in problems})]
    )
    count = f"{len(problems)} shapes" if len(problems) > 1 else "1 shape"
    return f"{count}: {types}, d_head {widths}, {long} long, {masks} mask"


def _dates(data: ReportData) -> list[str]:
    seen = [str(r.environment["date"]) for r in (*data.records, *data.counted)]
    return [*seen, *(str(m.environment.get("date") or m.when) for m in data.measurements)]


def dates_text(dates: Sequence[str]) -> str:
    """The day of the data, or the first and the last."""
    days = sorted({date[:10] for date in dates if date})
    if not days:
        return "date unknown"
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
