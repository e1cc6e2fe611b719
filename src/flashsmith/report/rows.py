"""Every measurement as a row of the page's last table: what varies in columns, labels in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashsmith.base.plain_text import plain
from flashsmith.report.contenders import config_text, problem_text, regime_of
from flashsmith.report.sources import ReportData
from flashsmith.report.table import knob_columns
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, outcome_fields, reason_of

# What a tuner's protocol means, for readers who meet the word.
PROTOCOLS = {
    "screen": "screen: a few runs of every candidate",
    "race": "race: the 8 fastest side by side, round by round",
    "final": "final: the best 3 again, in more rounds",
    "emulated": "emulated: run without a GPU",
}
_WORDS = "words"  # what the filter reads beside the columns: the whole short form


@dataclass(frozen=True, slots=True)
class Rows:
    """Flat rows, the columns that are shown, and how to read them."""

    rows: list[dict[str, object]]
    columns: list[str]
    reads: str


def all_rows(data: ReportData) -> Rows:
    """The tuner's measurements; without any, the records."""
    found = _of_measurements(data) or _of_records(data)
    if not found:
        return Rows([], [], "")
    knobs = knob_columns([str(row[_WORDS]) for row in found])
    rows = []
    for row, cells in zip(found, knobs.rows, strict=True):
        shown = {**dict(zip(knobs.heads, cells, strict=True)), **row}
        rows.append({name: plain(v) if isinstance(v, str) else v for name, v in shown.items()})
    names = [name for name in rows[0] if name != _WORDS]
    constant = {n: rows[0][n] for n in names if len({row[n] for row in rows}) == 1}
    columns = [n for n in names if n not in constant] or names[:1]
    facts = [f"{name} {value}" for name, value in constant.items() if value not in (None, "")]
    shared = ", ".join([part for part in (knobs.caption, *facts) if part])
    met = [text for name, text in PROTOCOLS.items() if any(name in row.values() for row in rows)]
    reads = " ".join(
        [
            *([f"All: {shared}."] if shared and len(rows) > 1 else []),
            *([f"How it was timed: {'; '.join(met)}."] if met else []),
            "A click on a heading sorts.",
        ]
    )
    return Rows(rows, columns, reads)


def _of_measurements(data: ReportData) -> list[dict[str, object]]:
    is_timed = any(isinstance(m.outcome, Timed) for m in data.measurements)
    return [
        {
            _WORDS: m.key.config,
            "problem": problem_text(m.key.problem),
            "outcome": type(m.outcome).__name__,
            "how": m.key.protocol if is_timed else None,
            "time, µs": round(m.outcome.median_us, 2) if isinstance(m.outcome, Timed) else None,
            "predicted place": _place(data, m),
            "registers per thread": m.environment.get("registers"),
            "blocks per SM": m.environment.get("blocks_per_sm"),
            "class": str(outcome_fields(m.outcome).get("fingerprint", ""))[:6],
            "reason": reason_of(m.outcome)[:120],
        }
        for m in sorted(data.measurements, key=_by_problem_and_time)
    ]


def _of_records(data: ReportData) -> list[dict[str, object]]:
    return [
        {
            _WORDS: config_text(r),
            "problem": problem_text(r.problem),
            "suite": str(r.what["suite"]),
            "regime": regime_of(r),
            "time, µs": round(float(r.result["median_us"]), 2),
            "void": "void" if r.result.get("void") else "",
        }
        for r in data.records
    ]


def _place(data: ReportData, m: Measurement) -> int | None:
    place = data.places.get((m.key.config, m.key.problem))
    return None if place is None else int(place)


def _by_problem_and_time(m: Measurement) -> tuple[object, ...]:
    p = m.key.problem
    us = m.outcome.median_us if isinstance(m.outcome, Timed) else math.inf
    return p.d_head, p.causal, p.q_len, p.k_len, p.batch, p.heads, us, m.key.config
