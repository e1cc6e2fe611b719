"""The timing protocol: contenders side by side in one process, cold cache, order rotated, control.

The GPU is power-limited, so numbers of different moments do not compare: every round times every
contender once, the order moves on by one each round so that nobody always runs behind the same
other, and what is reported is the ratio within the rounds. The baseline runs twice under two names;
where it differs from itself by more than 1 %, nothing measured beside it counts, and the run is
taken again with more rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flashsmith.base.errors import ArgumentError
from flashsmith.measure.cuda_graph import Launch, Timer
from flashsmith.measure.environment import monitor_of
from flashsmith.measure.gpu_state import GpuState, clocks_moved
from flashsmith.measure.statistics import Summary, ratio_by_round, summarize
from flashsmith.runtime.cuda.device import CudaDevice

Regime = Literal["burst", "sustained"]
FLUSH_BYTES = 256 << 20  # more than any L2
MIN_ROUNDS = 15
CONTROL_LIMIT = 0.01
LOAD_SECONDS = 0.3  # after this long the H200's clocks have settled (785 to 683 TFLOP/s, GEMM)
TIMED_A_LOAD = 5  # runs that are timed after one load, each after a little more of it
MORE_LOAD_SECONDS = 0.015
REST_SECONDS = 0.004  # between two runs of the burst regime
ATTEMPTS = 3  # at a run whose control is not off
WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time: a function that puts its work on the stream it is given."""

    name: str
    launch: Launch
    is_captured: bool = False  # it replays a graph of its own already


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one contender, round by round."""

    name: str
    times_us: tuple[float, ...]
    time_us: Summary
    ratio: Summary  # times as fast as the baseline, by round


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one interleaved run gave."""

    regime: Regime
    timed: tuple[Timed, ...]  # in the order the contenders were given; the first is the baseline
    control: Summary  # the baseline against itself
    states: tuple[GpuState | None, ...]  # before the first round and after each turn
    attempts: int = 1  # runs that were made; all but this one were void

    @property
    def is_void(self) -> bool:
        """Whether the control is off by more than 1 %."""
        return abs(self.control.median - 1) > CONTROL_LIMIT

    @property
    def clocks_moved(self) -> bool:
        """Whether the SM clock changed between rounds."""
        return clocks_moved(self.states)

    def is_noise(self, timed: Timed) -> bool:
        """Whether a difference from the baseline is within the baseline's own spread."""
        noise = max(abs(self.control.p20 - 1), abs(self.control.p80 - 1))
        return abs(timed.ratio.median - 1) <= noise


def compare(
    device: CudaDevice,
    contenders: Sequence[Contender],
    *,
    rounds: int = 21,
    regime: Regime = "burst",
    timed_a_load: int = TIMED_A_LOAD,
    attempts: int = ATTEMPTS,
) -> Comparison:
    """Times the contenders against the first of them; sustained, `timed_a_load` runs at a time."""
    if not contenders or rounds < MIN_ROUNDS:
        raise ArgumentError(
            f"{len(contenders)} contenders and {rounds} rounds were given; at least 1 and "
            f"{MIN_ROUNDS} are needed."
        )
    for attempt in range(1, attempts + 1):
        # Chance moves the median of more rounds less; what is off for another reason stays off.
        found = _compare_once(device, contenders, rounds * attempt, regime, timed_a_load)
        if not found.is_void:
            break
    return replace(found, attempts=attempt)


def _compare_once(
    device: CudaDevice,
    contenders: Sequence[Contender],
    rounds: int,
    regime: Regime,
    timed_a_load: int,
) -> Comparison:
    monitor = monitor_of(device)
    flush_address = device.allocate(FLUSH_BYTES)
    try:
        with Timer(device) as timer:
            # The copy of the baseline is captured apart: the control covers capturing too.
            launches = [_replay(timer, contender) for contender in (*contenders, contenders[0])]
            run = _Run(timer, flush_address, regime)
            states = [monitor.read()]
            times: list[list[float]] = [[] for _ in launches]
            at_once = timed_a_load if regime == "sustained" else 1
            for order, count in turns(len(launches), rounds, at_once):
                for index in order:
                    times[index] += run.times_us(launches[index], count)
                states.append(monitor.read())
    finally:
        device.free(flush_address)
    timed = tuple(
        Timed(contender.name, tuple(sample), summarize(sample), ratio_by_round(times[0], sample))
        for contender, sample in zip(contenders, times, strict=False)
    )
    return Comparison(regime, timed, ratio_by_round(times[0], times[-1]), tuple(states))


def sample_us(device: CudaDevice, contender: Contender, *, runs: int) -> list[float]:
    """Times of one contender alone; for screening, never for a comparison that is reported."""
    flush_address = device.allocate(FLUSH_BYTES)
    try:
        with Timer(device) as timer:
            launch = _replay(timer, contender)
            run = _Run(timer, flush_address, "burst")
            return [time for _ in range(runs) for time in run.times_us(launch, 1)]
    finally:
        device.free(flush_address)


def rotations(count: int, rounds: int) -> list[list[int]]:
    """The order of every round: each starts one further, so that every position is taken in turn.

    Positions go back and forth (0, 1, -1, 2, -2, …): neighbours differ by another number each, so
    over `count` rounds everyone runs behind everyone else equally often (a Williams square); where
    `count` is odd that takes the mirror image too, in every second round.
    """
    positions = [(i + 1) // 2 * (1 if i % 2 else -1) for i in range(count)]
    orders = [[(position + start) % count for position in positions] for start in range(rounds)]
    return [
        order[::-1] if count % 2 and number % 2 else order for number, order in enumerate(orders)
    ]


def turns(count: int, rounds: int, at_once: int) -> Iterator[tuple[list[int], int]]:
    """The order of every turn, and how many rounds it times: a load serves several."""
    for number, order in enumerate(rotations(count, -(-rounds // at_once))):
        yield order, min(at_once, rounds - number * at_once)


def _replay(timer: Timer, contender: Contender) -> Launch:
    for _ in range(WARM_UPS):
        contender.launch(timer.stream)
    timer.wait()
    launch = contender.launch if contender.is_captured else timer.capture(contender.launch)
    launch(timer.stream)
    timer.wait()
    return launch


@dataclass(frozen=True, slots=True)
class _Run:
    """How one contender is timed."""

    timer: Timer
    flush_address: int
    regime: Regime

    def times_us(self, launch: Launch, count: int) -> list[float]:
        times = []
        for number in range(count):
            if self.regime == "sustained":
                self._load(launch, MORE_LOAD_SECONDS if number else LOAD_SECONDS)
            else:
                time.sleep(REST_SECONDS)
            times.append(self.timer.elapsed_us(launch, before=self._flush))
        return times

    def _flush(self, stream: int) -> None:
        self.timer.device.fill(self.flush_address, 0, FLUSH_BYTES // 4, stream=stream)

    def _load(self, launch: Launch, seconds: float) -> None:
        """Keeps the GPU busy with the contender itself until its clocks have settled."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(8):
                launch(self.timer.stream)
            self.timer.wait()
