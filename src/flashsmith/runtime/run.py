"""A plan on a device: kernels compiled and loaded, arguments packed, launches started."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from flashsmith.arch import get as get_arch
from flashsmith.base.errors import ArgumentError
from flashsmith.compile.artefact import PtxKernel
from flashsmith.compile.compiler import compile_kernel, compile_ptx
from flashsmith.kernels.arguments import TensorArg
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import SCRATCH, WORKSPACE, Call, Launch
from flashsmith.kernels.plans import plan, scratch_bytes
from flashsmith.problem.attention import AttentionProblem
from flashsmith.problem.needs import Needs
from flashsmith.problem.signature import signature_of
from flashsmith.runtime.device import Device, Launcher, Start
from flashsmith.runtime.limits import require_fits

Compile = Callable[[KernelConfig, Needs, str], PtxKernel]
KernelKey = tuple[KernelConfig, Needs, Compile]  # of `Device.kernels`
Substitute = Callable[[Launch], PtxKernel | None]
Starts = tuple[Start, ...]  # of every launch, with its parameters
KEPT_STARTS = 1024  # of one plan; a model of many layers calls with other addresses in each
STRIDE_STEP = 8  # elements of one 16-byte access
MINUS_INFINITY = 0xFF800000  # float32


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of a plan, with its kernel loaded."""

    launch: Launch
    kernel: PtxKernel
    bind: Launcher


@dataclass(frozen=True, slots=True)
class Prepared:
    """A problem laid out and loaded: what a warm call needs, and nothing else.

    Without steps there is nothing to compute: the output has no elements, or there are no keys.
    """

    device: Device
    problem: AttentionProblem
    steps: tuple[Step, ...]
    workspace_bytes: int
    is_substituted: bool = False  # a kernel of it is not the one that was asked for
    scratch_bytes: int = 0  # that a call brings along as `SCRATCH`; the device's, where it does not
    _starts: dict[tuple[Hashable, int], Starts] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __call__(self, call: Call, stream: int = 0) -> None:
        """Starts the launches on tensors whose strides `require_aligned` accepted."""
        if not self.steps:
            fill_empty(self.device, self.problem, call, stream)
            return
        with self.device.one_call():
            if self.scratch_bytes and SCRATCH not in call:
                kept = TensorArg(self.device.scratch(self.scratch_bytes, stream))
                call = {**call, SCRATCH: kept}
            # Strides count: the same memory may be looked at in another way.
            if not self.start_again(tuple(call.values()), stream):
                self.start_first(tuple(call.values()), call, stream)

    def start_again(self, key: Hashable, stream: int) -> bool:
        """Starts what was started under `key` before; False if nothing was."""
        workspace = self.workspace_bytes and self.device.workspace(self.workspace_bytes, stream)
        starts = self._starts.get((key, workspace))
        if starts is None:
            return False
        for start in starts:
            start(stream)
        return True

    def start_first(self, key: Hashable, call: Call, stream: int) -> None:
        """Packs the arguments, keeps them under `key`, and starts.

        A key stands for addresses and strides; a caller whose strides never change may give the
        addresses alone.
        """
        workspace = self.workspace_bytes and self.device.workspace(self.workspace_bytes, stream)
        if len(self._starts) >= KEPT_STARTS:
            # The oldest: who forgets all packs the arguments of every layer again. Other threads
            # may do the same.
            for old in list(self._starts)[: KEPT_STARTS // 4]:
                self._starts.pop(old, None)
        self._starts[key, workspace] = self._bound(call, workspace)
        self.start_again(key, stream)

    def _bound(self, call: Call, workspace: int) -> Starts:
        call = {**call, WORKSPACE: TensorArg(workspace)}
        encode = self.device.tensor_map
        return tuple(
            step.bind((step.launch.arguments(call).pack(step.launch.problem, encode),))
            for step in self.steps
        )


def prepare(
    device: Device,
    config: KernelConfig,
    problem: AttentionProblem,
    *,
    compile_with: Compile | None = None,
    substitute: Substitute | None = None,
    judged: bool = False,
) -> Prepared:
    """Plans, compiles and loads `config` for `problem`.

    A device that runs PTX gets PTX alone unless `compile_with` says otherwise: whether ptxas would
    spill is then asked only if kernels are to be `judged`, of those that refuse a build for it.
    `substitute` may give a loaded kernel that runs in the place of one that is not.
    """
    if problem.is_empty:
        return Prepared(device, problem, (), 0)
    arch = get_arch(device.arch)
    config.require_buildable(arch)
    launches = plan(config, problem, sm_count=device.sm_count)
    # A new shape mostly runs kernels that another shape has loaded: no look at the disk then.
    keys: list[KernelKey] = [
        (at.config, at.needs, compile_with or _compiler_of(device, at, judged)) for at in launches
    ]
    new = [n for n, key in enumerate(keys) if key not in device.kernels]
    others: dict[int, PtxKernel] = {}
    if substitute is not None:
        others = {n: other for n in new if (other := substitute(launches[n])) is not None}
        new = [n for n in new if n not in others]
    made = _side_by_side([keys[n] for n in new], device.arch)
    for n, kernel in zip(new, made, strict=True):
        require_fits(launches[n].config.short_form(), kernel, launches[n].geometry, arch)
        device.kernels[keys[n]] = kernel
    for n, kernel in others.items():
        require_fits(launches[n].config.short_form(), kernel, launches[n].geometry, arch)
    kernels = [others.get(n) or device.kernels[key] for n, key in enumerate(keys)]
    steps = [
        Step(launch, kernel, device.prepare(kernel, launch.geometry))
        for launch, kernel in zip(launches, kernels, strict=True)
    ]
    workspace_bytes = max((step.launch.workspace_bytes for step in steps), default=0)
    scratch = scratch_bytes(tuple(step.launch for step in steps))
    return Prepared(device, problem, tuple(steps), workspace_bytes, bool(others), scratch)


def _compiler_of(device: Device, launch: Launch, judged: bool) -> Compile:
    """What makes the kernel of a launch in the form that the device runs.

    ctas that count each other meet as many as run at a time, which follows from their registers.
    """
    config = launch.config
    counts = launch.workspace_bytes and not config.FIXES_REGISTERS
    is_whole = counts or (judged and config.judges_builds())
    return compile_ptx if device.runs_ptx and not is_whole else compile_kernel


def _side_by_side(keys: Sequence[KernelKey], arch: str) -> list[PtxKernel]:
    """The kernels of launches; several at once, because NVRTC takes a second or two for each."""

    def one(key: KernelKey) -> PtxKernel:
        config, needs, compile_with = key
        return compile_with(config, needs, arch)

    if len(keys) < 2:
        return [one(key) for key in keys]
    with ThreadPoolExecutor(len(keys)) as pool:
        return list(pool.map(one, keys))


def run_arrays(
    device: Device,
    config: KernelConfig,
    problem: AttentionProblem,
    inputs: Mapping[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """The bits of every output, by name, from bits of the inputs; in the problem's layout."""
    from flashsmith.runtime.tensors import contiguous_tensors, uploaded

    signature = signature_of(problem)
    for role in signature.inputs(problem):
        array, wanted = inputs[role.name], role.shape(problem)
        if array.shape != wanted or array.itemsize != role.element_bytes(problem):
            raise ArgumentError(
                f"{role.name} has shape {array.shape} and {array.itemsize}-byte elements; the "
                f"problem asks for {wanted} and {role.element_bytes(problem)}."
            )
    locations, buffers = contiguous_tensors(problem, inputs)
    with uploaded(device, buffers) as held:
        prepare(device, config, problem)(held.call(locations))
        return {
            role.name: held.download(role.name).reshape(role.shape(problem))
            for role in signature.outputs(problem)
        }


def require_aligned(problem: AttentionProblem, call: Call) -> None:
    """Raises unless every row of every tensor begins at a multiple of 16 bytes."""
    for role in signature_of(problem).of(problem):
        arg = call[role.name]
        strides = (arg.batch_stride, arg.seq_stride, arg.head_stride)
        if role.is_rows and (arg.address % 16 or any(stride % STRIDE_STEP for stride in strides)):
            raise ArgumentError(
                f"{role.name} begins at {arg.address:#x} with strides {strides}; rows must begin "
                f"at multiples of 16 bytes, so strides are multiples of {STRIDE_STEP} elements."
            )


def fill_empty(device: Device, problem: AttentionProblem, call: Call, stream: int) -> None:
    """Writes what no kernel is needed for: with no key or no query, outputs are 0, an LSE -inf."""
    for role in signature_of(problem).outputs(problem):
        shape, at = role.rows_first(problem), call[role.name]
        if role.is_statistics:
            device.fill(at.address, MINUS_INFINITY, math.prod(shape), stream=stream)
            continue
        n_bytes = role.element_bytes(problem)
        if role.of:  # without gaps
            if math.prod(shape):
                device.fill(at.address, 0, math.prod(shape), stream=stream)
            continue
        batches, rows, heads, d_head = shape
        for batch in range(batches):
            for head in range(heads):
                offset = batch * at.batch_stride + head * at.head_stride
                device.fill(
                    at.address + offset * n_bytes,
                    0,
                    d_head * n_bytes // 4,
                    rows=rows,
                    pitch_bytes=at.seq_stride * n_bytes,
                    stream=stream,
                )
