"""One self-contained HTML file: a verdict, tables and charts, every measurement, environment."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.base.errors import Unsupported
from flashsmith.base.whole_file import written_whole
from flashsmith.report import (
    counter_charts,
    ladders,
    record_charts,
    tuning_charts,
    tuning_tables,
)
from flashsmith.report.environment import environment_html
from flashsmith.report.figure import Figure
from flashsmith.report.headline import Fact, Headline, headline
from flashsmith.report.left_out import left_out
from flashsmith.report.markup import coded, element, escape, prose
from flashsmith.report.peer_tables import best_peer, peer_tables
from flashsmith.report.rows import Rows, all_rows
from flashsmith.report.sources import ReportData
from flashsmith.report.table import Table
from flashsmith.report.winners import winners

_MEASURE = "flashsmith bench --suite paper -o records.jsonl"
_TEMPLATE = Path(__file__).parent / "page.html"
Block = Figure | Table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


def write_page(data: ReportData, path: Path, *, reproduce: str = "") -> int:
    """Writes the page beside its place and renames it; returns the number of charts."""
    sections = _sections(data)
    filtered, rest = _filtered(data), _rest(data)
    figures = [b for s in (*sections, filtered) for b in s.blocks if isinstance(b, Figure)]
    rows = all_rows(data)
    top = headline(data) if not data.is_empty else Headline("No data", "", "", ())
    values = {
        "@@TITLE@@": escape(f"flashsmith: {top.title}"),
        "@@HEADER@@": _header(top, data, reproduce or "flashsmith report"),
        "@@SECTIONS@@": "".join(_section_html(s, figures) for s in sections),
        "@@FILTERED@@": _filtered_html(filtered, figures, rows),
        "@@REST@@": _section_html(rest, figures) if rest.blocks else "",
        "@@END@@": "" if data.is_empty else _end(data),
        "@@FIGURES@@": _script_json([figure.to_json() for figure in figures]),
        "@@ROWS@@": _script_json(rows.rows),
        "@@COLUMNS@@": _script_json(rows.columns),
        "@@PLOTLY@@": _plotly_js() if figures else "",
    }
    # In one pass: a foreign text that looks like a mark stays what it is.
    template = _TEMPLATE.read_text(encoding="utf-8")
    text = re.sub("@@[A-Z]+@@", lambda mark: values[mark[0]], template)
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")
    return len(figures)


def _sections(data: ReportData) -> list[Section]:
    records, measurements = data.records, data.measurements
    tuned = winners(measurements)
    shapes = {(r.problem.d_head, r.problem.causal) for r in records}
    shapes |= {(w.problem.d_head, w.problem.causal) for w in tuned}
    rates = [record_charts.peers_over_length(records, tuned, *shape) for shape in sorted(shapes)]
    found = [
        _section("Against what one would use instead", *peer_tables(records)),
        _section("Speed", *rates, record_charts.roofline(records, tuned, data.device)),
        _section("Winners", tuning_tables.winners_table(measurements)),
        _section(
            "What each optimisation brings", *ladders.ladders(records), *ladders.knobs(records)
        ),
        _section("What a profiler counted", *counter_charts.counters(data.counted)),
    ]
    return [section for section in found if section.blocks]


def _rest(data: ReportData) -> Section:
    return _section(
        "Bits, spills and failures",
        tuning_tables.classes_table(data.measurements),
        tuning_tables.spills_table(data.measurements),
        tuning_tables.failures_table(data.measurements),
    )


def _filtered(data: ReportData) -> Section:
    """What the filter stands over: it acts on all of it."""
    return _section(
        "Every measurement",
        tuning_tables.order_table(data.measurements, data.places),
        tuning_charts.predicted_cycles(data.measurements, data.places),
        tuning_charts.landscape(data.measurements),
        tuning_charts.predicted(tuning_charts.times_of(data), data.places),
        tuning_charts.occupancy(data.measurements),
    )


def _section(title: str, *blocks: Block | None) -> Section:
    return Section(title, tuple(block for block in blocks if block is not None))


def _header(top: Headline, data: ReportData, reproduce: str) -> str:
    if data.is_empty:
        source = coded(
            f"{data.source or 'This run'} holds nothing that was measured: run "
            f"`flashsmith tune` or `flashsmith bench -o FILE`, and make the page again."
        )
        return f'<h1>No data</h1><p id="empty">{source}</p>'
    facts = "".join(map(_fact_html, top.facts))
    measure = _measure_html(data) if best_peer(data.records) is not None else ""
    return (
        f"{element('h1', top.title)}"
        f'<p id="about">{escape(top.shapes)} · {escape(top.dates)} · from {escape(data.source)}</p>'
        f'<div id="facts">{facts}</div>'
        f'<p id="again">To make it again: <code>{escape(reproduce)}</code>{measure}</p>'
    )


def _measure_html(data: ReportData) -> str:
    """How to measure it anew; a peer that came from a file has to come from one again."""
    own = " --peer FILE.py:NAME" * any("peer_file" in record.what for record in data.records)
    return f" To measure on this machine: <code>{_MEASURE}{own}</code>"


def _fact_html(fact: Fact) -> str:
    # Words of a short form may stand on lines of their own.
    value = element("code" if fact.is_code else "strong", fact.value).replace("+", "+<wbr>")
    return f'<div class="card fact">{value}{element("em", fact.what)}{prose(fact.reads)}</div>'


def _section_html(section: Section, figures: Sequence[Figure]) -> str:
    blocks = "".join(_block_html(block, figures) for block in section.blocks)
    heading = element("h2", section.title)
    return f'<section>{heading}<div class="blocks">{blocks}</div></section>'


def _block_html(block: Block, figures: Sequence[Figure]) -> str:
    if isinstance(block, Table):
        return block.to_html()
    number = next(n for n, figure in enumerate(figures) if figure is block)
    wide = " wide" if block.is_wide else ""
    return (
        f'<figure class="card{wide}"><figcaption>{element("h3", block.title)}'
        f"{prose(block.reads)}</figcaption>{_legend_html(block, number)}"
        f'<div class="plot" id="chart{number}" style="height:{block.height}px"></div></figure>'
    )


def _legend_html(figure: Figure, number: int) -> str:
    """Buttons that show and hide a trace; none where there is one nameless trace."""
    buttons = [
        f'<button type="button" data-chart="{number}" data-trace="{n}">'
        f'<i class="{kind}" style="color:{colour}"></i>{escape(name)}</button>'
        for n, (name, colour, kind) in enumerate(figure.legend())
        if name
    ]
    return f'<div class="legend">{"".join(buttons)}</div>' if buttons else ""


def _filtered_html(section: Section, figures: Sequence[Figure], rows: Rows) -> str:
    """The filter, the charts and tables that it acts on, and the rows."""
    if not rows.rows:
        return ""
    blocks = "".join(_block_html(block, figures) for block in section.blocks)
    blocks = f'<div class="blocks">{blocks}</div>' if blocks else ""
    label = "Show only what holds these words, such as: eager causal"
    return (
        f'<section id="filtered"><h2>{escape(section.title)} <span id="count"></span></h2>'
        f'<div id="asked"><input id="filter" type="search" placeholder="{label}" '
        f'aria-label="{label}"></div>{blocks}'
        f'<figure class="card wide"><figcaption>{prose(rows.reads)}</figcaption>'
        f'<div class="scroll tall"><table id="rows"><thead></thead><tbody></tbody></table></div>'
        f'<p class="printed">A print shows the first rows.</p></figure></section>'
    )


def _end(data: ReportData) -> str:
    gaps = "".join(f"<li>{coded(gap)}</li>" for gap in left_out(data))
    missing = f'<section id="gaps"><h2>What is left out</h2><ul>{gaps}</ul></section>'
    return (
        f"<section><h2>Environment</h2>{environment_html(data)}</section>{missing if gaps else ''}"
    )


def _script_json(value: object) -> str:
    """Data inside a script: no text in it can end the element, or begin a comment in it."""
    text = json.dumps(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


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
