"""A chart as the JSON that plotly.js draws: traces and a layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]  # Any: what plotly.js takes

_GREY = "#888888"  # readable on white and on black
_LETTERS = 80  # of a legend, in one line of the narrowest chart
_ABOVE = {"y": 1.0, "yanchor": "bottom"}
_BELOW = {"y": -0.22, "yanchor": "top"}


class Figure:
    """Collects traces; the page's own script adds colours of light and dark."""

    def __init__(self) -> None:
        self.data: list[Json] = []
        self.layout: Json = {"xaxis": {}, "yaxis": {}, "shapes": []}

    def add(self, kind: str, **trace: object) -> None:
        """Adds a trace of a plotly type: scatter, bar, waterfall."""
        self.data.append({"type": kind, **trace})

    def axis(self, name: str, title: str = "", **more: object) -> None:
        """Names an axis (`x` or `y`) and sets what else plotly takes for it."""
        self.layout[f"{name}axis"] |= {"title": {"text": title}, **more}

    def level(self, y: float) -> None:
        """Draws a dashed line across the chart."""
        line = {"dash": "dash", "color": "#888888"}
        self.layout["shapes"].append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
        )

    def titled(
        self,
        title: str,
        reads: str = "",
        *,
        height: int = 420,
        wide: bool = False,
        filtered: bool = False,
    ) -> Figure:
        """The figure with its title and the frame that all charts share.

        `reads` says below the title how to read it. A `wide` one takes the page's width; a
        `filtered` one shows what the page's filter leaves.
        """
        below = f'<br><span style="font-size:12px;color:{_GREY}">{reads}</span>' if reads else ""
        place = {"x": 0.02, "xanchor": "left", "y": 0.96, "yanchor": "top"}
        self.layout |= {
            "title": {"text": f"{title}{below}", "font": {"size": 16}, **place},
            "height": height,
            "meta": {"wide": wide, "filtered": filtered},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 60, "r": 20, "t": 92 if self._legend_is_above else 72, "b": 60},
            "legend": {"orientation": "h", "x": 0, **(_ABOVE if self._legend_is_above else _BELOW)},
            # One named trace is worth its legend too, which plotly would hide.
            "showlegend": self._has_legend,
        }
        return self

    @property
    def _has_legend(self) -> bool:
        return any("name" in trace for trace in self.data)

    @property
    def _legend_is_above(self) -> bool:
        """Whether the legend fits the line that is free below the title."""
        letters = sum(len(trace.get("name", "")) + 6 for trace in self.data)
        return self._has_legend and letters <= _LETTERS

    def to_json(self) -> Json:
        """What plotly.js takes."""
        return {"data": self.data, "layout": self.layout}


def spread(values: Sequence[tuple[float, float | None, float | None]]) -> Json:
    """Error bars from the 20 % to the 80 % point."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [round(p80 - y, 4) if p80 is not None else 0 for y, _, p80 in values],
        "arrayminus": [round(y - p20, 4) if p20 is not None else 0 for y, p20, _ in values],
        "thickness": 1.2,
        "width": 3,
        "color": "#888888",
    }


def ticks(values: Sequence[int]) -> Json:
    """An axis marked at these numbers."""
    return {"tickvals": list(values), "ticktext": [f"{value:,}" for value in values]}
