"""Where and when the data of a page were obtained, as a table."""

from __future__ import annotations

from flashsmith.report.markup import element, escape
from flashsmith.report.sources import ReportData

# Names of records, and what a reader calls them.
_LABELS = {
    "device": "GPU",
    "arch": "architecture",
    "sm_count": "SMs",
    "max_sm_mhz": "highest SM clock, MHz",
    "power_limit_w": "power limit, W",
    "driver": "driver",
    "cuda": "CUDA of the driver",
    "compiler": "compiler",
    "python": "Python",
    "packages": "packages",
    "flashsmith": "flashsmith",
    "commit": "commit",
    "date": "taken",
}


def environment_html(data: ReportData) -> str:
    """Every value that the data state, a line each; dates from the first to the last."""
    seen = [dict(r.environment) for r in (*data.records, *data.counted)]
    seen += [dict(m.environment) for m in data.measurements]
    lines = []
    for name, label in _LABELS.items():
        values = list(dict.fromkeys(_stated(e[name]) for e in seen if e.get(name)))
        if name == "date" and values:
            values = list(dict.fromkeys((min(values), max(values))))
        if values:
            text = (" to " if name == "date" else ", ").join(values)
            lines.append(f"<tr>{element('th', label)}<td>{escape(text)}</td></tr>")
    if not lines:
        return "<p>The data state none.</p>"
    return f'<div class="card scroll"><table id="environment">{"".join(lines)}</table></div>'


def _stated(value: object) -> str:
    """A value of the environment in words; packages with their versions."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return str(value)
