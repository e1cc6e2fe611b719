"""Whether two runs of a benchmark agree: every ratio, within the spread that the runs state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashsmith.measure.record import Record
from flashsmith.problem.attention import AttentionProblem

# Suite, contender, problem, regime and GPU: the same measurement at another time.
Key = tuple[str, str, AttentionProblem, str, str]


@dataclass(frozen=True, slots=True)
class Stated:
    """A ratio as a run states it."""

    ratio: float
    low: float
    high: float
    is_void: bool

    def overlaps(self, other: Stated) -> bool:
        """Whether the two intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Agreement:
    """One contender on one problem in two runs."""

    name: str  # of the contender
    problem: AttentionProblem
    regime: str
    before: Stated
    after: Stated

    @property
    def agrees(self) -> bool:
        """Whether both are valid and no further apart than they say they may be."""
        is_void = self.before.is_void or self.after.is_void
        return not is_void and self.before.overlaps(self.after)


def agreements(before: Iterable[Record], after: Iterable[Record]) -> list[Agreement]:
    """The ratios to the baseline that two sets of records share, the newest of each key."""
    old, new = _by_key(before), _by_key(after)
    return [
        Agreement(
            str(record.what["name"]),
            record.problem,
            _regime(record),
            _stated(old[key]),
            _stated(record),
        )
        for key, record in new.items()
        if key in old and not _is_baseline(record)
    ]


def _by_key(records: Iterable[Record]) -> dict[Key, Record]:
    timed = (r for r in records if "ratio" in r.result and "control" in r.result)
    newest = sorted(timed, key=lambda r: str(r.environment["date"]))
    return {_key_of(r): r for r in newest}


def _key_of(r: Record) -> Key:
    suite, name = str(r.what["suite"]), str(r.what["name"])
    return suite, name, r.problem, _regime(r), str(r.environment["device"])


def _regime(record: Record) -> str:
    return str(record.result.get("regime", "burst"))


def _is_baseline(record: Record) -> bool:
    """The baseline's ratio to itself is 1 in every run, and says nothing."""
    r = record.result
    return bool(r["ratio"] == r["ratio_p20"] == r["ratio_p80"] == 1)


def _stated(record: Record) -> Stated:
    """The fifths of the ratio, moved apart by what the run's control was off."""
    r = record.result
    off = abs(float(r["control"]) - 1)
    low, high = float(r["ratio_p20"]) * (1 - off), float(r["ratio_p80"]) * (1 + off)
    return Stated(float(r["ratio"]), low, high, bool(r.get("void")))
