"""A picture of rates over lengths as SVG text: small panels that read on white and on black."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 300, 210  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 30, 30  # free around a panel's axes
_LEGEND = 34
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c1c1e}.soft{fill:#5b5b63;font-size:11px}"
    ".grid{stroke:#d9dbe0}"
    "@media(prefers-color-scheme:dark){text{fill:#ececf0}.soft{fill:#a5a7b0}.grid{stroke:#363941}}"
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart: a title, and for every name its (length, rate) points."""

    title: str
    lines: Mapping[str, Sequence[tuple[int, float]]]


def panels_svg(panels: Sequence[Panel], colours: Mapping[str, str], *, across: int = 3) -> str:
    """The panels in rows of `across`, on one scale, with one legend and a description."""
    points = [point for panel in panels for line in panel.lines.values() for point in line]
    lengths = sorted({length for length, _ in points})
    top = _round_up(max(rate for _, rate in points))
    rows = math.ceil(len(panels) / across)
    width, height = across * _WIDTH, rows * _HEIGHT + _LEGEND
    names = ", ".join(colours)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>TFLOP/s over sequence length: {escape(names)}</title><style>{_STYLE}</style>",
        *_legend(colours),
    ]
    for number, panel in enumerate(panels):
        x, y = number % across * _WIDTH, number // across * _HEIGHT + _LEGEND
        parts.append(f'<g transform="translate({x},{y})">')
        parts += _panel(panel, colours, lengths, top)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(colours: Mapping[str, str]) -> list[str]:
    parts, x = [], _LEFT
    for name, colour in colours.items():
        parts.append(f'<rect x="{x}" y="12" width="14" height="4" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="18">{escape(name)}</text>')
        x += 44 + 7 * len(name)
    return parts


def _panel(
    panel: Panel, colours: Mapping[str, str], lengths: Sequence[int], top: float
) -> list[str]:
    low, high = math.log2(lengths[0]), math.log2(lengths[-1])
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(length: int, rate: float) -> tuple[float, float]:
        share = (math.log2(length) - low) / ((high - low) or 1.0)
        return round(_LEFT + share * width, 1), round(_TOP + height * (1 - rate / top), 1)

    parts = [f'<text x="{_LEFT}" y="{_TOP - 12}">{escape(panel.title)}</text>']
    for step in range(5):
        rate = top * step / 4
        y = at(lengths[0], rate)[1]
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{_WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text class="soft" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{rate:.0f}</text>'
        )
    for length in lengths:
        x = at(length, 0)[0]
        label = f"{length // 1024}k" if length >= 1024 else str(length)
        parts.append(
            f'<text class="soft" x="{x}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{label}</text>"
        )
    for name, line in panel.lines.items():
        places = [at(*point) for point in sorted(line)]
        path = " ".join(f"{x},{y}" for x, y in places)
        colour = colours[name]
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"/>'
        )
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places]
    return parts


def _round_up(value: float) -> float:
    """The next multiple of 200: quarters of it are round."""
    return max(math.ceil(value / 200) * 200.0, 200.0)


def curves_svg(
    curves: Mapping[str, Sequence[float]], colours: Mapping[str, str], *, title: str
) -> str:
    """Values over steps, one line a name, from 0 up, with a legend and a description."""
    width, height = 2 * _WIDTH, _HEIGHT + _LEGEND
    steps = max(len(values) for values in curves.values())
    top = math.ceil(max(max(values) for values in curves.values()))
    right, bottom = width - _RIGHT, height - _BOTTOM

    def at(step: float, value: float) -> tuple[float, float]:
        x = _LEFT + (right - _LEFT) * step / max(steps - 1, 1)
        return round(x, 1), round(bottom - (bottom - _LEGEND - _TOP) * value / top, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}: {escape(', '.join(curves))}</title><style>{_STYLE}</style>",
        *_legend(colours),
        f'<text x="{_LEFT}" y="{_LEGEND + _TOP - 12}">{escape(title)}</text>',
    ]
    for value in range(top + 1):
        y = at(0, value)[1]
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(
            f'<text class="soft" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value}</text>'
        )
    for quarter in range(5):
        step = round(steps * quarter / 4)
        x = at(min(step, steps - 1), 0)[0]
        parts.append(
            f'<text class="soft" x="{x}" y="{bottom + 16}" text-anchor="middle">{step}</text>'
        )
    for name, values in curves.items():
        path = " ".join("{},{}".format(*at(*point)) for point in enumerate(values))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.4"/>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
