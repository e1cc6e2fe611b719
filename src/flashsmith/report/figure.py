"""A chart: what plotly.js draws, and the title, words and legend that the page sets around it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from flashsmith.base.loose_types import JsonObject
from flashsmith.base.plain_text import plain

GREY = "#888888"  # readable on white and on black


class Figure:
    """Collects traces; the page's own script adds the width and the colours of light and dark."""

    def __init__(self) -> None:
        self.data: list[JsonObject] = []
        self.layout: JsonObject = {"xaxis": {}, "yaxis": {}, "shapes": []}
        self.title, self.reads = "", ""
        self.height, self.is_wide, self.is_filtered = 380, False, False

    def add(self, kind: str, **trace: object) -> None:
        """Adds a trace of a plotly type; a `name` stands in the legend."""
        self.data.append({"type": kind, **trace})

    def axis(self, name: str, title: str = "", **more: object) -> None:
        """Names an axis (`x` or `y`) and sets what else plotly takes for it."""
        self.layout[f"{name}axis"] |= {"title": {"text": title}, **more}

    def level(self, y: float) -> None:
        """Draws a dashed line across the chart."""
        line = {"dash": "dash", "color": GREY}
        self.layout["shapes"].append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
        )

    def titled(
        self,
        title: str,
        reads: str = "",
        *,
        height: int = 380,
        wide: bool = False,
        filtered: bool = False,
    ) -> Figure:
        """The figure with its title and how to read it, in pixels of height.

        A `wide` one takes the page's width; a `filtered` one shows what the page's filter leaves.
        """
        self.title, self.reads, self.height = title, reads, height
        self.is_wide, self.is_filtered = wide, filtered
        return self

    def legend(self) -> list[tuple[str, str, str]]:
        """Name, colour and kind (`line`, `broken` or `dots`) of every trace; some have no name."""
        found = []
        for trace in self.data:
            line, marker = trace.get("line", {}), trace.get("marker", {})
            colour = str(line.get("color") or marker.get("color") or GREY)
            kind = "dots" if trace.get("mode") == "markers" else "line"
            found.append((str(trace.get("name", "")), colour, "broken" if "dash" in line else kind))
        return found

    def to_json(self) -> JsonObject:
        """What the page's script takes."""
        data = [{**trace, "name": escaped(str(trace.get("name", "")))} for trace in self.data]
        return {
            "data": data,
            "layout": self.layout,
            "height": self.height,
            "filtered": self.is_filtered,
        }


def escaped(text: str) -> str:
    """A text as plotly shows it letter by letter: it takes tags in texts for its own."""
    return html.escape(plain(text), quote=False)


def hover(*lines: str) -> str:
    """What a point says of itself, a line each."""
    return "<br>".join(escaped(line) for line in lines if line)


def spread(values: Sequence[tuple[float, float | None, float | None]]) -> JsonObject:
    """Error bars from the 20 % to the 80 % point."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [round(p80 - y, 4) if p80 is not None else 0 for y, _, p80 in values],
        "arrayminus": [round(y - p20, 4) if p20 is not None else 0 for y, p20, _ in values],
        "thickness": 1.2,
        "width": 3,
        "color": GREY,
    }


def ticks(values: Sequence[int]) -> JsonObject:
    """An axis marked at these numbers."""
    return {"tickvals": list(values), "ticktext": [f"{value:,}" for value in values]}
