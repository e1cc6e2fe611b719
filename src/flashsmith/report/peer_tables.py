"""How many times as fast as each peer: widths and masks down, lengths across, with the spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.measure.record import Record
from flashsmith.measure.statistics import geometric_mean
from flashsmith.problem.attention import AttentionProblem
from flashsmith.report.contenders import (
    REGIMES,
    Against,
    against_peers,
    leading_family,
    length_text,
    mask_text,
)
from flashsmith.report.table import Cell, Table, whole

NOISE = 0.01  # a control may be off by as much; a smaller difference is none


@dataclass(frozen=True, slots=True)
class Versus:
    """A family of ours against one peer in one regime, over all shapes that were measured."""

    peer: str
    family: str
    regime: str
    found: tuple[Against, ...]

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        return geometric_mean([a.ratio for a in self.found])

    @property
    def least(self) -> Against:
        """Where the peer is nearest, or ahead."""
        return min(self.found, key=lambda a: a.ratio)

    @property
    def most(self) -> Against:
        """Where the peer is furthest behind."""
        return max(self.found, key=lambda a: a.ratio)

    @property
    def control(self) -> float | None:
        """How far a kernel's time against itself was from 1 at most; None where nobody asked."""
        stated = [r.result.get("control") for a in self.found for r in (a.ours, a.theirs)]
        known = [abs(float(c) - 1) for c in stated if isinstance(c, int | float)]
        return max(known, default=None)


def all_versus(records: Sequence[Record]) -> list[Versus]:
    """Every family, peer and regime that was measured side by side.

    Our fastest family comes first, and of its peers the nearest.
    """
    groups: dict[tuple[str, str, str], list[Against]] = {}
    for a in against_peers(records):
        groups.setdefault((a.peer, a.family, a.regime), []).append(a)
    found = [Versus(*key, tuple(group)) for key, group in groups.items()]
    leader = leading_family(records)
    return sorted(found, key=lambda v: (v.family != leader, v.family, v.regime, v.mean))


def best_peer(records: Sequence[Record]) -> Versus | None:
    """Our fastest family against the peer that is nearest to it, rested where that was taken."""
    found = all_versus(records)
    mine = [v for v in found if v.family == found[0].family]
    rested = [v for v in mine if v.regime == "burst"] or mine
    most = max((len(v.found) for v in rested), default=0)
    # A peer that was asked on few shapes only does not decide what is said of all.
    broad = [v for v in rested if 2 * len(v.found) >= most]
    return min(broad, key=lambda v: v.mean, default=None)


def peer_tables(records: Sequence[Record]) -> list[Table]:
    """A table for every family, peer and regime."""
    found = all_versus(records)
    families = {v.family for v in found}
    return [_table(v, name_family=len(families) > 1) for v in found]


def _table(versus: Versus, *, name_family: bool) -> Table:
    cells = {(_row_of(a.problem), length_text(a.problem)): a for a in versus.found}
    row_of = _row_of
    if len(cells) < len(versus.found):  # shapes that differ in more than width, mask and length
        row_of = _whole_row_of
        cells = {(row_of(a.problem), length_text(a.problem)): a for a in versus.found}
    rows = list(dict.fromkeys(row_of(a.problem) for a in sorted(versus.found, key=_by_shape)))
    ordered = sorted(versus.found, key=lambda a: (a.problem.q_len, a.problem.k_len))
    lengths = list(dict.fromkeys(length_text(a.problem) for a in ordered))
    body = tuple(
        (whole(row), *(_cell(cells.get((row, length))) for length in lengths)) for row in rows
    )
    named = name_family and versus.family
    who = f"{versus.family}: times" if named else "Times"
    title = f"{who} as fast as {versus.peer}, {versus.regime}"
    return Table(title, _reads(versus), ("", *lengths), body, is_wide=len(lengths) > 4)


def _reads(versus: Versus) -> str:
    count = len(versus.found)
    mean = f"Geometric mean {versus.mean:.3f} over {count} shapes. " if count > 1 else ""
    control = versus.control
    held = "" if control is None else f" Control off by {control:.1%} at most."
    regime = REGIMES.get(versus.regime, versus.regime)
    return (
        f"{mean}Above 1 flashsmith is faster; columns are lengths. ±: half of what the middle "
        f"three fifths of the rounds span. {regime[:1].upper()}{regime[1:]}.{held}"
    )


def _cell(against: Against | None) -> Cell:
    if against is None:
        return Cell("", kind="number")
    ratio, p20, p80 = against.ratio, against.p20, against.p80
    small = "" if p20 is None or p80 is None else f"±{(p80 - p20) / 2 / ratio:.1%}"
    kind = "good" if ratio > 1 + NOISE else "bad" if ratio < 1 - NOISE else ""
    return Cell(f"{ratio:.2f}", small, f"number {kind}".strip())


def _row_of(p: AttentionProblem) -> str:
    """Width and mask, and the groups of heads where there are any."""
    groups = "" if p.heads == p.kv_heads else f", {p.heads} heads on {p.kv_heads}"
    return f"d {p.d_head} {mask_text(p)}{groups}"


def _whole_row_of(p: AttentionProblem) -> str:
    return f"{_row_of(p)}, {p.dtype.name}, batch {p.batch}, {p.heads} heads"


def _by_shape(a: Against) -> tuple[object, ...]:
    p = a.problem
    return p.d_head, p.causal, p.kv_heads != p.heads, p.heads, p.kv_heads, p.batch
