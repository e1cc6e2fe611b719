"""Why FP16 is slower than BF16: cycles and SM clock of both in each run, power under load.

Cycles are counted by the SMs themselves: a kernel of one block an SM reads the cycle counter and
the clock of the wall before a contender and after it, in the same graph.
"""

from __future__ import annotations

import statistics
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import torch
from hopper_floor import products_alone
from hopper_parts import Numbers, Setting, flat
from hopper_shapes import (
    SHAPES_LENGTH,
    captured,
    cudnn,
    device,
    make_tensors,
    ours,
    problem_of,
)
from hopper_variations import EQUAL_VALUES, product

from flashsmith.bench.versus import GEMM_FLOPS
from flashsmith.compile.compiler import compile_text
from flashsmith.measure.cuda_graph import Launch, Timer
from flashsmith.measure.environment import monitor_of
from flashsmith.measure.gpu_state import GpuMonitor
from flashsmith.measure.interleaved import LOAD_SECONDS, Contender, compare, rotations
from flashsmith.measure.record import Record
from flashsmith.measure.statistics import ratio_by_round
from flashsmith.problem.cost import forward_cost
from flashsmith.runtime.device import LaunchGeometry

SUITE = "hopper clocks"
ALONE = "products alone"
ROUNDS = 31
LOADS, LOADED_SECONDS = 2, 1.2
RUNS_AT_ONCE = 32
ROWS = 64  # runs that are remembered, the last ones
WHOLE_SM = 200 << 10  # bytes of shared memory: two such blocks do not fit an SM

STAMP = """
extern "C" __global__ void stamp(long long* began, long long* rows, int* counts, int is_end) {
    unsigned sm;
    long long cycle, wall;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycle)::"memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(wall)::"memory");
    if (is_end) {
        const int row = counts[sm]++ % ROWS;
        rows[(row * gridDim.x + sm) * 2] = cycle - began[2 * sm];
        rows[(row * gridDim.x + sm) * 2 + 1] = wall - began[2 * sm + 1];
    } else {
        began[2 * sm] = cycle;
        began[2 * sm + 1] = wall;
    }
}
"""


class Stamps:
    """The cycles and nanoseconds of a contender's runs, by SM."""

    def __init__(self) -> None:
        gpu = device()
        self._sms = gpu.sm_count
        kernel = compile_text(STAMP.replace("ROWS", str(ROWS)), "stamp", gpu.arch)
        self._launch = gpu.prepare(kernel, LaunchGeometry((self._sms, 1, 1), 1, WHOLE_SM))
        self._bytes = ROWS * self._sms * 16
        self._buffers = [gpu.allocate(n) for n in (self._sms * 16, self._bytes, self._sms * 4)]
        gpu.fill(self._buffers[2], 0, self._sms)
        gpu.synchronize()

    def around(self, contender: Contender) -> Contender:
        """The contender between two stamps."""
        given = [struct.pack("<Q", address) for address in self._buffers]
        begin, end = ((*given, struct.pack("<i", is_end)) for is_end in (0, 1))

        def launch(stream: int) -> None:
            self._launch(begin, stream)
            contender.launch(stream)
            self._launch(end, stream)

        return Contender(contender.name, launch)

    def read(self, runs: int) -> Numbers:
        """Medians of the last runs: cycles of the mean SM, and its clock in MHz."""
        gpu = device()
        rows = gpu.download(self._buffers[1], self._bytes).view(np.int64)
        counts = gpu.download(self._buffers[2], self._sms * 4).view(np.int32)
        assert counts.min() == counts.max() >= runs, "a stamp ran twice on an SM"
        last = [(int(counts[0]) - 1 - i) % ROWS for i in range(min(runs, ROWS))]
        taken = rows.reshape(ROWS, self._sms, 2)[last].mean(axis=1)
        return {
            "cycles": float(np.median(taken[:, 0])),
            "sm_mhz": float(np.median(taken[:, 0] / taken[:, 1]) * 1e3),
        }

    def free(self) -> None:
        """Gives the memory back."""
        for address in self._buffers:
            device().free(address)


def clocks(setting: Setting) -> Iterator[Record]:
    """Both types at 4,096 of ours, of cuDNN, of products alone, and of a matrix product."""
    for d in (64, 128, 256):
        for causal in (False, True):
            what: Numbers = {"d_head": d, "causal": causal, "length": SHAPES_LENGTH}
            contenders, flops = _contenders(d, causal)
            yield from _clocks_of(setting, what, contenders, flops)
    types = {"GEMM bf16": torch.bfloat16, "GEMM fp16": torch.float16}
    gemms = [captured(name, product(dtype)) for name, dtype in types.items()]
    yield from _clocks_of(setting, {}, gemms, GEMM_FLOPS)


def _contenders(d: int, causal: bool) -> tuple[list[Contender], float]:
    plain = make_tensors(d, SHAPES_LENGTH)
    half = make_tensors(d, SHAPES_LENGTH, dtype=torch.float16)
    equal = make_tensors(d, SHAPES_LENGTH, rounded=True, dtype=torch.float16)
    flops = forward_cost(problem_of(plain, causal=causal)).flops
    made = []
    for name, tensors in (("bf16", plain), ("fp16", half), (EQUAL_VALUES, equal)):
        mine, picked = ours(tensors, causal=causal, name=name)
        made.append(mine)
        if name != EQUAL_VALUES:
            made.append(captured(f"cuDNN {name}", cudnn(tensors, causal=causal)))
        if name != EQUAL_VALUES and not causal:
            made.append(products_alone(f"{ALONE} {name}", picked, flops))
    return made, flops


def _clocks_of(
    setting: Setting, what: Numbers, contenders: list[Contender], flops: float
) -> Iterator[Record]:
    """Rested, then under load."""
    stamps = {one.name: Stamps() for one in contenders}
    stamped = [stamps[one.name].around(one) for one in contenders]
    comparison = compare(device(), stamped, rounds=ROUNDS)
    timed = {one.name: one for one in comparison.timed}
    rested = {}
    for name, one in timed.items():
        base = timed[base_of(name)]
        rested[name] = {
            "median_us": one.time_us.median,
            "tflops": flops / one.time_us.median / 1e6,
            "share": ratio_by_round(base.times_us, one.times_us).median,
            "control": comparison.control.median,
            "void": comparison.is_void,
            **stamps[name].read(one.time_us.rounds),
        }
    for regime, found in (("burst", rested), ("load", _loaded(stamped, stamps))):
        for name, result in found.items():
            case = {"suite": SUITE, "case": name, "of": base_of(name), "regime": regime, **what}
            yield flat(setting, case, result)
    for one in stamps.values():
        one.free()


def base_of(name: str) -> str:
    """What a contender is held against: the same in BF16."""
    who = name.removesuffix(" bf16").removesuffix(" fp16")
    return f"{who} bf16" if who in ("cuDNN", "GEMM", ALONE) else "bf16"


def _loaded(contenders: list[Contender], stamps: dict[str, Stamps]) -> dict[str, Numbers]:
    """Each contender alone for a while, in turn: power, energy a run, cycles, clock."""
    monitor = monitor_of(device())
    turns: dict[str, list[Numbers]] = {one.name: [] for one in contenders}
    with Timer(device()) as timer:
        for one in contenders:
            one.launch(timer.stream)  # what it allocates it has before it is captured
        timer.wait()
        graphs = [timer.capture(one.launch) for one in contenders]
        for order in rotations(len(graphs), LOADS):
            for index in order:
                name = contenders[index].name
                _run_for(timer, graphs[index], LOAD_SECONDS)
                with Meter(monitor) as meter:
                    runs_a_second = _run_for(timer, graphs[index], LOADED_SECONDS)
                power = meter.power_w()
                found = {"power_w": power, "joules": power / runs_a_second}
                found |= {"power_capped": meter.capped, **stamps[name].read(ROWS)}
                turns[name].append(found)
    limit = monitor.power_limit_w()
    return {name: {**_mean(found), "power_limit_w": limit} for name, found in turns.items()}


def _mean(found: list[Numbers]) -> Numbers:
    return {key: statistics.mean(one[key] for one in found) for key in found[0]}


def _run_for(timer: Timer, graph: Launch, seconds: float) -> float:
    """Keeps the GPU at it; how many runs a second that were."""
    runs, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        for _ in range(RUNS_AT_ONCE):
            graph(timer.stream)
        timer.wait()
        runs += RUNS_AT_ONCE
    return runs / (time.perf_counter() - begin)


class Meter:
    """Power between the first and the last step of NVML's counter of energy, read by a thread.

    It counts in steps of about a tenth of a second: read at any other time it is off by one.
    """

    def __init__(self, monitor: GpuMonitor) -> None:
        self._monitor = monitor
        self._steps: list[tuple[float, float]] = []
        self._reasons: list[bool] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        last = self._monitor.energy_j()
        while not self._is_over.wait(0.005):
            energy = self._monitor.energy_j()
            if energy is not None and energy != last:
                self._steps.append((time.perf_counter(), energy))
                self._reasons.append("power cap" in (self._monitor.held_back_by() or ()))
                last = energy

    def power_w(self) -> float:
        """The mean of the time that was metered."""
        assert len(self._steps) > 1, "NVML does not count this GPU's energy"
        (t0, e0), (t1, e1) = self._steps[0], self._steps[-1]
        return (e1 - e0) / (t1 - t0)

    @property
    def capped(self) -> float:
        """At which share of the steps NVML named the power cap as what holds the clocks back."""
        return sum(self._reasons) / len(self._reasons)
