"""Who wins a problem: candidates by screening, the front by races, the first past the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashsmith.kernels.kernel import KernelConfig
from flashsmith.tuner.choose.launched import launched_rows
from flashsmith.tuner.run.candidates import Candidate
from flashsmith.tuner.run.tuner import Tuner
from flashsmith.tuner.store.measurement import Measurement
from flashsmith.tuner.store.outcome import Timed, Verified

RACERS = 8  # survivors of the screening that are measured side by side
FINALISTS = 3
RACE_ROUNDS, FINAL_ROUNDS = 15, 31
LAST = "final"  # the protocol of the last race


@dataclass(frozen=True, slots=True)
class Result:
    """What is known of one candidate at the end of a run."""

    candidate: Candidate
    measurement: Measurement
    is_winner: bool = False
    passed_over: str = ""  # why a sound candidate did not race: `other bits`


def tune_problem(
    tuner: Tuner,
    candidates: Sequence[Candidate],
    screened: dict[Candidate, Measurement],
    same_bits_as: KernelConfig | None = None,
) -> list[Result]:
    """Races the candidates of one problem; sound ones first, fastest first, then the others."""
    wanted = class_of(candidates, screened, same_bits_as)
    results = [
        Result(
            c, screened[c], passed_over="" if wanted in ("", bits_of(screened[c])) else "other bits"
        )
        for c in candidates
        if c in screened
    ]
    sound = sorted(
        (r for r in results if isinstance(r.measurement.outcome, Timed) and not r.passed_over),
        key=_speed,
    )
    others = [r for r in results if r not in sound]
    if not sound:
        return sorted(others, key=lambda r: bool(r.passed_over))
    ranked = _raced(tuner, sound)
    return [*_gated(tuner, ranked), *others]


def class_of(
    candidates: Sequence[Candidate],
    screened: dict[Candidate, Measurement],
    same_bits_as: KernelConfig | None,
) -> str:
    """The fingerprint that candidates must share; empty when bits do not matter."""
    if same_bits_as is None:
        return ""
    for candidate in candidates:
        if candidate.config == same_bits_as and candidate in screened:
            return bits_of(screened[candidate]) or "none"
    return "none"


def bits_of(measurement: Measurement) -> str:
    """The fingerprint of an outcome that has one."""
    outcome = measurement.outcome
    return outcome.fingerprint if isinstance(outcome, Timed | Verified) else ""


def _raced(tuner: Tuner, sound: list[Result]) -> list[Result]:
    """The sound results, the front of them in the order that the races gave."""
    front = [r for r in sound if r.candidate.same_as is None][:RACERS]
    rest: list[Result] = []
    for protocol, rounds, keep in (
        ("race", RACE_ROUNDS, FINALISTS),
        (LAST, FINAL_ROUNDS, FINALISTS),
    ):
        times = (
            {} if tuner.is_over() else tuner.race([r.candidate for r in front], protocol, rounds)
        )
        if not times:
            break
        front = sorted((replace(r, measurement=times[r.candidate]) for r in front), key=_speed)
        front, rest = front[:keep], [*front[keep:], *rest]
    raced = {r.candidate for r in (*front, *rest)}
    return [*front, *rest, *(r for r in sound if r.candidate not in raced)]


def _gated(tuner: Tuner, ranked: list[Result]) -> list[Result]:
    """The first that passes the gate is the winner; one that does not is said to be wrong.

    The next of the same race with other tiles may be chosen too: for a neighbour of this problem
    whose lengths or waves it fits better.
    """
    for index, result in enumerate(ranked):
        if _passes(tuner, result):
            winner = replace(_choosable(result), is_winner=True)
            others = [*ranked[:index], *ranked[index + 1 :]]
            return [winner, *_with_stand_in(tuner, winner, others)]
    return ranked


def _with_stand_in(tuner: Tuner, winner: Result, others: list[Result]) -> list[Result]:
    protocol = winner.measurement.key.protocol
    for index, result in enumerate(others):
        beside = result.measurement.key.protocol == protocol and _speed(winner) < _speed(result)
        if beside and _rows(result) != _rows(winner) and _passes(tuner, result):
            return [*others[:index], _choosable(result), *others[index + 1 :]]
    return others


def _passes(tuner: Tuner, result: Result) -> bool:
    return tuner.passes_gate(result.candidate, result.measurement.key.protocol)


def _choosable(result: Result) -> Result:
    return replace(result, measurement=replace(result.measurement, gate=True))


def _rows(result: Result) -> int:
    return launched_rows(result.candidate.config, result.candidate.problem)


def _speed(result: Result) -> tuple[float, str]:
    outcome = result.measurement.outcome
    assert isinstance(outcome, Timed)
    # Equal medians are decided by the text: the same pick on every run.
    return outcome.median_us, result.candidate.config.short_form()
