"""What a call runs, prepared once for each device, problem and wish, and kept for the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashsmith.api.array_view import ALIGNED_ELEMENTS, ArrayView
from flashsmith.api.notices import say_once
from flashsmith.api.options import CallOptions, read_config
from flashsmith.base import settings
from flashsmith.base.errors import ArgumentError, DeviceMissing, OutOfResources, Unsupported
from flashsmith.compile.compiler import compile_kernel
from flashsmith.kernels.kernel import KernelConfig
from flashsmith.kernels.launch import ForwardCall, TensorArg
from flashsmith.kernels.plans import plan
from flashsmith.problem.attention import AttentionProblem
from flashsmith.runtime.device import Device
from flashsmith.runtime.devices import (
    current_gpu,
    default_device,
    default_device_name,
    has_cuda,
)
from flashsmith.runtime.run import PreparedForward, is_empty, prepare_forward, remember
from flashsmith.tuner.choose.choice import Choice, choose
from flashsmith.tuner.choose.shipped_kernels import shipped_or_compiled

_SOMEWHERE = 1 << 20  # an aligned address for a launch that does not happen
_Strides = tuple[tuple[int, int, int], ...]  # of q, k and v: batch, sequence, heads
NOTHING_TO_DO = Choice(None, "none", "the output has no elements, or there are no keys")


@dataclass(frozen=True, slots=True)
class Launch:
    """A chosen and prepared kernel; `start` is None where there is nothing to compute."""

    problem: AttentionProblem
    choice: Choice
    start: PreparedForward | None


def launch_for(
    device: Device, problem: AttentionProblem, options: CallOptions, inputs: Sequence[ArrayView]
) -> Launch:
    """The launch of `problem` on `device`; chosen, compiled and loaded on first use.

    Of `inputs` the strides count: a family may be unable to read some in place.
    """
    readable = [tensor_arg(view.readable(), options.layout) for view in inputs]
    strides = tuple((arg.batch_stride, arg.seq_stride, arg.head_stride) for arg in readable)
    key = ("api", problem, options.config, options.return_lse, strides)
    found: Launch | None = device.prepared.get(key)
    if found is None:
        found = _prepare(device, problem, options, strides)
        remember(device, key, found)
    return found


def _prepare(
    device: Device, problem: AttentionProblem, options: CallOptions, strides: _Strides
) -> Launch:
    given = read_config(options.config)
    if is_empty(problem):
        return Launch(problem, NOTHING_TO_DO, None)
    unusable: dict[KernelConfig, str] = {}
    while True:
        choice = choose(problem, device.arch, gpu=device.name, given=given, unusable=unusable)
        assert choice.config is not None
        try:
            _require_readable(device, choice.config, problem, strides)
            start = prepare_forward(
                device,
                choice.config,
                problem,
                lse=options.return_lse,
                # What comes with a wheel is machine code alone.
                compile_with=compile_kernel if device.runs_ptx else shipped_or_compiled,
            )
            return Launch(problem, choice, start)
        except (Unsupported, OutOfResources) as error:  # strides, spills or registers
            if given is not None:
                raise
            unusable[choice.config] = str(error).removeprefix(f"{choice.config.short_form()}: ")


def _require_readable(
    device: Device, config: KernelConfig, problem: AttentionProblem, strides: _Strides
) -> None:
    """Raises `Unsupported` if a kernel of `config` cannot read tensors of these strides."""
    q, k, v = (TensorArg(_SOMEWHERE, *of_tensor) for of_tensor in strides)
    d_head, heads = problem.d_head, problem.heads
    o = TensorArg(_SOMEWHERE, problem.q_len * heads * d_head, heads * d_head, d_head)
    launch_plan = plan(config, problem, lse=False, sm_count=device.sm_count)
    launch_plan.params(device, ForwardCall(q, k, v, o, workspace=_SOMEWHERE))


def host_device(backend: str | None) -> Device:
    """The device for arrays in the host's memory: the current GPU if any, else the emulator."""
    if backend == "cuda" and not has_cuda():
        raise ArgumentError(
            "backend is 'cuda' and this machine has no CUDA GPU; pass 'emulator' or None."
        )
    name = backend or default_device_name()
    if name == "emulator" and backend is None and settings.device_name() is None:
        say_once(
            "emulator",
            "flashsmith found no CUDA GPU and runs its kernels in the emulator, which is exact and "
            "slow; pass backend='emulator' if this is wanted.",
        )
    return default_device(name, current_gpu() if name == "cuda" else 0)


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
