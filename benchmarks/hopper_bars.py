"""What the Hopper record must show, bar by bar; reads the record's lines and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashsmith.measure.interleaved import CONTROL_LIMIT
from flashsmith.measure.record import Record, read_records
from flashsmith.measure.statistics import geometric_mean

CELLS = 36
SUITE, SHAPES, CHECKS, LADDER = "hopper", "hopper shapes", "hopper checks", "progression"
OURS, PROTOTYPE, CUDNN = "flashsmith", "prototype", "cuDNN"
CHECKED = ("accuracy", "masked rows", "same bits", "two streams")
LADDER_LENGTHS = (4096, 16384)

Cell = tuple[int, bool, int]
Numbers = dict[str, Any]  # Any: a section of a record


@dataclass(frozen=True, slots=True)
class Bar:
    """One demand, what was measured, and whether it holds; `None` is for what is only told."""

    text: str
    found: str
    holds: bool | None

    def __str__(self) -> str:
        mark = {True: "holds", False: "MISSED", None: "-"}[self.holds]
        return f"{mark:6s} {self.text}: {self.found}"


@dataclass(frozen=True, slots=True)
class Found:
    """A cell of the grid in one regime: our speed over each other contender's."""

    cell: Cell
    over: dict[str, float]
    tflops: dict[str, float]
    control: float
    attempts: int
    config: str
    variant: str

    @property
    def is_void(self) -> bool:
        """Whether our kernel differed from itself by more than 1 %."""
        return abs(self.control - 1) > CONTROL_LIMIT


def read(path: Path) -> list[Record]:
    """The record's lines; none where there is no file."""
    return read_records(path) if path.is_file() else []


def grid(records: Iterable[Record], regime: str) -> dict[Cell, Found]:
    """Every cell that was measured in a regime; of two runs the later."""
    lines: dict[Cell, dict[str, Record]] = {}
    for r in records:
        if r.what["suite"] == SUITE and r.result["regime"] == regime:
            cell = (r.what["d_head"], r.what["causal"], r.what["q_len"])
            if r.what["name"] == OURS:
                lines[cell] = {}
            lines[cell][r.what["name"]] = r
    return {cell: _found(cell, lines[cell]) for cell in sorted(lines)}


def _found(cell: Cell, by_name: dict[str, Record]) -> Found:
    ours = by_name[OURS]
    # Ours is the baseline, so a record's ratio is how many times as fast as we it is.
    over = {name: 1 / float(r.result["ratio"]) for name, r in by_name.items() if name != OURS}
    rival = by_name.get(PROTOTYPE)
    return Found(
        cell,
        over,
        {name: float(r.result["tflops"]) for name, r in by_name.items()},
        float(ours.result["control"]),
        int(ours.result["attempts"]),
        str(ours.what["config"]),
        str(rival.what["variant"]) if rival else "",
    )


def bars(records: Sequence[Record]) -> list[Bar]:
    """Every demand on the record."""
    return [
        *_burst(grid(records, "burst")),
        *_sustained(grid(records, "sustained")),
        *_shapes([r for r in records if r.what["suite"] == SHAPES]),
        *_checks([r for r in records if r.what["suite"] == CHECKS]),
        _sanitizer([r for r in records if r.what["suite"] == "sanitizer"]),
        *_ladder([r for r in records if r.what["suite"] == LADDER]),
    ]


def _burst(cells: dict[Cell, Found]) -> Iterator[Bar]:
    yield from _complete(cells, "burst")
    yield _mean(cells, "burst", PROTOTYPE, 1.0)
    yield _least(cells, "burst", PROTOTYPE, 0.97)
    yield _mean(cells, "burst", CUDNN, 1.2)
    goal = over(cells, PROTOTYPE)
    reached = f"{geometric_mean([*goal.values()]):.4f}" if goal else "not measured"
    yield Bar("burst over prototype, the goal of 1.05", reached, None)
    yield from _by_width(cells, "burst")


def _sustained(cells: dict[Cell, Found]) -> Iterator[Bar]:
    yield from _complete(cells, "sustained")
    yield _mean(cells, "sustained", PROTOTYPE, 1.02)  # over all cells, d 256 causal included
    yield from _by_width(cells, "sustained")


def _complete(cells: dict[Cell, Found], regime: str) -> Iterator[Bar]:
    yield Bar(f"{regime}: cells measured of {CELLS}", f"{len(cells)}", len(cells) == CELLS)
    void = [f"{_name(c)} {found.control:.4f}" for c, found in cells.items() if found.is_void]
    again = sum(found.attempts > 1 for found in cells.values())
    text = f"{', '.join(void) or 'all'}; {again} cells were taken again"
    yield Bar(f"{regime}: controls within 1 %", text, bool(cells) and not void)


def over(cells: dict[Cell, Found], rival: str) -> dict[Cell, float]:
    """Our speed over a rival's, by cell; a void cell says nothing."""
    return {c: f.over[rival] for c, f in cells.items() if rival in f.over and not f.is_void}


def _mean(cells: dict[Cell, Found], regime: str, rival: str, least: float) -> Bar:
    values = [*over(cells, rival).values()]
    text = f"{regime} over {rival}, geometric mean at least {least:.2f}"
    if not values:
        return Bar(text, "not measured", False)
    mean = geometric_mean(values)
    return Bar(text, f"{mean:.4f} over {len(values)} cells", mean >= least)


def _least(cells: dict[Cell, Found], regime: str, rival: str, least: float) -> Bar:
    known = over(cells, rival)
    text = f"{regime} over {rival}, every cell at least {least:.2f}"
    if not known:
        return Bar(text, "not measured", False)
    worst = min(known, key=lambda cell: known[cell])
    return Bar(text, f"{known[worst]:.4f} at {_name(worst)}", known[worst] >= least)


def _by_width(cells: dict[Cell, Found], regime: str) -> Iterator[Bar]:
    for d in (64, 128, 256):
        for causal in (False, True):
            part = {c: found for c, found in cells.items() if c[:2] == (d, causal)}
            means = [
                f"{geometric_mean([*known.values()]):.4f} over {rival}"
                for rival in (PROTOTYPE, CUDNN)
                if (known := over(part, rival))
            ]
            mask = "causal" if causal else "full"
            yield Bar(f"{regime} d {d} {mask}", ", ".join(means) or "not measured", None)


def _shapes(lines: Sequence[Record]) -> Iterator[Bar]:
    for case, least in (
        ("fp16", 0.98),
        ("fp16, bf16 values", 0.98),  # the same numbers: what the kernel itself loses
        ("gqa 8:1", 0.95),
        ("heads first", 0.95),
        ("odd length", 0.95),
    ):
        known = {_shape(r): float(r.result["share"]) for r in lines if r.what["case"] == case}
        yield _worst(f"{case} of plain, per useful FLOP, at least {least:.2f}", known, least)
    for case in ("cuDNN fp16", "GEMM fp16"):
        known = {_shape(r): float(r.result["share"]) for r in lines if r.what["case"] == case}
        text = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
        yield Bar(f"{case} of its bf16", text or "not measured", None)
    void = [_shape(r) for r in lines if r.result["void"] and r.what["case"] == "plain"]
    yield Bar("shapes: controls within 1 %", ", ".join(void) or "all", bool(lines) and not void)


def _worst(text: str, known: dict[str, float], least: float) -> Bar:
    if not known:
        return Bar(text, "not measured", False)
    worst = min(known, key=lambda name: known[name])
    return Bar(text, f"{known[worst]:.4f} at {worst}", known[worst] >= least)


def _checks(lines: Sequence[Record]) -> Iterator[Bar]:
    errors = [float(r.result["of_cudnn"]) for r in lines if "of_cudnn" in r.result]
    found = f"{max(errors):.3f} at most in {len(errors)} cases" if errors else "not measured"
    yield Bar("error at most 1.1 times cuDNN's", found, bool(errors) and max(errors) <= 1.1)
    for check in CHECKED:
        of_it = [bool(r.result["ok"]) for r in lines if r.what["check"] == check]
        yield Bar(
            f"check: {check}", f"{sum(of_it)} of {len(of_it)} right", bool(of_it) and all(of_it)
        )


def _sanitizer(lines: Sequence[Record]) -> Bar:
    last = lines[-1].result if lines else {}
    clean = last.get("exit_code") == 0 and last.get("errors") == 0
    said = f"{last.get('summary', '')} {last.get('verified', '')}".strip()
    return Bar("memcheck clean on small shapes", said or "not measured", clean)


def _ladder(lines: Sequence[Record]) -> Iterator[Bar]:
    for length in LADDER_LENGTHS:
        run = [r for r in lines if r.what["q_len"] == length]
        controls = {float(r.result["control"]) for r in run}
        sound = bool(run) and not any(r.result["void"] for r in run)
        text = f"{len(run)} steps, control {', '.join(f'{c:.4f}' for c in controls)}"
        yield Bar(f"ladder at {length}", text if run else "not measured", sound)


def _name(cell: Cell) -> str:
    return f"d {cell[0]} {'causal' if cell[1] else 'full'} {cell[2]}"


def _shape(r: Record) -> str:
    return f"d {r.what['d_head']} {'causal' if r.what['causal'] else 'full'}"


def show(records: Sequence[Record], write: Callable[[str], object]) -> bool:
    """Writes every bar; whether all of them hold."""
    found = bars(records)
    for bar in found:
        write(str(bar))
    missed = sum(bar.holds is False for bar in found)
    write(f"{missed} of {sum(bar.holds is not None for bar in found)} bars missed")
    return not missed
