"""What a worker does with a job: compile, check, take the bits, time; the outcome is a value."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache

from flashsmith.base.errors import (
    CompileError,
    EmulationError,
    FlashsmithError,
    LaunchError,
    OutOfResources,
    Unsupported,
)
from flashsmith.base.loose_types import JsonObject
from flashsmith.check.survey import CASES
from flashsmith.check.verdict import check_case
from flashsmith.kernels import KernelConfig, parse_config
from flashsmith.kernels.launch import Call
from flashsmith.measure.environment import timed_device
from flashsmith.measure.facts import facts_of
from flashsmith.measure.timed_configs import random_inputs, screen_us, time_configs
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.text import problem_from_fields
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import default_device
from flashsmith.runtime.emulated import EmulatedDevice
from flashsmith.runtime.run import prepare
from flashsmith.runtime.tensors import contiguous_tensors, uploaded
from flashsmith.tuner.run.fingerprint import fingerprint_of
from flashsmith.tuner.run.target import target_here
from flashsmith.tuner.store.outcome import (
    DidNotCompile,
    DidNotRun,
    Outcome,
    Refused,
    Timed,
    Verified,
    Wrong,
    outcome_fields,
)

SCREEN_RUNS = 5


class _Tensors:
    """The tensors of the problem that is screened now; the next problem's take their place."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._problem: AttentionProblem | None = None
        self._call: Call | None = None

    def of(self, device: Device, problem: AttentionProblem) -> Call:
        """Tensors of `problem` on the device."""
        if self._call is None or problem != self._problem:
            self._held.close()
            self._call = None
            locations, buffers = contiguous_tensors(problem, random_inputs(problem))
            held = self._held.enter_context(uploaded(device, buffers))
            self._call, self._problem = held.call(locations), problem
        return self._call


_tensors = _Tensors()
_checked: dict[tuple[KernelConfig, str], Outcome | None] = {}


def evaluate(job: JsonObject) -> JsonObject:
    """Answers one job of the tuner; see the functions below for the kinds there are."""
    kinds: dict[str, Callable[[JsonObject], JsonObject]] = {
        "screen": _screen,
        "race": _race,
        "gate": _gate,
        "count": _count,
        "target": _target,
    }
    return kinds[job["kind"]](job)


def _screen(job: JsonObject) -> JsonObject:
    """One configuration on one problem: right? which bits? roughly how fast?"""
    if _is_late(job):
        return {"skipped": True}
    device, config, problem = _device(job), parse_config(job["config"]), _problem(job)
    outcome = _sound(device, config, problem) or _checked_on(device, config, "quick")
    if outcome is None:
        outcome = _measured(device, config, problem)
    return _answer(device, outcome)


def _race(job: JsonObject) -> JsonObject:
    """Several configurations side by side on one problem: what the final order is taken from."""
    device, problem = _device(job), _problem(job)
    configs = [parse_config(text) for text in job["configs"]]
    run = time_configs(timed_device(device), configs, problem, rounds=job["rounds"])
    timed = [
        {
            "median_us": t.time_us.median,
            "p20_us": t.time_us.p20,
            "p80_us": t.time_us.p80,
            "rounds": t.time_us.rounds,
            "fingerprint": fingerprint_of(device, config, problem),
        }
        for config, t in zip(configs, run.timed, strict=True)
    ]
    return {"timed": timed, "control": run.control.median, "void": run.is_void}


def _gate(job: JsonObject) -> JsonObject:
    """One configuration on all of check/'s cases."""
    device, config = _device(job), parse_config(job["config"])
    outcome = _checked_on(device, config, "full") or Verified("")
    return _answer(device, outcome)


def _count(job: JsonObject) -> JsonObject:
    """One configuration's facts, for a prediction; empty if it cannot be compiled in time."""
    if _is_late(job):
        return {}
    try:
        return asdict(facts_of(parse_config(job["config"]), job["arch"], causal=job["causal"]))
    except FlashsmithError:
        return {}


def _is_late(job: JsonObject) -> bool:
    return job["until"] is not None and time.time() > job["until"]


def _target(job: JsonObject) -> JsonObject:
    """What this worker measures on: asked by a driver that has no GPU itself."""
    return asdict(target_here(job["device"]))


def _sound(
    device: Device, config: KernelConfig, problem: AttentionProblem
) -> Refused | DidNotCompile | DidNotRun | None:
    """Compiles and loads; why that cannot be, or None."""
    try:
        prepare(device, config, problem)
    except (OutOfResources, Unsupported) as error:
        return Refused(str(error))
    except CompileError as error:
        return DidNotCompile(str(error))
    except (EmulationError, LaunchError) as error:
        return DidNotRun(str(error))
    return None


def _checked_on(device: Device, config: KernelConfig, cases: str) -> Outcome | None:
    """The first case that is not right, as an outcome; remembered for the next problem."""
    if (config, cases) not in _checked:
        _checked[config, cases] = _first_fault(device, config, cases)
    return _checked[config, cases]


def _first_fault(device: Device, config: KernelConfig, cases: str) -> Outcome | None:
    for case in CASES[cases](config):
        try:
            verdict = check_case(device, config, case)
        except (OutOfResources, Unsupported) as error:
            return Refused(str(error))
        except CompileError as error:
            return DidNotCompile(str(error))
        except FlashsmithError as error:
            return DidNotRun(str(error))
        if verdict.fault:
            return DidNotRun(f"{case.name}: {verdict.reason}")
        if not verdict.ok:
            return Wrong(f"{case.name}: {verdict.reason} at {verdict.where}")
    return None


def _measured(device: Device, config: KernelConfig, problem: AttentionProblem) -> Outcome:
    try:
        bits = fingerprint_of(device, config, problem)
        if not device.can_time:
            return Verified(bits)
        call = _tensors.of(device, problem)
        times = screen_us(timed_device(device), config, problem, call, runs=SCREEN_RUNS)
    except FlashsmithError as error:
        return DidNotRun(str(error))
    return Timed(times.median, times.p20, times.p80, times.rounds, bits)


def _answer(device: Device, outcome: Outcome) -> JsonObject:
    # After a fault the CUDA context of this process answers every call with the same error.
    broken = device.can_time and isinstance(outcome, DidNotRun)
    return {**outcome_fields(outcome), "retire": broken}


def _device(job: JsonObject) -> Device:
    return default_device("cuda") if job["device"] == "cuda" else _emulator(job["arch"])


@cache
def _emulator(arch: str) -> Device:
    return EmulatedDevice(arch)


def _problem(job: JsonObject) -> AttentionProblem:
    return problem_from_fields(job["problem"])
