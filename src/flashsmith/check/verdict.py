"""The one module that decides whether a configuration's output is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashsmith.base.errors import EmulationError, LaunchError, Mismatch
from flashsmith.check.cases import Case, inputs_of
from flashsmith.check.placement import fill_buffers, locations_of, scratch_buffer, scratch_location
from flashsmith.check.tolerance import Distance, distance, expectation_of, position_text
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import SCRATCH
from flashsmith.kernels.plans import plan, scratch_bytes
from flashsmith.problem.signature import TensorRole, signature_of
from flashsmith.runtime.device import Device
from flashsmith.runtime.run import prepare, require_aligned
from flashsmith.runtime.tensors import Location, numbers_of, poison_of, uploaded

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
    locations = locations_of(case)
    before = fill_buffers(case, locations, inputs_of(case))
    scratch = _scratch_bytes(device, config, case)
    if scratch:
        locations[SCRATCH] = scratch_location(scratch)
        before[SCRATCH] = scratch_buffer(locations[SCRATCH])
    try:
        after = run_case(device, config, case, locations, before)
    except (EmulationError, LaunchError) as error:
        return Verdict(case.name, ok=False, worst=np.inf, reason=str(error), fault=True)
    return judge(case, locations, before, after)


def _scratch_bytes(device: Device, config: KernelConfig, case: Case) -> int:
    """Memory that the launches of a case ask for; none where there is nothing to launch."""
    if case.problem.is_empty or config.refusal() is not None:
        return 0
    return scratch_bytes(plan(config, case.problem, sm_count=device.sm_count))


def judge(
    case: Case, locations: Mapping[str, Location], before: Buffers, after: Buffers
) -> Verdict:
    """The verdict on what a launch left in the buffers."""
    damage = _damage(case, locations, before, after)
    if damage:
        return Verdict(case.name, ok=False, worst=np.inf, where=damage[1], reason=damage[0])
    expected = expectation_of(case)
    distances = []
    for role, bits in _outputs(case, locations, after):
        numbers = numbers_of(role, bits, case.problem)
        distances.append(distance(role.name, expected[role.name], numbers))
    return _verdict(case, distances)


def _verdict(case: Case, distances: list[Distance]) -> Verdict:
    shown = max(distances, key=lambda distance: distance.worst / distance.allowed)
    reason = "" if shown.ok else f"{shown.tensor} is too far from the truth"
    return Verdict(case.name, shown.ok, shown.worst, shown.allowed, shown.where, reason)


def run_case(
    device: Device,
    config: KernelConfig,
    case: Case,
    locations: Mapping[str, Location],
    before: Buffers,
) -> dict[str, NDArray[Any]]:
    """What is in the buffers after `config` ran on them."""
    with uploaded(device, before) as held:
        call = held.call(locations)
        require_aligned(case.problem, call)
        prepare(device, config, case.problem)(call)
        return {name: held.download(name) for name in before}


def _damage(
    case: Case, locations: Mapping[str, Location], before: Buffers, after: Buffers
) -> tuple[str, str] | None:
    """What was written and must not be, or the reverse, and where; None if nothing."""
    for name, buffer in before.items():
        own = np.zeros(buffer.shape, np.bool_)  # the elements the kernels may write
        written = [role.name for role in signature_of(case.problem).outputs(case.problem)]
        for output in (*written, SCRATCH):
            if output in locations and locations[output].buffer == name:
                locations[output].view(own)[...] = True
        outside = np.flatnonzero((after[name] != buffer) & ~own)
        if outside.size:
            what = "elements outside the output" if own.any() else "elements of an input"
            return f"{outside.size} {what} changed", f"buffer {name}, element {outside[0]}"
    for role, view in _outputs(case, locations, after):
        unwritten = np.argwhere(view == poison_of(role, case.problem))
        if unwritten.size:
            at = tuple(int(i) for i in unwritten[0])
            text = position_text(role.name, at)
            return f"{len(unwritten)} elements of {role.name} never written", text
    return None


def _outputs(
    case: Case, locations: Mapping[str, Location], buffers: Buffers
) -> list[tuple[TensorRole, NDArray[Any]]]:
    """The outputs of a case as they lie in `buffers`."""
    roles = signature_of(case.problem).outputs(case.problem)
    found = [
        (role, locations[role.name].view(buffers[locations[role.name].buffer])) for role in roles
    ]
    return [(role, np.ascontiguousarray(view)) for role, view in found]
