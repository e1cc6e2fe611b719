"""One self-contained HTML file: sentences, charts, a table that filters and sorts, environment."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from flashsmith.base.errors import Unsupported
from flashsmith.report import (
    counter_charts,
    ladder_charts,
    order_charts,
    record_charts,
    tuning_charts,
)
from flashsmith.report.contenders import problem_text, regime_of
from flashsmith.report.figure import Figure, Json
from flashsmith.report.sources import ReportData
from flashsmith.report.summary import missing, sentences
from flashsmith.report.winners import winners
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, outcome_fields, reason_of

_TEMPLATE = Path(__file__).parent / "page.html"
_COLUMNS = (
    *("config", "problem", "outcome", "protocol", "median_us", "predicted_place", "registers"),
    *("blocks_per_sm", "bits"),
)
_ENVIRONMENT = (
    *("device", "arch", "sm_count", "max_sm_mhz", "power_limit_w", "driver", "cuda", "compiler"),
    *("python", "packages", "flashsmith", "commit", "date"),
)


def write_page(data: ReportData, path: Path, *, reproduce: str = "") -> int:
    """Writes the page beside its place and renames it; returns the number of charts."""
    figures = _figures(data)
    values = {
        "@@SENTENCES@@": _list(sentences(data)),
        "@@MISSING@@": _list([f"Left out: {gap}." for gap in missing(data)]),
        "@@WINNERS@@": _winners(data),
        "@@CHARTS@@": "\n".join(
            f'<div class="chart{_wide(figure)}" id="chart{n}"></div>'
            for n, figure in enumerate(figures)
        ),
        "@@ROWS@@": _script_json(_rows(data)),
        "@@COLUMNS@@": _script_json(_COLUMNS),
        "@@ENVIRONMENT@@": _environment(data),
        "@@REPRODUCE@@": html.escape(reproduce or "flashsmith report"),
        "@@FIGURES@@": _script_json(figures),
        "@@PLOTLY@@": _plotly_js(),
    }
    # In one pass: a foreign text that looks like a mark stays what it is.
    template = _TEMPLATE.read_text(encoding="utf-8")
    text = re.sub("@@[A-Z]+@@", lambda mark: values[mark[0]], template)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return len(figures)


def _figures(data: ReportData) -> list[Json]:
    records, measurements = data.records, data.measurements
    tuned = winners(measurements)
    found = {(r.problem.d_head, r.problem.causal) for r in records}
    shapes = sorted(found | {(w.problem.d_head, w.problem.causal) for w in tuned})
    made: list[Figure | None] = [
        record_charts.speedups(records, "burst"),
        record_charts.speedups(records, "sustained"),
        *(
            record_charts.peers_over_length(records, tuned, d, causal)
            for d, causal in sorted(shapes)
        ),
        record_charts.roofline(records, tuned, data.device),
        *ladder_charts.ladders(records),
        *ladder_charts.knobs(records),
        *counter_charts.counters(data.counted),
        tuning_charts.landscape(measurements),
        tuning_charts.predicted(tuning_charts.times_of(data), data.places),
        order_charts.predicted_order(measurements, data.places),
        tuning_charts.outcomes(measurements),
        tuning_charts.resources(measurements),
        tuning_charts.shared_memory(measurements),
        tuning_charts.spills(measurements),
        tuning_charts.numeric_classes(measurements),
    ]
    return [figure.to_json() for figure in made if figure is not None]


def _winners(data: ReportData) -> str:
    found = winners(data.measurements)
    if not found:
        return ""
    heads = ("problem", "winner", "µs", "TFLOP/s", "ahead of the next")
    rows = [
        (
            problem_text(w.problem),
            w.config,
            f"{w.median_us:.1f}",
            f"{w.tflops:.0f}",
            "" if w.ahead is None else f"{w.ahead:.1%}",
        )
        for w in found
    ]
    head = f"{_cells(heads[:2], tag='th')}{_cells(heads[2:], 'number', tag='th')}"
    body = "".join(f"<tr>{_cells(row[:2])}{_cells(row[2:], 'number')}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead>{body}</table>"
    return f'<h2>Winners</h2><div class="card scroll" id="winners">{table}</div>'


def _cells(texts: Sequence[str], kind: str = "", *, tag: str = "td") -> str:
    named = f' class="{kind}"' if kind else ""
    return "".join(f"<{tag}{named}>{html.escape(text)}</{tag}>" for text in texts)


def _wide(figure: Json) -> str:
    return " wide" if figure["layout"]["meta"]["wide"] else ""


def _rows(data: ReportData) -> list[dict[str, object]]:
    return [
        {
            "config": m.key.config,
            "problem": problem_text(m.key.problem),
            "outcome": type(m.outcome).__name__,
            "protocol": m.key.protocol,
            "median_us": round(m.outcome.median_us, 2) if isinstance(m.outcome, Timed) else None,
            "predicted_place": data.places.get((m.key.config, m.key.problem)),
            "registers": m.environment.get("registers"),
            "blocks_per_sm": m.environment.get("blocks_per_sm"),
            "bits": str(outcome_fields(m.outcome).get("fingerprint", reason_of(m.outcome)))[:60],
        }
        for m in sorted(data.measurements, key=_by_problem_and_time)
    ] or [
        {
            "config": r.what.get("config") or r.what["name"],
            "problem": problem_text(r.problem),
            "outcome": "void" if r.result.get("void") else "Timed",
            "protocol": regime_of(r),
            "median_us": round(r.result["median_us"], 2),
            "predicted_place": data.places.get((str(r.what["name"]), r.problem)),
            "registers": None,
            "blocks_per_sm": None,
            "bits": "",
        }
        for r in data.records
    ]


def _by_problem_and_time(m: Measurement) -> tuple[object, ...]:
    p = m.key.problem
    us = m.outcome.median_us if isinstance(m.outcome, Timed) else math.inf
    return p.d_head, p.causal, p.q_len, p.k_len, p.batch, p.heads, us, m.key.config


def _environment(data: ReportData) -> str:
    seen = [dict(r.environment) for r in (*data.records, *data.counted)]
    seen += [dict(m.environment) for m in data.measurements]
    if not seen:
        return "<p>None stated.</p>"
    lines = []
    for name in _ENVIRONMENT:
        values = list(dict.fromkeys(_stated(e[name]) for e in seen if e.get(name)))
        if name == "date" and values:
            values = list(dict.fromkeys((min(values), max(values))))
        if values:
            text = (" to " if name == "date" else ", ").join(values)
            lines.append(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>")
    return f"<table>{''.join(lines)}</table>"


def _stated(value: object) -> str:
    """A value of the environment in words; packages with their versions."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)


def _list(items: Sequence[str]) -> str:
    """Items of a list; what stands between backticks is code."""
    coded = (re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(item)) for item in items)
    return "".join(f"<li>{item}</li>" for item in coded)


def _script_json(value: object) -> str:
    # "</script>" inside a text would end the script element.
    return json.dumps(value).replace("</", "<\\/")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise Unsupported(
            "The report draws its charts with plotly, which is not installed; run pip install "
            "'flashsmith[report]'."
        ) from error
    text: str = get_plotlyjs()
    return text
