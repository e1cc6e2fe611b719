"""The one place that decides whether a configuration's output is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.dtypes import from_bits
from flashsmith.base.errors import EmulationError, LaunchError, Mismatch
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.placement import MARGIN, Place, fill_buffers, places_of
from flashsmith.check.tolerance import (
    Distance,
    expectation_of,
    lse_distance,
    o_distance,
    place_text,
)
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import ForwardCall
from flashsmith.runtime.device import Device
from flashsmith.runtime.run import forward
from flashsmith.runtime.tensors import LSE_POISON, POISON

Buffers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one configuration is right on one case, and what is worst about it."""

    case: str
    ok: bool
    worst: float = 0.0  # of the tensor that uses most of what it is allowed
    allowed: float = 0.0
    where: str = ""
    reason: str = ""  # empty when right
    fault: bool = False  # the kernel did not end: it was stopped by a fault

    def require_ok(self, subject: str) -> None:
        """Raises `Mismatch` when wrong; `subject` is the configuration's short form."""
        if not self.ok:
            subject = f"{subject} on {self.case!r} ({self.reason})"
            raise Mismatch(subject, self.worst, self.allowed, self.where)


def check_case(device: Device, config: KernelConfig, case: Case) -> Verdict:
    """Runs `config` on `case` between canaries and compares every byte it may and may not write.

    A fault of the kernel is a verdict; a configuration that cannot be run raises.
    """
    places = places_of(case)
    before = fill_buffers(case, places, inputs_of(case))
    try:
        after = run_case(device, config, case, places, before)
    except (EmulationError, LaunchError) as error:
        return Verdict(case.name, ok=False, worst=np.inf, reason=str(error), fault=True)
    return judge(case, places, before, after)


def judge(case: Case, places: Mapping[str, Place], before: Buffers, after: Buffers) -> Verdict:
    """The verdict on what a launch left in the buffers."""
    damage = _damage(case, places, before, after)
    if damage:
        return Verdict(case.name, ok=False, worst=np.inf, where=damage[1], reason=damage[0])
    expected = expectation_of(case)
    outputs = _outputs(case, places, after)
    distances = [o_distance(expected, from_bits(outputs["o"], case.problem.dtype))]
    if case.lse:
        distances.append(lse_distance(expected, outputs["lse"].view(np.float32)))
    return _verdict(case, distances)


def _verdict(case: Case, distances: list[Distance]) -> Verdict:
    shown = max(distances, key=lambda distance: distance.worst / distance.allowed)
    reason = "" if shown.ok else f"{shown.tensor} is too far from the truth"
    return Verdict(case.name, shown.ok, shown.worst, shown.allowed, shown.where, reason)


def run_case(
    device: Device,
    config: KernelConfig,
    case: Case,
    places: Mapping[str, Place],
    before: Buffers,
) -> dict[str, NDArray[Any]]:
    """What is in the buffers after `config` ran on them."""
    addresses: dict[str, int] = {}
    try:
        for name, buffer in before.items():
            addresses[name] = device.allocate(buffer.nbytes)
            device.upload(addresses[name], buffer)
        tensors = {name: place.arg(addresses[place.buffer]) for name, place in places.items()}
        lse = addresses["lse"] + MARGIN * 4 if case.lse else 0
        call = ForwardCall(tensors["q"], tensors["k"], tensors["v"], tensors["o"], lse)
        forward(device, config, case.problem, call)
        return {
            name: device.download(addresses[name], buffer.nbytes).view(buffer.dtype)
            for name, buffer in before.items()
        }
    finally:
        for address in addresses.values():
            device.free(address)


def _damage(
    case: Case, places: Mapping[str, Place], before: Buffers, after: Buffers
) -> tuple[str, str] | None:
    """What was written and must not be, or the reverse, with its place; None if nothing."""
    for name, buffer in before.items():
        own = np.zeros(buffer.shape, np.bool_)  # the elements the kernel must write
        for view in _outputs(case, places, {name: own}).values():
            view[...] = True
        outside = np.flatnonzero((after[name] != buffer) & ~own)
        if outside.size:
            what = "elements outside the output" if own.any() else "elements of an input"
            return f"{outside.size} {what} changed", f"buffer {name}, element {outside[0]}"
    poison = {"o": POISON[case.problem.dtype], "lse": LSE_POISON}
    for name, view in _outputs(case, places, after).items():
        unwritten = np.argwhere(view == poison[name])
        if unwritten.size:
            at = tuple(int(i) for i in unwritten[0])
            return f"{len(unwritten)} elements of {name} never written", place_text(name, at)
    return None


def _outputs(case: Case, places: Mapping[str, Place], buffers: Buffers) -> dict[str, NDArray[Any]]:
    """Those of O and the LSE that lie in `buffers`, as views."""
    problem = case.problem
    views = {}
    if "o" in buffers:
        views["o"] = places["o"].view(buffers["o"])
    if "lse" in buffers:
        shape = (problem.batch, problem.heads, problem.q_len)
        views["lse"] = buffers["lse"][MARGIN:-MARGIN].reshape(shape)
    return views
