"""What a call runs, prepared once for each device, problem and wish, and kept for the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.api.array_view import ALIGNED_ELEMENTS, ArrayView
from flashsmith.api.notices import say_once
from flashsmith.api.options import CallOptions, read_config
from flashsmith.base.errors import ArgumentError, DeviceMissing
from flashsmith.problem.attention_problem import AttentionProblem
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import default_device, default_device_name, has_cuda
from flashsmith.runtime.forward import PreparedForward, is_empty, prepare_forward
from flashsmith.runtime.launch.plan import ForwardCall, TensorArg
from flashsmith.tuner.choose import Choice, choose

NOTHING_TO_DO = Choice(None, "none", "the output has no elements, or there are no keys")


@dataclass(frozen=True, slots=True)
class Launch:
    """A chosen and prepared kernel; `start` is None where there is nothing to compute."""

    problem: AttentionProblem
    choice: Choice
    start: PreparedForward | None


def launch_for(device: Device, problem: AttentionProblem, options: CallOptions) -> Launch:
    """The launch of `problem` on `device`; chosen, compiled and loaded on first use."""
    key = ("api", problem, options.config, options.return_lse)
    found: Launch | None = device.prepared.get(key)
    if found is None:
        found = device.prepared[key] = _prepare(device, problem, options)
    return found


def _prepare(device: Device, problem: AttentionProblem, options: CallOptions) -> Launch:
    given = read_config(options.config)
    if is_empty(problem):
        return Launch(problem, NOTHING_TO_DO, None)
    choice = choose(problem, device.arch, gpu=device.name, given=given)
    assert choice.config is not None
    start = prepare_forward(device, choice.config, problem, lse=options.return_lse)
    return Launch(problem, choice, start)


def host_device(backend: str | None) -> Device:
    """The device for arrays in the host's memory: the GPU if there is one, else the emulator."""
    if backend == "cuda" and not has_cuda():
        raise ArgumentError(
            "backend is 'cuda' and this machine has no CUDA GPU; pass 'emulator' or None."
        )
    name = backend or default_device_name()
    if name == "emulator" and backend is None:
        say_once(
            "emulator",
            "flashsmith found no CUDA GPU and runs its kernels in the emulator, which is exact and "
            "slow; backend='emulator' says that this is wanted.",
        )
    return default_device(name)


def gpu_device(view: ArrayView, backend: str | None) -> Device:
    """The device on which an array lies that is on a GPU."""
    if backend == "emulator":
        raise ArgumentError(
            f"backend is 'emulator' and {view.name} is on {view.device}; copy q, k and v to the "
            f"host's memory first."
        )
    try:
        return default_device("cuda", int(view.device.partition(":")[2]))
    except DeviceMissing as error:
        raise ArgumentError(f"{view.name} is on {view.device}: {error}") from error


def tensor_arg(view: ArrayView, layout: str) -> TensorArg:
    """What a kernel is told of an array without an `obstacle`."""
    bshd = view.in_bshd(layout)
    # The stride of a dimension with one element has no meaning; libraries put anything there.
    strides = [
        stride if extent > 1 else ALIGNED_ELEMENTS
        for extent, stride in zip(bshd.shape[:3], bshd.strides[:3], strict=True)
    ]
    batch, seq, head = strides
    return TensorArg(view.address, batch, seq, head)


def forward_call(views: Sequence[ArrayView], layout: str, lse: int) -> ForwardCall:
    """The tensors of a launch: views of q, k, v and o, and the address for the log-sum-exp."""
    q, k, v, o = (tensor_arg(view, layout) for view in views)
    return ForwardCall(q, k, v, o, lse)


def say_copy(view: ArrayView, obstacle: str) -> None:
    """Tells once that an argument is copied before each call, and how to avoid it."""
    say_once(
        f"copy of {view.name}",
        f"flashsmith copies {view.name} before each call: {obstacle}; pass an array whose last "
        f"dimension is contiguous and whose rows begin at multiples of 16 bytes.",
    )
