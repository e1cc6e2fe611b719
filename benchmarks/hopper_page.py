"""The tables of docs/kernels/hopper.md, from the committed record of an H200 and its tuner's pass.

`make figures` writes them; benchmarks/hopper_h200.py makes the record.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hopper_bars as bars

from flashsmith.bench.ladder import LADDER, changes
from flashsmith.config import get_kernel_configs, parse_config
from flashsmith.config.kernel_config import KernelConfig
from flashsmith.measure.record import Record
from flashsmith.measure.statistics import geometric_mean
from flashsmith.report.tables import NOT_MEASURED, between_marks
from flashsmith.tuner.launched import launched_area

PAGE = Path("docs/kernels/hopper.md")
RECORD, CLOCKS, FP16 = "hopper.jsonl", "hopper_clocks.jsonl", "hopper_fp16.jsonl"
SHAPES = [(d, causal) for d in (64, 128, 256) for causal in (False, True)]
Cells = Sequence[object]


def hopper_page(text: str, folder: Path) -> str:
    """The page with every table written anew from the records in `folder`."""
    records = bars.read(folder / RECORD)
    for name, table in TABLES.items():
        text = between_marks(text, name, table(records))
    text = between_marks(text, "clocks", clocks(bars.read(folder / CLOCKS)))
    return between_marks(text, "fp16", candidates(bars.read(folder / FP16)))


def _table(head: Sequence[str], rows: Sequence[Cells]) -> str:
    marks = ["---" if name in ("demand", "adds", "knob", "mask", "") else "---:" for name in head]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _source(records: Sequence[Record]) -> str:
    """What the records were taken on."""
    e = [r.environment for r in records]
    commits = ", ".join(sorted({str(x["commit"]) for x in e}))
    dates = ", ".join(sorted({str(x["date"])[:10] for x in e}))
    return (
        f"{e[0]['device']}, driver {e[0]['driver']}, {e[0]['compiler']}, {dates}, commit {commits}."
    )


def demands(records: Sequence[Record]) -> str:
    """Every bar, and whether the record meets it."""
    if not records:
        return NOT_MEASURED
    words = {True: "yes", False: "**no**", None: ""}
    rows = [(bar.text, bar.found, words[bar.holds]) for bar in bars.bars(records)]
    return f"{_table(('demand', 'measured', 'met'), rows)}\n\n{_source(records)}"


def ladder(records: Sequence[Record]) -> str:
    """The steps with their rates, gains, cycles a block of keys, and tensor use."""
    steps = get_kernel_configs("hopper-prog")
    adds = ["the start", *(changes(a, b) for a, b in itertools.pairwise(steps))]
    timed = {length: _run(records, LADDER, steps, length) for length in bars.LADDER_LENGTHS}
    counted = _run(records, "profile", steps, bars.LADDER_LENGTHS[-1])
    head = ["", "adds"]
    for length in timed:
        head += [f"TFLOP/s at {length:,}", "× the step before"]
    head += ["cycles a block of keys", "ideal", "tensor use", "tensor pipe"]
    rows = []
    for number, (step, text) in enumerate(zip(steps, adds, strict=True)):
        row: list[object] = [number + 1, text]
        for run in timed.values():
            row += _rate(run, number)
        rows.append([*row, *_cycles(step, counted[number] if counted else None)])
    listed = "\n".join(f"{n}. `{step.short_form()}`" for n, step in enumerate(steps, start=1))
    used = [r for run in (*timed.values(), counted) for r in run]
    return f"{_table(head, rows)}\n\n{_source(used) if used else NOT_MEASURED}\n\n{listed}"


def _run(
    records: Sequence[Record], suite: str, steps: Sequence[KernelConfig], length: int
) -> list[Record]:
    """The last record of each step at a length; none where one is missing."""
    found = {
        str(r.what["name"]): r
        for r in records
        if r.what["suite"] == suite and r.what["q_len"] == length
    }
    run = [found.get(step.short_form()) for step in steps]
    return [r for r in run if r is not None] if all(run) else []


def _rate(run: Sequence[Record], number: int) -> Cells:
    if not run:
        return (NOT_MEASURED, "")
    gain = ""
    if number:
        gain = f"{run[number].result['ratio'] / run[number - 1].result['ratio']:.3f}"
    return (f"{run[number].result['tflops']:.0f}", gain)


def _cycles(config: KernelConfig, counted: Record | None) -> Cells:
    """Cycles of the busiest SM over its blocks of keys, the ideal, their ratio, and the counter."""
    ideal = config.tile_q * config.tile_k * config.d_head / 1024
    if counted is None or not counted.result.get("cycles"):
        return (NOT_MEASURED, f"{ideal:.0f}", "", "")
    cycles = counted.result["cycles"] / blocks_of_keys(config, counted)
    pipe = counted.result.get("tensor_pct")
    return (
        f"{cycles:.0f}",
        f"{ideal:.0f}",
        f"{100 * ideal / cycles:.0f} %",
        f"{pipe:.0f} %" if pipe is not None else "",
    )


def blocks_of_keys(config: KernelConfig, counted: Record) -> float:
    """How many the busiest SM computes, one block of threads at a time, in all of its waves."""
    sm_count = int(counted.environment["sm_count"])
    area = launched_area(config, counted.problem, sm_count)
    return area / (config.tile_q * config.tile_k * sm_count)


def picks(records: Sequence[Record]) -> str:
    """Tensor use of what `choose` picks at the longest cells."""
    length = bars.LADDER_LENGTHS[-1]
    found = bars.grid(records, "burst")
    rows = []
    for d, causal in SHAPES:
        name = found[d, causal, length].config if (d, causal, length) in found else ""
        for r in records:
            place = (r.what.get("name"), r.what.get("d_head"), r.what.get("causal"))
            is_it = r.what["suite"] == "profile" and r.what["q_len"] == length
            if is_it and place == (name, d, causal):
                config, mask = parse_config(name), "causal" if causal else "full"
                tile = f"{config.tile_q} x {config.tile_k}"
                rows.append([d, mask, tile, *_cycles(config, r)])
                break
    head = ["d_head", "mask", "tile", "cycles a block of keys", "ideal", "tensor use"]
    return _table([*head, "tensor pipe"], rows) if rows else NOT_MEASURED


def effects(records: Sequence[Record]) -> str:
    """What moving one knob of a pick does to its speed, by width and mask."""
    lines = [r for r in records if r.what["suite"] == "hopper knobs" and not r.result["void"]]
    if not lines:
        return NOT_MEASURED
    values: dict[tuple[str, str], dict[tuple[int, bool], str]] = {}
    for r in lines:
        change = f"{100 * (float(r.result['share']) - 1):+.1f} %"
        cell = (r.what["d_head"], r.what["causal"])
        moved = (str(r.what["knob"]), f"{r.what['from']} → {r.what['to']}")
        values.setdefault(moved, {})[cell] = f"({change})" if r.result["noise"] else change
    head = ["knob", "from → to", *(f"{d} {'causal' if c else 'full'}" for d, c in SHAPES)]
    rows = [
        [f"`{knob}`", text, *(found.get(shape, "") for shape in SHAPES)]
        for (knob, text), found in sorted(values.items())
    ]
    return f"{_table(head, rows)}\n\n{_source(lines)}"


def cells(regime: str) -> Callable[[Sequence[Record]], str]:
    """The table of a regime: a row a cell."""

    def table(records: Sequence[Record]) -> str:
        found = bars.grid(records, regime)
        if not found:
            return NOT_MEASURED
        head = ["d_head", "mask", "length", "ours", "prototype", "cuDNN"]
        head += ["over prototype", "over cuDNN", "control"]
        rows = [_cell_row(one) for one in found.values()]
        lines = [_table(head, rows), ""]
        for rival in (bars.PROTOTYPE, bars.CUDNN):
            over = [*bars.over(found, rival).values()]
            if over:
                lines.append(
                    f"- over {rival}: {geometric_mean(over):.3f} in the geometric mean of "
                    f"{len(over)} cells ({min(over):.3f} to {max(over):.3f})"
                )
        return "\n".join(lines)

    return table


def _cell_row(one: bars.Found) -> Cells:
    d, causal, length = one.cell
    names = (bars.OURS, bars.PROTOTYPE, bars.CUDNN)
    rates = [f"{one.tflops[name]:.0f}" if name in one.tflops else "" for name in names]
    over = [f"{one.over[name]:.3f}" if name in one.over else "" for name in names[1:]]
    control = f"{one.control:.4f}" + (" (void)" if one.is_void else "")
    return (d, "causal" if causal else "full", f"{length:,}", *rates, *over, control)


def shapes(records: Sequence[Record]) -> str:
    """Other types, groups, layouts and lengths: the share of the plain rate."""
    found: dict[tuple[int, bool], dict[str, Any]] = {}  # Any: numbers of a record
    for r in records:
        if r.what["suite"] == bars.SHAPES:
            found.setdefault((r.what["d_head"], r.what["causal"]), {})[r.what["case"]] = r.result
    if not found:
        return NOT_MEASURED
    cases = ("fp16", "fp16, bf16 values", "gqa 8:1", "heads first", "odd length")
    cases += ("cuDNN fp16", "GEMM fp16")
    head = ["d_head", "mask", "plain, TFLOP/s", *cases]
    rows = [
        [d, "causal" if causal else "full", f"{of['plain']['tflops']:.0f}"]
        + [f"{of[case]['share']:.3f}" if case in of else "" for case in cases]
        for (d, causal), of in sorted(found.items())
    ]
    return _table(head, rows)


def clocks(records: Sequence[Record]) -> str:
    """FP16 beside the same in BF16: time, cycles, the SM's clock, and energy under load."""
    found: dict[tuple[object, ...], dict[str, Record]] = {}
    for r in records:
        place = (r.what.get("d_head"), r.what.get("causal"))
        found.setdefault((r.what["case"], *place), {})[r.what["regime"]] = r
    rows = [
        _clock_row(key, of, found[of["burst"].what["of"], *key[1:]])
        for key, of in found.items()
        if key[0] != of["burst"].what["of"] and not of["burst"].result["void"]
    ]
    if not rows:
        return NOT_MEASURED
    head = ["", "d_head", "mask", "speed", "cycles", "MHz, rested", "MHz, under load", "W"]
    order = ("ours", "ours, bf16 values", "cuDNN", "products alone", "GEMM 8192³")
    rows.sort(key=lambda row: order.index(str(row[0])))
    return f"{_table([*head, 'energy a run'], rows)}\n\n{_source(records)}"


def _clock_row(key: Cells, fp16: dict[str, Record], bf16: dict[str, Record]) -> Cells:
    case, d, causal = key
    names = {"fp16": "ours", "fp16, bf16 values": "ours, bf16 values", "GEMM fp16": "GEMM 8192³"}
    rested, loaded = ((bf16[r].result, fp16[r].result) for r in ("burst", "load"))
    return (
        names.get(str(case), str(case).removesuffix(" fp16")),
        d or "",
        {True: "causal", False: "full"}.get(causal, ""),
        f"{fp16['burst'].result['share']:.3f}",
        f"{rested[1]['cycles'] / rested[0]['cycles']:.3f}",
        " → ".join(f"{one['sm_mhz']:,.0f}" for one in rested),
        " → ".join(f"{one['sm_mhz']:,.0f}" for one in loaded),
        " → ".join(f"{one['power_w']:.0f}" for one in loaded),
        f"{100 * (loaded[1]['joules'] / loaded[0]['joules'] - 1):+.1f} %",
    )


def candidates(records: Sequence[Record]) -> str:
    """How many FP16 kernels were raced on each shape, and what the best had of BF16's pick."""
    shares: dict[tuple[int, bool], list[float]] = {}
    for r in records:
        if r.what["case"] != "BF16" and not r.result["void"]:
            cell = (r.what["d_head"], r.what["causal"])
            shares.setdefault(cell, []).append(float(r.result["share"]))
    if not shares:
        return NOT_MEASURED
    rows = [
        (d, "causal" if causal else "full", len(found), f"{max(found):.3f}", f"{min(found):.3f}")
        for (d, causal), found in sorted(shares.items())
    ]
    return _table(("d_head", "mask", "kernels", "best", "worst"), rows)


TABLES: dict[str, Callable[[Sequence[Record]], str]] = {
    "demands": demands,
    "ladder": ladder,
    "picks": picks,
    "effects": effects,
    "burst": cells("burst"),
    "sustained": cells("sustained"),
    "shapes": shapes,
}
