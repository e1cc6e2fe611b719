"""A chart as the JSON that plotly.js draws: traces and a layout."""

from __future__ import annotations

from typing import Any

_LETTERS = 80  # of a legend, in one line of the narrowest chart
_ABOVE = {"y": 1.0, "yanchor": "bottom"}
_BELOW = {"y": -0.22, "yanchor": "top"}


class Figure:
    """Collects traces; the page's own script adds colours of light and dark."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []  # Any: plotly's JSON
        self.layout: dict[str, Any] = {"xaxis": {}, "yaxis": {}, "shapes": []}

    def add(self, kind: str, **trace: Any) -> None:
        """Adds a trace of a plotly type: scatter, bar, waterfall."""
        self.data.append({"type": kind, **trace})

    def axis(self, name: str, title: str = "", **more: Any) -> None:
        """Names an axis (`x` or `y`) and sets what else plotly takes for it."""
        self.layout[f"{name}axis"] |= {"title": {"text": title}, **more}

    def level(self, y: float) -> None:
        """Draws a dashed line across the chart."""
        line = {"dash": "dash", "color": "#888888"}
        self.layout["shapes"].append(
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
        )

    def titled(
        self, title: str, height: int = 420, *, wide: bool = False, filtered: bool = False
    ) -> Figure:
        """The figure with its title and the frame that all charts share.

        A `wide` one takes the page's width; a `filtered` one shows what the page's filter leaves.
        """
        self.layout |= {
            "title": {"text": title, "x": 0.02, "xanchor": "left", "font": {"size": 16}},
            "height": height,
            "meta": {"wide": wide, "filtered": filtered},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 60, "r": 20, "t": 86, "b": 60},
            "legend": {"orientation": "h", "x": 0, **(_BELOW if self._is_crowded else _ABOVE)},
            # One named trace is worth its legend too, which plotly would hide.
            "showlegend": any("name" in trace for trace in self.data),
        }
        return self

    @property
    def _is_crowded(self) -> bool:
        """Whether the legend takes more than the line that is free below the title."""
        return sum(len(trace.get("name", "")) + 6 for trace in self.data) > _LETTERS

    def to_json(self) -> dict[str, Any]:
        """What plotly.js takes."""
        return {"data": self.data, "layout": self.layout}
