"""Writes the picture and the tables of README and docs from the committed records.

    python benchmarks/figures.py [--check]

With --check nothing is written; the exit code is 1 where a page is not what the records say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # also where this file is imported, not run

from pages.statements import (
    agreement_statement,
    grid_table,
    losses_statement,
    picks_statement,
    prediction_statement,
)
from pages.svg import Panel, curves_svg, panels_svg
from pages.tables import (
    FA3,
    beside_fa3_table,
    between_marks,
    chunk_table,
    compile_seconds_table,
    knob_table,
    ladder_table,
    masks_table,
    peers_table,
    spills_table,
    suite_table,
    winners_table,
)

from flashsmith.kernels import CATALOGUE, get_kernel_configs
from flashsmith.measure.record import Record, read_records
from flashsmith.report.contenders import COLOURS, OURS, colour_of, rates_on_grid, tflops_of
from flashsmith.report.sources import ReportData, gather
from flashsmith.report.winners import TUNED, winners, winners_on_grid

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "h200"
PICTURE = Path("docs/figures/h200.svg")
PEERS = ("cuDNN", "FlashAttention-2 (torch)", FA3)  # those that records hold
BESIDE = "flashsmith, beside peers"
LADDERS = {
    "prog": Path("docs/kernels/sm80_forward.md"),
    "hopper-prog": Path("docs/kernels/sm90_forward.md"),
}
TWICE = ROOT / "benchmarks" / "results" / "h200_twice"
TUNING = Path("docs/tuning.md")
EAGER = Path("docs/eager_loading.md")
COMPILED = ROOT / "benchmarks" / "results" / "compile"
BACKWARD = Path("docs/kernels/sm90_backward.md")
SERVING = Path("docs/serving.md")
SERVED = ROOT / "benchmarks" / "results" / "h200_serve"
MASKS = Path("docs/masks_and_scores.md")
MASKED = ROOT / "benchmarks" / "results" / "h200_masks" / "masks.jsonl"
GRADIENT_GRID = ROOT / "benchmarks" / "results" / "h200_backward" / "paper.jsonl"
FREE_GRID = GRADIENT_GRID.with_name("paper_free.jsonl")
SERVE_SUITE, CHUNKS = SERVED / "suite.jsonl", SERVED / "chunks.jsonl"
BESIDE_FA3 = (GRADIENT_GRID, FREE_GRID, SERVE_SUITE)
TRAINED = ROOT / "benchmarks" / "results" / "h200_train"
LOSSES = Path("docs/figures/losses.svg")
API = Path("docs/api.md")
SPILLS = Path("docs/kernels/sm80_forward.md")


def pages() -> dict[Path, str]:
    """Every generated file of the repository, by its path from the root, as it should be."""
    paths = sorted(RECORDS.glob("*.jsonl"))
    data = gather(paths)
    made = {PICTURE: picture(data), Path("README.md"): readme(data)}
    for key, path in LADDERS.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        table = ladder_table(get_kernel_configs(key), data.records)
        made[path] = between_marks(text, "ladder", table)
    made[SPILLS] = between_marks(made[SPILLS], "spills", spills_table(compiled_kernels()))
    benchmarks = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for regime in ("burst", "sustained"):
        table = peers_table(data.records, PEERS, regime)
        benchmarks = between_marks(benchmarks, regime, table)
    others = peers_table(data.records, PEERS, family=CATALOGUE[0].NAME)
    benchmarks = between_marks(benchmarks, "older GPUs", others)
    benchmarks = between_marks(benchmarks, "tuned", winners_table(winners(data.measurements)))
    first, second = (twice(f"quick_{n}").records for n in (1, 2))
    benchmarks = between_marks(benchmarks, "quick twice", agreement_statement(first, second))
    eager = (ROOT / EAGER).read_text(encoding="utf-8")
    made[EAGER] = between_marks(eager, "eager", knob_table(data.records, "eager_load_blocks"))
    backward = (ROOT / BACKWARD).read_text(encoding="utf-8")
    grid = peers_table(read_records(GRADIENT_GRID), (FA3, "cuDNN"))
    backward = between_marks(backward, "grid", grid)
    free = peers_table(read_records(FREE_GRID), (FA3,))
    backward = between_marks(backward, "free", free)
    owed = read_records(GRADIENT_GRID.with_name("owed.jsonl"))
    made[BACKWARD] = between_marks(backward, "compiling", compile_seconds_table(owed))
    masks = (ROOT / MASKS).read_text(encoding="utf-8")
    made[MASKS] = between_marks(masks, "masks", masks_table(read_records(MASKED)))
    serving = (ROOT / SERVING).read_text(encoding="utf-8")
    serving = between_marks(serving, "chunks", chunk_table(read_records(CHUNKS)))
    made[SERVING] = between_marks(serving, "suite", suite_table(read_records(SERVE_SUITE)))
    made |= of_models()
    return made | {Path("docs/benchmarks.md"): benchmarks, TUNING: tuning(data)}


def of_models() -> dict[Path, str]:
    """What flash-attn's grids and the examples came to; a run that was not made is said."""
    grids, examples = (
        read_records(path) if path.exists() else []
        for path in (TRAINED / "flash_attn_grid.jsonl", TRAINED / "examples.jsonl")
    )
    made, page = {}, (ROOT / API).read_text(encoding="utf-8")
    page = between_marks(page, "flash-attn's grids", grid_table(grids))
    made[API] = between_marks(page, "examples", losses_statement(examples, "figures/losses.svg"))
    for record in examples:
        if record.what["name"] == "train_tiny":
            colours = {OURS: COLOURS[0], "SDPA": COLOURS[1]}
            made[LOSSES] = curves_svg(record.result["losses"], colours, title="loss, nats a byte")
    return made


def tuning(data: ReportData) -> str:
    """The page on tuning, with what the records say of prediction and repetition."""
    text = (ROOT / TUNING).read_text(encoding="utf-8")
    first, second = (twice(f"tune_{n}").measurements for n in (1, 2))
    text = between_marks(text, "tuned twice", picks_statement(first, second))
    return between_marks(text, "prediction", prediction_statement(data))


def twice(name: str) -> ReportData:
    """One of two runs that were made to be held against each other; empty where none was."""
    path = TWICE / f"{name}.jsonl"
    return gather([path]) if path.exists() else ReportData((), (), "")


def compiled_kernels() -> list[Record]:
    """The committed records of compiling: no device is in them, so they are read as they are."""
    lines = [
        json.loads(line)
        for path in sorted(COMPILED.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [Record(line["what"], line["result"], line["environment"]) for line in lines]


def picture(data: ReportData) -> str:
    """Rates over lengths: a panel for every width and mask that records hold."""
    tuned = winners(data.measurements)
    shapes = {(r.problem.d_head, r.problem.causal) for r in data.records}
    shapes |= {(w.problem.d_head, w.problem.causal) for w in tuned}
    panels, seen = [], set()
    for causal in (False, True):
        for d_head in sorted({d for d, mask in shapes if mask is causal}):
            best = rates_on_grid(data.records, d_head, causal)
            lines = {
                name: [(n, tflops_of(r)) for (who, n), r in best.items() if who == name]
                for name in (OURS, *PEERS)
            }
            lines[BESIDE] = lines.pop(OURS)
            alone = winners_on_grid(tuned, d_head, causal)
            lines[TUNED] = [(n, winner.tflops) for n, winner in alone.items()]
            shown = {name: line for name, line in lines.items() if len(line) > 1}
            if {BESIDE, TUNED} & set(shown):
                seen |= set(shown)
                mask = "causal" if causal else "full"
                panels.append(Panel(f"d_head {d_head}, {mask} mask, TFLOP/s", shown))
    known = {TUNED: COLOURS[4], BESIDE: COLOURS[0], **{peer: colour_of(peer) for peer in PEERS}}
    colours = {name: colour for name, colour in known.items() if name in seen}
    return panels_svg(panels, colours, across=max(len(panels) // 2, 1))


def readme(data: ReportData) -> str:
    """The README with its picture and its table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    dates = sorted({str(r.environment["date"])[:10] for r in data.records})
    devices = sorted({str(r.environment["device"]) for r in data.records})
    content = "\n".join(
        [
            f"![TFLOP/s over sequence length, by width and mask]({PICTURE})",
            "",
            f"{', '.join(devices)}, BF16, 16,384 tokens, heads × d_head = 2,048: our TFLOP/s, and "
            f"in brackets how many times as fast as the peer beside it, round by round in one "
            f"process, L2 cold.",
            "",
            peers_table(data.records, PEERS),
            "",
            beside_fa3_table(*map(read_records, BESIDE_FA3)),
            "",
            "The tuner's winners in the picture ran without peers; the Hopper kernels cell by "
            "cell: [docs/kernels/sm90_forward.md](docs/kernels/sm90_forward.md).",
            "",
            f"From [benchmarks/results/h200](benchmarks/results/h200) ({', '.join(dates)}) by "
            f"`make figures`; under sustained load: [docs/benchmarks.md](docs/benchmarks.md).",
        ]
    )
    return between_marks(text, "figures", content)


def main() -> None:
    check = "--check" in sys.argv[1:]
    stale = []
    for path, text in pages().items():
        place = ROOT / path
        if place.exists() and place.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path))
        if not check:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    verb = "differ from the records" if check else "written"
    print(f"{verb}: {', '.join(stale)}" if stale else "everything is as the records say")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
