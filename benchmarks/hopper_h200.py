"""The Hopper kernels on an H200 as `choose` picks them, against cuDNN and a prototype, interleaved.

    python3 benchmarks/hopper_h200.py OUT_FOLDER [--prototype FOLDER] [--parts burst,sustained,…]

Writes one JSON line a cell to OUT_FOLDER/hopper_h200.jsonl and prints a table. Every contender is a
CUDA graph; burst runs come after a 256 MB flush each, the order rotates every round, and the first
contender runs twice as a control. FOLDER holds `yardstick.py` and `cubins/` of the prototype.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from hopper_checks import checks, shapes
from hopper_shapes import (
    CELLS,
    PROTOTYPE_ORDER,
    PROTOTYPE_VARIANTS,
    Tensors,
    compile_ahead,
    cudnn,
    flops,
    make_tensors,
    ours,
)

from flashsmith.config import get_kernel_configs

ROUNDS = 15
SUSTAINED_ROUNDS = 2
LOAD_SECONDS = 0.3
FLUSH_BYTES = 256 << 20

Run = Callable[[], object]


class Prototype:
    """The prototype's kernels, loaded by its own script."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self.module = importlib.import_module("yardstick")
        self.folder = folder
        self.loaded: dict[str, object] = {}

    def runs(self, t: Tensors, causal: bool, only: str | None = None) -> dict[str, Run]:
        """Its variants for a cell, or one of them, with the tile order its record names."""
        d, length = t.q.shape[3], t.q.shape[1]
        section, tail = PROTOTYPE_ORDER.get((d, length), (32, None)) if causal else (0, None)
        found = {}
        for name in PROTOTYPE_VARIANTS[d, causal]:
            if only not in (None, f"prototype {name}"):
                continue
            file = f"{name}-{'c' if causal else 'f'}"
            if file not in self.loaded:
                path = self.folder / "cubins" / f"{file}.cubin"
                self.loaded[file] = self.module.Var(str(path))
            o = torch.empty_like(t.q)
            lse = torch.empty(t.q.shape[0], t.q.shape[2], length, device="cuda")
            made = self.loaded[file].make(t.q, t.k, t.v, o, lse, secmb=section, T=tail)
            found[f"prototype {name}"] = keeping(made, o, lse)
        return found


def keeping(run: Run, *tensors: torch.Tensor) -> Run:
    """The run, holding what it writes: a launch knows addresses only, and capturing a graph gives
    memory that nobody holds back to the driver."""

    def held() -> object:
        assert tensors
        return run()

    return held


def graph_of(run: Run) -> torch.cuda.CUDAGraph:
    """A graph of one run, replayed once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def burst(runs: dict[str, Run], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Milliseconds of every run in every round, cold L2, order rotated."""
    graphs = {name: graph_of(run) for name, run in runs.items()}
    names = list(graphs)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            events.append((name, start, end))
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in names}
    for name, start, end in events:
        times[name].append(start.elapsed_time(end))
    return times


def sustained(runs: dict[str, Run]) -> dict[str, list[float]]:
    """Milliseconds a run after 0.3 s of load of the same contender; order reversed once."""
    graphs = {name: graph_of(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(SUSTAINED_ROUNDS):
        for name in list(graphs) if turn % 2 == 0 else list(graphs)[::-1]:
            one = _timed(graphs[name], 3)
            _timed(graphs[name], max(1, int(1000 * LOAD_SECONDS / one)))
            times[name].append(_timed(graphs[name], max(3, int(100 / one))))
    return times


def _timed(graph: torch.cuda.CUDAGraph, count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def ratio(times: dict[str, list[float]], other: str, mine: str) -> float:
    """How much faster `mine` is: the median over rounds of the ratio inside a round."""
    pairs = zip(times[other], times[mine], strict=True)
    return statistics.median(theirs / own for theirs, own in pairs)


def compare(
    part: str,
    cell: tuple[int, bool, int],
    prototype: Prototype | None,
    out: Path,
    only: str | None = None,
) -> dict[str, object]:
    """One cell: our pick, the prototype's variants (or only one), cuDNN, and a control."""
    d, causal, length = cell
    tensors = make_tensors(d, length)
    mine, pick = ours(tensors, causal=causal)
    runs: dict[str, Run] = {"ours": mine}
    if part == "burst":
        runs["control"] = mine
    if prototype is not None:
        runs |= prototype.runs(tensors, causal, only)
    runs["cuDNN"] = cudnn(tensors, causal=causal)
    times = burst(runs) if part == "burst" else sustained(runs)
    work = flops(tensors, causal=causal)
    rivals = [name for name in times if name.startswith("prototype")]
    best = min(rivals, key=lambda n: statistics.median(times[n])) if rivals else None
    record: dict[str, object] = {
        "part": part,
        "d_head": d,
        "causal": causal,
        "length": length,
        "config": pick,
        "tflops": {n: round(work / statistics.median(t) / 1e9, 1) for n, t in times.items()},
        "over_cudnn": round(ratio(times, "cuDNN", "ours"), 4),
        "over_prototype": round(ratio(times, best, "ours"), 4) if best else None,
        "prototype": best,
        "control": round(ratio(times, "control", "ours"), 4) if "control" in times else None,
    }
    write(out, record)
    show = {n: v for n, v in record["tflops"].items() if n in ("ours", "cuDNN", best)}
    print(
        f"{part:9s} d{d:<3d} {'causal' if causal else 'full':6s} {length:6d} {show} "
        f"over prototype {record['over_prototype']} cuDNN {record['over_cudnn']} "
        f"control {record['control']} | {pick}",
        flush=True,
    )
    return record


def write(out: Path, record: dict[str, object]) -> None:
    """Appends one line to the record."""
    stamp = {"gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d")}
    with (out / "hopper_h200.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record | stamp) + "\n")


def ladder(out: Path) -> None:
    """Every step of the ladder on the same cells, interleaved."""
    steps = get_kernel_configs("hopper-prog")
    for length in (4096, 16384):
        tensors = make_tensors(128, length)
        runs = {c.short_form(): ours(tensors, causal=False, config=c)[0] for c in steps}
        times = burst(runs)
        work = flops(tensors, causal=False)
        rates = {n: round(work / statistics.median(t) / 1e9, 1) for n, t in times.items()}
        write(out, {"part": "ladder", "d_head": 128, "causal": False, "length": length} | rates)
        for name, rate in rates.items():
            print(f"ladder {length} {rate:6.1f} {name}", flush=True)


def summary(part: str, records: list[dict[str, object]]) -> None:
    """Geometric means and the worst cell."""
    for key in ("over_prototype", "over_cudnn", "control"):
        values = [float(r[key]) for r in records if r[key]]  # type: ignore[arg-type]
        if values:
            mean = math.exp(statistics.fmean(map(math.log, values)))
            print(f"{part}: {key} geometric mean {mean:.4f}, least {min(values):.4f}", flush=True)


def best_variants(out: Path) -> dict[tuple[int, bool, int], str]:
    """The prototype's best variant of each burst cell on record."""
    path = out / "hopper_h200.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines]
    return {
        (r["d_head"], r["causal"], r["length"]): r["prototype"]
        for r in records
        if r["part"] == "burst" and r["prototype"]
    }


def run_part(part: str, widths: list[int], prototype: Prototype | None, out: Path) -> None:
    """One part, in this process."""
    if part in ("burst", "sustained"):
        best = best_variants(out)
        cells = [c for c in CELLS if c[0] in widths and (part == "burst" or c[2] in (2048, 16384))]
        summary(part, [compare(part, cell, prototype, out, best.get(cell)) for cell in cells])
    elif part == "ladder":
        ladder(out)
    else:
        for line in {"checks": checks, "shapes": shapes}[part](burst):
            write(out, line)
            print(line, flush=True)


def main() -> None:
    """Runs each part, and each width of a comparison, as a process: a fault ends only that."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--prototype", type=Path)
    parser.add_argument("--parts", default="checks,ladder,burst,sustained,shapes")
    parser.add_argument("--widths", default="64,128,256")
    parser.add_argument("--here", action="store_true", help="in this process, nothing compiled")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.here:
        prototype = Prototype(asked.prototype) if asked.prototype else None
        run_part(asked.parts, [int(w) for w in asked.widths.split(",")], prototype, asked.out)
        return
    compile_ahead()
    command = [sys.executable, __file__, str(asked.out), "--here"]
    if asked.prototype:
        command += ["--prototype", str(asked.prototype)]
    for part in asked.parts.split(","):
        compared = part in ("burst", "sustained")
        for widths in asked.widths.split(",") if compared else [asked.widths]:
            subprocess.run([*command, "--parts", part, "--widths", widths], check=False)


if __name__ == "__main__":
    main()
