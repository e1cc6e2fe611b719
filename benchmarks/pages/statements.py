"""Sentences of the docs that follow from records: how good, how repeatable."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.bench.agreement import agreements
from flashsmith.bench.versus import GEMM
from flashsmith.measure.record import Record
from flashsmith.report.sources import ReportData
from flashsmith.report.tuning_charts import ranked_problems, times_of
from flashsmith.tuner.run.predict import quality
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.picks import ALLOWED_GAP, compare_picks
from pages.tables import NOT_MEASURED

MANY = 20  # configurations of a problem, from which on an order is worth a correlation


def prediction_statement(data: ReportData) -> str:
    """How good the predicted order is on the times that stand beside it."""
    found = {
        problem: quality([float(place) for place, _, _ in ranked], [us for _, us, _ in ranked])
        for problem, ranked in ranked_problems(times_of(data), data.places).items()
    }
    if not found:
        return NOT_MEASURED
    regret = max(good.top_5_regret for good in found.values())
    text = (
        f"On {len(found)} problems of the committed H200 measurements the worst top-5 regret is "
        f"{regret:.1%}: the best of the five that are predicted best is that much slower than the "
        f"best of all."
    )
    many = [good for good in found.values() if good.count >= MANY]
    if many:
        low, high = (f(good.rank_correlation for good in many) for f in (min, max))
        text += (
            f" On the {len(many)} of them where {min(good.count for good in many)} configurations "
            f"or more were timed, the rank correlation is {low:.2f} to {high:.2f}; where only a "
            f"handful of near equals was, it says little."
        )
    return text


def picks_statement(first: Sequence[Measurement], second: Sequence[Measurement]) -> str:
    """Whether two tuning runs chose the same, or something as fast."""
    pairs = compare_picks(first, second)
    if not pairs:
        return NOT_MEASURED
    same = sum(pair.before == pair.after for pair in pairs)
    others = [pair for pair in pairs if pair.before != pair.after]
    text = (
        f"Two runs over {len(pairs)} problems, each from an empty results file: {same} same picks"
    )
    if others:
        widest = max(pair.gap if pair.gap is not None else float("inf") for pair in others)
        text += f"; where they differ, the two picks are {widest:.2%} apart at most as measured"
    apart = sum(not pair.agrees for pair in pairs)
    if apart:
        text += f", and on {apart} problems by {ALLOWED_GAP:.0%} or more"
    return f"{text}."


def agreement_statement(first: Sequence[Record], second: Sequence[Record]) -> str:
    """Whether two runs of a benchmark agree within the spread that they state."""
    found = [one for one in agreements(first, second) if one.name != GEMM]
    if not found:
        return NOT_MEASURED
    agree = sum(one.agrees for one in found)
    widest = max(abs(one.after.ratio / one.before.ratio - 1) for one in found)
    return (
        f"Two runs of `bench --suite quick`, two processes: {agree} of {len(found)} ratios agree "
        f"within the spread that the runs state; the medians are {widest:.1%} apart at most."
    )


def grid_table(records: Sequence[Record]) -> str:
    """What came of flash-attn's own grids in the newest run: right, refused by feature, wrong."""
    newest = {str(r.what["grid"]): r for r in records if r.what["suite"] == "flash_attn_grid"}
    if not newest:
        return NOT_MEASURED
    whole = newest["all"]
    features = sorted(name for name in whole.result if name.startswith("refused: "))
    names = ["right", *features, "wrong"]
    rows = [
        f"| {grid} | {' | '.join(f'{record.result.get(name, 0):,}' for name in names)} |"
        for grid, record in newest.items()
    ]
    asked, ran = whole.what["cases"], sum(int(whole.result.get(name, 0)) for name in names)
    return "\n".join(
        [
            f"| grid | {' | '.join(names)} |",
            "|---" * (len(names) + 1) + "|",
            *rows,
            "",
            f"{ran:,} of {asked:,} cases in {whole.result['seconds']:.0f} s on "
            f"{whole.environment['device']}, {str(whole.environment['date'])[:10]}.",
        ]
    )


def losses_statement(records: Sequence[Record], picture: str) -> str:
    """The losses of the small GPT as a picture, and what the examples came to on a GPU."""
    newest = {str(record.what["name"]): record for record in records}
    if not newest:
        return NOT_MEASURED
    trained, packed = newest["train_tiny"], newest["finetune_packed"]
    losses = trained.result["losses"]
    twice = "the same bits" if trained.result["same_bits"] else "other bits"
    served = "the same bits" if newest["serve_tiny"].result["same_bits"] else "other bits"
    seconds = sum(float(record.result["seconds"]) for record in newest.values())
    return "\n".join(
        [
            f"![Loss over steps, by flashsmith and by SDPA]({picture})",
            "",
            f"All four whole on {trained.environment['device']}, "
            f"{str(trained.environment['date'])[:10]}, {seconds:.0f} s together "
            f"([record](../benchmarks/results/h200_train/examples.jsonl), "
            f"`tools/examples_h200.py`). `train_tiny.py`: {trained.what['steps']} steps, from "
            f"{losses['flashsmith'][0]:.2f} to {losses['flashsmith'][-1]:.3f} nats a byte by "
            f"flashsmith and {losses['SDPA'][-1]:.3f} by SDPA; run twice under torch's "
            f"deterministic algorithms, every loss has {twice}. `finetune_packed.py`: "
            f"{packed.what['steps']} steps, from {packed.result['losses'][0]:.2f} to "
            f"{packed.result['losses'][-1]:.2f}. `serve_tiny.py`: {served} in company as alone.",
        ]
    )
