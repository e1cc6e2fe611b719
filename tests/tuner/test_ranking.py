"""Who may be chosen after the races of one problem."""

from dataclasses import dataclass, field

import pytest

from flashsmith.base.dtypes import DType
from flashsmith.kernels.parse import parse_config
from flashsmith.problem.attention import AttentionProblem
from flashsmith.tuner.run.candidates import Candidate
from flashsmith.tuner.run.ranking import tune_problem
from flashsmith.tuner.store.measurement import Measurement, MeasurementKey
from flashsmith.tuner.store.outcome import Timed

PROBLEM = AttentionProblem(4, 8, 8, 4096, 4096, 256, DType.BF16)
PAIRS = (
    "hopper(BF16, 256, 2, 64): kv_2+q_3+overlap+early_rescale+stats_SUM+lazy_8+cluster_2"
    "+tiles_DYNAMIC+regs_232_40"
)
EARLY = PAIRS.replace("early_rescale", "early_rescale+early_tests")
ALONE = PAIRS.replace("+cluster_2", "")
HINTS = PAIRS.replace("+regs", "+hints+regs")
US = {PAIRS: 100.0, EARLY: 101.0, ALONE: 102.0, HINTS: 101.5}


def timed(config, protocol):
    key = MeasurementKey("GPU", "sm_90a", "580", "nvrtc", "", config, PROBLEM, protocol)
    return Measurement(key, Timed(US[config], US[config], US[config], 15, "f"))


@dataclass
class Races:
    """Races that give the times above; a gate that some do not pass, and one void race."""

    wrong: tuple[str, ...] = ()
    void: str = ""
    asked: list[str] = field(default_factory=list)

    def is_over(self):
        return False

    def race(self, racers, protocol, rounds):
        if protocol == self.void:
            return {}
        return {c: timed(c.config.short_form(), protocol) for c in racers}

    def passes_gate(self, candidate, protocol):
        self.asked.append(candidate.config.short_form())
        return self.asked[-1] not in self.wrong


def choosable(tuner, *configs):
    candidates = [Candidate(parse_config(text), PROBLEM, None) for text in configs]
    screened = {c: timed(c.config.short_form(), "screen") for c in candidates}
    results = tune_problem(tuner, candidates, screened)
    winner = next(r for r in results if r.is_winner)
    return winner.candidate.config.short_form(), [
        r.candidate.config.short_form() for r in results if r.measurement.gate
    ]


def test_the_fastest_of_other_tiles_may_stand_in_for_the_winner():
    tuner = Races()
    assert choosable(tuner, PAIRS, EARLY, ALONE) == (PAIRS, [PAIRS, ALONE])
    assert tuner.asked == [PAIRS, ALONE]  # EARLY has the winner's tiles: it fits no better


@pytest.mark.parametrize(
    ("wrong", "found"),
    [((ALONE,), (PAIRS, [PAIRS])), ((PAIRS,), (EARLY, [EARLY, ALONE]))],
    ids=["stand-in", "winner"],
)
def test_what_does_not_pass_the_gate_is_not_choosable(wrong, found):
    assert choosable(Races(wrong), PAIRS, EARLY, ALONE) == found


def test_who_was_not_timed_beside_the_winner_does_not_stand_in():
    assert choosable(Races(), PAIRS, EARLY, HINTS, ALONE) == (PAIRS, [PAIRS])
    # Without races all times are those of the screening.
    void = Races(void="race")
    assert choosable(void, PAIRS, EARLY, HINTS, ALONE) == (PAIRS, [PAIRS, ALONE])
