"""What a run without a GPU can show of an order: the predicted one, labelled as such."""

from __future__ import annotations

from collections.abc import Sequence

from flashsmith.report.contenders import COLOURS, problem_text
from flashsmith.report.figure import Figure
from flashsmith.report.tuning_charts import Places, latest
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Verified

_SHOWN = 20  # of a problem, whose names can be read
_A_LINE = 24  # pixels


def predicted_order(measurements: Sequence[Measurement], places: Places) -> Figure | None:
    """The configurations of the first problem in predicted order; None where there were times."""
    found = [
        m
        for m in latest(measurements)
        if isinstance(m.outcome, Verified) and (m.key.config, m.key.problem) in places
    ]
    if not found:
        return None
    problem = found[0].key.problem
    mine = [(places[m.key.config, problem], m) for m in found if m.key.problem == problem]
    ranked = sorted(mine, key=lambda item: (item[0], item[1].key.config))[:_SHOWN]
    figure = Figure()
    for number, bits in enumerate(dict.fromkeys(_bits(m) for _, m in ranked)):
        group = [(place, m) for place, m in ranked if _bits(m) == bits]
        figure.add(
            "bar",
            orientation="h",
            y=[f"{place}. {m.key.config} " for place, m in group],
            x=[m.environment.get("registers") for _, m in group],
            name=f"bits {bits}",
            marker={"color": COLOURS[number % len(COLOURS)]},
            hovertemplate="%{y}<br>%{x} registers a thread<extra></extra>",
        )
    names = [f"{place}. {m.key.config} " for place, m in ranked]
    figure.axis("y", categoryorder="array", categoryarray=names[::-1])
    figure.axis("x", title="registers a thread")
    return figure.titled(
        f"Predicted order, nothing was timed ({problem_text(problem)})",
        "First is predicted fastest. Bars: registers; a colour: outputs with the same bits.",
        height=200 + _A_LINE * len(ranked),
        wide=True,
    )


def _bits(measurement: Measurement) -> str:
    assert isinstance(measurement.outcome, Verified)
    return measurement.outcome.fingerprint[:6]
